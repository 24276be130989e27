"""Collectives: every rank knows the inputs of all ranks, so it computes the expected values itself."""

import datetime
import functools
import warnings

import torch
import torch.distributed as dist
from job import RankCase

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *INTEGERS, torch.bool, *COMPLEX)
SHAPES = ((), (0,), (1,), (7,), (3, 5), (2, 0, 4), (1031,), (70_001,))


def values_of(rank, shape, dtype):
    """Small whole numbers that differ between ranks and elements: their sums and products are exact in every dtype."""
    count = int(torch.tensor(shape).prod()) if shape else 1
    numbers = (torch.arange(count) * 3 + rank * 2) % 5 + 1
    if dtype == torch.bool:
        return (numbers % 2 == 0).reshape(shape)
    if dtype in COMPLEX:
        return torch.complex(numbers.float(), (numbers + rank).float()).to(dtype).reshape(shape)
    return numbers.to(dtype).reshape(shape)


def _combine(a, b, name, dtype):
    if dtype == torch.bool:
        return {"SUM": a | b, "PRODUCT": a & b, "MIN": a & b, "MAX": a | b, "BAND": a & b, "BOR": a | b,
                "BXOR": a ^ b}[name]
    if name in ("SUM", "AVG"):
        return a + b
    return {"PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum, "BAND": torch.bitwise_and,
            "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[name](a, b)


def reduction(inputs, name):
    dtype = inputs[0].dtype
    if dtype in FLOATS:
        inputs = [tensor.double() for tensor in inputs]
    total = functools.reduce(lambda a, b: _combine(a, b, name, dtype), inputs)
    return (total / len(inputs) if name == "AVG" else total).to(dtype)


def operations(dtype):
    if dtype in FLOATS:
        return ("SUM", "AVG", "PRODUCT", "MIN", "MAX")
    if dtype in COMPLEX:
        return ("SUM", "AVG")  # torch itself refuses the others
    return ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


class Collective(RankCase):
    worlds = ()  # only its subclasses have tests

    def setUp(self):
        super().setUp()
        warnings.simplefilter("ignore", UserWarning)  # torch's notes about coalesced calls

    def everyones(self, shape, dtype=torch.float32):
        return [values_of(rank, shape, dtype) for rank in range(self.world)]

    def mine(self, shape, dtype=torch.float32):
        return values_of(self.rank, shape, dtype)


class Reductions(Collective):
    worlds = (2, 3)

    def test_every_dtype_and_operation(self):
        for dtype in DTYPES:
            for name in operations(dtype):
                for shape in ((7,), (1031,)):
                    tensor = self.mine(shape, dtype)
                    dist.all_reduce(tensor, getattr(dist.ReduceOp, name), group=self.group)
                    expected = reduction(self.everyones(shape, dtype), name)
                    with self.subTest(dtype=dtype, operation=name):
                        self.assertEqual(tensor.dtype, dtype)
                        # A third is not exact.
                        tolerance = 2e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-6
                        close = torch.allclose(tensor, expected, rtol=tolerance, atol=0)
                        self.assertTrue(close if name == "AVG" else torch.equal(tensor, expected),
                                        f"{tensor} instead of {expected}")

    def test_every_shape(self):
        for shape in SHAPES:
            tensor = self.mine(shape)
            dist.all_reduce(tensor, group=self.group)
            self.equal(tensor, sum(self.everyones(shape)))

    def test_tensors_that_are_not_contiguous(self):
        def slices(make):
            return [make(values_of(rank, (6, 8), torch.float32)) for rank in range(self.world)]

        for make in (lambda t: t[:, ::2], lambda t: t.t(), lambda t: t[1:5, 3], lambda t: t.permute(1, 0)[2:4]):
            whole = self.mine((6, 8))
            untouched = whole.clone()
            view = make(whole)
            dist.all_reduce(view, group=self.group)
            self.equal(view, sum(slices(make)))
            make(untouched).copy_(view)
            self.equal(whole, untouched)  # nothing beside the view has changed

    def test_memory_formats(self):
        inputs = [t.contiguous(memory_format=torch.channels_last) for t in self.everyones((2, 3, 4, 5))]
        tensor = inputs[self.rank].clone(memory_format=torch.preserve_format)
        dist.all_reduce(tensor, group=self.group)
        self.equal(tensor, sum(inputs))
        self.assertTrue(tensor.is_contiguous(memory_format=torch.channels_last))

    def test_parameters_that_require_gradients(self):
        leaf = self.mine((4,)).requires_grad_()
        dist.all_reduce(leaf.data, group=self.group)
        self.equal(leaf.detach(), sum(self.everyones((4,))))

    def test_not_a_number_is_not_lost(self):
        for name in ("SUM", "MIN", "MAX"):
            tensor = torch.tensor([float("nan") if self.rank == 1 else 1.0, 2.0])
            dist.all_reduce(tensor, getattr(dist.ReduceOp, name), group=self.group)
            self.assertTrue(tensor[0].isnan() and not tensor[1].isnan(), name)

    def test_reduce(self):
        for root in range(self.world):
            for name in ("SUM", "MAX", "AVG"):
                tensor = self.mine((9,))
                dist.reduce(tensor, root, getattr(dist.ReduceOp, name), group=self.group)
                if self.rank == root:
                    expected = reduction(self.everyones((9,)), name)
                    self.assertTrue(torch.allclose(tensor, expected), f"{tensor} instead of {expected}")

    def test_reduce_scatter(self):
        parts = [[values_of(rank + 3 * to, (5,), torch.float32) for to in range(self.world)]
                 for rank in range(self.world)]
        expected = sum(parts[rank][self.rank] for rank in range(self.world))
        output = torch.zeros(5)
        dist.reduce_scatter(output, parts[self.rank], group=self.group)
        self.equal(output, expected)
        output = torch.zeros(5)
        dist.reduce_scatter_tensor(output, torch.cat(parts[self.rank]), group=self.group)
        self.equal(output, expected)
        output = torch.zeros(5)
        dist.reduce_scatter_tensor(output, torch.cat(parts[self.rank]), dist.ReduceOp.MAX, group=self.group)
        self.equal(output, functools.reduce(torch.maximum, [part[self.rank] for part in parts]))

    def test_coalesced(self):
        shapes = ((2,), (), (3, 4), (0,))
        tensors = [self.mine(shape) for shape in shapes]
        dist.all_reduce_coalesced(tensors, group=self.group)
        for tensor, shape in zip(tensors, shapes, strict=True):
            self.equal(tensor, sum(self.everyones(shape)))

    def test_sparse(self):
        def one(rank):
            # Row 0 is in all ranks, the others in one; a row may occur twice in a rank.
            return torch.sparse_coo_tensor([[0, rank + 1, rank + 1]], [[1.0, 2.0], [3.0, rank], [1.0, 1.0]],
                                           (self.world + 2, 2))

        tensor = one(self.rank)
        dist.all_reduce(tensor, group=self.group)
        self.assertTrue(tensor.is_sparse)
        self.equal(tensor.to_dense(), sum(one(rank).to_dense() for rank in range(self.world)))

    def test_sparse_without_elements_in_one_rank(self):
        tensor = torch.sparse_coo_tensor([[2]] if self.rank == 1 else torch.zeros(1, 0, dtype=torch.int64),
                                         [7.0] if self.rank == 1 else torch.zeros(0), (4,))
        dist.all_reduce(tensor, group=self.group)
        self.equal(tensor.to_dense(), [0.0, 0.0, 7.0, 0.0])

    def test_an_operation_that_is_not_supported(self):
        with self.fails(RuntimeError, "this reduce operation is not supported", "use SUM, AVG"):
            dist.all_reduce(torch.ones(2), dist._make_nccl_premul_sum(2.0), group=self.group)
        with self.fails(RuntimeError, "sparse tensors only works with ReduceOp.SUM"):
            dist.all_reduce(torch.ones(2).to_sparse(), dist.ReduceOp.MAX, group=self.group)
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=self.group)  # a refused argument is no failure of the group
        self.equal(tensor, [float(self.world)] * 2)


class Copies(Collective):
    worlds = (2, 3)

    def test_broadcast(self):
        for dtype in DTYPES:
            for root in range(self.world):
                tensor = self.mine((11,), dtype)
                dist.broadcast(tensor, root, group=self.group)
                self.equal(tensor, values_of(root, (11,), dtype))
        for shape in SHAPES:
            tensor = self.mine(shape)
            dist.broadcast(tensor, 1, group=self.group)
            self.equal(tensor, values_of(1, shape, torch.float32))
        whole = self.mine((4, 6))
        dist.broadcast(whole[:, 1::2], 0, group=self.group)
        expected = self.mine((4, 6))
        expected[:, 1::2] = values_of(0, (4, 6), torch.float32)[:, 1::2]
        self.equal(whole, expected)

    def test_all_gather(self):
        for dtype in DTYPES:
            outputs = [torch.zeros(7, dtype=dtype) for _ in range(self.world)]
            dist.all_gather(outputs, self.mine((7,), dtype), group=self.group)
            for output, expected in zip(outputs, self.everyones((7,), dtype), strict=True):
                self.equal(output, expected)
        for shape in SHAPES:
            outputs = [torch.zeros(shape) for _ in range(self.world)]
            dist.all_gather(outputs, self.mine(shape), group=self.group)
            for output, expected in zip(outputs, self.everyones(shape), strict=True):
                self.equal(output, expected)
        # Columns of one tensor.
        columns = torch.zeros(5, self.world)
        dist.all_gather(list(columns.unbind(1)), self.mine((5, 2))[:, 1], group=self.group)
        self.equal(columns, torch.stack([t[:, 1] for t in self.everyones((5, 2))], 1))

    def test_all_gather_into_tensor(self):
        for shape in ((4,), (2, 3)):
            output = torch.zeros(self.world * shape[0], *shape[1:])
            dist.all_gather_into_tensor(output, self.mine(shape), group=self.group)
            self.equal(output, torch.cat(self.everyones(shape)))
        # The input may be this rank's place in the output.
        output = torch.zeros(self.world, 4)
        output[self.rank] = self.mine((4,))
        dist.all_gather_into_tensor(output, output[self.rank], group=self.group)
        self.equal(output, torch.stack(self.everyones((4,))))

    def test_all_gather_coalesced(self):
        shapes = ((2,), (3, 2))
        outputs = [[torch.zeros(shape) for shape in shapes] for _ in range(self.world)]
        dist.all_gather_coalesced(outputs, [self.mine(shape) for shape in shapes], group=self.group)
        for rank, tensors in enumerate(outputs):
            for tensor, shape in zip(tensors, shapes, strict=True):
                self.equal(tensor, values_of(rank, shape, torch.float32))

    def test_gather(self):
        for root in range(self.world):
            outputs = [torch.zeros(6) for _ in range(self.world)] if self.rank == root else None
            dist.gather(self.mine((6,)), outputs, root, group=self.group)
            for output, expected in zip(outputs or [], self.everyones((6,)), strict=False):
                self.equal(output, expected)

    def test_scatter(self):
        for root in range(self.world):
            inputs = [values_of(10 * root + to, (6,), torch.float32) for to in range(self.world)]
            output = torch.zeros(6)
            dist.scatter(output, inputs if self.rank == root else None, root, group=self.group)
            self.equal(output, inputs[self.rank])

    def test_all_to_all(self):
        inputs = [[torch.full((3,), 10.0 * source + to) for to in range(self.world)] for source in range(self.world)]
        outputs = [torch.zeros(3) for _ in range(self.world)]
        dist.all_to_all(outputs, inputs[self.rank], group=self.group)
        for source, output in enumerate(outputs):
            self.equal(output, inputs[source][self.rank])
        output = torch.zeros(3 * self.world)
        dist.all_to_all_single(output, torch.cat(inputs[self.rank]), group=self.group)
        self.equal(output, torch.cat(outputs))

    def test_all_to_all_of_different_sizes(self):
        def piece(source, to):
            return torch.full((source + 2 * to, 2), 10.0 * source + to)  # also none: from rank 0 to itself

        mine = [piece(self.rank, to) for to in range(self.world)]
        theirs = [piece(source, self.rank) for source in range(self.world)]
        output = torch.zeros(sum(map(len, theirs)), 2)
        dist.all_to_all_single(output, torch.cat(mine), [len(t) for t in theirs], [len(t) for t in mine],
                               group=self.group)
        self.equal(output, torch.cat(theirs))
        outputs = [torch.zeros_like(t) for t in theirs]
        dist.all_to_all(outputs, mine, group=self.group)
        for output, expected in zip(outputs, theirs, strict=True):
            self.equal(output, expected)

    def test_wrong_arguments(self):
        wrong = [
            (lambda: dist.all_gather([torch.zeros(2)], torch.ones(2), group=self.group),
             f"expected length {self.world}, got 1"),
            (lambda: dist.all_gather_into_tensor(torch.zeros(1), torch.ones(2), group=self.group),
             "size must be equal"),
            (lambda: dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(3), group=self.group), "same size"),
            (lambda: dist.all_to_all_single(torch.zeros(4), torch.ones(4), [1] * self.world, [1] * self.world,
                                            group=self.group), "Split sizes"),
        ]
        if torch.__version__ < "2":  # the dispatcher of 2 does not pass it on
            wrong.append((lambda: dist.broadcast(torch.ones(2).to_sparse(), 0, group=self.group),
                          "only supports dense tensors"))
        for call, said in wrong:
            with self.fails(RuntimeError, said):
                call()
        dist.barrier(self.group)  # nothing of this has started a call


class Objects(Collective):
    worlds = (2, 3)

    def test_objects(self):
        gathered = [None] * self.world
        dist.all_gather_object(gathered, {"rank": self.rank, "text": "x" * 100 * self.rank}, group=self.group)
        self.assertEqual(gathered, [{"rank": r, "text": "x" * 100 * r} for r in range(self.world)])
        sent = [{"a": 1}, "text", None, [1.5]]
        received = list(sent) if self.rank == 1 else [None] * 4
        dist.broadcast_object_list(received, 1, group=self.group)
        self.assertEqual(received, sent)
        gathered = [None] * self.world if self.rank == 0 else None
        dist.gather_object(("rank", self.rank), gathered, 0, group=self.group)
        if self.rank == 0:
            self.assertEqual(gathered, [("rank", r) for r in range(self.world)])
        received = [None]
        dist.scatter_object_list(received, [f"for {r}" for r in range(self.world)] if self.rank == 0 else None, 0,
                                 group=self.group)
        self.assertEqual(received, [f"for {self.rank}"])

    def test_barrier(self):
        store = dist.PrefixStore("barrier", dist.distributed_c10d._get_default_store())
        for number in range(5):
            arrived = store.add(str(number), 1)
            dist.barrier(self.group)
            self.assertEqual(store.add(str(number), 0), self.world, f"arrived as number {arrived}")

    def test_monitored_barrier(self):
        dist.monitored_barrier(self.group)
        dist.monitored_barrier(self.group, datetime.timedelta(seconds=20), wait_all_ranks=True)
        dist.monitored_barrier()  # of the default group
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=self.group)
        self.equal(tensor, [float(self.world)])
