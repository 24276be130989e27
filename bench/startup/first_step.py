#!/usr/bin/env python3
"""A small training program, on one rank, that records the times of its events: the counterpart of first_step.cc.

It has the same model, data, flags and events; first_step.cc explains them. It saves and resumes as PyTorch's users do:
rank 0 writes with torch.save, under another name first, and all ranks load the file if it exists.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LOADED = time.monotonic_ns()
BATCH, INPUTS, HIDDEN, CLASSES = 32, 256, 512, 10


def born_ns():
    """The time at which this process was created, rounded up as in first_step.cc."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        ticks = int(file.read().rpartition(")")[2].split()[22 - 3])
    since_boot = (ticks + 1) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
    return since_boot - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC))


class Events:
    def __init__(self, folder):
        self.rank, self.attempt = int(os.environ["RANK"]), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        path = os.path.join(folder, f"rank_{self.rank}.jsonl")
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def say(self, event, ns=None, **more):
        line = {"rank": self.rank, "pid": os.getpid(), "attempt": self.attempt, "event": event,
                "ns": ns or time.monotonic_ns(), **more}
        os.write(self.file, (json.dumps(line) + "\n").encode())


def train(options, events):
    dist.init_process_group(options.backend)
    rank = dist.get_rank()
    events.say("group", backend=options.backend)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    events.say("collective")
    if ones.item() != dist.get_world_size():
        raise RuntimeError("the first collective is wrong")

    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
                          nn.Linear(HIDDEN, CLASSES))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)

    at, end = 0, options.steps
    file = options.snapshots and os.path.join(options.snapshots, "checkpoint.pt")
    if file:
        if os.path.exists(file):
            saved = torch.load(file)
            ddp.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            at = saved["step"]
            end = at + options.steps_resumed
        events.say("resumed", step=at)
    for step in range(at + 1, end + 1):
        numbers = torch.Generator().manual_seed(1000 * step + rank)
        data = torch.randn(BATCH, INPUTS, generator=numbers)
        target = torch.randint(CLASSES, (BATCH,), generator=numbers)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(data), target)
        loss.backward()
        optimizer.step()
        events.say("step", step=step, loss=loss.item())
        if file and step % options.save_every == 0:
            if rank == 0:
                state = {"model": ddp.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, file + ".new")
                os.replace(file + ".new", file)
            events.say("saved", step=step)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description="Trains a small model and records the times of its events")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--events", required=True, help="folder for the events of each rank")
    parser.add_argument("--snapshots", help="folder to resume from and to save to; default: none")
    parser.add_argument("--steps", type=int, default=3, help="the last step")
    parser.add_argument("--steps-resumed", type=int, default=10, help="number of steps after a resume")
    parser.add_argument("--save-every", type=int, default=5, help="steps between snapshots")
    options = parser.parse_args()
    events = Events(options.events)
    events.say("born", born_ns())
    events.say("loaded", LOADED)
    try:
        train(options, events)
        events.say("done")
    except Exception as error:
        events.say("error", text=str(error))
        raise


if __name__ == "__main__":
    main()
