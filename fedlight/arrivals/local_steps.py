"""How many local steps a client makes: K_i."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np

from fedlight.arrivals.durations import brief
from fedlight.checks import positive, positive_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation


class LocalSteps(ABC):
    """A policy for the number of local steps of a task."""

    uses_rng: bool = True
    """Whether `draw` takes numbers from `rng`; False saves the time to prepare it."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, client_id: int, federation: Federation) -> int:
        """K for one task of a client, at least 1.

        On the clock `rng` is a stream of this task alone, by rounds one of this round.
        """

    def check(self, federation: Federation) -> None:
        """Raise a ValueError where the policy does not fit the federation."""
        return

    def expected(self, federation: Federation) -> NDArray[np.float64] | None:
        """The mean of K for each client, shape ``[M]``, where it is known."""
        return None


class ConstantSteps(LocalSteps):
    """Every task makes K steps ("constant local steps" of Anarchic FL, Appendix E.1).

    Args:
        num_steps: K.

    Example:
        >>> ConstantSteps(5)
        ConstantSteps(5)
    """

    uses_rng = False

    def __init__(self, num_steps: int) -> None:
        self.num_steps = positive_int("num_steps", num_steps)

    def draw(self, rng: np.random.Generator, client_id: int, federation: Federation) -> int:
        """K."""
        return self.num_steps

    def expected(self, federation: Federation) -> NDArray[np.float64]:
        """K."""
        return np.full(federation.num_clients, float(self.num_steps))

    def __repr__(self) -> str:
        return f"ConstantSteps({self.num_steps})"


class UniformSteps(LocalSteps):
    """K drawn evenly from the integers low..high, both included.

    ``UniformSteps(1, 2 * c)`` are the "dynamic local steps" of Anarchic FL (Appendix E.1).

    Args:
        low: Smallest number of steps, at least 1.
        high: Largest number of steps, at least `low`.

    Raises:
        ValueError: `high` is smaller than `low`.
    """

    def __init__(self, low: int, high: int) -> None:
        self.low = positive_int("low", low)
        self.high = positive_int("high", high)
        if self.high < self.low:
            raise ValueError(f"high must be at least low={self.low}, got {self.high}")

    def draw(self, rng: np.random.Generator, client_id: int, federation: Federation) -> int:
        """One integer of low..high."""
        return int(rng.integers(self.low, self.high + 1))

    def expected(self, federation: Federation) -> NDArray[np.float64]:
        """The middle of low..high."""
        return np.full(federation.num_clients, (self.low + self.high) / 2)

    def __repr__(self) -> str:
        return f"UniformSteps({self.low}, {self.high})"


class LocalEpochs(LocalSteps):
    """As many steps as it takes to see every example of the client `num_epochs` times.

    ``K_i = ceil(num_epochs * n_i / min(batch_size, n_i))``.

    Args:
        num_epochs: Passes over the client's examples; a fraction of a pass is allowed.
    """

    uses_rng = False

    def __init__(self, num_epochs: float) -> None:
        self.num_epochs = positive("num_epochs", num_epochs)

    def draw(self, rng: np.random.Generator, client_id: int, federation: Federation) -> int:
        """The steps of `num_epochs` passes."""
        num_examples = int(federation.num_examples[client_id])
        batch = min(federation.batch_size, num_examples)
        return max(1, math.ceil(self.num_epochs * num_examples / batch))

    def expected(self, federation: Federation) -> NDArray[np.float64]:
        """The steps of `num_epochs` passes."""
        sizes = federation.num_examples
        batches = np.minimum(federation.batch_size, sizes)
        return np.maximum(1.0, np.ceil(self.num_epochs * sizes / batches))

    def __repr__(self) -> str:
        return f"LocalEpochs({self.num_epochs:g})"


class PerClientSteps(LocalSteps):
    """Client i always makes ``num_steps[i]`` steps.

    Args:
        num_steps: K_i, one for each client.
    """

    uses_rng = False

    def __init__(self, num_steps: Sequence[int]) -> None:
        self.num_steps = [
            positive_int(f"num_steps[{client}]", steps) for client, steps in enumerate(num_steps)
        ]

    def draw(self, rng: np.random.Generator, client_id: int, federation: Federation) -> int:
        """K_i."""
        return self.num_steps[client_id]

    def check(self, federation: Federation) -> None:
        """Raise a ValueError unless there is one number for each client."""
        if len(self.num_steps) != federation.num_clients:
            raise ValueError(
                f"PerClientSteps has {len(self.num_steps)} numbers, "
                f"but there are {federation.num_clients} clients; give one for each"
            )

    def expected(self, federation: Federation) -> NDArray[np.float64]:
        """K_i."""
        return np.array(self.num_steps, dtype=np.float64)

    def __repr__(self) -> str:
        return f"PerClientSteps({brief(self.num_steps)})"


def as_local_steps(value: LocalSteps | int) -> LocalSteps:
    """A policy, or a plain number of steps as `ConstantSteps`.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(value, LocalSteps):
        return value
    if isinstance(value, Integral) and not isinstance(value, bool):
        return ConstantSteps(int(value))
    raise TypeError(
        f"local_steps must be a LocalSteps policy or an integer, got {value!r}; "
        "for example ConstantSteps(5), UniformSteps(1, 10) or LocalEpochs(1)"
    )
