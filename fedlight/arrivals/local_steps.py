"""K, the number of local steps of a task."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np

from fedlight._support.checks import positive, positive_int
from fedlight._support.strategy import Strategy
from fedlight.arrivals._per_client import check_length, one_for_each

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


def as_local_steps(value: LocalSteps | int) -> LocalSteps:
    """Return a policy unchanged, and a plain number of steps as `ConstantSteps`.

    Raises:
        TypeError: `value` is something else.
    """
    if isinstance(value, LocalSteps):
        return value
    if isinstance(value, Integral) and not isinstance(value, bool):
        return ConstantSteps(int(value))
    raise TypeError(
        f"local_steps must be a LocalSteps policy or an integer, got {value!r}; "
        "for example ConstantSteps(5), UniformSteps(1, 10) or LocalEpochs(1)"
    )


def _num_steps(name: str, value: object) -> int:
    num_steps = positive_int(name, value)
    if num_steps > MOST:
        raise ValueError(f"{name} must be at most {MOST} local steps, got {num_steps}")
    return num_steps
