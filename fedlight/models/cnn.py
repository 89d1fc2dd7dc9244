"""A convolutional network for CIFAR-10."""

from __future__ import annotations

from torch import Tensor, nn

from fedlight._support.checks import positive_int
from fedlight.models.classifier import Classifier


class CNN(Classifier):
    """Two convolutions with max-pooling, and three dense layers.

    Convolution 5x5x32, ReLU, max-pooling 2x2, convolution 5x5x64, ReLU, max-pooling 2x2, then dense
    layers of 512, 128 and `num_classes` units with ReLU between them.

    Source: Yang, Zhang, Khanduri and Liu, "Anarchic Federated Learning", ICML 2022, appendix E.1,
    Table 1, https://arxiv.org/abs/2108.09875. The table gives the first dense layer
    1024 = 64 * 4 * 4 inputs. Images of side 28 have that many. Those of CIFAR-10 have side 32 and
    give 64 * 5 * 5 = 1600, because the convolutions are not padded, and no padding would give 1024.
    To follow the table exactly, crop the images to 28 and pass `image_size=28`.

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
        """Creates the layers with torch's default initial weights."""
        num_classes = positive_int("num_classes", num_classes)
        super().__init__(num_classes, lr)
        in_channels = positive_int("in_channels", in_channels)
        image_size = positive_int("image_size", image_size)
        self.save_hyperparameters()
        side = ((image_size - 4) // 2 - 4) // 2
        if side < 1:
            raise ValueError(
                f"image_size must be at least 16, so that both convolutions fit, got {image_size}"
            )
        self.convolutions = nn.Sequential(
            nn.Conv2d(in_channels, 32, kernel_size=5),
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
        """Scores `[batch, num_classes]` for images `[batch, channels, side, side]`."""
        scores: Tensor = self.dense(self.convolutions(x).flatten(1))
        return scores
