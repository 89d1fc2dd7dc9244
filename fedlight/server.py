"""The server: it keeps the versions of the model and makes new ones from client updates."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from fedlight._module.saved_settings import restored_settings, saved_settings
from fedlight._module.settings import LiveSettings
from fedlight._runs.records import round_record, update_from_list, update_record
from fedlight._runs.setting import Setting
from fedlight.aggregators import Aggregator, BufferedAggregator
from fedlight.aggregators._server_step import check_finite
from fedlight.arrivals.schedule import Schedule
from fedlight.clients import Clients
from fedlight.clients.large_updates import LargeUpdate
from fedlight.clients.pending import PendingRun
from fedlight.events import Kind, to_ticks, to_time
from fedlight.executors.base import ClientError
from fedlight.loop import Counts, Event, Handled, Stop
from fedlight.types import (
    ClientUpdate,
    FailureRecord,
    Federation,
    RoundRecord,
    ServerState,
    Task,
    UpdateRecord,
    UsedUpdate,
)

_MOST_TRIES = 3
_TENSORS = ("params", "buffers", "counters", "shared")


class Watcher:
    """Methods that the server calls; each of them does nothing unless it is overridden."""

    def on_dispatch(self, task: Task) -> None:
        """A client has pulled the model and starts its local run."""

    def on_update(self, update: ClientUpdate) -> None:
        """An update has arrived."""

    def on_drop(self, update: ClientUpdate) -> None:
        """The aggregator did not accept an update that has arrived."""

    def on_cancel(self, task: Task) -> None:
        """The arrival process has stopped a task, whose result is lost."""

    def on_client_failure(self, task: Task, error: ClientError) -> None:
        """A local run failed and its update is left out, or the result of a task was lost."""

    def on_version(self, record: RoundRecord) -> None:
        """A new version was made; the server's `state` is that version already."""


class Server:
    """Hands out versions of the model, receives updates, and steps when the aggregator says so.

    No other object calls the aggregator. The server keeps the newest version and those that future
    tasks pull; local runs in flight hold the versions that they have pulled.

    Args:
        setting: Has the aggregator, the local optimizer (which may change the `shared` state of a
            new version), the channel (here it only counts bytes) and what follows a failure.
        federation: The clients.
        clients: The clients' local runs and states.
        schedule: Has the virtual time, and the versions that future tasks pull.
        state: Version 0.
        watcher: Its methods are called for each update, failure and version.
        counts: The numbers to be counted up; new ones by default.
        settings: The module's settings, which clients pull with a version; None for a model
            without a module.

    Attributes:
        state: The newest version of the model.
        versions: The versions that are kept, by number, as clients pull them.
        counts: How far the run is.
    """

    def __init__(
        self,
        setting: Setting,
        federation: Federation,
        clients: Clients,
        schedule: Schedule,
        state: ServerState,
        watcher: Watcher | None = None,
        counts: Counts | None = None,
        settings: LiveSettings | None = None,
    ) -> None:
        self.aggregator = aggregator = setting.aggregator
        aggregator.setup(federation, state)
        self.clients = clients
        self.schedule = schedule
        self.watcher = Watcher() if watcher is None else watcher
        self.counts = Counts() if counts is None else counts
        self._settings = settings
        if settings is not None:
            state = replace(state, settings=settings.current)
        self.state = state
        self._unchanged = Handled(state.version)
        self.versions = {state.version: self._sent(state)}
        self._on_client_failure = setting.on_client_failure
        self._optimizer = setting.local_optimizer
        self._channel = setting.channel
        self._federation = federation
        self._num_clients = federation.num_clients
        self._has_transfers = federation.arrivals_per_send is not None
        self._batch_sizes = np.minimum(federation.batch_size, federation.num_examples).tolist()
        self._tokens_per_example = federation.tokens_per_example
        # An aggregator that does not define `held` is taken to use at its next step whatever it has
        # received, so that its updates are computed in bulk and kept in checkpoints all the same.
        self._says_what_it_holds = type(aggregator).held is not Aggregator.held
        # Of a buffered one, weights and direction are checked.
        self._check_versions = not isinstance(aggregator, BufferedAggregator)
        self._sends_before, self._regional = aggregator.sends_before, aggregator.regional
        self._received: list[ClientUpdate] = []
        self._failures: list[FailureRecord] = []
        self._dropped: list[UpdateRecord] = []

    @property
    def held(self) -> list[ClientUpdate]:
        """Updates that the aggregator has received and not used yet, in order of arrival."""
        if not self._says_what_it_holds:
            return self._received
        held = self.aggregator.held
        if held is None:
            name = type(self.aggregator).__name__
            raise TypeError(f"{name}.held must return a list of updates, got None")
        return held

    def dispatch(self, task: Task) -> None:
        """Give a client the version that its task names, and start its local run."""
        self.counts.num_pulls += 1
        if self._settings is not None and self._settings.touched:
            self.adopt_settings()
        if not task.lost:
            self.clients.dispatch(task, self.versions[task.pulled_version])
        self.watcher.on_dispatch(task)

    def stop(self, stop: Stop) -> None:
        """End a local run before its time: it is cancelled, or arrives now with fewer steps."""
        task, instead = stop
        if instead is not None:
            self.clients.cut(instead)
            return
        if not task.lost:
            self.clients.cancel(task)
        self._failures.append(self._failure(task, "cancelled"))
        self.watcher.on_cancel(task)

    def handle(self, event: Event) -> Generator[Sequence[PendingRun], None, Handled]:
        """Handle an event completely: receive an update, and make a new version if one is due.

        ::

            arrival:       the aggregator receives the update, or does not accept it
            end of round:  the aggregator is told
            if a step is due, or a deadline has come:
                the updates held are computed (yielded); those that failed are left out
                the aggregator steps, unless too few updates are left

        Yields:
            Local runs that have to be computed before the server can continue.

        Returns:
            The answer for the schedule.

        Raises:
            ClientError: A local run failed, and failures are to be raised.
            TypeError: The aggregator's `step` did not return the next version, or another of its
                methods returned None.
            ValueError: The new version is not finite.
        """
        kind, task, group = event
        released: list[int] = []
        retried: list[Task] = []
        answer: int | None = None
        dropped = False
        failed: list[Task] = []
        if task is not None and task.lost:
            # A lost task is a part of the schedule, so it is never raised as an error.
            self._note(task, "lost")
            self.watcher.on_client_failure(task, ClientError(task, "its result was lost"))
            due = False
        elif task is not None:
            due = self.receive(self.clients.arrive(task), released)
            dropped = bool(released)
        elif kind is Kind.ROUND_END:
            self.counts.num_transfers += self._has_transfers
            due = self._end_round(group)
        else:
            due = kind is Kind.DEADLINE
        if not due and not released:
            return self._unchanged
        if due:
            # No update is kept in a variable here, because it would keep alive the version that
            # its client pulled for as long as this generator is suspended.
            if waiting := self.clients.open_runs(self.held):
                yield waiting
            full = self._leave_out_failures(released, retried, failed)
            if full or task is None:
                if waiting := self.clients.unresolved_states(self.held):
                    yield waiting
                record = self.step()
                released += [update.client_id for update in record.updates]
                answer = self.counts.version - 1 if self._sends_before else None
                self.watcher.on_version(record)
        return Handled(self.counts.version, released, retried, answer, dropped, failed)

    def _end_round(self, group: str | None) -> bool:
        """Tell the aggregator; return whether a step is due."""
        if group is None:
            return self._answer("end_round", self.aggregator.end_round())
        return self._answer("end_round_of", self.aggregator.end_round_of(group))

    def receive(self, update: ClientUpdate, released: list[int]) -> bool:
        """Receive an update, or record that it is dropped; return whether a step is due.

        The client of a dropped update is added to `released`.
        """
        task = update.task
        self.watcher.on_update(update)
        self.counts.num_updates += 1
        self.counts.num_gradients += task.num_steps
        if self.counts.num_examples is not None:
            own = task.chunk is None
            batch = self._batch_sizes[task.client_id] if own else self._batch_of(task)
            self.counts.num_examples += task.num_steps * batch
        # After a first half, a client sends nothing; its own state is all that is left of it.
        if not task.is_first_half and self._answer(
            "accepts", self.aggregator.accepts(update, self.counts.version)
        ):
            due = self._answer("receive", self.aggregator.receive(update))
            if not self._says_what_it_holds:
                self._received.append(update)
            return due
        self._dropped.append(update_record(update, self._staleness(update), 0.0, math.nan))
        released.append(update.client_id)
        self.watcher.on_drop(update)  # before its result is released
        self.clients.drop(update)
        return False

    def _batch_of(self, task: Task) -> int:
        """The examples per step of a task that reads shared data."""
        shards = self._federation.shard_sizes
        assert shards is not None
        assert task.chunk is not None
        shard = task.chunk.shard
        size = int(shards.sum() if shard is None else shards[shard])
        return min(self._federation.batch_size, size)

    def _staleness(self, update: ClientUpdate) -> int:
        """Return tau: the server's version minus the version that the client has pulled."""
        return self.counts.version - update.task.pulled_version

    def _leave_out_failures(
        self, released: list[int], retried: list[Task], tasks: list[Task]
    ) -> bool:
        """Take failed updates out of the aggregator; return whether a step is still due.

        Failed tasks are added to `tasks`, and to `retried` or their clients to `released`.
        """
        found = [(update, self.clients.failure(update)) for update in self.held]
        failed = [(update, error) for update, error in found if error is not None]
        if not failed:
            return True
        tasks += [update.task for update, _ in failed]
        for update, error in failed:
            too_large = isinstance(error, LargeUpdate)
            if self._on_client_failure == "raise" and not too_large:
                raise error
            again = self._on_client_failure == "retry" and not too_large
            again = again and update.task.tries + 1 < _MOST_TRIES
            self._note(update.task, error.reason, again)
            self.clients.fail(update)
            if again:
                retried.append(update.task)
            else:
                released.append(update.client_id)
        counts = self.counts
        counts.failed_in_a_row += len(failed)
        counts.over = counts.failed_in_a_row >= 100 + 10 * self._num_clients
        answer = self.aggregator.discard([update for update, _ in failed])
        full = self._answer("discard", answer)
        for _, error in failed:
            self.watcher.on_client_failure(error.task, error)
        return full

    def _answer(self, method: str, answer: bool) -> bool:
        """Return the answer of a method of the aggregator, after a check.

        Raises:
            TypeError: The answer is None, which would count as False.
        """
        if answer is None:
            raise TypeError(
                f"{type(self.aggregator).__name__}.{method} must return True or False, got None; "
                "does it lack a return?"
            )
        return answer

    def _note(self, task: Task, reason: str, retried: bool = False) -> None:
        self.counts.num_failures += 1
        self._failures.append(self._failure(task, reason, retried))

    def _failure(self, task: Task, reason: str, retried: bool = False) -> FailureRecord:
        now = self.schedule.now
        worked = to_time(to_ticks(min(now, task.arrives_at)) - to_ticks(task.dispatched_at))
        who = task.client_id, task.serial, task.pulled_version
        return FailureRecord(*who, now, reason, retried, worked)

    def step(self) -> RoundRecord:
        """Make a new version, and return its record, which names the updates used."""
        before = self.state
        state = self.aggregator.step(before)
        if not isinstance(state, ServerState) or state.version != self.state.version + 1:
            raise TypeError(
                f"{type(self.aggregator).__name__}.step must return the next ServerState (version "
                f"{self.counts.version + 1}), got {_brief(state)}; ServerStep and next_version of "
                "fedlight.aggregators make one"
            )
        if not all(isinstance(each, UsedUpdate) for each in state.used):
            raise TypeError(
                f"{type(self.aggregator).__name__}.step must list the updates used as "
                f"UsedUpdate(update, weight) objects, got {state.used!r:.200}"
            )
        if self._check_versions:
            check_finite(f"{type(self.aggregator).__name__}.step", state.params)
        state = self._optimizer.absorb(state, self._num_clients)
        if not isinstance(state, ServerState):
            raise TypeError(
                f"{type(self._optimizer).__name__}.absorb must return a ServerState, got "
                f"{_brief(state)}; the one that it was given, if nothing changes"
            )
        # Of the version before the step, to which the updates were applied.
        staleness = [self._staleness(update) for update, _ in state.used]
        record = round_record(state, staleness, self.schedule.now, self._dropped, self._failures)
        record.metrics.update(self._totals())
        self._dropped, self._failures = [], []
        if state.used:
            self.counts.failed_in_a_row, self.counts.over = 0, False
        self._received = []
        # After the record, which reads the results of the updates that are released here.
        self.clients.release(used.update for used in state.used)
        # The new state does not hold the updates, else a version in flight would keep them alive.
        parts = (state.params, state.buffers, state.counters, state.shared)
        self.state = ServerState(state.version, *parts, settings=before.settings)
        as_sent, needs_version = self.versions[before.version], self.schedule.needs_version
        self.versions = {v: s for v, s in self.versions.items() if needs_version(v)}
        self.versions[state.version] = self._sent(self.state)
        if self._sends_before:
            self.versions[before.version] = as_sent
        self.counts.version = state.version
        self._unchanged = Handled(state.version)
        return record

    def adopt(self, params: Tensor, buffers: Tensor, counters: Tensor) -> ServerState:
        """Change the newest version in place of making another one, as a hook has done.

        Args:
            params: Its parameters, shape ``[P]``.
            buffers: Its floating buffers, shape ``[Q]``.
            counters: Its integer buffers, shape ``[R]``.

        Returns:
            The version, with the same number.
        """
        version = self.counts.version
        self.state = replace(self.state, params=params, buffers=buffers, counters=counters)
        self.versions[version] = self._sent(self.state)
        return self.state

    def _sent(self, state: ServerState) -> ServerState:
        """A version as clients pull it.

        Raises:
            TypeError: The aggregator's `outgoing` did not return parameters.
            ValueError: They are not finite.
        """
        name, like = f"{type(self.aggregator).__name__}.outgoing", state.params
        before = like._version
        params = self.aggregator.outgoing(state)
        if like._version != before:
            raise ValueError(
                f"{name} has changed the parameters of the version in place; return a new tensor, "
                "such as state.params + change"
            )
        if params is None:
            return state
        if not isinstance(params, Tensor) or (params.shape, params.dtype) != (
            like.shape,
            like.dtype,
        ):
            found = type(params).__name__
            if isinstance(params, Tensor):
                found = f"shape {tuple(params.shape)} and {params.dtype}"
            raise TypeError(
                f"{name} must return a tensor of shape {tuple(like.shape)} and {like.dtype}, or "
                f"None, got {found}"
            )
        check_finite(name, params)
        # A copy: what clients have pulled must not change with the aggregator's own tensor.
        return replace(state, params=params.detach().clone())

    def adopt_settings(self) -> None:
        """Take what hooks have changed in the module's settings into the newest version.

        Clients that pull from now on get it; those that are at work keep what they have pulled.
        """
        now = None if self._settings is None else self._settings.look()
        if now is not self.state.settings:
            self.state = replace(self.state, settings=now)
            if self._regional:  # clients of each region pull the newest version of their own
                kept = self.versions.items()
                self.versions = {v: replace(state, settings=now) for v, state in kept}
            self.versions[self.state.version] = self._sent(self.state)

    def _totals(self) -> dict[str, float]:
        """Return the costs of the run so far: the horizontal axes of the papers' figures."""
        counts, state = self.counts, self.state
        size = state.params.numel(), state.params.dtype.itemsize
        sender = self.aggregator.bytes_up if self._channel is None else self._channel.nbytes
        rest = state.buffers.nbytes + state.counters.nbytes
        between = counts.num_transfers * (state.params.nbytes + rest)
        rest += 0 if state.shared is None else state.shared.nbytes
        down, up = rest + self._optimizer.bytes_down(*size), rest + sender(*size)
        totals = {
            "fed/gradients": float(counts.num_gradients),
            "fed/models": float(counts.num_pulls + counts.num_updates),
            "fed/bytes": float(counts.num_pulls * down + counts.num_updates * up + between),
        }
        if counts.num_examples is not None:
            totals["fed/examples"] = float(counts.num_examples)
            if self._tokens_per_example is not None:
                totals["fed/tokens"] = float(counts.num_examples * self._tokens_per_example)
        if self.aggregator.noise_multiplier is not None:  # an epsilon follows from it later
            totals["fed/noise_multiplier"] = self.aggregator.noise_multiplier
            totals["fed/clients"] = float(self._num_clients)
        return totals

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs, as tensors and plain data."""
        held = self.held
        self.adopt_settings()
        versions, pulled = dict(self.versions), self.clients.pulled(held)
        sent = self.versions[self.state.version]
        for state in pulled.values():
            versions.setdefault(state.version, state)
        saved = None
        if self._settings is not None:
            by_version = {version: state.settings for version, state in versions.items()}
            by_run = {
                serial: state.settings
                for serial, state in pulled.items()
                if state.settings is not by_version[state.version]
            }
            saved = saved_settings(self._settings, by_version, by_run)
        return {
            **self.counts.state_dict(),
            "versions": {
                version: {name: getattr(state, name) for name in _TENSORS}
                for version, state in versions.items()
            },
            "model": None if sent.params is self.state.params else self.state.params,
            "settings": saved,
            "kept": list(self.versions),
            "clients": self.clients.state_dict(held),
            "aggregator": self.aggregator.state_dict(),
            "dropped": [list(record) for record in self._dropped],
            "failures": [list(failure) for failure in self._failures],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        device = self.state.params.device
        versions = {
            version: _on_device(version, saved, device)
            for version, saved in state["versions"].items()
        }
        pulled = self._load_settings(state.get("settings"), versions)
        self.versions = {version: versions[version] for version in state["kept"]}
        self.state = versions[state["version"]]
        if (model := state.get("model")) is not None:  # clients pull other parameters
            self.state = replace(self.state, params=model.to(device))
        self.counts.load_state_dict(state)
        self._unchanged = Handled(self.counts.version)
        self._received = self.clients.load_state_dict(state["clients"], versions, device, pulled)
        for update in self._received:
            self.aggregator.receive(update)
        self.aggregator.load_state_dict(state["aggregator"])
        self._dropped = [update_from_list(fields) for fields in state["dropped"]]
        self._failures = [FailureRecord(*fields) for fields in state["failures"]]

    def _load_settings(
        self, saved: dict[str, Any] | None, versions: dict[int, ServerState]
    ) -> dict[int, Any]:
        """Give the versions their settings, and the module those of the newest one.

        Args:
            saved: What `saved_settings` returned; older checkpoints have none.
            versions: The versions, changed in place.

        Returns:
            The settings of local runs that have others than the version that they pulled, by the
            serial number of the task.
        """
        if self._settings is None:
            return {}
        by_version, by_run = restored_settings(self._settings, saved)
        start = self._settings.start
        for version, state in versions.items():
            versions[version] = replace(state, settings=by_version.get(version, start))
        return by_run


def _on_device(version: int, saved: Mapping[str, Any], device: Any) -> ServerState:
    """A version from the tensors of a checkpoint."""
    tensors: dict[str, Any] = {
        name: each if each is None else each.to(device) for name, each in saved.items()
    }
    return ServerState(version, **tensors)


def _brief(value: object) -> str:
    if isinstance(value, ServerState):
        return f"version {value.version}"
    return type(value).__name__
