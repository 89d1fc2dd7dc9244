"""What an arrival process is: who works when, from which version, for how many steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from fedlight.arrivals.actions import Action, Dispatch, EndRound, Wake
from fedlight.arrivals.simulation import simulate
from fedlight.events import to_ticks, to_time

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.arrivals.table import ScheduleTable
    from fedlight.types import Federation, Task

__all__ = ["Action", "ArrivalProcess", "Dispatch", "EndRound", "Wake"]


class ArrivalProcess(ABC):
    """Decides who arrives when, how stale, and after how many local steps.

    It never sees the model. It is asked on these occasions and answers with actions: at time 0 and
    whenever it asked for it (`on_wake`); once the server has handled an arrival (`on_arrival`), or
    the end of a round (`on_round_end`); then, where that made a new version or let clients go,
    `on_version`. What it pulls then is the server's newest version.
    """

    by_rounds: bool = False
    """Whether the process says when its rounds end."""

    finite: bool = False
    """Whether the process ends by itself."""

    @abstractmethod
    def setup(self, federation: Federation) -> None:
        """Forget any earlier run and get ready for this federation.

        Raises:
            ValueError: The process does not fit the federation.
        """

    @abstractmethod
    def on_wake(self, now: float) -> Iterable[Action]:
        """Called at time 0, and at each time asked for with `Wake`."""

    def on_arrival(self, task: Task, now: float) -> Iterable[Action]:
        """Called when a task has arrived (or was lost) and the server has handled it."""
        return ()

    def on_round_end(self, now: float) -> Iterable[Action]:
        """Called when a round has ended and the server has handled that."""
        return ()

    def on_version(self, version: int, clients: Collection[int], now: float) -> Iterable[Action]:
        """Called when the server is at a new `version` or has let `clients` go.

        `clients` are those whose updates it has just used, or has dropped without a new version;
        each one as often as updates of it were used.
        """
        return ()

    def on_unavailable(
        self, dispatch: Dispatch, until: float | None, now: float
    ) -> Iterable[Action]:
        """Called when a client cannot start because it is not there before `until` (None: never).

        What is answered here takes the place of `dispatch`: by rounds nothing, the client does not
        take part; by the clock the same task, as soon as the client is there.
        """
        if until is None or self.by_rounds:
            return ()
        return (dispatch._replace(delay=to_time(to_ticks(until) - to_ticks(now))),)

    def needs_version(self, version: int) -> bool:
        """Whether a task still to come names this version, so that the server has to keep it."""
        return False

    def over(self, now: float) -> bool:
        """Whether no client will ever start again, though the process may go on to wake up."""
        return False

    def expected_durations(self) -> NDArray[np.float64] | None:
        """T_i, the expected duration of a task of each client, shape ``[M]``, where it is known."""
        return None

    def finish(self) -> None:
        """Called once when the run is over."""
        return

    def state_dict(self) -> dict[str, Any]:
        """What has to be kept to go on from here; plain data only."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state that `state_dict` gave, after `setup`."""
        return

    def simulate(
        self,
        num_clients: int,
        *,
        max_rounds: int | None = None,
        max_time: float | None = None,
        max_updates: int | None = None,
        buffer_size: int | None = None,
        interval: float | None = None,
        num_examples: int | Iterable[int] = 1,
        batch_size: int = 1,
        seed: int = 0,
    ) -> ScheduleTable:
        """The schedule that this process gives, made without a model: see `simulate`."""
        return simulate(
            self,
            num_clients,
            max_rounds=max_rounds,
            max_time=max_time,
            max_updates=max_updates,
            buffer_size=buffer_size,
            interval=interval,
            num_examples=num_examples,
            batch_size=batch_size,
            seed=seed,
        )
