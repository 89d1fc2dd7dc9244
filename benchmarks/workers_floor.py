"""The floors of `workers.py`: what several workers give without this library."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads import Workload

Weights = NDArray[np.float32]


class Client:
    """Trains a network on one batch, as plain PyTorch would."""

    def __init__(self, workload: Workload) -> None:
        torch.set_num_threads(1)
        self._net = workload.net()
        self._params = [*self._net.parameters()]
        generator = torch.Generator().manual_seed(0)
        size = (workload.batch_size, *workload.shape)
        self._x = torch.rand(size, generator=generator)
        self._y = torch.randint(workload.classes, size[:1], generator=generator)

    def train(self, weights: Weights) -> Weights:
        """One step of SGD from some weights; the change."""
        start = torch.from_numpy(weights.copy())
        nn.utils.vector_to_parameters(start.clone(), self._params)
        loss = functional.cross_entropy(self._net(self._x), self._y)
        found: Sequence[Tensor] = torch.autograd.grad(loss, self._params)
        with torch.no_grad():
            for param, gradient in zip(self._params, found, strict=True):
                param.sub_(0.1 * gradient)
        after = nn.utils.parameters_to_vector(self._params).detach()
        return (after - start).numpy()


_client: Client | None = None  # of a process of the pool


def _begin(workload: Workload) -> None:
    global _client
    _client = Client(workload)


def _train(weights: Weights) -> Weights:
    assert _client is not None
    return _client.train(weights)


def by_hand(kind: str, workload: Workload, workers: int, tasks: int) -> float:
    """Seconds of the rounds of FedAvg with bare workers: train, take the mean, train again.

    Args:
        kind: "processes" for `multiprocessing.Pool`, "ray" for Ray actors.
        workload: The network and the clients per round.
        workers: How many workers.
        tasks: How many local runs of one step, in whole rounds.
    """
    size = workload.per_round
    weights = nn.utils.parameters_to_vector(workload.net().parameters()).detach().numpy()

    def seconds(a_round: Callable[[Weights], Sequence[Weights]]) -> float:
        current = weights
        a_round(current)  # the workers have started
        begun = time.perf_counter()
        for _ in range(tasks // size):
            current = current + np.mean(a_round(current), axis=0)
        return time.perf_counter() - begun

    if kind == "processes":
        fresh = multiprocessing.get_context("spawn")
        with fresh.Pool(workers, _begin, (workload,)) as pool:
            return seconds(lambda now: pool.map(_train, [now] * size, chunksize=1))
    import ray
    from ray.util import ActorPool

    ray.init(include_dashboard=False, log_to_driver=False)
    remote = ray.remote(num_cpus=min(1.0, 2 / workers))(Client)
    actors: list[Any] = [remote.remote(workload) for _ in range(workers)]
    crew: Any = ActorPool(actors)

    def a_round(now: Weights) -> Sequence[Weights]:
        put = ray.put(now)
        return [*crew.map_unordered(lambda actor, _: actor.train.remote(put), [0] * size)]

    try:
        return seconds(a_round)
    finally:
        ray.shutdown()


def side_by_side(run: Callable[[], float], copies: int, turns: int) -> float:
    """How many times the work of one run several get done at once, each in its own process.

    Args:
        run: Returns the seconds that it took.
        copies: How many at once.
        turns: How often one run, then all at once; the median over them.
    """
    found = []
    for _ in range(turns):
        (alone,), together = _at_once(run, 1), _at_once(run, copies)
        found.append(copies * alone / statistics.mean(together))
    return statistics.median(found)


def _at_once(run: Callable[[], float], copies: int) -> list[float]:
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(copies)
    answers: Any = context.Queue()
    processes = [context.Process(target=_timed, args=(run, ready, answers)) for _ in range(copies)]
    for process in processes:
        process.start()
    seconds = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    return seconds


def _timed(run: Callable[[], float], ready: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    ready.wait()
    answers.put(run())
