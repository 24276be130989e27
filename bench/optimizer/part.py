"""Averaging gradients and stepping the optimizer: LibTorch's optimizer after an all-reduce, and the sharded one, which does
both in one pass, with a copy of the parameters for each rank or one for all. Two ranks on this machine, one thread each.

Then whole steps of these, compared with PyTorch's DistributedDataParallel and its Adam; and the memory of four ranks with
a model of 10^8 parameters.
"""
import os

from kit import numbers, ranks
from kit.findings import Figure, Findings, Table
from kit.progress import Progress
from training import part as training

NAME = "optimizer"
WORLD = 2
RUN_SECONDS = 600
CASES = (("mlp", "adam"), ("mlp", "sgd"), ("cnn", "adam"), ("gpt", "adam"), ("resnet", "adam"))
STATE_WORDS = {"adam": 4, "sgd": 2}  # of memory, for each parameter: the state is read and written
MOST_OF_TODAY, MOST_OF_COPY = 0.5, 1.3
PLAIN, SHARDED, SHARED = "lockstep, torch::optim::Adam", "lockstep, sharded", "lockstep, sharded, one copy"
OURS = {PLAIN: "plain", SHARDED: "sharded", SHARED: "shared"}
STEPS = (training.STARTED, training.TUNED, PLAIN, SHARDED, SHARED)
MODELS = ("mlp", "cnn", "gpt", "resnet")
TURNS = {"mlp": 10, "cnn": 20, "gpt": 6, "resnet": 6}
LEAST_STARTED, LEAST_TUNED = 3, 1.7  # for the MLP
LARGE, LARGE_WORLD, MOST_MEMORY = "stack-100000000", 4, 0.45


# ---- Measuring


def run_passes(settings, model, optimizer, shared):
    command = [os.path.join(settings.build, "bench", "optimizer", "bench_optimizer"), "--model", model, "--optimizer",
               optimizer, "--steps", "3" if settings.quick else "20"] + (["--share"] if shared else [])
    return ranks.run_ranks(command, WORLD, RUN_SECONDS, {"OMP_NUM_THREADS": 1, **ranks.HUGE_PAGES})[0]


def run_steps(settings, variant, model, world, turns):
    """The medians of one run, or None if the variant cannot run."""
    found = training.command_of(settings, training.SHM if variant in OURS else variant, world)
    if not found:
        return None
    command, processes, env = found
    if variant in OURS:
        command = command + ["--optimizer", OURS[variant]]
    kinds = "sync" if variant in (SHARDED, SHARED) else "local,sync"
    reports = ranks.run_ranks(command + ["--model", model, "--kinds", kinds, "--loss-steps", str(training.LOSS_STEPS),
                                         "--warmup", "1", "--turns", str(1 if settings.quick else turns)],
                              processes, RUN_SECONDS, env)
    return training.summary(reports)


def measure(settings):
    raw = {"passes": [], "steps": [], "memory": [], "notes": [], "failures": []}
    if not settings.python:
        raw["notes"].append("PyTorch is left out: no Python interpreter has it (apt-get install python3-torch)")
    progress = Progress(NAME, settings.rounds * (len(CASES) + len(MODELS)) + 1)

    def attempt(kind, run, **about):
        try:
            if one := run():
                raw[kind].append({**about, **one})
        except ranks.Failure as failure:
            raw["failures"].append(f"{kind}, {', '.join(map(str, about.values()))}: {failure}")

    for at_round in range(settings.rounds):
        for model, optimizer in CASES:
            progress.step(f"round {at_round + 1} of {settings.rounds}, passes, {model}, {optimizer}")
            for shared in (False, True):
                attempt("passes", lambda: run_passes(settings, model, optimizer, shared), model=model, optimizer=optimizer,
                        shared=shared, round=at_round)
        for model in MODELS:
            progress.step(f"round {at_round + 1} of {settings.rounds}, steps, {model}")
            first = at_round % len(STEPS)
            for variant in STEPS[first:] + STEPS[:first]:
                attempt("steps", lambda: run_steps(settings, variant, model, WORLD, TURNS[model]), model=model,
                        variant=variant, round=at_round)
    progress.step("memory")
    for variant in STEPS:
        attempt("memory", lambda: run_steps(settings, variant, LARGE, LARGE_WORLD, 1), variant=variant)
    check_losses(raw)
    return raw


def check_losses(raw):
    """All variants must train alike."""
    for model in MODELS:
        runs = [run for run in raw["steps"] if run["model"] == model]
        for run in runs[1:]:
            if difference := training.loss_difference(runs[0], run):
                raw["failures"].append(f"{model}, {run['variant']}: {difference}")


# ---- Evaluating


def today(ms):
    return ms["all_reduce"] + ms["optimizer"]


def bytes_ms(one):
    """The time that the bytes of the sharded step need at the rate of a copy in the same run, in which every rank reads
    and writes all parameters once."""
    ms, world = one["ms"], one["world"]
    copies = 1 if one["shared"] else world
    words = world + 1 + copies + STATE_WORDS[one["optimizer"]]
    return ms["copy"] * words / (2 * world)


def step(ms, backward, optimizer):
    return ms[backward] + ms[optimizer]


RATIOS = {
    "of today": lambda one: one["ms"]["sharded"] / today(one["ms"]),
    "of the bytes' time": lambda one: one["ms"]["sharded"] / bytes_ms(one),
    "step, of no_sync": lambda one: step(one["ms"], "backward_sharded", "sharded") /
                                    step(one["ms"], "backward_no_sync", "optimizer"),
    "step, of today": lambda one: step(one["ms"], "backward_sharded", "sharded") / step(one["ms"], "backward", "optimizer"),
}


class Passes:
    def __init__(self, raw):
        self.raw = raw["passes"]

    def of(self, model, optimizer, shared, what):
        return numbers.median([what(one) for one in self.raw
                               if (one["model"], one["optimizer"], one["shared"]) == (model, optimizer, shared)])

    def table(self):
        rows = []
        for model, optimizer in CASES:
            for shared in (False, True):
                if self.of(model, optimizer, shared, lambda one: 1) is None:
                    continue
                rows.append([model, optimizer, "one" if shared else "each"] + [
                    numbers.text(self.of(model, optimizer, shared, lambda one, name=name: one["ms"][name])) for name in
                    ("all_reduce", "optimizer", "sharded", "copy")] + [
                    numbers.text(self.of(model, optimizer, shared, ratio), "x") for ratio in RATIOS.values()])
        return Table("Averaging and stepping, in ms",
                     ["model", "optimizer", "copies", "all-reduce", "torch::optim", "sharded step", "copy"] + list(RATIOS), rows,
                     texts=3, note="Medians. Copies: of the parameters, one for each rank or one for both. Today: the "
                                   "all-reduce of all gradients, then LibTorch's optimizer. Copy: of all parameters, by each "
                                   "rank.")

    def figures(self):
        for shared in (False, True):
            name = ", one copy of the parameters" if shared else ""
            yield Figure(f"averaging and Adam of the MLP{name}", "of all-reduce and torch::optim::Adam",
                         self.of("mlp", "adam", shared, RATIOS["of today"]), MOST_OF_TODAY, at_most=True)
            yield Figure(f"averaging and Adam of the MLP{name}", "of the time that its bytes need at the rate of a copy",
                         self.of("mlp", "adam", shared, RATIOS["of the bytes' time"]), MOST_OF_COPY, at_most=True)
            yield Figure(f"step of the MLP with Adam{name}", "of a step under no_sync with torch::optim::Adam",
                         self.of("mlp", "adam", shared, RATIOS["step, of no_sync"]), 1, at_most=True)
        yield Figure("state of Adam on each rank, MLP", "of the whole",
                     self.of("mlp", "adam", False, lambda one: one["state_bytes"] / (8 * one["parameters"])), 1.05 / WORLD,
                     at_most=True)


class Steps:
    def __init__(self, raw):
        self.raw = raw["steps"]

    def times(self, model, variant, kind="sync"):
        return {run["round"]: run["times_ms"][kind] for run in self.raw
                if run["model"] == model and run["variant"] == variant and kind in run["times_ms"]}

    def ratio(self, model, variant, other):
        """The median of the rounds' ratios: how many times as fast the first is."""
        mine, theirs = self.times(model, variant), self.times(model, other)
        return numbers.median([theirs[one] / mine[one] for one in mine if one in theirs])

    def table(self):
        rows = []
        for model in MODELS:
            for variant in STEPS:
                if times := self.times(model, variant):
                    rows.append([model, variant, numbers.text(numbers.median(times.values())),
                                 numbers.text(numbers.median(self.times(model, variant, "local").values())),
                                 numbers.text(self.ratio(model, SHARDED, variant), "x"),
                                 numbers.text(self.ratio(model, SHARED, variant), "x")])
        return Table("Training steps with Adam", ["model", "variant", "step ms", "no_sync ms", "sharded is faster by",
                                                  "with one copy"], rows, texts=2,
                     note="Forward, backward, averaging and Adam.")

    def figures(self):
        for other, least in ((training.STARTED, LEAST_STARTED), (training.TUNED, LEAST_TUNED)):
            for variant in (SHARDED, SHARED):
                yield Figure(f"step of the MLP, {variant}", f"x {other}", self.ratio("mlp", variant, other), least)
        for model in MODELS[1:]:
            yield Figure(f"step of the {model}, {SHARDED}", f"x {PLAIN}", self.ratio(model, SHARDED, PLAIN), 1)


def memory(raw):
    """A table and the figures."""
    found = {run["variant"]: run["machine_mib"] for run in raw["memory"]}

    def ratio(variant, other):
        return found[variant] / found[other] if variant in found and other in found else None

    peers = (training.STARTED, training.TUNED)
    rows = [[variant, numbers.text(found[variant])] + [numbers.text(ratio(variant, peer), "x") for peer in peers]
            for variant in STEPS if variant in found]
    table = Table(f"Memory of {LARGE_WORLD} ranks, 10^8 parameters, Adam",
                  ["variant", "MiB", "of PyTorch as started", "of PyTorch tuned"], rows, texts=1,
                  note="Of all ranks together after some steps; what they share counts once.")
    return table, [Figure(f"memory of {LARGE_WORLD} ranks with 10^8 parameters, one copy", f"of {peer}", ratio(SHARED, peer),
                          MOST_MEMORY, at_most=True) for peer in peers]


def present(raw):
    passes, steps = Passes(raw), Steps(raw)
    memory_table, memory_figures = memory(raw)
    return Findings("The sharded optimizer", [f"{WORLD} ranks with one thread each, over shared memory."],
                    [passes.table(), steps.table(), memory_table],
                    figures=[*passes.figures(), *steps.figures(), *memory_figures],
                    notes=raw["notes"], failures=raw["failures"])
