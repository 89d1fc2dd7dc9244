"""Layers the other way round give the same numbers."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedlight.executors._stack.narrow_layers import NarrowLayers


def losses(batch, inputs, outputs, bias, narrow):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(inputs, outputs, bias=bias), nn.Tanh(), nn.Linear(outputs, 3))
    params = {name: torch.randn(4, *p.shape).double() for name, p in net.named_parameters()}
    x, y = torch.randn(4, batch, inputs).double(), torch.randint(3, (4, batch))
    y[0, 0] = -100  # ignored

    def loss(params, x, y):
        if not narrow:
            return functional.cross_entropy(functional_call(net, params, (x,)), y)
        with NarrowLayers():
            return functional.cross_entropy(functional_call(net, params, (x,)), y)

    return vmap(grad(loss))(params, x, y)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("batch", "outputs"), [(16, 5), (2, 5), (64, 40), (1, 1)])
def test_gradients_agree(batch, outputs, bias):
    one = losses(batch, 7, outputs, bias, narrow=False)
    two = losses(batch, 7, outputs, bias, narrow=True)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "arguments",
    [
        {"label_smoothing": 0.1},
        {"reduction": "sum"},
        {"ignore_index": 1},
        {"weight": torch.tensor([1.0, 2.0, 3.0])},
    ],
)
def test_arguments_of_the_loss_are_kept(arguments):
    scores, target = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    with NarrowLayers():
        found = functional.cross_entropy(scores, target, **arguments)
    torch.testing.assert_close(found, functional.cross_entropy(scores, target, **arguments))


def test_other_shapes_and_targets_are_left_alone():
    scores = torch.randn(6, 3, 5)
    soft = torch.randn(6, 3).softmax(1)
    with NarrowLayers():
        images = functional.cross_entropy(scores, torch.ones(6, 5, dtype=torch.int64))
        shares = functional.cross_entropy(scores[..., 0], soft)
        wide = functional.linear(scores, torch.ones(2, 5), torch.zeros(2))
    expected = functional.cross_entropy(scores, torch.ones(6, 5, dtype=torch.int64))
    torch.testing.assert_close(images, expected)
    torch.testing.assert_close(shares, functional.cross_entropy(scores[..., 0], soft))
    torch.testing.assert_close(wide, scores.sum(-1, keepdim=True).expand(-1, -1, 2))
