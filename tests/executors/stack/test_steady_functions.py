"""Functions that do not depend on company have torch's values, gradients and side effects."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fedlight.executors._stack.steady_functions import SteadyFunctions

LARGE = torch.tensor([-1e4, -800.0, -90.0, -20.5, -1.5, -0.0, 0.0, 1e-30, 0.3, 19.0, 90.0, 800.0])

SPELLINGS = {
    "sigmoid": [torch.sigmoid, Tensor.sigmoid, torch.special.expit, F.sigmoid, nn.Sigmoid()],
    "in place": [lambda x: (x * 1).sigmoid_(), lambda x: torch.sigmoid_(x * 1)],
    "silu": [F.silu, nn.SiLU(), lambda x: F.silu(x * 1, inplace=True)],
    "gelu": [F.gelu, nn.GELU(), nn.GELU("tanh")],
    "elu": [F.elu, nn.ELU(0.5), lambda x: F.elu(x * 1, 0.5, True), lambda x: F.elu_(x * 1)],
    "selu": [F.selu, torch.selu, nn.SELU(inplace=False), lambda x: F.selu(x * 1, inplace=True)],
    "celu": [F.celu, nn.CELU(0.5), lambda x: torch.celu_(x * 1)],
    "softplus": [F.softplus, nn.Softplus(beta=2, threshold=3)],
    "mish": [F.mish, nn.Mish(), lambda x: F.mish(x * 1, inplace=True)],
    "functions": [torch.sinh, torch.cosh, Tensor.sinh, lambda x: (x * 1).cosh_()],
    "powers": [lambda x: x**2, lambda x: x**3.0, lambda x: 2**x, lambda x: (x.abs() + 1) ** 0.7],
    "of two": [lambda x: torch.logaddexp(x, 1 - x), lambda x: torch.atan2(x, x * x + 1)],
}
FUNCTIONS = [(name, number) for name, all_ in SPELLINGS.items() for number in range(len(all_))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "number"), FUNCTIONS)
def test_values_and_gradients_are_those_of_torch(name, number, dtype):
    function, x = SPELLINGS[name][number], torch.stack([LARGE, LARGE.flip(0)]).to(dtype)

    def steady(x):
        with SteadyFunctions():
            return function(x)

    both = [(vmap(f)(x), vmap(grad(lambda x, f=f: f(x).sum()))(x)) for f in (function, steady)]
    # torch derives ELU in place from its result, which is less exact
    rtol, atol = (1e-6, 2e-7) if dtype == torch.float32 else (1e-14, 1e-15)
    close = {"rtol": rtol, "atol": atol, "equal_nan": True}
    for expected, found in zip(*both, strict=True):
        torch.testing.assert_close(found, expected, **close)


def test_an_argument_that_is_to_be_written_is_written():
    def step(x):
        y = x * 1
        with SteadyFunctions():
            z = torch.sigmoid_(y)
        return y, z

    x = torch.randn(3, 5)
    for found in vmap(step)(x):
        torch.testing.assert_close(found, torch.sigmoid(x))


LAYERS = {
    "plain": lambda: nn.BatchNorm1d(6),
    "no affine": lambda: nn.BatchNorm1d(6, affine=False),
    "no buffers": lambda: nn.BatchNorm1d(6, track_running_stats=False),
    "momentum": lambda: nn.BatchNorm1d(6, momentum=0.7, eps=0.1),
    "eval": lambda: nn.BatchNorm1d(6).eval(),
    "eval, no affine": lambda: nn.BatchNorm1d(6, affine=False).eval(),
    "instances": lambda: nn.InstanceNorm1d(6),
    "affine instances": lambda: nn.InstanceNorm1d(6, affine=True),
    "images": lambda: nn.Sequential(nn.Unflatten(2, (2, 2)), nn.BatchNorm2d(6)),
    "image instances": lambda: nn.Sequential(nn.Unflatten(2, (2, 2)), nn.InstanceNorm2d(6)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_normalisation_is_that_of_torch(name):
    torch.manual_seed(0)
    net = LAYERS[name]().double()
    state = {name: tensor.detach() for name, tensor in net.state_dict().items()}
    clients = {k: torch.rand(4, *v.shape).to(v.dtype) for k, v in state.items()}
    trained = {name for name, _ in net.named_parameters()}
    x, weight = torch.randn(4, 5, 6, 4).double() * 3 + 1, torch.randn(5, 6, 4).double()

    def outcome(layers):
        params = {k: v.clone() for k, v in clients.items() if k in trained}
        buffers = {k: v.clone() for k, v in clients.items() if k not in trained}

        def loss(params, x, buffers):
            with layers():
                out = functional_call(net, {**params, **buffers}, (x,))
            return (out.reshape(weight.shape) * weight).square().sum(), buffers

        grads, after = vmap(grad(loss, argnums=(0, 1), has_aux=True))(params, x, buffers)
        return grads, after

    torch.testing.assert_close(
        outcome(SteadyFunctions), outcome(torch.enable_grad), rtol=1e-10, atol=1e-10
    )


def test_one_example_is_refused_as_torch_does():
    net = nn.BatchNorm1d(3)
    with SteadyFunctions(), pytest.raises(ValueError, match="more than 1 value per channel"):
        net(torch.ones(1, 3))


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 4, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_frozen_layer_multiplies_as_torch_does(shape, bias):
    layer, x = nn.Linear(5, 3, bias=bias).double().requires_grad_(False), torch.randn(7, *shape)

    def steady(x):
        with SteadyFunctions():
            return layer(x)

    torch.testing.assert_close(vmap(steady)(x.double()), layer(x.double()))
