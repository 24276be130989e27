#!/usr/bin/env python3
"""What a training step costs with PyTorch's DistributedDataParallel, on one rank: the peer of train_step.cc.

The same models, weights, batches, kinds of step, flags and JSON; train_step.cc and models.h say why. This side also
does for itself what lockstep does for its ranks: each is bound to a core of its own, and the heap is kept.
"""
import argparse
import contextlib
import ctypes
import datetime
import itertools
import json
import math
import os
import sys
import time

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's <malloc.h>


def tune(rank, world):
    """Before PyTorch is loaded, whose threads inherit the core."""
    cpus = sorted(os.sched_getaffinity(0))
    if 1 < world <= len(cpus):
        os.sched_setaffinity(0, {cpus[rank]})
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, -1)


RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if __name__ == "__main__":
    tune(RANK, WORLD)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

# ---- Numbers

WORD = 0xFFFFFFFF


def key_of(name):
    key = 2166136261
    for letter in name.encode():
        key = ((key ^ letter) * 16777619) & WORD
    return key


def bits(sizes, name):
    """24 bits for each element, which a float holds exactly."""
    x = (torch.arange(math.prod(sizes)) * 2654435769 + key_of(name)) & WORD
    x = ((x ^ (x >> 15)) * 1234567891) & WORD
    x = ((x ^ (x >> 13)) * 987654319) & WORD
    return ((x ^ (x >> 16)) >> 8).view(sizes)


def noise(sizes, name, bound):
    return (bits(sizes, name).float() * 2**-23 - 1) * bound


def classes(sizes, name, count):
    return bits(sizes, name) % count


# ---- Models


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.linear1, self.linear2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.linear2(torch.relu(self.linear1(x.flatten(1))))

    @staticmethod
    def batch(name):
        return noise((32, 1, 28, 28), f"input {name}", 1), classes((32,), f"target {name}", 10)

    loss = staticmethod(F.cross_entropy)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(12):
            setattr(self, f"layer{i}", nn.Linear(1024, 1024))
        self.layers = [getattr(self, f"layer{i}") for i in range(12)]

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x

    @staticmethod
    def batch(name):
        return noise((32, 1024), f"input {name}", 1), noise((32, 1024), f"target {name}", 1)

    loss = staticmethod(F.mse_loss)


SEQUENCE, WIDTH, HEADS, LAYERS, VOCABULARY = 128, 192, 6, 6, 64


class GptBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm2, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, future):
        x = x + self.attention(self.norm1(x), future)
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def attention(self, x, future):
        heads = self.qkv(x).view(x.size(0), SEQUENCE, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, keys, values = heads.select(0, 0), heads.select(0, 1), heads.select(0, 2)
        weights = torch.matmul(query, keys.transpose(-2, -1)) * (1 / math.sqrt(WIDTH // HEADS))
        weights = weights.masked_fill(future, -math.inf).softmax(-1)
        return self.out(torch.matmul(weights, values).transpose(1, 2).reshape(x.size(0), SEQUENCE, WIDTH))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.empty(SEQUENCE, WIDTH))
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        for i in range(LAYERS):
            setattr(self, f"block{i}", GptBlock())
        self.blocks = [getattr(self, f"block{i}") for i in range(LAYERS)]
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.future = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)

    def forward(self, text):
        x = self.tokens(text) + self.positions
        for block in self.blocks:
            x = block(x, self.future)
        return self.head(self.norm(x)).view(-1, VOCABULARY)

    @staticmethod
    def batch(name):
        text = classes((8, SEQUENCE + 1), f"text {name}", VOCABULARY)
        return text[:, :-1].contiguous(), text[:, 1:].flatten()

    loss = staticmethod(F.cross_entropy)


MODELS = {"cnn": Cnn, "gpt": Gpt, "mlp": Mlp}


def make_model(name):
    model = MODELS[name]()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() > 1:
                bound = math.sqrt(6 / (parameter.numel() // parameter.size(0)))
                parameter.copy_(noise(tuple(parameter.shape), key, bound))
            else:
                parameter.fill_(1 if key.endswith("weight") else 0)
    return model


# ---- Steps


class Trainer:
    def __init__(self, options):
        self.set_to_none = options.set_to_none
        self.model = make_model(options.model)
        self.ddp = DistributedDataParallel(self.model, gradient_as_bucket_view=options.bucket_view)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.loss = None  # of the last step

    def step(self, kind, number):
        """Returns how long it took, in ms."""
        data, target = self.model.batch(f"{RANK} {number}")
        dist.barrier()
        begin = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        with self.ddp.no_sync() if kind in ("local", "barrier") else contextlib.nullcontext():
            output = (self.model if kind == "bare" else self.ddp)(data)
            loss = self.model.loss(output, target)
            loss.backward()
        if kind == "barrier":
            dist.barrier()
        self.optimizer.step()
        took = 1e3 * (time.perf_counter() - begin)
        self.loss = loss.detach()
        return took


def gradient_memory(model):
    """The memory that gradients live in: the pieces' bytes. As many as there are buckets when it is theirs."""
    storages = [parameter.grad.storage() for parameter in model.parameters() if parameter.grad is not None]
    return list({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def bucket_sizes(ddp):
    """In bytes, as DDP's own log has them: of the plan that is in use."""
    log = ddp._get_ddp_logging_data()
    text = log.get("rebuilt_bucket_sizes") or log.get("bucket_sizes") or ""
    return [int(size) for size in str(text).split(",") if size.strip()]


def status_mib(field):
    with open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
    return 0


def run(options):
    dist.init_process_group(options.backend, timeout=datetime.timedelta(minutes=2))
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
    orders = itertools.cycle(itertools.permutations(("bare", "wrapped") if alone else ("local", "barrier", "sync")))
    times = {}
    for turn in range(options.warmup + options.turns):
        for kind in next(orders):
            took = (bare if kind == "bare" else trainer).step(kind, number)
            number += 1
            if turn >= options.warmup:
                times.setdefault(kind, []).append(took)
    dist.barrier()

    parameters = list(trainer.model.parameters())
    return {
        "program": "pytorch", "version": torch.__version__, "backend": options.backend, "model": options.model,
        "rank": RANK, "world": WORLD, "set_to_none": options.set_to_none,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "parameter_bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        "gradient_bytes": sum(gradients), "gradient_pieces": len(gradients),
        "bucket_bytes": sum(buckets), "buckets": len(buckets),
        "losses": losses, "times_ms": times, "peak_mib": status_mib("VmHWM"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cnn", choices=MODELS)
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--loss-steps", type=int, default=10, help="synchronised steps at the beginning, with losses")
    parser.add_argument("--warmup", type=int, default=3, help="turns of all kinds before the measured ones")
    parser.add_argument("--turns", type=int, default=40, help="measured steps of each kind")
    parser.add_argument("--set-to-none", action="store_true",
                        help="drop gradients between steps instead of zeroing them")
    parser.add_argument("--bucket-view", action="store_true", help="gradients live in the buckets")
    print(json.dumps(run(parser.parse_args())))
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
