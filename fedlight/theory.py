"""Closed networks of clients with exponential durations: staleness and throughput in closed form.

A constant number of tasks is in flight, so the clients are a closed queueing network. Its
stationary distribution is a product over the clients, hence its means need no simulation. They
serve to check a simulation, and to choose the number of tasks and the clients at little cost
(`search`).

Sources: Gordon and Newell, "Closed Queuing Systems with Exponential Servers", Operations Research
1967, https://doi.org/10.1287/opre.15.2.254; for asynchronous SGD, Leconte, Jonckheere, Samsonov and
Moulines, [Queuing dynamics of asynchronous Federated Learning](https://arxiv.org/abs/2405.00017).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from fedlight._support.checks import (
    items,
    non_negative_int,
    number,
    positive,
    positive_int,
    shown,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ClosedNetwork", "search"]

_MOST_CELLS = 20_000_000


class ClosedNetwork:
    """M clients with exponential durations of means T_i, and C tasks that are always in flight.

    When a task arrives, another one starts at once:

    - Without `probabilities`, at a client drawn uniformly from those that are idle, among them the
      one that has just arrived: ``ContinuousArrivals(ExponentialDurations(T), concurrency=C,
      resume="on_arrival")``. The probability that the working clients are a set S is proportional
      to the product of T_i over S.
    - With them, at client i with probability p_i; if the client is working, the task waits in its
      queue: Generalized AsyncSGD. The probability that the queues have the lengths n is
      proportional to the product of ``(p_i T_i)**n_i``.

    The delay of a task is the number of arrivals of others between its start and its arrival: the
    staleness if the server steps at each arrival. Counted over all arrivals its mean is C - 1,
    however fast the clients are.

    Args:
        durations: T_i, in virtual time.
        concurrency: C; None for one task for each client. At most M without `probabilities`.
        probabilities: p_i, which add up to 1.

    Attributes:
        durations: T_i, shape ``[M]``.
        concurrency: C.
        probabilities: p_i, shape ``[M]``, or None.
        rates: Arrivals of each client per unit of virtual time, shape ``[M]``.
        in_flight: Mean number of tasks of each client, with those in its queue, shape ``[M]``.
        delays: Mean delay of the tasks of each client, shape ``[M]``.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: A duration or a probability is not above 0, the probabilities do not add up to
            1, or `concurrency` is out of range.

    Example:
        >>> network = ClosedNetwork([1.0, 1.0, 4.0])
        >>> network.throughput, network.delays.round(6).tolist()
        (2.25, [1.25, 1.25, 8.0])
    """

    def __init__(
        self,
        durations: Sequence[float] | NDArray[np.float64],
        concurrency: int | None = None,
        probabilities: Sequence[float] | NDArray[np.float64] | None = None,
    ) -> None:
        self.durations = _all_positive("durations", durations)
        clients = len(self.durations)
        chosen = clients if concurrency is None else concurrency
        self.concurrency = positive_int("concurrency", chosen)
        self.probabilities: NDArray[np.float64] | None = None
        if probabilities is not None:
            self.probabilities = _all_positive("probabilities", probabilities)
            total = float(self.probabilities.sum())
            if len(self.probabilities) != clients or abs(total - 1) > 1e-9:
                raise ValueError(
                    f"probabilities must be {clients} numbers that add up to 1, got "
                    f"{len(self.probabilities)} with the sum {total:g}"
                )
            self.rates, self.in_flight, self.delays = _with_queues(
                self.durations, self.probabilities, self.concurrency
            )
            return
        if self.concurrency > clients:
            raise ValueError(
                f"concurrency={concurrency} is more than the {clients} clients, each of which "
                "has one task at a time; give probabilities= for clients with queues"
            )
        self.rates, self.in_flight, self.delays = _one_each(self.durations, self.concurrency)

    @property
    def throughput(self) -> float:
        """Arrivals per unit of virtual time."""
        return float(self.rates.sum())

    @property
    def shares(self) -> NDArray[np.float64]:
        """The share of each client in the arrivals, shape ``[M]``."""
        return _shares(self.rates)

    def staleness(self, buffer_size: int = 1) -> NDArray[np.float64]:
        """Return the mean staleness of the updates of each client, shape ``[M]``.

        A server that steps after every m arrivals makes, on average, one version for m arrivals
        between a start and the step that uses the update: ``delays / m``.

        Args:
            buffer_size: m.
        """
        return self.delays / positive_int("buffer_size", buffer_size)

    def __repr__(self) -> str:
        queues = "" if self.probabilities is None else ", with queues"
        return f"ClosedNetwork({len(self.durations)} clients, {self.concurrency} tasks{queues})"


def search(
    durations: Sequence[float] | NDArray[np.float64],
    concurrencies: Iterable[int],
    objective: Callable[[ClosedNetwork], float],
    powers: Iterable[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    sweeps: int = 0,
) -> tuple[ClosedNetwork, float]:
    """Choose a concurrency and sampling probabilities on the schedule alone, without training.

    For each concurrency the probabilities ``p_i`` proportional to ``T_i**(-power)`` are tried: 0 is
    uniform, 1 is proportional to the speeds. Then each p_i in turn is multiplied and divided by
    two, 1.2 and 1.05 as long as that helps.

    Args:
        durations: T_i, the means of exponential durations.
        concurrencies: The numbers of tasks to try.
        objective: A function of a `ClosedNetwork` that is to be minimised.
        powers: The powers to try.
        sweeps: Largest number of passes over all clients in the second part.

    Returns:
        The best network, and its objective.

    Raises:
        ValueError: There is nothing to try, or the objective is not finite.

    Example:
        Arrivals are wanted, but of all clients, and not too stale:

        >>> def cost(network):
        ...     return (1 + network.delays.max()) * (1 / network.shares).mean() / network.throughput
        >>> best, _ = search([1.0, 1.0, 4.0], range(1, 9), cost)
        >>> best.concurrency, best.probabilities.round(3).tolist()
        (1, [0.4, 0.4, 0.2])
    """
    means = _all_positive("durations", durations)
    tried = []
    sweeps = non_negative_int("sweeps", sweeps)
    if not callable(objective) or isinstance(objective, type):
        raise TypeError(
            "objective must be a function of a ClosedNetwork that returns a number, got "
            f"{shown(objective)}"
        )
    listed = items("concurrencies", concurrencies)
    numbers = [positive_int("concurrencies", each) for each in listed]
    exponents = [number("powers", each) for each in items("powers", powers)]
    for concurrency in numbers:
        for power in exponents:
            probabilities = _shares(means**-power)
            network = ClosedNetwork(means, concurrency, probabilities)
            tried.append((_cost(objective, network), network))
    if not tried:
        raise ValueError("concurrencies and powers must hold at least one number each, got none")
    cost, best = min(tried, key=lambda pair: pair[0])
    for _ in range(sweeps):
        before = cost
        for client in range(len(means)):
            for factor in (2.0, 0.5, 1.2, 1 / 1.2, 1.05, 1 / 1.05):
                assert best.probabilities is not None
                changed = best.probabilities.copy()
                changed[client] *= factor
                network = ClosedNetwork(means, best.concurrency, _shares(changed))
                found = _cost(objective, network)
                if found < cost:
                    cost, best = found, network
        if cost >= before:
            break
    return best, cost


def _cost(objective: Callable[[ClosedNetwork], float], network: ClosedNetwork) -> float:
    return number(f"objective({network!r})", float(objective(network)))


def _shares(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def _all_positive(name: str, values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    if isinstance(values, Mapping | Set):
        raise TypeError(f"{name} must be a list of numbers, got {shown(values)}")
    checked = [positive(f"{name}[{i}]", each) for i, each in enumerate(items(name, values))]
    if not checked:
        raise ValueError(f"{name} must hold one number for each client, got none")
    return np.array(checked)


_Figures = tuple["NDArray[np.float64]", "NDArray[np.float64]", "NDArray[np.float64]"]


def _with_queues(
    durations: NDArray[np.float64], probabilities: NDArray[np.float64], concurrency: int
) -> _Figures:
    """Rates, tasks in flight and delays of a network with queues: mean value analysis.

    Reiser and Lavenberg, https://doi.org/10.1145/322186.322195: the mean number of tasks that a
    task finds at a client is the one in a network with one task less.

    The delay: each arrival adds one to the delay of all other tasks, which form a network with one
    task less. So ``rate_i * delay_i = throughput * (tasks in flight at i with C - 1)``.
    """
    queue = before = np.zeros_like(durations)
    throughput = 0.0
    for tasks in range(1, concurrency + 1):
        before = queue
        time = durations * (1 + before)
        throughput = tasks / float(probabilities @ time)
        queue = probabilities * throughput * time
    return probabilities * throughput, queue, before / probabilities


def _one_each(durations: NDArray[np.float64], concurrency: int) -> _Figures:
    """Rates, tasks in flight and delays of a network in which each client has one task at most.

    With e_k the sum over all sets of k clients of the product of their T_i, and e_k(i) the same
    without client i, client i is working with probability ``T_i e_{C-1}(i) / e_C``. Each arrival of
    another client adds one to its delay: ``T_i (M - C + 1) e_{C-2}(i) / e_{C-1}(i)``.

    The sums are taken as probabilities that k of M independent events occur, of odds ``s T_i`` with
    a factor s for which about C occur: they neither overflow nor vanish.
    """
    clients = len(durations)
    if clients * (concurrency + 1) > _MOST_CELLS:
        raise ValueError(
            f"concurrency={concurrency} for {clients} clients is more than can be computed; "
            f"their product must be at most {_MOST_CELLS:,}"
        )
    low, high = np.log(1e-12 / durations.max()), np.log(1e12 / durations.min())
    target = min(concurrency, clients - 0.5)
    for _ in range(100):
        odds = durations * np.exp((low + high) / 2)
        if (odds / (1 + odds)).sum() < target:
            low = (low + high) / 2
        else:
            high = (low + high) / 2
    chances = odds / (1 + odds)
    # The chances of k events among the first i, and among the last M - i: with both, each client
    # can be left out in turn at the cost of one sum.
    first = _numbers_of_events(chances, concurrency)
    last = _numbers_of_events(chances[::-1], concurrency)
    all_of_them = first[clients, concurrency]

    def without(k: int) -> NDArray[np.float64]:
        """The chance of k events without that of client i, for each i."""
        if k < 0:
            return np.zeros(clients)
        both = first[:clients, : k + 1] * last[clients - 1 :: -1, k::-1]
        chance: NDArray[np.float64] = both.sum(axis=1)
        return chance

    one_less = without(concurrency - 1)
    busy = chances * one_less / all_of_them
    delays = odds * (clients - concurrency + 1) * without(concurrency - 2) / one_less
    return busy / durations, busy, delays


def _numbers_of_events(chances: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """The chance that k of the first i events occur, shape ``[M + 1, most + 1]``."""
    table = np.zeros((len(chances) + 1, most + 1))
    table[0, 0] = 1.0
    for i, chance in enumerate(chances):
        table[i + 1] = table[i] * (1 - chance)
        table[i + 1, 1:] += table[i, :-1] * chance
    return table
