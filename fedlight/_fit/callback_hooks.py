"""Calls the hooks of callbacks, also for what happens at the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from lightning import LightningModule

from fedlight._fit.options import TrainerOptions
from fedlight._module.current_stage import moment_of
from fedlight.callbacks import Callback
from fedlight.executors.base import ClientError
from fedlight.server import Watcher
from fedlight.types import ClientUpdate, RoundRecord, Task


class HasModule(Protocol):
    """The part of a trainer that calls of hooks need; callbacks get the whole trainer."""

    @property
    def module(self) -> LightningModule:
        """The module, with the server's newest model in it."""


class Hooks(Watcher):
    """Calls ``hook(trainer, module, …)`` of each callback, in the order of the callbacks.

    It is the server's `Watcher` in a fit.

    Args:
        trainer: The trainer.
        options: Its options, with the callbacks.
        made_version: Called with the record of each new version.
    """

    def __init__(
        self,
        trainer: HasModule,
        options: TrainerOptions,
        made_version: Callable[[RoundRecord], None] | None = None,
    ) -> None:
        self._trainer = trainer
        self._callbacks = options.callbacks
        self._raises = options.setting.on_client_failure == "raise"
        self._made_version = made_version
        self._methods: dict[str, list[Callable[..., None]]] = {}
        self._foreign: set[str] = set()  # hooks of callbacks that may change the module

    def __call__(self, hook: str, *args: Any) -> bool:
        """Call the hook of this name; return whether any callback has it."""
        # Fabric.call inspects each signature at each call, which costs more than most hooks.
        methods = self.methods(hook)
        if methods:
            self._touch(hook)
            for method in methods:
                method(self._trainer, self._trainer.module, *args)
            self._touch(hook)
        return bool(methods)

    def _touch(self, hook: str) -> None:
        """Note that callbacks may change the module, also while one of them reads a result."""
        if hook in self._foreign:
            moment_of(self._trainer.module).touched = True

    def methods(self, name: str) -> list[Callable[..., None]]:
        """Return the callbacks' methods of a name, except the inherited ones that do nothing."""
        methods = self._methods.get(name)
        if methods is None:
            found = [getattr(callback, name, None) for callback in self._callbacks]
            nothing = getattr(Callback, name, None)
            methods = [m for m in found if m and getattr(m, "__func__", m) is not nothing]
            self._methods[name] = methods
            # None of ours changes a module.
            if any(not _is_ours(getattr(method, "__self__", None)) for method in methods):
                self._foreign.add(name)
        return methods

    def all(self, hook: str, *args: Any) -> None:
        """Call a hook of every callback, even if one raises; then raise the first error."""
        first: BaseException | None = None
        for method in self.methods(hook):
            try:
                method(self._trainer, self._trainer.module, *args)
            except BaseException as error:
                first = first or error
        if first is not None:
            raise first

    def close(self) -> None:
        """Let go of the trainer and the fit, which hold these hooks: a circle keeps all models."""
        del self._trainer, self._made_version

    def on_dispatch(self, task: Task) -> None:
        """Call `on_dispatch` of the callbacks."""
        self("on_dispatch", task)

    def on_update(self, update: ClientUpdate) -> None:
        """Call `on_update` of the callbacks."""
        methods = self.methods("on_update")
        if not methods:
            return
        self._touch("on_update")
        for method in methods:
            try:
                method(self._trainer, self._trainer.module, update)
            except ClientError:  # the callback read a failed result; the server will find it, too
                if self._raises:
                    raise
        self._touch("on_update")

    def on_drop(self, update: ClientUpdate) -> None:
        """Call `on_drop` of the callbacks."""
        self("on_drop", update)

    def on_cancel(self, task: Task) -> None:
        """Call `on_cancel` of the callbacks."""
        self("on_cancel", task)

    def on_client_failure(self, task: Task, error: ClientError) -> None:
        """Call `on_client_failure` of the callbacks."""
        self("on_client_failure", task, error)

    def on_version(self, record: RoundRecord) -> None:
        """Call `made_version`, so that the fit records, validates and logs."""
        if self._made_version is not None:
            self._made_version(record)


def _is_ours(callback: object) -> bool:
    return type(callback).__module__.startswith("fedlight.callbacks.")
