"""``self.trainer`` of a module whose local steps run in another process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from lightning.pytorch.utilities.types import LRSchedulerConfig

from fedlight._fit.trainer_attributes import (
    ATTRIBUTES,
    of_tasks,
    optimizers_of,
    schedulers_of,
)
from fedlight._fit.trainer_strategy import unknown
from fedlight._module.current_stage import Moment


class ActorTrainer(Moment):
    """Has those attributes of ``self.trainer`` that a local step can read in a Ray actor.

    These are the fields of the task, and plain data that do not change during a run. The others,
    such as metrics and loggers, exist in the main process only, and are refused.

    Args:
        answers: Answers by name.
        elsewhere: The names that are known in the main process only.
    """

    def __init__(self, answers: Mapping[str, Any], elsewhere: Iterable[str]) -> None:
        super().__init__()
        self._answers, self._elsewhere = dict(answers), frozenset(elsewhere)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(unknown(name))
        field = ATTRIBUTES[name].of_task if name in ATTRIBUTES else None
        if field is not None and self.tasks:
            return of_tasks(name, field, self)
        if name in self._answers:
            return self._answers[name]
        raise AttributeError(_far(name) if name in self._elsewhere else unknown(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name in vars(self).get("_elsewhere", ()):
            raise AttributeError(_far(name))
        super().__setattr__(name, value)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The module's own optimizer, alone in a list, in a local run."""
        return optimizers_of(self)

    @property
    def lr_scheduler_configs(self) -> list[LRSchedulerConfig]:
        """The schedulers of the module's own optimizer, in a local run."""
        return schedulers_of(self)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print, in the output of the actor."""
        print(*args, **kwargs)


def _far(name: str) -> str:
    return (
        f"self.trainer.{name} lies in the main process, and a local step runs in a Ray actor: use "
        "it in a hook of the validation or in a fedlight callback (on_update, on_round_end), or "
        'write executor="sequential"'
    )
