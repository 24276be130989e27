"""Predictions of `lockstep plan` compared with measured steps: ranks that share this machine, and machines made of
network namespaces, whose links have three rates.

The constants are fitted to `lockstep bench` on this machine, in the same run. A prediction gets the time of a step
without communication from the measurement that it is compared with, as it would get it from a user.
"""
import json
import os
import tempfile

from kit import netns, numbers, ranks
from kit.findings import Figure, Findings, Plot, Series, Table
from kit.progress import Progress
from training import part as training

NAME = "plan"
RUN_SECONDS = 600
# The number of equal tensors that comes closest to the model's own; 0: all are smaller than a bucket.
TENSORS = {"mlp": 12, "gpt": 0, "resnet": 0}
LOCAL = (2, 4, 8)  # ranks of one machine
PLACES = ((2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (8, 1))  # (machines, ranks of each)
LINKS = (1000, 300, 100)  # Mbit/s
TURNS = 3
MOST_ERROR = 15  # % of the measured step, the median over all cases
SHM, HYBRID, GLOO = "shm", "hybrid", "gloo"
BENCH = ["--world", "2,4,8", "--collective", "all_reduce,all_to_all_single", "--sizes", "1K,128M", "--memory", "registered"]
LOCKSTEP = "lockstep"
LIBRARIES = {LOCKSTEP: (SHM, HYBRID), "one TCP ring (Gloo)": (GLOO,)}


# ---- Measuring


def cases(quick, backends, models=tuple(TENSORS)):
    """(machines, ranks of each, Mbit/s or None, backend, model)"""
    for model in models[:1] if quick else models:
        for each in LOCAL[:2] if quick else LOCAL:
            for backend in (SHM, GLOO):
                yield 1, each, None, backend, model
        for mbit in LINKS[:1] if quick else LINKS:
            for machines, each in PLACES[1:2] if quick else PLACES:
                for backend in (HYBRID, GLOO):
                    if backend in backends:
                        yield machines, each, mbit, backend, model


def lockstep(settings, *words):
    return ranks.run([os.path.join(settings.build, "bin", "lockstep"), *words], RUN_SECONDS)


def step(settings, backend, model, world, machines):
    """The medians of one run."""
    command = [os.path.join(settings.build, training.PROGRAM), "--set-to-none", "--backend", backend, "--model", model,
               "--kinds", "local,sync", "--loss-steps", "2", "--warmup", "1", "--turns", str(1 if settings.quick else TURNS)]
    env = {"OMP_NUM_THREADS": 1, **ranks.HUGE_PAGES}
    return training.summary(ranks.run_ranks(command, world, RUN_SECONDS, env, machines=machines))


def predict(settings, constants, case, one):
    """(the predicted step in ms, the constants)"""
    machines, each, mbit, backend, model = case
    words = ["--json", "--constants", constants, "--params", str(one["parameters"]), "--step-ms",
             f"{one['times_ms']['local']:.6g}", "--tensors", str(TENSORS[model]), "--nodes", str(machines),
             "--ranks-per-node", str(each), "--cores", f"{len(os.sched_getaffinity(0)) / machines:g}"]
    found = json.loads(lockstep(settings, "plan", *words, *(["--link", f"{mbit}Mbit"] if mbit else [])))
    seconds = found["alternatives"]["ring_s"] if backend == GLOO else found["prediction"]["step_s"]
    return 1e3 * seconds, found["job"]["constants"]


def compare(settings, raw, constants, case):
    machines, each, mbit, backend, model = case
    if machines == 1:
        one = step(settings, backend, model, each, None)
    else:
        with netns.machines(machines, mbit) as places:
            one = step(settings, backend, model, machines * each, places)
    predicted_ms, raw["constants"] = predict(settings, constants, case, one)
    raw["runs"].append({"machines": machines, "each": each, "mbit": mbit, "backend": backend, "model": model,
                        "local_ms": one["times_ms"]["local"], "sync_ms": one["times_ms"]["sync"],
                        "predicted_ms": predicted_ms})


def backends_of(settings):
    found = json.loads(lockstep(settings, "info", "--json"))["backends"]
    return [name for name in (SHM, HYBRID, GLOO) if name in found]


def measure(settings):
    raw = {"runs": [], "constants": None, "notes": [], "failures": []}
    backends = backends_of(settings)
    if HYBRID not in backends:
        raw["notes"].append(f"{HYBRID} is left out: this build does not have it")
    if why := netns.why_not():
        raw["notes"].append(f"Several machines are left out: {why}")
        backends = []
    todo = list(cases(settings.quick, backends))
    progress = Progress(NAME, len(todo) + 1)
    with tempfile.TemporaryDirectory() as folder:
        constants = os.path.join(folder, "constants.json")
        progress.step("constants")
        lockstep(settings, "bench", *BENCH, "--quiet", "--seconds", "0.02" if settings.quick else "0.2", "--json", constants)
        for case in todo:
            machines, each, mbit, backend, model = case
            progress.step(f"{model}, {machines} x {each} ranks, {backend}" + (f", {mbit} Mbit/s" if mbit else ""))
            try:
                compare(settings, raw, constants, case)
            except ranks.Failure as failure:
                raw["failures"].append(f"{case}: {failure}")
    return raw


# ---- Presenting


def error(run):
    """In % of the measured step."""
    return 100 * (run["predicted_ms"] / run["sync_ms"] - 1)


def median_error(runs):
    return numbers.median([abs(error(run)) for run in runs])


def place_text(run):
    return str(run["each"]) if run["machines"] == 1 else f"{run['machines']} x {run['each']}"


def link_text(mbit):
    return "one machine" if mbit is None else f"{mbit} Mbit/s"


def cases_table(runs):
    rows = [[link_text(run["mbit"]), place_text(run), run["backend"], run["model"], numbers.text(run["local_ms"]),
             numbers.text(run["sync_ms"]), numbers.text(run["predicted_ms"]), f"{error(run):+.1f} %",
             numbers.text(run["sync_ms"] - run["local_ms"]), numbers.text(run["predicted_ms"] - run["local_ms"])] for run in runs]
    return Table("Predicted and measured steps", ["link", "machines x ranks", "backend", "model", "no_sync ms", "measured ms",
                                                  "predicted ms", "error", "exposed ms", "predicted exposed ms"], rows, texts=4,
                 note="All machines are namespaces of this one and share its cores. Exposed: the step less that under no_sync.")


def summary_table(raw):
    links = sorted({run["mbit"] for run in raw["runs"]}, key=lambda mbit: -(mbit or 1e9))
    rows = []
    for library, backends in LIBRARIES.items():
        for mbit in links:
            runs = [run for run in raw["runs"] if run["backend"] in backends and run["mbit"] == mbit]
            if runs:
                worst = max(runs, key=lambda run: abs(error(run)))
                rows.append([library, link_text(mbit), str(len(runs)), f"{median_error(runs):.1f} %",
                             f"{error(worst):+.1f} %", f"{worst['model']}, {place_text(worst)}"])
    return Table("Errors of the predictions", ["exchange", "link", "cases", "median", "worst", "where"], rows, texts=2)


def plot(raw):
    series = []
    for library, backends in LIBRARIES.items():
        runs = sorted((run for run in raw["runs"] if run["backend"] in backends), key=lambda run: run["sync_ms"])
        series.append(Series(library, [run["sync_ms"] for run in runs], [run["predicted_ms"] for run in runs]))
    times = [run["sync_ms"] for run in raw["runs"]]
    if times:
        series.append(Series("exact", [min(times), max(times)], [min(times), max(times)]))
    return Plot("Predicted by measured step", "measured ms", "predicted ms", series, log_x=True, log_y=True)


def constants_note(constants):
    if not constants:
        return []
    values = ", ".join(f"{name} {numbers.text(value) if value >= 1e-2 else f'{value:.3g}'}"
                       for name, value in constants.items() if name != "source")
    return [f"Constants, {constants['source']}: {values}."]


def present(raw):
    ours = [run for run in raw["runs"] if run["backend"] in LIBRARIES[LOCKSTEP]]
    figure = Figure(f"{LOCKSTEP}, predicted step, median error", "%", median_error(ours), MOST_ERROR, at_most=True)
    return Findings(
        "Predictions",
        ["`lockstep plan` predicts the step with averaged gradients from that under no_sync. Each case was measured once: "
         f"the medians of {TURNS} steps of each kind, which alternate.",
         "The constants were fitted to `lockstep bench` in the same run. The rates of the links are limited in both "
         "directions (tbf)."],
        [summary_table(raw), cases_table(raw["runs"])], [plot(raw)], [figure], raw["notes"] + constants_note(raw["constants"]),
        raw["failures"])
