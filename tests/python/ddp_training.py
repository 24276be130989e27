"""Trains with torch's DistributedDataParallel, in many ways; called by ddp_test.py as each rank of a job.

    ddp_training.py BACKEND FOLDER      writes what each way gave to FOLDER/RANK
"""

import contextlib
import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import lockstep  # noqa: F401 registers the backend

STEPS = 10
BATCH = 6


class Branches(nn.Module):
    """One of two layers is used in each step, so the other one has no gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.last(torch.relu((self.first if self.calls % 3 else self.second)(x)))


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def cnn():
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3))


def synchronised_cnn():
    return nn.SyncBatchNorm.convert_sync_batchnorm(cnn())


def batches(rank, count, shape):
    """Different in each rank, and the same in each run."""
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(count):
        x = torch.randn(BATCH, *shape, generator=generator)
        yield x, torch.randint(0, 3, (BATCH,), generator=generator)


def summed(group, bucket):
    """A hook that averages by hand, and works on the result in a callback."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0] / dist.get_world_size(group))


def train(make=mlp, shape=(8,), steps=STEPS, accumulate=1, hook=None, optimizer=None, join=False, **options):
    rank = dist.get_rank()
    torch.manual_seed(rank)  # DistributedDataParallel sends rank 0's parameters to all
    model = DistributedDataParallel(make(), **options)
    if hook:
        model.register_comm_hook(*hook())
    optimizer = (optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)))(
        model.parameters())
    losses = []
    count = steps * accumulate + (2 * rank if join else 0)  # with Join, ranks may have more batches than others
    with Join([model]) if join else contextlib.nullcontext():
        for number, (x, y) in enumerate(batches(rank, count, shape)):
            last = (number + 1) % accumulate == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
            losses.append(loss.item())
            if last:
                optimizer.step()
                optimizer.zero_grad()
    digest = hashlib.sha256()
    for _, parameter in sorted(model.module.named_parameters()):
        digest.update(parameter.detach().numpy().tobytes())
    buffers = {name: buffer.double().sum().item() for name, buffer in model.module.named_buffers()}
    return {"losses": losses, "replica": digest.hexdigest(), "buffers": buffers}


def zero(parameters):
    return ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.SGD, lr=0.1, momentum=0.9)


def power_sgd():
    # Two steps without compression; afterwards, the hook starts further collectives in the callbacks of others.
    return powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook


IMAGES = {"make": cnn, "shape": (2, 6, 6)}
WAYS = {
    "mlp": {},
    "small buckets": {"bucket_cap_mb": 0.0005},
    "mlp, gradients in buckets": {"gradient_as_bucket_view": True},
    "cnn": IMAGES,
    "cnn, gradients in buckets": {**IMAGES, "gradient_as_bucket_view": True},
    "no_sync": {"accumulate": 3},
    "no_sync, gradients in buckets": {"accumulate": 3, "gradient_as_bucket_view": True},
    "unused parameters": {"make": Branches, "find_unused_parameters": True},
    "static graph": {"static_graph": True},
    "join": {"join": True},
    "hook": {"hook": lambda: (dist.group.WORLD, summed)},
    "hook of torch": {"hook": lambda: (None, default_hooks.allreduce_hook)},
    "half precision": {"hook": lambda: (None, default_hooks.fp16_compress_hook)},
    "PowerSGD": {"hook": power_sgd},
    "zero": {"optimizer": zero},
    "SyncBatchNorm": {**IMAGES, "make": synchronised_cnn},
}


def main(backend, folder):
    dist.init_process_group(backend)
    found = {}
    for name, way in WAYS.items():
        try:
            found[name] = train(**way)
        except ValueError as error:  # SyncBatchNorm wants a GPU; all ranks and backends alike
            found[name] = {"refused": str(error)}
        except RuntimeError as error:  # Gloo knows float16 in some versions only
            if backend != "gloo" or "Invalid scalar type" not in str(error):
                raise
            found[name] = {"missing": "Invalid scalar type"}
    with open(os.path.join(folder, str(dist.get_rank())), "w", encoding="utf-8") as file:
        json.dump(found, file)
    if backend == "gloo":
        os._exit(0)  # PyTorch 2.6's may not end (docs/compatibility.md)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
