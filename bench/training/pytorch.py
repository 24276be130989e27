#!/usr/bin/env python3
"""Measures a training step with PyTorch's DistributedDataParallel, on one rank: the counterpart of train_step.cc.

It has the same models, weights, batches, kinds of step, flags and JSON; train_step.cc explains them. With --tuned, it
applies lockstep's tuning: each rank is bound to its own core, and freed memory is kept. Without it, PyTorch runs as
users start it. With --patient, Gloo's threads are also scheduled as lockstep does (src/gloo/make_gloo.cc).
With --backend lockstep, the gradients are averaged by lockstep's backend for torch.distributed.
"""
import argparse
import contextlib
import ctypes
import datetime
import json
import os
import sys
import time

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's <malloc.h>
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def tune():
    """Must run before PyTorch is loaded, whose threads inherit the core."""
    cpus = sorted(os.sched_getaffinity(0))
    if 1 < WORLD <= len(cpus):
        os.sched_setaffinity(0, {cpus[RANK]})
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, -1)


TUNED = "--tuned" in sys.argv
if TUNED:
    tune()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from models import make_model  # noqa: E402


class Cost:
    def __init__(self):
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def stop(self):
        self.wall, self.cpu = 1e3 * (time.perf_counter() - self.wall), 1e3 * (time.process_time() - self.cpu)
        return self


class Trainer:
    def __init__(self, options):
        self.set_to_none = options.set_to_none
        self.model = make_model(options.model)
        self.rows, self.parts = options.rows or self.model.usual_rows, options.parts
        self.ddp = DistributedDataParallel(self.model, bucket_cap_mb=options.bucket_cap_mib,
                                           gradient_as_bucket_view=options.bucket_view)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, eps=1e-3)
        self.loss = None  # of the last step

    def batch(self, number, rows):
        """The batch of this rank, or of several ranks."""
        batches = [self.model.batch(f"{part} {number}", rows) for part in range(RANK, RANK + self.parts)]
        return [torch.cat(tensors) for tensors in zip(*batches)]

    def step(self, kind, number):
        data, target = self.batch(number, self.rows // WORLD if kind == "strong" else self.rows)
        dist.barrier()
        cost = Cost()
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        with self.ddp.no_sync() if kind in ("local", "barrier") else contextlib.nullcontext():
            output = (self.model if kind == "bare" else self.ddp)(data)
            loss = self.model.loss(output, target)
            loss.backward()
        if kind == "barrier":
            dist.barrier()
        self.optimizer.step()
        cost.stop()
        self.loss = loss.detach()
        return cost


def gradient_memory(model):
    """The sizes in bytes of the blocks that contain gradients. If these are the buckets, there is one block per
    bucket."""
    storages = [parameter.grad.storage() for parameter in model.parameters() if parameter.grad is not None]
    return list({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def bucket_sizes(ddp):
    """The bucket sizes of the current plan in bytes, from DDP's own log."""
    log = ddp._get_ddp_logging_data()
    text = log.get("rebuilt_bucket_sizes") or log.get("bucket_sizes") or ""
    return [int(size) for size in str(text).split(",") if size.strip()]


def own_mib(file, field):
    """Returns `field` of a file in /proc/self, which contains it in kB."""
    with open(f"/proc/self/{file}", encoding="utf-8") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
    return 0


def order_of(kinds, turn):
    """Each turn starts with another kind, and every other turn is reversed, so that no kind always follows the same
    one."""
    first = turn % len(kinds)
    order = kinds[first:] + kinds[:first]
    return order[::-1] if turn % 2 else order


def connect(options):
    """Threads inherit the policy. Here it also applies to Gloo's workers, because Python cannot distinguish them."""
    if options.backend == "lockstep":
        import lockstep  # noqa: F401  (registers the backend)
    if options.patient:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    dist.init_process_group(options.backend, timeout=datetime.timedelta(minutes=2))
    if options.patient:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def run(options):
    connect(options)
    alone = WORLD == 1
    trainer = Trainer(options)
    bare = Trainer(options) if alone else None

    losses = []
    for number in range(options.loss_steps):
        trainer.step("wrapped" if alone else "sync", number)
        losses.append(trainer.loss.item())
        if bare:
            bare.step("bare", number)
    buckets, gradients = bucket_sizes(trainer.ddp), gradient_memory(trainer.model)

    number = options.loss_steps
    kinds = ["bare", "wrapped"] if alone else ["local", "barrier", "sync", "strong"]
    if options.kinds:
        kinds = [kind for kind in kinds if kind in options.kinds.split(",")]
    times, cpu = {}, {}
    for turn in range(options.warmup + options.turns):
        for kind in order_of(kinds, turn):
            cost = (bare if kind == "bare" else trainer).step(kind, number)
            number += 1
            if turn >= options.warmup:
                times.setdefault(kind, []).append(cost.wall)
                cpu.setdefault(kind, []).append(cost.cpu)
    dist.barrier()
    share_mib = own_mib("smaps_rollup", "Pss")
    dist.barrier()  # no rank exits while others measure the memory that they share with it

    parameters = list(trainer.model.parameters())
    return {
        "program": "pytorch", "version": torch.__version__, "backend": options.backend, "model": options.model,
        "rank": RANK, "world": WORLD, "rows": trainer.rows, "threads": torch.get_num_threads(),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "parameter_bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        "gradient_bytes": sum(gradients), "gradient_pieces": len(gradients),
        # DDP's log is delayed; with views, the gradients show it.
        "bucket_bytes": sum(buckets), "buckets": len(gradients) if options.bucket_view else len(buckets),
        "losses": losses, "times_ms": times, "cpu_ms": cpu, "peak_mib": own_mib("status", "VmHWM"),
        "share_mib": share_mib,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--backend", default="gloo", help="lockstep: with its Python package")
    parser.add_argument("--kinds", help="kinds of step; default: all that are possible")
    parser.add_argument("--rows", type=int, default=0, help="rows of a rank's batch; 0: the model's default")
    parser.add_argument("--parts", type=int, default=1, help="number of ranks whose batches are combined into one")
    parser.add_argument("--loss-steps", type=int, default=10, help="synchronised steps at the start, with losses")
    parser.add_argument("--warmup", type=int, default=3, help="turns before the measured ones")
    parser.add_argument("--turns", type=int, default=40, help="measured steps of each kind")
    parser.add_argument("--bucket-cap-mib", type=float, default=25, help="bucket size")
    parser.add_argument("--set-to-none", action="store_true",
                        help="drop gradients between steps instead of zeroing them")
    parser.add_argument("--bucket-view", action="store_true", help="gradients are views of the buckets")
    parser.add_argument("--tuned", action="store_true", help="apply lockstep's tuning")
    parser.add_argument("--patient", action="store_true", help="Gloo's threads do not preempt others")
    print(json.dumps(run(parser.parse_args())))
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
