"""The base class of wrappers around an arrival process, such as `DropOut`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from fedlight._support.checks import shown
from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.arrivals.base import Choose
    from fedlight.types import Chunk, Federation, Seen, Task


class Wrapper(ArrivalProcess):
    """An arrival process that changes the actions of another one.

    A subclass defines `change`. A subclass with state also defines `setup`, `state_dict` and
    `load_state_dict`, each of which calls the method of this class first.

    Args:
        arrivals: The wrapped process.

    Raises:
        TypeError: `arrivals` is not an arrival process.
    """

    def __init__(self, arrivals: ArrivalProcess) -> None:
        if not isinstance(arrivals, ArrivalProcess):
            raise TypeError(
                f"arrivals must be an arrival process, got {shown(arrivals)}; for example "
                f"{type(self).__name__}(ContinuousArrivals(UniformSpeeds(0.8)), …)"
            )
        self.arrivals = arrivals
        self.by_rounds = arrivals.by_rounds
        self.finite = arrivals.finite
        self.may_stop = arrivals.may_stop
        self.groups = arrivals.groups
        self.arrivals_per_send = arrivals.arrivals_per_send
        self.needs_feedback = type(self).needs_feedback or arrivals.needs_feedback
        self.early_results = arrivals.early_results
        self.waste_known = arrivals.waste_known
        self.shares_data = arrivals.shares_data
        self.shared_by = arrivals.shared_by

    @abstractmethod
    def change(self, actions: Iterable[Action], now: float) -> Iterable[Action]:
        """Return the actions to take instead of `actions`.

        Args:
            actions: The actions returned by any of the `on_...` methods of the wrapped process.
            now: Virtual time.
        """

    def setup(self, federation: Federation) -> None:
        """Set up the wrapped process.

        Raises:
            TypeError: A subclass has not called the constructor of this class.
        """
        self.check_made()
        self.arrivals.setup(federation)

    def check_made(self) -> None:
        """Check that the constructor of this class has been called.

        Raises:
            TypeError: It has not.
        """
        if "by_rounds" not in vars(self):
            raise TypeError(
                f"{type(self).__name__}.__init__ must call super().__init__(arrivals), with the "
                "process that it wraps"
            )

    def on_wake(self, now: float) -> Iterable[Action]:
        """The changed actions of the wrapped process."""
        return self.change(self.arrivals.on_wake(now), now)

    def on_arrival(self, task: Task, now: float) -> Iterable[Action]:
        """The changed actions of the wrapped process."""
        return self.change(self.arrivals.on_arrival(task, now), now)

    def on_round_end(self, now: float) -> Iterable[Action]:
        """The changed actions of the wrapped process."""
        return self.change(self.arrivals.on_round_end(now), now)

    def on_round_end_of(self, group: str, now: float) -> Iterable[Action]:
        """The changed actions of the wrapped process."""
        return self.change(self.arrivals.on_round_end_of(group, now), now)

    def on_version(self, version: int, clients: Collection[int], now: float) -> Iterable[Action]:
        """The changed actions of the wrapped process."""
        return self.change(self.arrivals.on_version(version, clients, now), now)

    def on_start(self, task: Task) -> None:
        """Tell the wrapped process."""
        self.arrivals.on_start(task)

    def chunk(self, client_id: int, num_steps: int) -> Chunk | None:
        """The answer of the wrapped process."""
        return self.arrivals.chunk(client_id, num_steps)

    def on_stop(self, task: Task, version: int, now: float) -> None:
        """Tell the wrapped process."""
        self.arrivals.on_stop(task, version, now)

    def on_failure(self, task: Task, now: float) -> None:
        """Tell the wrapped process."""
        self.arrivals.on_failure(task, now)

    def on_unavailable(
        self, dispatch: Dispatch, until: float | None, now: float
    ) -> Iterable[Action]:
        """The changed actions of the wrapped process."""
        return self.change(self.arrivals.on_unavailable(dispatch, until, now), now)

    def on_feedback(self, task: Task, seen: Seen, now: float) -> None:
        """Tell the wrapped process."""
        self.arrivals.on_feedback(task, seen, now)

    def choose_by(self, choose: Choose) -> None:
        """Let the function choose the clients of the wrapped process."""
        self.arrivals.choose_by(choose)

    def needs_version(self, version: int) -> bool:
        """The answer of the wrapped process."""
        return self.arrivals.needs_version(version)

    def over(self, now: float) -> bool:
        """The answer of the wrapped process."""
        return self.arrivals.over(now)

    def silent_until(self) -> float:
        """The answer of the wrapped process."""
        return self.arrivals.silent_until()

    def expected_durations(self) -> NDArray[np.float64] | None:
        """The answer of the wrapped process."""
        return self.arrivals.expected_durations()

    def on_end(self, in_flight: Iterable[Task]) -> None:
        """Tell the wrapped process."""
        self.arrivals.on_end(in_flight)

    def finish(self) -> None:
        """Tell the wrapped process."""
        self.arrivals.finish()

    def state_dict(self) -> dict[str, Any]:
        """The state of the wrapped process."""
        return {"arrivals": self.arrivals.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the wrapped process."""
        super().load_state_dict(state)
        self.arrivals.load_state_dict(state["arrivals"])
