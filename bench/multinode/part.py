"""Two machines with two ranks each, made of network namespaces whose links have two rates: an all-reduce compared with
one flat Gloo ring, PyTorch and Open MPI, and the cost of averaging gradients in training.

The machines share this one's cores, so computing is slower than on real machines, and the links are as fast.
"""
import json
import os
import shutil
import subprocess
import tempfile

from collectives import part as collectives
from kit import netns, numbers, ranks
from kit.findings import Figure, Findings, Plot, Series, Table
from kit.progress import Progress
from training import part as training

NAME = "multinode"
HERE = os.path.dirname(os.path.abspath(__file__))
MACHINES, EACH = 2, 2
WORLD = MACHINES * EACH
LINKS = (1000, 100)  # Mbit/s
RUN_SECONDS = 600
KIB, MIB = 1 << 10, 1 << 20
LARGE = 25 * MIB
SIZES = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, LARGE)
HYBRID, GLOO, PYTORCH, MPI, HAN = "lockstep", "lockstep + flat Gloo", "PyTorch + Gloo", "Open MPI", "Open MPI with HAN"
BF16 = "lockstep, bf16 hook"
MODELS = {"mlp": 6, "gpt": 4}  # measured steps of each kind
# It does not find the interface by itself.
PYTORCHS_WAY = {"GLOO_SOCKET_IFNAME": netns.Machines.INTERFACE}
# Goals: of the link's bound; times flat Gloo; times Open MPI; bf16 on top; exposed part of the communication.
LEAST_SHARE, LEAST_SYNC, LEAST_MPI, LEAST_BF16, MOST_EXPOSED = 0.95, 1.4, 1.0, 1.8, 0.6


# ---- Measuring


def bound_us(size, mbit):
    """2 (H - 1) / H of the bytes cross each link, in each direction."""
    return 2 * (MACHINES - 1) / MACHINES * size * 8 / mbit


def tcp_mbit(places):
    """What TCP alone carries over the link, in both directions at once."""
    words = [os.path.join(HERE, "duplex.py"), places.address(0)]
    server = subprocess.Popen(places.inside(0) + ["/usr/bin/python3"] + words + ["listen"], stdout=subprocess.PIPE, text=True)
    try:
        ranks.run(places.inside(1) + ["/usr/bin/python3"] + words, RUN_SECONDS)
        return float(server.communicate(timeout=60)[0])
    finally:
        server.kill()
        server.wait()


def flags(settings):
    spent = ["--iterations", "1", "--warmup", "0"] if settings.quick else ["--seconds", "0.5", "--warmup", "2"]
    return ["--collective", "all_reduce", "--sizes", ",".join(map(str, SIZES))] + spent


def run_lockstep(settings, places):
    program = os.path.join(settings.build, "bin", "lockstep-torch")
    command = [program, "bench", "--backend", "hybrid,gloo", "--memory", "registered,plain", "--quiet", "--json", "-"]
    rows = ranks.run_ranks(command + flags(settings), WORLD, RUN_SECONDS, {"OMP_NUM_THREADS": 1}, machines=places)[0]["rows"]
    return [(HYBRID if row["backend"] == "hybrid" else GLOO, row) for row in rows if row["memory"] == "registered" or
            row["backend"] == "gloo"]


def run_pytorch(settings, places):
    command = [settings.python, os.path.join(collectives.HERE, "pytorch.py")] + flags(settings)
    found = ranks.run_ranks(command, WORLD, RUN_SECONDS, {"OMP_NUM_THREADS": 1, **PYTORCHS_WAY}, machines=places)
    return [(PYTORCH, row) for row in found[0]["rows"]]


def run_openmpi(settings, places, variant):
    """Its defaults, except that waiting ranks yield: here they have fewer cores than machines."""
    hosts = ",".join(f"{places.address(machine)}:{EACH}" for machine in range(MACHINES))
    words = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--timeout", str(RUN_SECONDS - 30),
             "-np", str(WORLD), "--host", hosts, "--mca", "plm_rsh_agent", os.path.join(HERE, "mpi_agent"),
             "--mca", "btl_tcp_if_include", places.SUBNET, "--mca", "oob_tcp_if_include", places.SUBNET,
             "--mca", "mpi_yield_when_idle", "1"] + (["--mca", "coll_han_priority", "100"] if variant == HAN else [])
    env = ranks.clean_environment(BENCH_MACHINES=" ".join(
        f"{places.address(machine)}={name}" for machine, name in enumerate(places.names)))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        program = os.path.join(settings.build, "bench", "collectives", "bench_openmpi")
        try:
            ranks.run(places.inside(0) + ["mpirun"] + words + [program] + flags(settings) + ["--json", path], RUN_SECONDS, env)
        finally:
            rows = []
            if os.path.exists(path) and os.path.getsize(path) > 0:
                with open(path, encoding="utf-8") as file:
                    rows = json.load(file)["rows"]
    return [(variant, row) for row in rows]


def train(settings, places, variant, model):
    """The medians of one run."""
    common = ["--model", model, "--kinds", "local,sync", "--loss-steps", "2", "--warmup", "1", "--turns",
              str(1 if settings.quick else MODELS[model]), "--set-to-none"]
    env = {"OMP_NUM_THREADS": 1, **ranks.HUGE_PAGES}
    if variant == PYTORCH:
        env |= PYTORCHS_WAY
        command = [settings.python, os.path.join(training.HERE, "pytorch.py"), "--tuned", "--bucket-view"]
    else:
        command = [os.path.join(settings.build, training.PROGRAM), "--backend", "gloo" if variant == GLOO else "hybrid",
                   "--hook", "bf16" if variant == BF16 else "none"]
    reports = ranks.run_ranks(command + common, WORLD, RUN_SECONDS, env, machines=places)
    found = {"variant": variant, "model": model, "local_ms": (times := training.summary(reports)["times_ms"])["local"],
             "sync_ms": times["sync"]}
    if variant != PYTORCH:
        found["exposed"] = numbers.median([report["exposed_s"] / report["communication_s"] for report in reports])
    return found


def last_line(failure):
    return next((line.strip() for line in reversed(str(failure).splitlines()) if line.strip(" -\n")), "")


def measure(settings):
    raw = {"rows": [], "steps": [], "links": [], "notes": [], "failures": []}
    if why := netns.why_not():
        raw["notes"].append(f"Left out: {why}")
        return raw
    programs = {HYBRID: run_lockstep}
    if settings.python:
        programs[PYTORCH] = run_pytorch
    if shutil.which("mpirun") and os.path.exists(os.path.join(settings.build, "bench", "collectives", "bench_openmpi")):
        for variant in (MPI, HAN):
            programs[variant] = lambda settings, places, variant=variant: run_openmpi(settings, places, variant)
    else:
        raw["notes"].append("Open MPI is left out: it is not installed (apt-get install openmpi-bin libopenmpi-dev).")
    trained = [HYBRID, GLOO, BF16] + ([PYTORCH] if settings.python else [])
    progress = Progress(NAME, len(LINKS) * settings.rounds * 2)
    for mbit in LINKS:
        with netns.machines(MACHINES, mbit) as places:
            for at_round in range(settings.rounds):
                progress.step(f"{mbit} Mbit/s, round {at_round + 1}, all-reduce")
                raw["links"].append({"mbit": mbit, "tcp_mbit": tcp_mbit(places)})
                for name, program in programs.items():
                    try:
                        for variant, row in program(settings, places):
                            if row["data"] != "ok":
                                raise ranks.Failure(f"data is {row['data']}: {row.get('wrong')}")
                            raw["rows"].append({"mbit": mbit, "variant": variant, "size": row["size"], "us": row["mean_us"]})
                    except (ranks.Failure, KeyError) as failure:
                        if name == HAN:  # Debian's 4.1.4 crashes
                            raw["notes"].append(f"{HAN} is left out at {mbit} Mbit/s: it failed ({last_line(failure)})")
                        else:
                            raw["failures"].append(f"{mbit} Mbit/s, {name}: {failure!r}")
                progress.step(f"{mbit} Mbit/s, round {at_round + 1}, training")
                for model in MODELS:
                    for variant in trained:
                        try:
                            raw["steps"].append({"mbit": mbit, **train(settings, places, variant, model)})
                        except ranks.Failure as failure:
                            raw["failures"].append(f"{mbit} Mbit/s, {model}, {variant}: {failure}")
    return raw


# ---- Presenting


class Measured:
    def __init__(self, raw):
        self.raw = raw

    def us(self, mbit, variant, size):
        found = [row["us"] for row in self.raw["rows"] if (row["mbit"], row["variant"], row["size"]) == (mbit, variant, size)]
        return numbers.median(found) if found else None

    def tcp_mbit(self, mbit):
        return numbers.median([link["tcp_mbit"] for link in self.raw["links"] if link["mbit"] == mbit])

    def step(self, mbit, variant, model, what):
        found = [what(step) for step in self.raw["steps"]
                 if (step["mbit"], step["variant"], step["model"]) == (mbit, variant, model)]
        return numbers.median(found) if found else None

    def sync_ms(self, mbit, variant, model):
        return self.step(mbit, variant, model, lambda step: step["sync_ms"] - step["local_ms"])

    def variants(self):
        return [variant for variant in (HYBRID, GLOO, PYTORCH, MPI, HAN)
                if any(row["variant"] == variant for row in self.raw["rows"])]


def ratio(slow, fast):
    return slow / fast if slow and fast else None


def shown(number, unit=""):
    return "-" if number is None else numbers.text(number) + unit


def all_reduce_table(measured, mbit):
    rows = []
    for size in SIZES:
        ours = measured.us(mbit, HYBRID, size)
        rows.append([numbers.bytes_text(size)] + [shown(measured.us(mbit, variant, size)) for variant in measured.variants()] +
                    [shown(ratio(measured.us(mbit, variant, size), ours), "x") for variant in measured.variants()[1:]] +
                    [shown(ratio(100 * bound_us(size, rate), ours), " %") for rate in (mbit, measured.tcp_mbit(mbit))])
    head = ["bytes"] + [f"{variant} µs" for variant in measured.variants()] + \
           [f"to {variant}" for variant in measured.variants()[1:]] + ["of the bound", "of TCP alone"]
    return Table(f"All-reduce, {mbit} Mbit/s", head, rows,
                 note="Mean times: the shaper lets a link that has idled send up to 128 KiB at once, so that one call may be faster "
                      "than the link. The bound: each link carries the bytes once in each direction, at its rate. TCP alone: at "
                      f"{numbers.text(measured.tcp_mbit(mbit))} Mbit/s, which one connection reaches in both directions at once.")


def training_table(measured, mbit):
    rows = []
    for model in MODELS:
        for variant in (HYBRID, GLOO, PYTORCH, BF16):
            local = measured.step(mbit, variant, model, lambda step: step["local_ms"])
            if local is None:
                continue
            sync = measured.sync_ms(mbit, variant, model)
            exposed = measured.step(mbit, variant, model, lambda step: 100 * step.get("exposed", 0)) if variant != PYTORCH else None
            rows.append([model, variant, shown(local), shown(local + sync), shown(sync),
                         shown(ratio(sync, measured.sync_ms(mbit, HYBRID, model)), "x"), shown(exposed, " %")])
    return Table(f"Training, {mbit} Mbit/s", ["model", "variant", "no_sync ms", "step ms", "averaging ms", "to lockstep",
                                              "exposed"], rows, texts=2,
                 note="Averaging: the step less that under no_sync. Exposed: the part of the communication that is not hidden "
                      "behind backward.")


def figures(measured):
    found = []
    for mbit in LINKS:
        large = measured.us(mbit, HYBRID, LARGE)
        found.append(Figure(f"all_reduce of 25 MiB, {mbit} Mbit/s", "of the bound",
                            ratio(bound_us(LARGE, mbit), large), LEAST_SHARE))
        found.append(Figure(f"averaging the MLP's gradients, {mbit} Mbit/s", "x flat Gloo",
                            ratio(measured.sync_ms(mbit, GLOO, "mlp"), measured.sync_ms(mbit, HYBRID, "mlp")), LEAST_SYNC))
        found.append(Figure(f"averaging the MLP's gradients with the bf16 hook, {mbit} Mbit/s", "x without",
                            ratio(measured.sync_ms(mbit, HYBRID, "mlp"), measured.sync_ms(mbit, BF16, "mlp")), LEAST_BF16))
        for variant in (MPI, HAN):
            factors = [ratio(measured.us(mbit, variant, size), measured.us(mbit, HYBRID, size)) for size in SIZES]
            if any(factors):
                found.append(Figure(f"all_reduce, the least of all sizes, {mbit} Mbit/s", f"x {variant}",
                                    min(factor for factor in factors if factor), LEAST_MPI))
    found.append(Figure(f"exposed communication of the GPT, {LINKS[0]} Mbit/s", "of the communication",
                        measured.step(LINKS[0], HYBRID, "gpt", lambda step: step["exposed"]), MOST_EXPOSED, at_most=True))
    return found


def plots(measured):
    for mbit in LINKS:
        series = []
        for variant in measured.variants():
            sizes = [size for size in SIZES if measured.us(mbit, variant, size)]
            series.append(Series(variant, sizes, [measured.us(mbit, variant, size) for size in sizes]))
        series.append(Series("the link alone", list(SIZES), [bound_us(size, mbit) for size in SIZES]))
        yield Plot(f"All-reduce, {mbit} Mbit/s", "bytes", "µs", series, log_x=True, log_y=True, bytes_x=True)


def present(raw):
    measured = Measured(raw)
    about = [f"{MACHINES} machines with {EACH} ranks each, simulated by network namespaces: their links are limited (tbf) to "
             "the given rates in each direction, and all share this machine's cores."]
    if not raw["rows"]:
        return Findings("Several machines", about, notes=raw["notes"], failures=raw["failures"])
    tables = [table(measured, mbit) for mbit in LINKS for table in (all_reduce_table, training_table)]
    return Findings("Several machines", about, tables, list(plots(measured)), figures(measured), raw["notes"], raw["failures"])
