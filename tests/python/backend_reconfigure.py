"""What torch.distributed has since PyTorch 2.13: other members for a group, hooks, collectives on single tensors."""

import datetime
import unittest

import torch
import torch.distributed as dist
from job import RankCase

import lockstep

WITHOUT = "" if hasattr(dist, "_reconfigure") else f"PyTorch {torch.__version__} has no reconfigure"


@unittest.skipIf(WITHOUT, WITHOUT)
class Members(RankCase):
    def handles(self):
        handles = [None] * self.world
        dist.all_gather_object(handles, dist._get_reconfigure_handle(self.group))
        return handles

    def total(self, expected):
        tensor = torch.tensor([2.0**self.rank])
        dist.all_reduce(tensor, group=self.group)
        self.equal(tensor, [float(expected)])

    def everyone(self):
        return 2**self.world - 1

    def test_fewer_and_more_again(self):
        self.assertTrue(dist._supports_reconfigure(self.group))
        self.total(self.everyone())
        handles = self.handles()
        last = self.world - 1
        if self.rank < last:
            dist._reconfigure(1, handles[:last], group=self.group).wait()
            self.assertEqual((self.group.rank(), self.group.size()), (self.rank, last))
            self.total(2**last - 1)
        dist._reconfigure(2, handles[::-1], group=self.group).wait()
        self.assertEqual((self.group.rank(), self.group.size()), (last - self.rank, self.world))
        self.total(self.everyone())

    def test_in_any_order(self):
        dist._reconfigure(1, set(self.handles()), group=self.group).wait()
        self.assertEqual(self.group.size(), self.world)
        self.total(self.everyone())

    def test_a_mistake(self):
        handles = self.handles()
        with self.fails(lockstep.UsageError, "the handle of this rank is not among the 0"):
            dist._reconfigure(1, [], group=self.group)
        dist._reconfigure(1, handles, group=self.group).wait()
        with self.fails(lockstep.UsageError, "already used"):
            dist._reconfigure(1, handles, group=self.group)
        self.total(self.everyone())

    def test_gloo_cannot_wait_for_its_members(self):
        settings = dist.distributed_c10d._DistributedBackendOptions()
        settings.store, settings.group_rank, settings.group_size = dist.HashStore(), 0, 1
        settings.timeout, settings.enable_reconfigure = datetime.timedelta(seconds=30), True
        with self.fails(lockstep.UsageError, "changes the members of shm only"):
            lockstep.backend._create(settings, lockstep.Options("gloo"))


@unittest.skipIf(WITHOUT, WITHOUT)
class Dispatcher(RankCase):
    def test_hooks(self):
        calls = []
        self.group.register_pre_hook(1, lambda call: calls.append(("before", call.name, call.op_id)))
        self.group.register_post_hook(1, lambda call: calls.append(("after", call.name, call.op_id)))
        dist.all_reduce(torch.ones(2), group=self.group)
        dist.all_gather_single(torch.zeros(2 * self.world), torch.ones(2), group=self.group)
        self.group.unregister_pre_hook(1)
        self.group.unregister_post_hook(1)
        dist.barrier(self.group)
        self.assertEqual([call[0] for call in calls], ["before", "after"] * 2)
        self.assertEqual(calls[0][1:], calls[1][1:])
        self.assertEqual(calls[2][1:], calls[3][1:])

    def test_single_tensors(self):
        everyone = [float(rank) for rank in range(self.world) for _ in range(2)]
        mine, all_of_them = torch.full((2,), float(self.rank)), torch.zeros(2 * self.world)
        dist.all_gather_single(all_of_them, mine, group=self.group)
        self.equal(all_of_them, everyone)
        dist.reduce_scatter_single(mine, all_of_them, group=self.group)
        self.equal(mine, [float(self.rank * self.world)] * 2)
        swapped = torch.zeros(2 * self.world)
        dist.all_to_all_single(swapped, torch.full((2 * self.world,), float(self.rank)), group=self.group)
        self.equal(swapped, everyone)
        gathered = torch.zeros(2 * self.world) if self.rank == 1 else None
        dist.gather_single(torch.full((2,), float(self.rank)), gathered, dst=1, group=self.group)
        if self.rank == 1:
            self.equal(gathered, everyone)
