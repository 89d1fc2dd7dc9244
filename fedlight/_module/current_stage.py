"""The current stage and local runs, as ``self.trainer`` of a module shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.local_optimizers.base import NativeOptimizer
    from fedlight.types import Task

T = TypeVar("T")

SANITY_CHECK = "sanity_check"


class Moment:
    """The stage that is running, and the local runs that are being computed.

    Attributes:
        stage: "train", "validate", "sanity_check", "test" or "predict" as Lightning's
            ``RunningStage`` spells it, or None.
        tasks: The tasks whose local steps are being computed; several in a stack.
        native: The module's own optimizer in the local run that is being computed, or None.
        asked: Attributes of the trainer that ``training_step`` has read and that change in a run.
            Stacked clients would share the answer, and a traced step would keep it for ever.
        times: How often it has asked.
        touched: Whether code of the user other than ``training_step`` (a hook, a validation) has
            been called since somebody compared the module's settings.
    """

    def __init__(self) -> None:
        self.stage: str | None = None
        self.tasks: Sequence[Task] = ()
        self.native: NativeOptimizer | None = None
        self.asked: set[str] = set()
        self.times = 0
        self.touched = False

    def ask(self, name: str) -> None:
        """Note that a step asks for something that changes during a run."""
        if self.tasks:
            self.asked.add(name)
            self.times += 1

    def for_actor(self) -> Moment | None:
        """The ``self.trainer`` of another process; None if there is no `FedTrainer`."""
        return None

    def common(self, name: str, values: Sequence[T]) -> T:
        """The value that all local runs of a stack share.

        Raises:
            RuntimeError: They differ. The executor then splits the stack.
        """
        if any(value != values[0] for value in values):
            raise RuntimeError(
                f"self.trainer.{name} differs between the clients of a stack; with "
                'executor="sequential" each client gets its own'
            )
        return values[0]


def moment_of(module: LightningModule) -> Moment:
    """The moment that the module's trainer shows; a new one if there is no `FedTrainer`."""
    trainer: object = module._trainer
    return trainer if isinstance(trainer, Moment) else Moment()


@contextmanager
def at_stage(module: LightningModule, stage: str) -> Iterator[Moment]:
    """The module's moment at a stage; on exit it is at the stage from before.

    Args:
        module: The module.
        stage: "train", for local runs, whose `tasks` are then set before each of them; or
            "validate", "sanity_check" or "test".
    """
    moment = moment_of(module)
    before = moment.stage, moment.tasks, moment.native
    # An evaluation has no tasks, so that nothing it asks the trainer is noted.
    moment.tasks, moment.native = (), None
    evaluates = stage != "train"  # an evaluation calls code that may change the module
    moment.touched |= evaluates
    if moment.stage != SANITY_CHECK:  # the validation within a sanity check belongs to it
        moment.stage = stage
    try:
        yield moment
    finally:
        moment.stage, moment.tasks, moment.native = before
        moment.touched |= evaluates
