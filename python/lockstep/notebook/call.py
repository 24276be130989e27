"""One request to some ranks, from sending it to the last reply: shows their output, interrupts them, notices
when one of them ends."""

import contextlib
import os
import signal
import threading
import time

from . import ranks as rank_lists
from .errors import CellInterrupted

# How long an interrupted rank may take to return, and how often the signal is repeated: a rank ignores one
# that arrives before it has started the cell.
INTERRUPT_SECONDS = 5
_REPEAT_SECONDS = 0.5
# Several ranks usually fail alike. An error is shown after this time, so that they are shown together.
_COLLECT_SECONDS = 0.5
_LONGEST_WAIT = 1.0
STUCK_HINT = "make the call that it waits for on the other ranks, or end all ranks with %dist_close"


@contextlib.contextmanager
def interrupts():
    """Yields a descriptor that becomes readable when the user interrupts the kernel, or None. Meanwhile,
    KeyboardInterrupt is not raised: it could lose bytes that have just been received."""
    if threading.current_thread() is not threading.main_thread():
        yield None  # Python delivers signals to the main thread only
        return
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    before = signal.signal(signal.SIGINT, lambda *_: os.write(writing, b"!"))
    try:
        yield reading
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)  # None: set by C code
        os.close(reading)
        os.close(writing)


class Call:
    """first_error: return at the first error of a rank, without waiting for the others.
    show_errors: False leaves it to the caller to report them."""

    def __init__(self, cluster, peers, view, first_error=False, show_errors=True, seconds=None):
        self._cluster = cluster
        self._peers = peers
        self._view = view
        self._first_error = first_error
        self._want_errors = show_errors
        self._deadline = time.monotonic() + seconds if seconds is not None else None
        self._errors = {}         # by rank: the error of its reply
        self._shown = set()       # the ranks whose errors have been shown
        self._show_errors_at = None
        self._told_waiting = False
        self._interrupted_at = None
        self._repeat_at = None

    def wait(self, interrupt):
        """Blocks until all ranks have replied. Returns the errors by rank. Raises RanksEnded,
        CellInterrupted, or TimeoutError after `seconds`. `interrupt`: what interrupts() yields; entered
        before the request is queued, so that an interrupt cannot leave behind a request nobody waits for."""
        while self._waiting():
            if self._cluster.step(self._view, self._timeout(), interrupt):
                os.read(interrupt, 64)
                self._on_interrupt()
            self._collect()
            if any(peer.ended for peer in self._cluster.peers):
                self._show_errors()
                raise self._cluster.lose(self._view, [peer.rank for peer in self._waiting()])
            self._check_times()
            if self._first_error and self._shown:
                break
        self._show_errors()
        self._view.finish()
        if self._interrupted_at is not None:
            raise CellInterrupted(f"the cell was interrupted on rank {rank_lists.describe(self._ranks())}")
        return self._errors

    def _ranks(self):
        return [peer.rank for peer in self._peers]

    def _waiting(self):
        return [peer for peer in self._peers if peer.reply is None]

    def _timeout(self):
        """Seconds until something has to be done although nothing arrives."""
        waits = [_LONGEST_WAIT, self._view.show_idle()]
        for at in (self._show_errors_at, self._deadline, self._repeat_at, self._give_up_at()):
            waits.append(at - time.monotonic() if at is not None else None)
        return max(0.0, min(wait for wait in waits if wait is not None))

    def _collect(self):
        for peer in self._peers:
            if peer.reply is None or peer.rank in self._errors or not peer.reply[0].get("error"):
                continue
            self._errors[peer.rank] = peer.reply[0]["error"]
            if self._show_errors_at is None:
                self._show_errors_at = time.monotonic() + _COLLECT_SECONDS

    def _check_times(self):
        now = time.monotonic()
        if self._show_errors_at is not None and now >= self._show_errors_at:
            self._show_errors()
            self._tell_waiting()
        if not self._waiting():
            return
        if self._interrupted_at is not None and now >= self._give_up_at():
            raise self._stuck()
        if self._repeat_at is not None and now >= self._repeat_at:
            self._signal()
        if self._deadline is not None and now >= self._deadline:
            self._view.finish()
            raise TimeoutError(rank_lists.describe(peer.rank for peer in self._waiting()))

    def _show_errors(self):
        """Shows what has not been shown yet; equal texts of several ranks once."""
        self._show_errors_at = None
        texts = {}
        for rank, error in self._errors.items():
            if self._want_errors and rank not in self._shown:
                texts.setdefault(error["text"], []).append(rank)
        if texts:
            self._view.finish()
        for text, ranks in texts.items():
            if text:
                self._view.error(ranks, text)
            self._shown.update(ranks)

    def _tell_waiting(self):
        """The others may wait for the failed rank in a collective, for as long as the group's timeout."""
        if self._told_waiting or self._first_error or not self._want_errors or not self._waiting():
            return
        if self._interrupted_at is not None:
            return
        self._told_waiting = True
        failed = rank_lists.describe(self._errors)
        running = rank_lists.describe(peer.rank for peer in self._waiting())
        self._view.note(f"rank {failed} failed, rank {running} is still running the cell\n"
                        f"hint: interrupt the cell if it waits for rank {failed}")

    def _on_interrupt(self):
        if not self._waiting():
            return
        if self._interrupted_at is not None:
            raise self._stuck()  # the user does not want to wait
        self._interrupted_at = time.monotonic()
        self._signal()

    def _signal(self):
        deaf = [peer for peer in self._waiting() if not peer.interrupted]
        for peer in deaf:
            peer.signal(signal.SIGINT)
        self._repeat_at = time.monotonic() + _REPEAT_SECONDS if deaf else None

    def _give_up_at(self):
        return self._interrupted_at + INTERRUPT_SECONDS if self._interrupted_at is not None else None

    def _stuck(self):
        self._show_errors()
        self._view.finish()
        stuck = self._waiting()
        waited = time.monotonic() - self._interrupted_at
        why = "it is inside C++ code, such as a collective that waits for another rank"
        if all(peer.interrupted for peer in stuck):
            why = "its code has caught KeyboardInterrupt"
        ranks = rank_lists.describe(peer.rank for peer in stuck)
        return CellInterrupted(f"rank {ranks} did not return within {waited:.0f} s of the interrupt: {why}; "
                               "until it returns, it cannot run cells", hint=STUCK_HINT)
