"""The server of arrival processes that are told what the clients have logged."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from fedlight._support.reductions import REDUCTIONS
from fedlight.clients.pending import PendingRun
from fedlight.events import to_ticks, to_time
from fedlight.loop import Event, Handled
from fedlight.server import Server
from fedlight.types import ClientUpdate, LoggedValue, RoundRecord, Seen, Task


class EarlyServer(Server):
    """A server that computes each update as soon as it has accepted it, and tells the process.

    ::

        arrival:  the aggregator receives the update, or does not accept it
                  an accepted update is computed (yielded) now, not when a step uses it
                  if its local run has failed, it is left out now
                  the arrival process is told what has been logged (`on_feedback`)
                  the server steps if a step is due

    Tasks that arrive next are computed together with it, as by `Server`. If bits of a result depend
    on the others in its stack, a replay computes early, too, so that stacks are the same.
    """

    _new: ClientUpdate | None = None  # accepted in this event, and the process is not told yet

    def handle(self, event: Event) -> Generator[Sequence[PendingRun], None, Handled]:
        """Handle an event as `Server` does; compute what has arrived even if no step is due.

        Raises:
            ClientError: The local run has failed, and failures are to be raised.
        """
        handled = yield from super().handle(event)
        if self._new is None:
            return handled
        if waiting := self.clients.open_runs([self._new]):
            yield waiting
        if self.clients.failure(self._new) is None:
            self._tell()
            return handled
        # Not at the next step: a process that ends rounds by what it is told (`Pisces`) is told
        # nothing of a failure, and if all local runs fail, there would be no step.
        self._new = None
        released: list[int] = []
        retried: list[Task] = []
        failed: list[Task] = []
        self._leave_out_failures(released, retried, failed)
        return handled._replace(released=released, retried=retried, failed=failed)

    def receive(self, update: ClientUpdate, released: list[int]) -> bool:
        """Receive an update as `Server` does, and note it if it is accepted."""
        due = super().receive(update, released)
        if not released:  # else it was dropped, and is not computed
            self._new = update
        return due

    def step(self) -> RoundRecord:
        """Make a new version, after the process is told."""
        self._tell()  # before the result is released
        return super().step()

    def _tell(self) -> None:
        """Tell the arrival process of the update that has arrived, unless its run has failed."""
        update, self._new = self._new, None
        if update is None or self.clients.failure(update) is not None:
            return
        task, result = update.task, update.local
        metrics = {
            name: logged.value for name, logged in result.metrics.items() if _has_value(logged)
        }
        duration = to_time(to_ticks(task.arrives_at) - to_ticks(task.dispatched_at))
        staleness = self._staleness(update)
        seen = Seen(metrics, result.update_norm, update.num_examples, duration, staleness)
        self.schedule.arrivals.on_feedback(task, seen, self.schedule.now)


def _has_value(logged: LoggedValue) -> bool:
    mean = logged.how is None or REDUCTIONS[logged.how.reduce].weighted
    return bool(logged.weight) or not mean
