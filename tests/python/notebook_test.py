"""The magics in a real kernel, with two ranks over gloo: what they show, and how everything ends."""

import os
import signal
import subprocess
import sys
import unittest

import support

MISSING = support.missing()
INIT = "%dist_init -n 2 --backend gloo --timeout 120"


def has_lockstep_backend():
    import lockstep  # registers it
    import torch.distributed

    return bool(lockstep) and hasattr(torch.distributed.Backend, "LOCKSTEP")


class WithKernel(unittest.TestCase):
    """One kernel for the tests of a class. Afterwards, none of its processes may remain."""

    @classmethod
    def setUpClass(cls):
        cls.kernel = support.Kernel()
        cls.addClassCleanup(cls.kernel.close)

    def run_cell(self, code):
        output = self.kernel.run(code)
        self.assertIsNone(output.error, output)
        return output

    def fails(self, code, name, *said):
        """The cell must end with this error. Returns its output."""
        output = self.kernel.run(code)
        self.assertIsNotNone(output.error, output)
        self.assertEqual(output.error[0], name, output)
        for text in said:
            self.assertIn(text, output.error[1])
        return output

    def lines(self, code):
        """What the cell printed on stdout, sorted: the ranks run at the same time."""
        return sorted(self.run_cell(code).stdout.splitlines())

    def assert_ranks_work(self):
        self.assertEqual(self.lines("%%rank all\nn = torch.ones(1)\ndist.all_reduce(n)\nn.item()"),
                         ["[rank 0] 2.0", "[rank 1] 2.0"])


@unittest.skipIf(MISSING, MISSING)
class WithoutRanks(WithKernel):
    def test_every_magic_says_how_to_start_ranks(self):
        for code in ("%%rank all\n1", "%pull 0:x", "%push x", "get('ws')", "get('rank')", "%dist_mode all"):
            self.fails(code, "NotebookError", "there are no ranks\nhint: %dist_init")
        self.assertIn("there are no ranks", self.run_cell("%dist_status").stdout)
        self.assertIn("there are no ranks", self.run_cell("%dist_close").stdout)

    def test_arguments(self):
        errors = {"-n 0": "0 is not a number of ranks", "-n two": "invalid int value",
                  "--backend nccl": "invalid choice: 'nccl'", "--timeout 0": "--timeout must be",
                  "--nodes 2": "unrecognized arguments: --nodes 2", '"': "No closing quotation",
                  "--gpu-ids a": "'a' is not a list of GPUs"}
        for line, said in errors.items():
            self.fails(f"%dist_init {line}", "NotebookError", said)

    def test_gpus_need_cuda(self):
        import torch

        if torch.cuda.is_available():
            self.skipTest("this machine has CUDA")
        self.fails("%dist_init -n 2 --gpu-ids 1,2", "NotebookError", "--gpu-ids needs CUDA", "hint: leave")

    def test_a_start_that_fails(self):
        code = "import os\nos.environ['LOCKSTEP_BIN'] = {!r}\n%dist_init -n 1"
        self.fails(code.format("/no/such/file"), "StartError", "LOCKSTEP_BIN names /no/such/file")
        # The program in place of the launcher prints something and ends.
        self.fails(code.format("/bin/echo"), "StartError", "ended before they had started\nrun --nproc-per-")
        self.run_cell(f"os.environ['LOCKSTEP_BIN'] = {os.environ.get('LOCKSTEP_BIN', '')!r}")

    def test_the_default_backend(self):
        started = self.run_cell("%dist_init -n 1").stdout
        self.assertIn(f"1 rank over {'lockstep' if has_lockstep_backend() else 'gloo'}", started)
        self.assertEqual(self.run_cell("%dist_close").stdout, "1 rank ended\n")

    def test_a_backend_that_is_not_there(self):
        if has_lockstep_backend():
            self.skipTest("it is there")
        self.fails("%dist_init -n 1 --backend lockstep", "StartError", "rank 0 could not start",
                   "torch.distributed has no backend lockstep", "hint: use --backend gloo")
        self.assertIn("there are no ranks", self.run_cell("%dist_status").stdout)


@unittest.skipIf(MISSING, MISSING)
class Cells(WithKernel):
    """In ranks that all of these tests use, one after the other."""

    # A rank may be late at any time on a busy machine. With the usual times, that changes what is shown together.
    WAIT_LONG = "call._COLLECT_SECONDS = view.IDLE_SECONDS = 60"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        started = cls.kernel.run(INIT)
        assert "2 ranks over gloo" in started.stdout, started
        cls.kernel.run("from lockstep.notebook import call, view\n" + cls.WAIT_LONG)

    def show_at_once(self):
        """In this test, the kernel does not wait for the rest of a line, or for another rank."""
        self.run_cell("call._COLLECT_SECONDS = view.IDLE_SECONDS = 0.2")
        self.addCleanup(self.run_cell, self.WAIT_LONG)

    def test_selected_ranks(self):
        forms = {"0": [0], "[0]": [0], "0,1": [0, 1], "0-1": [0, 1], "[0, 1]": [0, 1], "all": [0, 1]}
        for line, expected in forms.items():
            self.assertEqual(self.lines(f"%%rank {line}\nprint('here')"),
                             [f"[rank {r}] here" for r in expected])
        self.fails("%%rank 2\n1", "NotebookError", "there is no rank 2: this job has 2 ranks, 0-1")
        self.fails("%%rank\n1", "NotebookError", "%%rank needs the ranks")

    def test_automatic_variables(self):
        self.assertEqual(
            self.lines("%%rank all\n"
                       "print(rank, world_size, local_rank, device, dist.get_rank(), torch.ones(1))\n"
                       "print(get('ws'), get('rank'), get('grank'), get('lrank'))"),
            ["[rank 0] 0 2 0 cpu 0 tensor([1.])", "[rank 0] 2 0 0 0",
             "[rank 1] 1 2 1 cpu 1 tensor([1.])", "[rank 1] 2 1 1 1"])
        self.fails("%%rank all\nget('size')", "CellError", "get('size') is not defined")

    def test_get_in_the_kernel(self):
        self.assertEqual(self.run_cell("get('ws')").value, "2")
        self.fails("get('rank')", "NotebookError", "this process is the kernel, not a rank\nhint: %%rank")

    def test_namespaces_persist_and_are_separate(self):
        self.run_cell("%%rank all\nsecret = 10 + rank")
        self.run_cell("%%rank 1\nsecret += 100")
        self.assertEqual(self.lines("%%rank all\nsecret"), ["[rank 0] 10", "[rank 1] 111"])
        self.fails("secret", "NameError")

    def test_the_value_of_the_last_expression(self):
        self.assertEqual(self.run_cell("%%rank 0\n{'a': [1, 2]}").stdout, "[rank 0] {'a': [1, 2]}\n")
        self.assertEqual(self.run_cell("%%rank 0\n3;").stdout, "")
        self.assertEqual(self.run_cell("%%rank 0\ntorch.arange(4).reshape(2, 2)").stdout,
                         "[rank 0] tensor([[0, 1],\n[rank 0]         [2, 3]])\n")

    def test_output_keeps_its_order(self):
        code = ("%%rank 0\nimport ctypes, os, sys\nprint('1 stdout')\nprint('2 stderr', file=sys.stderr)\n"
                "os.write(1, b'3 descriptor\\n')\nos.system('echo 4 child')\n"
                "ctypes.CDLL(None).puts(b'5 C')\nprint('6 no newline', end='')")
        self.assertEqual(self.run_cell(code).stdout.splitlines(),
                         [f"[rank 0] {line}" for line in
                          ("1 stdout", "2 stderr", "3 descriptor", "4 child", "5 C", "6 no newline")])

    def test_output_is_shown_while_the_cell_runs(self):
        self.show_at_once()
        receive = self.kernel.send("%%rank 0\nimport os, time\nprint('started')\n"
                                   "print('unfinished', end='')\n"
                                   "while not os.path.exists('go'): time.sleep(0.01)")
        output = receive(until=lambda output: "unfinished" in output.stdout)
        self.assertEqual(output.stdout, "[rank 0] started\n[rank 0] unfinished")
        with open(os.path.join(self.kernel.place.folder, "go"), "w", encoding="utf-8"):
            pass
        self.assertIsNone(receive().error)

    def test_much_output(self):
        lines = self.lines("%%rank all\nfor i in range(20000): print(rank, 'x' * 50)")
        self.assertEqual(len(lines), 40000)
        self.assertEqual(set(lines), {f"[rank {r}] {r} {'x' * 50}" for r in (0, 1)})

    def test_output_between_cells_is_shown_with_the_next(self):
        self.run_cell("%%rank 0\nimport threading\nevent = threading.Event()\n"
                      "thread = threading.Thread(target=lambda: (event.wait(), print('late')))\n"
                      "thread.start()")
        self.assertEqual(self.run_cell("%%rank 0\nevent.set(); thread.join()").stdout, "[rank 0] late\n")

    def test_errors_have_the_lines_of_the_cell(self):
        code = "%%rank all\ndef divide(x):\n    return 1 / x\n\ndivide(0)"
        output = self.fails(code, "CellError",
                            "the cell failed on rank 0-1: ZeroDivisionError: division by zero")
        shown = output.stderr.splitlines()
        self.assertEqual(shown[0], "[rank 0-1] Traceback (most recent call last):")
        self.assertIn("[rank 0-1]     return 1 / x", shown)
        self.assertEqual(shown[-1], "[rank 0-1] ZeroDivisionError: division by zero")
        self.assertNotIn("notebook", output.stderr)
        self.assertEqual(output.stderr.count("Traceback"), 1)
        # The function keeps its source when later cells have run.
        output = self.fails("%%rank 1\ndivide(0)", "CellError", "failed on rank 1:")
        self.assertIn("[rank 1]     return 1 / x", output.stderr)
        self.assertIn("[rank 1]     divide(0)", output.stderr)

    def test_different_errors_are_shown_separately(self):
        output = self.fails("%%rank all\nprint('before')\nraise ValueError(f'I am {rank}')", "CellError",
                            "the cell failed on rank 0-1: ValueError: I am 0")
        self.assertIn("[rank 0] ValueError: I am 0", output.stderr)
        self.assertIn("[rank 1] ValueError: I am 1", output.stderr)
        self.assertEqual(sorted(output.stdout.splitlines()), ["[rank 0] before", "[rank 1] before"])

    def test_other_errors(self):
        output = self.fails("%%rank 0\nx = = 1", "CellError", "SyntaxError: invalid syntax")
        self.assertIn("[rank 0]     x = = 1", output.stderr)
        self.assertNotIn("Traceback", output.stderr)
        self.fails("%%rank 0\n1\n!ls", "CellError", "hint: magics and shell commands run in the kernel")
        self.fails("%%rank 0\nimport sys\nsys.exit(3)", "CellError", "SystemExit: 3")
        self.fails("%%rank 0\ninput()", "CellError", "EOFError")
        self.assert_ranks_work()

    def test_a_rank_that_fails_alone_is_shown_at_once(self):
        self.show_at_once()
        receive = self.kernel.send("%%rank all\nimport os, time\nif rank == 0: raise KeyError('first')\n"
                                   "while not os.path.exists('done'): time.sleep(0.01)")
        output = receive(until=lambda output: "hint: interrupt" in output.stderr)
        self.assertIn("[rank 0] KeyError: 'first'", output.stderr)
        self.assertIn("rank 0 failed, rank 1 is still running the cell", output.stderr)
        with open(os.path.join(self.kernel.place.folder, "done"), "w", encoding="utf-8"):
            pass
        self.assertEqual(receive().error[0], "CellError")

    def test_pull(self):
        self.run_cell("%%rank all\nx = torch.full((2,), float(rank))\nobjects = {'a': [rank]}")
        self.assertEqual(self.run_cell("%pull 1:x\nx").value, "tensor([1., 1.])")
        self.assertEqual(self.run_cell("%pull 0,1:x\nx").value, "{0: tensor([0., 0.]), 1: tensor([1., 1.])}")
        self.assertEqual(self.run_cell("%pull all:x objects\nobjects").value,
                         "{0: {'a': [0]}, 1: {'a': [1]}}")
        self.assertEqual(self.run_cell("%pull 1:objects\nobjects").value, "{'a': [1]}")

    def test_what_cannot_be_pulled(self):
        self.run_cell("%%rank all\nfunction = lambda: 1\nclass Point: pass\npoint = Point()")
        self.fails("%pull 0:function", "CellError",
                   "%pull of function failed on rank 0: its type, function, cannot be pickled",
                   "hint: pull the data it is made from")
        self.fails("%pull all:nothing", "CellError",
                   "%pull of nothing failed on rank 0-1: there is no such variable")
        self.fails("%pull 0:point", "NotebookError", "point of rank 0 cannot be loaded in the kernel",
                   "hint: run the cell that defines its class")
        self.run_cell("class Point: pass\n%pull 0:point")
        self.fails("%pull x", "NotebookError", "hint: write %pull 0:x")
        self.fails("%pull 0:x.y", "NotebookError", "'x.y' is not the name of a variable")

    def test_push(self):
        self.run_cell("import torch\na, b = torch.ones(2), {'b': 1}\n%push a b")
        self.assertEqual(self.lines("%%rank all\na, b"),
                         [f"[rank {r}] (tensor([1., 1.]), {{'b': 1}})" for r in (0, 1)])
        self.run_cell("a = 5\n%push 1:a")
        self.assertEqual(self.lines("%%rank all\na"), ["[rank 0] tensor([1., 1.])", "[rank 1] 5"])
        self.fails("f = lambda: 1\n%push f", "NotebookError",
                   "%push of f: its type, function, cannot be pickled", "hint: create it on the ranks")
        self.fails("class Here: pass\nhere = Here()\n%push here", "CellError", "here cannot be loaded",
                   "hint: run the cell that defines its class on the ranks")
        self.fails("%push nothing", "NotebookError", "the kernel has no variable nothing")
        self.fails("%push 0:", "NotebookError", "is not the name of a variable")

    def test_large_values(self):
        self.run_cell("import torch\nbig = torch.arange(4 << 20)\n%push big")
        self.assertEqual(self.lines("%%rank all\nbig += rank\nint(big[-1])"),
                         ["[rank 0] 4194303", "[rank 1] 4194304"])
        self.assertEqual(self.run_cell("%pull all:big\n[int(t.sum() - torch.arange(4 << 20).sum()) "
                                       "for t in big.values()]").value, "[0, 4194304]")

    def test_plain_cells_on_all_ranks(self):
        self.run_cell("where = 'kernel'")
        self.assertIn("plain cells run on all ranks", self.run_cell("%dist_mode all").stdout)
        try:
            self.run_cell("where = f'rank {rank}'")
            self.assertEqual(self.lines("where"), ["[rank 0] 'rank 0'", "[rank 1] 'rank 1'"])
            self.assertEqual(self.lines("%%rank 1\nwhere"), ["[rank 1] 'rank 1'"])
            self.fails("raise KeyError", "CellError")
            self.assertIn("on all ranks", self.run_cell("%dist_status").stdout)
        finally:
            self.run_cell("%dist_mode local")
        self.assertEqual(self.run_cell("where").value, "'kernel'")
        self.fails("%dist_mode both", "NotebookError", "'both' is not a mode\nhint: use all or local")

    def test_status(self):
        lines = self.run_cell("%dist_status").stdout.splitlines()
        self.assertEqual(lines[0], "2 ranks over gloo; plain cells run in the kernel")
        for rank, (line, pid) in enumerate(zip(lines[1:], self.kernel.ranks(), strict=True)):
            self.assertEqual(line, f"  rank {rank}: pid {pid}, cpu, idle")
            os.kill(pid, 0)

    def test_a_second_start_is_refused(self):
        self.fails(INIT, "NotebookError", "2 ranks are running already\nhint: %dist_close")
        self.assert_ranks_work()

    def test_torch_ddp(self):
        code = ("%%rank all\ntorch.manual_seed(rank)\nddp = torch.nn.parallel.DistributedDataParallel("
                "torch.nn.Linear(2, 1))\nddp(torch.randn(4, 2)).sum().backward()\n"
                "grads = [torch.zeros(1, 2) for _ in range(world_size)]\n"
                "dist.all_gather(grads, ddp.module.weight.grad)\nprint(torch.equal(*grads))")
        self.assertEqual(self.lines(code), ["[rank 0] True", "[rank 1] True"])


@unittest.skipIf(MISSING, MISSING)
class Interrupts(WithKernel):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.kernel.run(INIT)

    def interrupted(self, code):
        """Interrupts the kernel when both ranks have printed something."""
        receive = self.kernel.send(code)
        receive(until=lambda output: all(f"[rank {r}] ready" in output.stdout for r in (0, 1)))
        self.kernel.interrupt()
        return receive()

    def test_the_ranks_stay_usable(self):
        for work in ("import time\ntime.sleep(600)", "while True: pass", "while True: print('more')"):
            output = self.interrupted(f"%%rank all\nprint('ready')\n{work}")
            self.assertEqual(output.error, ("CellInterrupted", "the cell was interrupted on rank 0-1"))
            self.assertIn("KeyboardInterrupt", output.stderr)
            self.assertNotIn("worker.py", output.stderr)
            self.assert_ranks_work()

    def test_a_cell_may_handle_it(self):
        output = self.interrupted("%%rank all\nimport time\nprint('ready')\ntry:\n    time.sleep(600)\n"
                                  "except KeyboardInterrupt:\n    print('caught')")
        self.assertEqual(sorted(output.stdout.splitlines())[0], "[rank 0] caught")
        self.assert_ranks_work()

    def test_an_interrupt_at_the_start_of_a_cell(self):
        # The rank is stopped, so it receives the signal together with the cell.
        pid = self.kernel.ranks()[0]
        os.kill(pid, signal.SIGSTOP)
        receive = self.kernel.send("print('sent')\nget_ipython().run_cell_magic('rank', '0', "
                                   "'import time; time.sleep(600)')")
        receive(until=lambda output: "sent" in output.stdout)
        self.kernel.interrupt()
        os.kill(pid, signal.SIGCONT)
        self.assertIn(receive().error[0], ("CellInterrupted", "KeyboardInterrupt"))
        self.assert_ranks_work()

    def test_an_interrupt_while_a_cell_is_sent(self):
        self.run_cell("import os, signal\nfrom unittest import mock\nfrom lockstep.notebook.peer import Peer\n"
                      "start = Peer.start\ndef interrupted(*arguments):\n    start(*arguments)\n"
                      "    os.kill(os.getpid(), signal.SIGINT)")
        self.fails("with mock.patch.object(Peer, 'start', interrupted):\n    get_ipython().run_cell_magic("
                   "'rank', '0', 'import time; time.sleep(600)')", "CellInterrupted")
        self.assert_ranks_work()

    def test_a_cell_that_does_not_end_is_named(self):
        output = self.interrupted("%%rank all\nimport time\nprint('ready')\nwhile True:\n    try:\n"
                                  "        time.sleep(600)\n    except KeyboardInterrupt:\n        pass")
        self.assertIn("its code has caught KeyboardInterrupt", output.error[1])
        self.run_cell("%dist_close")  # does not depend on them
        self.run_cell(INIT)

    def test_an_idle_rank_ignores_it(self):
        for pid in self.kernel.ranks():
            os.kill(pid, signal.SIGINT)
        self.assert_ranks_work()

    def test_a_rank_inside_cpp_code_is_named(self):
        receive = self.kernel.send("%%rank 0\nx = torch.zeros(1)\nprint('ready')\ndist.recv(x, 1)")
        receive(until=lambda output: "ready" in output.stdout)
        self.kernel.interrupt()
        name, message = receive().error
        self.assertEqual(name, "CellInterrupted")
        self.assertIn("rank 0 did not return within", message)
        self.assertIn("end all ranks with %dist_close", message)
        self.assertIn("cpu, still running an interrupted cell", self.run_cell("%dist_status").stdout)
        self.fails("%%rank all\n1", "NotebookError", "rank 0 is still running an interrupted cell\nhint:")
        # The call that it waits for frees it.
        self.run_cell("%%rank 1\ndist.send(torch.ones(1), 0)")
        support.wait_until(lambda: "interrupted" not in self.run_cell("%dist_status").stdout,
                           "rank 0 is not free")
        self.assertEqual(self.lines("%%rank 0\nx"), ["[rank 0] tensor([1.])"])
        self.assert_ranks_work()


@unittest.skipIf(MISSING, MISSING)
class Deaths(WithKernel):
    def start(self):
        self.run_cell(INIT)
        return self.kernel.ranks()

    def test_a_rank_that_is_killed(self):
        pids = self.start()
        receive = self.kernel.send("%%rank all\nimport time\nprint('ready')\ntime.sleep(600)")
        receive(until=lambda output: output.stdout.count("ready") == 2)
        os.kill(pids[1], signal.SIGKILL)
        name, message = receive().error
        self.assertEqual(name, "RanksEnded")
        self.assertIn(f"rank 1 was killed by signal 9 (Killed) (pid {pids[1]}); the cell on rank 0 was "
                      "stopped because of it\nhint: SIGKILL comes from", message)
        self.assertIn("hint: %dist_init starts new ranks", message)
        for code in ("%%rank 0\n1", "%pull 0:x", "get('ws')"):
            self.fails(code, "RanksEnded", "the ranks have ended: rank 1 was killed by signal 9 (Killed)",
                       "hint: %dist_init")
        self.assertIn("the ranks have ended: rank 1 was killed", self.run_cell("%dist_status").stdout)
        # New ones may start without %dist_close.
        self.start()
        self.assert_ranks_work()
        self.run_cell("%dist_close")

    def test_a_rank_that_exits(self):
        self.start()
        output = self.fails("%%rank all\nimport os\nif rank == 0:\n    os.write(2, b'last words')\n"
                            "    os._exit(5)\ndist.barrier()", "RanksEnded", "rank 0 exited with status 5")
        self.assertIn("[rank 0] last words", output.stdout)

    def test_a_rank_that_exits_with_status_0(self):
        self.start()
        self.fails("%%rank all\nimport os, time\nif rank == 1: os._exit(0)\ntime.sleep(600)", "RanksEnded",
                   "rank 1 exited with status 0", "the cell on rank 0 was stopped because of it",
                   "hint: do not call os._exit")

    def test_a_rank_whose_end_nobody_explains(self):
        self.start()
        self.run_cell("from lockstep.notebook import cluster\n"
                      "seconds, cluster._REPORT_SECONDS = cluster._REPORT_SECONDS, 0.1")
        self.addCleanup(self.run_cell, "cluster._REPORT_SECONDS = seconds")
        self.fails("%%rank 1\nimport ctypes\nctypes.CDLL(None)._exit(0)", "RanksEnded", "rank 1 has ended (pid ",
                   "); the launcher did not say how\nhint: %dist_init")

    def test_a_rank_that_dies_before_the_end(self):
        pids = self.start()
        os.kill(pids[0], signal.SIGKILL)
        support.wait_until(lambda: not os.path.exists(f"/proc/{pids[0]}"), "rank 0 is alive")
        output = self.run_cell("%dist_close").stdout
        self.assertIn("rank 0 was killed by signal 9", output)
        self.assertNotIn("2 ranks ended", output)

    def test_a_rank_that_crashes(self):
        self.start()
        self.fails("%%rank 1\nimport ctypes\nctypes.string_at(0)", "RanksEnded",
                   "rank 1 was killed by signal 11")

    def test_a_rank_that_dies_between_cells(self):
        pids = self.start()
        os.kill(pids[0], signal.SIGKILL)
        support.wait_until(lambda: pids[0] not in support.marked(self.kernel.place.mark), "rank 0 is alive")
        self.fails("%%rank 1\n1", "RanksEnded", "rank 0 was killed by signal 9")

    def test_a_rank_that_leaves_a_child(self):
        pids = self.start()
        # The child has inherited the socket and the output of the rank, so neither of them ends.
        receive = self.kernel.send("%%rank 1\nimport os, time\nif os.fork() == 0:\n    time.sleep(600)\n"
                                   "    os._exit(0)\nprint('ready')\ntime.sleep(600)")
        receive(until=lambda output: "ready" in output.stdout)
        os.kill(pids[1], signal.SIGKILL)
        self.assertIn("rank 1 was killed by signal 9", receive().error[1])

    def test_the_launcher_dies(self):
        pids = self.start()
        with open(f"/proc/{pids[0]}/stat", encoding="utf-8") as file:
            agent = int(file.read().rpartition(")")[2].split()[1])
        os.kill(agent, signal.SIGKILL)
        support.wait_until(lambda: not set(pids) & set(support.marked(self.kernel.place.mark)),
                           "ranks are alive")
        self.fails("%%rank 1\n1", "RanksEnded", "the agent of this job")


@unittest.skipIf(MISSING, MISSING)
class KernelEnds(unittest.TestCase):
    """However the kernel ends, the ranks end with it; Kernel.close() checks that no process remains."""

    def setUp(self):
        self.kernel = support.Kernel()
        self.addCleanup(self.kernel.close)
        self.kernel.run(INIT)
        self.assertEqual(len(self.kernel.ranks()), 2)

    def test_close(self):
        self.assertIn("2 ranks ended", self.kernel.run("%dist_close").stdout)
        self.assertEqual(support.marked(self.kernel.place.mark), [self.kernel.pid])

    def test_close_shows_the_last_output(self):
        self.kernel.run("%%rank 0\nimport atexit, os, threading, time\natexit.register(print, 'at exit')\n"
                        "def body():\n    while not os.path.exists('go'): time.sleep(0.01)\n"
                        "    print('after the cell')\nthreading.Thread(target=body).start()")
        with open(os.path.join(self.kernel.place.folder, "go"), "w", encoding="utf-8"):
            pass
        output = self.kernel.run("%dist_close").stdout
        self.assertEqual(output, "[rank 0] after the cell\n[rank 0] at exit\n2 ranks ended\n")

    def test_shutdown(self):
        self.kernel.manager.shutdown_kernel(now=False)

    def test_unload(self):
        self.kernel.run("%unload_ext lockstep")
        self.assertEqual(support.marked(self.kernel.place.mark), [self.kernel.pid])

    def test_restart(self):
        before = set(support.marked(self.kernel.place.mark)) - {self.kernel.pid}
        self.kernel.manager.restart_kernel(now=True)
        self.kernel.client.wait_for_ready(timeout=support.PATIENCE_SECONDS)
        support.wait_until(lambda: not before & set(support.marked(self.kernel.place.mark)), "ranks remain")

    def test_kill_while_a_cell_runs(self):
        receive = self.kernel.send("%%rank all\nimport time\nprint('ready')\ntime.sleep(600)")
        receive(until=lambda output: output.stdout.count("ready") == 2)
        os.kill(self.kernel.pid, signal.SIGKILL)

    def test_kill_while_no_rank_can_run_python(self):
        # Through PyDLL, the call keeps Python's lock: no other thread of the rank can notice anything.
        receive = self.kernel.send("%%rank all\nimport ctypes\nprint('ready')\n"
                                   "ctypes.PyDLL(None).sleep(600)")
        receive(until=lambda output: output.stdout.count("ready") == 2)
        os.kill(self.kernel.pid, signal.SIGKILL)


@unittest.skipIf(MISSING, MISSING)
class OtherFrontends(unittest.TestCase):
    def setUp(self):
        self.place = support.Marked()
        self.addCleanup(self.place.close)

    def run_program(self, *arguments, typed=""):
        return subprocess.run([sys.executable, *arguments], input=typed, env=self.place.environment,
                              cwd=self.place.folder, capture_output=True, text=True,
                              timeout=support.PATIENCE_SECONDS)

    def test_ipython_without_a_kernel(self):
        cells = ["%load_ext lockstep", INIT, "%%rank all\nprint('hello')",
                 "%%rank 1\nraise ValueError('no')", "%dist_mode all", "x = rank", "%pull all:x",
                 "%dist_mode local", "print(x)"]
        script = ("from IPython.core.interactiveshell import InteractiveShell\n"
                  "shell = InteractiveShell.instance()\n"
                  f"print([shell.run_cell(cell).success for cell in {cells!r}])\n")
        # The ranks are not closed: that is left to the end of the process.
        done = self.run_program("-c", script)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("[rank 0] hello\n", done.stdout)
        self.assertIn("[rank 1] hello\n", done.stdout)
        self.assertIn("CellError: the cell failed on rank 1: ValueError: no", done.stdout)
        self.assertIn("{0: 0, 1: 1}", done.stdout)
        self.assertEqual(done.stdout.splitlines()[-1], str([cell != cells[3] for cell in cells]))

    def test_terminal_ipython(self):
        lines = ["%load_ext lockstep", INIT, "%dist_mode all", "rank * 2", "exit"]
        done = self.run_program("-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor",
                                typed="\n".join(lines) + "\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("[rank 0] 0\n", done.stdout)
        self.assertIn("[rank 1] 2\n", done.stdout)

    def test_nbclient_stops_at_the_cell_that_fails(self):
        import nbclient
        import nbformat

        cells = ["%load_ext lockstep", INIT, "%%rank all\nprint('hello')",
                 "%%rank 0\nraise ValueError('no')", "print('not reached')"]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        client = nbclient.NotebookClient(notebook, timeout=support.PATIENCE_SECONDS, kernel_name="python3",
                                         resources={"metadata": {"path": self.place.folder}})
        with self.assertRaisesRegex(nbclient.exceptions.CellExecutionError, "rank 0: ValueError: no"):
            client.execute(env=self.place.environment)
        self.assertIn("[rank 1] hello", notebook.cells[2].outputs[0].text)
        self.assertEqual(notebook.cells[4].outputs, [])


if __name__ == "__main__":
    support.main()
