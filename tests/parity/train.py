"""Trains one model with PyTorch's DDP over Gloo and writes the same JSON lines as train.cc, which uses lockstep's.

    train.py cnn|transformer|lstm DIR        writes DIR/rank_0.log, DIR/rank_1.log
"""
import datetime
import os
import sys

# Before torch reads them: one thread per rank, and an interface that does not need a resolvable host name.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.nn.parallel import DistributedDataParallel

from formula import FIRST_BATCH, fill
from models import MODELS

STEPS, RANKS = 10, 2


def line(model, rank, rest):
    return f'{{"model": "{model}", "rank": {rank}, {rest}}}\n'


def dump(kind, name, tensor):
    values = ", ".join(f"{value:.9g}" for value in tensor.detach().flatten().tolist())
    return f'"{kind}": "{name}", "shape": {list(tensor.shape)}, "values": [{values}]'


def train(rank, name, directory):
    dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=RANKS,
                            timeout=datetime.timedelta(seconds=60))
    model = MODELS[name]()
    fill(model, rank)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.004)
    optimizer = model.optimizer()
    with open(f"{directory}/rank_{rank}.log", "w", encoding="utf-8") as out:
        for step in range(STEPS):
            inputs, target = model.batch(FIRST_BATCH + 2 * (step * RANKS + rank))
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(ddp(inputs), target)
            loss.backward()
            optimizer.step()
            out.write(line(name, rank, f'"step": {step}, "loss": {loss.item():.9g}'))
        for key, parameter in model.named_parameters():
            out.write(line(name, rank, dump("parameter", key, parameter)))
        for key, buffer in model.named_buffers():
            out.write(line(name, rank, dump("buffer", key, buffer)))
    dist.barrier()


if __name__ == "__main__":
    # Forks, because importing torch takes most of the time.
    multiprocessing.start_processes(train, args=(sys.argv[1], os.path.abspath(sys.argv[2])), nprocs=RANKS,
                                    start_method="fork")
