"""The process of a rank: executes what the kernel asks for, until the kernel says "exit" or ends.

    python -m lockstep.notebook.worker SOCKET SETTINGS      (started by `lockstep run`)
"""

import contextlib
import ctypes
import datetime
import json
import os
import pickle
import select
import signal
import socket
import sys
import threading
import types

from . import cell, messages, properties
from .admission import process_behind
from .errors import NotebookError

_LIBC = ctypes.CDLL(None)
_LINE_BUFFERED = 1  # _IOLBF


class Worker:
    def __init__(self, name):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect("\0" + name)
        if process_behind(self._socket)[1] != os.getuid():
            sys.exit("the notebook's socket belongs to another user")
        self._reader = messages.Reader()
        self._reader.trusted = True
        self._request = None  # the number of the request that this rank is working on
        # A module of its own: pickle looks for the classes of cells in __main__.
        self._main = types.ModuleType("__main__")
        self._program = sys.modules["__main__"]  # keeps this module alive
        sys.modules["__main__"] = self._main
        signal.signal(signal.SIGINT, self._on_interrupt)

    def connect_output(self, token):
        """Replaces stdout and stderr by a pipe to the kernel, at the level of descriptors: it also carries
        the output of C++ code, and the last words of a process that crashes. One pipe keeps their order."""
        reading, writing = os.pipe()
        [hello] = messages.encode({"token": token, "rank": int(os.environ["RANK"])})
        socket.send_fds(self._socket, [hello], [reading])
        os.close(reading)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(writing, stream.fileno())
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True,
                               write_through=True)
        os.close(writing)
        # C's stdout would collect its output in blocks, because a pipe is no terminal.
        _LIBC.setvbuf(ctypes.c_void_p.in_dll(_LIBC, "stdout"), None, _LINE_BUFFERED, 0)

    def exit_with_kernel(self):
        """Ends this process when the kernel has ended, whatever the main thread is doing."""

        def watch():
            poll = select.poll()
            poll.register(self._socket, select.POLLRDHUP)
            poll.poll()
            os._exit(1)  # not 0: the launcher then also ends ranks that are stuck

        threading.Thread(target=watch, daemon=True).start()

    def announce_exit(self):
        """Makes os._exit tell the kernel: the launcher does not report a rank that exits with status 0."""
        exit_now, rank = os._exit, os.getpid()

        def announced(status):
            if os.getpid() == rank:  # not a child, which has inherited the socket
                [frame] = messages.encode({"kind": "exits", "status": status})
                with contextlib.suppress(OSError):
                    self._socket.send(frame, socket.MSG_DONTWAIT)
            exit_now(status)

        os._exit = announced

    def serve(self, settings):
        self._answer(messages.START, lambda: self._start(settings))
        while True:
            header, payload = self._next()
            kind, number = header["kind"], header["id"]
            if kind == "exit":
                return
            if kind == "run":
                self._answer(number, lambda: cell.run(header["source"], header["name"], self._main.__dict__))
            elif kind == "push":
                self._answer(number, lambda: self._push(pickle.loads(payload)))
            elif kind == "pull":
                self._answer(number, lambda: self._pull(header["name"]))

    def _next(self):
        while (frame := self._reader.next()) is None:
            data = self._socket.recv(1 << 20)
            if not data:
                os._exit(1)
            self._reader.feed(data)
        return frame

    def _answer(self, number, work):
        """Does the work, and sends its result or its exception. An interrupt counts only meanwhile."""
        facts, payload, error = {}, b"", None
        try:
            try:
                self._request = number
                facts, payload = work() or (facts, payload)
            finally:
                self._request = None
        except BaseException as caught:  # also SystemExit: a cell does not end the rank
            self._request = None  # the interrupt may have come in the line before
            error = cell.describe(caught)
        _flush()
        self._send({**facts, "kind": "done", "id": number, "error": error}, payload)

    def _send(self, header, payload=b""):
        for part in messages.encode(header, payload):
            self._socket.sendall(part)

    def _on_interrupt(self, *_):
        # A signal that arrives before the request or after it is ignored. The kernel repeats it until a rank
        # confirms it.
        if self._request is not None:
            self._send({"kind": "interrupted", "id": self._request})
            raise KeyboardInterrupt

    def _push(self, pickles):
        self._main.__dict__.update({name: _load(name, value) for name, value in pickles.items()})

    def _pull(self, name):
        if name not in self._main.__dict__:
            raise NotebookError("there is no such variable")
        value = self._main.__dict__[name]
        try:
            return {}, pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise NotebookError(f"its type, {type(value).__name__}, cannot be pickled: {error}",
                                hint="pull the data it is made from: tensors, a state_dict()") from None

    def _start(self, settings):
        import torch
        import torch.distributed as dist

        rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
        device = torch.device("cpu")
        variables = {}
        if settings["gpu_ids"] is not None:
            variables["gpu_id"] = settings["gpu_ids"][local_rank]
            device = torch.device("cuda", variables["gpu_id"])
            torch.cuda.set_device(device)
        known = hasattr(dist.Backend, "LOCKSTEP")  # importing lockstep has registered it
        backend = settings["backend"] or ("lockstep" if known else "gloo")
        if backend == "lockstep" and not known:
            raise NotebookError("torch.distributed has no backend lockstep: this installation of the Python "
                                "package lockstep does not contain it", hint="use --backend gloo")
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=settings["timeout"]))
        variables.update(rank=rank, world_size=dist.get_world_size(), local_rank=local_rank, device=device,
                         dist=dist, torch=torch, get=properties.of_rank(dist))
        self._main.__dict__.update(variables)
        return {"backend": backend, "device": str(device)}, b""


def _load(name, pickled):
    try:
        return pickle.loads(pickled)
    except Exception as error:
        raise NotebookError(f"{name} cannot be loaded: {error}",
                            hint="run the cell that defines its class on the ranks, too") from None


def _flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # a cell has replaced or closed it
    _LIBC.fflush(None)


def main():
    name, settings = sys.argv[1], json.loads(sys.argv[2])
    token = os.environ.pop(messages.TOKEN_VARIABLE)
    # A note tells the launcher why a process ended. In a notebook, an error ends only a cell, and an old
    # note must not become the reason for a later end.
    os.environ.pop("LOCKSTEP_NOTE_FD", None)
    sys.argv = [""]
    worker = Worker(name)
    worker.connect_output(token)
    worker.exit_with_kernel()
    worker.announce_exit()
    worker.serve(settings)
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
