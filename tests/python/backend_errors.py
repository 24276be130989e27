"""What goes wrong, as Python sees it: the class, the words and the ranks of an error. A test's group is poisoned by
it, so each of these tests makes its own mistake in its own group."""

import datetime

import torch
import torch.distributed as dist
from job import RankCase

import lockstep

# Long enough for three ranks to connect, and to enter a barrier, while the cores are busy with something else.
SHORT = datetime.timedelta(seconds=5)
# For calls that the other ranks do not make at all.
SHORTER = datetime.timedelta(milliseconds=500)


class Classes(RankCase):
    worlds = (2,)

    def test_all_are_runtime_errors(self):
        for kind in (lockstep.UsageError, lockstep.MismatchError, lockstep.PeerLostError, lockstep.TimeoutError,
                     lockstep.SystemError):
            self.assertTrue(issubclass(kind, lockstep.Error))
            self.assertTrue(issubclass(kind, RuntimeError))
            self.assertEqual(kind.__module__, "lockstep")
            self.assertEqual(tuple(kind("made by a program").culprits), ())


class Mismatches(RankCase):
    WORDS = ("the ranks do not make the same call", "hint: all ranks must make the same calls in the same order")

    def both_fail(self, call, *said):
        with self.fails(lockstep.MismatchError, *self.WORDS, *said):
            call()

    def test_sizes(self):
        self.both_fail(lambda: dist.all_reduce(torch.ones(3 + (self.rank == 1)), group=self.group),
                       "all_reduce of 3 Float, Sum", "all_reduce of 4 Float, Sum")

    def test_dtypes(self):
        dtype = torch.int64 if self.rank == 1 else torch.float32
        self.both_fail(lambda: dist.all_reduce(torch.ones(3, dtype=dtype), group=self.group),
                       "all_reduce of 3 Float, Sum", "all_reduce of 3 Long, Sum")

    def test_operations(self):
        operation = dist.ReduceOp.MAX if self.rank == 1 else dist.ReduceOp.SUM
        self.both_fail(lambda: dist.all_reduce(torch.ones(3), operation, group=self.group),
                       "all_reduce of 3 Float, Sum", "all_reduce of 3 Float, Max")

    def test_roots(self):
        self.both_fail(lambda: dist.broadcast(torch.ones(3), int(self.rank == 1), group=self.group),
                       "broadcast of 3 Float", "root 0", "root 1")

    def test_collectives(self):
        def call():
            if self.rank == 1:
                dist.barrier(self.group)
            else:
                dist.all_reduce(torch.ones(3), group=self.group)

        self.both_fail(call, "all_reduce of 3 Float, Sum", "barrier")

    def test_sparse_sizes(self):
        tensor = torch.sparse_coo_tensor([[0]], [1.0], (4 + (self.rank == 1),))
        with self.fails(lockstep.MismatchError):
            dist.all_reduce(tensor, group=self.group)

    def test_asynchronous_calls(self):
        work = dist.all_reduce(torch.ones(3 + (self.rank == 1)), group=self.group, async_op=True)
        self.both_fail(work.wait, "all_reduce of 3 Float")
        self.assertTrue(work.is_completed())
        # A future is completed with the error, too.
        self.both_fail(lambda: work.get_future().wait())

    def test_later_calls_repeat_the_error(self):
        self.both_fail(lambda: dist.all_reduce(torch.ones(3 + (self.rank == 1)), group=self.group))
        for again in (lambda: dist.all_reduce(torch.ones(1), group=self.group),
                      lambda: dist.barrier(self.group),
                      lambda: dist.barrier(self.group, async_op=True).wait(),
                      lambda: dist.send(torch.ones(1), self.others[0], group=self.group)):
            self.both_fail(again, "all_reduce of 3 Float")
        # Other groups of the same ranks still work.
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        self.equal(tensor, [float(self.world)])


class Timeouts(RankCase):
    """Rank 1 does not arrive. It waits in the store until the others have seen that."""

    worlds = (3,)

    def setUp(self):
        super().setUp()
        # Connects all ranks. That needs the store, which a rank that waits in it does not share.
        dist.barrier(self.group)
        self.store = dist.PrefixStore(self.id(), dist.distributed_c10d._get_default_store())

    def short_group(self):
        group = dist.new_group(timeout=SHORT)
        dist.barrier(group)
        return group

    def is_late(self):
        """In rank 1: waits for the others; in those: False."""
        if self.rank == 1:
            self.store.wait([f"seen {rank}" for rank in self.others])
        return self.rank == 1

    def seen(self):
        self.store.set(f"seen {self.rank}", "1")

    def test_a_collective(self):
        group = self.short_group()
        if self.is_late():
            return
        try:
            with self.assertRaises(lockstep.TimeoutError) as caught:
                dist.all_reduce(torch.ones(3), group=group)
        finally:
            self.seen()
        text = str(caught.exception)
        for said in ("all_reduce of 3 Float, Sum", "Timed out", "rank 1", "hint: "):
            self.assertIn(said, text)
        # Rank 2 of another machine learns it from rank 0, or its own wait ends in the same moment.
        alone = self.engine == "hybrid" and self.rank == 2
        self.assertRegex(text, r"has not arrived" + (r"|not waiting in any collective: rank 1 \(" if alone else ""))
        self.assertNotIn("frame #", text)
        self.assertEqual(list(caught.exception.culprits), [1])
        self.assertIsInstance(caught.exception, RuntimeError)

    def test_a_message(self):
        group = self.short_group()
        if self.rank != 0:
            self.store.wait(["seen 0"])
            return
        try:
            with self.fails(lockstep.TimeoutError, "recv of 2 Float from rank 1"):
                dist.recv(torch.zeros(2), 1, group=group)
        finally:
            self.seen()

    def test_a_group_keeps_its_own(self):
        # A group with a long timeout waits, although another one has a short one.
        short = self.short_group()
        if self.is_late():
            dist.barrier(self.group)
            return
        work = dist.barrier(self.group, async_op=True)
        try:
            with self.fails(lockstep.TimeoutError):
                dist.barrier(short)
            self.assertFalse(work.is_completed())
        finally:
            self.seen()
        work.wait()

    def monitored(self, timeout, wait_all_ranks):
        with self.assertRaises(lockstep.TimeoutError) as caught:
            dist.monitored_barrier(self.group, timeout, wait_all_ranks=wait_all_ranks)
        return caught.exception

    def test_monitored_barrier_names_the_rank(self):
        if self.is_late():
            return
        try:
            text = str(self.monitored(SHORT, wait_all_ranks=False))
        finally:
            self.seen()
        if self.rank == 0:
            self.assertIn("Rank 1 failed to pass monitoredBarrier in 5000 ms", text)
        else:
            self.assertIn(f"Rank {self.rank} successfully reached monitoredBarrier", text)
        self.assertNotIn("frame #", text)

    def test_monitored_barrier_names_all_ranks(self):
        if self.rank != 0:
            self.store.wait(["seen 0"])
            return
        try:
            text = str(self.monitored(SHORTER, wait_all_ranks=True))
        finally:
            self.seen()
        ranks = ", ".join(map(str, self.others))
        self.assertIn(f"Ranks {ranks} failed to pass monitoredBarrier in 500 ms", text)

    def test_monitored_barrier_has_culprits(self):
        if self.rank != 0:
            self.store.wait(["seen 0"])
            return
        try:
            error = self.monitored(SHORTER, wait_all_ranks=True)
        finally:
            self.seen()
        self.assertEqual(list(error.culprits), self.others)
