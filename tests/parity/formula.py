"""The numbers that both programs compute for themselves, so that no file has to pass from one language to the other.

formula.h is the same, line by line; a change here is a change there. Every step is exact or correctly rounded: the two
agree to the last bit.
"""
import math

import torch


def scatter(stream, element):
    """A stream for each tensor; its elements are scattered over all 32 bits."""
    bits = (stream * 0x9E3779B1 + element) & 0xFFFFFFFF
    for factor in (0x2C1B3C6D, 0x297A2D39):
        bits ^= bits >> 15
        bits = bits * factor & 0xFFFFFFFF
    return bits ^ (bits >> 15)


def unit(stream, element):
    """In [-1, 1), with 24 bits: a float holds it exactly."""
    return (scatter(stream, element) >> 8) / 8388608.0 - 1


def real(stream, shape, divisor=1.0, offset=0.0):
    values = [unit(stream, i) / divisor + offset for i in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.float32).reshape(shape)


def whole(stream, shape, below):
    values = [scatter(stream, i) % below for i in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.int64).reshape(shape)


# Streams below this one are weights.
FIRST_BATCH = 1000


@torch.no_grad()
def fill(model, rank):
    """Every rank begins with weights of its own: DDP has to make them rank 0's."""
    for index, (name, parameter) in enumerate(model.named_parameters()):
        fan_in = parameter.numel() // (1 if parameter.dim() == 1 else parameter.size(0))
        scales = parameter.dim() == 1 and name.endswith("weight")
        parameter.copy_(real(500 * rank + index, parameter.shape, math.sqrt(fan_in), 1.0 if scales else 0.0))
