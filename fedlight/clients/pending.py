"""A local run, from its dispatch until the server no longer needs it."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from fedlight.clients.large_updates import LargeUpdate
from fedlight.executors.base import ClientError, Job, Outcome
from fedlight.types import LocalResult, LoggedAs, LoggedValue

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedlight.clients.pool import Pool
    from fedlight.types import ServerState, Task

_TENSORS = ("delta", "buffers", "counters")
_LOST_HALF = "the first half of its task has failed: "


class Status(Enum):
    """The states of a local run."""

    OPEN = "open"
    """Dispatched, and not computed yet."""
    COMPUTED = "computed"
    """Its result is known."""
    FAILED = "failed"
    """It has an error in place of a result, and the client state does not change."""
    RELEASED = "released"
    """The server no longer needs it; only the client state may be left."""


@dataclass(slots=True, eq=False, repr=False)
class PendingRun:
    """A local run that was dispatched; calling it returns its result.

    ::

        OPEN ──> COMPUTED ──> RELEASED
          │ └──> FAILED
          └─────────────────> RELEASED    if dropped, and no client state depends on it

    Attributes:
        pool: The pool that computes it.
        task: The task.
        pulled: The version that the client pulled; None if it is no longer needed.
        after: The earlier local run of the same client whose state this one reads, or None.
        status: Its state.
        arrived: Whether its update has reached the server.
        fallback: The earlier local run whose client state remains if this one fails, or None.
        error: Why it failed, or None.
        sent: Whether its result has been through the channel. Only with a memory does the channel
            wait until the client's earlier updates are sent.
        preview: The outcome of an open run for those who read it early, or None.
    """

    pool: Pool
    task: Task
    pulled: ServerState | None
    after: PendingRun | None = None
    status: Status = field(default=Status.OPEN, init=False)
    arrived: bool = field(default=False, init=False)
    fallback: PendingRun | None = field(default=None, init=False)
    error: ClientError | None = field(default=None, init=False)
    sent: bool = field(init=False)
    preview: Outcome | None = field(default=None, init=False)
    _result: LocalResult | None = field(default=None, init=False)
    _client_state: Tensor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # A client sends nothing after a first half.
        self.sent = self.pool.order is None or self.task.is_first_half

    def __call__(self) -> LocalResult:
        """Return the result; see `outcome`.

        Raises:
            ClientError: The local run failed.
        """
        result = self._result if self.sent and self._result is not None else self.outcome()
        if isinstance(result, ClientError):
            raise result
        return result

    @property
    def known(self) -> bool:
        """Whether `computed` has an answer already, perhaps one for those who read it early."""
        return self.status is not Status.OPEN or self.preview is not None

    @property
    def ready(self) -> bool:
        """Whether the outcome is known, as the server gets it."""
        return self.status is not Status.OPEN and (self.sent or self.error is not None)

    def outcome(self) -> Outcome:
        """Return the result or the error; with a channel that has a memory, as it arrives."""
        outcome = self.computed()
        if self.sent or isinstance(outcome, ClientError):
            return outcome
        return self.pool.look_ahead(self)

    def computed(self) -> Outcome:
        """Return the result or the error, before a channel with a memory.

        For an open run the outcome is computed apart and not kept as the run's own, because the
        members of a stack must not depend on who reads a result (`Pool`).
        """
        if self.status is Status.OPEN:
            if self.preview is None:
                self.pool.preview([self])
            if self.status is Status.OPEN:
                assert self.preview is not None
                return self.preview
        if self.error is not None:
            return self.error
        if self._result is None:
            raise RuntimeError(
                f"the result of task {self.task.serial} (client {self.task.client_id}) was "
                "released once the server had used or dropped it; read it in on_update or "
                "on_drop, and keep what you need of it"
            )
        return self._result

    def client_state(self) -> Tensor | None:
        """Return c_i after the run, shape ``[P]``, also after the release; None for zeros.

        If the run failed, it is the state from before its arrival.
        """
        if self.status is Status.OPEN:
            outcome = self.computed()
            if self.status is Status.OPEN:
                if isinstance(outcome, LocalResult):
                    return outcome.client_state
                return None if self.fallback is None else self.fallback.client_state()
        if self.fallback is not None:
            state = self.fallback.client_state()
            if self.fallback.unresolved() is not None:
                return state  # from a preview, so it may differ in its last bits and is not kept
            self._client_state, self.fallback = state, None
        return self._client_state

    def unresolved(self) -> PendingRun | None:
        """Return the run that must be computed before the client state is known, or None."""
        run: PendingRun | None = self
        while run is not None and run.status is not Status.OPEN:
            run = run.fallback
        return run

    def lost_half(self) -> ClientError | None:
        """The error of a second half whose client has no model, since the first half has failed."""
        before = None if self.after is None else self.after.error
        if before is None or not self.task.is_second_half:
            return None
        # The run before the second try of a second half is the first try.
        if not before.task.is_first_half and not before.reason.startswith(_LOST_HALF):
            return None
        reason = before.reason.removeprefix(_LOST_HALF)
        return ClientError(self.task, _LOST_HALF + reason, before.__cause__)

    def waits_for(self) -> PendingRun | None:
        """Return the run to be computed before this one, whose client state it reads, or None."""
        return None if self.after is None else self.after.unresolved()

    def job(self) -> Job:
        """Return the job for the executor."""
        assert self.pulled is not None
        state = None if self.after is None else self.after.client_state()
        return Job(self.task, self.pulled, state)

    def finish(self, outcome: Outcome) -> None:
        """Store the outcome, and release the reference to the earlier run."""
        # Each run refers to the one before it: kept, they would all stay in memory.
        self.after = self.preview = None
        if isinstance(outcome, ClientError):
            self.status, self.error = Status.FAILED, outcome
            return
        self.status, self._result = Status.COMPUTED, outcome
        self._client_state, self.fallback = outcome.client_state, None

    def send(self, outcome: Outcome) -> None:
        """Store the outcome of a channel with a memory in place of the result."""
        self.sent = True
        if isinstance(outcome, ClientError):
            self.status, self.error, self._result = Status.FAILED, outcome, None
        else:
            self._result = outcome

    def release(self) -> None:
        """Release the result once the server no longer needs it; the client state stays."""
        if self.status is not Status.FAILED:
            self.status = Status.RELEASED
        self._result = self.pulled = self.preview = None

    def state_dict(self) -> dict[str, Any]:
        """Return the run as plain data.

        Tensors are copied, because each is a view of a whole stack's block, which would be saved.
        The copies are on the CPU: another device may have no room for them.
        """
        result = self._result
        return {
            "task": self.task._asdict(),
            "status": self.status.value,
            "arrived": self.arrived,
            "sent": self.sent,
            "waiting": self.pool.waits(self),
            "pulled": self.pulled is not None,
            "after": None if self.after is None else self.after.task.serial,
            "fallback": None if self.fallback is None else self.fallback.task.serial,
            "error": None if self.error is None else _error_to_list(self.error),
            "client_state": _copied(self._client_state),
            "result": None
            if result is None
            else {
                **{name: _copied(getattr(result, name)) for name in _TENSORS},
                "metrics": {name: _plain(value) for name, value in result.metrics.items()},
                "clipped_from": result.clipped_from,
            },
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore everything except the references to other runs.

        Args:
            state: The result of `state_dict`.
            device: The device of the result's tensors.
        """
        self.status, self.arrived = Status(state["status"]), state["arrived"]
        self.sent = state.get("sent", True)  # older checkpoints know no channel
        if state["error"] is not None:
            self.error = _error_from_list(self.task, *state["error"])
        if state["client_state"] is not None:
            self._client_state = state["client_state"].to(device)
        result = state["result"]
        if result is not None:
            self._result = LocalResult(
                **{name: result[name].to(device) for name in _TENSORS},
                metrics={name: _logged(*value) for name, value in result["metrics"].items()},
                client_state=self._client_state,
                clipped_from=result["clipped_from"],
            )


def earliest(run: PendingRun) -> PendingRun:
    """The run that has to be computed first for another one, or that one itself."""
    while (earlier := run.waits_for()) is not None:
        run = earlier
    return run


def _error_to_list(error: ClientError) -> list[Any]:
    """Return an error as plain data, with its traceback as text."""
    lines = [] if error.__cause__ is None else traceback.format_exception(error.__cause__)
    words = getattr(error, "__notes__", [])
    return [isinstance(error, LargeUpdate), error.reason, "".join([*lines, *words])]


def _error_from_list(task: Task, large: bool, reason: str, words: str) -> ClientError:
    """Return the error that `_error_to_list` turned into plain data."""
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
    return None if tensor is None else tensor.to("cpu", copy=True)
