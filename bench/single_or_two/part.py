"""One process with a batch of 16, or two with 8 each: an experiment from PyTorch's tutorials.

All variants have the same global batches and losses. A process has one core, unless its way uses two.
"""
import os
import statistics

from kit import numbers, ranks
from kit.findings import Findings, Plot, Series, Table
from kit.progress import Progress
from training import part as training

NAME = "single_or_two"
RUN_SECONDS = 300
ROWS = {"mingpt": 16, "cnn": 64, "mlp": 64}  # per global batch
BATCHES = {"mingpt": 21, "cnn": 30, "mlp": 20}
EXPERIMENT = "mingpt"
LOCKSTEP = "lockstep"
ONE, TWO = "one process", "two processes, half a batch each"
THREADS, REPLICAS = "one process, two threads", "DataParallel, two replicas"
WAYS = (ONE, THREADS, REPLICAS, TWO)


def lockstep_command(settings, way):
    """(command, processes, cores of a process)"""
    program = [os.path.join(settings.build, training.PROGRAM), "--set-to-none"]
    whole = ["--parts", "2"]  # the batches of two ranks
    return {ONE: (program + whole + ["--wrap", "none"], 1, 1),
            THREADS: (program + whole + ["--wrap", "none", "--threads", "2"], 1, 2),
            REPLICAS: (program + whole + ["--wrap", "data_parallel", "--threads", "2"], 1, 2),
            TWO: (program + ["--backend", "shm", "--kinds", "sync"], 2, 1)}[way]


def pytorch_command(settings, variant, way):
    program = [settings.python, os.path.join(training.HERE, "pytorch.py"), "--set-to-none"]
    program += ["--tuned", "--bucket-view"] if variant == training.TUNED else []
    return (program + ["--parts", "2", "--kinds", "bare"], 1, 1) if way == ONE else (program + ["--kinds", "sync"], 2, 1)


def jobs(settings):
    """(model, variant, way, (command, processes, cores of a process))"""
    for model in ROWS:
        for way in WAYS:
            yield model, LOCKSTEP, way, lockstep_command(settings, way)
        if settings.python and model == EXPERIMENT:
            for variant in (training.STARTED, training.TUNED):
                for way in (ONE, TWO):
                    yield model, variant, way, pytorch_command(settings, variant, way)


def run(settings, model, variant, way, found):
    command, processes, cores = found
    env = {"OMP_NUM_THREADS": cores, **({} if variant == training.STARTED else ranks.HUGE_PAGES)}
    # With two processes, the program binds each; a single one would move between the cores.
    cpus = {max(os.sched_getaffinity(0))} if processes == cores == 1 else None
    batches = 2 if settings.quick else BATCHES[model]
    reports = ranks.run_ranks(command + ["--model", model, "--rows", str(ROWS[model] // 2), "--warmup", "1", "--turns",
                                         str(batches), "--loss-steps", str(training.LOSS_STEPS)],
                              processes, RUN_SECONDS, env, cpus)
    steps = [next(iter(report["times_ms"].values())) for report in reports]
    return {"model": model, "variant": variant, "way": way, "batches": batches,
            "total_s": [sum(times) / 1e3 for times in steps],  # of each process
            "batch_ms": [statistics.fmean(times) for times in steps],
            "losses": [statistics.fmean(step) for step in zip(*(report["losses"] for report in reports))]}


def measure(settings):
    raw = {"runs": [], "notes": [], "failures": []}
    if not settings.python:
        raw["notes"].append("PyTorch is left out: no Python interpreter has it (apt-get install python3-torch)")
    todo = list(jobs(settings))
    progress = Progress(NAME, settings.rounds)
    for at_round in range(settings.rounds):
        progress.step(f"round {at_round + 1} of {settings.rounds}")
        right = {}
        for model, variant, way, found in todo:
            try:
                one = run(settings, model, variant, way, found)
            except ranks.Failure as failure:
                raw["failures"].append(f"{model}, {variant}, {way}: {failure}")
                continue
            losses = right.setdefault(model, one["losses"])
            if difference := training.loss_difference({"losses": [losses]}, {"losses": [one["losses"]]}):
                raw["failures"].append(f"{model}, {variant}, {way}: rejected, {difference}")
                continue
            raw["runs"].append({"round": at_round, **one})
    return raw


# ---- Presenting


class Runs:
    def __init__(self, raw):
        self.by_key = {}
        for one in raw["runs"]:
            self.by_key.setdefault((one["model"], one["variant"], one["way"]), {})[one["round"]] = one

    def at(self, model, variant, way):
        return list(self.by_key.get((model, variant, way), {}).values())

    def batch_ms(self, model, variant, way):
        """By round; the slowest process counts."""
        return {at: max(one["batch_ms"]) for at, one in self.by_key.get((model, variant, way), {}).items()}

    def gain(self, model, variant, way, base=ONE):
        slow, fast = self.batch_ms(model, variant, base), self.batch_ms(model, variant, way)
        return numbers.median([slow[at] / fast[at] for at in slow if at in fast])


def experiment_table(runs):
    rows = []
    for variant in (training.STARTED, training.TUNED, LOCKSTEP):
        for way in (ONE, TWO):
            found = runs.at(EXPERIMENT, variant, way)
            for process in range(len(found[0]["total_s"]) if found else 0):
                rows.append([variant, way, "" if way == ONE else f"rank {process}",
                             numbers.with_spread([one["total_s"][process] for one in found]),
                             numbers.with_spread([one["batch_ms"][process] / 1e3 for one in found]),
                             numbers.text(runs.gain(EXPERIMENT, variant, way), "x")])
    return Table("minGPT-mini: one process with batch 16, or two with batch 8 each",
                 ["variant", "way", "who", "total s", "s per batch", "speed-up"], rows, texts=3,
                 note=f"{BATCHES['mingpt']} batches of 16 texts.")


def ways_table(runs):
    rows = []
    for model in ROWS:
        times = {way: numbers.median(list(runs.batch_ms(model, LOCKSTEP, way).values())) for way in WAYS}
        for way in WAYS:
            if times[way] is not None:
                best = times[way] == min(time for time in times.values() if time is not None)
                rows.append([model, way, numbers.with_spread(list(runs.batch_ms(model, LOCKSTEP, way).values())),
                             numbers.text(runs.gain(model, LOCKSTEP, way), "x"), "fastest" if best else ""])
    return Table("Ways of using two cores, in lockstep", ["model", "way", "ms per batch", "speed-up", "fastest"], rows, texts=2,
                 note="The same global batch in all ways: "
                      + ", ".join(f"{model} {rows}" for model, rows in ROWS.items()) + ".")


def plot(runs):
    series = []
    for way in (ONE, TWO):
        points = [(variant, list(runs.batch_ms(EXPERIMENT, variant, way).values()))
                  for variant in (training.STARTED, training.TUNED, LOCKSTEP)]
        points = [(variant, values) for variant, values in points if values]
        spread = [numbers.quartiles(values) for _, values in points]
        series.append(Series(way, [variant for variant, _ in points], [numbers.median(values) for _, values in points],
                             [low for low, _ in spread], [high for _, high in spread]))
    return Plot("minGPT-mini, a batch of 16 by one process or by two", "variant", "ms per batch", series, kind="bars")


def present(raw):
    runs = Runs(raw)
    return Findings(
        "One process or two",
        ["All variants have the same batches and losses. One process on one core processes a whole batch; two on "
         "two cores process half of it each and average their gradients. For lockstep, also one process with two "
         "threads, and DataParallel."],
        [experiment_table(runs), ways_table(runs)], [plot(runs)], [], raw["notes"], raw["failures"])
