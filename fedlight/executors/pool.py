"""Computes late and in bulk: nothing before it is needed, then all that is in flight at once."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedlight.executors.base import Executor, Job
from fedlight.types import LocalResult, LoggedValue

if TYPE_CHECKING:
    import torch
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

    __slots__ = ("_client_state", "_pool", "_result", "after", "pulled", "start", "task")

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
        self._pool = pool
        self._result: LocalResult | None = None
        self._client_state: Tensor | None = None

    @property
    def done(self) -> bool:
        """Whether it was computed."""
        return self.pulled is None

    def __call__(self) -> LocalResult:
        """The result; computes it, with what else is in flight, where it was not needed before."""
        if not self.done:
            self._pool.compute(self)
        assert self._result is not None, "the result was released"
        return self._result

    def client_state(self) -> Tensor | None:
        """The client's state after the run; stays when the rest is released."""
        if not self.done:
            self._pool.compute(self)
        return self._client_state

    def job(self) -> Job:
        """The job; the run that it reads the client's state from is computed by now."""
        assert self.pulled is not None
        state = None if self.after is None else self.after.client_state()
        return Job(self.task, self.pulled, state)

    def finish(self, result: LocalResult) -> None:
        """Take the result, and let go of all that was needed to compute it."""
        self._result, self._client_state = result, result.client_state
        self.pulled = self.after = None

    def release(self) -> None:
        """Let go of the result once the server has used it; the client's state stays."""
        self._result = self.start = None

    def state_dict(self) -> dict[str, Any]:
        """The run as plain data; tensors are copied out of the block of their stack."""
        result = self._result
        return {
            "task": asdict(self.task),
            "after": None if self.after is None else self.after.task.serial,
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
            },
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Take up a run, whose tensors belong on `device`."""
        if not state["open"]:
            self.pulled = None
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
            )


class WorkPool:
    """Holds the local runs in flight and computes them when the first result is needed.

    A run that reads a client's state is computed after the earlier run that left it.

    Args:
        executor: Who computes.
        horizon: Virtual time after which nothing arrives any more; what would, is not computed.
    """

    def __init__(self, executor: Executor, horizon: float = math.inf) -> None:
        self._executor = executor
        self._horizon = horizon
        self._open: dict[int, PendingResult] = {}
        self.num_batches = 0
        self.num_computed = 0

    def submit(
        self, task: Task, pulled: ServerState, after: PendingResult | None = None
    ) -> PendingResult:
        """Put a dispatched task into the pool."""
        pending = PendingResult(self, task, pulled, after)
        self._open[task.serial] = pending
        return pending

    def adopt(self, pending: PendingResult) -> None:
        """Take in a run that was waiting in another pool."""
        self._open[pending.task.serial] = pending

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
            results = self._executor.run([pending.job() for pending in batch])
            for pending, result in zip(batch, results, strict=True):
                pending.finish(result)
                self._open.pop(pending.task.serial, None)
            self.num_batches += 1
            self.num_computed += len(batch)

    def _batch(self, target: PendingResult) -> list[PendingResult]:
        """`target`, or the earliest run that it waits for; then the others by their arrival."""
        first = target
        while first.after is not None and not first.after.done:
            first = first.after
        if self._executor.max_batch == 1:
            return [first]
        ready = [
            pending
            for pending in self._open.values()
            if pending is not first
            and pending.task.arrives_at <= self._horizon
            and (pending.after is None or pending.after.done)
        ]
        ready.sort(key=lambda pending: (pending.task.arrives_at, pending.task.serial))
        return [first, *ready[: self._executor.max_batch - 1]]


def _copied(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()
