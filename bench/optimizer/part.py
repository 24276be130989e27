"""Reducing gradients and stepping the optimizer: LibTorch's optimizer after an all-reduce, and the sharded one, which does
both in one pass. Two ranks on this machine, one thread each.
"""
import os

from kit import numbers, ranks
from kit.findings import Figure, Findings, Table
from kit.progress import Progress

NAME = "optimizer"
WORLD = 2
RUN_SECONDS = 600
CASES = (("mlp", "adam"), ("mlp", "sgd"), ("cnn", "adam"), ("gpt", "adam"), ("resnet", "adam"))
# Words of memory that a step reads and writes for each parameter: gradients of all ranks and parameters of all ranks, and
# the state, which is read and written, and the parameter that is read.
STATE_WORDS = {"adam": 4, "sgd": 2}
MOST_OF_TODAY, MOST_OF_COPY = 0.5, 1.3


def run(settings, model, optimizer):
    command = [os.path.join(settings.build, "bench", "optimizer", "bench_optimizer"), "--model", model, "--optimizer",
               optimizer, "--steps", "3" if settings.quick else "20"]
    return ranks.run_ranks(command, WORLD, RUN_SECONDS, {"OMP_NUM_THREADS": 1, **ranks.HUGE_PAGES})[0]


def measure(settings):
    raw = {"runs": [], "failures": []}
    progress = Progress(NAME, settings.rounds * len(CASES))
    for at_round in range(settings.rounds):
        for model, optimizer in CASES:
            progress.step(f"{model}, {optimizer}, round {at_round + 1}")
            try:
                raw["runs"].append({"model": model, "optimizer": optimizer, "round": at_round,
                                    **run(settings, model, optimizer)})
            except ranks.Failure as failure:
                raw["failures"].append(f"{model}, {optimizer}: {failure}")
    return raw


def today(ms):
    return ms["all_reduce"] + ms["optimizer"]


def bytes_ms(one):
    """The time that the bytes of the sharded step need at the rate of a copy in the same run, in which every rank reads
    and writes all parameters once."""
    ms, world = one["ms"], one["world"]
    words = 2 * world + 1 + STATE_WORDS[one["optimizer"]]
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


def present(raw):
    def runs(model, optimizer):
        return [one for one in raw["runs"] if (one["model"], one["optimizer"]) == (model, optimizer)]

    def of(model, optimizer, what):
        return numbers.median([what(one) for one in runs(model, optimizer)])

    rows = []
    for model, optimizer in CASES:
        if not runs(model, optimizer):
            continue
        rows.append([model, optimizer] +
                    [numbers.text(of(model, optimizer, lambda one, name=name: one["ms"][name])) for name in
                     ("all_reduce", "optimizer", "sharded", "backward_no_sync", "backward", "backward_sharded")] +
                    [numbers.text(of(model, optimizer, ratio), "x") for ratio in RATIOS.values()])
    figures = [Figure("reduction and Adam of the MLP", "of all-reduce and torch::optim::Adam",
                      of("mlp", "adam", RATIOS["of today"]), MOST_OF_TODAY, at_most=True),
               Figure("reduction and Adam of the MLP", "of the time that its bytes need at the rate of a copy",
                      of("mlp", "adam", RATIOS["of the bytes' time"]), MOST_OF_COPY, at_most=True),
               Figure("step of the MLP with Adam", "of a step under no_sync with torch::optim::Adam",
                      of("mlp", "adam", RATIOS["step, of no_sync"]), 1, at_most=True)]
    figures += [Figure(f"step of the {model} with {optimizer}", "of that with LibTorch's optimizer",
                       of(model, optimizer, RATIOS["step, of today"]), 1, at_most=True)
                for model, optimizer in CASES if model != "mlp"]
    return Findings("The sharded optimizer", [f"{WORLD} ranks with one thread each, over shared memory."],
                    [Table("Steps, in ms", ["model", "optimizer", "all-reduce", "torch::optim", "sharded step",
                                            "backward, no_sync", "backward", "backward, sharded"] + list(RATIOS), rows,
                           texts=2, note="Medians. Today: the all-reduce of all gradients, then LibTorch's optimizer.")],
                    figures=figures, failures=raw["failures"])
