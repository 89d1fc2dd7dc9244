"""The server: the versions of its model, and how client updates become a new one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from fedlight.executors.base import ClientError
from fedlight.executors.pool import LargeUpdate
from fedlight.history import round_record, update_record
from fedlight.types import FailureRecord, ServerState, UpdateRecord

if TYPE_CHECKING:
    from fedlight.aggregators import Aggregator
    from fedlight.clients import Clients
    from fedlight.local_optimizers import LocalOptimizer
    from fedlight.types import ClientUpdate, Federation, RoundRecord, Task


MOST_TRIES = 3


class Failure(NamedTuple):
    """An update that came to nothing: why, and whether the client tries once more."""

    error: ClientError
    retried: bool


class Server:
    """Hands out versions of the model, receives updates, and steps when the aggregator says so.

    A version is kept only while it is the newest or a task still to come names it; runs in flight
    hold the versions that they pulled themselves.

    Args:
        aggregator: Decides when to step, and how.
        optimizer: The local optimizer, whose clients' states change what is pulled.
        clients: The clients' runs.
        federation: Who takes part.
        state: Version 0.
        needs_version: Whether a task still to come names a version.
        on_client_failure: "raise", "drop" or "retry".
    """

    def __init__(
        self,
        aggregator: Aggregator,
        optimizer: LocalOptimizer,
        clients: Clients,
        federation: Federation,
        state: ServerState,
        needs_version: Callable[[int], bool],
        on_client_failure: str = "raise",
    ) -> None:
        aggregator.setup(federation, state)
        self.aggregator = aggregator
        self.clients = clients
        self.state = state
        self.versions = {state.version: state}
        self.num_updates = 0
        self.num_pulls = 0
        self.num_gradients = 0
        self.num_failures = 0
        self.failed_in_a_row = 0
        self._on_client_failure = on_client_failure
        self._failures: list[FailureRecord] = []
        self._optimizer = optimizer
        self._num_clients = federation.num_clients
        self._needs_version = needs_version
        self._dropped: list[UpdateRecord] = []

    def dispatch(self, task: Task) -> None:
        """A client pulls the version that its task names, and starts to work."""
        self.num_pulls += 1
        if not task.lost:
            self.clients.dispatch(task, self.versions[task.pulled_version])

    def receive(self, update: ClientUpdate) -> tuple[bool, list[int]]:
        """An update has arrived: is a step due, and which clients are let go without one?"""
        self.num_updates += 1
        self.num_gradients += update.num_steps
        if self.aggregator.accepts(update, self.state.version):
            return self.aggregator.receive(update), []
        self.clients.drop(update)
        self._dropped.append(update_record(update, self.state.version, 0.0, math.nan))
        return False, [update.client_id]

    def lose(self, task: Task, now: float) -> None:
        """A task is lost. That is a part of the schedule: noted, never an error."""
        self._note(task, now, "lost")

    def sift(self, now: float) -> tuple[list[Failure], bool]:
        """Compute what the aggregator holds and take out what came to nothing.

        Gives the failures, and whether what is left still fills the aggregator's buffer.

        Raises:
            ClientError: A local run failed, and failures are to be raised.
        """
        found = [(update, self.clients.failure(update)) for update in self.aggregator.held]
        failed = [(update, error) for update, error in found if error is not None]
        if not failed:
            return [], True
        failures = []
        for update, error in failed:
            too_large = isinstance(error, LargeUpdate)
            if self._on_client_failure == "raise" and not too_large:
                raise error
            retried = self._on_client_failure == "retry" and not too_large
            retried = retried and update.task.tries + 1 < MOST_TRIES
            failures.append(Failure(error, retried))
            self._note(update.task, now, error.reason, retried)
            self.clients.fail(update)
        self.failed_in_a_row += len(failed)
        return failures, self.aggregator.discard([update for update, _ in failed])

    @property
    def hopeless(self) -> bool:
        """Whether so many local runs have failed one after the other that none ever will not."""
        return self.failed_in_a_row >= 100 + 10 * self._num_clients

    def _note(self, task: Task, now: float, reason: str, retried: bool = False) -> None:
        self.num_failures += 1
        self._failures.append(
            FailureRecord(task.client_id, task.serial, task.pulled_version, now, reason, retried)
        )

    def step(self, now: float) -> RoundRecord:
        """Make a new version; its record names the updates that it used."""
        state = self.aggregator.step(self.state)
        if not isinstance(state, ServerState) or state.version != self.state.version + 1:
            raise TypeError(
                f"{type(self.aggregator).__name__}.step must return the next ServerState (version "
                f"{self.state.version + 1}), got {_brief(state)}; ServerStep and next_version of "
                "fedlight.aggregators.server make one"
            )
        state = self._optimizer.absorb(state, self._num_clients)
        record = round_record(state, now, self._dropped, self._failures)
        record.metrics.update(self._totals())
        self._dropped, self._failures = [], []
        if state.used:
            self.failed_in_a_row = 0
        self.clients.release(used.update for used in state.used)
        parts = (state.params, state.buffers, state.counters, state.shared)
        self.state = ServerState(state.version, *parts)
        self.versions[state.version] = self.state
        for version in list(self.versions):
            if version != state.version and not self._needs_version(version):
                del self.versions[version]
        return record

    def _totals(self) -> dict[str, float]:
        """What the run has cost so far: the horizontal axes of the papers' figures."""
        models = self.num_pulls + self.num_updates
        state = self.state
        parts = [state.params, state.buffers, state.counters]
        parts += [] if state.shared is None else [state.shared]
        return {
            "fed/gradients": float(self.num_gradients),
            "fed/models": float(models),
            "fed/bytes": float(models * sum(part.nbytes for part in parts)),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run needs to go on, as tensors and plain data."""
        held = self.aggregator.held
        return {
            "version": self.state.version,
            "versions": {
                version: _state_to_dict(state)
                for version, state in (self.versions | self.clients.pulled_versions(held)).items()
            },
            "kept": list(self.versions),
            "clients": self.clients.state_dict(held),
            "aggregator": self.aggregator.state_dict(),
            "dropped": [list(record) for record in self._dropped],
            "failures": [list(failure) for failure in self._failures],
            "num_failures": self.num_failures,
            "failed_in_a_row": self.failed_in_a_row,
            "num_updates": self.num_updates,
            "num_pulls": self.num_pulls,
            "num_gradients": self.num_gradients,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        device = self.state.params.device
        versions = {
            version: _state_from_dict(version, saved, device)
            for version, saved in state["versions"].items()
        }
        self.versions = {version: versions[version] for version in state["kept"]}
        self.state = versions[state["version"]]
        for update in self.clients.load_state_dict(state["clients"], versions, device):
            self.aggregator.receive(update)
        self.aggregator.load_state_dict(state["aggregator"])
        self._dropped = [UpdateRecord(*fields) for fields in state["dropped"]]
        self._failures = [FailureRecord(*fields) for fields in state["failures"]]
        self.num_failures = state["num_failures"]
        self.failed_in_a_row = state["failed_in_a_row"]
        self.num_updates = state["num_updates"]
        self.num_pulls = state["num_pulls"]
        self.num_gradients = state["num_gradients"]


def _state_to_dict(state: ServerState) -> dict[str, Any]:
    return {
        "params": state.params,
        "buffers": state.buffers,
        "counters": state.counters,
        "shared": state.shared,
    }


def _state_from_dict(version: int, saved: dict[str, Any], device: Any) -> ServerState:
    shared = saved["shared"]
    return ServerState(
        version=version,
        params=saved["params"].to(device),
        buffers=saved["buffers"].to(device),
        counters=saved["counters"].to(device),
        shared=None if shared is None else shared.to(device),
    )


def _brief(value: object) -> str:
    if isinstance(value, ServerState):
        return f"version {value.version}"
    return type(value).__name__
