"""Other jobs on the same cores: processes that compute and nothing else."""
import contextlib
import subprocess


@contextlib.contextmanager
def competitors(count):
    """`count` of them run until the end of the block; the kernel places them as it likes."""
    running = []
    try:
        for _ in range(count):
            running.append(subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True))
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
