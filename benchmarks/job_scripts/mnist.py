"""MNIST as the scripts without fedlight read it, and the evaluation of those without Lightning."""

from __future__ import annotations

import os

import datasets
import torch
from torch import Tensor
from torch.nn import functional


def mnist() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, normalised, `[n, 1, 28, 28]`, and labels, for training and for test."""
    splits = datasets.load_dataset(os.path.join(os.environ["FEDLIGHT_DATA"], "mnist"))
    found = []
    for split in ("train", "test"):
        arrays = splits[split].with_format("numpy")[:]
        pixels = torch.from_numpy(arrays["image"]).unsqueeze(1)
        found.append(pixels.float().div_(255).sub_(0.1307).div_(0.3081))
        found.append(torch.from_numpy(arrays["label"]))
    return found[0], found[1], found[2], found[3]


@torch.no_grad()
def evaluated(net: torch.nn.Module, x: Tensor, y: Tensor) -> float:
    """Accuracy on the test images; the loss is computed as well."""
    net.eval()
    correct, loss = 0, 0.0
    for images, labels in zip(x.split(1000), y.split(1000), strict=True):
        scores = net(images)
        loss += functional.cross_entropy(scores, labels).item() * len(labels)
        correct += int((scores.argmax(1) == labels).sum())
    net.train()
    return correct / len(y)
