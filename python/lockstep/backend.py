"""Registers the c10d backend "lockstep" with torch.distributed."""

import atexit
import functools

import torch
import torch.distributed as dist  # before _C, which uses its types

import lockstep._C as _C  # not "from . import _C": its error would not say which module is missing

NAME = "lockstep"


class Options:
    """For the `pg_options` of init_process_group and new_group.

    backend: "auto" (shared memory if all ranks are on one machine, otherwise "hybrid"), "shm", "hybrid" (shared memory
    inside the machines, the network between them) or "gloo". The environment variable LOCKSTEP_BACKEND sets it for
    "auto".
    """

    def __init__(self, backend="auto"):
        if backend not in ("auto", "shm", "hybrid", "gloo"):
            raise _C.UsageError(f'lockstep.Options has no backend "{backend}"\n'
                                'hint: use "auto", "shm", "hybrid" or "gloo"')
        self.backend = backend

    def __repr__(self):
        return f"lockstep.Options(backend={self.backend!r})"


def _create(settings, options):
    if options is None:
        options = Options()
    if not isinstance(options, Options):
        raise _C.UsageError(f"pg_options of the backend lockstep must be lockstep.Options, but they are "
                            f"{type(options).__name__}\nhint: pass lockstep.Options(), or nothing")
    # PyTorch 2.13 and later: init_process_group(enable_reconfigure=True).
    later = getattr(settings, "enable_reconfigure", False)
    make = _C.make_unconnected_backend if later else _C.make_backend
    return make(options.backend, settings.store, settings.group_rank, settings.group_size, settings.timeout)


def _is_ours(group):
    return dist.get_backend(group) == NAME


def _accept_monitored_barrier():
    """torch.distributed.monitored_barrier asks for Gloo by name, although the call belongs to all process groups."""
    original = dist.monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(group=dist.GroupMember.WORLD, timeout=None, wait_all_ranks=False):
        if dist.distributed_c10d._rank_not_in_group(group) or not _is_ours(group):
            return original(group, timeout, wait_all_ranks)
        group = group or dist.distributed_c10d._get_default_group()
        timeout = timeout or dist.distributed_c10d.default_pg_timeout
        return group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = monitored_barrier


def register():
    if hasattr(dist.Backend, NAME.upper()):
        return
    # PyTorch 2 asks which devices a backend is for.
    devices = {"devices": ["cpu"]} if int(torch.__version__.split(".")[0]) >= 2 else {}
    dist.Backend.register_backend(NAME, _create, extended_api=True, **devices)
    _accept_monitored_barrier()
    # A callback of a future that completes while the interpreter ends would crash the process.
    atexit.register(_C.stop_callbacks)
