"""Messages between two ranks, and the Works of calls that do not wait."""

import datetime
import threading
import time

import torch
import torch.distributed as dist
import support
from job import GROUP_TIMEOUT, RankCase

import lockstep


class Messages(RankCase):
    def setUp(self):
        super().setUp()
        self.next, self.previous = (self.rank + 1) % self.world, (self.rank - 1) % self.world

    def test_send_and_receive(self):
        for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64):
            for count in (0, 1, 1000, 300_000):
                data = torch.arange(count).remainder(7).to(dtype)
                received = torch.zeros(count, dtype=dtype)
                if self.rank == 0:
                    dist.send(data, 1, group=self.group)
                elif self.rank == 1:
                    self.assertEqual(dist.recv(received, 0, group=self.group), 0)
                    self.equal(received, data)

    def test_around_the_ring(self):
        received = torch.zeros(3)
        works = [dist.isend(torch.full((3,), float(self.rank)), self.next, group=self.group),
                 dist.irecv(received, self.previous, group=self.group)]
        for work in works:
            work.wait()
        self.equal(received, [float(self.previous)] * 3)

    def test_a_batch(self):
        received = torch.zeros(2, 3)
        operations = [dist.P2POp(dist.irecv, received[1], self.previous, self.group),
                      dist.P2POp(dist.isend, torch.full((3,), float(self.rank)), self.next, self.group)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        self.equal(received, [[0.0] * 3, [float(self.previous)] * 3])

    def test_a_tensor_that_is_not_contiguous(self):
        whole = torch.zeros(4, 4)
        sent = torch.arange(16.0).reshape(4, 4)
        works = [dist.isend(sent[:, 1], self.next, group=self.group),
                 dist.irecv(whole[:, 2], self.previous, group=self.group)]
        for work in works:
            work.wait()
        expected = torch.zeros(4, 4)
        expected[:, 2] = sent[:, 1]
        self.equal(whole, expected)

    def test_tags(self):
        # They arrive in the opposite order.
        if self.rank == 0:
            works = [dist.isend(torch.full((2,), float(tag)), 1, group=self.group, tag=tag) for tag in (5, 7)]
        elif self.rank == 1:
            seven, five = torch.zeros(2), torch.zeros(2)
            dist.recv(seven, 0, group=self.group, tag=7)
            dist.recv(five, 0, group=self.group, tag=5)
            self.equal(torch.stack([five, seven]), [[5.0, 5.0], [7.0, 7.0]])
        if self.rank == 0:
            for work in works:
                work.wait()

    def test_messages_keep_their_order(self):
        if self.rank == 0:
            for number in range(20):
                dist.send(torch.tensor([number]), 1, group=self.group)
        elif self.rank == 1:
            received = torch.zeros(1, dtype=torch.int64)
            for number in range(20):
                dist.recv(received, 0, group=self.group)
                self.equal(received, [number])

    def test_from_any_rank(self):
        if self.engine == "hybrid":
            with self.fails(lockstep.UsageError, "a receive from any rank is not possible"):
                dist.recv(torch.zeros(2), group=self.group)
        elif self.rank == 0:
            seen = {}
            for _ in self.others:
                received = torch.zeros(2)
                source = dist.recv(received, group=self.group)
                seen[source] = received
            self.assertEqual(sorted(seen), self.others)
            for source, received in seen.items():
                self.equal(received, [float(source)] * 2)
        else:
            dist.send(torch.full((2,), float(self.rank)), 0, group=self.group)

    def test_different_sizes(self):
        if self.rank > 1:
            return
        words = {"shm": ("in recv of 4 Float from rank 0", "in send of 12 bytes of Float"),
                 "hybrid": ("in recv of 4 Float", "in send of")}
        with self.fails(lockstep.MismatchError, *words[self.engine]):
            if self.rank == 0:
                dist.send(torch.ones(3), 1, group=self.group)
                dist.barrier(self.group)  # a small message may have left before the receiver looks at it
            else:
                dist.recv(torch.zeros(4), 0, group=self.group)

    def test_wrong_arguments(self):
        with self.fails(RuntimeError, "this rank itself"):
            self.group.send([torch.ones(1)], self.rank, 0)
        with self.fails(RuntimeError, "invalid rank: 9"):
            self.group.recv([torch.ones(1)], 9, 0)
        with self.fails(RuntimeError, "Tag must be nonnegative"):
            self.group.send([torch.ones(1)], self.others[0], -1)


class Works(RankCase):
    def test_wait(self):
        tensor = torch.full((100,), float(self.rank))
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        self.assertTrue(work.wait())
        self.assertTrue(work.is_completed())
        self.assertTrue(work.wait())  # again
        self.equal(tensor, [float(sum(range(self.world)))] * 100)

    def test_many_at_once(self):
        tensors = [torch.full((1000,), float(number + self.rank)) for number in range(30)]
        works = [dist.all_reduce(tensor, group=self.group, async_op=True) for tensor in tensors]
        for work in reversed(works):
            work.wait()
        for number, tensor in enumerate(tensors):
            self.equal(tensor, [float(sum(number + rank for rank in range(self.world)))] * 1000)

    def test_every_collective_has_one(self):
        def zeros():
            return [torch.zeros(2) for _ in range(self.world)]

        root, many = self.rank == 0, 2 * self.world
        calls = [
            lambda **more: dist.broadcast(torch.ones(2), 0, **more),
            lambda **more: dist.reduce(torch.ones(2), 0, **more),
            lambda **more: dist.all_gather(zeros(), torch.ones(2), **more),
            lambda **more: dist.all_gather_into_tensor(torch.zeros(many), torch.ones(2), **more),
            lambda **more: dist.gather(torch.ones(2), zeros() if root else None, 0, **more),
            lambda **more: dist.scatter(torch.ones(2), zeros() if root else None, 0, **more),
            lambda **more: dist.reduce_scatter(torch.zeros(2), zeros(), **more),
            lambda **more: dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(many), **more),
            lambda **more: dist.all_to_all(zeros(), zeros(), **more),
            lambda **more: dist.all_to_all_single(torch.zeros(many), torch.ones(many), **more),
            lambda **more: dist.barrier(**more),
        ]
        works = [call(group=self.group, async_op=True) for call in calls]
        for work in works:
            self.assertTrue(work.wait())
            self.assertTrue(work.is_completed())

    def test_is_completed_makes_no_promise_too_early(self):
        store = dist.PrefixStore("completed", dist.distributed_c10d._get_default_store())
        if self.rank == 0:
            work = dist.barrier(self.group, async_op=True)
            self.assertFalse(work.is_completed())
            store.set("go", "1")
            support.wait_until(work.is_completed, "the barrier")
        else:
            store.wait(["go"])
            dist.barrier(self.group)

    def test_future(self):
        tensor = torch.full((4,), float(self.rank))
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        doubled = work.get_future().then(lambda future: future.value()[0] * 2)
        total = float(sum(range(self.world)))
        self.equal(doubled.wait(), [2 * total] * 4)
        self.equal(work.get_future().wait()[0], [total] * 4)
        later = work.get_future().then(lambda future: "after its end")
        self.assertEqual(later.wait(), "after its end")

    def test_a_callback_that_communicates(self):
        chained = []
        work = dist.all_reduce(torch.ones(2), group=self.group, async_op=True)

        def again(future):
            tensor = future.value()[0].clone()
            chained.append(dist.all_reduce(tensor, group=self.group, async_op=True))
            return tensor

        tensor = work.get_future().then(again).wait()
        chained[0].wait()
        self.equal(tensor, [float(self.world ** 2)] * 2)

    def test_a_callback_that_raises(self):
        work = dist.all_reduce(torch.ones(2), group=self.group, async_op=True)

        def broken(future):
            raise ValueError("a broken callback")

        with self.assertRaisesRegex(RuntimeError, "a broken callback"):
            work.get_future().then(broken).wait()
        self.assertTrue(work.wait())
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=self.group)  # the error is the future's, not the group's
        self.equal(tensor, [float(self.world)])

    def test_other_threads_run_while_one_waits(self):
        store = dist.PrefixStore("threads", dist.distributed_c10d._get_default_store())
        if self.rank == 0:
            # Only this thread lets rank 1 arrive. It needs Python's lock, which the one that waits must not hold.
            helper = threading.Thread(target=lambda: (time.sleep(0.05), store.set("go", "1")))
            helper.start()
            dist.barrier(self.group)
            helper.join()
        else:
            store.wait(["go"])
            dist.barrier(self.group)

    def test_threads_with_groups_of_their_own(self):
        groups = [dist.new_group(timeout=GROUP_TIMEOUT) for _ in range(3)]
        wrong = []

        def communicate(number):
            for step in range(50):
                tensor = torch.full((100,), float(number + step))
                dist.all_reduce(tensor, group=groups[number])
                if tensor.ne((number + step) * self.world).any():
                    wrong.append((number, step))

        threads = [threading.Thread(target=communicate, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_wait_with_a_timeout(self):
        store = dist.PrefixStore("timeout", dist.distributed_c10d._get_default_store())
        if self.rank == 0:
            tensor = torch.ones(2)
            work = dist.all_reduce(tensor, group=self.group, async_op=True)
            with self.fails(lockstep.TimeoutError, "not complete after 50 ms; it continues", "hint: wait again"):
                work.wait(datetime.timedelta(milliseconds=50))
            store.set("go", "1")
            work.wait()
            self.equal(tensor, [float(self.world)] * 2)
        else:
            store.wait(["go"])
            dist.all_reduce(torch.ones(2), group=self.group)

    def test_a_tensor_that_nothing_else_keeps(self):
        works = [dist.all_reduce(torch.ones(200_000), group=self.group, async_op=True) for _ in range(5)]
        for work in works:
            work.wait()
            self.equal(work.result()[0], [float(self.world)] * 200_000)
