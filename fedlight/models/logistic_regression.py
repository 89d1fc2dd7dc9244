"""Multinomial logistic regression."""

from __future__ import annotations

from torch import Tensor, nn

from fedlight._support.checks import positive_int
from fedlight.models.classifier import Classifier


class LogisticRegression(Classifier):
    """One dense layer: `scores = W x + b`.

    Source: the model for MNIST in Yang, Zhang, Khanduri and Liu, "Anarchic Federated Learning",
    ICML 2022, section 5, https://arxiv.org/abs/2108.09875.

    Args:
        in_features: Number of values in one example; its dimensions are flattened.
        num_classes: Number of classes.
        lr: Learning rate of the module's own SGD.

    Raises:
        ValueError: A size or the learning rate is out of range.

    Example:
        >>> import torch
        >>> LogisticRegression(28 * 28, 10)(torch.zeros(5, 1, 28, 28)).shape
        torch.Size([5, 10])
    """

    def __init__(self, in_features: int, num_classes: int, lr: float = 0.1) -> None:
        """Creates the layer with torch's default initial weights."""
        num_classes = positive_int("num_classes", num_classes)
        super().__init__(num_classes, lr)
        in_features = positive_int("in_features", in_features)
        self.save_hyperparameters()
        self.dense = nn.Linear(in_features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores `[batch, num_classes]` for inputs `[batch, ...]`."""
        scores: Tensor = self.dense(x.flatten(1))
        return scores
