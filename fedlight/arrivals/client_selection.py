"""The base class of processes that choose clients by what they have logged."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from copy import deepcopy
from operator import index
from typing import TYPE_CHECKING, ClassVar

from fedlight.arrivals.actions import Action
from fedlight.arrivals.base import ArrivalProcess
from fedlight.arrivals.wrapper import Wrapper
from fedlight.randomness import Concern, Streams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.arrivals.base import Choose
    from fedlight.types import Federation, Seen


class ClientSelection(Wrapper):
    """Chooses the clients that another process would draw uniformly, by what clients have logged.

    The other process decides when clients start and how long they work. Of
    ``SynchronousArrivals(per_round=m)`` the m clients of each round are chosen; of
    ``ContinuousArrivals(…, concurrency=c)`` and of `PoissonArrivals` each client that starts.

    A subclass defines `choose`, and `on_feedback` to keep what it needs. State that changes during
    a run is listed in `_saved_attributes` and made in `setup`, which calls that of this class.

    Args:
        arrivals: The process whose clients are chosen; a copy is kept.

    Raises:
        TypeError: `arrivals` is not an arrival process, or one that draws no clients.
        ValueError: Its arguments leave nothing to choose.
    """

    needs_feedback = True
    _repr_positional = 1
    _saved_attributes: ClassVar[tuple[str, ...]] = ("_choices",)

    def __init__(self, arrivals: ArrivalProcess) -> None:
        # A copy, since the process may serve another run, whose clients are drawn.
        super().__init__(deepcopy(arrivals) if isinstance(arrivals, ArrivalProcess) else arrivals)
        self.arrivals.choose_by(self._chosen)

    @abstractmethod
    def choose(
        self, clients: Sequence[int], count: int, rng: np.random.Generator, now: float
    ) -> Iterable[int]:
        """Return `count` of the clients.

        Args:
            clients: The clients that are free, in ascending order.
            count: How many to choose, at least one and at most all of them.
            rng: Random numbers of this choice.
            now: Virtual time.
        """

    def choose_by(self, choose: Choose) -> None:
        """Refuse a second choice.

        Raises:
            TypeError: Always.
        """
        raise TypeError(f"{self!r} already chooses the clients; wrap the process within it instead")

    def setup(self, federation: Federation) -> None:
        """Set up the process whose clients are chosen."""
        super().setup(federation)
        self._streams = Streams(federation.seed, Concern.SELECTION)
        self._choices = 0

    def on_wake(self, now: float) -> Iterable[Action]:
        """The actions of the process whose clients are chosen.

        Raises:
            TypeError: A `setup` of a subclass has not called that of this class.
        """
        self._check_set_up()
        return super().on_wake(now)

    def expected_durations(self) -> NDArray[np.float64] | None:
        """The answer of the process whose clients are chosen.

        Raises:
            TypeError: A `setup` of a subclass has not called that of this class.
        """
        self._check_set_up()  # a run asks for them before its first event
        return super().expected_durations()

    def change(self, actions: Iterable[Action], now: float) -> Iterable[Action]:
        """Return the actions unchanged."""
        return actions

    def _check_set_up(self) -> None:
        if not hasattr(self, "_streams"):
            raise TypeError(
                f"{type(self).__name__}.setup must call super().setup(federation), which sets up "
                f"{type(self.arrivals).__name__} and the random numbers of the choices"
            )

    def _chosen(self, clients: Sequence[int], count: int, now: float) -> list[int]:
        """The clients that `choose` returns, checked."""
        rng = self._streams.at(self._choices)
        self._choices += 1
        if not count:  # all clients are at work
            return []
        chosen = [index(client) for client in self.choose(clients, count, rng, now)]
        if len(chosen) != count or len(set(chosen) & set(clients)) != count:
            raise ValueError(
                f"{type(self).__name__}.choose must return {count} different clients of those "
                f"that are free, which are {_listed(clients)}, got {_listed(chosen)}"
            )
        return chosen


def finite_metric(seen: Seen, name: str) -> float | None:
    """Return a logged value; None for one that is not finite, which would compare with nothing."""
    value = seen.metric(name)
    return value if math.isfinite(value) else None


def statistical_utility(seen: Seen, name: str, squared: bool) -> float | None:
    """Return n_i * sqrt(the mean of the squared losses); None if that is not finite.

    Args:
        seen: What the client has sent.
        name: The name of the metric.
        squared: Whether the metric is the mean of the squared losses; otherwise it is the mean
            loss, whose square stands for that mean.
    """
    value = finite_metric(seen, name)
    if value is None:
        return None
    if squared and value < 0:
        raise ValueError(f"metric={name!r} must be a mean of squares, got {value!r}")
    return seen.num_examples * (math.sqrt(value) if squared else abs(value))


def _listed(clients: Sequence[int]) -> str:
    shown = ", ".join(map(str, clients[:10]))
    return f"[{shown}{', …' if len(clients) > 10 else ''}]"
