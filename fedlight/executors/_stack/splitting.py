"""A stack that fails, or for which memory runs out, is split in halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lightning.pytorch.utilities.memory import garbage_collection_cuda

from fedlight.executors.base import (
    ClientError,
    Job,
    Outcome,
    Workplace,
    advised,
    ran_out_of_memory,
)


@dataclass(frozen=True, slots=True)
class Splitting:
    """Computes stacks, and splits those that fail or for which memory runs out.

    Attributes:
        run: Computes a stack.
        reduce: Called with the number of clients that later stacks may hold, if memory ran out.
        workplace: What the local runs share.
    """

    run: Callable[[Sequence[Job]], list[Outcome]]
    reduce: Callable[[int], None]
    workplace: Workplace

    def outcomes(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Compute a stack; if it fails, split it in halves until the failing clients are isolated.

        An error under ``vmap`` does not say whose data caused it.
        """
        try:
            outcomes = self.fitting(jobs)
            if outcomes is not None:
                return outcomes
        except ClientError as error:
            if len(jobs) == 1:
                return [error]
        half = len(jobs) // 2
        return [*self.outcomes(jobs[:half]), *self.outcomes(jobs[half:])]

    def fitting(self, jobs: Sequence[Job]) -> list[Outcome] | None:
        """Compute a stack; None if memory ran out, and later stacks are then half as large."""
        try:
            return self.run(jobs)
        except Exception as error:
            if not ran_out_of_memory(error):
                raise
            if len(jobs) == 1:
                raise advised(error, self.workplace) from error.__cause__
        garbage_collection_cuda()  # not before: the error's traceback holds the stack's tensors
        self.reduce(len(jobs) - len(jobs) // 2)
        return None
