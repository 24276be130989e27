"""Training on a busy machine: as many ranks as cores, next to one or two processes that compute without pause. The
ranks wait for each other in every step, so a rank that shares its core delays all of them.
"""
import os

from kit import numbers, ranks
from kit.competitors import competitors
from kit.findings import Figure, Findings, Table
from kit.progress import Progress
from training import part as training

NAME = "busy"
MODELS = ("cnn", "gpt", "mlp")
COMPETITORS = (1, 2)
WORLD = 2
VARIANTS = (training.STARTED, training.TUNED, training.GLOO, training.SHM)
OURS, PEERS = (training.SHM,), (training.STARTED, training.TUNED)


def measure(settings):
    models = [model for model in MODELS if model in settings.models]
    raw = {"cores": len(os.sched_getaffinity(0)), "models": models, "runs": [], "notes": [], "failures": []}
    if not settings.python:
        raw["notes"].append("PyTorch is left out: no Python interpreter has it (apt-get install python3-torch)")
    progress = Progress(NAME, settings.rounds * len(models) * len(COMPETITORS))
    for at_round in range(settings.rounds):
        for model in models:
            for count in COMPETITORS:
                progress.step(f"round {at_round + 1} of {settings.rounds}, {model}, {count} competitors")
                first = at_round % len(VARIANTS)
                with competitors(count):
                    for variant in VARIANTS[first:] + VARIANTS[:first]:
                        try:
                            run = training.run_variant(settings, model, variant, WORLD)
                        except ranks.Failure as failure:
                            raw["failures"].append(f"{model}, {count} competitors, {variant}: {failure}")
                            continue
                        if run:
                            raw["runs"].append({"round": at_round, "model": model, "competitors": count, "variant": variant,
                                                "step_ms": training.step_ms(run)})
    return raw


class Steps:
    """The times of the steps, by row and round."""

    def __init__(self, raw):
        self.rounds = 1 + max((run["round"] for run in raw["runs"]), default=-1)
        self.by_key = {(run["model"], run["competitors"], run["variant"], run["round"]): run["step_ms"] for run in raw["runs"]}

    def of(self, model, count, variant):
        return [self.by_key.get((model, count, variant, at)) for at in range(self.rounds)]

    def faster(self, model, count, variant, peer):
        return numbers.ratio_of_rounds(self.of(model, count, peer), self.of(model, count, variant))


def present(raw):
    steps = Steps(raw)
    rows = [[model, str(count), variant, numbers.with_spread(steps.of(model, count, variant)),
             training.times_text(steps.faster(model, count, variant, training.TUNED)),
             training.times_text(steps.faster(model, count, variant, training.STARTED))]
            for model in raw["models"] for count in COMPETITORS for variant in VARIANTS
            if any(steps.of(model, count, variant))]
    figures = [Figure(f"{model}, 2 ranks, {count} competitors, {variant}, training throughput", f"x {peer}",
                      steps.faster(model, count, variant, peer), 1)
               for model in raw["models"] for count in COMPETITORS for variant in OURS for peer in PEERS]
    return Findings(
        "Training on a busy machine",
        [f"Two ranks on {raw['cores']} cores, next to one or two processes that compute without pause and may run "
         "on any core. The variants take turns within a round, as in the part `training`."],
        [Table("Step, with competitors", ["model", "competitors", "variant", "step ms", "x tuned", "x started"], rows, texts=3)],
        figures=figures, notes=raw["notes"], failures=raw["failures"])
