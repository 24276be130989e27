"""Tests that run in the ranks of a job. One start of the ranks runs all of them: Python needs a second to start with
torch, a test needs milliseconds.

A script defines its tests as subclasses of RankCase and ends with `job.main(modules)`. It starts itself again, as each
rank of a job. There it runs the tests, in the same order in all ranks; here it reports what each of them found.
"""

import contextlib
import datetime
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import unittest

import support

_RESULTS = "LOCKSTEP_TEST_RESULTS"  # in a rank: the folder for what its tests found
_MACHINES = "LOCKSTEP_TEST_MACHINES"  # in a rank: the machines of all ranks
# The ranks that run the tests: by the name of the test case, their machines.
PLACES = {"On2Ranks": "aa", "On3Ranks": "aaa", "On2Machines": "ab", "On3RanksOf2Machines": "aab"}
# Ends a call that waits for a rank whose test has failed.
GROUP_TIMEOUT = datetime.timedelta(seconds=30)


class RankCase(unittest.TestCase):
    """Each test has a group of all ranks for itself, so an error in it does not affect the next one."""

    worlds = (2, 3)

    def setUp(self):
        import torch.distributed as dist

        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.others = [rank for rank in range(self.world) if rank != self.rank]
        # What a group of these ranks runs over.
        self.engine = "hybrid" if len(set(os.environ[_MACHINES])) > 1 else "shm"
        self.group = dist.new_group(timeout=GROUP_TIMEOUT)

    def equal(self, tensor, values):
        """Same dtype, shape and values; `values` may be a list."""
        import torch

        expected = values if torch.is_tensor(values) else torch.tensor(values, dtype=tensor.dtype)
        if tensor.dtype != expected.dtype or not torch.equal(tensor, expected):
            self.fail(f"{tensor} instead of {expected}")

    @contextlib.contextmanager
    def fails(self, kind, *said):
        """The block must raise an error of this class, with these words and without C++ frames."""
        try:
            yield
        except RuntimeError as error:
            text = str(error)
            self.assertIs(type(error), kind, text)
            for words in (*said, *(["hint: "] if kind is not RuntimeError else [])):
                self.assertIn(words, text)
            for noise in ("frame #", "Exception raised from", "src/"):
                self.assertNotIn(noise, text)
        else:
            self.fail(f"no {kind.__name__}")


def run(place, world, *arguments, machines=None, **environment):
    """Starts ranks of this interpreter with `lockstep run`, and waits for their end. Ranks with equal letters in
    `machines` take each other to be on the same machine: "aab" are three ranks on two machines."""
    machines = machines or "a" * world
    environment[_MACHINES] = machines
    command = [support.launcher(), "run", "--nproc-per-node", str(world), sys.executable, "-B", *arguments]
    if len(set(machines)) > 1:
        command[4:4] = ["sh", "-c", f'LOCKSTEP_MACHINE=$(printf %s {machines} | cut -c $((RANK + 1))) exec "$@"', "sh"]
    return finished(subprocess.Popen(command, env={**place.environment, **environment}, cwd=place.folder, text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT), place)


def finished(process, place):
    """The process, with its output as `text`. If it hangs, it is ended, and the text shows where its ranks were."""
    try:
        process.text = process.communicate(timeout=support.PATIENCE_SECONDS)[0]
    except subprocess.TimeoutExpired:
        stacks = support.native_stacks(place.mark)
        for pid in support.marked(place.mark):
            if pid != process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGABRT)
        try:
            text = process.communicate(timeout=30)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            text = process.communicate()[0]
        process.text = f"ended, because it hung:\n{text}\n{stacks}"
    return process


def _tests(modules, world):
    cases = [case for module in modules for case in vars(importlib.import_module(module)).values()
             if isinstance(case, type) and issubclass(case, RankCase) and case is not RankCase]
    return [case(name) for case in cases if world in case.worlds
            for name in unittest.defaultTestLoader.getTestCaseNames(case)]


def _name(test):
    return f"{type(test).__name__}.{test._testMethodName}"


def _run_as_rank(modules):
    import lockstep  # noqa: F401 registers the backend
    import torch.distributed as dist

    dist.init_process_group("lockstep", timeout=GROUP_TIMEOUT)
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("tests", dist.distributed_c10d._get_default_store())
    with open(os.path.join(os.environ[_RESULTS], str(rank)), "w", encoding="utf-8") as file:
        for number, test in enumerate(_tests(modules, world)):
            result = unittest.TestResult()
            test.run(result)
            found = "\n".join(text for _, text in result.errors + result.failures)
            skipped = "".join(reason for _, reason in result.skipped)
            print(json.dumps([_name(test), found, skipped]), file=file, flush=True)
            # Not with a group: it may have failed. Not with store.wait(): nothing else can use the store meanwhile.
            store.add(str(number), 1)
            while store.add(str(number), 0) < world:
                time.sleep(0.002)
    dist.destroy_process_group()


class _Findings:
    """What the ranks found; they are started when the first test asks."""

    def __init__(self, machines):
        self._machines = machines
        self._world = len(machines)
        self._by_rank = None
        self._status = None
        self._output = ""

    def check_end(self, case):
        self._start_once()
        case.assertEqual(self._status, 0, self._output)

    def check(self, case, name):
        self._start_once()
        missing = [rank for rank in range(self._world) if name not in self._by_rank[rank]]
        if missing:
            case.fail(f"the test did not end in ranks {missing}; the job's output:\n{self._output}")
        found = [self._by_rank[rank][name] for rank in range(self._world)]
        case.assertFalse(any(text for text, _ in found), "\n".join(
            f"rank {rank}: {text}" for rank, (text, _) in enumerate(found) if text))
        if found[0][1]:
            case.skipTest(found[0][1])

    def _start_once(self):
        if self._by_rank is not None:
            return
        place = support.Marked()
        try:
            done = run(place, self._world, os.path.abspath(sys.argv[0]), machines=self._machines,
                       **{_RESULTS: place.folder})
            self._status = done.returncode
            self._output = f"status {done.returncode}\n{done.text}"
            self._by_rank = [self._read(os.path.join(place.folder, str(rank))) for rank in range(self._world)]
        finally:
            place.close()

    @staticmethod
    def _read(path):
        if not os.path.exists(path):
            return {}
        with open(path, encoding="utf-8") as file:
            return {name: (found, skipped) for name, found, skipped in map(json.loads, file)}


def _reporter(name, machines, tests):
    """A test case with the same tests, which reports what the ranks found."""
    findings = _Findings(machines)
    reason = support.missing_backend()

    def method(test):
        return lambda case: findings.check(case, test)

    body = {f"test_{_name(test).replace('.test_', '_')}": method(_name(test)) for test in tests}
    body["test_the_ranks_end_with_status_0"] = lambda case: findings.check_end(case)
    made = type(name, (unittest.TestCase,), body)
    return unittest.skipIf(reason, reason)(made)


def main(*modules):
    if _RESULTS in os.environ:
        _run_as_rank(modules)
        return
    if support.missing_ranks():
        print(support.missing_ranks())
        sys.exit(support.SKIPPED)
    for name, machines in PLACES.items():
        setattr(sys.modules["__main__"], name, _reporter(name, machines, _tests(modules, len(machines))))
    support.main()
