"""The ranks of a job, as the kernel sees them. Not thread-safe: one cell at a time uses them."""

import itertools
import json
import os
import secrets
import select
import socket
import sys
import time

from . import messages
from . import ranks as rank_lists
from .admission import admit
from .call import STUCK_HINT, Call, interrupts
from .errors import NotebookError, RanksEnded, StartError
from .launcher import Launcher
from .view import Silent

_EXIT_SECONDS = 5
# The launcher reports a failure at once; a busy machine may delay it.
_REPORT_SECONDS = 10


class Cluster:
    """Starts `size` ranks and waits until they have formed a group. backend: None lets the ranks choose."""

    def __init__(self, size, view, backend=None, timeout=300.0, gpu_ids=None):
        self.size = size
        self.timeout = timeout
        self.peers = []
        self.end = ""  # how the ranks ended; empty while they run
        self._numbers = itertools.count(messages.START + 1)
        self._owner = os.getpid()
        self._in_use = False
        self._launcher = None
        settings = {"backend": backend, "timeout": timeout, "gpu_ids": gpu_ids}
        try:
            self._start(settings, view)
        except BaseException:
            self.close(Silent(), hurry=True)
            raise

    # -- requests ------------------------------------------------------------------------------------------

    def request(self, ranks, header, view, payload=b""):
        """Sends a request to these ranks. Returns (replies, errors): (header, payload) and error by rank."""
        with interrupts() as interrupt:
            self.check(view)
            if self._in_use:
                raise NotebookError("another cell is running on the ranks", hint="wait until it has ended")
            self._in_use = True
            try:
                peers = [self.peers[rank] for rank in ranks]
                self._check_idle(peers)
                number = next(self._numbers)
                for peer in peers:
                    peer.start(number, header, payload)
                errors = Call(self, peers, view, show_errors=header["kind"] == "run").wait(interrupt)
                return {peer.rank: peer.reply for peer in peers}, errors
            finally:
                self._in_use = False

    def _check_idle(self, peers):
        busy = [peer.rank for peer in peers if peer.request is not None]
        if busy:
            raise NotebookError(f"rank {rank_lists.describe(busy)} is still running an interrupted cell",
                                hint=STUCK_HINT)

    def check(self, view):
        """Raises RanksEnded if the ranks have ended, also since the last request."""
        if not self.end:
            self.step(view, 0)
            view.finish()  # what they have written since the last request
        if not self.end and any(peer.ended for peer in self.peers):
            raise self.lose(view, [])
        if self.end:
            raise RanksEnded(f"the ranks have ended: {self.end}", hint="%dist_init starts new ones")

    def step(self, view, seconds, interrupt=None):
        """Waits until something happens and handles it. Returns whether `interrupt` became readable."""
        poll = select.poll()
        for peer in self.peers:
            for fd, events in peer.interests():
                poll.register(fd, events)
        if interrupt is not None:
            poll.register(interrupt, select.POLLIN)
        if self._launcher.fileno() is not None:
            poll.register(self._launcher.fileno(), select.POLLIN)
        ready = [fd for fd, _ in poll.poll(seconds * 1000)]
        self._launcher.read()
        for peer in self.peers:
            peer.step(view)
        return interrupt is not None and interrupt in ready

    # -- the end -------------------------------------------------------------------------------------------

    def lose(self, view, running):
        """A rank has ended without being asked to. Ends the others. Returns the error to raise."""
        gone = [peer for peer in self.peers if peer.ended]
        reported = self._wait_for_report(gone)
        self._end_processes(view, patient=reported)  # the report is complete after it
        what, hint = self._launcher.report() if reported else _own_report(gone)
        others = set(running) - {peer.rank for peer in gone}
        self.end = what
        self._release()
        text = what
        if others:
            text += f"; the cell on rank {rank_lists.describe(others)} was stopped because of it"
        text += f"\nhint: {hint}" if hint else ""
        return RanksEnded(text, hint="%dist_init starts new ranks, without the variables of these")

    def _wait_for_report(self, gone):
        """Whether the launcher has said how a rank ended. It does not report status 0."""
        deadline = time.monotonic() + _REPORT_SECONDS
        while not self._launcher.report()[0] and time.monotonic() < deadline:
            if _left(gone) or self._launcher.wait(0.05):
                break
        return bool(self._launcher.report()[0])

    def close(self, view, hurry=False):
        """Ends the ranks and waits for their end. `hurry`: without letting them leave the group."""
        if self._launcher is None or self.end or os.getpid() != self._owner:
            return  # in a forked child of the kernel, the ranks belong to the parent
        polite = not hurry and all(peer.request is None for peer in self.peers)
        if polite:
            for peer in self.peers:
                peer.start(next(self._numbers), {"kind": "exit"})
        self._end_processes(view, patient=polite)
        self.end = "%dist_close ended them"
        self._release()

    def _end_processes(self, view, patient):
        deadline = time.monotonic() + _EXIT_SECONDS
        while patient and not self._launcher.ended() and time.monotonic() < deadline:
            self.step(view, 0.05)
        self._launcher.stop()
        for peer in self.peers:
            peer.wait_for_end(1)
            peer.step(view)
        view.finish()

    def _release(self):
        for peer in self.peers:
            peer.close()
        self._launcher.close()

    # -- the beginning -------------------------------------------------------------------------------------

    def _start(self, settings, view):
        token = secrets.token_hex(32)
        name = f"lockstep-notebook-{secrets.token_hex(8)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            # An abstract address: there is no file that a killed kernel could leave behind.
            listener.bind("\0" + name)
            listener.listen(self.size)
            program = [sys.executable, "-m", "lockstep.notebook.worker", name, json.dumps(settings)]
            self._launcher = Launcher(self.size, program, {messages.TOKEN_VARIABLE: token})
            self._admit_all(listener, token)
        try:
            with interrupts() as interrupt:
                call = Call(self, self.peers, view, first_error=True, seconds=self.timeout)
                errors = call.wait(interrupt)
        except TimeoutError as late:
            raise StartError(f"rank {late} did not start within {self.timeout:g} s",
                             hint="--timeout S waits longer") from None
        except RanksEnded as ended:
            raise StartError(f"the ranks could not start: {ended}") from None
        if errors:
            first = min(errors)
            raise StartError(f"rank {first} could not start: {errors[first]['summary']}")
        for peer in self.peers:
            peer.facts = peer.reply[0]

    def _admit_all(self, listener, token):
        deadline = time.monotonic() + self.timeout
        missing = set(range(self.size))
        while missing:
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            if self._launcher.fileno() is not None:
                poll.register(self._launcher.fileno(), select.POLLIN)
            ready = [fd for fd, _ in poll.poll(200)]
            self._launcher.read()
            if listener.fileno() in ready:
                peer = admit(listener, token, missing)
                if peer is not None:
                    peer.request = messages.START
                    missing.remove(peer.rank)
                    self.peers.append(peer)
            elif self._launcher.ended():
                raise StartError(f"the ranks ended before they had started\n{self._launcher.text.rstrip()}")
            elif time.monotonic() > deadline:
                late = rank_lists.describe(missing)
                raise StartError(f"rank {late} did not connect within {self.timeout:g} s",
                                 hint="--timeout S waits longer")
        self.peers.sort(key=lambda peer: peer.rank)


def _left(gone):
    """Whether all of these ranks have said that they exit with status 0."""
    return all(peer.exit_status == 0 for peer in gone)


def _own_report(gone):
    """(what, hint) about ranks whose end the launcher has not reported."""
    names = rank_lists.describe(peer.rank for peer in gone)
    pids = ", ".join(str(peer.pid) for peer in gone)
    if _left(gone):
        return f"rank {names} exited with status 0 (pid {pids})", "do not call os._exit in a cell"
    return f"rank {names} has ended (pid {pids}); the launcher did not say how", ""
