"""What an arrival process is: who works when, from which version, for how many steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.arrivals.schedule import ScheduleTable
    from fedlight.types import Federation, Task


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A client pulls the model and starts to work.

    Attributes:
        client_id: Who.
        duration: Virtual time from the pull to the arrival, larger than 0.
        num_steps: Local steps.
        delay: Virtual time from now to the pull.
        pulled_version: The version pulled; None for the newest one.
        lost: True when the result never reaches the server; the process hears of it
            (`on_arrival` with ``task.lost``) when it would have arrived, the server does not.
    """

    client_id: int
    duration: float
    num_steps: int
    delay: float = 0.0
    pulled_version: int | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class EndRound:
    """The process's round ends after `delay` of virtual time, behind the arrivals of that instant."""

    delay: float


@dataclass(frozen=True, slots=True)
class Wake:
    """The process wants to be asked again after `delay` of virtual time."""

    delay: float


Action: TypeAlias = Dispatch | EndRound | Wake


class ArrivalProcess(ABC):
    """Decides who arrives when, how stale, and after how many local steps.

    It never sees the model. It is asked at three occasions and answers with actions: at time 0 and
    whenever it asked for it (`on_wake`), when a client arrived (`on_arrival`), and when the server
    made a new version (`on_version`).
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

    def on_version(
        self, version: int, clients: Collection[int], now: float
    ) -> Iterable[Action]:
        """Called when the server is at a new `version` or has let `clients` go.

        `clients` are those whose updates it has just used, or has dropped without a new version.
        """
        return ()

    def needs_version(self, version: int) -> bool:
        """Whether a task still to come names this version, so that the server has to keep it."""
        return False

    def expected_durations(self) -> NDArray[np.float64] | None:
        """T_i, the expected duration of a task of each client, shape ``[M]``, where it is known."""
        return None

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
        """The schedule that this process gives, made without a model.

        The server steps as an aggregator of the same `buffer_size` or `interval` would; without
        both, at the process's ends of rounds.

        Args:
            num_clients: M.
            max_rounds: Stop after this many server updates.
            max_time: Stop after this virtual time (events at that time still count).
            max_updates: Stop after this many arrivals.
            buffer_size: Server updates after so many arrivals.
            interval: Server updates at multiples of this virtual time.
            num_examples: n_i, one number for all clients or one each.
            batch_size: Examples per local step.
            seed: The run's seed.

        Raises:
            ValueError: Nothing would stop it, or the process does not fit.
        """
        from fedlight.arrivals.schedule import simulate

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
