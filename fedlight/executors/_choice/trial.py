"""The trial of a module: local runs of two steps are watched for side effects."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedlight._module.current_stage import moment_of
from fedlight._module.settings import kept_by, kept_by_optimizer, settings_of
from fedlight._module.snapshot import Change, NotATensor, Snapshot
from fedlight._module.steps import reads_index
from fedlight.executors.base import ClientError, Job, Outcome, Workplace, trial_tasks
from fedlight.executors.sequential import SequentialExecutor

if TYPE_CHECKING:
    from fedlight.types import ServerState

_STEPS = 2
"""Local steps of a trial: the second one may read what the first has left."""
_MORE = 6
"""Those of a ``training_step`` that reads ``batch_idx``: later ones may differ from the first."""
_MANY = 10_000
"""What is added to a number, to see whether a step compares it with a limit."""
_MULTIPLE = 10 * math.lcm(*range(1, 41))
"""A counter gets there with the next step, to see whether a step does something each n-th time."""


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
        reads: The attributes that it has changed, if a later step reads what it has left there.
        kept: The places of all that it, or the local optimizer, has changed: paths of layers or
            that of the optimizer, and names.
    """

    module: str
    failure: ClientError | None
    asks: Sequence[str]
    draws: Sequence[str]
    keeps: Sequence[str]
    rereads: bool
    changes: Sequence[str]
    reads: Sequence[str] = ()
    kept: frozenset[tuple[str, str]] = frozenset()

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

    def refusal(self) -> str:
        """Why no executor may run the module; "" if nothing speaks against it."""
        if not self.reads:
            return ""
        names = ", ".join(f"self.{name}" for name in self.reads)
        return (
            f"training_step of {self.module} keeps {names} from one step to the next, so that a "
            "client would go on from another client's, and no checkpoint has it: register_buffer "
            "in __init__, since each client has buffers of its own"
        )

    def keeps_in_words(self) -> str:
        """The attributes in which the step has left tensors."""
        names = ", ".join(f"self.{name}" for name in self.keeps)
        return f"training_step of {self.module} keeps tensors in {names}"


def try_step(workplace: Workplace) -> Trial:
    """Try local runs of two steps of some clients; the module is left as it was."""
    module = workplace.module
    probe = SequentialExecutor()
    probe.setup(workplace)
    moment = moment_of(module)
    moment.asked.clear()
    start = settings_of(module, workplace.optimizer)
    before = Snapshot(module)
    frozen = [(tensor, value) for tensor, value in start.tensors.items() if value is not None]

    def restore() -> None:
        before.restore()
        for tensor, value in frozen:
            if not torch.equal(tensor, value):
                tensor.data.copy_(value)

    try:
        job, outcome, drawn = _first_that_succeeds(probe, workplace)
        succeeds = not isinstance(outcome, ClientError)
        changes = before.changes()
        kept = kept_by(module, start)
        names = {*(f"{path}.{name}".lstrip(".") for path, name in kept), *(c.name for c in changes)}
        reads = False
        if (changes or kept) and succeeds:
            reads = _reads(probe, workplace, job.pulled, restore, changes)
            # Things that only a first step makes (a mask, a library's setting) are no state.
            restore()
            probe.watch(job)
            settled = Snapshot(module)
            job, outcome, _ = _first_that_succeeds(probe, workplace)
            changes = settled.changes()
            kept += kept_by(module, start)
        keeps = [each for each in changes if each.tensors]
        return Trial(
            module=type(module).__name__,
            failure=outcome if isinstance(outcome, ClientError) else None,
            asks=sorted(moment.asked),
            draws=drawn,
            keeps=[each.name for each in keeps],
            rereads=not isinstance(outcome, ClientError) and _rereads(probe, job, keeps),
            changes=[each.name for each in changes],
            reads=sorted(names) if reads else (),
            kept=frozenset([*kept, *kept_by_optimizer(start)]),
        )
    finally:
        restore()


def _first_that_succeeds(
    probe: SequentialExecutor, workplace: Workplace
) -> tuple[Job, Outcome, list[str]]:
    """The local run of the first client with which it succeeds, and the generators it used."""
    for task in trial_tasks(workplace, _MORE if reads_index(workplace.module) else 1):
        job = Job(task, workplace.state.read())
        outcome, drawn = probe.watch(job)
        if not isinstance(outcome, ClientError):
            break
    return job, outcome, drawn


def _reads(
    probe: SequentialExecutor,
    workplace: Workplace,
    pulled: ServerState,
    restore: Callable[[], None],
    changes: Sequence[Change],
) -> bool:
    """Whether a step reads what the steps before it have left on the module, and no buffer holds.

    The same local runs are computed with the module as it was before each step, after each other,
    and with large numbers in place of those that steps change (a counter that is compared with a
    limit). If nothing is read, their outcomes have the same bits.

    Args:
        probe: Computes local runs.
        workplace: Has the clients.
        pulled: The version from which local runs start.
        restore: Puts the module's attributes back.
        changes: The attributes that steps change.
    """
    # Of several clients, since the data of one may hide it (all zeros).
    steps = _MORE if reads_index(workplace.module) else _STEPS
    jobs = [Job(task, pulled) for task in trial_tasks(workplace, steps)]
    restore()
    alone = [_bits(probe.watch(job, restore)[0]) for job in jobs]
    restore()
    probe.watch(jobs[-1])

    if [_bits(probe.watch(job)[0]) for job in jobs] != alone:
        return True
    numbers = [each for each in changes if type(each.owner.get(each.key)) in (int, float)]
    for job, bits in zip(jobs if numbers else (), alone, strict=False):
        for each in numbers:
            now = each.owner.get(each.key)
            each.owner[each.key] = now + _MANY if isinstance(now, float) else _MULTIPLE - 1
        if _bits(probe.watch(job)[0]) != bits:
            return True
    return False


def _bits(outcome: Outcome) -> object:
    """All that the server and the user get of a local run, to be compared to the bit."""
    if isinstance(outcome, ClientError):
        return None
    tensors = (outcome.delta, outcome.buffers, outcome.counters, outcome.client_state)
    return (
        [
            None if each is None else each.cpu().contiguous().view(torch.uint8).numpy().tobytes()
            for each in tensors
        ],
        {name: repr(value) for name, value in outcome.metrics.items()},
    )


def _rereads(probe: SequentialExecutor, job: Job, left: Sequence[Change]) -> bool:
    """Whether a step reads the tensors that the step before has left, or adds to them."""
    if any(not isinstance(each.owner.get(each.key), Tensor) for each in left):
        return True  # a list or the like, to whose tensors it adds
    # No operator takes such an object, so a step that reads it fails.
    for each in left:
        each.owner[each.key] = NotATensor()
    return bool(left) and isinstance(probe.watch(job)[0], ClientError)
