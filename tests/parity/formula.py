"""Numbers that both programs compute themselves, so that they need not exchange files.

formula.h is the same, line by line; change both together. Every step is exact or correctly rounded, so the two agree to
the last bit.
"""
import math

import torch


def scatter(stream, element):
    """A stream of numbers for each tensor, spread over all 32 bits."""
    bits = (stream * 0x9E3779B1 + element) & 0xFFFFFFFF
    for factor in (0x2C1B3C6D, 0x297A2D39):
        bits ^= bits >> 15
        bits = bits * factor & 0xFFFFFFFF
    return bits ^ (bits >> 15)


def unit(stream, element):
    """In [-1, 1), with 24 bits, so that a float represents it exactly."""
    return (scatter(stream, element) >> 8) / 8388608.0 - 1


def real(stream, shape, divisor=1.0, offset=0.0):
    values = [unit(stream, i) / divisor + offset for i in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.float32).reshape(shape)


def whole(stream, shape, below):
    values = [scatter(stream, i) % below for i in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.int64).reshape(shape)


# Streams below this one are for weights.
FIRST_BATCH = 1000


@torch.no_grad()
def fill(model, rank):
    """Every rank starts with different weights, which DDP must replace by those of rank 0."""
    for index, (name, parameter) in enumerate(model.named_parameters()):
        fan_in = parameter.numel() // (1 if parameter.dim() == 1 else parameter.size(0))
        scales = parameter.dim() == 1 and name.endswith("weight")
        parameter.copy_(real(500 * rank + index, parameter.shape, math.sqrt(fan_in), 1.0 if scales else 0.0))
