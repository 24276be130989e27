"""Prints the indices of Python's DistributedSampler, one line for each setting and rank:

    SIZE WORLD RANK SEED EPOCH SHUFFLE DROP_LAST: LENGTH INDEX...

For long lists, only every 997th index is printed. The last line is the number of lines before it.
"""
import random

from torch.utils.data import DistributedSampler

LONG = 10000
draw = random.Random(13)


def corner_settings():
    for size in (0, 1, 2, 3, 5, 8):
        for world in (1, 2, 3, 8, 50):
            for shuffle in (True, False):
                for drop_last in (True, False):
                    yield size, world, 0, 0, shuffle, drop_last
    for seed, epoch in ((2**64 - 1, 0), (2**63, 5), (2**32, 1), (2**32 - 1, 1), (0, -1), (0, 2**40), (3, -2**62)):
        yield 100, 3, seed, epoch, True, False
    yield 1000003, 3, 1, 2, True, False
    yield 3000000, 4, 0, 0, True, True


def random_settings(count):
    for _ in range(count):
        size = draw.choice((draw.randrange(20), draw.randrange(300), draw.randrange(3000)))
        world = draw.choice((draw.randrange(1, 5), draw.randrange(1, 40)))
        yield (size, world, draw.getrandbits(draw.choice((4, 31, 63))), draw.randrange(1000),
               draw.random() < 0.8, draw.random() < 0.5)


lines = 0
for size, world, seed, epoch, shuffle, drop_last in (*corner_settings(), *random_settings(300)):
    # All ranks of a small world, some ranks of a large one.
    for rank in range(world) if world < 4 else {0, draw.randrange(world), world - 1}:
        sampler = DistributedSampler(range(size), world, rank, shuffle, seed, drop_last)
        sampler.set_epoch(epoch)
        indices = list(sampler)
        assert len(indices) == len(sampler)
        print(size, world, rank, seed, epoch, int(shuffle), int(drop_last), end=": ")
        print(len(indices), *indices[::1 if len(indices) < LONG else 997])
        lines += 1
print(lines)
