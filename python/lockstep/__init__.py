"""lockstep from Python.

`import lockstep` registers the backend "lockstep" with torch.distributed. `%load_ext lockstep` adds the magics of
lockstep.notebook to IPython and Jupyter.
"""

import os

__version__ = "0.1.0"  # the version of the CMake project

# PyTorch 2 asks for a store that uses libuv, which Debian's builds do not have. The store without it is in every build.
os.environ.setdefault("USE_LIBUV", "0")

try:
    from . import backend
except ModuleNotFoundError as error:
    # The notebook also works without the compiled module, and then with torch's own backends.
    if error.name not in ("torch", "lockstep._C"):
        raise
else:
    from ._C import Error, MismatchError, PeerLostError, SystemError, TimeoutError, UsageError  # noqa: A004

    def _reduce(error):
        """For pickle: an error of a backward pass has a class of its own (src/python/module.cc)."""
        public = getattr(type(error), "_public", type(error))
        return public, error.args, {**error.__dict__, "culprits": error.culprits}

    Error.__reduce__ = _reduce
    Options = backend.Options
    backend.register()


def load_ipython_extension(shell):
    from .notebook import magics  # only a notebook needs IPython

    magics.load(shell)


def unload_ipython_extension(shell):
    from .notebook import magics

    magics.unload(shell)
