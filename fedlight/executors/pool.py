"""Computes late and in bulk: nothing before it is needed, then all that is in flight at once."""

from __future__ import annotations

import heapq
import math
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fedlight.executors.base import ClientError, Executor, Job, Outcome
from fedlight.types import LocalResult, LoggedValue

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import ServerState, Task


class PendingResult:
    """A local run that was dispatched; calling it gives its result.

    Args:
        pool: The pool that computes it.
        task: The task.
        pulled: The version that the client pulled; None where the run was computed already.
        after: The earlier run of the same client whose state this one reads, or None.
    """

    __slots__ = (
        "_client_state",
        "_pool",
        "_result",
        "after",
        "error",
        "fallback",
        "pulled",
        "start",
        "task",
    )

    def __init__(
        self,
        pool: WorkPool,
        task: Task,
        pulled: ServerState | None,
        after: PendingResult | None = None,
    ) -> None:
        self.task = task
        self.pulled = pulled
        self.start = pulled  # stays after the computation, for rules that mix the client's model
        self.after = after
        self.fallback: PendingResult | None = None  # whose state stays where this one fails
        self.error: ClientError | None = None
        self._pool = pool
        self._result: LocalResult | None = None
        self._client_state: Tensor | None = None

    @property
    def done(self) -> bool:
        """Whether it was computed."""
        return self.pulled is None

    def __call__(self) -> LocalResult:
        """The result; computes it, with what else is in flight, where it was not needed before.

        Raises:
            ClientError: The run failed.
        """
        if self._result is None:
            failure = self.failure()
            if failure is not None:
                raise failure
            assert self._result is not None, "the result was released"
        return self._result

    def failure(self) -> ClientError | None:
        """Why the run failed, or None where it did not; computes it where that is still due."""
        if self.pulled is not None:
            self._pool.compute(self)
        return self.error

    def client_state(self) -> Tensor | None:
        """The client's state after the run; stays when the rest is released.

        After a run that failed it is what it was before the run's arrival.
        """
        if not self.done:
            self._pool.compute(self)
        if self.fallback is not None:  # it is asked for from the arrival on, so this is settled
            self._client_state, self.fallback = self.fallback.client_state(), None
        return self._client_state

    def waits_for(self) -> PendingResult | None:
        """The run that has to be computed first, since its client's state is read."""
        earlier = self.after
        while earlier is not None and earlier.pulled is None:
            earlier = earlier.fallback
        return earlier

    def job(self) -> Job:
        """The job; the run that it reads the client's state from is computed by now."""
        assert self.pulled is not None
        state = None if self.after is None else self.after.client_state()
        return Job(self.task, self.pulled, state)

    def finish(self, outcome: Outcome) -> None:
        """Take the result or the error, and let go of all that was needed to compute it."""
        self.pulled = self.after = None
        if isinstance(outcome, ClientError):
            self.error = outcome
        else:
            self._result, self._client_state = outcome, outcome.client_state
            self.fallback = None

    def replaces(self, before: PendingResult | None) -> None:
        """The run has arrived, when the client's state was that after the run `before`."""
        if not self.done or self.error is not None:
            self.fallback = before

    def settle(self) -> None:
        """Of a run that failed: keep the client's state, and no run of before."""
        self.client_state()
        self.start = None

    def release(self) -> None:
        """Let go of the result once the server has used it; the client's state stays."""
        self._result = self.start = None

    def state_dict(self) -> dict[str, Any]:
        """The run as plain data; tensors are copied out of the block of their stack."""
        result = self._result
        return {
            "task": self.task._asdict(),
            "after": None if self.after is None else self.after.task.serial,
            "fallback": None if self.fallback is None else self.fallback.task.serial,
            "error": None if self.error is None else _error_to_list(self.error),
            "open": not self.done,
            "start": self.start is not None,
            "waiting": self._pool.waits(self),
            "client_state": _copied(self._client_state),
            "result": None
            if result is None
            else {
                "delta": result.delta.clone(),
                "buffers": result.buffers.clone(),
                "counters": result.counters.clone(),
                "metrics": {name: list(value) for name, value in result.metrics.items()},
                "clipped_from": result.clipped_from,
            },
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Take up a run, whose tensors belong on `device`."""
        if not state["open"]:
            self.pulled = None
        if state["error"] is not None:
            self.error = _error_from_list(self.task, *state["error"])
        if state["client_state"] is not None:
            self._client_state = state["client_state"].to(device)
        result = state["result"]
        if result is not None:
            self._result = LocalResult(
                delta=result["delta"].to(device),
                buffers=result["buffers"].to(device),
                counters=result["counters"].to(device),
                metrics={name: LoggedValue(*value) for name, value in result["metrics"].items()},
                client_state=self._client_state,
                clipped_from=result["clipped_from"],
            )


class WorkPool:
    """Holds the local runs in flight and computes them when the first result is needed.

    A run that reads a client's state is computed after the earlier run that left it.

    Args:
        executor: Who computes.
        horizon: Virtual time after which nothing arrives any more; what would, is not computed.
        limit: What is done with results that are too large.
        still_to_come: How many arrivals later than a virtual time may still be used, for all that
            is known then; more are not computed before they are asked for.
    """

    def __init__(
        self,
        executor: Executor,
        horizon: float = math.inf,
        limit: NormLimit | None = None,
        still_to_come: Callable[[], tuple[float, float]] = lambda: (0.0, math.inf),
    ) -> None:
        self._executor = executor
        self._horizon = horizon
        self._limit = limit
        self._still_to_come = still_to_come
        self._open: dict[int, PendingResult] = {}
        self._queue: list[tuple[float, int, int]] = []  # by arrival; also of runs gone by now
        self.num_batches = 0
        self.num_computed = 0

    def submit(
        self, task: Task, pulled: ServerState, after: PendingResult | None = None
    ) -> PendingResult:
        """Put a dispatched task into the pool."""
        pending = PendingResult(self, task, pulled, after)
        self.adopt(pending)
        return pending

    def adopt(self, pending: PendingResult) -> None:
        """Take in a run that was waiting in another pool."""
        task = pending.task
        self._open[task.serial] = pending
        if self._executor.max_batch > 1:
            heapq.heappush(self._queue, (task.arrives_at, task.client_id, task.serial))

    def waits(self, pending: PendingResult) -> bool:
        """Whether a run would be computed together with others."""
        return self._open.get(pending.task.serial) is pending

    def discard(self, pending: PendingResult) -> None:
        """Forget a run whose result nobody needs, unless a client's state hangs on it."""
        if self._open.get(pending.task.serial) is pending:
            del self._open[pending.task.serial]

    def compute(self, target: PendingResult) -> None:
        """Compute `target`, and with it as much of what is in flight as the executor takes."""
        self._open.setdefault(target.task.serial, target)
        while not target.done:
            batch = self._batch(target)
            outcomes = self._executor.run([pending.job() for pending in batch])
            for pending, outcome in zip(batch, outcomes, strict=True):
                if self._limit is not None and isinstance(outcome, LocalResult):
                    outcome = self._limit(pending.task, outcome)
                pending.finish(outcome)
                self._open.pop(pending.task.serial, None)
            self.num_batches += 1
            self.num_computed += len(batch)

    def _batch(self, target: PendingResult) -> list[PendingResult]:
        """`target`, or the earliest run that it waits for; then the others by their arrival.

        At equal times they come by client, as they arrive: so a round's updates are the rows of a
        stack in their order.
        """
        first = target
        while (earlier := first.waits_for()) is not None:
            first = earlier
        batch, later = [first], []
        now, ahead = self._still_to_come()
        while self._queue and len(batch) < self._executor.max_batch:
            entry = self._queue[0]
            pending = self._open.get(entry[-1])
            if pending is not None and pending is not first:
                ahead -= entry[0] > now
                if entry[0] > self._horizon or ahead < 0:
                    break
                if pending.waits_for() is None:
                    batch.append(pending)
                else:
                    later.append(entry)
            heapq.heappop(self._queue)
        for entry in later:
            heapq.heappush(self._queue, entry)
        return batch


class LargeUpdate(ClientError):
    """An update was longer than `max_update_norm` and is dropped."""


class NormLimit:
    """delta <- delta * min(1, C / |delta|), or no delta at all where it is longer than C.

    Args:
        most: C, the largest Euclidean norm.
        clip: Whether a longer one is scaled down, not dropped.
    """

    def __init__(self, most: float, clip: bool) -> None:
        self.most, self.clip = most, clip

    def __call__(self, task: Task, result: LocalResult) -> Outcome:
        """The result as the server takes it."""
        norm = result.update_norm
        if norm <= self.most:
            return result
        if not self.clip:
            reason = f"its update has norm {norm:.6g}, over max_update_norm={self.most:g}"
            return LargeUpdate(task, reason)
        shorter = result.delta * (self.most / norm)
        return result._replace(delta=shorter, clipped_from=norm)


def _error_to_list(error: ClientError) -> list[Any]:
    """An error as plain data, with its cause in words."""
    lines = [] if error.__cause__ is None else traceback.format_exception(error.__cause__)
    words = getattr(error, "__notes__", [])
    return [isinstance(error, LargeUpdate), error.reason, "".join([*lines, *words])]


def _error_from_list(task: Task, large: bool, reason: str, words: str) -> ClientError:
    """What `_error_to_list` made plain data of."""
    error = (LargeUpdate if large else ClientError)(task, reason)
    if words:
        error.add_note(words)
    return error


def _copied(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()
