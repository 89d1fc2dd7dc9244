"""The base class of language models: loss, perplexity and AdamW."""

from __future__ import annotations

import torch
from lightning import LightningModule
from torch import Tensor
from torch.nn import functional
from torchmetrics import MeanMetric

from fedlight._support.checks import positive

Batch = tuple[Tensor, Tensor]


class Perplexity(MeanMetric):
    """exp of the mean of the losses that it was updated with.

    `torchmetrics.text.Perplexity` is infinite as soon as a probability is too small for its type;
    the logarithm of a probability, which the loss is, has no such limit.
    """

    def compute(self) -> Tensor:
        """The perplexity of all batches so far."""
        return super().compute().exp()


class LanguageModel(LightningModule):
    r"""A model that scores the next token after each token of a text.

    $$\text{loss} = -\frac{1}{b\,T} \sum_{j=1}^{b} \sum_{t=1}^{T}
    \log p(y_{jt} \mid x_{j1}, \dots, x_{jt}), \qquad \text{perplexity} = e^{\text{loss}}$$

    A batch is a pair of integer tensors, both `[b, T]`: the tokens x, and the token y that follows
    each of them. `training_step` logs `train_loss`; `validation_step` logs `val_loss` and
    `val_perplexity`; `test_step` logs `test_loss` and `test_perplexity`. Losses are in nats per
    token, and the perplexity is that of all tokens of the split: exp of the mean loss, not a mean
    over batches. A subclass defines `forward`, which maps tokens `[b, T]` to scores
    `[b, T, vocabulary]`; the score after token t may depend on tokens 1 to t only.

    Args:
        lr: Learning rate of the AdamW that `configure_optimizers` returns.

    Raises:
        ValueError: `lr` is not above 0.
    """

    def __init__(self, lr: float) -> None:
        """Creates the metrics."""
        super().__init__()
        self.lr = positive("lr", lr)
        self.val_perplexity = Perplexity()
        self.test_perplexity = Perplexity()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross-entropy over all tokens of a batch."""
        loss = self._loss(batch)
        self.log("train_loss", loss, batch_size=len(batch[1]))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs loss and perplexity on a batch of the validation data."""
        self._evaluate(batch, "val", self.val_perplexity)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs loss and perplexity on a batch of the test data."""
        self._evaluate(batch, "test", self.test_perplexity)

    def _loss(self, batch: Batch) -> Tensor:
        x, y = batch
        return functional.cross_entropy(self(x).flatten(0, 1), y.flatten())

    def _evaluate(self, batch: Batch, split: str, perplexity: Perplexity) -> None:
        loss = self._loss(batch)
        perplexity.update(loss, batch[1].numel())
        self.log(f"{split}_loss", loss, batch_size=len(batch[1]))
        self.log(f"{split}_perplexity", perplexity, batch_size=len(batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW with torch's defaults but for the learning rate."""
        return torch.optim.AdamW(self.parameters(), lr=self.lr)
