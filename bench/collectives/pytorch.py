#!/usr/bin/env python3
"""Measures PyTorch's collectives, over Gloo or lockstep, by the rules of `lockstep bench` (src/cli/bench/rules.h): the
same flags, sizes, data, checks, samples and JSON. This is one rank. Supports only sums of floats.

  RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 pytorch.py --collective all_reduce --sizes 8,25M

Every rank prints a JSON object; rank 0's contains the rows.
"""
import argparse
import datetime
import json
import math
import os
import sys
import time

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def bind(rank, world):
    """Binds the rank as `lockstep bench` does. Must run before PyTorch is loaded, whose threads inherit the core."""
    cpus = sorted(os.sched_getaffinity(0))
    if 1 < world <= len(cpus):
        os.sched_setaffinity(0, {cpus[rank]})


if __name__ == "__main__":
    bind(RANK, WORLD)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

# ---- The rules of src/cli/bench/rules.h

ELEMENT = 4  # bytes of a float
BLOCKS = 10
DIVIDED = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
REDUCING = ("all_reduce", "reduce", "reduce_scatter_tensor")
TIMEOUT = datetime.timedelta(minutes=2)


def elements_of(collective, size):
    if collective == "barrier":
        return 0
    elements = max(1, size // ELEMENT)
    return -(-elements // WORLD) * WORLD if collective in DIVIDED else elements


def bus_factor(collective):
    others = (WORLD - 1) / WORLD
    return 2 * others if collective == "all_reduce" else others if collective in DIVIDED else 1


def calls_per_sample(size):
    return 20 if size <= 16 << 10 else 1


def samples_in(seconds, sample_us):
    return int(min(max(seconds * 1e6 / max(sample_us, 1e-3), 10), 10_000))


def microseconds_since(begin):
    return (time.perf_counter_ns() - begin) / 1e3


def time_block(call, samples, calls, out):
    if samples == 0:
        return
    dist.barrier()
    call()
    for _ in range(samples):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            call()
        out.append(microseconds_since(begin) / calls)


def summarize(by_rank):
    slowest = sorted(max(samples) for samples in zip(*by_rank))

    def nearest_rank(part):
        return slowest[math.ceil(part * len(slowest)) - 1]
    return {"p50_us": nearest_rank(0.5), "p99_us": nearest_rank(0.99), "min_us": slowest[0],
            "mean_us": max(sum(samples) / len(samples) for samples in by_rank)}


# ---- The data of src/cli/bench/values.h

PERIOD = 65521
POISON = 126
WORD = 1 << 64


def signed(word):
    word %= WORD
    return word - WORD if word >> 63 else word


def shifted(x, bits):
    """A logical shift to the right; torch's shift would repeat the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def remainder(x, divisor):
    """Of an unsigned word."""
    return (x % divisor + (x < 0) * (WORD % divisor)) % divisor


def mix(rank, index):
    x = (index % PERIOD + 1) * signed(0x9E3779B97F4A7C15) + signed(rank * 0xD1B54A32D192ED03)
    x = (x ^ shifted(x, 30)) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ shifted(x, 27)) * signed(0x94D049BB133111EB)
    return x ^ shifted(x, 31)


def moved(rank, offset=0):
    """A rank's data from `offset` on, for collectives that only move data: a function of the index."""
    return lambda index: remainder(mix(rank, offset + index), 101)


def contributed(rank, offset=0):
    return lambda index: 1 + remainder(mix(rank, offset + index), min(3, 127 // WORLD))


def summed(offset=0):
    return lambda index: sum(contributed(rank, offset)(index) for rank in range(WORLD))


def period_of(value, elements):
    return value(torch.arange(min(PERIOD, elements))).float()


def write(tensor, value):
    period = period_of(value, tensor.numel())
    for piece in tensor.split(PERIOD):
        piece.copy_(period[:piece.numel()])


def count_wrong(tensor, value):
    period = period_of(value, tensor.numel())
    return sum(int((piece != period[:piece.numel()]).sum()) for piece in tensor.split(PERIOD))


# ---- Collectives


class Exercise:
    """The tensors of one row and the call that is measured. All roots are rank 0."""

    def __init__(self, collective, size):
        self.collective = collective
        whole = elements_of(collective, size)
        part = whole // WORLD
        self.bytes, self.part = whole * ELEMENT, part
        moves = {"all_gather_into_tensor": (part, whole), "reduce_scatter_tensor": (whole, part),
                 "all_to_all_single": (whole, whole), "send_recv": (whole, whole)}
        inputs, outputs = moves.get(collective, (whole, 0))
        self.input, self.output = torch.empty(inputs), torch.empty(outputs)
        self.calls_in_one = 2 if collective == "send_recv" else 1
        self.instead = None  # the replacement for a collective that the backend does not have
        self.call = getattr(self, collective)

    def fill(self):
        if self.input.numel():
            has_it = RANK == 0 or self.collective != "broadcast"
            write(self.input, contributed(RANK) if self.collective in REDUCING else
                  moved(RANK) if has_it else lambda index: torch.full_like(index, POISON))
        self.output.fill_(POISON)

    def settle(self):
        self.input.zero_()
        self.output.zero_()

    def examine(self):
        """Makes one call and returns the number of wrong elements."""
        self.fill()
        try:
            self.call()
        except RuntimeError as error:
            # All ranks have the same backend, so nothing was sent.
            if self.instead or not hasattr(self, self.collective + "_instead") or "support" not in str(error):
                raise
            self.stand_in()
            self.call()
        return self.count_wrong()

    def stand_in(self):
        self.call = getattr(self, self.collective + "_instead")
        self.instead = self.call.__doc__
        self.parts = list(self.output.chunk(WORLD))
        self.received = torch.empty_like(self.input)

    def count_wrong(self):
        name = self.collective
        if name == "all_reduce" or (name == "reduce" and RANK == 0):
            return count_wrong(self.input, summed())
        if name == "broadcast":
            return count_wrong(self.input, moved(0))
        if name == "reduce_scatter_tensor":
            return count_wrong(self.output, summed(RANK * self.part))
        if name == "send_recv" and RANK < 2:
            return count_wrong(self.output, moved(1 - RANK))
        if name in ("all_gather_into_tensor", "all_to_all_single"):
            offset = RANK * self.part if name == "all_to_all_single" else 0
            return sum(count_wrong(part, moved(rank, offset)) for rank, part in enumerate(self.output.split(self.part)))
        return 0

    def all_reduce(self):
        dist.all_reduce(self.input)

    def broadcast(self):
        dist.broadcast(self.input, 0)

    def reduce(self):
        dist.reduce(self.input, 0)

    def all_gather_into_tensor(self):
        dist.all_gather_into_tensor(self.output, self.input)

    def all_gather_into_tensor_instead(self):
        """all_gather into views of the output"""
        dist.all_gather(self.parts, self.input)

    def reduce_scatter_tensor(self):
        dist.reduce_scatter_tensor(self.output, self.input)

    def reduce_scatter_tensor_instead(self):
        """all_to_all_single and a sum, which moves fewer bytes than all_reduce"""
        dist.all_to_all_single(self.received, self.input)
        torch.sum(self.received.view(WORLD, -1), 0, out=self.output)

    def all_to_all_single(self):
        dist.all_to_all_single(self.output, self.input)

    def send_recv(self):
        if RANK > 1:
            return
        if RANK == 0:
            dist.send(self.input, 1)
        dist.recv(self.output, 1 - RANK)
        if RANK == 1:
            dist.send(self.input, 0)

    def barrier(self):
        dist.barrier()


COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor",
               "all_to_all_single", "send_recv", "barrier")


def measure(options, collective, size):
    """Returns the row, which is complete on rank 0."""
    exercise = Exercise(collective, size)
    calls = calls_per_sample(exercise.bytes)
    wrong = exercise.examine()
    exercise.settle()

    dist.barrier()
    warmup = max(options.warmup, 0 if options.iterations else 1)
    begin = time.perf_counter_ns()
    for _ in range(warmup * calls):
        exercise.call()
    sample_us = torch.tensor([microseconds_since(begin) / max(warmup, 1)], dtype=torch.double)
    dist.all_reduce(sample_us, dist.ReduceOp.MAX)
    count = options.iterations or samples_in(options.seconds, sample_us.item())

    samples = []
    for block in range(BLOCKS):
        time_block(exercise.call, count // BLOCKS + (block < count % BLOCKS), calls, samples)

    wrong += exercise.examine()
    wrong = torch.tensor([wrong])
    dist.all_reduce(wrong)
    mine = torch.tensor(samples, dtype=torch.double) / exercise.calls_in_one
    by_rank = [torch.empty_like(mine) for _ in range(WORLD)] if RANK == 0 else None
    dist.gather(mine, by_rank)
    if RANK != 0:
        return None

    times = summarize([rank.tolist() for rank in by_rank])
    rate = exercise.bytes / times["p50_us"] / 1e3
    bare = collective == "barrier"
    row = {"world": WORLD, "collective": collective, "size": size, "bytes": exercise.bytes,
           "dtype": "none" if bare else "float", "op": "sum" if collective in REDUCING else None,
           "backend": "pytorch" if options.backend == "gloo" else f"pytorch_{options.backend}",
           "memory": "none" if bare else "plain", "data": "WRONG" if wrong.item() else "ok", "samples": count,
           "calls_per_sample": calls, **times, "algorithm_gb_s": rate, "bus_gb_s": rate * bus_factor(collective)}
    if wrong.item():
        row["wrong"] = f"{wrong.item()} elements"
    if exercise.instead:
        row["instead"] = exercise.instead
    return row


def sizes_of(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return sorted({int(word[:-1]) * units[word[-1].upper()] if word[-1].upper() in units else int(word)
                   for word in text.split(",")})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collective", default=",".join(COLLECTIVES))
    parser.add_argument("--backend", default="gloo", help="lockstep: with its Python package")
    parser.add_argument("--sizes", type=sizes_of, default="8,1K,256K,4M,25M")
    parser.add_argument("--seconds", type=float, default=0.2, help="measuring time per row")
    parser.add_argument("--iterations", type=int, help="samples per row, instead of --seconds")
    parser.add_argument("--warmup", type=int, default=5, help="samples before that, which do not count")
    parser.add_argument("--json", default="-", help="file to which rank 0 writes the rows; - for stdout")
    options = parser.parse_args()

    if options.backend == "lockstep":
        import lockstep  # noqa: F401  (registers the backend)
    dist.init_process_group(options.backend, timeout=TIMEOUT)
    rows = []
    for collective in options.collective.split(","):
        for size in [0] if collective == "barrier" else options.sizes:
            rows.append(measure(options, collective, size))
    dist.barrier()
    found = {"versions": {"pytorch": torch.__version__}, "rows": rows} if RANK == 0 else {}
    if RANK == 0 and options.json != "-":
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)
        found = {}
    print(json.dumps(found))
    wrong = [row for row in rows if row and row["data"] == "WRONG"]
    for row in wrong:
        print(f"{row['collective']} of {row['size']} bytes: data arrived WRONG: {row['wrong']}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
