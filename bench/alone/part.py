"""A ported program without a launcher, as a newcomer first runs it, compared with the original program.

*plain* leaves the process as LibTorch and the C library set it up. *lockstep* calls init_process_group, which creates
a group of one rank. No number of threads is set for either.
"""
import os
import statistics

from kit import numbers, ranks
from kit.competitors import competitors
from kit.findings import Figure, Findings, Table
from kit.progress import Progress
from training import part as training

NAME = "alone"
COMPETITORS = (0, 1)
PLAIN, LOCKSTEP = "plain", "lockstep"
VARIANTS = {PLAIN: {"LOCKSTEP_THREADS": 0, "LOCKSTEP_HEAP": 0, "LOCKSTEP_BIND": 0}, LOCKSTEP: {}}
RUN_SECONDS = 300


def run(settings, model, variant):
    command = [os.path.join(settings.build, training.PROGRAM), "--set-to-none", "--wrap", "none", "--model", model,
               "--loss-steps", "0", "--warmup", "1", "--turns", str(1 if settings.quick else 2 * training.TURNS[model])]
    report, = ranks.run_ranks(command, 1, RUN_SECONDS, VARIANTS[variant])
    return {"step_ms": statistics.median(report["times_ms"]["step"]), "cpu_ms": statistics.median(report["cpu_ms"]["step"]),
            "threads": report["threads"]}


def measure(settings):
    raw = {"cores": len(os.sched_getaffinity(0)), "models": settings.models, "runs": [], "notes": [], "failures": []}
    progress = Progress(NAME, settings.rounds * len(settings.models) * len(COMPETITORS))
    for at_round in range(settings.rounds):
        for model in settings.models:
            for count in COMPETITORS:
                progress.step(f"round {at_round + 1} of {settings.rounds}, {model}, {count} competitors")
                order = list(VARIANTS)[:: 1 if at_round % 2 == 0 else -1]
                with competitors(count):
                    for variant in order:
                        try:
                            raw["runs"].append({"round": at_round, "model": model, "competitors": count, "variant": variant,
                                                **run(settings, model, variant)})
                        except ranks.Failure as failure:
                            raw["failures"].append(f"{model}, {count} competitors, {variant}: {failure}")
    return raw


def present(raw):
    rounds = 1 + max((run["round"] for run in raw["runs"]), default=-1)
    by_key = {(run["model"], run["competitors"], run["variant"], run["round"]): run for run in raw["runs"]}

    def values(model, count, variant, name):
        return [by_key.get((model, count, variant, at), {}).get(name) for at in range(rounds)]

    def faster(model, count, variant):
        return numbers.ratio_of_rounds(values(model, count, PLAIN, "step_ms"), values(model, count, variant, "step_ms"))

    rows = [[model, str(count), variant, str(numbers.median(values(model, count, variant, "threads"))),
             numbers.with_spread(values(model, count, variant, "step_ms")),
             numbers.text(numbers.median(values(model, count, variant, "cpu_ms"))),
             training.times_text(faster(model, count, variant))]
            for model in raw["models"] for count in COMPETITORS for variant in VARIANTS
            if any(values(model, count, variant, "step_ms"))]
    figures = [Figure(f"{model}, world size 1, {count} competitors, training throughput", "x the plain program",
                      faster(model, count, LOCKSTEP), 1) for model in raw["models"] for count in COMPETITORS]
    return Findings(
        "World size 1",
        [f"A program without a launcher on {raw['cores']} cores: plain, as LibTorch and the C library set up a "
         "process, and with init_process_group. No number of threads is set. It runs next to 0 or 1 process that "
         "computes without pause."],
        [Table("Step, alone", ["model", "competitors", "variant", "threads", "step ms", "CPU ms", "x plain"], rows, texts=3)],
        figures=figures, notes=raw["notes"], failures=raw["failures"])
