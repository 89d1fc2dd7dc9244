"""The convolutional network for CIFAR-10 of the Anarchic Federated Learning paper."""

from __future__ import annotations

from torch import Tensor, nn

from fedlight.checks import positive_int
from fedlight.models.classifier import Classifier


class CNN(Classifier):
    """Two convolutions with pooling and three dense layers (Anarchic FL, appendix E.1, Table 1).

    5x5x32, ReLU, max-pooling 2x2, 5x5x64, ReLU, max-pooling 2x2, then dense layers of 512, 128
    and `num_classes`, with ReLU between them.

    The convolutions are not padded, so of an image of side 32 (CIFAR-10) a side of 5 reaches the
    dense layers, 64 * 5 * 5 = 1600 numbers. The 1024 = 64 * 4 * 4 that Table 1 names are those of
    an image of side 28; no padding gives them with side 32. Crop the images to 28 and say
    `image_size=28` for the table to the letter.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of an image.
        image_size: Side of the square images, in pixels, at least 16.
        lr: Learning rate of the module's own SGD.

    Raises:
        ValueError: A size or the learning rate is out of range.

    Example:
        >>> import torch
        >>> CNN(image_size=28).dense[0]
        Linear(in_features=1024, out_features=512, bias=True)
        >>> CNN()(torch.zeros(5, 3, 32, 32)).shape
        torch.Size([5, 10])
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 3,
        image_size: int = 32,
        lr: float = 0.1,
    ) -> None:
        """Makes the layers, with torch's default initial weights."""
        super().__init__(num_classes, lr)
        self.save_hyperparameters()
        side = ((positive_int("image_size", image_size) - 4) // 2 - 4) // 2
        if side < 1:
            raise ValueError(
                f"image_size must be at least 16, so that both convolutions fit, got {image_size}"
            )
        self.convolutions = nn.Sequential(
            nn.Conv2d(positive_int("in_channels", in_channels), 32, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.dense = nn.Sequential(
            nn.Linear(64 * side * side, 512),
            nn.ReLU(),
            nn.Linear(512, 128),
            nn.ReLU(),
            nn.Linear(128, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Scores `[batch, num_classes]` of images `[batch, channels, side, side]`."""
        scores: Tensor = self.dense(self.convolutions(x).flatten(1))
        return scores
