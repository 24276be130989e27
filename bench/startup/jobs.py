"""A job: processes started together, the events that its ranks record, and the times at which they exit.

All times are nanoseconds of CLOCK_MONOTONIC, the clock of the events. `with Job(...)` never leaves a process of the
job running.
"""
import contextlib
import glob
import json
import os
import select
import signal
import subprocess
import time

from kit.ranks import Failure

SECONDS_TO_END = 5  # between SIGTERM and SIGKILL, when a job is stopped
LOOK_EVERY = 0.02  # seconds between reads of the events; leaves the cores to the ranks


class Job:
    """`commands` contains (command, environment) of each process to start: one launcher, or the ranks themselves.
    Ranks record their events in `folder`, which must be new. `seconds` is the time limit of the whole job."""

    def __init__(self, commands, folder, seconds):
        self.folder, self.seconds, self.deadline = folder, seconds, time.monotonic() + seconds
        self.name = " ".join(commands[0][0])
        self.events, self._read = [], {}  # _read: the number of bytes read from each file
        self.processes = []
        self.launch_ns = time.monotonic_ns()
        try:
            for number, (command, env) in enumerate(commands):
                with open(os.path.join(folder, f"output_{number}"), "w", encoding="utf-8") as output:
                    # Its own session identifies all processes of the job. TMPDIR: torchrun leaves folders behind.
                    self.processes.append(subprocess.Popen(
                        command, env={**env, "TMPDIR": folder}, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                        start_new_session=True))
        except OSError as error:
            self.stop()
            raise self.failure(str(error)) from error
        except BaseException:
            self.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def output(self):
        texts = []
        for path in sorted(glob.glob(os.path.join(self.folder, "output_*"))):
            with open(path, encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
        return "".join(texts)

    def failure(self, why):
        return Failure(f"{self.name}: {why}\n{self.output().strip()[-2000:]}".strip())

    def look(self):
        """Reads the events recorded since the last call, and returns all events."""
        for path in sorted(glob.glob(os.path.join(self.folder, "rank_*.jsonl"))):
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                whole, _, _ = file.read().rpartition(b"\n")  # the last line may be incomplete
            if whole:
                self._read[path] = self._read.get(path, 0) + len(whole) + 1
                self.events += [json.loads(line) for line in whole.split(b"\n")]
        return self.events

    def wait_for(self, what, true_of):
        """Waits until `true_of` is true of the events."""
        while not true_of(self.look()):
            if time.monotonic() > self.deadline:
                raise self.failure(f"not {what} after {self.seconds} s")
            if any(process.poll() is not None for process in self.processes):
                raise self.failure(f"ended before it was {what}")
            time.sleep(LOOK_EVERY)

    def ends(self, pids):
        """Waits until the job's processes, and `pids` of those that they have started, exit. Returns the times by
        pid."""
        ended, watched, poll = {}, {}, select.poll()
        with contextlib.ExitStack() as stack:
            for pid in {*pids, *(process.pid for process in self.processes)}:
                try:
                    file = os.pidfd_open(pid)
                except ProcessLookupError:
                    ended[pid] = time.monotonic_ns()
                    continue
                stack.callback(os.close, file)
                watched[file] = pid
                poll.register(file, select.POLLIN)
            while watched:
                left = self.deadline - time.monotonic()
                ready = poll.poll(1000 * left) if left > 0 else []
                now = time.monotonic_ns()
                if not ready:
                    raise self.failure(f"not ended after {self.seconds} s")
                for file, _ in ready:
                    poll.unregister(file)
                    ended[watched.pop(file)] = now
        for process in self.processes:
            process.wait()
        return ended

    def stop(self):
        """Stops the remaining processes of the job."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + SECONDS_TO_END
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0, end - time.monotonic()))
        for pid in processes_of_sessions({process.pid for process in self.processes}):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()


def processes_of_sessions(sessions):
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError):
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            if int(text.rpartition(")")[2].split()[6 - 3]) in sessions:
                found.append(int(path.split("/")[2]))
    return found
