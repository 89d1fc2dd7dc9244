"""Tasks in two halves: the client pulls the newest model once more in the middle."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from fedlight._support.checks import positive
from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch
from fedlight.arrivals.wrapper import Wrapper
from fedlight.events import to_ticks, to_time

if TYPE_CHECKING:
    from fedlight.types import Federation, Seen, Task


class RefreshedTasks(Wrapper):
    """A client pulls the newest model once in the middle of each task, and goes on.

    A task of K local steps and duration T becomes two::

        first half    K_1 = floor(at * K) steps, at least 1 and at most K - 1; it takes T * K_1 / K
        second half   the other steps in the rest of T, from the model that is the newest one then

    The client sends nothing after the first half: the server does not accept it, so that it is
    listed among the dropped updates, and the client keeps its model. If the first half fails, the
    task has failed when the second one arrives. `FreshModel`, the local optimizer to go with this,
    mixes the client's model with the one pulled in the middle, and `FedASMU` is the aggregator.
    Both halves count as pulls and arrivals in the totals of a run. A task of one step is not
    refreshed.

    The tags of the halves are "half k t" for one that is followed by k steps in t ticks of 1e-9,
    and "from v", where v is the version that the client had pulled first.

    Args:
        arrivals: An arrival process by the clock, without rounds or groups of its own.
        at: The share of the local steps before the refresh, above 0 and below 1.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: `at` is not between 0 and 1, or the process has rounds or groups.

    Source: Liu et al., FedASMU, AAAI 2024, https://arxiv.org/abs/2312.05770, Algorithm 2. The paper
    lets each client learn the moment by reinforcement learning; here it is fixed.

    Example:
        >>> from fedlight.arrivals import ContinuousArrivals, FixedDurations
        >>> arrivals = RefreshedTasks(ContinuousArrivals(FixedDurations([1.0]), local_steps=4))
        >>> table = arrivals.simulate(num_clients=1, buffer_size=1, max_rounds=1)
        >>> [(event.time, event.num_steps, event.tag) for event in table.events]
        [(0.5, 2, 'half 2 500000000'), (1.0, 2, 'from 0')]
    """

    _repr_positional = 1
    _saved_attributes = ("_begun",)
    groups = ("half",)  # its tasks have tags

    def __init__(self, arrivals: ArrivalProcess, at: float = 0.5) -> None:
        super().__init__(arrivals)
        if arrivals.by_rounds or arrivals.groups:
            raise ValueError(
                f"arrivals must have neither rounds nor groups, got {arrivals!r}; for example "
                "RefreshedTasks(ContinuousArrivals(UniformSpeeds(0.8)))"
            )
        self.groups = type(self).groups
        self.at = positive("at", at)
        if self.at >= 1:
            raise ValueError(f"at must be below 1, got {at!r}; 0.5 is the middle of the task")

    def setup(self, federation: Federation) -> None:
        """Set up the wrapped process."""
        super().setup(federation)
        self._half: int | None = None  # the client whose half the server handles in this event
        # By client: the time and the steps of its latest first half.
        self._begun: dict[int, tuple[float, int]] = {}

    def change(self, actions: Iterable[Action], now: float) -> Iterator[Action]:
        """Make two of each task; the second half is dispatched at the arrival of the first."""
        for action in actions:
            if isinstance(action, Dispatch) and action.num_steps > 1 and not action.lost:
                first = min(max(1, int(self.at * action.num_steps)), action.num_steps - 1)
                whole = to_ticks(action.duration)
                ticks = whole * first // action.num_steps
                if ticks > 0:
                    rest = f"half {action.num_steps - first} {whole - ticks}"
                    action = action._replace(duration=to_time(ticks), num_steps=first, tag=rest)
            yield action

    def on_arrival(self, task: Task, now: float) -> Iterable[Action]:
        """Start the second half, or tell the wrapped process that the task has ended."""
        if task.is_first_half and not task.lost:
            self._half = task.client_id
            self._begun[task.client_id] = task.dispatched_at, task.num_steps
            num_steps, ticks = _rest(task.tag)
            tag = f"from {task.pulled_version}"
            return (Dispatch(task.client_id, to_time(ticks), num_steps, tag=tag),)
        return super().on_arrival(self._whole(task), now)

    def on_feedback(self, task: Task, seen: Seen, now: float) -> None:
        """Tell the wrapped process of the whole task."""
        whole = self._whole(task)
        duration = to_time(to_ticks(whole.arrives_at) - to_ticks(whole.dispatched_at))
        staleness = seen.staleness + task.pulled_version - whole.pulled_version
        super().on_feedback(whole, seen._replace(duration=duration, staleness=staleness), now)

    def on_version(self, version: int, clients: Collection[int], now: float) -> Iterable[Action]:
        """Tell the wrapped process, but not of a half that the server has not accepted."""
        if self._half is not None and self._half in clients:
            clients = list(clients)
            clients.remove(self._half)
        self._half = None
        return super().on_version(version, clients, now)

    def on_start(self, task: Task) -> None:
        """Tell the wrapped process of the beginning of the whole task."""
        if not task.is_second_half:
            super().on_start(_inside(task))

    def on_stop(self, task: Task, version: int, now: float) -> None:
        """Tell the wrapped process that its task was stopped."""
        super().on_stop(self._whole(task), version, now)

    def on_failure(self, task: Task, now: float) -> None:
        """Tell the wrapped process; the task has the steps of the half that has failed."""
        # Not of the whole task: the client may have begun another one since.
        super().on_failure(_inside(task), now)

    def on_unavailable(
        self, dispatch: Dispatch, until: float | None, now: float
    ) -> Iterable[Action]:
        """A second half waits for the window; else the wrapped process decides."""
        if dispatch.tag is not None and dispatch.tag.startswith("from "):
            if until is not None:
                return (dispatch._replace(delay=to_time(to_ticks(until) - to_ticks(now))),)
            dispatch = dispatch._replace(tag=None)
        elif dispatch.tag is not None:
            num_steps, ticks = _rest(dispatch.tag)
            whole = to_time(to_ticks(dispatch.duration) + ticks)
            steps = dispatch.num_steps + num_steps
            dispatch = dispatch._replace(duration=whole, num_steps=steps, tag=None)
        return super().on_unavailable(dispatch, until, now)

    def _whole(self, task: Task) -> Task:
        """The task as the wrapped process knows it, also after its second half."""
        if task.is_second_half:
            begun, num_steps = self._begun[task.client_id]
            task = task._replace(dispatched_at=begun, num_steps=num_steps + task.num_steps)
        return _inside(task)


def _rest(tag: str | None) -> tuple[int, int]:
    """The steps and the ticks of the second half, from the tag of the first one."""
    assert tag is not None
    _, num_steps, ticks = tag.split()
    return int(num_steps), int(ticks)


def _inside(task: Task) -> Task:
    """The task as the wrapped process knows it."""
    return task._replace(pulled_version=task.began_with, tag=None)
