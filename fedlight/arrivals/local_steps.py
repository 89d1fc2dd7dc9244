"""K, the number of local steps of a task."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np

from fedlight._support.checks import positive, positive_int, shown
from fedlight._support.strategy import Strategy
from fedlight.arrivals._per_client import check_length, one_for_each
from fedlight.arrivals.durations import DurationModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation

MOST = 2**53
"""The largest number of steps: up to here a float holds every integer exactly."""


class LocalSteps(Strategy, ABC):
    """A policy for K, the number of local steps of a task.

    A subclass defines `draw`. It keeps no state between draws, so a resumed run needs no saved
    state.
    """

    _repr_positional, _repr_short = 1, True
    uses_rng: bool = True
    """Whether `draw` reads `rng`; False saves the time to prepare it."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, client_id: int, federation: Federation) -> int:
        """Return K for one task of a client, at least 1.

        Args:
            rng: The random generator. Arrivals by the clock give each task its own stream; arrivals
                by rounds use one stream for the tasks of a round.
            client_id: The client.
            federation: The number of clients, their sizes, the batch size and the seed.
        """

    def check(self, federation: Federation) -> None:
        """Raise a ValueError if the policy does not fit the federation."""
        return

    def expected(self, federation: Federation) -> NDArray[np.float64] | None:
        """Return the mean of K for each client, shape ``[M]``, or None if it is unknown."""
        return None


class ConstantSteps(LocalSteps):
    """Every task makes the same number of local steps.

    ``K = num_steps``

    Args:
        num_steps: K, at least 1.

    Raises:
        TypeError: `num_steps` is not an integer.
        ValueError: It is below 1 or above 2**53.

    Source: Yang et al., [Anarchic Federated Learning](https://arxiv.org/abs/2108.09875), Appendix
    E.1, "constant local steps".

    Example:
        >>> ConstantSteps(5)
        ConstantSteps(5)
    """

    uses_rng = False

    def __init__(self, num_steps: int) -> None:
        self.num_steps = _num_steps("num_steps", num_steps)

    def draw(self, rng: np.random.Generator, client_id: int, federation: Federation) -> int:
        """K."""
        return self.num_steps

    def expected(self, federation: Federation) -> NDArray[np.float64]:
        """K."""
        return np.full(federation.num_clients, float(self.num_steps))


class UniformSteps(LocalSteps):
    """Each task makes a number of local steps that is drawn uniformly from a range.

    ``K ~ Uniform{low, ..., high}``, both ends included.

    ``UniformSteps(1, 2 * c)`` gives the "dynamic local steps" of the paper.

    Args:
        low: Smallest number of steps, at least 1.
        high: Largest number of steps, at least `low`.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: `low` is below 1, `high` is below `low` or above 2**53.

    Source: Yang et al., [Anarchic Federated Learning](https://arxiv.org/abs/2108.09875), Appendix
    E.1.
    """

    _repr_positional = 2

    def __init__(self, low: int, high: int) -> None:
        self.low = _num_steps("low", low)
        self.high = _num_steps("high", high)
        if self.high < self.low:
            raise ValueError(f"high must be at least low={self.low}, got {self.high}")

    def draw(self, rng: np.random.Generator, client_id: int, federation: Federation) -> int:
        """Return one integer from low to high."""
        return int(rng.integers(self.low, self.high + 1))

    def expected(self, federation: Federation) -> NDArray[np.float64]:
        """The mean of low and high."""
        return np.full(federation.num_clients, (self.low + self.high) / 2)


class LocalEpochs(LocalSteps):
    """Each task makes the local steps of `num_epochs` passes over the client's examples.

    ``K_i = ceil(num_epochs * n_i / min(batch_size, n_i))``, where n_i is the number of examples of
    client i.

    Args:
        num_epochs: Passes over the client's examples; a fraction of a pass is allowed.

    Raises:
        TypeError: `num_epochs` is not a number.
        ValueError: It is not above 0; or (at set-up) a client would make more than 2**53 steps.

    Source: McMahan et al., [Communication-Efficient Learning of Deep Networks from Decentralized
    Data](https://arxiv.org/abs/1602.05629), Section 2, where E is `num_epochs`.
    """

    uses_rng = False

    def __init__(self, num_epochs: float) -> None:
        self.num_epochs = positive("num_epochs", num_epochs)

    def draw(self, rng: np.random.Generator, client_id: int, federation: Federation) -> int:
        """The steps of `num_epochs` passes."""
        num_examples = int(federation.num_examples[client_id])
        batch = min(federation.batch_size, num_examples)
        return max(1, math.ceil(self.num_epochs * num_examples / batch))

    def check(self, federation: Federation) -> None:
        """Raise a ValueError if a client would make more steps than can be counted."""
        most = float(np.max(federation.num_examples))
        if self.num_epochs > MOST / most:
            raise ValueError(
                f"num_epochs={self.num_epochs!r} gives a client with {most:,.0f} examples more "
                f"than {MOST} local steps; write a smaller number, such as LocalEpochs(1)"
            )

    def expected(self, federation: Federation) -> NDArray[np.float64]:
        """The steps of `num_epochs` passes."""
        sizes = federation.num_examples
        batches = np.minimum(federation.batch_size, sizes)
        return np.maximum(1.0, np.ceil(self.num_epochs * sizes / batches))


class PerClientSteps(LocalSteps):
    """Client i makes the same number of local steps in each of its tasks.

    ``K_i = num_steps[i]``

    Args:
        num_steps: K_i, one for each of the M clients, at least 1.

    Raises:
        TypeError: `num_steps` is not a list of integers.
        ValueError: A number is below 1 or above 2**53, or the list is empty.

    Source: Yang et al., [Anarchic Federated Learning](https://arxiv.org/abs/2108.09875), Algorithm
    2, in which each worker chooses its own number of steps.
    """

    uses_rng = False

    def __init__(self, num_steps: Sequence[int]) -> None:
        self.num_steps = one_for_each("num_steps", num_steps, _num_steps)

    def draw(self, rng: np.random.Generator, client_id: int, federation: Federation) -> int:
        """K_i."""
        return self.num_steps[client_id]

    def check(self, federation: Federation) -> None:
        """Raise a ValueError unless there is one number for each client."""
        check_length("num_steps", self.num_steps, federation)

    def expected(self, federation: Federation) -> NDArray[np.float64]:
        """K_i."""
        return np.array(self.num_steps, dtype=np.float64)


class StepsBySpeed(LocalSteps):
    """Dynamic local updates (DyLU): a client makes steps in proportion to its speed.

    ``K_i = max(floor(H * v_i / v_max), least)``, where v_i is the speed of client i in local steps
    per unit of virtual time, and v_max the largest speed of all M clients.

    Where the duration of a task is proportional to its steps (`StepDurations`), clients that start
    together also arrive together, up to the rounding of K_i.

    Speeds that are written down twice can contradict each other. So instead of a list, the duration
    model of the arrival process can be given::

        durations = StepDurations([0.1, 0.13, 0.26, 0.57])
        ContinuousArrivals(durations, local_steps=StepsBySpeed(50, durations))

    Then ``v_i = H / T_i``, where T_i is the mean duration of a task of H steps of client i, with
    its transfers and other overheads.

    Args:
        num_steps: H, the steps of the fastest client, at least 1.
        speeds: v_i, one for each of the M clients, in any unit, since only their ratios matter; or
            a duration model whose means are known.
        least: The smallest number of steps, from 1 to `num_steps`.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: `num_steps` or `least` is outside its range, or a speed is not above 0; or (at
            set-up) there is not one speed for each client, or the means of the durations are
            unknown.

    Source: Liu et al., [Asynchronous Local-SGD Training for Language
    Modeling](https://arxiv.org/abs/2401.09135), "Dynamic Local Updates". The formula of the paper
    has no `least`; 5 is what the authors' published notebook sets.

    Example:
        >>> from fedlight.arrivals import ContinuousArrivals, StepDurations
        >>> durations = StepDurations([0.1, 0.2, 0.5])
        >>> arrivals = ContinuousArrivals(durations, local_steps=StepsBySpeed(50, durations))
        >>> table = arrivals.simulate(num_clients=3, buffer_size=3, max_rounds=1)
        >>> [(event.client, event.time, event.num_steps) for event in table.events]
        [(0, 5.0, 50), (1, 5.0, 25), (2, 5.0, 10)]
    """

    _repr_positional = 2
    uses_rng = False

    def __init__(
        self, num_steps: int, speeds: Sequence[float] | DurationModel, least: int = 5
    ) -> None:
        self.num_steps = _num_steps("num_steps", num_steps)
        self.speeds = (
            speeds
            if isinstance(speeds, DurationModel)
            else one_for_each("speeds", speeds, positive, equal="1.0")
        )
        self.least = positive_int("least", least)
        if self.least > self.num_steps:
            raise ValueError(
                f"least={self.least} must not be above num_steps={self.num_steps}, the steps of "
                "the fastest client; write a smaller one, such as least=1"
            )
        # Of the federation seen last, so that the means are not computed for each task.
        self._made: tuple[Federation, list[int]] | None = None

    def draw(self, rng: np.random.Generator, client_id: int, federation: Federation) -> int:
        """K_i."""
        return self._steps(federation)[client_id]

    def check(self, federation: Federation) -> None:
        """Raise a ValueError unless there is one speed for each client."""
        if isinstance(self.speeds, DurationModel):
            self.speeds.check(federation)
        else:
            check_length("speeds", self.speeds, federation)
        self._made = None
        self._steps(federation)

    def expected(self, federation: Federation) -> NDArray[np.float64]:
        """K_i."""
        return np.array(self._steps(federation), dtype=np.float64)

    def _steps(self, federation: Federation) -> list[int]:
        if self._made is None or self._made[0] is not federation:
            speeds = self._speeds(federation)
            # Rounded, since 100 * 0.29 is below 29 in binary. The quotient comes first: it is
            # exactly 1 for the fastest client.
            steps = np.floor(np.round(self.num_steps * (speeds / speeds.max()), 9))
            self._made = federation, np.maximum(steps, self.least).astype(np.int64).tolist()
        return self._made[1]

    def _speeds(self, federation: Federation) -> NDArray[np.float64]:
        """Numbers in proportion to v_i, shape ``[M]``."""
        if not isinstance(self.speeds, DurationModel):
            return np.array(self.speeds)
        steps = np.full(federation.num_clients, float(self.num_steps))
        means = self.speeds.expected(federation, steps)
        if means is None:
            raise ValueError(
                f"speeds={self.speeds!r} does not know the mean durations of its clients; write "
                f"the speeds as a list, one for each of the {federation.num_clients} clients"
            )
        return np.asarray(means.min() / means)


def as_local_steps(value: LocalSteps | int) -> LocalSteps:
    """Return a policy unchanged, and a plain number of steps as `ConstantSteps`.

    Raises:
        TypeError: `value` is something else.
    """
    if isinstance(value, LocalSteps):
        return value
    if isinstance(value, Integral) and not isinstance(value, bool):
        return ConstantSteps(_num_steps("local_steps", value))
    raise TypeError(
        f"local_steps must be a LocalSteps policy or an integer, got {shown(value)}; "
        "for example ConstantSteps(5), UniformSteps(1, 10) or LocalEpochs(1)"
    )


def _num_steps(name: str, value: object) -> int:
    num_steps = positive_int(name, value)
    if num_steps > MOST:
        raise ValueError(f"{name} must be at most {MOST} local steps, got {num_steps}")
    return num_steps
