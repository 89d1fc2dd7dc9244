"""The methods of the islands table under one clock; not a recipe."""

from functools import partial
from typing import Any, NamedTuple

import torch

from fedlight import methods
from fedlight.aggregators import FedBuff
from fedlight.arrivals import ContinuousArrivals, StepDurations, StepsBySpeed
from fedlight.local_optimizers import LocalAdamW, LocalSGD, WarmupCosine


class Size(NamedTuple):
    """Steps of a task, width of the GPT, tokens of a block, and the most bytes of an island."""

    num_steps: int
    width: int
    context: int
    most: int


SIZES = {"small": Size(25, 64, 64, 500_000), "tiny": Size(5, 16, 16, 20_000)}
SPEEDS = [1.0, 1.3, 2.6, 5.7]  # local steps per unit of virtual time


def table(lr: float, num_steps: int, tasks: int) -> dict[str, dict[str, Any]]:
    """Arguments and limits of each method; all make about as many local steps."""
    times = StepDurations([1 / speed for speed in SPEEDS])
    total, least = num_steps * tasks, min(5, num_steps)
    # The schedule of an island that makes a quarter of all steps.
    rate = WarmupCosine(lr, warmup=total // 80, total=total // 4, floor=lr / 10)
    given = {"lr": rate, "local_steps": num_steps, "durations": times}
    dylu = {**given, "local_steps": StepsBySpeed(num_steps, times, least)}
    free = ContinuousArrivals(times, local_steps=num_steps)
    nesterov = partial(torch.optim.SGD, lr=0.0875 / 5, momentum=0.9, nesterov=True)
    adamw = LocalAdamW(rate, keep="client")
    plain = {"arrivals": free, "local_optimizer": adamw}
    plain["aggregator"] = FedBuff(1, None, server_optimizer=nesterov)
    sgd = {"arrivals": ContinuousArrivals(times, local_steps=1), "aggregator": FedBuff(1, None)}
    # The rates had the lowest loss after 100 tasks on Shakespeare, with a seed of their own: of
    # (0.1, 0.25, 0.5, 1, 2) * 0.7, of a quarter of that where an update counts fully and not as one
    # of four, and of 0.15, 0.3 and 0.6 for SGD.
    every = {
        "DiLoCo, rounds": methods.diloco(**given, server_lr=0.35),
        "delayed Nesterov": methods.async_local_sgd(**given, period=4, server_lr=0.175),
        "delayed Nesterov, DyLU": methods.async_local_sgd(**dylu, period=4, server_lr=0.175),
        "look-ahead": methods.look_ahead(**given, server_lr=0.175),
        "HeLoCo": methods.heloco(**given, server_lr=0.175),
        "asynchronous Nesterov": plain,
        "asynchronous SGD": {**sgd, "local_optimizer": LocalSGD(0.15, max_grad_norm=1.0)},
    }
    # With steps by speed all islands arrive equally often.
    mean = sum(max(least, int(num_steps * speed / max(SPEEDS))) for speed in SPEEDS) / len(SPEEDS)
    updates = dict.fromkeys(every, tasks)
    updates |= {"asynchronous SGD": total, "delayed Nesterov, DyLU": round(total / mean)}
    rounds = {"DiLoCo, rounds": {"max_rounds": max(1, tasks // len(SPEEDS))}}
    return {
        name: {
            **each,
            **rounds.get(name, {"max_updates": updates[name]}),
            "check_val_every_n_updates": max(1, updates[name] // 20),
        }
        for name, each in every.items()
    }
