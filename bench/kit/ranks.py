"""Starts the ranks of a program, waits for them with a deadline, and reads their output."""
import json
import os
import socket
import subprocess
import tempfile
import time

# Settings of ranks and threads by launchers and users. They are removed, because each measurement sets its own.
OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
          "MASTER_PORT", "TORCHELASTIC_", "LOCKSTEP_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "OMP_", "OPENBLAS_", "GOMP_",
          "GLIBC_TUNABLES", "MALLOC_")
# `lockstep run` sets this for its ranks; the rest of its tuning happens inside the process (docs/tuning.md).
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# In its own session, a rank is a separate job for the kernel. lockstep run and torchrun start ranks this way; mpirun
# and scripts do not, which BENCH_ONE_SESSION=1 measures.
OWN_SESSION = os.environ.get("BENCH_ONE_SESSION", "0") == "0"
SECONDS_TO_SPEAK = 10  # for the other ranks to report errors after one has failed


class Failure(Exception):
    """A program failed. The text contains its command and its output."""


def free_port():
    with socket.socket() as at:
        at.bind(("127.0.0.1", 0))
        return at.getsockname()[1]


def clean_environment(**more):
    env = {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}
    env.update({name: str(value) for name, value in more.items()})
    return env


def run(command, seconds, env=None):
    """Runs one program and returns its output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=env or clean_environment())
    except subprocess.TimeoutExpired as late:
        raise Failure(f"{' '.join(command)}: not done after {seconds} s") from late
    except OSError as error:
        raise Failure(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def place_of(rank, world, machines):
    """(words before the command, environment) of a rank. `machines`: kit/netns.py; None: this machine."""
    each = world // len(machines.names) if machines else world
    return (machines.inside(rank // each) if machines else [],
            {"LOCAL_RANK": rank % each, "LOCAL_WORLD_SIZE": each,
             "MASTER_ADDR": machines.address(0) if machines else "127.0.0.1"})


def run_ranks(command, world, seconds, env=None, cpus=None, machines=None):
    """Runs `command` as `world` ranks on this machine, or divided among machines; returns the JSON object that each
    printed, or None."""
    port = free_port()
    ranks, files = [], []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(world):
                files.append([open(os.path.join(folder, f"{stream}{rank}"), "w+", encoding="utf-8")
                              for stream in ("out", "err")])
                inside, place = place_of(rank, world, machines)
                about = clean_environment(RANK=rank, WORLD_SIZE=world, MASTER_PORT=port, **place, **(env or {}))
                ranks.append(subprocess.Popen(inside + command, stdout=files[-1][0], stderr=files[-1][1], env=about,
                                              start_new_session=OWN_SESSION,
                                              preexec_fn=(lambda: os.sched_setaffinity(0, cpus)) if cpus else None))
            why = wait_for(ranks, seconds)
        except OSError as error:
            raise Failure(f"{' '.join(command)}: {error}") from error
        finally:
            for process in ranks:
                process.kill()
                process.wait()
            texts = []
            for pair in files:
                for file in pair:
                    file.seek(0)
                texts.append([file.read() for file in pair])
                for file in pair:
                    file.close()
    if why:
        said = "".join(f"\n[rank {rank}] {text[1].strip()[-2000:]}" for rank, text in enumerate(texts) if text[1].strip())
        raise Failure(f"{' '.join(command)}: {why}{said}")
    return [json.loads(text[0]) if text[0].strip() else None for text in texts]


def wait_for(ranks, seconds):
    """Returns a description of the failure, or None."""
    end = time.monotonic() + seconds
    failed = None
    while any(process.poll() is None for process in ranks):
        codes = [process.poll() for process in ranks]
        if failed is None and any(codes):
            failed = next(f"exit status {code} of rank {rank}" for rank, code in enumerate(codes) if code)
            end = min(end, time.monotonic() + SECONDS_TO_SPEAK)
        if time.monotonic() > end:
            return failed or f"not done after {seconds} s"
        time.sleep(0.05)  # leaves the cores to the ranks
    return failed or next((f"exit status {process.returncode} of rank {rank}"
                           for rank, process in enumerate(ranks) if process.returncode), None)
