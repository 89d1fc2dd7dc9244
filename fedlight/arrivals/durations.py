"""T_i, the duration of a task in virtual time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from fedlight._support.checks import fraction, non_negative, positive, shown
from fedlight._support.strategy import Strategy
from fedlight.arrivals._per_client import (
    check_length,
    of_client,
    one_for_all_or_each,
    one_for_each,
    spread_out,
)
from fedlight.events import MAX_TICKS, TICKS_PER_UNIT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation

Means: TypeAlias = "NDArray[np.float64] | None"
"""One mean for each client, shape ``[M]``; None if they are unknown."""

SHORTEST = 1 / TICKS_PER_UNIT
"""One tick, in virtual time; shorter draws are raised to it, since time must advance."""

LONGEST = MAX_TICKS / TICKS_PER_UNIT
"""The largest virtual time that is represented exactly; no task can take longer."""


class DurationModel(Strategy, ABC):
    """The duration of a task: computation and communication together, in virtual time.

    A subclass defines `draw`. It keeps no state between draws: changes over time are a function of
    `starts_at`, and random numbers come from `rng`. A resumed run then needs no saved state.
    """

    _repr_positional, _repr_short = 1, True
    uses_rng: bool = True
    """Whether `draw` reads `rng`; False saves the time to prepare it."""

    exponential: bool = False
    """Whether each client's durations are independent exponential numbers with the same mean."""

    @abstractmethod
    def draw(
        self,
        rng: np.random.Generator,
        client_id: int,
        num_steps: int,
        federation: Federation,
        starts_at: float,
    ) -> float:
        """Return the duration of one task, in virtual time, at least 1e-9.

        Args:
            rng: The random generator. Arrivals by the clock give each task its own stream; arrivals
                by rounds use one stream for the tasks of a round.
            client_id: The client.
            num_steps: K, the task's number of local steps.
            federation: The number of clients, their sizes and the seed.
            starts_at: Virtual time of the client's pull. If `Availability` postpones the task, this
                is the originally planned time.
        """

    def check(self, federation: Federation) -> None:
        """Raise a ValueError if the model does not fit the federation."""
        return

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """Return T_i, the mean duration of each client's tasks, shape ``[M]``.

        None means that it is unknown, for example for durations that change over time.

        Args:
            federation: M clients.
            num_steps: Mean number of local steps of each client, shape ``[M]``, or None if unknown.
        """
        return None


class ClientDurations(DurationModel):
    """Durations that depend on the client and its number of local steps, and not on the time.

    A subclass defines `duration`. An attribute that is a list has one number for each client.
    """

    @abstractmethod
    def _one_duration(self, rng: np.random.Generator, client_id: int, num_steps: int) -> float:
        """Return the duration of one task; the arguments are those of `draw`."""

    def draw(
        self,
        rng: np.random.Generator,
        client_id: int,
        num_steps: int,
        federation: Federation,
        starts_at: float,
    ) -> float:
        """Return the duration of one task."""
        return self._one_duration(rng, client_id, num_steps)

    def check(self, federation: Federation) -> None:
        """Raise a ValueError unless there is one number for all clients or one for each."""
        for name, value in vars(self).items():
            check_length(name, value, federation)


class FixedDurations(ClientDurations):
    """Every task of client i takes the same time.

    ``T_i = durations[i]``

    Args:
        durations: T_i, one for each of the M clients, in virtual time, at least 1e-9.

    Raises:
        TypeError: `durations` is not a list of numbers.
        ValueError: A duration is below 1e-9 or above 9 million units, or the list is empty.

    Source: Fraboni et al., [A General Theory for Federated Optimization with Asynchronous and
    Heterogeneous Clients Updates](https://arxiv.org/abs/2206.10189) (the FedFix paper), Section
    5.1, "fixed update times".

    Example:
        >>> FixedDurations([1.0, 0.8, 0.2])
        FixedDurations([1.0, 0.8, 0.2])
    """

    uses_rng = False

    def __init__(self, durations: Sequence[float]) -> None:
        self.durations = one_for_each("durations", durations, _tick_or_longer)

    def _one_duration(self, rng: np.random.Generator, client_id: int, num_steps: int) -> float:
        """T_i."""
        return self.durations[client_id]

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """T_i."""
        return np.array(self.durations, dtype=np.float64)


class UniformSpeeds(DurationModel):
    """Each client always takes the same time; the clients' times are evenly spaced.

    ``T_i = slowest * (1 - spread * (M - 1 - i) / (M - 1))`` for the clients i = 0..M-1.

    Client 0 is the fastest: it takes ``1 - spread`` of the time of the slowest client, M - 1.
    ``UniformSpeeds(0.8)`` is the paper's F80, ``UniformSpeeds(0)`` its F0.

    Args:
        spread: The difference between the slowest and the fastest duration as a share of `slowest`,
            from 0 to below 1.
        slowest: The longest duration, in virtual time.

    Raises:
        TypeError: An argument is not a number.
        ValueError: `spread` is not in [0, 1), or `slowest` is not above 0.

    Source: Fraboni et al., [the FedFix paper](https://arxiv.org/abs/2206.10189), Section 5.1,
    "Hardware Scenarios".

    Example:
        >>> from fedlight.arrivals import ContinuousArrivals
        >>> arrivals = ContinuousArrivals(UniformSpeeds(0.8))
        >>> arrivals.simulate(num_clients=5, buffer_size=1, max_time=1.0).durations
        [0.2, 0.4, 0.6, 0.8, 1.0]
    """

    uses_rng = False

    def __init__(self, spread: float, slowest: float = 1.0) -> None:
        self.spread = fraction("spread", spread)
        if self.spread == 1:
            raise ValueError(
                "spread must be below 1, got 1: the fastest client would take no time at all; "
                "for example UniformSpeeds(0.8)"
            )
        self.slowest = _duration("slowest", slowest)

    def draw(
        self,
        rng: np.random.Generator,
        client_id: int,
        num_steps: int,
        federation: Federation,
        starts_at: float,
    ) -> float:
        """T_i."""
        ahead = federation.num_clients - 1 - client_id
        share = ahead / (federation.num_clients - 1) if ahead else 0.0
        # Rounded to ticks, as in the event queue, so that `expected` is exact.
        return max(SHORTEST, round(self.slowest * (1 - self.spread * share), 9))

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """T_i."""
        last = federation.num_clients - 1
        shares = np.arange(last, -1, -1) / max(1, last)
        return np.maximum(SHORTEST, np.round(self.slowest * (1 - self.spread * shares), 9))


class ExponentialDurations(ClientDurations):
    """Each task takes an exponentially distributed time.

    ``T = mean * e``, e standard exponential.

    Args:
        mean: Mean in virtual time, one for all clients or one for each.

    Raises:
        TypeError: `mean` is neither a number nor a list of numbers.
        ValueError: A mean is not above 0.

    Source: Fraboni et al., [the FedFix paper](https://arxiv.org/abs/2206.10189), Section 4.1, for
    clients with unreliable hardware.
    """

    exponential = True

    def __init__(self, mean: float | Sequence[float]) -> None:
        self.mean = one_for_all_or_each("mean", mean, _duration)

    def _one_duration(self, rng: np.random.Generator, client_id: int, num_steps: int) -> float:
        """Return one exponential number."""
        return max(SHORTEST, of_client(self.mean, client_id) * rng.standard_exponential())

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """The means."""
        return spread_out(self.mean, federation)


class HalfNormalDurations(ClientDurations):
    """Each task takes a half-normally distributed time.

    ``T = scale * |z|``, z standard normal; the mean is ``scale * sqrt(2 / pi)``.

    Args:
        scale: Scale in virtual time, one for all clients or one for each.

    Raises:
        TypeError: `scale` is neither a number nor a list of numbers.
        ValueError: A scale is not above 0.

    Source: Nguyen et al., [Federated Learning with Buffered Asynchronous
    Aggregation](https://arxiv.org/abs/2106.06639) (FedBuff), whose experiments draw training times
    from this distribution.
    """

    def __init__(self, scale: float | Sequence[float]) -> None:
        self.scale = one_for_all_or_each("scale", scale, _duration)

    def _one_duration(self, rng: np.random.Generator, client_id: int, num_steps: int) -> float:
        """Return the absolute value of one normal number."""
        return max(SHORTEST, of_client(self.scale, client_id) * abs(rng.standard_normal()))

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """``scale * sqrt(2 / pi)``."""
        return spread_out(self.scale, federation) * math.sqrt(2 / math.pi)


class LogNormalDurations(ClientDurations):
    """Each task takes a log-normally distributed time: a long tail of stragglers.

    ``T = median * exp(sigma * z)``, z standard normal; the mean is
    ``median * exp(sigma**2 / 2)``.

    Args:
        median: Median in virtual time, one for all clients or one for each.
        sigma: Standard deviation of the logarithm, without a unit; 0 for no spread.

    Raises:
        TypeError: An argument is not a number, or a list of numbers for `median`.
        ValueError: A median is below 1e-9, `sigma` is negative, or the mean is above 9 million
            units.
    """

    def __init__(self, median: float | Sequence[float], sigma: float) -> None:
        self.median = one_for_all_or_each("median", median, _tick_or_longer)
        self.sigma = non_negative("sigma", sigma)
        # In logarithms, since the mean itself overflows from sigma = 38 on. With this bound and
        # medians of a tick or more, exp(sigma * z) in `draw` is finite for every z.
        # The square itself overflows from 1e154 on.
        spread = min(self.sigma, 1e9) ** 2 / 2
        if np.log(np.max(self.median)) + spread > math.log(LONGEST):
            raise ValueError(
                f"sigma={sigma!r} is too large: the mean duration, median * exp(sigma**2 / 2), "
                f"would be above {LONGEST:,.0f} units of virtual time, the longest possible; "
                "sigma is the standard deviation of the logarithm, for example 0.5"
            )

    def _one_duration(self, rng: np.random.Generator, client_id: int, num_steps: int) -> float:
        """Return one log-normal number."""
        factor = math.exp(self.sigma * rng.standard_normal())
        return max(SHORTEST, of_client(self.median, client_id) * factor)

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """``median * exp(sigma**2 / 2)``."""
        return spread_out(self.median, federation) * math.exp(self.sigma**2 / 2)


class StepDurations(ClientDurations):
    """A task takes a fixed time plus a time proportional to its number of local steps.

    ``T = overhead + per_step * K``, where K is the task's number of local steps.

    Args:
        per_step: Virtual time of one local step, one for all clients or one for each.
        overhead: Virtual time of a task in addition to its steps, such as the transfer of the
            model.

    Raises:
        TypeError: An argument is not a number, or a list of numbers for `per_step`.
        ValueError: A time per step is not above 0, or `overhead` is negative.

    Example:
        >>> from fedlight.arrivals import ContinuousArrivals, PerClientSteps
        >>> arrivals = ContinuousArrivals(
        ...     StepDurations([0.1, 0.2], overhead=0.5), local_steps=PerClientSteps([5, 10])
        ... )
        >>> table = arrivals.simulate(num_clients=2, buffer_size=1, max_updates=3)
        >>> [(event.client, event.time) for event in table.events]
        [(0, 1.0), (0, 2.0), (1, 2.5)]
    """

    uses_rng = False

    def __init__(self, per_step: float | Sequence[float], overhead: float = 0.0) -> None:
        self.per_step = one_for_all_or_each("per_step", per_step, _duration)
        self.overhead = non_negative("overhead", overhead)

    def _one_duration(self, rng: np.random.Generator, client_id: int, num_steps: int) -> float:
        """The time of `num_steps` local steps."""
        return self.overhead + of_client(self.per_step, client_id) * num_steps

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """The time of the mean number of local steps, or None if that is unknown."""
        if num_steps is None:
            return None
        return np.round(self.overhead + spread_out(self.per_step, federation) * num_steps, 9)


def as_durations(value: object, name: str = "durations") -> DurationModel:
    """Return `value` if it is a duration model; `name` is that of the argument.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(value, DurationModel):
        return value
    raise TypeError(
        f"{name} must be a duration model, got {shown(value)}; "
        "for example UniformSpeeds(0.8) or FixedDurations([1.0, 0.5])"
    )


def _duration(name: str, value: object) -> float:
    duration = positive(name, value)
    if duration > LONGEST:
        raise ValueError(
            f"{name} must be at most {LONGEST:,.0f} units of virtual time, got {value!r}; "
            "choose a larger unit, such as hours instead of milliseconds"
        )
    return duration


def _tick_or_longer(name: str, value: object) -> float:
    duration = _duration(name, value)
    # Half a tick would be rounded to 0 and stop the clock. The queue's error could not name it.
    if duration <= SHORTEST / 2:
        raise ValueError(
            f"{name} must be at least {SHORTEST:g} of virtual time, got {value!r}; "
            "choose a smaller unit"
        )
    return duration
