"""What the tests of the Python package share: where it is, a real kernel, processes that can all be found."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The package of a build contains the compiled module; the one among the sources does not.
PACKAGES = next((os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep)
                 if folder and os.path.isdir(os.path.join(folder, "lockstep"))), os.path.join(ROOT, "python"))
SKIPPED = 77
_MARK = "LOCKSTEP_TEST_MARK"
# Long enough for a machine whose cores are all busy with something else; it ends what hangs.
PATIENCE_SECONDS = 240

sys.path.insert(0, PACKAGES)
os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # else ipykernel's debugger warns


def missing():
    """Why tests with ranks in a notebook cannot run here; empty if they can."""
    return _missing_modules("IPython", "ipykernel", "jupyter_client", "nbclient", "nbformat") or missing_ranks()


def missing_backend():
    """Why tests of the backend cannot run here; empty if they can. The compiled module is never missing: CMake adds
    these tests only where it is built."""
    reason = missing_ranks()
    if not reason:
        import lockstep._C  # noqa: F401
    return reason


def missing_ranks():
    """Why tests with ranks cannot run here; empty if they can."""
    if reason := _missing_modules("torch"):
        return reason
    import torch.distributed

    if not torch.distributed.is_available():
        return "torch has no torch.distributed"
    if not launcher():
        return "the lockstep command is missing: set LOCKSTEP_BIN"
    return ""


def _missing_modules(*names):
    """A module that is there but cannot be loaded is an error, not a reason to skip."""
    for name in names:
        try:
            __import__(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            return f"{name} is missing"
    return ""


def launcher():
    return os.environ.get("LOCKSTEP_BIN") or shutil.which("lockstep")


def marked(mark):
    """The pids of all processes of a test, without zombies."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if f"{_MARK}={mark}".encode() in file.read().split(b"\0") and not _is_zombie(pid):
                found.append(int(pid))
    return found


def _is_zombie(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def native_stacks(mark):
    """Where the threads of all processes of a test are, if gdb is there to ask."""
    gdb = shutil.which("gdb")
    return "\n".join(f"process {pid}:\n{_native_stacks(gdb, pid)}" for pid in marked(mark)) if gdb else ""


def _native_stacks(gdb, pid):
    shown = subprocess.run([gdb, "-p", str(pid), "-batch", "-ex", "thread apply all -q -s bt 20"], text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=False)
    return "".join(line for line in shown.stdout.splitlines(True) if line.startswith(("Thread", "#")))


def wait_until(condition, what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {PATIENCE_SECONDS} s")
        time.sleep(0.05)


class Marked:
    """A temporary folder, and an environment for the processes of a test."""

    def __init__(self):
        self.mark = uuid.uuid4().hex
        self.folder = tempfile.mkdtemp(prefix="lockstep-test-")
        self.environment = {
            **os.environ, _MARK: self.mark, "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONFAULTHANDLER": "1",  # SIGABRT shows what each thread is doing
            "PYTHONPATH": os.pathsep.join(filter(None, [PACKAGES, os.environ.get("PYTHONPATH")])),
            "IPYTHONDIR": self.folder, "JUPYTER_RUNTIME_DIR": self.folder, "JUPYTER_CONFIG_DIR": self.folder,
            "NO_COLOR": "1",
        }

    def close(self):
        """Checks that no process remains, and ends those that do."""
        try:
            wait_until(lambda: not marked(self.mark), "processes remain")
        finally:
            for pid in marked(self.mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(self.folder, ignore_errors=True)


class Output:
    """What one cell printed and returned."""

    def __init__(self):
        self.stdout = self.stderr = self.value = ""
        self.error = None  # (name, message)
        self.complete = False

    def __repr__(self):
        return f"stdout:\n{self.stdout}\nstderr:\n{self.stderr}\nvalue: {self.value}\nerror: {self.error}"


class Kernel:
    """A Jupyter kernel in a process of its own."""

    def __init__(self):
        from jupyter_client.manager import start_new_kernel

        self.place = Marked()
        self.manager, self.client = start_new_kernel(kernel_name="python3", env=self.place.environment,
                                                     cwd=self.place.folder, startup_timeout=PATIENCE_SECONDS)
        self.run("%load_ext lockstep")

    @property
    def pid(self):
        return self.manager.provisioner.process.pid

    def send(self, code):
        """Starts a cell. Returns a function that takes its output, until the cell ends."""
        # Otherwise an error makes the kernel drop cells that arrive within the next moment.
        request = self.client.execute(code, stop_on_error=False)
        output = Output()

        def receive(until=lambda output: False):
            """Until the cell has ended, or the condition holds."""
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not output.complete and not until(output):
                message = self.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
                if message["parent_header"].get("msg_id") != request:
                    continue
                content, kind = message["content"], message["msg_type"]
                if kind == "stream" and content["name"] == "stdout":
                    output.stdout += content["text"]
                elif kind == "stream":
                    output.stderr += content["text"]
                elif kind == "execute_result":
                    output.value = content["data"]["text/plain"]
                elif kind == "error":
                    output.error = (content["ename"], content["evalue"])
                elif kind == "status":
                    output.complete = content["execution_state"] == "idle"
            return output

        return receive

    def run(self, code):
        return self.send(code)()

    def interrupt(self):
        self.manager.interrupt_kernel()

    def ranks(self):
        """The pids of the ranks, by rank, as %dist_status shows them."""
        lines = [line.split() for line in self.run("%dist_status").stdout.splitlines()]
        return [int(words[3].rstrip(",")) for words in lines if words[:1] == ["rank"]]

    def close(self):
        try:
            self.client.stop_channels()
            if self.manager.is_alive():
                self.manager.shutdown_kernel(now=False)
            self.manager.cleanup_resources()
        finally:
            self.place.close()


def main():
    """Runs the tests of the calling script. Status 77 says that none of them could run here."""
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    if not result.wasSuccessful():
        sys.exit(1)
    if result.testsRun == 0:
        sys.exit("no test was found")
    sys.exit(SKIPPED if len(result.skipped) == result.testsRun else 0)
