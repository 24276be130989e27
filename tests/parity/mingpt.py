"""Trains the GPT of examples/mingpt with PyTorch, in one process and with the whole batch at once, and writes the
same values as mingpt.cc, which uses lockstep.

    mingpt.py DIR        writes DIR/rank_0.log

Each part is written as plainly as possible, even where the C++ uses a shortcut.
"""
import math
import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"  # before torch reads it

import torch
from torch import nn

from formula import FIRST_BATCH, fill, whole

# The same as in mingpt.cc.
LAYERS, HEADS, WIDTH, VOCABULARY, CONTEXT = 2, 2, 32, 40, 16
BATCH, STEPS = 8, 10
PEAK, FLOOR, WARMUP = 1e-2, 1e-3, 3
CLIP = 1.0


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (part.view(batch, time, HEADS, width // HEADS).transpose(1, 2)
                   for part in self.attend(x).split(width, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(width // HEADS)
        future = torch.ones(time, time, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(3)
        return self.project((weights @ v).transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.expand = nn.Linear(WIDTH, 4 * WIDTH)
        self.project = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.project(gelu(self.expand(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, text):
        x = self.tokens(text) + self.positions(torch.arange(text.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def learning_rate(step):
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    return FLOOR + (PEAK - FLOOR) * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - 1 - WARMUP))) / 2


def line(rest):
    return f'{{"model": "mingpt", "rank": 0, {rest}}}\n'


def main(directory):
    model = Gpt()
    fill(model, 0)
    with torch.no_grad():  # scales the weights so that the two variants of GELU differ
        for block in model.blocks:
            block.expand.weight.mul_(4)
            block.project.weight.mul_(4)
    matrices = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    others = [parameter for parameter in model.parameters() if not any(parameter is matrix for matrix in matrices)]
    # A large epsilon, as in models.py: otherwise rounding errors in the gradient of a key's bias would give full steps.
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  betas=(0.9, 0.95), eps=1e-3)
    clipped = 0
    with open(f"{directory}/rank_0.log", "w", encoding="utf-8") as out:
        for step in range(STEPS):
            windows = whole(FIRST_BATCH + step, (BATCH, CONTEXT + 1), VOCABULARY)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
            loss.backward()
            clipped += nn.utils.clip_grad_norm_(model.parameters(), CLIP).item() > CLIP
            optimizer.step()
            out.write(line(f'"step": {step}, "loss": {loss.item():.9g}'))
        for name, parameter in model.named_parameters():
            values = ", ".join(f"{value:.9g}" for value in parameter.detach().flatten().tolist())
            out.write(line(f'"parameter": "{name}", "shape": {list(parameter.shape)}, "values": [{values}]'))
    assert 0 < clipped < STEPS, f"{clipped} of {STEPS} steps were clipped: clipping should matter, but not always"


if __name__ == "__main__":
    main(sys.argv[1])
