"""How long a task takes, in virtual time: T_i."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedlight.checks import fraction, non_negative, positive

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation

SHORTEST = 1e-9
"""The tick of virtual time: what is drawn shorter takes this long."""


class DurationModel(ABC):
    """Compute plus communication time of a task, always larger than 0."""

    uses_rng: bool = True
    """Whether `draw` takes numbers from `rng`; False saves the time to prepare it."""

    @abstractmethod
    def draw(
        self, rng: np.random.Generator, client_id: int, num_steps: int, federation: Federation
    ) -> float:
        """Duration of one task of `num_steps` local steps, virtual time > 0.

        On the clock `rng` is a stream of this task alone, by rounds one of this round.
        """

    def check(self, federation: Federation) -> None:
        """Raise a ValueError where the model does not fit the federation."""
        return

    def expected(
        self, federation: Federation, num_steps: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64] | None:
        """T_i, the mean duration of each client's tasks, shape ``[M]``, where it is known.

        `num_steps` are the mean numbers of local steps, shape ``[M]``, or None if unknown.
        """
        return None


class FixedDurations(DurationModel):
    """Every task of client i takes ``durations[i]``.

    Args:
        durations: T_i in virtual time, one for each client, larger than 0.

    Raises:
        ValueError: A duration is not above 0, or there is none.

    Source: FedFix paper (Fraboni et al.), Section 5.1, "fixed update times".

    Example:
        >>> FixedDurations([1.0, 0.8, 0.2])
        FixedDurations([1.0, 0.8, 0.2])
    """

    uses_rng = False

    def __init__(self, durations: Sequence[float]) -> None:
        if not isinstance(durations, Iterable):
            raise TypeError(
                f"durations must be a list of one number for each client, got {durations!r}; "
                "for equal ones write FixedDurations([1.0] * num_clients)"
            )
        self.durations = per_client("durations", durations)

    def draw(
        self, rng: np.random.Generator, client_id: int, num_steps: int, federation: Federation
    ) -> float:
        """T_i."""
        return self.durations[client_id]

    def check(self, federation: Federation) -> None:
        """Raise a ValueError unless there is one duration for each client."""
        one_for_each("durations", self.durations, federation)

    def expected(
        self, federation: Federation, num_steps: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """T_i."""
        return np.array(self.durations, dtype=np.float64)

    def __repr__(self) -> str:
        return f"FixedDurations({brief(self.durations)})"


class UniformSpeeds(DurationModel):
    """Each client always takes the same time; the times are evenly spaced up to the slowest's.

    ``T_i = slowest * (1 - spread * (M - 1 - i) / (M - 1))``: client 0 is the fastest and takes
    ``1 - spread`` of the time of the last client, the slowest. ``UniformSpeeds(0.8)`` is the
    paper's F80, ``UniformSpeeds(0)`` its F0.

    Args:
        spread: How much faster the fastest is, from 0 to below 1.
        slowest: The longest duration, in virtual time.

    Raises:
        ValueError: `spread` is not in [0, 1), or `slowest` is not above 0.

    Source: FedFix paper (Fraboni et al.), Section 5.1, "Hardware Scenarios".

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
        self.slowest = positive("slowest", slowest)

    def draw(
        self, rng: np.random.Generator, client_id: int, num_steps: int, federation: Federation
    ) -> float:
        """T_i."""
        ahead = federation.num_clients - 1 - client_id
        share = ahead / (federation.num_clients - 1) if ahead else 0.0
        return max(SHORTEST, round(self.slowest * (1 - self.spread * share), 9))

    def expected(
        self, federation: Federation, num_steps: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """T_i."""
        last = federation.num_clients - 1
        shares = np.arange(last, -1, -1) / max(1, last)
        return np.maximum(SHORTEST, np.round(self.slowest * (1 - self.spread * shares), 9))

    def __repr__(self) -> str:
        return f"UniformSpeeds({self.spread:g}, slowest={self.slowest:g})"


class ExponentialDurations(DurationModel):
    """Each task takes an exponentially distributed time.

    Args:
        mean: Mean in virtual time, one for all clients or one for each.

    Raises:
        ValueError: A mean is not above 0.

    Source: FedFix paper (Fraboni et al.), Section 2.2, where update times are random variables.
    """

    def __init__(self, mean: float | Sequence[float]) -> None:
        self.mean = for_all_or_each("mean", mean)

    def draw(
        self, rng: np.random.Generator, client_id: int, num_steps: int, federation: Federation
    ) -> float:
        """One exponential number."""
        return max(SHORTEST, of_client(self.mean, client_id) * rng.standard_exponential())

    def check(self, federation: Federation) -> None:
        """Raise a ValueError unless there is one mean for all or one for each client."""
        one_for_each("mean", self.mean, federation)

    def expected(
        self, federation: Federation, num_steps: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """The means."""
        return spread_out(self.mean, federation)

    def __repr__(self) -> str:
        return f"ExponentialDurations({brief(self.mean)})"


class HalfNormalDurations(DurationModel):
    """Each task takes ``scale * |z|``, z standard normal; the mean is ``scale * sqrt(2 / pi)``.

    Args:
        scale: Scale in virtual time, one for all clients or one for each.

    Raises:
        ValueError: A scale is not above 0.

    Source: Nguyen et al. 2022, FedBuff, whose experiments draw training times so.
    """

    def __init__(self, scale: float | Sequence[float]) -> None:
        self.scale = for_all_or_each("scale", scale)

    def draw(
        self, rng: np.random.Generator, client_id: int, num_steps: int, federation: Federation
    ) -> float:
        """The size of one normal number."""
        return max(SHORTEST, of_client(self.scale, client_id) * abs(rng.standard_normal()))

    def check(self, federation: Federation) -> None:
        """Raise a ValueError unless there is one scale for all or one for each client."""
        one_for_each("scale", self.scale, federation)

    def expected(
        self, federation: Federation, num_steps: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """``scale * sqrt(2 / pi)``."""
        return spread_out(self.scale, federation) * math.sqrt(2 / math.pi)

    def __repr__(self) -> str:
        return f"HalfNormalDurations({brief(self.scale)})"


class LogNormalDurations(DurationModel):
    """Each task takes ``median * exp(sigma * z)``, z standard normal: a long tail of stragglers.

    The mean is ``median * exp(sigma**2 / 2)``.

    Args:
        median: Median in virtual time, one for all clients or one for each.
        sigma: Standard deviation of the logarithm; 0 for no spread.

    Raises:
        ValueError: A median is not above 0, or `sigma` is negative.
    """

    def __init__(self, median: float | Sequence[float], sigma: float) -> None:
        self.median = for_all_or_each("median", median)
        self.sigma = non_negative("sigma", sigma)

    def draw(
        self, rng: np.random.Generator, client_id: int, num_steps: int, federation: Federation
    ) -> float:
        """One log-normal number."""
        factor = math.exp(self.sigma * rng.standard_normal())
        return max(SHORTEST, of_client(self.median, client_id) * factor)

    def check(self, federation: Federation) -> None:
        """Raise a ValueError unless there is one median for all or one for each client."""
        one_for_each("median", self.median, federation)

    def expected(
        self, federation: Federation, num_steps: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """``median * exp(sigma**2 / 2)``."""
        return spread_out(self.median, federation) * math.exp(self.sigma**2 / 2)

    def __repr__(self) -> str:
        return f"LogNormalDurations({brief(self.median)}, sigma={self.sigma:g})"


class StepDurations(DurationModel):
    """A task takes time in proportion to its local steps: ``T = overhead + per_step * K``.

    Args:
        per_step: Virtual time of one local step, one for all clients or one for each.
        overhead: Virtual time on top for each task, such as the transfer of the model.

    Raises:
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
        self.per_step = for_all_or_each("per_step", per_step)
        self.overhead = non_negative("overhead", overhead)

    def draw(
        self, rng: np.random.Generator, client_id: int, num_steps: int, federation: Federation
    ) -> float:
        """The time of `num_steps` local steps."""
        return self.overhead + of_client(self.per_step, client_id) * num_steps

    def check(self, federation: Federation) -> None:
        """Raise a ValueError unless there is one time per step for all or one for each client."""
        one_for_each("per_step", self.per_step, federation)

    def expected(
        self, federation: Federation, num_steps: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64] | None:
        """The time of the mean number of local steps, where that is known."""
        if num_steps is None:
            return None
        return np.round(self.overhead + spread_out(self.per_step, federation) * num_steps, 9)

    def __repr__(self) -> str:
        return f"StepDurations({brief(self.per_step)}, overhead={self.overhead:g})"


def as_durations(value: object) -> DurationModel:
    """`value` where it is a duration model.

    Raises:
        TypeError: It is none.
    """
    if isinstance(value, DurationModel):
        return value
    raise TypeError(
        f"durations must be a duration model, got {value!r}; "
        "for example UniformSpeeds(0.8) or FixedDurations([1.0, 0.5])"
    )


def per_client(name: str, values: Sequence[float]) -> list[float]:
    """Numbers above 0, one for each client.

    Raises:
        TypeError: There is something else in the list.
        ValueError: A number is not above 0, or there is none.
    """
    numbers = [positive(f"{name}[{client}]", value) for client, value in enumerate(values)]
    if not numbers:
        raise ValueError(f"{name} must hold one number for each client, got none")
    return numbers


def for_all_or_each(name: str, value: float | Sequence[float]) -> float | list[float]:
    """A number above 0, or a list of them.

    Raises:
        TypeError: It is neither.
        ValueError: A number is not above 0, or there is none.
    """
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str):
        return per_client(name, value)
    return positive(name, value)


def brief(value: float | Sequence[float]) -> str:
    """A number as it is, of a long list the beginning alone."""
    if isinstance(value, Sequence) and len(value) > 20:
        return f"[{', '.join(map(repr, value[:3]))}, ... {len(value)} in all]"
    return repr(value)


def of_client(value: float | list[float], client_id: int) -> float:
    """The number of one client."""
    return value[client_id] if isinstance(value, list) else value


def spread_out(value: float | list[float], federation: Federation) -> NDArray[np.float64]:
    """One number for each client, shape ``[M]``."""
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (federation.num_clients,)).copy()


def one_for_each(name: str, value: float | list[float], federation: Federation) -> None:
    """Raise a ValueError where a list does not have one number for each client."""
    if isinstance(value, list) and len(value) != federation.num_clients:
        raise ValueError(
            f"{name} has {len(value)} numbers, "
            f"but there are {federation.num_clients} clients; give one for each"
        )
