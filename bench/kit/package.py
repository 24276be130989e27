"""lockstep's Python package, which gives torch.distributed the backend "lockstep"."""
import os

from kit import ranks

LEFT_OUT = ("PyTorch + lockstep is left out: lockstep's Python package was not built for this interpreter "
            "(apt-get install python3-dev pybind11-dev python3-torch, then configure again)")


def find(build, python):
    """The folder of the package in a build directory, or None if it was not built for this interpreter. A package that
    was built but cannot be loaded is found, so that its failure is reported."""
    if not python:
        return None
    suffixes = ranks.run([python, "-c", "import importlib.machinery as m; print(*m.EXTENSION_SUFFIXES)"], 60).split()
    folder = os.path.join(build, "python")
    return folder if any(os.path.exists(os.path.join(folder, "lockstep", "_C" + end)) for end in suffixes) else None


def environment(folder):
    """Settings with which Python finds the package, and everything that it found before."""
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{before}" if before else folder}
