"""Further distributions of the duration of a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlight._support.checks import non_negative, positive
from fedlight._support.strategy import Summary
from fedlight.arrivals._per_client import of_client, one_for_all_or_each, spread_out
from fedlight.arrivals.durations import LONGEST, SHORTEST, ClientDurations, Means

if TYPE_CHECKING:
    from fedlight.types import Federation


class ShiftedExponentialDurations(ClientDurations):
    """A task takes a minimum time plus an exponentially distributed time.

    ``T = shift + mean * e``, e standard exponential; the mean is ``shift + mean``.

    Args:
        shift: The minimum, in virtual time, one for all clients or one for each.
        mean: Mean of the exponential part, one for all clients or one for each.

    Raises:
        TypeError: An argument is neither a number nor a list of numbers.
        ValueError: A shift is negative, or a mean is not above 0.

    Source: Lee, Lam, Pedarsani, Papailiopoulos and Ramchandran, [Speeding Up Distributed Machine
    Learning Using Codes](https://arxiv.org/abs/1512.02673), Section II.

    Example:
        >>> ShiftedExponentialDurations(shift=1.0, mean=[0.5, 2.0])
        ShiftedExponentialDurations(shift=1.0, mean=[0.5, 2.0])
    """

    _repr_positional = 0

    def __init__(self, shift: float | Sequence[float], mean: float | Sequence[float]) -> None:
        self.shift = one_for_all_or_each("shift", shift, non_negative)
        self.mean = one_for_all_or_each("mean", mean, positive)

    def _one_duration(self, rng: np.random.Generator, client_id: int, num_steps: int) -> float:
        """Return the minimum plus one exponential number."""
        rest = of_client(self.mean, client_id) * rng.standard_exponential()
        return max(SHORTEST, of_client(self.shift, client_id) + rest)

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """``shift + mean``."""
        return spread_out(self.shift, federation) + spread_out(self.mean, federation)


class ExponentialStepDurations(ClientDurations):
    """Each local step takes an exponentially distributed time.

    ``T = sum of K numbers mean * e``, where e is standard exponential and K is the task's number of
    local steps; the mean is ``K * mean``.

    Args:
        mean: Mean of one local step in virtual time, one for all clients or one for each.

    Raises:
        TypeError: `mean` is neither a number nor a list of numbers.
        ValueError: A mean is not above 0.

    Source: Zakerinia, Talaei, Nadiradze and Alistarh, [QuAFL](https://arxiv.org/abs/2206.10032),
    Section 4.

    Example:
        >>> ExponentialStepDurations(2.0)
        ExponentialStepDurations(2.0)
    """

    def __init__(self, mean: float | Sequence[float]) -> None:
        self.mean = one_for_all_or_each("mean", mean, positive)

    def _one_duration(self, rng: np.random.Generator, client_id: int, num_steps: int) -> float:
        """Return the sum of K exponential numbers, which has a gamma distribution."""
        return max(SHORTEST, of_client(self.mean, client_id) * rng.standard_gamma(num_steps))

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """The time of the mean number of local steps, or None if that is unknown."""
        return None if num_steps is None else spread_out(self.mean, federation) * num_steps


class ParetoDurations(ClientDurations):
    """Each task takes a Pareto distributed time, with a heavy tail and a possibly infinite mean.

    ``P(T > t) = (shortest / t)**shape`` for ``t >= shortest``. The mean is
    ``shortest * shape / (shape - 1)`` for a shape above 1, and infinite otherwise. Draws above 9
    million units, the largest time that is represented exactly, are reduced to it.

    Args:
        shortest: The minimum, in virtual time, one for all clients or one for each.
        shape: The exponent of the tail, above 0; smaller values give a heavier tail: 1.1 is very
            heavy, 3 moderate.

    Raises:
        TypeError: An argument is not a number, or a list of numbers for `shortest`.
        ValueError: A number is not above 0.

    Example:
        >>> ParetoDurations(1.0, shape=1.5)
        ParetoDurations(1.0, shape=1.5)
    """

    def __init__(self, shortest: float | Sequence[float], shape: float) -> None:
        self.shortest = one_for_all_or_each("shortest", shortest, positive)
        self.shape = positive("shape", shape)

    def _one_duration(self, rng: np.random.Generator, client_id: int, num_steps: int) -> float:
        """Return one Pareto number."""
        # exp(e / shape) of a standard exponential e; it overflows for the smallest shapes
        power = min(rng.standard_exponential() / self.shape, 700.0)
        duration = of_client(self.shortest, client_id) * float(np.exp(power))
        return min(max(SHORTEST, duration), LONGEST)

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """The mean, or None if it is infinite."""
        if self.shape <= 1:
            return None
        return spread_out(self.shortest, federation) * self.shape / (self.shape - 1)


class UniformDurations(ClientDurations):
    """Each task takes a time that is uniformly distributed between two bounds.

    ``T = low + (high - low) * u``, u uniform in [0, 1).

    Args:
        low: The lower bound, in virtual time.
        high: The upper bound.

    Raises:
        TypeError: An argument is not a number.
        ValueError: `low` is not above 0, or `high` is below it.

    Example:
        >>> UniformDurations(1.0, 2.0)
        UniformDurations(1, 2)
    """

    _repr_positional = 2

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = positive("low", low), positive("high", high)
        if self.high < self.low:
            raise ValueError(f"high must be at least low={low!r}, got {high!r}")

    def _one_duration(self, rng: np.random.Generator, client_id: int, num_steps: int) -> float:
        """Return one uniform number."""
        return max(SHORTEST, self.low + (self.high - self.low) * rng.random())

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """``(low + high) / 2``."""
        return np.full(federation.num_clients, (self.low + self.high) / 2)


class DistributionDurations(ClientDurations):
    """Each task takes a time drawn from any distribution, such as a frozen one of scipy.stats.

    ``T = scale_i * X``, X from the distribution. Durations below 1e-9 are raised to 1e-9.

    Args:
        distribution: An object with SciPy's methods ``rvs(random_state=generator)`` and ``mean()``,
            for example ``scipy.stats.weibull_min(0.7)``. fedlight itself does not need SciPy.
        scale: Factor in virtual time, one for all clients or one for each.

    Raises:
        TypeError: `distribution` has no ``rvs``, or `scale` is not a number.
        ValueError: A scale is not above 0.

    Example:
        >>> class Twice:
        ...     def rvs(self, random_state):
        ...         return 2.0 * random_state.random()
        ...
        ...     def mean(self):
        ...         return 1.0
        ...
        ...     def __repr__(self):
        ...         return "Twice()"
        >>> DistributionDurations(Twice(), scale=0.5)
        DistributionDurations(Twice(), scale=0.5)
    """

    def __init__(self, distribution: Any, scale: float | Sequence[float] = 1.0) -> None:
        if isinstance(distribution, type) or not callable(getattr(distribution, "rvs", None)):
            raise TypeError(
                f"distribution must have the method rvs(random_state=…), got {distribution!r}; "
                "for example scipy.stats.weibull_min(0.7)"
            )
        self.distribution = distribution
        self.scale = one_for_all_or_each("scale", scale, positive)

    def _one_duration(self, rng: np.random.Generator, client_id: int, num_steps: int) -> float:
        """Return one number of the distribution."""
        drawn = float(self.distribution.rvs(random_state=rng))
        return min(max(SHORTEST, of_client(self.scale, client_id) * drawn), LONGEST)

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """The scaled mean, or None if it is not finite."""
        mean = float(self.distribution.mean())
        return spread_out(self.scale, federation) * mean if np.isfinite(mean) else None

    def _kept_otherwise(self) -> dict[str, Any]:
        return {"distribution": Summary(_words(self.distribution), whole=False)}


def _words(distribution: Any) -> str:
    """The text for a distribution; SciPy's frozen ones keep name and arguments separately."""
    dist = vars(distribution).get("dist") if hasattr(distribution, "__dict__") else None
    if dist is None:
        return repr(distribution)
    given = [*map(repr, distribution.args), *(f"{k}={v!r}" for k, v in distribution.kwds.items())]
    return f"{dist.name}({', '.join(given)})"
