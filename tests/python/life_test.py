"""How ranks written in Python start, fork, fail, are interrupted and end, with each launcher."""

import os
import subprocess
import sys
import unittest

import job
import support

MISSING = support.missing_backend()
HERE = os.path.dirname(os.path.abspath(__file__))

# Every program starts with this. It says what it does in lines that start with the rank, because not every launcher
# puts it there.
PROLOGUE = """
import datetime, os, pickle, signal, sys, time
import torch, torch.distributed as dist
import lockstep
from torch.nn.parallel import DistributedDataParallel

def say(*words):
    os.write(1, (" ".join([f"<{rank}>", *map(str, words)]) + "\\n").encode())

# Gloo of PyTorch 2.6, when it is destroyed, holds the interpreter's lock and waits for threads that may need it to free
# the tensor of the last call.
kept = []

def works(group=None):
    tensor = torch.ones(2)
    kept.append(tensor)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [dist.get_world_size(group)] * 2, tensor

rank = int(os.environ.get("RANK", -1))
"""
INIT = 'dist.init_process_group("lockstep", timeout=datetime.timedelta(seconds=120))\n'


class Life(unittest.TestCase):
    machines = "aa"  # of the two ranks under `lockstep run`

    def setUp(self):
        self.place = support.Marked()
        self.addCleanup(self.place.close)  # also checks that no process remains

    def write(self, *code):
        path = os.path.join(self.place.folder, "program.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(PROLOGUE + "".join(code))
        return path

    def said(self, done, rank):
        """The lines of a rank."""
        mark = f"<{rank}> "
        return [line.partition(mark)[2] for line in done.text.splitlines() if mark in line]

    def ranks(self, *code, status=0, **environment):
        """Two ranks under `lockstep run`."""
        done = job.run(self.place, 2, self.write(*code), machines=self.machines, **environment)
        self.assertEqual(done.returncode, status, done.text)
        self.assert_no_crash(done)
        return done

    def alone(self, *arguments, **environment):
        """One process without a launcher."""
        process = subprocess.Popen([sys.executable, "-B", *arguments], env={**self.place.environment, **environment},
                                   cwd=self.place.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return job.finished(process, self.place)

    def torchrun(self, *code):
        done = self.alone(os.path.join(HERE, "torchrun.py"), "--rdzv_backend", "c10d", "--rdzv_endpoint",
                          "127.0.0.1:0", "--nproc_per_node", "2", self.write(*code), OMP_NUM_THREADS="1", USE_LIBUV="0")
        if "use_libuv was requested" in done.text:
            self.skipTest("this PyTorch was built without libuv, but ranks that torchrun has started ask for it")
        return done

    def assert_no_crash(self, done):
        for words in ("terminate called", "Fatal Python error", "Segmentation fault", "core dumped", "signal 6",
                      "signal 11"):
            self.assertNotIn(words, done.text)


@unittest.skipIf(MISSING, MISSING)
class Starts(Life):
    PROGRAM = (INIT, 'works()\nsay("ok", dist.get_world_size(), dist.get_backend())\n')
    OK = ["ok 2 lockstep"]

    def test_lockstep_run(self):
        done = self.ranks(*self.PROGRAM)
        self.assertEqual([self.said(done, 0), self.said(done, 1)], [self.OK, self.OK])

    def test_torchrun(self):
        done = self.torchrun(*self.PROGRAM)
        self.assertEqual(done.returncode, 0, done.text)
        self.assertEqual([self.said(done, 0), self.said(done, 1)], [self.OK, self.OK], done.text)

    def test_a_file_as_the_meeting_point(self):
        self.spawned("file://" + os.path.join(self.place.folder, "meeting"))

    def test_a_port_as_the_meeting_point(self):
        self.spawned("tcp://127.0.0.1:{port}")

    def test_members_that_are_known_later(self):
        import torch.distributed as dist

        if not hasattr(dist, "_reconfigure"):
            self.skipTest("this PyTorch has no reconfigure")
        done = self.ranks("""
dist.init_process_group("lockstep", timeout=datetime.timedelta(seconds=120), enable_reconfigure=True)
try:
    works()
except lockstep.UsageError as error:
    say("not yet:", str(error).partition(" (")[0])
store = dist.PrefixStore("handles", dist.distributed_c10d._get_default_store())
store.set(str(rank), dist._get_reconfigure_handle())
handles = [store.get(str(other)).decode() for other in range(2)]
dist._reconfigure(rank, [handles[rank]]).wait()
works()
say("alone", dist.get_rank(), dist.get_world_size())
dist._reconfigure(2, handles).wait()
works()
model = DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
say("ok", dist.get_rank(), dist.get_world_size())
dist.destroy_process_group()
""")
        for rank in range(2):
            self.assertEqual(self.said(done, rank),
                             ["not yet: the group is not connected", "alone 0 1", f"ok {rank} 2"], done.text)

    def spawned(self, meeting):
        done = self.alone(self.write(f"""
import socket, torch.multiprocessing

def body(rank, meeting):
    globals()["rank"] = rank
    dist.init_process_group("lockstep", init_method=meeting, rank=rank, world_size=2,
                            timeout=datetime.timedelta(seconds=120))
    works()
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    group = dist.new_group([0, 1])
    works(group)
    say("ok", dist.get_world_size(), dist.get_backend())
    dist.destroy_process_group()

if __name__ == "__main__":
    with socket.socket() as free:
        # Stays bound, so that no other process is given the port. Rank 0 can bind it, too: this one does not
        # listen.
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        torch.multiprocessing.spawn(body, ({meeting!r}.format(port=port),), nprocs=2)
    print("joined")
"""))
        self.assertEqual(done.returncode, 0, done.text)
        self.assertEqual([self.said(done, 0), self.said(done, 1)], [self.OK, self.OK], done.text)
        self.assertIn("joined", done.text)
        self.assert_no_crash(done)

    def test_again_in_the_same_process(self):
        done = self.ranks(INIT, """
works()
first = dist.group.WORLD
for number in range(3):
    dist.destroy_process_group()
    assert not dist.is_initialized()
    meeting = f"file://{os.getcwd()}/meeting{number}"
    dist.init_process_group(["lockstep", "gloo", "lockstep"][number], init_method=meeting, rank=rank, world_size=2)
    works()
    works(dist.new_group())
    say("again", dist.get_backend())
""")
        for rank in (0, 1):
            self.assertEqual(self.said(done, rank), ["again lockstep", "again gloo", "again lockstep"])

    def test_again_at_the_same_address(self):
        # A Work that the script keeps must not keep the store, and with it the keys of the first group.
        done = self.alone(self.write("""
import socket

with socket.socket() as free:
    free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # bound, so that no other process is given the port
    free.bind(("127.0.0.1", 0))
    works_of = []
    for number in range(3):
        dist.init_process_group("lockstep", init_method=f"tcp://127.0.0.1:{free.getsockname()[1]}", rank=0, world_size=1)
        works_of.append(dist.all_reduce(torch.ones(3), async_op=True))
        works_of[-1].wait()
        dist.destroy_process_group()
print("ok")
"""))
        self.assertEqual((done.returncode, done.text.split()), (0, ["ok"]), done.text)

    def test_options_of_the_default_group(self):
        done = self.ranks("""
try:
    dist.init_process_group("lockstep", pg_options={"backend": "shm"})
except lockstep.UsageError as error:
    say(str(error).splitlines()[0], dist.is_initialized())
dist.init_process_group("lockstep", pg_options=lockstep.Options("shm"),
                        init_method=f"file://{os.getcwd()}/meeting", rank=rank, world_size=2)
works()
""")
        for rank in (0, 1):
            self.assertEqual(self.said(done, rank), ["pg_options of the backend lockstep must be lockstep.Options, "
                                                     "but they are dict False"])

    def test_the_environment_sets_the_transport(self):
        program = ("from torch import profiler\n", INIT, """
with profiler.profile(activities=[profiler.ProfilerActivity.CPU]) as profile:
    works()
say(*[event.key for event in profile.key_averages() if event.key.endswith(":all_reduce")])
""")
        for name in ("gloo", "shm", "hybrid"):
            self.machines = "ab" if name == "hybrid" else "aa"
            done = self.ranks(*program, LOCKSTEP_BACKEND=name)
            self.assertEqual(self.said(done, 0), [f"{name}:all_reduce"])

    def test_a_rank_that_never_starts(self):
        done = self.alone(self.write(f"""
try:
    dist.init_process_group("lockstep", init_method="file://{self.place.folder}/meeting", rank=0, world_size=2,
                            timeout=datetime.timedelta(seconds=2))
except lockstep.TimeoutError as error:
    say(list(error.culprits), error)
"""))
        self.assertEqual(done.returncode, 0, done.text)
        self.assertRegex(done.text, r"\[1\] not all ranks arrived within 2\.0 s .*missing: rank 1")
        self.assertIn("hint: ", done.text)


@unittest.skipIf(MISSING, MISSING)
class Deaths(Life):
    # Under `lockstep run`, a rank may be stopped before it has noticed. This one shows what it notices.
    TRAIN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
def describe(error):
    error = pickle.loads(pickle.dumps(error))  # as a pool of processes does
    return f"{type(error).__name__} {list(getattr(error, 'culprits', ['none']))} {error}".replace("\\n", " ")
for step in range(100_000):
    if step == 5 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        model(torch.ones(2, 4)).sum().backward()
    except RuntimeError as error:
        say("step", step, describe(error))
        break
try:
    dist.barrier()
except lockstep.PeerLostError as error:
    say("then", describe(error))
"""
    WORDS = r"all_reduce .*rank 1 \(pid \d+, host [^)]+\) has ended"
    HOW = r": killed by signal 9 "

    def check(self, done, how):
        self.assert_no_crash(done)
        lines = self.said(done, 0)
        self.assertEqual(len(lines), 2, done.text)
        self.assertRegex(lines[0], r"^step 5 .* " + self.WORDS + how + ".*hint: ")
        self.assertRegex(lines[1], r"^then PeerLostError \[1\] " + self.WORDS + how + ".*hint: ")
        self.assertNotIn("frame #", done.text)

    def test_a_killed_rank_under_lockstep_run(self):
        self.check(self.ranks(INIT, self.TRAIN, status=128 + 9), self.HOW)

    def test_a_killed_rank_under_torchrun(self):
        done = self.torchrun(INIT, self.TRAIN)
        self.assertNotEqual(done.returncode, 0)
        # How a process ended cannot be known any more once torchrun has waited for it.
        self.check(done, f"({self.HOW})?")

    def test_the_class_of_the_error_in_backward(self):
        # The call of the collective is inside of torch's autograd engine, which knows only its own classes of errors.
        line = self.said(self.ranks(INIT, self.TRAIN, status=128 + 9), 0)[0]
        self.assertRegex(line, r"^step 5 PeerLostError \[1\] ")

    RETURNS_EARLY = """
works()
if rank == 0:
    try:
        works()
    except lockstep.PeerLostError as error:
        say(list(error.culprits), str(error).replace("\\n", " "))
"""

    def test_a_rank_that_returns_early(self):
        done = self.ranks(INIT, self.RETURNS_EARLY)
        [line] = self.said(done, 0)
        self.assertRegex(line, r"^\[1\] .*rank 1 \(pid \d+.*\) has (ended|finished).*hint: ")


@unittest.skipIf(MISSING, MISSING)
class DeathsOnTwoMachines(Deaths):
    machines = "ab"
    # What another machine sees of a rank is its connection, unless somebody there has seen how it ended.
    WORDS = r"all_reduce .*rank 1 \(pid \d+, host [^)]+\) closed its connection"
    HOW = ""

    def test_a_killed_rank_under_torchrun(self):
        self.skipTest("the same, whatever started the ranks")

    def test_a_rank_that_returns_early(self):
        done = self.ranks(INIT, self.RETURNS_EARLY)
        [line] = self.said(done, 0)
        self.assertRegex(line, r"^\[1\] .*rank 1 \(pid \d+.*\) closed its connection.*hint: ")


@unittest.skipIf(MISSING, MISSING)
class Ends(Life):
    def silent(self, *code):
        """The program ends with status 0 and says nothing but "ok"."""
        done = self.ranks(INIT, *code)
        self.assertEqual(sorted(done.text.splitlines()), ["[rank 0] <0> ok", "[rank 1] <1> ok"])

    def test_without_destroying_the_group(self):
        self.silent('works()\ngroup = dist.new_group()\nworks(group)\nsay("ok")\n')

    def test_before_any_call(self):
        self.silent('say("ok")\n')

    def test_with_a_call_under_way(self):
        self.silent("""
works()
if rank == 0:
    work = dist.all_reduce(torch.ones(100_000), async_op=True)
    future = work.get_future()
say("ok")
""")

    def test_with_memory_that_belongs_to_python(self):
        # Rank 1 ends first, so the call ends while Python ends in rank 0: there, nothing may free Python's memory.
        self.silent("""
import numpy
works()
if rank == 0:
    dist.all_reduce(torch.from_numpy(numpy.ones(100_000, dtype="float32")), async_op=True)
say("ok")
""")

    def test_with_a_callback_that_was_not_called(self):
        # Rank 1 ends first, so the call fails while Python ends in rank 0: there, nothing may call Python anymore.
        self.silent("""
works()
if rank == 0:
    work = dist.all_reduce(torch.ones(100_000), async_op=True)
    future = work.get_future().then(lambda future: None)
say("ok")
""")

    def test_with_a_message_under_way(self):
        self.silent('works()\nwork = dist.irecv(torch.ones(100_000), 1 - rank)\nsay("ok")\n')

    def test_after_destroying_a_group_with_a_call_under_way(self):
        self.silent("""
group = dist.new_group()
works(group)
work = dist.all_reduce(torch.ones(100), group=group, async_op=True) if rank == 0 else None
dist.destroy_process_group()
del work, group
say("ok")
""")

    def test_with_an_exception(self):
        done = self.ranks(INIT, """
works()
if rank == 1:
    raise ValueError("no more data")
dist.barrier()
""", status=1)
        self.assertIn("ValueError: no more data", done.text)
        self.assertIn("rank 1 exited with status 1", done.text)

    def test_with_a_status(self):
        done = self.ranks(INIT, "works()\nsys.exit(5 if rank == 1 else 0)\n", status=5)
        self.assertIn("rank 1 exited with status 5", done.text)

    def test_an_uncaught_error_of_the_group(self):
        done = self.ranks(INIT, "dist.all_reduce(torch.ones(2 + rank))\n", status=1)
        self.assertIn("lockstep.MismatchError: the ranks do not make the same call", done.text)


@unittest.skipIf(MISSING, MISSING)
class EndsOnTwoMachines(Ends):
    machines = "ab"


@unittest.skipIf(MISSING, MISSING)
class Forks(Life):
    CHILD = """
def in_child(body):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends it if it hangs
        try:
            body()
        except BaseException as error:
            say("child:", error)
            os._exit(1)
        sys.exit(0)  # as a program ends, with everything that Python does then
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    say("child ended with", status)
"""

    def both(self, *code, expected):
        done = self.ranks(self.CHILD, *code)
        for rank in (0, 1):
            self.assertEqual(self.said(done, rank), expected, done.text)

    def test_after_the_import(self):
        self.both('in_child(lambda: None)\n', INIT, 'works()\nsay("ok")\n', expected=["child ended with 0", "ok"])

    def test_after_the_start(self):
        self.both(INIT, """
works()
in_child(lambda: None)
works()
in_child(lambda: torch.ones(10).sum())
group = dist.new_group()
works(group)
say("ok")
""", expected=["child ended with 0", "child ended with 0", "ok"])

    def test_with_a_call_under_way(self):
        self.both(INIT, """
works()
tensor = torch.ones(1000)
work = dist.all_reduce(tensor, async_op=True) if rank == 0 else None
in_child(lambda: None)
(work or dist.all_reduce(tensor, async_op=True)).wait()
assert tensor.tolist() == [2.0] * 1000
say("ok")
""", expected=["child ended with 0", "ok"])

    def test_a_child_cannot_use_the_group(self):
        self.both(INIT, """
works()
def use():
    for call in (lambda: dist.all_reduce(torch.ones(1)), dist.barrier, lambda: dist.send(torch.ones(1), 1 - rank)):
        try:
            call()
            say("no error")
        except lockstep.UsageError as error:
            assert "fork" in str(error) and "hint: " in str(error), error
in_child(use)
works()
say("ok")
""", expected=["child ended with 0", "ok"])

    def test_a_child_that_destroys_the_group(self):
        self.both(INIT, 'works()\nin_child(dist.destroy_process_group)\nworks()\nsay("ok")\n',
                  expected=["child ended with 0", "ok"])

    def test_a_data_loader_with_workers(self):
        self.both(INIT, """
works()
data = torch.utils.data.TensorDataset(torch.arange(40.0))
sampler = torch.utils.data.DistributedSampler(data, shuffle=False)
model = DistributedDataParallel(torch.nn.Linear(1, 1))
for epoch in range(2):
    total = 0.0
    for [x] in torch.utils.data.DataLoader(data, batch_size=5, sampler=sampler, num_workers=2,
                                           multiprocessing_context="fork"):
        model(x[:, None]).sum().backward()
        total += x.sum().item()
    assert total == sum(range(rank, 40, 2)), total
works()
say("ok")
""", expected=["ok"])


@unittest.skipIf(MISSING, MISSING)
class ForksOnTwoMachines(Forks):
    machines = "ab"


@unittest.skipIf(MISSING, MISSING)
class Signals(Life):
    """A rank gets a signal while it waits in a collective."""

    # Rank 1 sends the signal when rank 0 is waiting, as far as another process can see that.
    WAIT = """
store = dist.PrefixStore("test", dist.distributed_c10d._get_default_store())
works()
if rank == 0:
    store.set("pid", str(os.getpid()))
    try:
        dist.all_reduce(torch.ones(2))
        say("complete")
        time.sleep(100)
    except KeyboardInterrupt:
        say("interrupted")
        os._exit(0)
pid = int(store.get("pid"))
time.sleep(0.3)
"""

    def test_termination(self):
        for backend in ("lockstep", "gloo"):
            done = self.ranks(INIT.replace("lockstep", backend), self.WAIT,
                              "os.kill(pid, signal.SIGTERM)\ntime.sleep(100)\n", status=128 + 15)
            self.assertIn("rank 0 was killed by signal 15", done.text)

    def test_an_interrupt_counts_when_the_call_returns(self):
        # Python handles signals between its own instructions. Gloo is not different.
        for backend in ("gloo", "lockstep"):
            done = self.ranks(INIT.replace("lockstep", backend), self.WAIT,
                              "os.kill(pid, signal.SIGINT)\ntime.sleep(0.1)\nworks()\ndist.destroy_process_group()\n")
            self.assertEqual(self.said(done, 0), ["interrupted"], done.text)

    def test_signals_wake_no_one(self):
        """Signals with a handler do not disturb a rank that waits."""
        done = self.ranks(INIT, """
count = 0
def handle(*_):
    global count
    count += 1
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for _ in range(300):
    works()
signal.setitimer(signal.ITIMER_REAL, 0)
say("ok", count > 0)
""")
        self.assertEqual(self.said(done, 0), ["ok True"])


@unittest.skipIf(MISSING, MISSING)
class Imports(Life):
    def test_twice(self):
        done = self.alone("-c", "import importlib, torch.distributed as dist, lockstep\n"
                          "barrier = dist.monitored_barrier\n"
                          "importlib.reload(lockstep.backend)\nimportlib.reload(lockstep)\nimport lockstep\n"
                          "assert dist.monitored_barrier is barrier\n"
                          "print(dist.Backend('lockstep'), lockstep.Options())")
        self.assertEqual(done.text, "lockstep lockstep.Options(backend='auto')\n")

    def test_before_torch(self):
        done = self.alone("-c", "import lockstep, torch\nprint(torch.distributed.Backend('lockstep'))")
        self.assertEqual(done.text, "lockstep\n")

    def test_without_torch(self):
        """The notebook does not need torch in its kernel. What needs it is not there."""
        hidden = "import sys\nsys.modules['torch'] = None\n"
        done = self.alone("-c", hidden + "import lockstep, lockstep.notebook\n"
                          "print(lockstep.__version__, hasattr(lockstep, 'Options'))")
        self.assertRegex(done.text, r"^\d+\.\d+\.\d+ False\n$")

    def test_without_the_compiled_module(self):
        """The package among the sources has none; the notebook works over torch's own backends."""
        done = self.alone("-c", "import lockstep, lockstep.notebook\nprint(hasattr(lockstep, 'Options'))",
                          PYTHONPATH=os.path.join(support.ROOT, "python"))
        self.assertEqual(done.text, "False\n")

    def test_with_a_broken_torch(self):
        """An error inside torch is not mistaken for its absence."""
        os.mkdir(os.path.join(self.place.folder, "torch"))
        with open(os.path.join(self.place.folder, "torch", "__init__.py"), "w", encoding="utf-8") as file:
            file.write("import a_part_of_torch_that_is_missing\n")
        path = os.pathsep.join([self.place.folder, self.place.environment["PYTHONPATH"]])
        done = self.alone("-c", "import lockstep", PYTHONPATH=path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("No module named 'a_part_of_torch_that_is_missing'", done.text)


if __name__ == "__main__":
    support.main()
