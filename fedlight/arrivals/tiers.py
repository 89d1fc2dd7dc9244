"""Groups of clients, each with its own arrival process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlight._support.checks import non_negative_int, shown
from fedlight.arrivals._per_client import as_list, no_client
from fedlight.arrivals.base import Action, ArrivalProcess, Cancel, Cut, Dispatch, EndRound, Wake
from fedlight.arrivals.wrapper import Wrapper
from fedlight.events import to_ticks
from fedlight.randomness import Concern, derived_seed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation, Seen, Task


class Tiers(ArrivalProcess):
    """Several arrival processes side by side, each for a group of clients (a tier).

    Tiers whose processes work by rounds are synchronous within a tier and asynchronous between
    tiers. The round of a tier ends when its own process ends it, and its clients continue right
    after the server has handled that end. If several tiers end a round at the same time, the one
    whose last client has the smallest number is first. Each task and each end of a round has the
    tier's name as its tag, so that an aggregator can tell the tiers apart (`FedAT`).

    Args:
        processes: A process for each tier, by name, with the fastest tier first if the aggregator
            requires this order. Each tier needs an object of its own.
        clients: The clients of each tier, by name. A tier's process then numbers them from 0 on, in
            the order of the list. None if the processes list clients of the whole federation
            themselves, as in ``SynchronousArrivals([[1, 3]] * 100)``.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: There is no tier, the names differ, a client is in two tiers, or two tiers have
            the same process object.

    Source: Chai et al., [FedAT](https://arxiv.org/abs/2010.05958), Section 3.

    Example:
        >>> from fedlight.arrivals import FixedDurations, SynchronousArrivals
        >>> arrivals = Tiers(
        ...     {
        ...         "fast": SynchronousArrivals(durations=FixedDurations([1.0, 0.5])),
        ...         "slow": SynchronousArrivals(durations=FixedDurations([3.0])),
        ...     },
        ...     clients={"fast": [0, 2], "slow": [1]},
        ... )
        >>> table = arrivals.simulate(num_clients=3, max_time=3)
        >>> list(zip(table.round_ends, table.round_tags))
        [(1.0, 'fast'), (2.0, 'fast'), (3.0, 'fast'), (3.0, 'slow')]
    """

    _repr_positional = 1
    _repr_optional: tuple[str, ...] = ("clients",)
    _called = "tier"
    _suits = "SynchronousArrivals(per_round=5)"

    def __init__(
        self,
        processes: Mapping[str, ArrivalProcess],
        clients: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        if not isinstance(processes, Mapping) or not all(isinstance(n, str) for n in processes):
            raise TypeError(
                f"processes must be a mapping from names to arrival processes, got {processes!r}; "
                f'for example {type(self).__name__}({{"fast": {self._suits}, "slow": …}}, …)'
            )
        if not processes:
            raise ValueError("processes must hold at least one arrival process, got none")
        for name, process in processes.items():
            if not isinstance(process, ArrivalProcess):
                raise TypeError(
                    f"processes[{name!r}] must be an arrival process, got {process!r}; for example "
                    f"{self._suits}"
                )
            if process.groups:
                raise TypeError(
                    f"processes[{name!r}] must be an arrival process without groups, got "
                    f"{process!r}"
                )
            if process.shares_data:
                raise TypeError(
                    f"processes[{name!r}] must be an arrival process whose clients have data of "
                    f"their own, got {process!r}; write SharedStream(Tiers(…)) or "
                    "LeastVisitedShards(Tiers(…)) for data that the clients of all tiers share"
                )
        self.processes = dict(processes)
        self.groups = tuple(processes)
        self.clients = (
            None if clients is None else members_of("clients", self.groups, clients, self._called)
        )
        _check_apart(processes)
        inner = list(processes.values())
        self.by_rounds = any(process.by_rounds for process in inner)
        self.finite = all(process.finite for process in inner)
        self.may_stop = any(process.may_stop for process in inner)
        self.needs_feedback = any(process.needs_feedback for process in inner)
        self.early_results = any(process.early_results for process in inner)
        self.waste_known = all(process.waste_known for process in inner)

    def setup(self, federation: Federation) -> None:
        """Set up the process of each tier, each with its own random numbers.

        Raises:
            ValueError: A process does not fit the clients of its tier, or there is no such client.
        """
        self._num_clients = federation.num_clients
        self._started = False
        self._wakes: dict[str, list[int]] = {name: [] for name in self.groups}  # in ticks
        # Of tiers with clients of their own: the tier and the number within it.
        self._place: dict[int, tuple[str, int]] = {}
        for number, (name, process) in enumerate(self.processes.items()):
            # One tier alone is the same schedule as its process.
            seed = federation.seed
            seed = derived_seed(seed, Concern.TIERS, number) if number else seed
            own = replace(federation, seed=seed)
            if self.clients is not None:
                members = self.clients[name]
                if max(members) >= federation.num_clients:
                    raise no_client(f"clients[{name!r}]", max(members), federation)
                self._place |= {client: (name, k) for k, client in enumerate(members)}
                sizes = federation.num_examples[members]
                own = replace(own, num_clients=len(members), num_examples=sizes)
            process.setup(own)

    def on_wake(self, now: float) -> Iterator[Action]:
        """Start all tiers; later, wake those that requested it."""
        if not self._started:
            self._started = True
            for name, process in self.processes.items():
                yield from self._tagged(name, process.on_wake(now), now)
            return
        for name in self.groups:
            yield from self._woken(name, now)

    def on_arrival(self, task: Task, now: float) -> Iterable[Action]:
        """Tell the tier of the task."""
        name = self._tier(task)
        return self._tagged(name, self.processes[name].on_arrival(self._inside(task), now), now)

    def on_round_end_of(self, group: str, now: float) -> Iterator[Action]:
        """Tell the tier whose round has ended, and wake it if it has requested this."""
        yield from self._tagged(group, self.processes[group].on_round_end(now), now)
        yield from self._woken(group, now)

    def on_version(self, version: int, clients: Collection[int], now: float) -> Iterator[Action]:
        """Tell each tier about its own clients."""
        for name, process in self.processes.items():
            own = clients
            if self.clients is not None:
                places = (self._place.get(client, ("", 0)) for client in clients)
                own = [number for tier, number in places if tier == name]
            yield from self._tagged(name, process.on_version(version, own, now), now)

    def on_start(self, task: Task) -> None:
        """Tell the tier of the task."""
        self.processes[self._tier(task)].on_start(self._inside(task))

    def on_stop(self, task: Task, version: int, now: float) -> None:
        """Tell the tier of the task."""
        self.processes[self._tier(task)].on_stop(self._inside(task), version, now)

    def on_failure(self, task: Task, now: float) -> None:
        """Tell the tier of the task."""
        self.processes[self._tier(task)].on_failure(self._inside(task), now)

    def on_feedback(self, task: Task, seen: Seen, now: float) -> None:
        """Tell the tier of the task, if it needs it."""
        process = self.processes[self._tier(task)]
        if process.needs_feedback:
            process.on_feedback(self._inside(task), seen, now)

    def on_unavailable(
        self, dispatch: Dispatch, until: float | None, now: float
    ) -> Iterable[Action]:
        """Ask the tier of the client."""
        name = dispatch.tag
        assert name is not None
        if self.clients is not None:
            dispatch = dispatch._replace(client_id=self._place[dispatch.client_id][1])
        return self._tagged(name, self.processes[name].on_unavailable(dispatch, until, now), now)

    def _tier(self, task: Task) -> str:
        assert task.tag is not None
        return task.tag

    def _inside(self, task: Task) -> Task:
        """The task as the process of its tier knows it."""
        if self.clients is None:
            return task
        return task._replace(client_id=self._place[task.client_id][1])

    def _woken(self, name: str, now: float) -> Iterator[Action]:
        ticks, wakes = to_ticks(now), self._wakes[name]
        due = [wake for wake in wakes if wake <= ticks]
        self._wakes[name] = [wake for wake in wakes if wake > ticks]
        # The times are noted here, since a `Wake` does not say which tier has asked for it.
        for _ in due:
            yield from self._tagged(name, self.processes[name].on_wake(now), now)

    def _tagged(self, name: str, actions: Iterable[Action], now: float) -> Iterator[Action]:
        """The actions of a tier, in the numbers of the federation and with its name."""
        for action in actions:
            if isinstance(action, Wake):
                self._wakes[name].append(to_ticks(now) + to_ticks(action.delay))
            elif isinstance(action, Dispatch):
                action = action._replace(
                    client_id=self._outside(name, action.client_id),
                    duration=self._whole(name, action.duration),
                    tag=name,
                )
            elif isinstance(action, EndRound):
                action = replace(action, client_id=self._outside(name, action.client_id), tag=name)
            elif isinstance(action, Cancel | Cut):
                action = replace(action, client_id=self._outside(name, action.client_id))
            yield action

    def _whole(self, name: str, duration: float) -> float:
        """The duration of a task of the tier, from that of its process."""
        return duration

    def _outside(self, name: str, client: int) -> int:
        """The number of a tier's client in the federation."""
        return client if self.clients is None or client < 0 else self.clients[name][client]

    def needs_version(self, version: int) -> bool:
        """Whether one of the tiers needs it."""
        return any(process.needs_version(version) for process in self.processes.values())

    def over(self, now: float) -> bool:
        """Whether all tiers are over."""
        return all(process.over(now) for process in self.processes.values())

    def silent_until(self) -> float:
        """The latest of those of the tiers."""
        return max(process.silent_until() for process in self.processes.values())

    def expected_durations(self) -> NDArray[np.float64] | None:
        """T_i of each client in its tier, shape ``[M]``; None if one of them is unknown."""
        found = (process.expected_durations() for process in self.processes.values())
        known = [each for each in found if each is not None]
        if len(known) < len(self.processes):
            return None
        if self.clients is None:
            return known[0] if all(np.array_equal(known[0], each) for each in known) else None
        if len(self._place) < self._num_clients:
            return None
        durations = np.empty(self._num_clients)
        for name, own in zip(self.groups, known, strict=True):
            durations[self.clients[name]] = own
        return durations

    def on_end(self, in_flight: Iterable[Task]) -> None:
        """Tell each tier of its own tasks."""
        tasks = list(in_flight)
        for name, process in self.processes.items():
            process.on_end([self._inside(task) for task in tasks if self._tier(task) == name])

    def finish(self) -> None:
        """Tell all tiers."""
        for process in self.processes.values():
            process.finish()

    def state_dict(self) -> dict[str, Any]:
        """The state of each tier, and the times at which it is woken."""
        return {
            "started": self._started,
            "tiers": [process.state_dict() for process in self.processes.values()],
            "wakes": [list(self._wakes[name]) for name in self.groups],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._started = state["started"]
        for process, own in zip(self.processes.values(), state["tiers"], strict=True):
            process.load_state_dict(own)
        self._wakes = dict(zip(self.groups, map(list, state["wakes"]), strict=True))

    def _kept_otherwise(self) -> dict[str, Any]:
        return {"clients": None if self.clients is None else list(self.clients.items())}


def _check_apart(processes: Mapping[str, ArrivalProcess]) -> None:
    """Refuse one process for two groups, whose clients would share a state.

    Raises:
        ValueError: A process, or one that it wraps, is that of another group too.
    """
    owner: dict[int, str] = {}
    for name, outermost in processes.items():
        process: ArrivalProcess | None = outermost
        while process is not None:
            other = owner.setdefault(id(process), name)
            if other != name:
                raise ValueError(
                    f"processes[{name!r}] is the same object as processes[{other!r}], or wraps the "
                    f"same one, got {process!r}; a process keeps the state of its own clients, so "
                    "make one for each group"
                )
            process = process.arrivals if isinstance(process, Wrapper) else None


def members_of(
    argument: str, groups: Collection[str], clients: object, called: str
) -> dict[str, list[int]]:
    """The clients of each group, checked.

    Args:
        argument: Name of the argument.
        groups: Names of the groups.
        clients: The clients by group.
        called: What a group is called in errors.

    Raises:
        TypeError: It is no mapping of names to lists of clients.
        ValueError: It has other names, a list is empty, or a client is in two of them.
    """
    if not isinstance(clients, Mapping):
        raise TypeError(
            f"{argument} must be a mapping from names of {called}s to lists of clients, got "
            f"{clients!r}"
        )
    if set(clients) != set(groups):
        raise ValueError(
            f"{argument} must name the {called}s {', '.join(groups)}, got "
            f"{', '.join(map(str, clients)) or 'none'}"
        )
    found: dict[str, list[int]] = {}
    tier_of: dict[int, str] = {}
    for name in groups:
        label = f"{argument}[{name!r}]"
        listed = as_list(label, clients[name])
        if listed is None:
            raise TypeError(f"{label} must be a list of clients, got {shown(clients[name])}")
        if not listed:
            raise ValueError(f"{label} must hold at least one client, got none")
        found[name] = [non_negative_int(f"{label}[{k}]", each) for k, each in enumerate(listed)]
        for client in found[name]:
            if client in tier_of:
                raise ValueError(
                    f"{label} names client {client}, which is already in {called} "
                    f"{tier_of[client]!r}"
                )
            tier_of[client] = name
    return found
