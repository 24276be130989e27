"""Prints the learning rates of Python's schedulers, one line for each setting:

    NAME ARGUMENT...: BASE RATE RATE ...

The last line is the number of lines before it.
"""
import warnings

import torch
from torch.optim import lr_scheduler

warnings.filterwarnings("ignore")
STEPS = 60


def rates(make, base, steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=base)
    scheduler = make(optimizer)
    for _ in range(steps):
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()


def plateau_rates(make, base, steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=base)
    scheduler = make(optimizer)
    for step in range(steps):
        yield optimizer.param_groups[0]["lr"]
        scheduler.step(metric(step))


def metric(step):  # the same in schedules.cc
    return (step * 7 % 11 + 5) / (min(step, 20) + 1)


def sequential(*parts, milestones):
    return lambda o: lr_scheduler.SequentialLR(o, [part(o) for part in parts], list(milestones))


settings = []


def add(text, make, steps=STEPS, run=rates):
    settings.append((text, make, steps, run))


for start, end, total in ((0.1, 1.0, 10), (1 / 3, 1.0, 5), (1.0, 0.25, 40)):
    add(f"linear {start!r} {end!r} {total}", lambda o, a=(start, end, total): lr_scheduler.LinearLR(o, *a))
for factor, total in ((0.1, 7), (1 / 3, 5)):
    add(f"constant {factor!r} {total}", lambda o, a=(factor, total): lr_scheduler.ConstantLR(o, *a))
for size, gamma in ((5, 0.1), (7, 0.5), (1, 0.9)):
    add(f"step {size} {gamma!r}", lambda o, a=(size, gamma): lr_scheduler.StepLR(o, *a))
add("multi_step 3 11 30 0.3", lambda o: lr_scheduler.MultiStepLR(o, [3, 11, 30], 0.3))
add("exponential 0.93", lambda o: lr_scheduler.ExponentialLR(o, 0.93))
for total, power in ((20, 1.0), (50, 2.0), (30, 0.5)):
    if hasattr(lr_scheduler, "PolynomialLR"):
        add(f"polynomial {total} {power!r}", lambda o, a=(total, power): lr_scheduler.PolynomialLR(o, *a))
for t_max, eta_min in ((50, 0.0), (30, 1e-3), (13, 0.01)):
    add(f"cosine_annealing {t_max} {eta_min!r}",
        lambda o, a=(t_max, eta_min): lr_scheduler.CosineAnnealingLR(o, *a))
for t_0, t_mult, eta_min in ((10, 1, 0.0), (5, 2, 1e-3), (1, 3, 0.0)):
    add(f"cosine_annealing_warm_restarts {t_0} {t_mult} {eta_min!r}",
        lambda o, a=(t_0, t_mult, eta_min): lr_scheduler.CosineAnnealingWarmRestarts(o, *a))
for total, pct, anneal, div, final, three in ((60, 0.3, "cos", 25.0, 1e4, False), (60, 0.3, "linear", 25.0, 1e4, False),
                                              (60, 0.4, "cos", 10.0, 100.0, True), (37, 0.25, "linear", 5.0, 1e3, True),
                                              (7, 0.3, "cos", 25.0, 1e4, False)):
    add(f"one_cycle 0.4 {total} {pct!r} {int(anneal == 'linear')} {div!r} {final!r} {int(three)}",
        lambda o, t=total, p=pct, a=anneal, d=div, f=final, h=three: lr_scheduler.OneCycleLR(
            o, 0.4, total_steps=t, pct_start=p, anneal_strategy=a, cycle_momentum=False, div_factor=d,
            final_div_factor=f, three_phase=h), total)
add("lambda", lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)))
add("warmup_then_cosine", sequential(lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, 10),
                                     lambda o: lr_scheduler.CosineAnnealingLR(o, 40, 1e-3), milestones=[10]), 50)
add("three_in_a_row", sequential(lambda o: lr_scheduler.ConstantLR(o, 0.1, 100),
                                 lambda o: lr_scheduler.ExponentialLR(o, 0.9),
                                 lambda o: lr_scheduler.StepLR(o, 4, 0.5), milestones=[6, 21]))
add("two_at_once", lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(o, 0.1, 1.0, 10),
                                                            lr_scheduler.ExponentialLR(o, 0.9)]))
for maximize, absolute in ((0, 0), (0, 1), (1, 0), (1, 1)):
    add(f"plateau {maximize} {absolute}",
        lambda o, m=maximize, a=absolute: lr_scheduler.ReduceLROnPlateau(
            o, mode="max" if m else "min", factor=0.5, patience=2, threshold=0.05,
            threshold_mode="abs" if a else "rel", cooldown=1, min_lr=1e-3), run=plateau_rates)

lines = 0
for text, make, steps, run in settings:
    for base in (0.1, 3.0):
        print(f"{text}: {base!r}", *(repr(float(rate)) for rate in run(make, base, steps)))
        lines += 1
print(lines)
