"""Trains one model twice, in C++ (trainer.cc) and in Python, through one process group of torch.distributed.

As a program, in each rank of a job, it writes to stdout, as JSON, what trainer_test.py compares. The cells of a
notebook call its functions.
"""

import json
import os

import torch
import torch.distributed as dist
import trainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lockstep

STEPS = 12
_calls = 0


def in_cpp(steps=STEPS, **options):
    """All ranks must call it. Each call has its own part of the store."""
    global _calls
    _calls += 1
    store = dist.PrefixStore(f"trainer/{_calls}", dist.distributed_c10d._get_default_store())
    return trainer.train(dist.group.WORLD, store, steps, **options)


def in_python(steps=STEPS):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).view_as(parameter))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        x = torch.sin(torch.arange(24, dtype=torch.float64) * (step + 1) + dist.get_rank()).float().view(6, 4)
        loss = (ddp(x) - 1).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def total():
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()


def mismatch():
    """What a C++ library throws is what the backend itself would raise."""
    try:
        in_cpp(hidden=8 + dist.get_rank())
    except lockstep.Error as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def main():
    dist.init_process_group("lockstep")
    found = {"cpp": in_cpp(), "total between": total(), "python": in_python(), "cpp again": in_cpp(),
             "total": total(), "backend": dist.get_backend()}
    found["mismatch"] = mismatch()
    os.write(1, f"<{dist.get_rank()}> {json.dumps(found)}\n".encode())


if __name__ == "__main__":
    main()
