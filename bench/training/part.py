"""Training steps: lockstep's DistributedDataParallel and DataParallel, and PyTorch's DistributedDataParallel over
lockstep, compared with PyTorch's DistributedDataParallel over Gloo.

The variants run one after another, repeatedly and in a changing order, so that other activity of the machine affects
all of them equally. Within a program, the kinds of step alternate (train_step.cc explains them). The time of a step
is that of its slowest rank, and the time of a run is the median over its steps. All variants have the same weights
and data: a run is rejected if its losses differ from PyTorch's.
"""
import os
import statistics

from kit import numbers, package, ranks
from kit.findings import Figure, Findings, Plot, Series, Table
from kit.progress import Progress

NAME = "training"
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = "bench/training/bench_train_step"
RUN_SECONDS = 300  # limit for one program, which takes much less
LOSS_STEPS, LOSS_TOLERANCE = 4, 1e-4  # relative; Adam amplifies rounding in small gradients

MODELS = {"cnn": "CNN: 2 convolutions, 2 linear layers, 28x28, batch 32 per rank",
          "gpt": "GPT: 6 layers, 192 wide, 6 heads, 128 tokens, batch 8 per rank",
          "mlp": "MLP: 12 layers of 1024x1024, batch 32 per rank",
          "mingpt": "minGPT-mini: the model of examples/mingpt, 6 layers, 192 wide, 6 heads, 64 tokens, batch 8 per rank",
          "resnet": "ResNet-18-sized CNN: 8 residual blocks with batch norm, 32x32, batch 4 per rank"}
WORLDS = (1, 2, 4)
TURNS = {"cnn": 16, "gpt": 6, "mlp": 10, "mingpt": 12, "resnet": 5}  # of each kind; half with more ranks than cores

STARTED, TUNED = "PyTorch + Gloo, as started", "PyTorch + Gloo, tuned alike"
HELPED = "PyTorch + Gloo, tuned, Gloo helped"  # as lockstep does (src/gloo/make_gloo.cc)
PYTHON = "PyTorch + lockstep, tuned alike"  # the program of TUNED, with another backend
GLOO, SHM, REPLICAS = "lockstep + gloo", "lockstep + shm", "lockstep DataParallel"
VARIANTS = (STARTED, TUNED, HELPED, PYTHON, GLOO, SHM, REPLICAS)
RANKED = VARIANTS[:-1]  # those with several ranks

LEAST = {(TUNED, "cnn"): 1.08, (TUNED, "gpt"): 1.04, (TUNED, "mlp"): 1.25, (STARTED, "cnn"): 1.25, (STARTED, "mlp"): 1.6}
LEAST_PYTHON = {"cnn": 1.15, "mlp": 1.25}  # PYTHON relative to TUNED


# ---- Measuring


def command_of(settings, variant, world):
    """(command, ranks, environment), or None if the variant cannot run."""
    program = [os.path.join(settings.build, PROGRAM), "--set-to-none"]
    pytorch = [settings.python, os.path.join(HERE, "pytorch.py"), "--set-to-none"]
    one_thread = {"OMP_NUM_THREADS": 1}  # as torchrun sets it, and lockstep with as many ranks as cores
    if variant in (STARTED, TUNED, HELPED, PYTHON) and not settings.python:
        return None
    if variant == PYTHON and not settings.package:
        return None
    if variant == STARTED:
        return pytorch, world, one_thread
    if variant in (TUNED, HELPED, PYTHON):
        more = {TUNED: [], HELPED: ["--patient"], PYTHON: ["--backend", "lockstep"]}[variant]
        env = package.environment(settings.package) if variant == PYTHON else {}
        return pytorch + ["--tuned", "--bucket-view"] + more, world, {**one_thread, **ranks.HUGE_PAGES, **env}
    if variant == REPLICAS:
        threads = min(world, len(os.sched_getaffinity(0)))
        return (program + ["--wrap", "data_parallel", "--parts", str(world), "--threads", str(threads)], 1,
                {"OMP_NUM_THREADS": threads, **ranks.HUGE_PAGES})
    return program + ["--backend", "shm" if variant == SHM else "gloo"], world, {**one_thread, **ranks.HUGE_PAGES}


def variants_of(world):
    """With one rank, the backends are the same (also PyTorch's), and so are one replica and the bare module. Gloo is
    helped only with the number of ranks that has goals."""
    if world == 1:
        return [STARTED, TUNED, SHM]
    return [variant for variant in VARIANTS if world == 2 or variant != HELPED]


def run_variant(settings, model, variant, world):
    """The medians of one run, or None if the variant cannot run."""
    found = command_of(settings, variant, world)
    if not found:
        return None
    command, processes, env = found
    cores = sorted(os.sched_getaffinity(0))
    turns = 1 if settings.quick else max(2, TURNS[model] // (2 if world > len(cores) else 1))
    # With several ranks, the program binds each; a single one would move between the cores.
    cpus = {cores[-1]} if world == 1 and variant != STARTED else None
    reports = ranks.run_ranks(command + ["--model", model, "--loss-steps", str(LOSS_STEPS), "--warmup", "1",
                                         "--turns", str(turns)], processes, RUN_SECONDS, env, cpus)
    return summary(reports)


def summary(reports):
    first = reports[0]
    return {"times_ms": {kind: statistics.median(max(times) for times in zip(*(rank["times_ms"][kind] for rank in reports)))
                         for kind in first["times_ms"]},
            # The sum over all ranks.
            "cpu_ms": {kind: sum(statistics.median(rank["cpu_ms"][kind]) for rank in reports) for kind in first["cpu_ms"]},
            "peak_mib": max(rank["peak_mib"] for rank in reports), "share_mib": max(rank["share_mib"] for rank in reports),
            "machine_mib": sum(rank["share_mib"] for rank in reports),
            "parameters": first["parameters"], "rows": first["rows"], "buckets": first["buckets"],
            "threads": first["threads"], "losses": [rank["losses"] for rank in reports]}


def loss_difference(right, other):
    """A description of the first difference, or None. One process with the batches of all ranks has the mean of their
    losses."""
    if len(right["losses"]) != len(other["losses"]):
        right = {"losses": [[statistics.fmean(step) for step in zip(*right["losses"])]]}
    for rank, (ours, theirs) in enumerate(zip(right["losses"], other["losses"])):
        for step, (a, b) in enumerate(zip(ours, theirs)):
            if not abs(a - b) <= LOSS_TOLERANCE * abs(a):  # also if one is NaN
                return f"rank {rank}, step {step}: the loss is {b:.8g} instead of {a:.8g}"
    return None


def alternations_of(settings, world):
    """The number of alternations of all variants per round: two with the number of ranks that has goals."""
    return 2 if world == 2 and not settings.quick else 1


def measure(settings):
    raw = {"cores": len(os.sched_getaffinity(0)), "models": settings.models, "runs": [], "notes": [], "failures": []}
    if not settings.python:
        raw["notes"].append("PyTorch is left out: no Python interpreter has it (apt-get install python3-torch)")
    elif not settings.package:
        raw["notes"].append(package.LEFT_OUT)
    in_round = len(settings.models) * sum(alternations_of(settings, world) for world in settings.worlds)
    progress = Progress(NAME, settings.rounds * in_round)
    for at_round in range(settings.rounds):
        for model in settings.models:
            for world in settings.worlds:
                for more in range(alternations_of(settings, world)):
                    ranks_text = f"{world} rank{'s' * (world > 1)}"
                    progress.step(f"round {at_round + 1} of {settings.rounds}, {model}, {ranks_text}")
                    # The first alternation has the number of its round, so that worlds can be compared by round.
                    measure_all(settings, raw, at_round + more * settings.rounds, model, world)
    return raw


def measure_all(settings, raw, alternation, model, world):
    """Runs all variants of one model and world size, one after another. Each alternation starts with another
    variant."""
    variants = variants_of(world)
    first = alternation % len(variants)
    found = {}
    for variant in variants[first:] + variants[:first]:
        try:
            found[variant] = run_variant(settings, model, variant, world)
        except ranks.Failure as failure:
            raw["failures"].append(f"{model}, {world} ranks, {variant}: {failure}")
    found = {variant: found[variant] for variant in variants if found.get(variant)}
    right = next(iter(found.values()), None)  # the reference for the others
    for variant, run in found.items():
        if difference := loss_difference(right, run):
            raw["failures"].append(f"{model}, {world} ranks, {variant}: rejected, {difference}")
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
        """One value per round; None if it is missing."""
        rounds = self.by_key.get((model, world, variant), {})
        return [value(rounds[at]) if at in rounds else None for at in range(self.rounds)]

    def has_alone(self):
        """Whether there is a run with one rank, the reference for scaling; a selection of worlds may lack it."""
        return any(key[1] == 1 for key in self.by_key)

    def any(self, model):
        return next(run for run in self.raw["runs"] if run["model"] == model)

    def faster(self, model, world, variant, peer):
        """The throughput of `variant` relative to `peer`."""
        return numbers.ratio_of_rounds(self.values(model, world, peer, step_ms),
                                       self.values(model, world, variant, step_ms))

    def over(self, model, world, variant, kind, base):
        def cost(run):
            times = run["times_ms"]
            return times[kind] / times[base] - 1 if kind in times and base in times else None
        return numbers.median(self.values(model, world, variant, cost))

    def efficiency(self, model, world, variant, strong):
        """The throughput divided by that of one rank, and by the number of cores that the ranks can use."""
        base = {STARTED: STARTED, TUNED: TUNED, HELPED: TUNED, PYTHON: TUNED}.get(variant, SHM)
        alone = self.values(model, 1, base, step_ms)
        if not strong:
            rows = 1
            together = self.values(model, world, variant, step_ms)
        else:
            rows = 1 / world
            together = self.values(model, world, variant, lambda run: run["times_ms"].get("strong"))
        ratio = numbers.ratio_of_rounds(alone, together)
        return ratio and ratio * rows * world / min(world, self.cores)


def step_ms(run):
    """The time of a training step, with gradients averaged over all ranks."""
    times = run["times_ms"]
    return times.get("sync") or times.get("wrapped") or times["step"]


def cpu_ms(run):
    used = run["cpu_ms"]
    return used.get("sync") or used.get("wrapped") or used["step"]


def share_mib(run):
    return run["share_mib"]


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
                         numbers.text(numbers.median(of(share_mib))),
                         "fastest" if step[variant] == best else ""])
    return Table(f"{MODELS[model]}, {about['parameters'] / 1e6:.1f} M parameters",
                 ["ranks", "variant", "step ms", "samples/s", "x tuned", "x started", "over no_sync", "over barrier", "CPU s",
                  "peak MiB", "share MiB", "fastest"], rows, texts=2)


def python_table(runs):
    """The two backends of the same program side by side; None if they were not measured."""
    rows = []
    for model in runs.models():
        for world in runs.worlds(model):
            if not {TUNED, PYTHON} <= set(runs.variants(model, world)):
                continue

            def both(text, model=model, world=world):
                return [text(model, world, variant) for variant in (TUNED, PYTHON)]
            rows.append([model, str(world), *both(lambda *key: numbers.with_spread(runs.values(*key, step_ms))),
                         times_text(runs.faster(model, world, PYTHON, TUNED)),
                         *both(lambda *key: numbers.percent(runs.over(*key, "sync", "local"))),
                         *both(lambda *key: numbers.text(numbers.median(runs.values(*key, share_mib))))])
    if not rows:
        return None
    return Table("Python's DDP over lockstep compared with Python's DDP over Gloo",
                 ["model", "ranks", "step ms, Gloo", "step ms, lockstep", "x Gloo", "over no_sync, Gloo",
                  "over no_sync, lockstep", "share MiB, Gloo", "share MiB, lockstep"], rows, texts=2,
                 note="The same program, tuned alike, with two backends of torch.distributed. x Gloo: throughput over "
                      "lockstep relative to that over Gloo. The other columns are those of the tables above.")


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
                 note="Throughput relative to the same program with one rank on one core, divided by the cores "
                      f"that the ranks have (at most {runs.cores} here). Strong: the ranks share one batch; weak: "
                      "each has its own batch.")


def share(value):
    return "-" if value is None else f"{100 * value:.0f} %"


def bars(runs, title, y, value, variants=VARIANTS, world=2, note=""):
    """One group per model."""
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
    wanted = runs.raw["models"]  # also those that failed, which count as not measured
    for (peer, model), least in LEAST.items():
        if model in wanted:
            yield Figure(f"{model}, 2 ranks, lockstep + shm, training throughput", f"x {peer}",
                         runs.faster(model, 2, SHM, peer), least)
    for model, least in LEAST_PYTHON.items():
        if model in wanted:
            yield Figure(f"{model}, 2 ranks, {PYTHON}, training throughput", f"x {TUNED}",
                         runs.faster(model, 2, PYTHON, TUNED), least)
    for model in wanted:
        for peer in (STARTED, TUNED, HELPED):
            yield Figure(f"{model}, 2 ranks, lockstep + gloo, training throughput", f"x {peer}",
                         runs.faster(model, 2, GLOO, peer), 1)
    for model in wanted:
        for variant in (SHM, GLOO):
            yield Figure(f"{model}, 2 ranks, {variant}, memory of a rank", f"of {TUNED}",
                         numbers.ratio_of_rounds(runs.values(model, 2, variant, share_mib),
                                                 runs.values(model, 2, TUNED, share_mib)), 1, at_most=True)


def present(raw):
    runs = Runs(raw)
    peer = {(model, at): time for model in runs.models() for at, time in enumerate(runs.values(model, 2, TUNED, step_ms))}

    def relative(run):
        time = peer.get((run["model"], run["round"]))
        return time and time / step_ms(run)
    plots = [
        bars(runs, "Training throughput of two ranks, relative to PyTorch tuned alike",
             "times PyTorch + Gloo, tuned alike", relative),
        bars(runs, "What averaging the gradients adds to a step, two ranks", "% over a step under no_sync",
             lambda run: 100 * (run["times_ms"]["sync"] / run["times_ms"]["local"] - 1)
             if "sync" in run["times_ms"] else None, RANKED),
        bars(runs, "Memory of a rank, two ranks", "MiB", share_mib, RANKED,
             note="Shared memory is divided among the ranks that share it, so that the sum is what the machine "
                  "needs."),
        *(throughput_plot(runs, model) for model in runs.models() if len(runs.worlds(model)) > 1)]
    across = [python_table(runs), scaling_table(runs) if runs.has_alone() else None]
    return Findings(
        "Training step",
        ["The same weights, the same batches, Adam, one thread per rank, gradients set to none between steps. A "
         f"run is rejected if one of its first {LOSS_STEPS} losses differs from PyTorch's by more than "
         f"{LOSS_TOLERANCE:g} (relative).",
         f"{STARTED}: as torchrun starts it. {TUNED}: with lockstep's tuning: each rank bound to a core, freed "
         "memory kept, huge pages, gradients as views of buckets. Gloo helped: its threads also do not preempt "
         f"each other; PyTorch has no setting for this (lockstep + gloo always does it). {PYTHON}: the program of "
         f"{TUNED} with the backend lockstep instead of Gloo, which uses shared memory on one machine.",
         "In each round, all variants run once, and with two ranks, for which goals are set, twice, each time in "
         "another order. step ms: median over these alternations, with their quartiles; x tuned, x started: "
         "throughput relative to PyTorch's; over no_sync, over barrier: what averaging adds to a step under "
         "no_sync, and to one with a bare barrier after backward (with one rank: the wrapper over the bare "
         "module); CPU s: of all ranks and threads in one step; peak: resident memory of a rank; share: the same "
         "with shared pages divided among the ranks that share them.",
         "DataParallel: one process, one replica per rank, and the combined batches of all ranks."],
        [model_table(runs, model) for model in runs.models()] + [table for table in across if table], plots,
        list(figures(runs)), raw["notes"], raw["failures"])
