"""Makes a wheel of what CMake builds: build/release, as `make build` and `make test` leave it, or a new build there.

LOCKSTEP_BUILD names another build directory. Its package is taken as it is, and nothing is compiled.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

ROOT = os.path.dirname(os.path.abspath(__file__))
GIVEN = os.environ.get("LOCKSTEP_BUILD")
BUILD = os.path.abspath(GIVEN) if GIVEN else os.path.join(ROOT, "build", "release")
SCRATCH = os.path.join(BUILD, "wheel")  # what setuptools writes, which else goes into the source tree


def fail(what, hint):
    # Not an exception: pip would print a page of setuptools' frames before it.
    sys.exit(f"lockstep: {what}\nhint: {hint}")


def version():
    with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
        return re.search(r"project\(lockstep VERSION (\S+)", file.read())[1]


def cmake(*arguments):
    status = subprocess.call(["cmake", *arguments], cwd=ROOT)
    if status:
        fail(f"cmake {' '.join(arguments)} failed with status {status}",
             "see its output above; on Debian, scripts/setup build python installs what the build needs")


def configure_and_build():
    # Also in a build directory that exists: what the package needs may have been installed since.
    cmake(*([BUILD] if os.path.exists(os.path.join(BUILD, "CMakeCache.txt")) else ["--preset", "release"]))
    check()
    cmake("--build", BUILD, "--target", "lockstep_python_package",
          "--parallel", str(len(os.sched_getaffinity(0))))


def check():
    if subprocess.call([os.path.join(ROOT, "scripts", "python-package"), "check", BUILD]):
        sys.exit(1)


class Build(build_ext):
    def run(self):
        if self.inplace or getattr(self, "editable_mode", False):
            fail("editable installs are not supported",
                 "export PYTHONPATH=build/release/python: this folder contains links to the sources")
        if not shutil.which("cmake"):
            fail("cmake is missing", "on Debian: scripts/setup build python")
        if GIVEN:
            check()
        else:
            configure_and_build()
        shutil.rmtree(os.path.join(self.build_lib, "lockstep"), ignore_errors=True)  # files of an earlier version
        cmake("--install", BUILD, "--component", "python", "--strip", "--prefix", os.path.abspath(self.build_lib))
        package = os.path.join(self.build_lib, "lockstep")
        module = os.path.join(package, "_C" + sysconfig.get_config_var("EXT_SUFFIX"))
        if not os.path.exists(module):
            fail(f"{BUILD} contains the package of another Python than {sys.executable}, which needs "
                 f"{os.path.basename(module)}",
                 "use the Python that CMake has found, or configure a build directory with "
                 f"-DPython3_EXECUTABLE={sys.executable} and name it in LOCKSTEP_BUILD")
        # A wheel has no links and would contain the library twice.
        for path in (os.path.join(package, name) for name in os.listdir(package)):
            if os.path.islink(path):
                os.replace(os.path.realpath(path), path)


class NoSourceArchive(sdist):
    def run(self):
        fail("there is no source archive of the Python package: it is built from the whole repository",
             "clone the repository, or make a wheel: pip wheel --no-build-isolation .")


if os.path.isdir(BUILD) or not GIVEN:
    os.makedirs(SCRATCH, exist_ok=True)
else:
    fail(f"LOCKSTEP_BUILD names {GIVEN}, which is not a directory", "set it to a CMake build directory, or unset it")
setup(
    version=version(),
    packages=[],  # the CMake component python contains all files
    ext_modules=[Extension("lockstep._C", [])],  # tells setuptools that a wheel belongs to one Python
    scripts=["python/bin/lockstep"],
    cmdclass={"build_ext": Build, "sdist": NoSourceArchive},
    options={"build": {"build_base": SCRATCH}, "bdist_wheel": {"bdist_dir": os.path.join(SCRATCH, "wheel")},
             "egg_info": {"egg_base": SCRATCH}},
    zip_safe=False,
)
