"""The base class of the models: loss, accuracy and plain SGD."""

from __future__ import annotations

import torch
from lightning import LightningModule
from torch import Tensor
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy

from fedlight._support.checks import integer, positive

Batch = tuple[Tensor, Tensor]


class Classifier(LightningModule):
    """A classifier that is trained with cross-entropy and plain SGD.

    `training_step` logs `train_loss` and `train_acc`; `validation_step` logs `val_loss` and
    `val_acc`; `test_step` logs `test_loss` and `test_acc`. A subclass defines `forward`, which maps
    a batch of inputs to scores `[batch, num_classes]`.

    Args:
        num_classes: Number of classes, at least 2.
        lr: Learning rate of the SGD that `configure_optimizers` returns.

    Raises:
        ValueError: `num_classes` is below 2, or `lr` is not above 0.
    """

    def __init__(self, num_classes: int, lr: float) -> None:
        """Creates the metrics."""
        super().__init__()
        num_classes = integer("num_classes", num_classes)
        if num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, got {num_classes}")
        self.lr = positive("lr", lr)
        self.val_acc = MulticlassAccuracy(num_classes, average="micro")
        self.test_acc = MulticlassAccuracy(num_classes, average="micro")

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross-entropy of a batch."""
        x, y = batch
        scores = self(x)
        loss = functional.cross_entropy(scores, y)
        # A tensor expression, because a metric object does not run under torch.func.vmap, with
        # which the local runs of many clients are computed at once.
        accuracy = (scores.argmax(-1) == y).to(loss.dtype).mean()
        self.log("train_loss", loss, batch_size=len(y))
        self.log("train_acc", accuracy, batch_size=len(y))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs loss and accuracy on a batch of the validation data."""
        self._evaluate(batch, "val", self.val_acc)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs loss and accuracy on a batch of the test data."""
        self._evaluate(batch, "test", self.test_acc)

    def _evaluate(self, batch: Batch, split: str, accuracy: MulticlassAccuracy) -> None:
        x, y = batch
        scores = self(x)
        accuracy.update(scores, y)
        self.log(f"{split}_loss", functional.cross_entropy(scores, y), batch_size=len(y))
        self.log(f"{split}_acc", accuracy, batch_size=len(y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=self.lr)
