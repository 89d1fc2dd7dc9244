"""Regions of clients, each with a server of its own, and one global server far away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlight._support.checks import non_negative, one_of, positive_int, shown
from fedlight.arrivals._per_client import as_list
from fedlight.arrivals.base import Action, ArrivalProcess, EndRound
from fedlight.arrivals.tiers import Tiers
from fedlight.events import to_ticks, to_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation, Task


class Regions(Tiers):
    """Groups of clients whose servers send to a global server after every K arrivals.

    Each region has an arrival process by the clock for its clients, as in `Tiers`. They talk to the
    server of their region only::

        K-th arrival in the region       its server sends to the global server
        up[r] later                      the global server has it, and sends its model back
        down[r] after that               the region's server has the global model, and starts to
                                         count arrivals again

    Arrivals during the two transfers are handled as all others, but not counted. Both ends of
    transfer are recorded as ends of a round of the region. The process knows nothing of models:
    what the servers do with them is the aggregator's (`HALoS`).

    At the same time, arrivals come first; of the ends of transfers, those of the region that is
    listed first. A client that continues without delay pulls right after its own arrival, that is
    before transfers that end at this time.

    Args:
        processes: A process for each region, by name, such as `ContinuousArrivals`; none by rounds.
            Each region needs an object of its own.
        clients: The clients of each region, by name.
        arrivals_per_send: K. Lost tasks do not count.
        up: Virtual time of the transfer from a region's server to the global server: one number, or
            one for each region by name. 0 for no time.
        down: Virtual time of the transfer back.
        within: Virtual time of one transfer between a client and the server of its region. A task
            has two of them in addition to its duration.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: There is no region, the names differ, a client is in two regions, a process
            works by rounds or is that of two regions, or a number is outside its range.

    Source: Kim et al., [HALoS](https://arxiv.org/abs/2506.04531), ICML 2025, and its public code.

    Example:
        >>> from fedlight.arrivals import ContinuousArrivals, FixedDurations
        >>> arrivals = Regions(
        ...     {
        ...         "west": ContinuousArrivals(FixedDurations([1.0, 1.5])),
        ...         "east": ContinuousArrivals(FixedDurations([2.0])),
        ...     },
        ...     clients={"west": [0, 1], "east": [2]},
        ...     arrivals_per_send=2,
        ...     up={"west": 0.0, "east": 0.75},
        ...     down={"west": 0.0, "east": 0.5},
        ... )
        >>> table = arrivals.simulate(num_clients=3, max_time=5.5)
        >>> list(zip(table.round_ends, table.round_tags))[:4]
        [(1.5, 'west'), (1.5, 'west'), (3.0, 'west'), (3.0, 'west')]
        >>> [end for end, tag in zip(table.round_ends, table.round_tags) if tag == "east"]
        [4.75, 5.25]
    """

    _repr_positional = 2
    _repr_optional = ("up", "down", "within")
    _called = "region"
    _suits = "ContinuousArrivals(UniformSpeeds(0.8))"

    def __init__(
        self,
        processes: Mapping[str, ArrivalProcess],
        clients: Mapping[str, Sequence[int]],
        arrivals_per_send: int,
        up: float | Mapping[str, float] = 0.0,
        down: float | Mapping[str, float] = 0.0,
        within: float | Mapping[str, float] = 0.0,
    ) -> None:
        if clients is None:  # which Tiers takes
            raise TypeError(
                "clients must be a mapping from names of regions to lists of clients, got None"
            )
        super().__init__(processes, clients)
        for name, process in self.processes.items():
            if process.by_rounds:
                raise ValueError(
                    f"processes[{name!r}] works by rounds, got {process!r}; a region's server "
                    "steps at each arrival, so give it a process by the clock, such as "
                    "ContinuousArrivals(…), or use Tiers for synchronous groups"
                )
        self.arrivals_per_send = positive_int("arrivals_per_send", arrivals_per_send)
        self.up = self._times("up", up)
        self.down = self._times("down", down)
        self.within = self._times("within", within)
        self.by_rounds = True  # the ends of transfers are ends of rounds

    @classmethod
    def from_matrix(
        cls,
        processes: Mapping[str, ArrivalProcess],
        clients: Mapping[str, Sequence[int]],
        arrivals_per_send: int,
        times: Sequence[Sequence[float]],
        home: str,
    ) -> Regions:
        """Take all times from one matrix of transfers between pairs of regions.

        Args:
            processes: A process for each region, by name.
            clients: The clients of each region, by name.
            arrivals_per_send: K.
            times: ``times[r][s]`` is the virtual time of a transfer from the r-th to the s-th
                region, in the order of `processes`; on the diagonal that of a transfer between a
                client and the server of its region.
            home: The region in which the global server is.

        Raises:
            TypeError: An argument is of the wrong kind.
            ValueError: An argument is outside its range, or `times` has another shape.

        Example:
            >>> from fedlight.arrivals import ContinuousArrivals, FixedDurations
            >>> names = ("west", "east")
            >>> arrivals = Regions.from_matrix(
            ...     {name: ContinuousArrivals(FixedDurations([1.0])) for name in names},
            ...     {"west": [0], "east": [1]},
            ...     arrivals_per_send=4,
            ...     times=[[0.1, 0.75], [0.5, 0.2]],
            ...     home="west",
            ... )
            >>> arrivals.up, arrivals.down, arrivals.within
            ({'west': 0.1, 'east': 0.5}, {'west': 0.1, 'east': 0.75}, {'west': 0.1, 'east': 0.2})
        """
        names = cls(processes, clients, arrivals_per_send).groups  # checked
        place = names.index(one_of("home", home, names))
        table = times.tolist() if hasattr(times, "tolist") else times
        given = [as_list("times", row) or [] for row in as_list("times", table) or []]
        if [len(row) for row in given] != [len(names)] * len(names):
            raise ValueError(
                f"times must have a row for each of the {len(names)} regions, with a number for "
                f"each of them, got {shown(times)}"
            )
        rows = [
            [_time(f"times[{r}][{s}]", time) for s, time in enumerate(row)]
            for r, row in enumerate(given)
        ]
        return cls(
            processes,
            clients,
            arrivals_per_send,
            up={name: rows[r][place] for r, name in enumerate(names)},
            down={name: rows[place][r] for r, name in enumerate(names)},
            within={name: rows[r][r] for r, name in enumerate(names)},
        )

    def _times(self, label: str, value: object) -> float | dict[str, float]:
        """One number for all regions, or one for each, checked."""
        if not isinstance(value, Mapping):
            return _time(label, value)
        if set(value) != set(self.groups):
            raise ValueError(
                f"{label} must have a number for each of the regions {', '.join(self.groups)}, got "
                f"{', '.join(map(str, value)) or 'none'}"
            )
        return {name: _time(f"{label}[{name!r}]", value[name]) for name in self.groups}

    def setup(self, federation: Federation) -> None:
        """Set up the process of each region; no server has counted anything.

        Raises:
            ValueError: A process does not fit the clients of its region, or there is no such
                client.
        """
        super().setup(federation)
        self._counts = dict.fromkeys(self.groups, 0)
        self._transfers = dict.fromkeys(self.groups, 0)  # that have not ended yet

    def on_arrival(self, task: Task, now: float) -> Iterator[Action]:
        """Tell the region of the task; its server sends after the K-th arrival."""
        yield from super().on_arrival(task, now)
        if task.lost:
            return
        name = self._tier(task)
        self._counts[name] += 1
        if self._counts[name] == self.arrivals_per_send:
            self._transfers[name] = 2
            there = _of(self.up, name)
            back = to_time(to_ticks(there) + to_ticks(_of(self.down, name)))
            ended = partial(EndRound, client_id=self.groups.index(name), tag=name)
            yield ended(there)
            yield ended(back)

    def on_round_end_of(self, group: str, now: float) -> Iterator[Action]:
        """When the global model has come back, the region's server counts again."""
        self._transfers[group] -= 1
        if not self._transfers[group]:
            self._counts[group] = 0
        yield from self._woken(group, now)

    def _whole(self, name: str, duration: float) -> float:
        """The duration of a task, with the client's two transfers."""
        within = _of(self.within, name)
        return to_time(to_ticks(duration) + 2 * to_ticks(within)) if within else duration

    def expected_durations(self) -> NDArray[np.float64] | None:
        """T_i of each client with its two transfers, shape ``[M]``; None if one is unknown."""
        durations = super().expected_durations()
        if durations is None:
            return None
        assert self.clients is not None
        for name, members in self.clients.items():
            durations[members] += 2 * _of(self.within, name)
        return durations

    def state_dict(self) -> dict[str, Any]:
        """The state of each region, with what its server has counted."""
        counted = [list(self._counts.values()), list(self._transfers.values())]
        return super().state_dict() | {"counted": counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        counts, transfers = state["counted"]
        self._counts = dict(zip(self.groups, counts, strict=True))
        self._transfers = dict(zip(self.groups, transfers, strict=True))


def _time(label: str, value: object) -> float:
    time = non_negative(label, value)
    if 0 < time < 1e-9:
        raise ValueError(f"{label} must be 0 or at least 1e-9 of virtual time, got {value!r}")
    return time


def _of(times: float | Mapping[str, float], name: str) -> float:
    return times[name] if isinstance(times, Mapping) else times
