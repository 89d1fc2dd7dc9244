"""The clients' local runs and states, as the server sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedlight.clients.pending import PendingRun, Status
from fedlight.clients.pool import Pool
from fedlight.types import ClientUpdate, ServerState, Task, new_record, with_chunk

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedlight.executors.base import ClientError
    from fedlight.types import Federation


class Clients:
    """Keeps each local run from its dispatch until the server has used its result.

    A client state (SCAFFOLD's c_i) is read when a task is dispatched and replaced when it arrives.
    Both values may be computed later, so a state is represented by the local run that leaves it.

    Args:
        pool: Computes the local runs.
        federation: All clients.
        keep_states: Whether clients keep a state between their tasks.
    """

    def __init__(self, pool: Pool, federation: Federation, keep_states: bool) -> None:
        self.pool = pool
        self._num_examples: list[int] = federation.num_examples.tolist()
        self._shard_sizes = federation.shard_sizes
        self._keep_states = keep_states
        self._in_flight: dict[int, PendingRun] = {}
        self._states: dict[int, PendingRun] = {}  # by client: the run that leaves its state
        self._replaced: dict[int, PendingRun] = {}  # by serial: the run whose state was replaced

    def dispatch(self, task: Task, pulled: ServerState) -> None:
        """Start the local run of a client that pulls a version."""
        after = self._states.get(task.client_id) if self._keep_states else None
        self._in_flight[task.serial] = self.pool.submit(task, pulled, after)

    def arrive(self, task: Task) -> ClientUpdate:
        """Replace the client state, and return the update of the task, computed or not."""
        run = self._in_flight.pop(task.serial)
        self.pool.arrived(run)
        if self._keep_states:
            before = self._states.get(task.client_id)
            if before is not None:
                self._replaced[task.serial] = before
            self._states[task.client_id] = run
            # A run that has succeeded leaves a state of its own. An open one may still fail.
            if run.status is Status.OPEN or run.error is not None:
                run.fallback = before
        return self._update(run)

    def cancel(self, task: Task) -> None:
        """Forget a run that was stopped before it arrived; it is not computed."""
        run = self._in_flight.pop(task.serial)
        self.pool.discard(run)
        run.release()

    def cut(self, task: Task) -> None:
        """Let a run end earlier, with fewer local steps.

        Args:
            task: Its task as it is now.
        """
        run = self._in_flight[task.serial]
        run.task = task
        self.pool.adopt(run)

    def open_runs(self, updates: Iterable[ClientUpdate]) -> list[PendingRun]:
        """Return the runs of updates that are not computed yet, or not through the channel."""
        runs = [_run_of(update) for update in updates]
        return [run for run in runs if not run.ready]

    def unresolved_states(self, updates: Iterable[ClientUpdate]) -> list[PendingRun]:
        """Return the runs to be computed before the states that updates replaced are known."""
        if not self._replaced:
            return []
        replaced = [self._replaced.get(update.task.serial) for update in updates]
        found = [None if run is None else run.unresolved() for run in replaced]
        return [run for run in found if run is not None]

    def failure(self, update: ClientUpdate) -> ClientError | None:
        """Return why the run of an update failed, or None if it did not fail."""
        return _run_of(update).error

    def fail(self, update: ClientUpdate) -> None:
        """Release a failed update; the client state does not change."""
        self.release([update])

    def drop(self, update: ClientUpdate) -> None:
        """Release a dropped update, which is computed only if a client state depends on it."""
        run = _run_of(update)
        kept = self.pool.discard(run)
        if self._keep_states:
            self._replaced.pop(update.task.serial, None)
        if not kept and (not self._keep_states or run.status is not Status.OPEN):
            run.release()

    def release(self, updates: Iterable[ClientUpdate]) -> None:
        """Release the results of updates that the server has used."""
        for update in updates:
            if self._keep_states:
                self._replaced.pop(update.task.serial, None)
            _run_of(update).release()

    def state(self, client_id: int) -> Tensor | None:
        """Return c_i as the client keeps it, shape ``[P]``; None if it never changed."""
        run = self._states.get(client_id)
        return None if run is None else run.client_state()

    def memory(self, client_id: int) -> Tensor | None:
        """Return the channel's memory of a client, shape ``[P]``; None for none."""
        return None if self.pool.order is None else self.pool.order.memory(client_id)

    def settle(self) -> None:
        """Compute the state of each client, as long as there is an executor."""
        found = [run.unresolved() for run in self._states.values()]
        waiting = {run.task.serial: run for run in found if run is not None}
        if waiting:
            self.pool.preview(list(waiting.values()))
        for run in self._states.values():
            run.client_state()

    def pulled(self, held: Iterable[ClientUpdate]) -> dict[int, ServerState]:
        """Return what was pulled by each run not used yet, by the serial number of its task.

        Args:
            held: Updates that the aggregator holds.
        """
        runs = self._reachable(held)
        return {run.task.serial: run.pulled for run in runs if run.pulled is not None}

    def _reachable(self, held: Iterable[ClientUpdate] = ()) -> Iterator[PendingRun]:
        """Yield all runs that are still needed, each once."""
        roots = [*self._in_flight.values(), *self._states.values(), *self._replaced.values()]
        roots += [_run_of(update) for update in held]
        if self.pool.order is not None:
            roots += self.pool.order.unsent()
        seen: set[int] = set()
        while roots:
            run = roots.pop()
            if run.task.serial not in seen:
                seen.add(run.task.serial)
                roots += [other for other in (run.after, run.fallback) if other is not None]
                yield run

    def state_dict(self, held: Iterable[ClientUpdate]) -> dict[str, Any]:
        """Return all runs that are still needed, as plain data and tensors.

        Args:
            held: Updates that the aggregator holds, in its order.
        """
        held = list(held)
        self.pool.settle()
        return {
            "runs": {run.task.serial: run.state_dict() for run in self._reachable(held)},
            "held": [update.task.serial for update in held],
            "in_flight": list(self._in_flight),
            "states": {client: run.task.serial for client, run in self._states.items()},
            "replaced": {serial: run.task.serial for serial, run in self._replaced.items()},
            "computed": [self.pool.num_batches, self.pool.num_computed],
            "channel": None if self.pool.order is None else self.pool.order.state_dict(),
        }

    def load_state_dict(
        self,
        state: dict[str, Any],
        versions: Mapping[int, ServerState],
        device: torch.device,
        settings: Mapping[int, Any] = MappingProxyType({}),
    ) -> list[ClientUpdate]:
        """Restore what `state_dict` returned, and return the updates that the aggregator held.

        Args:
            state: The runs.
            versions: The versions of the server's model that were pulled by runs not used yet.
            device: The device of the results' tensors.
            settings: Settings of the module by serial number, for runs that have others than the
                version that they pulled.
        """
        runs: dict[int, PendingRun] = {}
        # By serial, since a run refers to an earlier one of the same client.
        for serial in sorted(state["runs"]):
            saved = state["runs"][serial]
            task = with_chunk(Task(**saved["task"]))
            pulled = versions[task.pulled_version] if saved["pulled"] else None
            if pulled is not None and serial in settings:
                pulled = replace(pulled, settings=settings[serial])
            run = PendingRun(self.pool, task, pulled, runs.get(saved["after"]))
            run.load_state_dict(saved, device)
            if saved["waiting"]:
                self.pool.adopt(run)
            runs[serial] = run
        # A fallback may have a later serial: the order of arrivals is not that of the dispatches.
        for serial, saved in state["runs"].items():
            runs[serial].fallback = runs.get(saved["fallback"])
        self._in_flight = {serial: runs[serial] for serial in state["in_flight"]}
        self._states = {client: runs[serial] for client, serial in state["states"].items()}
        self._replaced = {serial: runs[other] for serial, other in state["replaced"].items()}
        self.pool.num_ahead = sum(run.status is not Status.OPEN for run in self._in_flight.values())
        self.pool.num_batches, self.pool.num_computed = state["computed"]
        if self.pool.order is not None:
            self.pool.order.load_state_dict(state["channel"], runs, device)
        return [self._update(runs[serial]) for serial in state["held"]]

    def _update(self, run: PendingRun) -> ClientUpdate:
        task = run.task
        before = self._replaced.get(task.serial)
        replaced = None if before is None else before.client_state
        examples = self._num_examples[task.client_id]
        chunk = task.chunk
        if chunk is not None and chunk.shard is not None:
            assert self._shard_sizes is not None
            examples = int(self._shard_sizes[chunk.shard])
        return new_record(ClientUpdate, (task, examples, run, replaced, run.pulled))


def _run_of(update: ClientUpdate) -> PendingRun:
    assert isinstance(update.result, PendingRun)
    return update.result
