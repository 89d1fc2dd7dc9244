"""A client's failure in the form in which another process sends it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedlight.executors.base import ClientError

if TYPE_CHECKING:
    from fedlight.types import Task


@dataclass(frozen=True, slots=True)
class Failure:
    """A `ClientError` without the exceptions behind it, which may not pickle.

    Attributes:
        reason: The reason in words.
        trace: The traceback of the cause; "" if there was none.
    """

    reason: str
    trace: str

    @classmethod
    def of(cls, error: ClientError) -> Failure:
        """The failure of an error, to be sent."""
        cause = error.__cause__
        trace = "" if cause is None else "".join(traceback.format_exception(cause))
        return cls(error.reason, trace)

    def error(self, task: Task, where: str) -> ClientError:
        """The error of a failure that was received.

        Args:
            task: The task that failed.
            where: Where it was computed, for example "a Ray actor".
        """
        cause = RuntimeError(f"in {where}:\n{self.trace}") if self.trace else None
        return ClientError(task, self.reason, cause)
