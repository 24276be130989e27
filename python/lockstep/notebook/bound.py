"""Becomes another program, which receives SIGTERM when the process that started it ends, even by `kill -9`:

    python bound.py PID_OF_THE_PARENT PROGRAM ARGUMENTS...

A separate program instead of subprocess's preexec_fn, which can deadlock in a process with several threads.
The signal is sent when the starting thread ends, so that thread must be the main one.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main():
    parent, program = int(sys.argv[1]), sys.argv[2]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        sys.exit(f"cannot bind {program} to its parent: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit(1)  # the parent ended before the call
    os.execv(program, sys.argv[2:])


if __name__ == "__main__":
    main()
