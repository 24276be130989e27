"""`lockstep run` as a child process of the kernel: its start, its end, its report of a rank that failed."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from .errors import StartError

# Between SIGTERM and SIGKILL for the ranks. The processes of a notebook have nothing to save.
GRACE_SECONDS = 3
_MOST_TEXT = 64 << 10
_STOP_SECONDS = GRACE_SECONDS + 4


def find_binary():
    """LOCKSTEP_BIN, or bin/lockstep in this package, or lockstep in PATH."""
    chosen = os.environ.get("LOCKSTEP_BIN")
    if chosen:
        if not os.access(chosen, os.X_OK) or os.path.isdir(chosen):
            raise StartError(f"LOCKSTEP_BIN names {chosen}, which is not an executable",
                             hint="set it to the path of the lockstep command")
        return os.path.abspath(chosen)
    beside = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin", "lockstep")
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("lockstep")
    if not found:
        raise StartError("the lockstep command, which starts the ranks, was not found",
                         hint="install lockstep, or set LOCKSTEP_BIN to the path of the command")
    return os.path.abspath(found)


def _environment(variables):
    # PET_ variables preset flags of `lockstep run` (PET_NNODES=2 would make it wait for another machine).
    result = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    result["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return {**result, **variables}


class Launcher:
    def __init__(self, nproc, program, variables):
        command = [find_binary(), "run", "--nproc-per-node", str(nproc),
                   "--grace-period", str(GRACE_SECONDS), "--", *program]
        if threading.current_thread() is threading.main_thread():
            bound = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bound.py")
            command = [sys.executable, "-I", "-S", bound, str(os.getpid()), *command]
        # A session of its own: Jupyter and terminals send SIGINT to the kernel's whole process group, and
        # interrupting a cell must not end the job.
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         stderr=subprocess.STDOUT, env=_environment(variables),
                                         start_new_session=True)
        os.set_blocking(self._process.stdout.fileno(), False)
        self._text = b""
        self._open = True

    @property
    def pid(self):
        return self._process.pid

    @property
    def text(self):
        """What it has printed so far."""
        return self._text.decode("utf-8", "replace")

    def fileno(self):
        """The descriptor of its output, or None at its end."""
        return self._process.stdout.fileno() if self._open else None

    def read(self):
        """Reads what it has printed, without blocking. Keeps the beginning, which contains the report."""
        while self._open:
            try:
                data = os.read(self._process.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                return
            self._open = bool(data)
            self._text = (self._text + data)[:_MOST_TEXT]

    def ended(self):
        return self._process.poll() is not None

    def wait(self, seconds):
        """Returns whether it has ended within this time, with all of its output read."""
        deadline = time.monotonic() + seconds
        # Not on its output: a process that a rank has left behind may hold the pipe.
        while not self.ended() and time.monotonic() < deadline:
            self.read()
            time.sleep(0.01)
        self.read()
        return self.ended()

    def stop(self):
        """Ends the launcher and all ranks, and waits for it."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.ended():
                break
            self._process.send_signal(number)
            self.wait(_STOP_SECONDS)
        self.read()

    def close(self):
        self._process.stdout.close()
        self._open = False

    def report(self):
        """(what, hint): its words about the rank that failed first, each empty if there are none."""
        lines = self.text.splitlines()
        begin = next((i for i, line in enumerate(lines) if re.match(r"lockstep run: rank \d+ ", line)), None)
        if begin is None:
            return self._own_end(lines), ""
        what = lines[begin].removeprefix("lockstep run: ")
        pid = re.search(r", pid (\d+)$", "\n".join(lines[begin + 1:]), re.MULTILINE)
        # The ranks write to the notebook, so a hint about their output in the launcher does not apply.
        hint = next((line.removeprefix("hint: ") for line in lines[begin:]
                     if line.startswith("hint: ") and "--log-dir" not in line), "")
        return what + (f" (pid {pid[1]})" if pid else ""), hint

    def _own_end(self, lines):
        said = next((line for line in lines if line.startswith("lockstep run: ")), "")
        status = self._process.poll()
        if said or status is None or status >= 0:
            return said
        return f"lockstep run (pid {self.pid}) was killed by signal {-status}, and the ranks with it"
