"""Failures: clients that go down at random, with the tasks that they have in flight."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fedlight._support.checks import positive
from fedlight.arrivals._per_client import check_length, of_client, one_for_all_or_each
from fedlight.arrivals.availability import Refusals, within_windows
from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch
from fedlight.arrivals.windows import Window, first_after
from fedlight.arrivals.wrapper import Wrapper
from fedlight.events import to_ticks, to_time
from fedlight.randomness import Concern, Streams

if TYPE_CHECKING:
    from fedlight.types import Federation

_BLOCK = 16  # failures of a client that are drawn at once


class Failures(Wrapper):
    """Each client works until it fails, and is down until it is repaired, again and again.

    ``up ~ Exponential(mtbf), down ~ Exponential(mttr)``, in turn, for each client from time 0 on.

    A task that its client has in flight is lost at the time of the failure, and the process is told
    of it then; the client is free again after the repair. A task that would start while its client
    is down is handled as by `Availability`: with arrivals by rounds, the client does not take part;
    with arrivals by the clock, it starts after the repair, or another client is drawn instead. A
    task that arrives at the very time of a failure has arrived. The times do not depend on the
    tasks, so that two servers see the same failures; in the long run a client is up for a share of
    ``mtbf / (mtbf + mttr)``. With arrivals by rounds, a round lasts as long as without failures:
    the server does not know of them.

    `fedlight.participation_report` of the process, of a record or of a trainer after its run says
    which share of the clients' time was not in vain.

    Args:
        arrivals: Any arrival process.
        mtbf: Mean virtual time between a repair and the next failure, for all clients or for each.
        mttr: Mean virtual time from a failure to its repair, for all clients or for each.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: A time is not above 0.

    Source: None of one paper. It is the alternating renewal process of reliability theory (Barlow,
    Proschan, Mathematical Theory of Reliability, 1965).

    Example:
        >>> from fedlight.arrivals import ContinuousArrivals, UniformSpeeds
        >>> always_on = ContinuousArrivals(UniformSpeeds(0), resume="on_arrival")
        >>> table = Failures(always_on, mtbf=3.0, mttr=1.0).simulate(
        ...     num_clients=100, buffer_size=1, max_time=100
        ... )
        >>> 0.6 < len(table) / (100 * 100) < 0.66  # without failures 1
        True
    """

    _repr_positional = 1
    _saved_attributes = ("_refusals",)

    def __init__(
        self,
        arrivals: ArrivalProcess,
        mtbf: float | Sequence[float],
        mttr: float | Sequence[float],
    ) -> None:
        super().__init__(arrivals)
        self.mtbf = one_for_all_or_each("mtbf", mtbf, positive)
        self.mttr = one_for_all_or_each("mttr", mttr, positive)

    def setup(self, federation: Federation) -> None:
        """Set up the wrapped process; all clients are up.

        Raises:
            ValueError: It does not fit the federation, or there is not one time for each client.
        """
        super().setup(federation)
        check_length("mtbf", self.mtbf, federation)
        check_length("mttr", self.mttr, federation)
        self._streams = Streams(federation.seed, Concern.FAILURES)
        # By client: the times from repair to failure that may still be asked for, and the number of
        # those that were drawn before them.
        self._up: dict[int, list[Window]] = {}
        self._past: dict[int, int] = {}
        self._refusals = Refusals()
        self._now = 0

    def change(self, actions: Iterable[Action], now: float) -> Iterator[Action]:
        """Let the clients that are up start; end the tasks whose clients fail."""
        self._now = to_ticks(now)
        return within_windows(self, actions, now, self._find, _lost, self._refusals)

    def silent_until(self) -> float:
        """The time at which the clients are up again that could not start."""
        return max(self._refusals.until, super().silent_until())

    def _find(self, client: int, ticks: int) -> Window:
        """The time from repair to failure that contains `ticks`, or else the next one."""
        known = self._up.setdefault(client, [])
        while not known or known[-1].end <= ticks:
            self._draw(client, known)
            self._forget(client, known)
        found = first_after(known, ticks)
        assert found is not None
        return found

    def _draw(self, client: int, known: list[Window]) -> None:
        drawn = self._past.get(client, 0) + len(known)
        rng = self._streams.at(client, drawn // _BLOCK)
        means = of_client(self.mttr, client), of_client(self.mtbf, client)
        for down, up in rng.exponential(means, (_BLOCK, 2)).tolist():
            start = known[-1].end + max(1, to_ticks(down)) if known else 0  # up at first
            known.append(Window(start, start + max(1, to_ticks(up))))

    def _forget(self, client: int, known: list[Window]) -> None:
        """Keep no windows that are over, or a long run would hold all since its beginning."""
        # The last one stays: the next one is drawn from its end.
        over = min(bisect_right(known, self._now, key=lambda each: each.end), len(known) - 1)
        if over > 0:
            del known[:over]
            self._past[client] = self._past.get(client, 0) + over

    def state_dict(self) -> dict[str, Any]:
        """The state of the wrapped process; the failures are functions of the seed."""
        return super().state_dict()


def _lost(action: Dispatch, ticks: int) -> Dispatch:
    """A task whose client fails so many ticks after the pull."""
    return action._replace(duration=to_time(ticks), lost=True)
