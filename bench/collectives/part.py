"""Collectives: lockstep compared with PyTorch, Open MPI and a plain memory copy, and PyTorch over lockstep compared
with PyTorch over Gloo.

All programs measure by the rules of src/cli/bench/rules.h and take the same flags; each checks the data of every row.
LARGE is the size at which goals are set and memory limits the speed. From HUGE on, a call takes so long that few
samples are taken.
"""
import collections
import json
import os
import shutil
import tempfile

from kit import numbers, package, ranks
from kit.findings import Figure, Findings, Plot, Series, Table
from kit.progress import Progress

NAME = "collectives"
HERE = os.path.dirname(os.path.abspath(__file__))
KIB, MIB = 1 << 10, 1 << 20
LARGE, HUGE = 25 * MIB, 64 * MIB
LEAST_COPY = 256 * KIB  # below this size, a copy is dominated by its fixed costs
RUN_SECONDS = 300  # limit for one program of one job in one round, which takes much less

PYTORCH, PYTHON, OPENMPI, COPY = "PyTorch + Gloo", "PyTorch + lockstep", "Open MPI", "memory copy"
VARIANTS = {"registered": "lockstep registered", "plain": "lockstep plain", "shm": "lockstep",
            "gloo": "lockstep + gloo", "pytorch": PYTORCH, "pytorch_lockstep": PYTHON, "openmpi": OPENMPI}
COLLECTIVES = ("all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor", "reduce",
               "all_to_all_single", "send_recv", "barrier")

# The minimum number of bytes that all ranks together read and write, per byte of a row's size.
TRAFFIC = {
    "all_reduce": lambda world: 2 * world,
    "broadcast": lambda world: 2 * (world - 1),
    "all_gather_into_tensor": lambda world: 2 * world,
    "reduce_scatter_tensor": lambda world: world + 1,
}

# (rows, variants, minimum factor to PyTorch + Gloo, minimum factor to Open MPI). A row is (world, collective, bytes).
FIGURES = [
    ([(2, "all_reduce", LARGE)], ["registered"], 10, 2.5),
    ([(2, "all_reduce", LARGE)], ["plain"], 5, 1.2),
    ([(2, "all_reduce", 8), (2, "all_reduce", KIB)], ["registered", "plain"], 100, 1),
    ([(2, "all_reduce", size) for size in (256 * KIB, MIB, 4 * MIB)], ["registered"], 20, 2.5),
    ([(2, name, LARGE) for name in ("broadcast", "all_gather_into_tensor", "reduce_scatter_tensor")],
     ["registered", "plain"], 5, 1),
    ([(world, "all_reduce", LARGE) for world in (4, 8)], ["registered"], 8, 1.5),
]
LEAST_PYTHON = 8  # PyTorch over lockstep relative to PyTorch over Gloo, all_reduce of LARGE among two ranks
LEAST_SHARE = 0.7  # of the speed of a memory copy, for all_reduce of registered memory
LEAST_BFLOAT16 = 1.0  # times the speed of float, for the same bytes

# ---- Measuring


# All programs run a job before the next one starts. `flags` determine the number of samples per row.
Job = collections.namedtuple("Job", "what world collectives sizes flags")


def jobs(quick):
    all_sizes = [8, 128, KIB, 16 * KIB, 256 * KIB, MIB, 4 * MIB, LARGE, HUGE, 256 * MIB]
    some_sizes = [8, KIB, 64 * KIB, MIB, LARGE, 256 * MIB]  # fewer, because more ranks than cores take long
    other_sizes = [8, KIB, 256 * KIB, 4 * MIB, LARGE]
    usual = ["--seconds", "0.05", "--warmup", "2"]
    if quick:
        all_sizes = [8, KIB, 256 * KIB, MIB, 4 * MIB, LARGE, HUGE]  # those with goals, and one large size
        some_sizes = other_sizes = [8, LARGE]
        usual = ["--iterations", "1", "--warmup", "0"]
    for world, sizes in ((2, all_sizes), (4, some_sizes), (8, some_sizes)):
        yield Job("all_reduce", world, ["all_reduce"], [size for size in sizes if size < HUGE], usual)
        if sizes[-1] >= HUGE:
            few = ["--iterations", "1" if quick or world > 2 else "3", "--warmup", "0"]
            yield Job("large all_reduce", world, ["all_reduce"], [size for size in sizes if size >= HUGE], few)
        if world == 2:
            yield Job("other collectives", world, list(COLLECTIVES[1:]), other_sizes, usual)


class Rows:
    """Times by row and variant: a list with one entry per round."""

    def __init__(self, rounds):
        self.rounds, self.rows = rounds, {}

    def add(self, at_round, key, variant, microseconds):
        variants = self.rows.setdefault(key, {})
        variants.setdefault(variant, [None] * self.rounds)[at_round] = microseconds

    def as_list(self):
        return [{"world": world, "collective": collective, "size": size, "dtype": dtype, "us": variants}
                for (world, collective, size, dtype), variants in self.rows.items()]


class Measurement:
    def __init__(self, settings):
        self.settings = settings
        self.rows, self.dtypes, self.copies = (Rows(settings.rounds) for _ in range(3))
        self.versions, self.notes, self.failures = {}, [], []
        self.given_up = set()  # (program, job) that failed and are not run in later rounds
        folder = os.path.join(settings.build, "bench", "collectives")
        self.lockstep = os.path.join(settings.build, "bin", "lockstep")
        self.copy, self.openmpi = (os.path.join(folder, name) for name in ("bench_memory_limit", "bench_openmpi"))
        self.cores = len(os.sched_getaffinity(0))
        self.programs = [self.run_lockstep, self.run_copy]
        if settings.python:
            self.programs.append(self.run_pytorch)
            if settings.package:
                self.programs.append(self.run_pytorch_over_lockstep)
            else:
                self.note(package.LEFT_OUT + ".")
        else:
            self.note("PyTorch is left out: no Python interpreter has it (apt-get install python3-torch).")
        self.mpirun = shutil.which("mpirun")
        if self.mpirun and os.path.exists(self.openmpi):
            self.programs.append(self.run_openmpi)
        else:
            why = "bench_openmpi was not built" if self.mpirun else "mpirun is not installed"
            self.note(f"Open MPI is left out: {why} (apt-get install openmpi-bin libopenmpi-dev).")

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)

    def run(self):
        todo = list(jobs(self.settings.quick))
        progress = Progress(NAME, self.settings.rounds * (len(todo) + 1))
        for at_round in range(self.settings.rounds):
            begin = at_round % len(self.programs)  # so that no program always follows the same one
            for job in todo:
                progress.step(f"round {at_round + 1} of {self.settings.rounds}, {job.what}, {job.world} ranks")
                for program in self.programs[begin:] + self.programs[:begin]:
                    self.attempt(program, at_round, job)
            progress.step(f"round {at_round + 1} of {self.settings.rounds}, float and bfloat16")
            self.attempt(self.run_dtypes, at_round, Job("dtypes", 2, ["all_reduce"], [LARGE], todo[0].flags))

    def attempt(self, program, at_round, job):
        attempted = (program.__name__, job.what, job.world)
        if attempted in self.given_up:
            return
        try:
            program(at_round, job)
        except (ranks.Failure, OSError, ValueError, KeyError) as error:  # the others: invalid output
            why = error if isinstance(error, ranks.Failure) else repr(error)
            self.failures.append(f"{job.what}, {job.world} ranks, round {at_round + 1}: {why}")
            self.given_up.add(attempted)

    def run_lockstep(self, at_round, job):
        self.run_to_file(at_round, [self.lockstep, "bench", "--world", str(job.world), "--quiet"] + flags_of(job))

    def run_dtypes(self, at_round, job):
        self.run_to_file(at_round, [self.lockstep, "bench", "--world", str(job.world), "--quiet", "--backend", "shm",
                                    "--memory", "registered", "--dtype", "float,bfloat16"] + flags_of(job), self.dtypes)

    def run_openmpi(self, at_round, job):
        # Its defaults, except for what a container and too few cores require.
        place = ["--bind-to", "core"] if job.world <= self.cores else ["--oversubscribe", "--bind-to", "none"]
        self.run_to_file(at_round, [self.mpirun, "--allow-run-as-root", "--timeout", str(RUN_SECONDS - 30), "-np",
                                    str(job.world)] + place + [self.openmpi] + flags_of(job))

    def run_pytorch(self, at_round, job, flags=(), env=None):
        command = [self.settings.python, os.path.join(HERE, "pytorch.py"), *flags] + flags_of(job)
        found = ranks.run_ranks(command, job.world, RUN_SECONDS, {"OMP_NUM_THREADS": 1, **(env or {})})
        self.add(at_round, found[0], self.rows)

    def run_pytorch_over_lockstep(self, at_round, job):
        """Only the jobs that are compared with Gloo: those with two ranks, up to LARGE."""
        if job.world == 2 and max(job.sizes) < HUGE:
            self.run_pytorch(at_round, job, ["--backend", "lockstep"], package.environment(self.settings.package))

    def run_copy(self, at_round, job):
        if "all_reduce" not in job.collectives:
            return
        for size in job.sizes:
            if size >= LEAST_COPY:
                passes = 2 if self.settings.quick else 5 if size >= HUGE else 20
                found = json.loads(ranks.run([self.copy, "--world", str(job.world), "--bytes", str(size),
                                              "--passes", str(passes)], RUN_SECONDS))
                self.copies.add(at_round, (job.world, "all_reduce", size, "float"), "copy", found["p50_us"])

    def run_to_file(self, at_round, command, rows=None):
        """Also keeps the rows of a program that failed in a later row."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            try:
                ranks.run(command + ["--json", path], RUN_SECONDS)
            finally:
                if os.path.exists(path) and os.path.getsize(path) > 0:
                    with open(path, encoding="utf-8") as file:
                        self.add(at_round, json.load(file), rows or self.rows)

    def add(self, at_round, found, rows):
        self.versions.update(found.get("versions", {}))
        for backend, why in found.get("unavailable", {}).items():
            self.note(f"lockstep's {backend} is left out: {why}.")
        for row in found["rows"]:
            variant = row["backend"]
            if variant == "shm" and row["memory"] != "none":
                variant = row["memory"]
            what = f"{row['collective']} of {numbers.bytes_text(row['size'])} among {row['world']} ranks"
            if row["data"] == "WRONG":
                self.failures.append(f"{VARIANTS[variant]}, {what}: data is WRONG: {row.get('wrong')}")
            if row["data"] == "refused":
                self.note(f"{VARIANTS[variant]} does not support {what}: {row.get('refused')}.")
            if row.get("instead"):
                self.note(f"{VARIANTS[variant]} has no {row['collective']}; measured instead: {row['instead']}.")
            if row["data"] == "ok":
                rows.add(at_round, (row["world"], row["collective"], row["size"], row["dtype"]), variant, row["p50_us"])


def flags_of(job):
    return ["--collective", ",".join(job.collectives), "--sizes", ",".join(map(str, job.sizes))] + job.flags


def measure(settings):
    measurement = Measurement(settings)
    measurement.run()
    return {"rounds": settings.rounds, "quick": settings.quick, "cores": measurement.cores,
            "versions": measurement.versions, "rows": measurement.rows.as_list(),
            "dtypes": measurement.dtypes.as_list(), "copies": measurement.copies.as_list(),
            "notes": measurement.notes, "failures": measurement.failures}


# ---- Presenting


class Measured:
    """Access to the raw rows."""

    def __init__(self, raw):
        self.rounds = raw.get("rounds", 0)
        self.rows = {key_of(row): row["us"] for row in raw.get("rows", [])}
        self.copies = {key_of(row): row["us"]["copy"] for row in raw.get("copies", [])}
        self.dtypes = {row["dtype"]: row["us"].get("registered", []) for row in raw.get("dtypes", [])}

    def sizes(self, world, collective):
        return sorted(size for at_world, name, size in self.rows if (at_world, name) == (world, collective))

    def worlds(self, collective):
        return sorted({world for world, name, _ in self.rows if name == collective})

    def us(self, key, variant):
        return self.rows.get(key, {}).get(variant, [])

    def ours(self, key):
        """The variant that is compared with the peers. A call without memory has no registered variant."""
        return "registered" if self.us(key, "registered") else "shm"

    def factor(self, key, slow, fast):
        """How many times faster `fast` is than `slow`."""
        return numbers.ratio_of_rounds(self.us(key, slow), self.us(key, fast))

    def copy_us(self, key):
        """The time of a copy of as many bytes as the collective must read and write (memory_limit.cc), by round; only
        for sizes that do not fit into the caches."""
        world, collective, size = key
        if collective not in TRAFFIC or size < LARGE:
            return []
        part = TRAFFIC[collective](world) / TRAFFIC["all_reduce"](world)
        return [None if us is None else part * us for us in self.copies.get((world, "all_reduce", size), [])]

    def share(self, key, variant):
        return numbers.ratio_of_rounds(self.copy_us(key), self.us(key, variant))


def key_of(row):
    return row["world"], row["collective"], row["size"]


def time_text(values):
    """The median; with more than one round, also half the distance between the quartiles, in percent of the median."""
    middle, (low, high) = numbers.median(values), numbers.quartiles(values)
    if not middle or len(values) == 1:
        return numbers.text(middle)
    return f"{numbers.text(middle)} ±{100 * (high - low) / 2 / middle:.0f} %"


def tables(measured):
    for collective in COLLECTIVES:
        for world in measured.worlds(collective):
            yield table_of(measured, world, collective)
    if table := python_table(measured):
        yield table
    if measured.dtypes:
        rows = [[dtype, time_text(us), numbers.text(numbers.ratio_of_rounds(measured.dtypes.get("float", []), us))]
                for dtype, us in measured.dtypes.items()]
        yield Table(f"all_reduce of {numbers.bytes_text(LARGE)} by dtype, 2 ranks: µs",
                    ["dtype", VARIANTS["registered"], "x float"], rows,
                    "Both alternate in the same run. x float: speed relative to float.")


def python_table(measured):
    """The two backends of the same program side by side; None if they were not measured."""
    rows = []
    for collective in COLLECTIVES:
        for size in measured.sizes(2, collective):
            gloo, ours = (measured.us((2, collective, size), name) for name in ("pytorch", "pytorch_lockstep"))
            if gloo and ours:
                rows.append([collective, numbers.bytes_text(size) if size else "-", time_text(gloo), time_text(ours),
                             numbers.text(numbers.ratio_of_rounds(gloo, ours))])
    if not rows:
        return None
    return Table("PyTorch over lockstep compared with PyTorch over Gloo, 2 ranks: µs",
                 ["collective", "size", PYTORCH, PYTHON, f"x {PYTORCH}"], rows, texts=2,
                 note=f"The same program with two backends of torch.distributed. x {PYTORCH}: speed over lockstep "
                      "relative to that over Gloo.")


def table_of(measured, world, collective):
    keys = [(world, collective, size) for size in measured.sizes(world, collective)]
    variants = [name for name in VARIANTS if any(measured.us(key, name) for key in keys)]
    copied = any(measured.copy_us(key) for key in keys)
    peers = [name for name in ("pytorch", "openmpi") if name in variants]
    head = ["size"] + [VARIANTS[name] for name in variants] + [f"x {VARIANTS[name]}" for name in peers]
    head += ([COPY, "of copy"] if copied else []) + ["fastest"]
    lines = []
    for key in keys:
        medians = {name: numbers.median(measured.us(key, name)) for name in variants}
        medians = {name: us for name, us in medians.items() if us is not None}
        share = measured.share(key, measured.ours(key))
        lines.append([numbers.bytes_text(key[2]) if key[2] else "-"]
                     + [time_text(measured.us(key, name)) for name in variants]
                     + [numbers.text(measured.factor(key, name, measured.ours(key))) for name in peers]
                     + ([time_text(measured.copy_us(key)), "-" if share is None else f"{100 * share:.0f} %"]
                        if copied else [])
                     + [VARIANTS[min(medians, key=medians.get)] if medians else "-"])
    return Table(f"{collective}, {world} ranks: µs", head, lines)


def series_of(name, points):
    """`points`: (x, values by round)."""
    points = [(x, values) for x, values in points if numbers.median(values) is not None]
    spread = [numbers.quartiles(values) for _, values in points]
    return Series(name, [x for x, _ in points], [numbers.median(values) for _, values in points],
                  [low for low, _ in spread], [high for _, high in spread])


def bus_gb_s(world, size, values):
    """As nccl-tests counts for all_reduce."""
    return [None if not us else 2 * (world - 1) / world * size / us / 1e3 for us in values]


def plots(measured):
    worlds = measured.worlds("all_reduce")
    for world in worlds:
        yield plot_of(f"all_reduce, {world} ranks: time of a call", "µs", "Lower is better.",
                      times_of_all_reduce(measured, world))
    for world in worlds:
        rates = {name: [(size, bus_gb_s(world, size, us)) for size, us in points]
                 for name, points in times_of_all_reduce(measured, world, copy=True).items()}
        yield plot_of(f"all_reduce, {world} ranks: bus bandwidth", "GB/s",
                      f"Higher is better. Bytes / time * 2(W-1)/W for W ranks. {COPY}: all ranks copy buffers of "
                      "their own at once; buffers of a few MiB stay in the caches.", rates)


def times_of_all_reduce(measured, world, copy=False):
    """Points (size, times by round) by the names of the series."""
    keys = [(world, "all_reduce", size) for size in measured.sizes(world, "all_reduce")]
    points = {VARIANTS[variant]: [(key[2], measured.us(key, variant)) for key in keys] for variant in VARIANTS}
    if copy:
        points[COPY] = [(key[2], us) for key, us in sorted(measured.copies.items()) if key[0] == world]
    return points


def plot_of(title, unit, note, points):
    series = [series_of(name, some) for name, some in points.items()]
    return Plot(title, "size", unit, [one for one in series if one.x], log_x=True, log_y=True, bytes_x=True, note=note)


def figures(measured):
    for rows, variants, least_pytorch, least_openmpi in FIGURES:
        for world, collective, size in rows:
            for variant in variants:
                what = f"{collective} {numbers.bytes_text(size)}, {world} ranks, {variant}"
                for peer, least in (("pytorch", least_pytorch), ("openmpi", least_openmpi)):
                    yield Figure(what, f"x {VARIANTS[peer]}", measured.factor((world, collective, size), peer, variant),
                                 least)
    large = (2, "all_reduce", LARGE)
    yield Figure(f"all_reduce {numbers.bytes_text(LARGE)}, 2 ranks, {PYTHON}", f"x {PYTORCH}",
                 measured.factor(large, "pytorch", "pytorch_lockstep"), LEAST_PYTHON)
    what = f"all_reduce {numbers.bytes_text(LARGE)}, 2 ranks, registered"
    yield Figure(what, "of a memory copy's speed", measured.share(large, "registered"), LEAST_SHARE)
    yield Figure(what + ", bfloat16", "x float", numbers.ratio_of_rounds(measured.dtypes.get("float", []),
                                                                         measured.dtypes.get("bfloat16", [])),
                 LEAST_BFLOAT16)


def present(raw):
    measured = Measured(raw)
    versions = ", ".join(f"{name} {version}" for name, version in sorted(raw.get("versions", {}).items()))
    samples = (", here only one" if raw.get("quick") else
               f": 10 or more, but from {numbers.bytes_text(HUGE)} on, 3 with 2 ranks and one with more")
    about = [
        f"Rounds: {measured.rounds}. Each round runs `lockstep bench`, the same rows in Python's torch.distributed "
        "over Gloo and over lockstep and in Open MPI, and a plain memory copy, in a changing order; the variants of "
        "`lockstep bench` alternate within one run.",
        "A sample is one call, or the mean of 20 up to 16 KiB, on the slowest rank. A round's time is the median "
        f"of its samples{samples}. The data of every row is checked before and after.",
        f"In all programs, each rank is bound to its own core if there are enough ({raw.get('cores', 'unknown')} "
        "here), otherwise to none. Every rank has one thread.",
        f"{VARIANTS['registered']}, {VARIANTS['plain']}: over shared memory, with tensors allocated by the group "
        f"and with ordinary ones. {VARIANTS['gloo']}: the same Gloo as PyTorch's, but lockstep schedules its event "
        "thread so that it does not preempt others.",
        f"{PYTHON}: the program of {PYTORCH} with the backend lockstep, which uses shared memory on one machine, and "
        f"with ordinary tensors; only with 2 ranks, and up to {numbers.bytes_text(LARGE)}.",
        "Tables: median over the rounds ± half the distance between their quartiles. x: the speed of "
        f"{VARIANTS['registered']} relative to a peer (below 1: slower), the median of the rounds' ratios.",
        f"{COPY}: the time that memcpy needs to read and write as many bytes as the collective must, when all "
        f"ranks copy at once, from {numbers.bytes_text(LARGE)} on; of copy: this time divided by that of "
        f"{VARIANTS['registered']}. Above 100 %, parts of the tensors stayed in a cache, or working in place was "
        "faster than copying.",
    ]
    if versions:
        about.append(f"Versions reported by the programs: {versions}.")
    return Findings("Collectives", about, list(tables(measured)), list(plots(measured)), list(figures(measured)),
                    list(raw.get("notes", [])), list(raw.get("failures", [])))
