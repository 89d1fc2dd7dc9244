"""``self.trainer.strategy``, and the message for attributes that ``self.trainer`` lacks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class OneDevice:
    """``self.trainer.strategy``: one process on one device.

    Args:
        root_device: The device.
    """

    is_global_zero = True
    global_rank = local_rank = node_rank = 0
    world_size = 1

    def __init__(self, root_device: torch.device) -> None:
        self.root_device = root_device

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """The tensor itself."""
        return tensor

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """The tensor itself."""
        return tensor

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object itself."""
        return obj

    def barrier(self, name: str | None = None) -> None:
        """Nothing to wait for."""

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """The decision itself."""
        return decision

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(unknown(f"strategy.{name}"))


INSTEAD = {
    "train_dataloader": "the clients' data are in self.trainer.datamodule",
    "val_dataloaders": "the data are in self.trainer.datamodule",
    "test_dataloaders": "the data are in self.trainer.datamodule",
    "predict_dataloaders": "the data are the argument of FedTrainer.predict(…, dataloaders=…)",
    "num_predict_batches": "the data are the argument of FedTrainer.predict(…, dataloaders=…)",
    "validate_loop": "use self.trainer.validating and self.trainer.num_val_batches",
    "test_loop": "use self.trainer.testing and self.trainer.num_test_batches",
    "predict_loop": "FedTrainer.predict returns the predictions",
    "is_last_batch": "a local run has num_training_batches steps; batch_idx counts them",
    "val_check_batch": "validation takes place after a round",
    "precision_plugin": "self.trainer.precision names the precision; to clip gradients, write "
    "ModuleOptimizer(max_grad_norm=…)",
    "scaler": "self.trainer.precision names the precision",
    "init_module": "create layers in configure_model, which uses the run's precision and device",
    "distributed_sampler_kwargs": "there is one process",
    "strategy.remove_checkpoint": "FedCheckpoint deletes its own files; for others, write "
    "Path(path).unlink()",
    "strategy.save_checkpoint": "write self.trainer.save_checkpoint(path)",
    "fit_loop": "a federation has no epochs of batches; self.trainer.current_epoch counts rounds",
    "strategy._lightning_optimizers": "write self.optimizers(use_pl_optimizer=False) in "
    "training_step: an optimizer exists only during one local run",
    "strategy.backward": "manual optimization is not possible in a local run",
}


def unknown(name: str) -> str:
    """The error message for an attribute that ``self.trainer`` does not have."""
    instead = INSTEAD.get(name)
    return (
        f"self.trainer is a FedTrainer here, which has no {name!r}"
        + (f": {instead}" if instead else "; check with hasattr before using it")
        + ". The documentation of self.trainer in a federation lists its attributes"
    )
