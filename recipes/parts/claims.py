"""The methods whose claims are tried, with their arrivals; not a recipe."""

from functools import partial
from typing import Any

import torch

from fedlight import settings
from fedlight.aggregators import CA2FL, FADAS, FAVAS, MIFA, FedBuff, Ringmaster
from fedlight.arrivals import BiasedArrivals, ContinuousArrivals, ParetoDurations, PolledArrivals


def methods(claim: str, rate: float) -> dict[str, tuple[Any, Any, float]]:
    """By scene and method: aggregator, arrivals, local rate; a scene's first is the reference."""
    if claim == "floor":
        come = BiasedArrivals(2, [0.19, 0.19, *[0.1] * 6, 0.01, 0.01], 4, local_steps=5)
        return {
            f"biased, {kind.__name__}": (kind(2), come, rate) for kind in (FedBuff, CA2FL, MIFA)
        }
    if claim == "delays":
        adam = partial(torch.optim.Adam, lr=rate, betas=(0.9, 0.99))
        made = {"FedBuff with Adam": FedBuff(5, None, server_optimizer=adam)}
        made |= {f"FADAS {d}": FADAS(5, rate, delay=d) for d in ("none", "reciprocal", "divided")}
        come = partial(ContinuousArrivals, concurrency=25, resume="on_arrival", local_steps=5)
        return {f"{scene}, {name}": (each, come(settings.fadas(scene)), 0.1)
                for scene in ("mild", "large") for name, each in made.items()}  # fmt: skip
    if claim == "stops":
        times = {"linear": settings.linear_random(32), "Pareto": ParetoDurations(1, 1.1)}
        made = {"asynchronous SGD": (None, None), "Ringmaster": (7, None), "with stops": (7, 8)}
        come = partial(ContinuousArrivals, local_steps=1)
        return {f"{scene}, {name}": (Ringmaster(age), come(time, restart_after=stop), rate)
                for scene, time in times.items() for name, (age, stop) in made.items()}  # fmt: skip
    come = ContinuousArrivals(settings.quafl(0.3), resume="on_arrival", local_steps=5)
    polls = PolledArrivals(5, 10, settings.quafl(0.3), max_steps=10)
    return {"slow, FedBuff": (FedBuff(5, None), come, rate), "slow, FAVAS": (FAVAS(), polls, rate)}
