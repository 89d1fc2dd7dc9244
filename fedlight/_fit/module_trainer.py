"""``self.trainer`` of a module: `FedTrainer` by the names that modules of Lightning read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any
from weakref import ref

from lightning import LightningModule
from lightning.pytorch.trainer.states import TrainerState

from fedlight._fit.actor_trainer import ActorTrainer
from fedlight._fit.options import names_of_options
from fedlight._fit.trainer_attributes import ATTRIBUTES, Asked, Attribute, answer
from fedlight._fit.trainer_strategy import OneDevice, unknown
from fedlight._module.current_stage import Moment
from fedlight._module.log_recorder import LogRecorder


class ModuleTrainer(Moment):
    """The attributes of the table `ATTRIBUTES`, as properties.

    Other attributes are looked up on `FedTrainer`. If it has no such attribute either, an
    AttributeError is raised.

    Args:
        trainer: The `FedTrainer`.
        module: Its module.
        function: The method that runs: "fit", "validate", "test" or "predict".
        ckpt_path: Its argument of this name.
    """

    # Lightning's own ``log`` then says that nothing can be logged.
    _results = None

    def __init__(
        self,
        trainer: object,
        module: LightningModule,
        function: str,
        ckpt_path: str | Path | None = None,
    ) -> None:
        super().__init__()
        self._asked = Asked(trainer, module, function, ckpt_path, self)
        self.stage = {"fit": "train"}.get(function, function)

    def let_go(self) -> None:
        """Answer as long as somebody else needs the trainer: a circle would keep all its models."""
        self._asked = self._asked._replace(trainer=_IfAlive(self._asked.trainer))

    def for_actor(self) -> ActorTrainer:
        """The answers that a local step may get in another process."""
        trainer = self._asked.trainer
        passed_on = {name for name in dir(trainer) if name[0] != "_"} - ATTRIBUTES.keys()
        fixed = [name for name, each in ATTRIBUTES.items() if not each.live]
        values = {name: answer(name, self._asked) for name in fixed}
        values |= {name: getattr(trainer, name) for name in passed_on & names_of_options(trainer)}
        answers = {name: value for name, value in values.items() if _plain(value)}
        return ActorTrainer(answers, (ATTRIBUTES.keys() | passed_on) - answers.keys())

    def __getattr__(self, name: str) -> Any:
        # Private names first: a copy that is being made has no `_asked` yet.
        if name.startswith("_") or not hasattr(self._asked.trainer, name):
            raise AttributeError(unknown(name))
        self.ask(name)
        return getattr(self._asked.trainer, name)


def _property(name: str, attribute: Attribute) -> property:
    def read(self: ModuleTrainer) -> Any:
        return answer(name, self._asked)

    def change(self: ModuleTrainer, value: Any) -> None:
        setattr(self._asked.trainer, name, value)

    return property(read, change if attribute.settable else None, doc=attribute.meaning)


for _name, _attribute in ATTRIBUTES.items():
    _made: Any = _property(_name, _attribute)
    _made.__set_name__(ModuleTrainer, _name)  # for the error of one that cannot be set
    setattr(ModuleTrainer, _name, _made)


class _IfAlive:
    """The attributes of a trainer, as long as somebody else needs it."""

    def __init__(self, trainer: object) -> None:
        self._trainer = ref(trainer)

    def __getattr__(self, name: str) -> Any:
        if name == "_trainer" or (trainer := self._trainer()) is None:
            raise AttributeError(f"{name}: the trainer that self.trainer named is gone")
        return getattr(trainer, name)


def _plain(value: Any) -> bool:
    """Whether a value is the same in another process."""
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    kinds = (bool, int, float, str, Path, Enum, TrainerState, OneDevice)
    return value is None or isinstance(value, kinds)


@contextmanager
def attached(
    module: LightningModule,
    trainer: object,
    function: str,
    ckpt_path: str | Path | None = None,
) -> Iterator[LogRecorder]:
    """Within the context, ``self.trainer`` and ``self.log`` of a module answer in all its hooks.

    Args:
        module: The module.
        trainer: The `FedTrainer`.
        function: The method that runs: "fit", "validate", "test" or "predict".
        ckpt_path: Its argument of this name.

    Yields:
        The record of the values that the module logs outside of its steps.
    """
    before = module._trainer, module._fabric
    recorder = LogRecorder(module)
    module.fabric = None  # with it, Lightning's `log` would call Fabric
    shown = ModuleTrainer(trainer, module, function, ckpt_path)
    module.trainer = shown  # type: ignore[assignment]
    try:
        with recorder.recording():
            yield recorder
    finally:
        module.trainer, module.fabric = before
        shown.let_go()
