"""The methods of the leaderboard in the settings of four papers; not a recipe."""

from functools import partial
from typing import Any

from fedlight import aggregators, settings
from fedlight.arrivals import ChangingDurations, ContinuousArrivals, PolledArrivals
from fedlight.local_optimizers import LocalSGD, OwnModel

M, m, K = 20, 5, 5  # clients, buffer, local steps of a task
SETTINGS = {"Ringmaster": (settings.sqrt_random(M), 5), "FedFix": (settings.fedfix(80), 0.2),
            "QuAFL": (settings.quafl(), 10), "FADAS": (settings.fadas("large"), 1.5)}  # fmt: skip


def methods(setting: str, lr: float) -> dict[str, Any]:
    """The arguments of each method; the server of FADAS has a fifth of the rate."""
    tasks, period = SETTINGS[setting]  # of polls and of FedFix
    a, sgd, arrivals = aggregators, LocalSGD(lr), partial(ContinuousArrivals, tasks, local_steps=K)
    # QuAFL's times are those of a step, the others' those of a task of K steps.
    steps = tasks if setting == "QuAFL" else ChangingDurations(tasks, [(0, 1 / K)])
    polled = PolledArrivals(m, period, steps, max_steps=2 * K)
    free = {"FedBuff": a.FedBuff(m), "FedAsync": a.FedAsync(0.6, a.staleness.Polynomial(0.5)),
            "asynchronous SGD": a.FedBuff(1, None), "DC-ASGD": a.DCASGD(0.04, local_lr=lr),
            "AsyncFedAvg": a.AsyncFedAvg(), "FedFix": a.FedFix(period), "AREA": a.AREA(m),
            "CA2FL": a.CA2FL(m), "MIFA": a.MIFA(m), "FADAS": a.FADAS(m, lr / 5)}  # fmt: skip
    parts = {name: (aggregator, arrivals(), sgd) for name, aggregator in free.items()}
    parts["Ringmaster"] = a.Ringmaster(M - 1), arrivals(restart_after=M), sgd
    parts["Rennala"] = a.Rennala(m), arrivals(restart_after=1), sgd
    parts["Malenia"] = a.Malenia(), arrivals(restart_after=1), sgd
    parts["QuAFL"] = a.QuAFL(), polled, OwnModel(sgd, m)
    parts["FAVAS"] = a.FAVAS(), polled, LocalSGD(K * lr)  # it divides by the number of steps
    return {name: {"aggregator": x, "arrivals": y, "local_optimizer": z}
            for name, (x, y, z) in parts.items()}  # fmt: skip
