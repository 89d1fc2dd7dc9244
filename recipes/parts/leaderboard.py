"""The methods of the leaderboard in the settings of four papers; not a recipe."""

from functools import partial
from typing import Any

import numpy as np

from fedlight import aggregators, methods, settings
from fedlight.arrivals import ChangingDurations, ContinuousArrivals, DurationModel
from fedlight.local_optimizers import LocalSGD
from fedlight.types import Federation

M, m, K = 20, 5, 5  # clients, buffer, local steps of a task
SETTINGS = {"Ringmaster": (settings.sqrt_random(M), 5), "FedFix": (settings.fedfix(80), 0.2),
            "QuAFL": (settings.quafl(), 10), "FADAS": (settings.fadas("large"), 1.5)}  # fmt: skip

# MindFlayer's t_i, the median of a client's times, and its p_i. FADAS's classes are drawn anew for
# each seed: no client is known to be slow, and the median is that of all.
client = np.arange(M)
TRIALS = {"Ringmaster": (1 + np.sqrt(client) + 0.6745 * np.sqrt(client + 1), 0.5),
          "FedFix": (1 - 0.8 * client[::-1] / (M - 1) + 1e-6, 1),
          "QuAFL": (np.where(client < 0.3 * M, 8, 2) * 4.671, 0.5),  # of Gamma(5)
          "FADAS": (np.full(M, 1 + 0.5 / 0.64), 0.5)}  # fmt: skip


class BySteps(DurationModel):
    """The times of tasks of K steps, stretched to the number of steps of a task."""

    def __init__(self, tasks: DurationModel) -> None:
        self.tasks = tasks

    def draw(self, rng: np.random.Generator, client_id: int, num_steps: int,
             federation: Federation, starts_at: float) -> float:  # fmt: skip
        """Return ``num_steps / K`` times the duration of a task of K steps."""
        return num_steps / K * self.tasks.draw(rng, client_id, K, federation, starts_at)


def entries(setting: str, lr: float) -> dict[str, Any]:
    """The arguments of each method; the server of FADAS has a fifth of the rate."""
    tasks, period = SETTINGS[setting]  # the period of polls and of FedFix
    # QuAFL's times are those of a step, the others' those of a task of K steps.
    by_steps = tasks if setting == "QuAFL" else BySteps(tasks)
    steps = tasks if setting == "QuAFL" else ChangingDurations(tasks, [(0, 1 / K)])
    task: Any = {"lr": lr, "local_steps": K, "durations": tasks}
    all_work, ten = {"concurrency": None, **task}, {"concurrency": M // 2, **task}
    polls: Any = {"per_poll": m, "interval": period, "max_steps": 2 * K, "durations": steps}
    at_once = partial(ContinuousArrivals, tasks, resume="on_arrival", local_steps=K)
    allotted, p = TRIALS[setting]
    trials: Any = {"allotted": allotted.tolist(), "probabilities": p, **task}
    trials["trials"] = (allotted.max() / allotted).round(3).astype(int).tolist()
    own = {"arrivals": at_once(), "local_optimizer": LocalSGD(lr)}
    x = methods
    return {
        "FedBuff": x.fedbuff(buffer_size=m, **all_work),
        "FedBuff-MA": x.fedbuff_ma(buffer_size=m, **all_work),
        "FedAsync": x.fedasync(**all_work),
        "FedASMU": x.fedasmu(**all_work),
        "asynchronous SGD": {"aggregator": aggregators.FedBuff(1, None), **own},
        "DC-ASGD": x.dc_asgd(**all_work),
        "AsyncFedAvg": x.async_fedavg(**task),
        "FedFix": x.fedfix(interval=period, **task),
        "FedCompass": x.fedcompass(lr=lr, durations=by_steps, min_steps=2, max_steps=2 * K),
        "AREA": x.area(buffer_size=m, **all_work),
        "CA2FL": x.ca2fl(buffer_size=m, **all_work),
        "MIFA": {"aggregator": aggregators.MIFA(m), **own},
        "FADAS": x.fadas(buffer_size=m, server_lr=lr / 5, **all_work),
        "Ringmaster": x.ringmaster(max_delay=M, stops=True, **all_work),
        "Rennala": x.rennala(batch_size=m, stops=True, **all_work),
        "Malenia": x.malenia(stops=True, **task),
        "MindFlayer": x.mindflayer(**trials),
        "Vecna": x.mindflayer(equal="clients", **trials),
        "Ringleader": x.ringleader(**task),
        "QuAFL": x.quafl(lr=lr, quantizer=None, **polls),
        "FAVAS": x.favas(lr=K * lr, **polls),  # it divides by the number of steps
        # Who chooses needs idle clients: ten at work, or rounds of five.
        "FedBuff of 10": x.fedbuff(buffer_size=m, **ten),
        "Pisces of 10": x.pisces(buffer_size=m, **ten),
        "FedAvg": x.fedavg(per_round=m, **task),
        "Power-of-choice": x.power_of_choice(per_round=m, candidates=2 * m, **task),
        "Oort": x.oort(per_round=m, **task),
    }
