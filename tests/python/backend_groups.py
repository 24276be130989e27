"""Groups: subsets, settings, other backends in the same process; and what the profiler shows."""

import datetime

import torch
import torch.distributed as dist
from job import RankCase
from torch import profiler

import lockstep


class Groups(RankCase):
    def total(self, group, expected):
        tensor = torch.tensor([float(self.rank + 1)])
        dist.all_reduce(tensor, group=group)
        self.equal(tensor, [float(expected)])

    def test_the_backend_has_a_name(self):
        self.assertEqual(dist.get_backend(), "lockstep")
        self.assertEqual(dist.get_backend(self.group), "lockstep")
        self.assertEqual(dist.Backend("lockstep"), "lockstep")

    def test_a_subset(self):
        members = [self.world - 1, 0]
        group = dist.new_group(members)
        if self.rank in members:
            self.assertEqual(dist.get_world_size(group), 2)
            self.total(group, 1 + self.world)
        else:
            self.assertIs(group, dist.GroupMember.NON_GROUP_MEMBER)
        alone = dist.new_group([1])
        if self.rank == 1:
            self.total(alone, 2)

    def test_ranks_of_a_subset_count_from_zero(self):
        if self.world < 3:
            self.skipTest("needs three ranks")
        group = dist.new_group([1, 2])
        if self.rank == 0:
            return
        self.assertEqual(dist.get_rank(group), self.rank - 1)
        tensor = torch.tensor([self.rank])
        dist.broadcast(tensor, 2, group=group)  # torch takes the root's rank in the world
        self.equal(tensor, [2])
        if self.rank == 1:
            dist.send(torch.tensor([7]), 2, group=group)
        else:
            # In the world, the source is rank 1. Several machines need to be told.
            self.assertEqual(dist.recv(tensor, 1 if self.engine == "hybrid" else None, group=group), 1)
            self.equal(tensor, [7])

    def test_overlapping_groups(self):
        pairs = {(a, b): dist.new_group([a, b]) for a in range(self.world) for b in range(a + 1, self.world)}
        # Calls in different groups are independent; all ranks go through the groups in the same order.
        for (a, b), group in [*pairs.items(), *reversed(pairs.items())]:
            if self.rank in (a, b):
                self.total(group, a + b + 2)
        works = []
        for (a, b), group in pairs.items():
            if self.rank in (a, b):
                tensor = torch.tensor([float(self.rank + 1)])
                works.append((dist.all_reduce(tensor, group=group, async_op=True), tensor, a + b + 2))
        for work, tensor, expected in reversed(works):
            work.wait()
            self.equal(tensor, [float(expected)])

    def test_groups_used_in_different_orders(self):
        first, second = dist.new_group(), dist.new_group()
        groups = (first, second) if self.rank else (second, first)
        tensors = [torch.ones(1000), torch.ones(1000)]
        works = [dist.all_reduce(tensor, group=group, async_op=True)
                 for tensor, group in zip(tensors, groups, strict=True)]
        for work, tensor in zip(works, tensors, strict=True):
            work.wait()
            self.equal(tensor, [float(self.world)] * 1000)

    def test_many_groups(self):
        for _ in range(20):
            group = dist.new_group()
            self.total(group, sum(range(1, self.world + 1)))
            dist.destroy_process_group(group)

    def test_destroying_one_leaves_the_others(self):
        group = dist.new_group()
        self.total(group, sum(range(1, self.world + 1)))
        dist.destroy_process_group(group)
        self.total(self.group, sum(range(1, self.world + 1)))

    def test_while_a_rank_waits_in_the_store(self):
        """Ranks 0 and 2 do not need rank 1, which waits in a store that serves one call at a time."""
        if self.world < 3:
            self.skipTest("needs three ranks")
        store = dist.PrefixStore("waits", dist.distributed_c10d._get_default_store())
        failed = []
        for number in range(30):
            group = dist.new_group(timeout=datetime.timedelta(seconds=5))
            try:
                if self.rank == 0:
                    dist.send(torch.ones(2), 2, group=group)
                elif self.rank == 2:
                    dist.recv(torch.zeros(2), 0, group=group)
            except lockstep.Error as error:
                failed.append(str(error))
            if self.rank == 0:
                store.set(str(number), "failed" if failed else "received")
            if store.get(str(number)) == b"failed":
                break
        self.assertEqual(failed, [])

    def test_next_to_gloo(self):
        gloo = dist.new_group(backend="gloo")
        self.assertEqual(dist.get_backend(gloo), "gloo")
        mine, theirs = torch.ones(10), torch.ones(10)
        works = [dist.all_reduce(mine, group=self.group, async_op=True),
                 dist.all_reduce(theirs, group=gloo, async_op=True)]
        for work in works:
            work.wait()
        self.equal(mine, theirs)
        dist.monitored_barrier(gloo)  # Gloo's own
        dist.monitored_barrier(self.group)
        dist.destroy_process_group(gloo)

    def test_an_error_of_gloo_is_still_a_plain_one(self):
        gloo = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=30))
        with self.assertRaises(RuntimeError) as caught:
            dist.all_reduce(torch.ones(2).to_sparse(), dist.ReduceOp.MAX, group=gloo)
        self.assertNotIsInstance(caught.exception, lockstep.Error)


class Settings(RankCase):
    def works(self, group):
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group)
        self.equal(tensor, [float(self.world)] * 2)

    def names(self, group):
        with profiler.profile(activities=[profiler.ProfilerActivity.CPU]) as profile:
            self.works(group)
        return {event.key for event in profile.key_averages()}

    def test_the_transport(self):
        ours = f"{self.engine}:all_reduce"
        self.assertIn(ours, self.names(dist.new_group(pg_options=lockstep.Options())))
        self.assertIn(ours, self.names(dist.new_group(pg_options=lockstep.Options(self.engine))))
        names = self.names(dist.new_group(pg_options=lockstep.Options("gloo")))
        self.assertIn("gloo:all_reduce", names)
        self.assertNotIn(ours, names)

    def test_a_transport_that_does_not_exist(self):
        with self.fails(lockstep.UsageError, 'lockstep.Options has no backend "nccl"',
                        'hint: use "auto", "shm", "hybrid" or "gloo"'):
            lockstep.Options("nccl")
        self.assertEqual(repr(lockstep.Options("shm")), "lockstep.Options(backend='shm')")

    def test_options_of_another_type(self):
        # Alone: the others need not take part in what cannot start.
        with self.fails(lockstep.UsageError, "must be lockstep.Options, but they are dict", "hint: pass"):
            lockstep.backend._create(None, {"backend": "shm"})

    def test_what_the_profiler_shows(self):
        with profiler.profile(activities=[profiler.ProfilerActivity.CPU]) as profile:
            dist.all_reduce(torch.ones(4), group=self.group)
            dist.broadcast(torch.ones(4), 0, group=self.group)
            dist.reduce(torch.ones(4), 0, group=self.group)
            dist.all_gather([torch.zeros(4) for _ in range(self.world)], torch.ones(4), group=self.group)
            dist.barrier(self.group)
            if self.rank < 2:
                (dist.send if self.rank == 0 else dist.recv)(torch.ones(4), 1 - self.rank, group=self.group)
        names = {event.key for event in profile.key_averages()}
        calls = {"all_reduce", "broadcast", "reduce", "all_gather", "barrier"}
        if self.rank < 2:
            calls.add("send" if self.rank == 0 else "recv")
        expected = {"c10d::allreduce_", *(f"{self.engine}:{call}" for call in calls)}
        self.assertEqual(expected - names, set())
