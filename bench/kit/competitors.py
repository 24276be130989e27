"""Other jobs on the same cores: processes that compute without pause."""
import contextlib
import subprocess


@contextlib.contextmanager
def competitors(count):
    """Runs `count` of them until the end of the block. The kernel chooses their cores."""
    running = []
    try:
        for _ in range(count):
            running.append(subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True))
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
