"""A local run from its dispatch until the server is done with it."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from fedlight.executors.base import ClientError, Job, Outcome
from fedlight.executors.large_updates import LargeUpdate
from fedlight.types import LocalResult, LoggedAs, LoggedValue

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedlight.executors.pool import Pool
    from fedlight.types import ServerState, Task


class Status(Enum):
    """Where a local run stands."""

    OPEN = "open"
    """Dispatched, and not computed yet."""
    COMPUTED = "computed"
    """Its result is here."""
    FAILED = "failed"
    """Its error is here. The client's state is what it was before the run arrived."""
    RELEASED = "released"
    """The server is done with it; only the client's state may be left."""


class PendingRun:
    """A local run that was dispatched; calling it gives its result.

    ::

        OPEN ──> COMPUTED ──> RELEASED
          │ └──> FAILED
          └─────────────────> RELEASED    dropped, and no client state depends on it

    Args:
        pool: The pool that computes it.
        task: The task.
        pulled: The version that the client pulled; None if nobody needs it any more.
        after: The earlier run of the same client whose state this one reads, or None.

    Attributes:
        status: Where it stands.
        arrived: Whether its result has reached the server.
        fallback: The earlier run whose client state stays if this one fails, or None.
        error: Why it failed, or None.
    """

    __slots__ = (
        "_client_state",
        "_pool",
        "_preview",
        "_result",
        "after",
        "arrived",
        "error",
        "fallback",
        "pulled",
        "status",
        "task",
    )

    def __init__(
        self,
        pool: Pool,
        task: Task,
        pulled: ServerState | None,
        after: PendingRun | None = None,
    ) -> None:
        self.task = task
        self.status = Status.OPEN
        self.pulled = pulled
        self.after = after
        self.arrived = False
        self.fallback: PendingRun | None = None
        self.error: ClientError | None = None
        self._pool = pool
        self._result: LocalResult | None = None
        self._client_state: Tensor | None = None
        self._preview: Outcome | None = None

    def __call__(self) -> LocalResult:
        """The result; see `outcome`.

        Raises:
            ClientError: The run failed.
        """
        result = self._result if self._result is not None else self.outcome()
        if isinstance(result, ClientError):
            raise result
        return result

    def outcome(self) -> Outcome:
        """The result or the error.

        Looking at an open run computes it apart, and what it gives is not kept as the run's own:
        who is computed together must not depend on who looks (`Pool`).
        """
        if self.status is Status.OPEN:
            if self._preview is None:
                self._pool.preview([self])
            if self.status is Status.OPEN:
                assert self._preview is not None
                return self._preview
        if self.error is not None:
            return self.error
        assert self._result is not None, "the result was released"
        return self._result

    def client_state(self) -> Tensor | None:
        """c_i after the run, shape ``[P]``, also once the rest is released; None for zeros.

        After a run that failed it is what it was before the run's arrival.
        """
        if self.status is Status.OPEN:
            outcome = self.outcome()
            if self.status is Status.OPEN:
                if isinstance(outcome, LocalResult):
                    return outcome.client_state
                return None if self.fallback is None else self.fallback.client_state()
        if self.fallback is not None:
            state = self.fallback.client_state()
            if self.fallback.unresolved() is not None:
                return state  # from a preview
            self._client_state, self.fallback = state, None
        return self._client_state

    def unresolved(self) -> PendingRun | None:
        """The run that has to be computed before the client's state after this one is known."""
        run: PendingRun | None = self
        while run is not None and run.status is not Status.OPEN:
            run = run.fallback
        return run

    def waits_for(self) -> PendingRun | None:
        """The run that has to be computed before this one, whose client state it reads."""
        return None if self.after is None else self.after.unresolved()

    def job(self) -> Job:
        """What an executor needs to compute it."""
        assert self.pulled is not None
        state = None if self.after is None else self.after.client_state()
        return Job(self.task, self.pulled, state)

    def arrive(self, before: PendingRun | None) -> None:
        """The result reaches the server; until then the client's state was that after `before`."""
        self.arrived = True
        if self.status is Status.OPEN or self.error is not None:
            self.fallback = before

    def preview(self, outcome: Outcome) -> None:
        """Take an outcome for those who look at it early."""
        self._preview = outcome

    def finish(self, outcome: Outcome) -> None:
        """Take the outcome, and let go of the earlier run that it was computed after."""
        self.after = self._preview = None
        if isinstance(outcome, ClientError):
            self.status, self.error = Status.FAILED, outcome
            return
        self.status, self._result = Status.COMPUTED, outcome
        self._client_state, self.fallback = outcome.client_state, None

    def release(self) -> None:
        """Let go of the result once the server is done with it; the client's state stays."""
        if self.status is not Status.FAILED:
            self.status = Status.RELEASED
        self._result = self.pulled = self._preview = None

    def state_dict(self) -> dict[str, Any]:
        """The run as plain data; tensors are copied out of the block of their stack."""
        result = self._result
        return {
            "task": self.task._asdict(),
            "status": self.status.value,
            "arrived": self.arrived,
            "waiting": self._pool.waits(self),
            "pulled": self.pulled is not None,
            "after": None if self.after is None else self.after.task.serial,
            "fallback": None if self.fallback is None else self.fallback.task.serial,
            "error": None if self.error is None else _error_to_list(self.error),
            "client_state": _copied(self._client_state),
            "result": None
            if result is None
            else {
                "delta": result.delta.clone(),
                "buffers": result.buffers.clone(),
                "counters": result.counters.clone(),
                "metrics": {name: _plain(value) for name, value in result.metrics.items()},
                "clipped_from": result.clipped_from,
            },
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Take up all but the references to other runs.

        Args:
            state: The result of `state_dict`.
            device: Where the result's tensors belong.
        """
        self.status, self.arrived = Status(state["status"]), state["arrived"]
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
                metrics={name: _logged(*value) for name, value in result["metrics"].items()},
                client_state=self._client_state,
                clipped_from=result["clipped_from"],
            )


def _error_to_list(error: ClientError) -> list[Any]:
    """An error as plain data, with its cause in words."""
    lines = [] if error.__cause__ is None else traceback.format_exception(error.__cause__)
    words = getattr(error, "__notes__", [])
    return [isinstance(error, LargeUpdate), error.reason, "".join([*lines, *words])]


def _error_from_list(task: Task, large: bool, reason: str, words: str) -> ClientError:
    """The error that `_error_to_list` made plain data of."""
    error = (LargeUpdate if large else ClientError)(task, reason)
    if words:
        error.add_note(words)
    return error


def _plain(value: LoggedValue) -> list[Any]:
    """A logged value as plain data."""
    total, weight, how = value
    return [total, weight] if how is None else [total, weight, list(how)]


def _logged(total: float, weight: float, how: Sequence[Any] | None = None) -> LoggedValue:
    """The value that `_plain` made plain data of."""
    return LoggedValue(total, weight, None if how is None else LoggedAs(*how))


def _copied(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()
