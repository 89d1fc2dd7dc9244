"""A recurrent network that predicts the next character of Shakespeare's plays."""

from __future__ import annotations

from torch import Tensor, nn

from fedlight._support.checks import positive_int
from fedlight.models.classifier import Classifier


class CharLSTM(Classifier):
    """An embedding, two LSTM layers, and one dense layer on the last state.

    The network reads 80 characters and scores the next one.

    Source: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018,
    https://arxiv.org/abs/1812.01097; as used in Yang, Zhang, Khanduri and Liu, "Anarchic Federated
    Learning", ICML 2022, appendix E.1, https://arxiv.org/abs/2108.09875.

    Args:
        num_classes: Number of characters in the alphabet.
        embedding_dim: Size of the vector that represents a character.
        hidden_size: Units of each LSTM layer.
        num_layers: Number of LSTM layers.
        lr: Learning rate of the module's own SGD.

    Raises:
        ValueError: A size or the learning rate is out of range.

    Example:
        >>> import torch
        >>> CharLSTM()(torch.zeros(5, 80, dtype=torch.int64)).shape
        torch.Size([5, 80])
    """

    def __init__(
        self,
        num_classes: int = 80,
        embedding_dim: int = 8,
        hidden_size: int = 100,
        num_layers: int = 2,
        lr: float = 0.8,
    ) -> None:
        """Creates the layers with torch's default initial weights."""
        num_classes = positive_int("num_classes", num_classes)
        super().__init__(num_classes, lr)
        embedding_dim = positive_int("embedding_dim", embedding_dim)
        hidden_size = positive_int("hidden_size", hidden_size)
        num_layers = positive_int("num_layers", num_layers)
        self.save_hyperparameters()
        self.embedding = nn.Embedding(num_classes, embedding_dim)
        self.lstm = nn.LSTM(embedding_dim, hidden_size, num_layers, batch_first=True)
        self.dense = nn.Linear(hidden_size, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores `[batch, num_classes]` for tokens `[batch, length]`."""
        states, _ = self.lstm(self.embedding(x))  # [batch, length, hidden_size]
        scores: Tensor = self.dense(states[:, -1])
        return scores
