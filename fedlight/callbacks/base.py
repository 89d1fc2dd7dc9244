"""The base class of callbacks: Lightning's hooks, and those for the events of a federation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.trainer import FedTrainer
    from fedlight.types import ClientUpdate, Task


class Callback:
    """Hooks that `FedTrainer` calls; each of them does nothing unless it is overridden.

    For each update that arrives the order is ``on_update``, ``on_drop`` (if the server drops it) or
    ``on_round_end`` (if the server makes a new version), ``on_dispatch`` for each client that goes
    on, ``on_event_end``.
    """

    def setup(self, trainer: FedTrainer, module: LightningModule, stage: str) -> None:
        """Called when "fit", "validate", "test" or "predict" begins."""

    def on_fit_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Called before the first event, with the model on its device.

        What it changes in the module holds: version 0 is read after `on_train_start`.
        """

    def on_train_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Called after all ``on_fit_start``, before the module is read as version 0."""

    def on_dispatch(self, trainer: FedTrainer, module: LightningModule, task: Task) -> None:
        """Called when a client pulls the model and starts to work."""

    def on_update(self, trainer: FedTrainer, module: LightningModule, update: ClientUpdate) -> None:
        """Called when an update arrives; reading its ``delta`` computes it early."""

    def on_drop(self, trainer: FedTrainer, module: LightningModule, update: ClientUpdate) -> None:
        """Called after ``on_update`` if the server drops the update that has arrived."""

    def on_cancel(self, trainer: FedTrainer, module: LightningModule, task: Task) -> None:
        """Called when the arrival process stops a task, whose result is lost."""

    def on_round_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Called after each server update; ``trainer.history[-1]`` is its record."""

    def on_event_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Called when an event has been handled completely, before the next one."""

    def on_validation_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Called before a validation."""

    def on_validation_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Called after a validation; ``trainer.callback_metrics`` holds its metrics."""

    def on_sanity_check_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Called before the validation of ``num_sanity_val_steps``."""

    def on_sanity_check_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Called after the validation of ``num_sanity_val_steps``."""

    def on_test_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Called before `test` runs over the data."""

    def on_test_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Called after `test` has run over the data."""

    def on_predict_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Called before `predict` runs over the data."""

    def on_predict_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Called after `predict` has run over the data."""

    def on_client_failure(
        self, trainer: FedTrainer, module: LightningModule, task: Task, error: BaseException
    ) -> None:
        """Called when a client's local run has failed, or when its result is lost."""

    def on_exception(
        self, trainer: FedTrainer, module: LightningModule, exception: BaseException
    ) -> None:
        """Called when ``fit`` is interrupted by an exception."""

    def on_train_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Called after the last event, before ``on_fit_end``."""

    def on_fit_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Called after the last event."""

    def teardown(self, trainer: FedTrainer, module: LightningModule, stage: str) -> None:
        """Called when "fit", "validate", "test" or "predict" ends, also after an exception."""

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint: tensors, numbers, strings, None, and lists and dicts of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; called after `setup`, before `on_fit_start`."""
