"""get("ws"), get("rank"), get("grank"), get("lrank"): in a rank, and in the kernel, which is not a rank."""

import os

from .errors import NotebookError

_NAMES = ("ws", "rank", "grank", "lrank")


def _check(what):
    if what not in _NAMES:
        raise NotebookError(f'get({what!r}) is not defined', hint='use "ws", "rank", "grank" or "lrank"')


def of_rank(dist):
    """The `get` of a rank. It asks the default group each time, because a cell may create another one."""

    def get(what):
        """ws: number of ranks; rank, grank: the rank of this process; lrank: its rank on this machine."""
        _check(what)
        if what == "ws":
            return dist.get_world_size()
        return int(os.environ["LOCAL_RANK"]) if what == "lrank" else dist.get_rank()

    return get


def of_kernel(cluster):
    """The `get` of the kernel. cluster() returns the cluster with running ranks, or raises NotebookError."""

    def get(what):
        """ws: number of ranks. The kernel has no rank: get("rank") works in cells with %%rank."""
        _check(what)
        size = cluster().size
        if what == "ws":
            return size
        raise NotebookError(f'get("{what}") has no value here: this process is the kernel, not a rank',
                            hint="%%rank all runs a cell on the ranks; %pull 0:x copies a variable from one")

    return get
