"""Composed durations: classes of clients, sums, transfers, changes over time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from fedlight._support.checks import flag, items, non_negative, optional, pairs, positive
from fedlight.arrivals._per_client import of_client, one_for_all_or_each, spread_out
from fedlight.arrivals.durations import (
    LONGEST,
    SHORTEST,
    ClientDurations,
    DurationModel,
    Means,
    as_durations,
)
from fedlight.randomness import generator

if TYPE_CHECKING:
    from fedlight.types import Federation


class MixedDurations(DurationModel):
    """Clients of several classes, each with its own durations; a client stays in its class.

    The first ``ceil(share * M)`` of the M clients are in the first class, and so on; the last
    class takes the rest. With ``drawn=True`` the class of each client is drawn from the seed, with
    the shares as probabilities.

    Args:
        classes: Pairs (share, durations); the shares are above 0 and add up to 1.
        drawn: Whether classes are drawn.

    Raises:
        TypeError: `classes` is not a list of such pairs.
        ValueError: The shares do not add up to 1, or one is not above 0.

    Example:
        >>> from fedlight.arrivals import ContinuousArrivals, FixedDurations, UniformSpeeds
        >>> classes = [(0.25, UniformSpeeds(0, slowest=9.0)), (0.75, UniformSpeeds(0))]
        >>> arrivals = ContinuousArrivals(MixedDurations(classes))
        >>> arrivals.simulate(num_clients=4, buffer_size=1, max_time=1.0).durations
        [9.0, 1.0, 1.0, 1.0]
    """

    _repr_optional = ("drawn",)

    def __init__(self, classes: Sequence[tuple[float, DurationModel]], drawn: bool = False) -> None:
        self.classes = [
            (positive(f"{name} (a share)", share), as_durations(model, f"{name} (durations)"))
            for name, (share, model) in pairs("classes", classes, "(share, durations)")
        ]
        if not self.classes:
            raise ValueError("classes must hold at least one pair (share, durations), got none")
        total = sum(share for share, _ in self.classes)
        if abs(total - 1) > 1e-9:
            raise ValueError(f"the shares of classes must add up to 1, got {total:g}")
        self.drawn = flag("drawn", drawn)
        self.uses_rng = any(durations.uses_rng for _, durations in self.classes)

    def class_of(self, client_id: int, federation: Federation) -> int:
        """Return the number of a client's class."""
        if self.drawn:
            place = _uniform_of(federation.seed, "class of durations", client_id)
            ends = np.cumsum([share for share, _ in self.classes])
            return min(int(np.searchsorted(ends, place, side="right")), len(self.classes) - 1)
        end = 0
        for number, (share, _) in enumerate(self.classes):
            # the shares of, say, 0.3 of 10 clients are no whole number in binary
            end += ceil(round(share * federation.num_clients, 9))
            if client_id < end:
                return number
        return len(self.classes) - 1

    def draw(
        self,
        rng: np.random.Generator,
        client_id: int,
        num_steps: int,
        federation: Federation,
        starts_at: float,
    ) -> float:
        """Draw from the durations of the client's class."""
        _, durations = self.classes[self.class_of(client_id, federation)]
        return durations.draw(rng, client_id, num_steps, federation, starts_at)

    def check(self, federation: Federation) -> None:
        """Raise a ValueError if the durations of a class do not fit the federation."""
        for _, durations in self.classes:
            durations.check(federation)

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """The mean of each client's class, or None if the mean of a class is unknown."""
        means = (durations.expected(federation, num_steps) for _, durations in self.classes)
        known = [mean for mean in means if mean is not None]
        if len(known) < len(self.classes):
            return None
        number = [self.class_of(client, federation) for client in range(federation.num_clients)]
        return np.choose(number, known)


class LogNormalRates(DurationModel):
    """Each client has its own rate, drawn once; its tasks take exponentially distributed times.

    ``T = e / r_i`` with ``r_i = rate * exp(sigma * z_i)``, e standard exponential and z_i standard
    normal, drawn from the seed for each client.

    Args:
        sigma: Standard deviation of the logarithm of the rates; 0 for equal clients.
        rate: Median of the rates, in tasks per unit of virtual time.

    Raises:
        TypeError: An argument is not a number.
        ValueError: `sigma` is negative, or `rate` is not above 0.

    Source: Iakovidou and Kim, [Asynchronous Federated Learning: A Scalable Approach for
    Decentralized Machine Learning](https://arxiv.org/abs/2405.10123) (AREA).

    Example:
        >>> LogNormalRates(0.1)
        LogNormalRates(0.1, rate=1)
    """

    exponential = True

    def __init__(self, sigma: float, rate: float = 1.0) -> None:
        self.sigma, self.rate = non_negative("sigma", sigma), positive("rate", rate)

    def draw(
        self,
        rng: np.random.Generator,
        client_id: int,
        num_steps: int,
        federation: Federation,
        starts_at: float,
    ) -> float:
        """Return one exponential number."""
        duration = rng.standard_exponential() * self._mean(client_id, federation)
        return float(min(max(SHORTEST, duration), LONGEST))

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """``1 / r_i``."""
        return np.array([self._mean(i, federation) for i in range(federation.num_clients)])

    def _mean(self, client_id: int, federation: Federation) -> float:
        drawn = _normal_of(federation.seed, "rate of a client", client_id)
        return float(np.exp(-self.sigma * drawn)) / self.rate


class SumDurations(DurationModel):
    """A task takes the time of several parts, one after the other.

    ``T = T_1 + T_2 + ...``

    Args:
        parts: Duration models.

    Raises:
        TypeError: A part is not a duration model.
        ValueError: `parts` is empty.

    Example:
        >>> from fedlight.arrivals import HalfNormalDurations, StepDurations
        >>> SumDurations([StepDurations(0.1), HalfNormalDurations(0.5)])
        SumDurations([StepDurations(0.1, overhead=0), HalfNormalDurations(0.5)])
    """

    def __init__(self, parts: Sequence[DurationModel]) -> None:
        self.parts = [
            as_durations(part, f"parts[{place}]")
            for place, part in enumerate(items("parts", parts))
        ]
        if not self.parts:
            raise ValueError("parts must hold at least one duration model, got none")
        self.uses_rng = any(part.uses_rng for part in self.parts)

    def draw(
        self,
        rng: np.random.Generator,
        client_id: int,
        num_steps: int,
        federation: Federation,
        starts_at: float,
    ) -> float:
        """Return the sum of one draw of each part; each part starts when the previous one ends."""
        now = starts_at
        for part in self.parts:
            now += part.draw(rng, client_id, num_steps, federation, now)
        return min(now - starts_at, LONGEST)

    def check(self, federation: Federation) -> None:
        """Raise a ValueError if a part does not fit the federation."""
        for part in self.parts:
            part.check(federation)

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """The sum of the means, or None if one is unknown."""
        total = np.zeros(federation.num_clients)
        for part in self.parts:
            mean = part.expected(federation, num_steps)
            if mean is None:
                return None
            total += mean
        return total


class TransferDurations(ClientDurations):
    """The time of a transfer.

    ``T_i = latency + nbytes / bandwidth_i``. Add it to the time of the computation:
    ``SumDurations([StepDurations(0.1), TransferDurations(nbytes, bandwidth)])``.

    Args:
        nbytes: Bytes of a task in both directions: the pulled model and the update that is sent
            (`Channel.nbytes`).
        bandwidth: Bytes per unit of virtual time, one for all clients or one for each.
        latency: Virtual time until the first byte.

    Raises:
        TypeError: An argument is not a number, or a list of numbers for `bandwidth`.
        ValueError: `nbytes` or `latency` is negative, or a bandwidth is not above 0.

    Example:
        >>> TransferDurations(nbytes=4_000_000, bandwidth=[1e6, 2e6])
        TransferDurations(4e+06, [1000000.0, 2000000.0], latency=0)
    """

    _repr_positional = 2
    uses_rng = False

    def __init__(
        self, nbytes: float, bandwidth: float | Sequence[float], latency: float = 0.0
    ) -> None:
        self.nbytes = non_negative("nbytes", nbytes)
        self.bandwidth = one_for_all_or_each("bandwidth", bandwidth, positive)
        self.latency = non_negative("latency", latency)

    def _one_duration(self, rng: np.random.Generator, client_id: int, num_steps: int) -> float:
        """T_i."""
        duration = self.latency + self.nbytes / of_client(self.bandwidth, client_id)
        return min(max(SHORTEST, duration), LONGEST)

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """T_i."""
        return self.latency + self.nbytes / spread_out(self.bandwidth, federation)


class ChangingDurations(DurationModel):
    """Durations that change over time.

    ``T = f(t) * T_0``, where t is the virtual time of the pull and f is a step function.

    Args:
        durations: T_0.
        factors: Pairs (start, factor): from `start` until the next start, durations are multiplied
            by `factor`. Before the first start the factor is 1.
        period: Virtual time after which f repeats, such as a day; None for never.

    Raises:
        TypeError: `factors` is not a list of pairs of numbers.
        ValueError: The starts do not increase or are not below the period, or a factor is not
            above 0.

    Example:
        >>> from fedlight.arrivals import ContinuousArrivals, FixedDurations
        >>> night = ChangingDurations(FixedDurations([1.0]), [(8, 3.0), (20, 1.0)], period=24)
        >>> arrivals = ContinuousArrivals(night, local_steps=1)
        >>> table = arrivals.simulate(num_clients=1, buffer_size=1, max_time=14)
        >>> [event.time for event in table.events][-3:]
        [8.0, 11.0, 14.0]
    """

    _repr_positional = 2

    def __init__(
        self,
        durations: DurationModel,
        factors: Sequence[tuple[float, float]],
        period: float | None = None,
    ) -> None:
        self.durations = as_durations(durations)
        self.uses_rng = self.durations.uses_rng
        self.period = optional(positive, "period", period)
        self.factors = [
            (non_negative(f"{name} (a start)", start), positive(f"{name} (a factor)", factor))
            for name, (start, factor) in pairs("factors", factors, "(start, factor)")
        ]
        self._starts = [start for start, _ in self.factors]
        if self._starts != sorted(set(self._starts)):
            raise ValueError(f"the starts of factors must increase, got {self._starts}")
        if self.period is not None and self._starts and self._starts[-1] >= self.period:
            raise ValueError(
                f"the starts of factors must be below period={period!r}, got {self._starts[-1]!r}"
            )

    def draw(
        self,
        rng: np.random.Generator,
        client_id: int,
        num_steps: int,
        federation: Federation,
        starts_at: float,
    ) -> float:
        """Return a draw of T_0, times the factor at the time of the pull."""
        duration = self.durations.draw(rng, client_id, num_steps, federation, starts_at)
        time = starts_at if self.period is None else starts_at % self.period
        place = bisect_right(self._starts, time)
        factor = self.factors[place - 1][1] if place else 1.0
        return min(max(SHORTEST, factor * duration), LONGEST)

    def check(self, federation: Federation) -> None:
        """Raise a ValueError if T_0 does not fit the federation."""
        self.durations.check(federation)


@lru_cache(maxsize=200_000)
def _uniform_of(seed: int, name: str, client_id: int) -> float:
    """A number in [0, 1) that a client keeps for the whole run."""
    return float(generator(seed, name, client_id).random())


@lru_cache(maxsize=200_000)
def _normal_of(seed: int, name: str, client_id: int) -> float:
    """A standard normal number that a client keeps for the whole run."""
    return float(generator(seed, name, client_id).standard_normal())
