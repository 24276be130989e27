"""Training steps: lockstep's DistributedDataParallel and DataParallel beside PyTorch's DistributedDataParallel over Gloo.

All variants follow each other in an order that changes, again and again, so that what else the machine does hits all
alike; within a program the kinds of step take turns (train_step.cc says which, and why). A step's time is that of its
slowest rank, a run's the median over its steps. All see the same weights and the same data: a run whose losses are not PyTorch's is refused.
"""
import os
import statistics

from kit import numbers, ranks
from kit.findings import Figure, Findings, Plot, Series, Table
from kit.progress import Progress

NAME = "training"
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = "bench/training/bench_train_step"
RUN_SECONDS = 300  # one program; it takes a small part of it
LOSS_STEPS, LOSS_TOLERANCE = 4, 1e-4  # relative; Adam makes much of what rounding does to small gradients

MODELS = {"cnn": "CNN: 2 convolutions, 2 linear layers, 28x28, batch 32 per rank",
          "gpt": "GPT: 6 layers, 192 wide, 6 heads, 128 tokens, batch 8 per rank",
          "mlp": "MLP: 12 layers of 1024x1024, batch 32 per rank",
          "mingpt": "minGPT-mini: the model of examples/mingpt, 6 layers, 192 wide, 6 heads, 64 tokens, batch 8 per rank",
          "resnet": "ResNet-18-sized CNN: 8 residual blocks with batch norm, 32x32, batch 4 per rank"}
WORLDS = (1, 2, 4)
TURNS = {"cnn": 16, "gpt": 6, "mlp": 10, "mingpt": 12, "resnet": 5}  # of each kind; half with more ranks than cores

STARTED, TUNED = "PyTorch + Gloo, as started", "PyTorch + Gloo, tuned alike"
HELPED = "PyTorch + Gloo, tuned, Gloo helped"  # as lockstep helps it (src/compat/gloo.cc)
GLOO, SHM, REPLICAS = "lockstep + gloo", "lockstep + shm", "lockstep DataParallel"
VARIANTS = (STARTED, TUNED, HELPED, GLOO, SHM, REPLICAS)
RANKED = VARIANTS[:-1]  # those that have ranks

LEAST = {(TUNED, "cnn"): 1.08, (TUNED, "gpt"): 1.04, (TUNED, "mlp"): 1.25, (STARTED, "cnn"): 1.25, (STARTED, "mlp"): 1.6}


# ---- Measuring


def command_of(settings, variant, world):
    """(command, ranks, environment); nothing where the variant cannot run."""
    program = [os.path.join(settings.build, PROGRAM), "--set-to-none"]
    pytorch = [settings.python, os.path.join(HERE, "pytorch.py"), "--set-to-none"]
    one_thread = {"OMP_NUM_THREADS": 1}  # as torchrun has it, and lockstep with as many ranks as cores
    if variant in (STARTED, TUNED, HELPED) and not settings.python:
        return None
    if variant == STARTED:
        return pytorch, world, one_thread
    if variant in (TUNED, HELPED):
        helped = ["--patient"] if variant == HELPED else []
        return pytorch + ["--tuned", "--bucket-view"] + helped, world, {**one_thread, **ranks.HUGE_PAGES}
    if variant == REPLICAS:
        threads = min(world, len(os.sched_getaffinity(0)))
        return (program + ["--wrap", "data_parallel", "--parts", str(world), "--threads", str(threads)], 1,
                {"OMP_NUM_THREADS": threads, **ranks.HUGE_PAGES})
    return program + ["--backend", "shm" if variant == SHM else "gloo"], world, {**one_thread, **ranks.HUGE_PAGES}


def variants_of(world):
    """Alone there is nobody to talk to: the backends are the same, and so are one replica and the bare module. Help for
    Gloo is shown where the figures are set."""
    if world == 1:
        return [STARTED, TUNED, SHM]
    return [variant for variant in VARIANTS if world == 2 or variant != HELPED]


def run_variant(settings, model, variant, world):
    """What one run has to say, in medians; nothing where the variant cannot run."""
    found = command_of(settings, variant, world)
    if not found:
        return None
    command, processes, env = found
    cores = sorted(os.sched_getaffinity(0))
    turns = 1 if settings.quick else max(2, TURNS[model] // (2 if world > len(cores) else 1))
    # A rank of many is bound by its program; one alone would wander between the cores.
    cpus = {cores[-1]} if world == 1 and variant != STARTED else None
    reports = ranks.run_ranks(command + ["--model", model, "--loss-steps", str(LOSS_STEPS), "--warmup", "1",
                                         "--turns", str(turns)], processes, RUN_SECONDS, env, cpus)
    return summary(reports)


def summary(reports):
    first = reports[0]
    return {"times_ms": {kind: statistics.median(max(times) for times in zip(*(rank["times_ms"][kind] for rank in reports)))
                         for kind in first["times_ms"]},
            # Of all ranks together.
            "cpu_ms": {kind: sum(statistics.median(rank["cpu_ms"][kind]) for rank in reports) for kind in first["cpu_ms"]},
            "peak_mib": max(rank["peak_mib"] for rank in reports), "share_mib": max(rank["share_mib"] for rank in reports),
            "parameters": first["parameters"], "rows": first["rows"], "buckets": first["buckets"],
            "threads": first["threads"], "losses": [rank["losses"] for rank in reports]}


def loss_difference(right, other):
    """In words, or nothing. One process that takes the batches of all ranks sees the mean of their losses."""
    if len(right["losses"]) != len(other["losses"]):
        right = {"losses": [[statistics.fmean(step) for step in zip(*right["losses"])]]}
    for rank, (ours, theirs) in enumerate(zip(right["losses"], other["losses"])):
        for step, (a, b) in enumerate(zip(ours, theirs)):
            if not abs(a - b) <= LOSS_TOLERANCE * abs(a):  # also when one is not a number
                return f"rank {rank}, step {step}: the loss is {b:.8g} instead of {a:.8g}"
    return None


def alternations_of(settings, world):
    """How often all variants follow each other in a round: where the figures are set, twice."""
    return 2 if world == 2 and not settings.quick else 1


def measure(settings):
    raw = {"cores": len(os.sched_getaffinity(0)), "models": settings.models, "runs": [], "notes": [], "failures": []}
    if not settings.python:
        raw["notes"].append("PyTorch is left out: no interpreter has it (apt-get install python3-torch)")
    in_round = len(settings.models) * sum(alternations_of(settings, world) for world in settings.worlds)
    progress = Progress(NAME, settings.rounds * in_round)
    for at_round in range(settings.rounds):
        for model in settings.models:
            for world in settings.worlds:
                for more in range(alternations_of(settings, world)):
                    ranks_text = f"{world} rank{'s' * (world > 1)}"
                    progress.step(f"round {at_round + 1} of {settings.rounds}, {model}, {ranks_text}")
                    # The first of each round have the rounds' own numbers, so that worlds can be compared by them.
                    measure_all(settings, raw, at_round + more * settings.rounds, model, world)
    return raw


def measure_all(settings, raw, alternation, model, world):
    """All variants of one model in one world, one after the other; each alternation begins with another one."""
    variants = variants_of(world)
    first = alternation % len(variants)
    found = {}
    for variant in variants[first:] + variants[:first]:
        try:
            found[variant] = run_variant(settings, model, variant, world)
        except ranks.Failure as failure:
            raw["failures"].append(f"{model}, {world} ranks, {variant}: {failure}")
    found = {variant: found[variant] for variant in variants if found.get(variant)}
    right = next(iter(found.values()), None)  # what the others are held against
    for variant, run in found.items():
        if difference := loss_difference(right, run):
            raw["failures"].append(f"{model}, {world} ranks, {variant}: refused, {difference}")
            continue
        raw["runs"].append({"round": alternation, "model": model, "world": world, "variant": variant, **run})


# ---- Presenting


class Runs:
    def __init__(self, raw):
        self.raw, self.cores = raw, raw["cores"]
        self.rounds = 1 + max((run["round"] for run in raw["runs"]), default=-1)
        self.by_key = {}
        for run in raw["runs"]:
            self.by_key.setdefault((run["model"], run["world"], run["variant"]), {})[run["round"]] = run

    def models(self):
        return [model for model in MODELS if any(key[0] == model for key in self.by_key)]

    def worlds(self, model):
        return sorted({key[1] for key in self.by_key if key[0] == model})

    def variants(self, model, world):
        return [variant for variant in VARIANTS if (model, world, variant) in self.by_key]

    def values(self, model, world, variant, value):
        """One for each round; None where there is none."""
        rounds = self.by_key.get((model, world, variant), {})
        return [value(rounds[at]) if at in rounds else None for at in range(self.rounds)]

    def has_alone(self):
        """What scaling is measured by; a run of chosen worlds may lack it."""
        return any(key[1] == 1 for key in self.by_key)

    def any(self, model):
        return next(run for run in self.raw["runs"] if run["model"] == model)

    def faster(self, model, world, variant, peer):
        """How many times `peer`'s throughput `variant` has."""
        return numbers.ratio_of_rounds(self.values(model, world, peer, step_ms),
                                       self.values(model, world, variant, step_ms))

    def over(self, model, world, variant, kind, base):
        def cost(run):
            times = run["times_ms"]
            return times[kind] / times[base] - 1 if kind in times and base in times else None
        return numbers.median(self.values(model, world, variant, cost))

    def efficiency(self, model, world, variant, strong):
        """Throughput over that of one rank alone, times the cores that the ranks can have."""
        alone = self.values(model, 1, {STARTED: STARTED, TUNED: TUNED, HELPED: TUNED}.get(variant, SHM), step_ms)
        if not strong:
            rows = 1
            together = self.values(model, world, variant, step_ms)
        else:
            rows = 1 / world
            together = self.values(model, world, variant, lambda run: run["times_ms"].get("strong"))
        ratio = numbers.ratio_of_rounds(alone, together)
        return ratio and ratio * rows * world / min(world, self.cores)


def step_ms(run):
    """The step that trains: of all ranks, gradients averaged."""
    times = run["times_ms"]
    return times.get("sync") or times.get("wrapped") or times["step"]


def cpu_ms(run):
    used = run["cpu_ms"]
    return used.get("sync") or used.get("wrapped") or used["step"]


def times_text(ratio):
    return "-" if ratio is None else f"{ratio:.2f}x"


def model_table(runs, model):
    about = runs.any(model)
    rows = []
    for world in runs.worlds(model):
        variants = runs.variants(model, world)
        step = {variant: numbers.median(runs.values(model, world, variant, step_ms)) for variant in variants}
        best = min(step.values(), default=None)
        for variant in variants:
            def of(value, variant=variant, world=world):
                return runs.values(model, world, variant, value)
            rows.append([str(world), variant, numbers.with_spread(of(step_ms)),
                         numbers.text(numbers.median(of(lambda run: 1e3 * world * about["rows"] / step_ms(run)))),
                         times_text(runs.faster(model, world, variant, TUNED)),
                         times_text(runs.faster(model, world, variant, STARTED)),
                         numbers.percent(runs.over(model, world, variant, "sync", "local")),
                         numbers.percent(runs.over(model, world, variant, "sync", "barrier") if world > 1 else
                                         runs.over(model, world, variant, "wrapped", "bare")),
                         numbers.text(numbers.median(of(lambda run: cpu_ms(run) / 1e3))),
                         numbers.text(numbers.median(of(lambda run: run["peak_mib"]))),
                         numbers.text(numbers.median(of(lambda run: run["share_mib"]))),
                         "fastest" if step[variant] == best else ""])
    return Table(f"{MODELS[model]}, {about['parameters'] / 1e6:.1f} M parameters",
                 ["ranks", "variant", "step ms", "samples/s", "x tuned", "x started", "over no_sync", "over barrier", "CPU s",
                  "peak MiB", "share MiB", "fastest"], rows, texts=2)


def scaling_table(runs):
    rows = []
    for model in runs.models():
        for variant in RANKED:
            worlds = [world for world in runs.worlds(model) if world > 1]
            if any(variant in runs.variants(model, world) for world in worlds):
                rows.append([model, variant] + [share(runs.efficiency(model, world, variant, strong))
                                                for strong in (True, False) for world in WORLDS[1:]])
    return Table("Scaling efficiency", ["model", "variant"] + [f"{kind}, {world} ranks" for kind in ("strong", "weak")
                                                               for world in WORLDS[1:]], rows, texts=2,
                 note="Throughput over that of the same program alone on one core, divided by the cores that the ranks have "
                      f"(at most {runs.cores} here). Strong: the ranks share one batch; weak: each has a batch of its own.")


def share(value):
    return "-" if value is None else f"{100 * value:.0f} %"


def bars(runs, title, y, value, variants=VARIANTS, world=2, note=""):
    """One group for each model."""
    series = []
    for variant in variants:
        models = [model for model in runs.models() if variant in runs.variants(model, world)]
        values = [[found for found in runs.values(model, world, variant, value) if found is not None] for model in models]
        kept = [(model, found) for model, found in zip(models, values) if found]
        if kept:
            spread = [numbers.quartiles(found) for _, found in kept]
            series.append(Series(variant, [model for model, _ in kept], [numbers.median(found) for _, found in kept],
                                 [low for low, _ in spread], [high for _, high in spread]))
    return Plot(title, "model", y, series, kind="bars", note=note)


def throughput_plot(runs, model):
    series = []
    for variant in VARIANTS:
        worlds = [world for world in runs.worlds(model) if variant in runs.variants(model, world)]
        values = [[world * runs.any(model)["rows"] * 1e3 / time
                   for time in runs.values(model, world, variant, step_ms) if time] for world in worlds]
        if len(worlds) > 1:
            spread = [numbers.quartiles(found) for found in values]
            series.append(Series(variant, worlds, [numbers.median(found) for found in values],
                                 [low for low, _ in spread], [high for _, high in spread]))
    return Plot(f"Throughput of {model} by ranks", "ranks", "samples per second", series,
                note=f"More ranks than the {runs.cores} cores cannot be faster.")


def figures(runs):
    wanted = runs.raw["models"]  # also those that failed: they were not measured
    for (peer, model), least in LEAST.items():
        if model in wanted:
            yield Figure(f"{model}, 2 ranks, lockstep + shm, training throughput", f"x {peer}",
                         runs.faster(model, 2, SHM, peer), least)
    for model in wanted:
        for peer in (STARTED, TUNED, HELPED):
            yield Figure(f"{model}, 2 ranks, lockstep + gloo, training throughput", f"x {peer}",
                         runs.faster(model, 2, GLOO, peer), 1)
    for model in wanted:
        for variant in (SHM, GLOO):
            yield Figure(f"{model}, 2 ranks, {variant}, memory of a rank", f"of {TUNED}",
                         numbers.ratio_of_rounds(runs.values(model, 2, variant, lambda run: run["share_mib"]),
                                                 runs.values(model, 2, TUNED, lambda run: run["share_mib"])), 1, at_most=True)


def present(raw):
    runs = Runs(raw)
    peer = {(model, at): time for model in runs.models() for at, time in enumerate(runs.values(model, 2, TUNED, step_ms))}

    def relative(run):
        time = peer.get((run["model"], run["round"]))
        return time and time / step_ms(run)
    plots = [
        bars(runs, "Training throughput of two ranks, beside PyTorch tuned alike", "times PyTorch + Gloo, tuned alike",
             relative),
        bars(runs, "What averaging the gradients adds to a step, two ranks", "% over a step under no_sync",
             lambda run: 100 * (run["times_ms"]["sync"] / run["times_ms"]["local"] - 1)
             if "sync" in run["times_ms"] else None, RANKED),
        bars(runs, "Memory of a rank, two ranks", "MiB", lambda run: run["share_mib"], RANKED,
             note="What the ranks share is divided among them, so that the sum is what the machine has to give."),
        *(throughput_plot(runs, model) for model in runs.models() if len(runs.worlds(model)) > 1)]
    return Findings(
        "Training step",
        ["The same weights, the same batches, Adam, one thread for each rank, gradients dropped between steps; a run whose "
         f"first {LOSS_STEPS} losses are not PyTorch's (within {LOSS_TOLERANCE:g}) is refused.",
         f"{STARTED}: as torchrun starts it. {TUNED}: with all that lockstep does for its ranks: each bound to a core, heap "
         "kept, huge pages, gradients as views of buckets. Gloo helped: and its threads do not take the CPU from each other, which no setting "
         "of PyTorch's does (lockstep + gloo always has it).",
         "In each round all variants follow each other once, with two ranks, where the figures are set, twice, each time in "
         "another order. step ms: median over these alternations, with their quartiles; x tuned, x started: throughput over PyTorch's; over no_sync, over "
         "barrier: what averaging adds to a step under no_sync, and to one with a bare barrier after backward (of one rank: the "
         "wrapper over the bare module); CPU s: of all ranks and threads in one step; peak: resident memory of a rank; share: "
         "what of it is its own, with shared pages divided among those who share.",
         "DataParallel: one process, a replica for each rank, and the batches of all ranks in one."],
        [model_table(runs, model) for model in runs.models()] + ([scaling_table(runs)] if runs.has_alone() else []), plots,
        list(figures(runs)), raw["notes"], raw["failures"])
