"""How costs grow with the parameters, the buckets and the ranks. Each cost is fitted by a line and a power law, which
predict larger sizes.
"""
import json
import os
import tempfile

from kit import numbers, ranks
from kit.findings import Findings, Plot, Series, Table
from kit.progress import Progress
from training import part as training

NAME = "growth"
RUN_SECONDS = 600
PARAMETERS = [10**power for power in range(4, 9)]
RANKED = 10**6  # parameters, for growth with the ranks
WORLDS = (2, 4, 8)
CAPS = (100, 25, 6, 1)  # MiB of a bucket, for a model of 12.6 M parameters
VARIANTS = (training.TUNED, training.GLOO, training.SHM)
FLOAT = 4  # bytes
# The minimum memory per parameter: the weight, the gradient, and Adam's two moments.
LEAST_BYTES = 4 * FLOAT


# ---- Measuring


def step_run(settings, variant, world, model, flags, turns):
    """The cost of averaging, the memory and the buckets. The cost is the difference between a step with averaging and
    one without."""
    found = training.command_of(settings, variant, world)
    if not found:
        return None
    command, processes, env = found
    reports = ranks.run_ranks(command + ["--model", model, "--loss-steps", "2", "--warmup", "1", "--kinds", "local,sync",
                                         "--turns", str(1 if settings.quick else turns)] + flags, processes, RUN_SECONDS, env)
    one = training.summary(reports)
    return {"overhead_ms": one["times_ms"]["sync"] - one["times_ms"]["local"], "local_ms": one["times_ms"]["local"],
            "share_mib": one["share_mib"], "buckets": one["buckets"], "parameters": one["parameters"]}


def collective_run(settings, variant, world, sizes):
    """The times of all-reduces, as {bytes: µs}."""
    flags = ["--collective", "all_reduce", "--sizes", ",".join(map(str, sizes)), "--seconds", "0.05"]
    if settings.quick:
        flags[-2:] = ["--iterations", "1", "--warmup", "0"]
    if variant == training.TUNED:
        program = os.path.join(training.HERE, "..", "collectives", "pytorch.py")
        rows = ranks.run_ranks([settings.python, program] + flags, world, RUN_SECONDS, {"OMP_NUM_THREADS": 1})[0]["rows"]
    else:
        program = [os.path.join(settings.build, "bin", "lockstep"), "bench", "--world", str(world), "--quiet", "--json"]
        kind = ["--backend", "shm", "--memory", "registered"] if variant == training.SHM else ["--backend", "gloo"]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            ranks.run(program + [path] + kind + flags, RUN_SECONDS)
            with open(path, encoding="utf-8") as file:
                rows = json.load(file)["rows"]
    return {str(row["size"]): row["p50_us"] for row in rows}


def jobs(quick):
    """(what, x, world, how it is measured)"""
    for parameters in PARAMETERS[:3] if quick else PARAMETERS:
        turns = 2 if parameters >= 10**8 else 5 if parameters >= 10**7 else 20
        yield "parameters", parameters, 2, f"stack-{parameters}", [], turns
    for cap in CAPS[:2] if quick else CAPS:
        yield "buckets", cap, 2, "mlp", ["--bucket-cap-mib", str(cap)], 6
    for world in WORLDS[:2] if quick else WORLDS:
        yield "ranks", world, world, f"stack-{RANKED}", [], 8


def measure(settings):
    raw = {"runs": [], "notes": [], "failures": []}
    variants = [variant for variant in VARIANTS if settings.python or variant != training.TUNED]
    if not settings.python:
        raw["notes"].append("PyTorch is left out: no Python interpreter has it (apt-get install python3-torch)")
    todo = list(jobs(settings.quick))
    progress = Progress(NAME, settings.rounds * (len(todo) + 1))
    for at_round in range(settings.rounds):
        for what, x, world, model, flags, turns in todo:
            progress.step(f"round {at_round + 1} of {settings.rounds}, {what} {x}")
            for variant in variants:
                attempt(raw, at_round, variant, what, x,
                        lambda: step_run(settings, variant, world, model, flags, turns))
        progress.step(f"round {at_round + 1} of {settings.rounds}, all-reduces")
        for variant in variants:
            for what, world, counts in (("all_reduce", 2, PARAMETERS), ("all_reduce_ranks", 4, [RANKED]),
                                        ("all_reduce_ranks", 8, [RANKED])):
                attempt(raw, at_round, variant, what, world,
                        lambda: {"us": collective_run(settings, variant, world, [FLOAT * count for count in counts])})
    return raw


def attempt(raw, at_round, variant, what, x, run):
    try:
        if found := run():
            raw["runs"].append({"round": at_round, "variant": variant, "what": what, "x": x, **found})
    except ranks.Failure as failure:
        raw["failures"].append(f"{what} {x}, {variant}: {failure}")


# ---- Presenting


class Points:
    """The values of each variant at each x, by round."""

    def __init__(self, raw, what, value, x=lambda run: run["x"]):
        self.by_variant = {}
        for run in raw["runs"]:
            if run["what"] == what and (found := value(run)) is not None:
                self.by_variant.setdefault(run["variant"], {}).setdefault(x(run), []).append(found)

    def variants(self):
        return [variant for variant in VARIANTS if variant in self.by_variant]

    def at(self, variant):
        """(x, medians), by x."""
        points = sorted(self.by_variant[variant].items())
        return [x for x, _ in points], [numbers.median(values) for _, values in points]

    def series(self):
        for variant in self.variants():
            xs, ys = self.at(variant)
            spread = [numbers.quartiles(self.by_variant[variant][x]) for x in xs]
            yield Series(variant, xs, ys, [low for low, _ in spread], [high for _, high in spread])

    def rows(self, xs, unit=1):
        for variant in self.variants():
            known = self.by_variant[variant]
            yield [variant] + [numbers.with_spread([value * unit for value in known[x]]) if x in known else "-" for x in xs]


def all_reduce_points(raw):
    points = Points({"runs": []}, "", None)
    for run in raw["runs"]:
        if run["what"].startswith("all_reduce"):
            for size, us in run["us"].items():
                if run["what"] == "all_reduce":
                    points.by_variant.setdefault(run["variant"], {}).setdefault(int(size) // FLOAT, []).append(us / 1e3)
    return points


def all_reduce_ranks(raw):
    points = Points({"runs": []}, "", None)
    for run in raw["runs"]:
        if run["what"].startswith("all_reduce"):
            us = run["us"].get(str(FLOAT * RANKED))
            if us is not None:
                points.by_variant.setdefault(run["variant"], {}).setdefault(run["x"], []).append(us / 1e3)
    return points


def line_rows(points, unit, per, scale=1.0):
    """start + slope x, as text. Ignores points whose y is not positive."""
    for variant in points.variants():
        xs, ys = points.at(variant)
        kept = [(x, y) for x, y in zip(xs, ys) if y > 0]
        if len(kept) < 2:
            yield [variant, "too few points above noise"]
            continue
        start, slope = numbers.fit_line([x for x, _ in kept], [y for _, y in kept])
        sign = "-" if slope < 0 else "+"
        yield [variant, f"{numbers.text(start)} {unit} {sign} {numbers.text(abs(slope) * scale)} {unit} {per}"]


def power_text(points, variant):
    xs, ys = points.at(variant)
    if sum(y > 0 for y in ys) < 2:
        return "-"
    factor, exponent = numbers.fit_power(xs, ys)
    del factor
    return f"x^{exponent:.2f}"


def count_text(count):
    return f"1e{len(str(count)) - 1}"


def present(raw):
    overhead = Points(raw, "parameters", lambda run: run["overhead_ms"])
    step = Points(raw, "parameters", lambda run: run["local_ms"] + run["overhead_ms"])
    memory = Points(raw, "parameters", lambda run: run["share_mib"])
    buckets = Points(raw, "buckets", lambda run: run["overhead_ms"], lambda run: run["buckets"])
    by_ranks = Points(raw, "ranks", lambda run: run["overhead_ms"])
    reduce, reduce_ranks = all_reduce_points(raw), all_reduce_ranks(raw)
    heads = [count_text(count) for count in PARAMETERS]
    counts = sorted({x for values in buckets.by_variant.values() for x in values})
    fits = ([["all-reduce", *row, power_text(reduce, row[0])] for row in line_rows(reduce, "ms", "per 1e6 numbers", 1e6)]
            + [["step overhead", *row, power_text(overhead, row[0])]
               for row in line_rows(overhead, "ms", "per 1e6 parameters", 1e6)]
            + [["step overhead", *row, power_text(buckets, row[0])] for row in line_rows(buckets, "ms", "per bucket")]
            + [["step overhead", *row, power_text(by_ranks, row[0])] for row in line_rows(by_ranks, "ms", "per rank")]
            + [["all-reduce", *row, power_text(reduce_ranks, row[0])] for row in line_rows(reduce_ranks, "ms", "per rank")]
            + [["memory of a rank", *row, power_text(memory, row[0])]
               for row in line_rows(memory, "MiB", "per 1e6 parameters", 1e6)])
    least = LEAST_BYTES * 1e6 / (1 << 20)
    return Findings(
        "How costs grow",
        ["A model of eight square layers, batch 4, Adam. Step overhead: what averaging the gradients adds to a "
         "step under no_sync, with two ranks; if it is below the noise of a step, it may be negative. All-reduce: "
         "of as many floats (lockstep: registered memory).",
         "Fits: least squares, weighted so that small values count as much as large ones, and the exponent of a "
         f"power law. A parameter needs at least {LEAST_BYTES} bytes (weight, gradient, two moments): "
         f"{numbers.text(least)} MiB per million."],
        [Table("Fits", ["cost", "variant", "line", "power"], fits, texts=4),
         Table("All-reduce in ms, two ranks, by numbers", ["variant"] + heads, list(reduce.rows(PARAMETERS))),
         Table("Step overhead in ms, two ranks, by parameters", ["variant"] + heads, list(overhead.rows(PARAMETERS))),
         Table("Step in ms, two ranks, by parameters", ["variant"] + heads, list(step.rows(PARAMETERS)),
               note="With averaged gradients. The overhead is relative to steps under no_sync, which differ "
                    "between variants."),
         Table("Memory of a rank in MiB, two ranks, by parameters", ["variant"] + heads, list(memory.rows(PARAMETERS)),
               note="Shared memory is divided among the ranks that share it."),
         Table("Step overhead in ms by buckets, two ranks, 12.6 M parameters", ["variant"] + [str(count) for count in counts],
               list(buckets.rows(counts)), note="The libraries divide the same parameters into different numbers of buckets."),
         Table("Step overhead in ms by ranks, 1e6 parameters", ["variant"] + [str(world) for world in WORLDS],
               list(by_ranks.rows(WORLDS))),
         Table("All-reduce in ms by ranks, 1e6 numbers", ["variant"] + [str(world) for world in WORLDS],
               list(reduce_ranks.rows(WORLDS)))],
        [Plot("All-reduce by numbers", "floats", "ms", list(reduce.series()), log_x=True, log_y=True),
         Plot("Step overhead by parameters", "parameters", "ms", list(overhead.series()), log_x=True, log_y=True),
         Plot("Memory of a rank by parameters", "parameters", "MiB", list(memory.series()), log_x=True, log_y=True),
         Plot("Step overhead by buckets", "buckets", "ms", list(buckets.series()), log_x=True),
         Plot("Step overhead by ranks", "ranks", "ms", list(by_ranks.series()))],
        [], raw["notes"], raw["failures"])
