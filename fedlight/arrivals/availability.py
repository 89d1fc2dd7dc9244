"""Availability: clients that can start a task only at certain times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedlight._support.checks import one_of
from fedlight.arrivals._state import Saved
from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch
from fedlight.arrivals.windows import (
    Intervals,
    IntervalWindows,
    Window,
    Windows,
    checked_intervals,
    intervals_of_file,
)
from fedlight.arrivals.wrapper import Wrapper
from fedlight.events import to_ticks, to_time

if TYPE_CHECKING:
    from fedlight.types import Federation


class Availability(Wrapper):
    """A client pulls the model only within its windows of virtual time.

    ``start <= t < end`` for a pull at time t and one of the client's windows. Windows that overlap
    are one.

    The process decides about a task that would start outside all windows. With arrivals by rounds,
    the client does not take part. With arrivals by the clock, it starts when its next window
    starts; if clients are drawn (a concurrency, or `PoissonArrivals`), another client is
    drawn instead. With a `CommunicationPattern` it is silent until its next tick.

    Args:
        arrivals: Any arrival process.
        windows: ``[(start, end), …]`` for all clients; a mapping from client to such a list; the
            path of a CSV file with the columns client, start, end; or a `Windows` object such as
            `DiurnalWindows`.
        unfinished: How a task is handled that outlasts its client's window. "finish": the client
            completes it; "lose": its result is lost.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: A window ends before it starts.
        FileNotFoundError: There is no such file.

    Source: Bonawitz et al., [Towards Federated Learning at Scale: System
    Design](https://arxiv.org/abs/1902.01046), where devices take part only while they are idle,
    charging and on an unmetered network.

    Example:
        >>> from fedlight.arrivals import ContinuousArrivals, FixedDurations
        >>> arrivals = Availability(
        ...     ContinuousArrivals(FixedDurations([1.0]), local_steps=5), [(0, 1.5), (4, 9)]
        ... )
        >>> table = arrivals.simulate(num_clients=1, buffer_size=1, max_time=6)
        >>> [(event.dispatched_at, event.time) for event in table.events]
        [(0.0, 1.0), (1.0, 2.0), (4.0, 5.0), (5.0, 6.0)]
    """

    _repr_positional = 2
    _saved_attributes = ("_refusals",)

    def __init__(
        self,
        arrivals: ArrivalProcess,
        windows: Windows | Intervals | Mapping[int, Intervals] | str | Path,
        unfinished: str = "finish",
    ) -> None:
        super().__init__(arrivals)
        if isinstance(windows, str | Path):
            windows = intervals_of_file("windows", windows)
        elif not isinstance(windows, Windows):
            given = checked_intervals("windows", windows)
            try:
                windows = IntervalWindows(given)
            except (TypeError, ValueError) as error:
                raise type(error)(f"windows: {error}") from None
        self.windows = windows
        self.unfinished = one_of("unfinished", unfinished, ("finish", "lose"))

    def setup(self, federation: Federation) -> None:
        """Set up the wrapped process and the windows.

        Raises:
            ValueError: They do not fit the federation.
        """
        super().setup(federation)
        self.windows.setup(federation)
        self._refusals = Refusals()

    def change(self, actions: Iterable[Action], now: float) -> Iterator[Action]:
        """Let the available clients start; ask the process about the others."""
        late = _lost if self.unfinished == "lose" else None
        return within_windows(self, actions, now, self.windows.find, late, self._refusals)

    def silent_until(self) -> float:
        """The time at which the windows open whose clients could not start."""
        return max(self._refusals.until, super().silent_until())

    def over(self, now: float) -> bool:
        """Whether all windows of all clients are in the past."""
        return self.windows.over(to_ticks(now)) or super().over(now)


class Refusals(Saved):
    """The windows that a process waits for, since their clients could not start."""

    _saved_attributes = ("_refused_at", "_opens_at")

    def __init__(self) -> None:
        self._refused_at = self._opens_at = 0  # in ticks

    def add(self, ticks: int, opens_at: int) -> None:
        """Note that a client could not start at a time, and when its next window opens."""
        # Later refusals count only when this window has opened: windows that a process misses
        # again and again must not put off the end of the run for ever.
        if ticks >= self._opens_at:
            self._refused_at, self._opens_at = ticks, opens_at
        elif ticks == self._refused_at:
            self._opens_at = max(self._opens_at, opens_at)

    @property
    def until(self) -> float:
        """The virtual time before which silence is expected."""
        return to_time(self._opens_at)


def _lost(action: Dispatch, ticks: int) -> Dispatch:
    """A task that outlasts its client's window; the process hears of it when it would arrive."""
    return action._replace(lost=True)


def within_windows(
    wrapper: Wrapper,
    actions: Iterable[Action],
    now: float,
    find: Callable[[int, int], Window | None],
    late: Callable[[Dispatch, int], Dispatch] | None,
    refusals: Refusals,
) -> Iterator[Action]:
    """Let the clients within their windows start; ask the wrapped process about the others.

    Args:
        wrapper: The wrapper.
        actions: Those of the wrapped process.
        now: Virtual time.
        find: As `Windows.find`.
        late: Changes a task that outlasts its window; it also gets the ticks from the pull to the
            end of the window. None to leave it as it is.
        refusals: Notes the clients that could not start.

    Raises:
        ValueError: A client is postponed forever.
    """
    process, ticks = wrapper.arrivals, to_ticks(now)
    # A stack instead of recursion: a process may offer thousands of clients one after another
    # until one of them is available.
    pending = [iter(actions)]
    postponed = 0
    while pending:
        for action in pending[-1]:
            if not isinstance(action, Dispatch):
                yield action
                continue
            start = ticks + to_ticks(action.delay)
            window = find(action.client_id, start)
            if window is not None and window.start <= start:
                if late is not None and start + to_ticks(action.duration) > window.end:
                    action = late(action, window.end - start)
                postponed = 0
                yield action
                continue
            # Custom windows may postpone a task forever, each time to a later window.
            postponed += action.delay > 0
            if postponed > 1000:
                raise ValueError(
                    f"client {action.client_id} was postponed more than 1000 times without "
                    f"finding a time within its windows: {wrapper!r}"
                )
            until = None if window is None else to_time(window.start)
            if window is not None:
                refusals.add(ticks, window.start)
            instead = process.on_unavailable(action, until, now)
            pending.append(iter(instead))
            break
        else:
            pending.pop()
