"""The base class of arrival processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from fedlight._support.strategy import Strategy
from fedlight.arrivals import simulation
from fedlight.arrivals._state import Saved
from fedlight.arrivals.actions import Action, Cancel, Cut, Dispatch, EndRound, Wake
from fedlight.events import to_ticks, to_time

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.theory import ClosedNetwork
    from fedlight.types import Chunk, Federation, Seen, Task

    Choose: TypeAlias = Callable[[Sequence[int], int, float], Sequence[int]]
    """Chooses so many of some clients, at a virtual time."""

__all__ = ["Action", "ArrivalProcess", "Cancel", "Cut", "Dispatch", "EndRound", "Wake"]


class ArrivalProcess(Strategy, Saved, ABC):
    """Decides which client pulls the model and when, for how long and for how many local steps.

    It never sees the model, and sees what clients have logged only if it `needs_feedback`. The
    `on_...` methods are called at the following moments. They return
    a list of actions or yield them: `on_wake` at time 0 and when requested by a `Wake`;
    `on_arrival` and `on_round_end` after the server has handled an arrival or the end of a round;
    then `on_version` if the server has made a version or dropped an update. A client that is
    dispatched without delay pulls the server's latest version.

    A subclass defines `setup` and `on_wake`, and usually `on_arrival` or `on_version`. State that
    changes during a run must be in `state_dict`, so the subclass defines it and `load_state_dict`.
    """

    _repr_short = True
    by_rounds: bool = False
    """Whether the process ends rounds, with `EndRound`."""

    finite: bool = False
    """Whether the schedule of the process ends."""

    may_stop: bool = False
    """Whether the process stops clients, with `Cancel` or `Cut`.

    If so, local runs are computed only when the server needs them, so that none is computed
    unnecessarily.
    """

    needs_feedback: bool = False
    """Whether the process is told what each update has brought, with `on_feedback`.

    If so, the update is computed as soon as it has arrived and been accepted, and the schedule
    cannot be made without the model.
    """

    early_results: bool = False
    """Whether updates are computed as they arrive although the process is told nothing.

    A replay of a process with feedback sets it. It has an effect only if the bits of a result
    depend on the others in its stack, which are then those of the recorded run.
    """

    waste_known: bool = True
    """Whether the process says of each task that it is lost, and cancels those that are cancelled.

    A replay of a record that does not say so (`ScheduleTable.waste_known`) sets it to False: which
    share of the clients' time was in vain is then unknown.
    """

    groups: tuple[str, ...] = ()
    """The tags of its groups of clients, in their order; empty without groups."""

    arrivals_per_send: int | None = None
    """Of groups with a server each (`Regions`): K, the arrivals after which a region's server sends
    what it has summed up. A client then pulls the newest version that an event of its own group has
    made. None for groups that share one server."""

    shares_data: bool = False
    """Whether tasks read from data that all clients share, as `chunk` says.

    If so, the parts of the data are shards and belong to no client: there may be more or fewer of
    them than clients, and each client counts an equal share of all examples.
    """

    shared_by: int | None = None
    """Of a process with `shares_data`: the number of clients; None for one for each shard."""

    @abstractmethod
    def setup(self, federation: Federation) -> None:
        """Reset the state and prepare for a run of this federation.

        Raises:
            ValueError: The process does not fit the federation.
        """

    @abstractmethod
    def on_wake(self, now: float) -> Iterable[Action]:
        """Called at time 0, and at each time requested by a `Wake`."""

    def on_arrival(self, task: Task, now: float) -> Iterable[Action]:
        """Called when a task has arrived (or was lost) and the server has handled it."""
        return ()

    def on_feedback(self, task: Task, seen: Seen, now: float) -> None:
        """Called before `on_arrival` and `on_version`, if the process `needs_feedback`.

        Lost, failed and dropped updates have no result and give no feedback.

        Args:
            task: The task whose update has arrived.
            seen: Its logged metrics, and the norm of its delta.
            now: Virtual time.
        """
        return

    def on_round_end(self, now: float) -> Iterable[Action]:
        """Called when a round has ended and the server has handled its end."""
        return ()

    def on_round_end_of(self, group: str, now: float) -> Iterable[Action]:
        """Called instead of `on_round_end` if the round that has ended has a tag."""
        return self.on_round_end(now)

    def on_version(self, version: int, clients: Collection[int], now: float) -> Iterable[Action]:
        """Called when the server has made a version, or has dropped updates.

        Args:
            version: The server's current version.
            clients: The clients whose updates the server has just used or dropped. It contains a
                client once for each such update.
            now: Virtual time.
        """
        return ()

    def on_start(self, task: Task) -> None:
        """Called when a client has pulled the model, if the process `may_stop` clients."""
        return

    def chunk(self, client_id: int, num_steps: int) -> Chunk | None:
        """Return what a task reads; called at each pull, if the process has `shares_data`.

        It is not called for a task that is tried again, which reads the same examples, and for a
        `Dispatch` that says it itself.

        Args:
            client_id: The client that pulls the model.
            num_steps: K, the local steps of the task.
        """
        return None

    def on_stop(self, task: Task, version: int, now: float) -> None:
        """Called when a task was stopped and has no result: cancelled, or cut before a step.

        Args:
            task: The task.
            version: The server's version.
            now: Virtual time.
        """
        return

    def on_failure(self, task: Task, now: float) -> None:
        """Called when a local run has failed as it was computed, or its update was too large.

        Its task had arrived. It may be tried again (``FedTrainer(on_client_failure="retry")``).

        Args:
            task: The task.
            now: Virtual time.
        """
        return

    def on_unavailable(
        self, dispatch: Dispatch, until: float | None, now: float
    ) -> Iterable[Action]:
        """Called when `Availability` finds that a client cannot start now.

        The returned actions replace `dispatch`. By default, a process by rounds returns none: the
        client does not take part. A process by the clock returns the same task at `until`.

        Args:
            dispatch: The action that cannot be carried out.
            until: Virtual time at which the client becomes available; None if it never does.
            now: Virtual time.
        """
        if until is None or self.by_rounds:
            return ()
        return (dispatch._replace(delay=to_time(to_ticks(until) - to_ticks(now))),)

    def choose_by(self, choose: Choose) -> None:
        """Let a function choose the clients that start next, where they are drawn uniformly now.

        Args:
            choose: Gets the clients that are free, how many of them to choose, and the virtual
                time; returns those chosen.

        Raises:
            TypeError: The process does not draw its clients one round or one place at a time.
            ValueError: Its arguments leave nothing to choose.
        """
        raise TypeError(
            f"{self!r} does not let others choose its clients; SynchronousArrivals(per_round=…), "
            "ContinuousArrivals(…, concurrency=…) and PoissonArrivals do"
        )

    def needs_version(self, version: int) -> bool:
        """Return whether a future task pulls this version, so that the server must keep it."""
        return False

    def over(self, now: float) -> bool:
        """Return whether no client will start again, although the process may still wake up."""
        return False

    def silent_until(self) -> float:
        """Return the virtual time before which no client may start, and the run is not over.

        A run is given up if nothing comes of its schedule for long. Events before this time do not
        count as such silence.
        """
        return 0.0

    def expected_durations(self) -> NDArray[np.float64] | None:
        """Return T_i, the expected duration of a task of each client, shape ``[M]``, or None."""
        return None

    def closed_network(self, buffer_size: int) -> ClosedNetwork | None:
        """Return the queueing network that describes the process, or None.

        Args:
            buffer_size: The number of updates after which the server steps.
        """
        return None

    def on_end(self, in_flight: Iterable[Task]) -> None:
        """Called when the run is over, before `finish`, with the tasks that are in flight then."""
        return

    def finish(self) -> None:
        """Called once when the run is over."""
        return

    # Named here as well, since the reference shows no inherited methods.
    state_dict = Saved.state_dict
    """Return the state that a checkpoint keeps, as plain data."""

    load_state_dict = Saved.load_state_dict
    """Restore what `state_dict` returned; `setup` was called before."""

    # The function itself as a method, so that there is one list of its arguments.
    simulate = simulation.simulate
    """Return the schedule of this process, made without a model; see `simulate`."""
