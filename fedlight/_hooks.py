"""Calls the callbacks, and tells them what the server tells its watcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fedlight.callbacks import Callback
from fedlight.executors.base import ClientError
from fedlight.server import Watcher

if TYPE_CHECKING:
    from fedlight.trainer import FedTrainer
    from fedlight.types import ClientUpdate, RoundRecord, Task


class Hooks(Watcher):
    """Calls ``hook(trainer, module, …)`` of each callback, in their order.

    Args:
        trainer: The trainer.
        callbacks: The callbacks.
        made_version: Called with the record of each new version.
    """

    def __init__(
        self,
        trainer: FedTrainer,
        callbacks: Sequence[Any],
        made_version: Callable[[RoundRecord], None],
    ) -> None:
        self._trainer = trainer
        self._callbacks = callbacks
        self._made_version = made_version
        self._methods: dict[str, list[Callable[..., None]]] = {}

    def __call__(self, hook: str, *args: Any) -> None:
        """Call a hook by its name."""
        # Fabric.call would look up each signature each time, which costs more than most hooks.
        for method in self.methods(hook):
            method(self._trainer, self._trainer.module, *args)

    def methods(self, name: str) -> list[Callable[..., None]]:
        """The callbacks' methods of a name, without those that do nothing."""
        methods = self._methods.get(name)
        if methods is None:
            found = [getattr(callback, name, None) for callback in self._callbacks]
            nothing = getattr(Callback, name, None)
            methods = [m for m in found if m and getattr(m, "__func__", m) is not nothing]
            self._methods[name] = methods
        return methods

    def all(self, hook: str, *args: Any) -> None:
        """Call a hook of every callback, also after one has raised; then raise the first error."""
        first: Exception | None = None
        for method in self.methods(hook):
            try:
                method(self._trainer, self._trainer.module, *args)
            except Exception as error:
                first = first or error
        if first is not None:
            raise first

    def on_dispatch(self, task: Task) -> None:
        """Pass it on."""
        self("on_dispatch", task)

    def on_update(self, update: ClientUpdate) -> None:
        """Pass it on."""
        for method in self.methods("on_update"):
            try:
                method(self._trainer, self._trainer.module, update)
            except ClientError:  # it looked at the result of a failed run; the server will, too
                if self._trainer.on_client_failure == "raise":
                    raise

    def on_drop(self, update: ClientUpdate) -> None:
        """Pass it on."""
        self("on_drop", update)

    def on_client_failure(self, task: Task, error: ClientError) -> None:
        """Pass it on."""
        self("on_client_failure", task, error)

    def on_version(self, record: RoundRecord) -> None:
        """Let the trainer record, validate and log."""
        self._made_version(record)
