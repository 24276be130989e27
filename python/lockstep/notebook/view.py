"""Shows the output of ranks, each line with its rank. Lines of different ranks are never mixed."""

import codecs
import sys
import time

from .ranks import describe

# An incomplete line (a prompt, a row of dots, a progress bar) is shown after this time.
IDLE_SECONDS = 0.2
_LONGEST_PENDING = 64 << 10


class _Line:
    """The part of a rank's current line that has not been shown."""

    def __init__(self):
        # Replaces invalid UTF-8; keeps a character that arrives in two pieces.
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text = ""
        self.since = 0.0  # when the text that can be shown began

    def has_text(self):
        return bool(self.text.rstrip("\r"))


class View:
    def __init__(self):
        self._lines = {}
        self._open = None  # the rank whose incomplete line is on the screen

    def feed(self, rank, data):
        """Shows the complete lines of `data`, bytes that a rank has written."""
        line = self._lines.setdefault(rank, _Line())
        waits = line.has_text()
        *complete, line.text = (line.text + line.decoder.decode(data)).split("\n")
        for text in complete:
            self._show(rank, text, "\n")
        if complete or not waits:
            line.since = time.monotonic()
        if len(line.text) > _LONGEST_PENDING:
            self._show_incomplete(rank, line)

    def show_idle(self):
        """Shows incomplete lines that are old enough. Returns the seconds until the next one is, or None."""
        now = time.monotonic()
        waiting = []
        for rank, line in self._lines.items():
            if line.has_text() and now - line.since >= IDLE_SECONDS:
                self._show_incomplete(rank, line)
            elif line.has_text():
                waiting.append(line.since + IDLE_SECONDS - now)
        return min(waiting, default=None)

    def finish(self):
        """Completes all lines: what follows starts on a new one."""
        for rank, line in self._lines.items():
            if line.has_text():
                self._show(rank, line.text, "\n")
            line.text = ""
        self._end_open_line()
        sys.stdout.flush()

    def error(self, ranks, text):
        """A message of several ranks, on stderr."""
        self._end_open_line()
        sys.stdout.flush()
        label = f"[rank {describe(ranks)}] "
        sys.stderr.write("".join(f"{label}{line}\n" for line in _printable(text).splitlines()))
        sys.stderr.flush()

    def note(self, text):
        """A message of the notebook itself, on stderr."""
        self._end_open_line()
        sys.stdout.flush()
        sys.stderr.write(f"[lockstep] {text}\n")
        sys.stderr.flush()

    def _show_incomplete(self, rank, line):
        self._show(rank, line.text, "")
        # What follows a return replaces this text, so the return is kept until then.
        line.text = "\r" if line.text.endswith("\r") else ""
        sys.stdout.flush()

    def _show(self, rank, text, end):
        if self._open != rank:
            self._end_open_line()
        label = f"[rank {rank}] "
        # A progress bar returns to the start of its line, before or after its text. Only its last state is
        # shown.
        _, returned, text = text.rstrip("\r").rpartition("\r")
        if self._open == rank:
            label = "\r" + label if returned else ""
        sys.stdout.write(label + _printable(text) + end)
        self._open = None if end else rank

    def _end_open_line(self):
        if self._open is not None:
            sys.stdout.write("\n")
            self._open = None


class Silent:
    """A view that shows nothing."""

    def feed(self, rank, data):
        pass

    def finish(self):
        pass


def _printable(text):
    # Lone surrogates cannot be encoded, and would make the kernel's stdout fail.
    return text.encode("utf-8", "replace").decode("utf-8")
