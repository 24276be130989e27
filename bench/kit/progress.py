"""Prints the progress of a long measurement on stderr."""
import sys
import time


class Progress:
    def __init__(self, part, steps):
        self.part, self.steps, self.done, self.begin = part, steps, 0, time.monotonic()

    def step(self, what):
        """Call it before each of the `steps`."""
        passed = time.monotonic() - self.begin
        left = f", about {passed / self.done * (self.steps - self.done) / 60:.0f} min left" if self.done else ""
        print(f"{self.part}: {self.done + 1} of {self.steps}, {what}{left}", file=sys.stderr, flush=True)
        self.done += 1
