"""The trial of a module: one local step of one client is watched for side effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedlight._module.attributes import own_generators
from fedlight._module.current_stage import moment_of
from fedlight._module.snapshot import Change, NotATensor, Snapshot
from fedlight.executors.base import ClientError, Job, Outcome, Workplace, trial_tasks
from fedlight.executors.sequential import SequentialExecutor


@dataclass(frozen=True, slots=True)
class Trial:
    """The side effects of one local step, which stacked clients would share.

    Attributes:
        module: The name of the module's class.
        failure: The error of the step, or None.
        asks: The attributes of ``self.trainer`` that it has read and that change during a run.
        draws: The random generators that it has drawn from, in words.
        keeps: The attributes in which it has left tensors.
        rereads: Whether the next step reads those tensors, or adds to them.
        changes: All attributes that it has changed.
    """

    module: str
    failure: ClientError | None
    asks: Sequence[str]
    draws: Sequence[str]
    keeps: Sequence[str]
    rereads: bool
    changes: Sequence[str]

    @property
    def shares(self) -> bool:
        """Whether stacked clients would share something."""
        return self.failure is None and bool(self.asks or self.draws or self.changes)

    def in_words(self) -> str:
        """The first reason against a stack; "" if there is none."""
        if self.failure is not None:
            return f"training_step fails ({self.failure.reason})"
        asked = ", ".join(f"self.trainer.{name}" for name in self.asks)
        reasons = {
            f"training_step reads {asked}": self.asks,
            f"a local step draws from {' and '.join(self.draws)}": self.draws,
            self.keeps_in_words(): self.keeps,
            f"training_step changes {', '.join(self.changes)}": self.changes,
        }
        found = next((reason for reason, names in reasons.items() if names), None)
        return f"{found}, which stacked clients would share" if found else ""

    def keeps_in_words(self) -> str:
        """The attributes in which the step has left tensors."""
        names = ", ".join(f"self.{name}" for name in self.keeps)
        return f"training_step of {self.module} keeps tensors in {names}"


def try_step(workplace: Workplace) -> Trial:
    """Try one local step of one client; the module is left as it was."""
    module = workplace.module
    probe = SequentialExecutor()
    probe.setup(workplace)
    generators = own_generators(module)
    moment = moment_of(module)
    moment.asked.clear()
    before = Snapshot(module)
    try:
        job, outcome, drawn = _one_step(probe, workplace)
        after = own_generators(module)
        drawn += [name for name, state in generators.items() if after.get(name) != state]
        changes = before.changes()
        if changes and not drawn and not isinstance(outcome, ClientError):
            # Things that only a first step makes (a mask, a library's setting) are no state.
            settled = Snapshot(module)
            job, outcome, _ = _one_step(probe, workplace)
            changes = settled.changes()
        keeps = [each for each in changes if each.tensors]
        return Trial(
            module=type(module).__name__,
            failure=outcome if isinstance(outcome, ClientError) else None,
            asks=sorted(moment.asked),
            draws=drawn,
            keeps=[each.name for each in keeps],
            rereads=not isinstance(outcome, ClientError) and _rereads(probe, job, keeps),
            changes=[each.name for each in changes],
        )
    finally:
        before.restore()


def _one_step(probe: SequentialExecutor, workplace: Workplace) -> tuple[Job, Outcome, list[str]]:
    """A step of the first client with which it succeeds, and the generators it used."""
    for task in trial_tasks(workplace):
        job = Job(task, workplace.state.read())
        outcome, drawn = probe.watch(job)
        if not isinstance(outcome, ClientError):
            break
    return job, outcome, drawn


def _rereads(probe: SequentialExecutor, job: Job, left: Sequence[Change]) -> bool:
    """Whether a step reads the tensors that the step before has left, or adds to them."""
    if any(not isinstance(each.owner.get(each.key), Tensor) for each in left):
        return True  # a list or the like, to whose tensors it adds
    # No operator takes such an object, so a step that reads it fails.
    for each in left:
        each.owner[each.key] = NotATensor()
    return bool(left) and isinstance(probe.watch(job)[0], ClientError)
