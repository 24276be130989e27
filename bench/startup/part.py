"""Start-up and recovery: from launch to the first step, from a killed rank to its peers' errors and to the next step.

The same small training program in C++ (first_step.cc) and Python (first_step.py), under `lockstep run` and torchrun.
"""
import contextlib
import dataclasses
import os
import re
import signal
import tempfile
import time
import typing

from kit import numbers
from kit.findings import Figure, Findings, Plot, Series, Table
from kit.progress import Progress
from kit.ranks import HUGE_PAGES, Failure, clean_environment, free_port
from startup.jobs import Job

NAME = "startup"
HERE = os.path.dirname(os.path.abspath(__file__))

SHM, GLOO = "lockstep + shm", "lockstep + gloo"
TORCHRUN, TUNED = "torchrun + Python", "torchrun + Python, tuned"
BY_HAND = "PyTorch + Gloo"  # the same program without torchrun

WORLD = 2  # ranks that start and resume
KILL_WORLD = 4  # so that a killed rank has several survivors, which may detect its death in different ways
VICTIM = 1
KILL_AT = 20  # steps of every rank before one is killed
MANY_STEPS = 20000  # more than can run before the kill
SECONDS = 90  # limit per job

NOTHING, IMPORT = "LibTorch alone", "PyTorch alone"  # programs that do nothing
SAY_WHEN = "import torch, os, time; print(time.monotonic_ns(), flush=True); os._exit(0)"

LAUNCH_STAGES = {"born": "process of the rank created", "loaded": "libraries loaded", "group": "process group created",
                 "collective": "first collective done", "step": "first training step done", "ended": "launcher exited"}
RESUME_STAGES = {"born": "process of the rank created", "loaded": "libraries loaded", "group": "process group created",
                 "resumed": "checkpoint loaded", "step": "next training step done", "ended": "launcher exited"}


@dataclasses.dataclass
class Variant:
    name: str
    program: typing.List[str]
    launcher: typing.List[str]
    interpreter: typing.List[str] = dataclasses.field(default_factory=list)  # of launcher and program, if needed
    environment: typing.Dict[str, str] = dataclasses.field(default_factory=dict)
    looks_every: float = 0  # seconds between polls of the ranks by the launcher; 0: it is notified

    @property
    def is_torchrun(self):
        return self.name in (TORCHRUN, TUNED)

    def launched(self, world, flags, restarts=0):
        """The command that Job starts: the launcher."""
        if self.is_torchrun:
            how = [f"--nproc_per_node={world}", f"--max_restarts={restarts}", f"--master_port={free_port()}"]
        else:
            how = ["--nproc-per-node", str(world), "--max-restarts", str(restarts)]
        return [([*self.interpreter, *self.launcher, *how, *self.program, *flags],
                 clean_environment(**self.environment))]

    def by_hand(self, world, flags):
        """The commands that Job starts: the ranks."""
        port = free_port()
        return [([*self.interpreter, *self.program, *flags],
                 clean_environment(RANK=rank, WORLD_SIZE=world, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=world,
                                   MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMP_NUM_THREADS=1))
                for rank in range(world)]


def all_variants(settings):
    run = [os.path.join(settings.build, "bin", "lockstep"), "run"]
    program = os.path.join(settings.build, "bench", "startup", "bench_first_step")
    variants = [Variant(SHM, [program, "--backend", "shm"], run), Variant(GLOO, [program, "--backend", "gloo"], run)]
    if settings.python:
        program = [os.path.join(HERE, "first_step.py"), "--backend", "gloo"]
        torchrun, python = [os.path.join(HERE, "torchrun.py")], [settings.python]
        variants += [Variant(TORCHRUN, program, torchrun, python, looks_every=5),
                     Variant(TUNED, program, [*torchrun, "--monitor_interval=0.1"], python, {"OMP_NUM_THREADS": "1"},
                             looks_every=0.1)]
    return variants


# ---- Measuring


def load_alone(command):
    """Seconds until the libraries of a program that does nothing else are loaded. Starts as many at a time as a
    launch has ranks, with the environment that `lockstep run` sets."""
    with tempfile.TemporaryDirectory() as folder:
        with Job([(command, clean_environment(OMP_NUM_THREADS=1, **HUGE_PAGES))] * WORLD, folder, SECONDS) as job:
            job.ends([])
            if any(process.returncode != 0 for process in job.processes):
                raise job.failure("it failed")
            return {"loaded": (max(map(int, job.output().split())) - job.launch_ns) / 1e9}


@contextlib.contextmanager
def job_of(commands_with):
    """Runs `commands_with` a folder for events and one for checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        events, checkpoints = os.path.join(folder, "events"), os.path.join(folder, "checkpoints")
        os.mkdir(events)
        os.mkdir(checkpoints)
        with Job(commands_with(events, checkpoints), events, SECONDS) as job:
            yield job


def of_slowest_rank(events, event, world, attempt=0):
    """The last of the ranks' first such events."""
    first = {}
    for item in events:
        if item["event"] == event and item["attempt"] == attempt:
            first.setdefault(item["rank"], item)
    return max(first.values(), key=lambda item: item["ns"]) if len(first) == world else None


def stages_since(job, begin_ns, stages, world, attempt=0):
    """Seconds from `begin_ns` to each stage on the slowest rank, and to the exit of the launcher."""
    ended = job.ends([])[job.processes[0].pid]
    if job.processes[0].returncode != 0:
        raise job.failure(f"exit status {job.processes[0].returncode}")
    events = job.look()
    result = {"ended": (ended - begin_ns) / 1e9}
    for stage in stages:
        if stage == "ended":
            continue
        last = of_slowest_rank(events, stage, world, attempt)
        if last is None:
            raise job.failure(f"not every rank recorded “{stage}”")
        result[stage] = (last["ns"] - begin_ns) / 1e9
    return result


def launch(variant):
    """Start, a collective, three steps, exit."""
    with job_of(lambda events, _: variant.launched(WORLD, ["--events", events])) as job:
        result = stages_since(job, job.launch_ns, LAUNCH_STAGES, WORLD)
        result["losses"] = {f"{item['rank']} {item['step']}": item["loss"]
                            for item in job.events if item["event"] == "step"}
        return result


def kill_one(job, variant, world, phase):
    """Kills a rank when all have trained for a while. If the launcher polls its ranks, the kill happens at `phase` (0
    to 1) between two polls. Returns the time of the kill."""
    job.wait_for(f"training with {world} ranks", lambda events: len(
        {item["rank"] for item in events if item["event"] == "step" and item["step"] >= KILL_AT}) == world)
    time.sleep(variant.looks_every * phase)
    victim = next(item["pid"] for item in job.events if item["rank"] == VICTIM)
    try:
        now = time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError as error:
        raise job.failure("ended before a rank was killed") from error
    return now


def lose_a_rank(variant, phase, with_launcher):
    """Kills a rank, and records when the others have an error, when they and the launcher exit, and their messages."""
    def commands(events, _):
        flags = ["--events", events, "--steps", str(MANY_STEPS)]
        return variant.launched(KILL_WORLD, flags) if with_launcher else variant.by_hand(KILL_WORLD, flags)

    with job_of(commands) as job:
        killed = kill_one(job, variant, KILL_WORLD, phase)
        survivors = {item["rank"]: item["pid"] for item in job.events if item["rank"] != VICTIM}
        ended = job.ends(survivors.values())
        errors = {item["rank"]: item for item in job.look() if item["event"] == "error"}
        if any(item["ns"] < killed for item in errors.values()):
            raise job.failure("a rank failed before one was killed")
        result = {"errors": {str(rank): {"seconds": (item["ns"] - killed) / 1e9, "text": item["text"]}
                             for rank, item in sorted(errors.items())},
                  "ends": {str(rank): (ended[pid] - killed) / 1e9 for rank, pid in sorted(survivors.items())}}
        if with_launcher:
            result["launcher_ended"] = (ended[job.processes[0].pid] - killed) / 1e9
            result["launcher_says"] = verdict_of_torchrun(job.output()) if variant.is_torchrun else next(
                (line for line in job.output().splitlines() if line.startswith("lockstep run:")), "")
        return result


def verdict_of_torchrun(output):
    """Its report of the first rank to fail, as one line."""
    report = output.partition("Root Cause (first observed failure)")[2]
    found = [re.search(rf"^\s*({name})\s*: (.*)$", report, re.MULTILINE) for name in ("rank", "exitcode")]
    return "; ".join(f"{match.group(1)}: {match.group(2).strip()}" for match in found if match)


def resume(variant, phase):
    """Kills a rank; the launcher restarts all ranks, and they resume from the last checkpoint."""
    def commands(events, checkpoints):
        return variant.launched(
            WORLD, ["--events", events, "--snapshots", checkpoints, "--steps", str(MANY_STEPS)], restarts=1)

    with job_of(commands) as job:
        killed = kill_one(job, variant, WORLD, phase)
        result = stages_since(job, killed, RESUME_STAGES, WORLD, attempt=1)
        check_resumed(job)
        return result


def check_resumed(job):
    """Checks that all ranks resumed from the newest checkpoint, and that repeated steps had the same losses."""
    def steps(event, attempt, rank=None):
        return {item["step"] for item in job.events
                if item["event"] == event and item["attempt"] == attempt and rank in (None, item["rank"])}

    # Rank 0 writes. It may have been stopped after writing one more checkpoint and before recording it.
    resumed, saved, made = steps("resumed", 1), max(steps("saved", 0, rank=0)), max(steps("step", 0, rank=0))
    if len(resumed) != 1 or not saved <= max(resumed) <= made:
        raise job.failure(f"resumed from step {sorted(resumed)}; {saved} had been saved, {made} made")
    losses, again = ({(item["rank"], item["step"]): item["loss"] for item in job.events
                      if item["event"] == "step" and item["attempt"] == attempt} for attempt in (0, 1))
    if min(step for _, step in again) != max(resumed) + 1:
        raise job.failure(f"resumed from step {max(resumed)}, but the next was {min(step for _, step in again)}")
    for key in losses.keys() & again.keys():
        if not close(losses[key], again[key]):
            raise job.failure(f"rank {key[0]}, step {key[1]}: loss {losses[key]}, after the restart {again[key]}")


def close(a, b):
    return abs(a - b) <= 1e-5 * max(abs(a), abs(b))


def measure(settings):
    rounds = 1 if settings.quick else settings.rounds
    raw = {"world": WORLD, "kill_world": KILL_WORLD, "warm": not settings.quick, "launch": {}, "alone": {},
           "by_hand": {}, "launched": {}, "resume": {}, "failures": [], "notes": []}
    variants = all_variants(settings)
    alone = [Variant(NOTHING, [os.path.join(settings.build, "bench", "startup", "bench_nothing")], [])]
    if settings.python:
        alone.append(Variant(IMPORT, [settings.python, "-c", SAY_WHEN], []))
    else:
        raw["notes"].append("torchrun and PyTorch are left out: no Python interpreter has PyTorch.")
    without_launcher = [variant for variant in variants if variant.name != TUNED]
    kinds = [
        ("launch", "launch", variants, lambda variant, phase: launch(variant)),
        ("alone", "load", alone, lambda variant, phase: load_alone(variant.program)),
        ("by_hand", "kill a rank, no launcher", without_launcher,
         lambda variant, phase: lose_a_rank(dataclasses.replace(variant, looks_every=0), phase, False)),
        ("launched", "kill a rank", variants, lambda variant, phase: lose_a_rank(variant, phase, True)),
        ("resume", "kill and resume", variants, resume)]
    progress = Progress(NAME, rounds * sum(len(of_kind) for _, _, of_kind, _ in kinds))
    failed = set()
    if raw["warm"]:  # because the first start reads libraries from the disk
        for variant in variants:
            with contextlib.suppress(Failure):
                launch(variant)
    for number in range(rounds):
        for kind, what, of_kind, run in kinds:
            turn = number % len(of_kind)  # each variant starts a round once
            for variant in of_kind[turn:] + of_kind[:turn]:
                name = BY_HAND if kind == "by_hand" and variant.is_torchrun else variant.name
                progress.step(f"{what}: {name}")
                values = raw[kind].setdefault(name, [])
                values.append({})
                if (kind, name) in failed:
                    continue
                try:
                    values[-1] = run(variant, (number + 0.5) / rounds)
                except Failure as failure:
                    failed.add((kind, name))  # do not repeat it: each round could take until its deadline
                    raw["failures"].append(f"{what}, {name}, round {number + 1}: {failure}")
    raw["failures"] += different_losses(raw["launch"])
    return raw


def different_losses(launches):
    """All variants train the same model on the same data, so their losses must agree."""
    runs = [(name, value["losses"]) for name, values in launches.items() for value in values if "losses" in value]
    return [f"{name} and {runs[0][0]} have different losses: rank and step {key}: {losses.get(key)} and {loss}"
            for name, losses in runs[1:] for key, loss in runs[0][1].items()
            if key not in losses or not close(losses[key], loss)]


# ---- Presenting


def milliseconds(values, key):
    """By round; None if it was not measured."""
    return [1e3 * value[key] if value.get(key) is not None else None for value in values]


def time_rows(rows, names):
    """Rows of (what, {variant: milliseconds by round}) as text: the times, the ratios, and the fastest variant."""
    lines = []
    for what, times in rows:
        medians = {name: middle for name in names if (middle := numbers.median(times.get(name, []))) is not None}
        ratios = [numbers.text(numbers.ratio_of_rounds(times.get(above, []), times.get(below, [])), "x")
                  for above, below, _ in ratios_of(names)]
        lines.append([what, *(numbers.with_spread(times.get(name, [])) for name in names), *ratios,
                      min(medians, key=medians.get) if medians else "-"])
    return lines


def ratios_of(names):
    """The ratios to show: (above, below, head of the column)."""
    pairs = [(TORCHRUN, SHM, "torchrun ÷ shm"), (TORCHRUN, GLOO, "torchrun ÷ Gloo"), (TUNED, SHM, "tuned ÷ shm"),
             (BY_HAND, SHM, "PyTorch ÷ shm"), (BY_HAND, GLOO, "PyTorch ÷ Gloo")]
    return [pair for pair in pairs if pair[0] in names and pair[1] in names]


def time_table(title, first, rows, names, note):
    return Table(title, [first, *names, *(head for _, _, head in ratios_of(names)), "fastest"],
                 time_rows(rows, names), note)


def stage_rows(values, stages):
    return [(text, {name: milliseconds(rounds, stage) for name, rounds in values.items()})
            for stage, text in stages.items()]


def alone_table(alone, launch_values, world):
    theirs = milliseconds(launch_values.get(TORCHRUN, []), "collective")
    rows = []
    for name, rounds in alone.items():
        times = milliseconds(rounds, "loaded")
        rows.append([name, numbers.with_spread(times), numbers.text(numbers.ratio_of_rounds(theirs, times), "x")])
    return Table(
        "What no launcher can shorten",
        ["program", "ms until its libraries are loaded", "torchrun's first collective ÷ this"], rows,
        f"{world} at a time, with the environment that `lockstep run` sets: a program that only links LibTorch, "
        "until its main(), and a Python program that only imports torch. The last column is the factor that a "
        "library on LibTorch would reach if it took no time itself.")


def stage_plot(title, values, stages, begin, note):
    series = []
    for name, rounds in values.items():
        measured = {stage: [one[stage] for one in rounds if stage in one] for stage in stages}
        measured = {stage: times for stage, times in measured.items() if times}
        if measured:
            spread = [numbers.quartiles(times) for times in measured.values()]
            series.append(Series(name, [stages[stage] for stage in measured],
                                 [numbers.median(times) for times in measured.values()],
                                 [low for low, _ in spread], [high for _, high in spread]))
    return Plot(title, "", f"seconds since {begin}", series, kind="bars", note=note)


def loss_rows(values, with_launcher):
    """When the survivors of a killed rank had their errors, and when everything had exited."""
    def of_survivors(pick, moments):
        return {name: [1e3 * pick(times) if one.get("ends") and (times := moments(one)) else None for one in rounds]
                for name, rounds in values.items()}

    def known(one):
        """None if a survivor exited without an error and there was no launcher to stop it."""
        if not with_launcher and len(one["errors"]) < len(one["ends"]):
            return None
        return [one["errors"].get(rank, {"seconds": end})["seconds"] for rank, end in one["ends"].items()]

    has = "has its error, or was stopped" if with_launcher else "has its error"
    rows = [(f"first survivor {has}", of_survivors(min, known)), (f"last survivor {has}", of_survivors(max, known)),
            ("last survivor exited", of_survivors(max, lambda one: one["ends"].values()))]
    if with_launcher:
        ended = {name: milliseconds(rounds, "launcher_ended") for name, rounds in values.items()}
        rows.append(("launcher exited", ended))
    return rows


def word_rows(values, with_launcher):
    """The messages that users see: the number of survivors with their own error, and its first line."""
    rows = []
    for name, rounds in values.items():
        rounds = [one for one in rounds if one.get("ends")]
        if not rounds:
            continue
        texts = [item["text"] for one in rounds for item in one.get("errors", {}).values()]
        launcher = "torchrun" if name in (TORCHRUN, TUNED) else "lockstep run"
        survivors = sum(len(one["ends"]) for one in rounds)
        how = f"stopped by {launcher}" if with_launcher else "exited without one"
        rest = f"; {survivors - len(texts)} {how}" if len(texts) < survivors else ""
        rows.append([name if with_launcher else f"{name}, no launcher", f"survivors: {len(texts)} errors{rest}",
                     share(texts, rf"\brank {VICTIM}\b"), first_line(texts)])
        if with_launcher:
            said = [one.get("launcher_says", "") for one in rounds]
            rows.append([name, launcher, share(said, rf"\brank:? {VICTIM}\b"), first_line(said)])
    return rows


def share(texts, pattern):
    """How many of the texts contain the pattern in their first line."""
    return f"{sum(bool(re.search(pattern, first_line([text]))) for text in texts)} of {len(texts)}" if texts else "-"


def first_line(texts):
    lines = [text.strip().splitlines()[0] for text in texts if text.strip()]
    return lines[0][:400] if lines else "-"


ABOUT = [
    "One small training program (an MLP of 0.4 M parameters, SGD with momentum), written with lockstep in C++ and "
    "with PyTorch in Python: the same weights, data and losses. Every time is that of the slowest rank, in ms: the "
    "median over the rounds, with quartiles in brackets. Ratios are medians of the rounds' ratios; above 1, "
    "lockstep is faster.",
    "lockstep runs under `lockstep run`, Python under torchrun with its defaults, which polls its ranks every 5 s; "
    "“tuned” is torchrun with --monitor_interval=0.1. Both launchers give each rank one thread. In each round, the "
    "kill happens at another moment between two polls of torchrun.",
]
WARM = "Every variant was started once before the measurement, so that its files are in memory."


def present(raw):
    world, kill_world = raw.get("world", WORLD), raw.get("kill_world", KILL_WORLD)
    launch_values, by_hand = raw.get("launch", {}), raw.get("by_hand", {})
    launched, resumed, alone = raw.get("launched", {}), raw.get("resume", {}), raw.get("alone", {})
    about = ABOUT + [WARM] if raw.get("warm") else ABOUT
    findings = Findings("Start-up and recovery", about, notes=list(raw.get("notes", [])),
                        failures=list(raw.get("failures", [])))
    if launch_values:
        title = f"Start-up, {world} ranks"
        findings.tables.append(time_table(
            title, "ms from the launch until", stage_rows(launch_values, LAUNCH_STAGES), list(launch_values),
            "The kernel records the creation of a process in hundredths of a second, rounded up here. A C++ "
            "program loads its libraries before main(), a Python program by import."))
        findings.plots.append(stage_plot(title, launch_values, LAUNCH_STAGES, "the launch",
                                         "Until the slowest rank reaches the stage."))
    if alone:
        findings.tables.append(alone_table(alone, launch_values, world))
    if by_hand:
        findings.tables.append(time_table(
            f"kill -9 of one of {kill_world} ranks, no launcher", "ms from the kill until", loss_rows(by_hand, False),
            list(by_hand), "The ranks were started one by one: shows what the libraries do without a launcher."))
    if launched:
        findings.tables.append(time_table(
            f"kill -9 of one of {kill_world} ranks, under the launcher", "ms from the kill until",
            loss_rows(launched, True), list(launched),
            "If the launcher stopped a survivor before it had its own error, the time of its exit counts; the next "
            "table shows how many these are."))
    words = word_rows(by_hand, False) + word_rows(launched, True)
    if words:
        findings.tables.append(Table(
            f"Messages about rank {VICTIM}, which was killed",
            ["variant", "source", f"names rank {VICTIM}", "first line"], words,
            "Counted over all survivors and rounds; the line is the first of them. For torchrun's report, it is "
            "the rank that it reports as the first to fail.", texts=4))
    if resumed:
        title = f"kill -9 of one of {world} ranks to the next training step"
        findings.tables.append(time_table(
            title, "ms from the kill until", stage_rows(resumed, RESUME_STAGES), list(resumed),
            "With one restart and a checkpoint every 5 steps: lockstep's snapshots, synced to the disk; torch.save "
            "by rank 0, not synced. The benchmark checks that the training resumed from the newest checkpoint, and "
            "that repeated steps had the same losses."))
        findings.plots.append(stage_plot(title, resumed, RESUME_STAGES, "the kill",
                                         "Until the slowest rank reaches the stage, after the restart."))
    theirs, ours = (milliseconds(launch_values.get(name, []), "collective") for name in (TORCHRUN, SHM))
    findings.figures.append(Figure(f"launch to the first collective, {world} ranks, {SHM}", "x torchrun + Python",
                                   numbers.ratio_of_rounds(theirs, ours), 5))
    return findings
