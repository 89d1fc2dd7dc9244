"""The clients' work as the server sees it: runs in flight, updates arrived, states kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fedlight.executors.base import ClientError
from fedlight.executors.pool import PendingResult, WorkPool
from fedlight.types import ClientUpdate, ServerState, Task

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor


class Clients:
    """Keeps each local run from its dispatch until the server has used its result.

    A client's state (SCAFFOLD's c_i) is read when a task is dispatched and written when it
    arrives, though both may be computed later.

    Args:
        pool: Computes the runs.
        num_examples: n_i, shape ``[M]``.
        keep_states: Whether clients keep a state between their tasks.
    """

    def __init__(self, pool: WorkPool, num_examples: NDArray[np.int64], keep_states: bool) -> None:
        self.pool = pool
        self._num_examples = num_examples
        self._keep_states = keep_states
        self._in_flight: dict[int, PendingResult] = {}
        self._states: dict[int, PendingResult] = {}
        self._replaced: dict[int, PendingResult] = {}

    def dispatch(self, task: Task, pulled: ServerState) -> None:
        """A client pulls a version and starts to work."""
        after = self._states.get(task.client_id) if self._keep_states else None
        self._in_flight[task.serial] = self.pool.submit(task, pulled, after)

    def arrive(self, task: Task) -> ClientUpdate:
        """A task's update; not computed yet. The client's state is written now."""
        pending = self._in_flight.pop(task.serial)
        if self._keep_states:
            before = self._states.get(task.client_id)
            if before is not None:
                self._replaced[task.serial] = before
            pending.replaces(before)
            self._states[task.client_id] = pending
        return self._update(pending)

    def failure(self, update: ClientUpdate) -> ClientError | None:
        """Why an update has no result; computes it, with what else is in flight."""
        return _pending(update).failure()

    def fail(self, update: ClientUpdate) -> None:
        """An update has no result: the client's state is what it was before."""
        self._replaced.pop(update.task.serial, None)
        _pending(update).settle()

    def drop(self, update: ClientUpdate) -> None:
        """The server does not use an update: it is computed only if a client's state needs it."""
        pending = _pending(update)
        self._replaced.pop(update.task.serial, None)
        pending.start = None
        self.pool.discard(pending)

    def release(self, updates: Iterable[ClientUpdate]) -> None:
        """The server has used updates; what is not needed any more goes."""
        for update in updates:
            if self._keep_states:
                self._replaced.pop(update.task.serial, None)
            _pending(update).release()

    def state(self, client_id: int) -> Tensor | None:
        """c_i as the client keeps it, shape ``[P]``; None where it never changed."""
        pending = self._states.get(client_id)
        return None if pending is None else pending.client_state()

    def settle(self) -> None:
        """Compute the states of all clients whose last task has arrived."""
        for pending in self._states.values():
            pending.client_state()

    def pulled_versions(self, held: Iterable[ClientUpdate]) -> dict[int, ServerState]:
        """The versions that runs not used yet have pulled."""
        pulled = {}
        for pending in self._reachable(held):
            version = pending.pulled or pending.start
            if version is not None:
                pulled[version.version] = version
        return pulled

    def _reachable(self, held: Iterable[ClientUpdate] = ()) -> Iterator[PendingResult]:
        """All runs that are still needed, each once."""
        roots = [*self._in_flight.values(), *self._states.values(), *self._replaced.values()]
        roots += [_pending(update) for update in held]
        seen: set[int] = set()
        while roots:
            pending = roots.pop()
            if pending.task.serial not in seen:
                seen.add(pending.task.serial)
                roots += [run for run in (pending.after, pending.fallback) if run is not None]
                yield pending

    def state_dict(self, held: Iterable[ClientUpdate]) -> dict[str, Any]:
        """All runs that are still needed, as plain data and tensors.

        Args:
            held: Updates that the aggregator holds, in its order.
        """
        held = list(held)
        return {
            "runs": {p.task.serial: p.state_dict() for p in self._reachable(held)},
            "held": [update.task.serial for update in held],
            "in_flight": list(self._in_flight),
            "states": {client: pending.task.serial for client, pending in self._states.items()},
            "replaced": {serial: p.task.serial for serial, p in self._replaced.items()},
            "computed": [self.pool.num_batches, self.pool.num_computed],
        }

    def load_state_dict(
        self,
        state: dict[str, Any],
        versions: Mapping[int, ServerState],
        device: torch.device,
    ) -> list[ClientUpdate]:
        """Take up what `state_dict` gave; returns the updates that the aggregator held.

        Args:
            state: The runs.
            versions: The versions of the server's model that runs not used yet have pulled.
            device: Where the results' tensors belong.
        """
        runs: dict[int, PendingResult] = {}
        for serial in sorted(state["runs"]):  # an earlier run of the same client comes first
            saved = state["runs"][serial]
            task = Task(**saved["task"])
            pulled = versions[task.pulled_version] if saved["open"] else None
            pending = PendingResult(self.pool, task, pulled, runs.get(saved["after"]))
            pending.load_state_dict(saved, device)
            pending.start = versions[task.pulled_version] if saved["start"] else None
            if saved["waiting"]:
                self.pool.adopt(pending)
            runs[serial] = pending
        for serial, saved in state["runs"].items():
            runs[serial].fallback = runs.get(saved["fallback"])
        self._in_flight = {serial: runs[serial] for serial in state["in_flight"]}
        self._states = {client: runs[serial] for client, serial in state["states"].items()}
        self._replaced = {serial: runs[other] for serial, other in state["replaced"].items()}
        self.pool.num_batches, self.pool.num_computed = state["computed"]
        return [self._update(runs[serial]) for serial in state["held"]]

    def _update(self, pending: PendingResult) -> ClientUpdate:
        task = pending.task
        before = self._replaced.get(task.serial) if self._keep_states else None
        replaced = None if before is None else before.client_state
        examples = int(self._num_examples[task.client_id])
        return ClientUpdate(task, examples, pending, replaced, pending.start)


def _pending(update: ClientUpdate) -> PendingResult:
    assert isinstance(update.result, PendingResult)
    return update.result
