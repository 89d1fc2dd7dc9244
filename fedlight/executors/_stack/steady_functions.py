"""Functions whose bits in a stack depend on company, computed so that they do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedlight.executors._stack.narrow_layers import NarrowLayers

_nn: Any = torch._C._nn

Function = Callable[..., Any]

# Elementwise functions of which ATen has two: one for whole vectors, and a scalar one for the last
# numbers of a tensor, with other last bits. Which clients have the last numbers depends on company.
_NAMES = """
    sigmoid expit silu gelu elu selu celu softplus mish pow float_power exp2 sinh cosh atanh arctanh
    atan2 arctan2 hypot logaddexp
"""
_HOMES: tuple[Any, ...] = (torch, torch.special, functional, _nn, Tensor)

_IN_PLACE: dict[Function, Function] = {}
"""The functions that write to their argument, and those that do not."""

for _home in _HOMES:
    for _name in _NAMES.split():
        if hasattr(_home, _name) and hasattr(_home, f"{_name}_"):
            _IN_PLACE[getattr(_home, f"{_name}_")] = getattr(_home, _name)

_POWERS = {Tensor.__pow__, torch.pow, Tensor.pow, Tensor.pow_, Tensor.__ipow__}
_IN_PLACE[Tensor.__ipow__] = Tensor.pow
_EXACT_POWERS = (0, 0.5, 1, 2, 3)
"""Those that are computed, as is their derivative, by one function for all numbers."""

_ELEMENTWISE = {
    getattr(home, name) for home in _HOMES for name in _NAMES.split() if hasattr(home, name)
}
_ELEMENTWISE |= {*_IN_PLACE, *_POWERS, Tensor.__rpow__}


class SteadyFunctions(NarrowLayers):
    """Within the context, the bits of a client in a stack on a CPU do not depend on the others.

    - Elementwise functions with a scalar path (`sigmoid`, `gelu`, `elu`, powers, …) get their
      argument with a gap between the clients. So each client has its own last numbers, as it has
      alone, and the values are torch's.
    - ``batch_norm`` and ``instance_norm`` are computed with ``var_mean``, torch's formula.
    - A ``linear`` layer that is not trained multiplies each client's batch by itself. All in one
      product, their sums would depend on the number of rows.

    The order of the clients and the width of the stack (from two on) then change no bit, if MKL's
    strict reproducibility is on (`fedlight._support.products`). `independence` lists the operators
    for which this was measured.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call `func`, or compute the same independently of company."""
        kwargs = kwargs or {}
        steady = _STEADY.get(func)
        if steady is not None:
            return steady(*args, **kwargs)
        if func is functional.linear and _is_shared(args):
            return _shared_linear(*args, **kwargs)
        return super().__torch_function__(func, types, args, kwargs)


class _Apart(torch.autograd.Function):
    """The same numbers, in a stack with a gap between the clients.

    An operator of which one input has gaps goes through the clients one after another.
    """

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent.view_as(tangent)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
        x = x.movedim(in_dims[0], 0)
        rows = x.reshape(len(x), x[0].numel())
        return torch.constant_pad_nd(rows, (0, 1))[:, :-1].view(x.shape), 0


def _elementwise(func: Function, *args: Any, **kwargs: Any) -> Any:
    """The value of a function of the table, from arguments with gaps."""
    if kwargs.get("out") is not None or not args or (func in _POWERS and _is_exact(args, kwargs)):
        return func(*args, **kwargs)
    in_place = func in _IN_PLACE
    func = _IN_PLACE.get(func, func)
    if "inplace" in kwargs:
        in_place = kwargs["inplace"]
        kwargs = {**kwargs, "inplace": False}
    given = [_apart(each) for each in args]
    named = {name: _apart(value) for name, value in kwargs.items()}
    value = func(*given, **named)
    return args[0].copy_(value) if in_place else value


def _is_exact(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    exponent = args[1] if len(args) > 1 else kwargs.get("exponent")
    return not isinstance(exponent, Tensor) and exponent in _EXACT_POWERS


def _apart(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return _Apart.apply(value)  # type: ignore[no-untyped-call]
    return value


class _Normalised(torch.autograd.Function):
    """``(x - mean) / sqrt(var + eps) * weight + bias``, and the mean and the variance.

    Both are taken over `dims`, which are kept with size one, as in weight and bias.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, dims: tuple[int, ...], eps: float
    ) -> tuple[Tensor, ...]:
        var, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
        inverse = torch.rsqrt(var + eps)
        scaled = (x - mean) * inverse
        return torch.addcmul(bias, scaled, weight), mean, var, scaled, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, weight, _, ctx.dims, _ = inputs
        _, mean, var, scaled, inverse = output
        ctx.mark_non_differentiable(mean, var, scaled, inverse)
        ctx.save_for_backward(weight, scaled, inverse)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        weight, scaled, inverse = ctx.saved_tensors
        total = gradient.sum(ctx.dims, keepdim=True)
        along = (gradient * scaled).sum(ctx.dims, keepdim=True)
        factor = weight * inverse
        share = -factor * (total.numel() / gradient.numel())
        # factor * (gradient - mean(gradient) - scaled * mean(gradient * scaled))
        centred = torch.addcmul(share * total, gradient, factor)
        return torch.addcmul(centred, scaled, share * along), along, total, None, None


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    given = (input, running_mean, running_var, weight, bias)
    if _mixed(given) or (running_mean is None) != (running_var is None):
        return functional.batch_norm(*given, training, momentum, eps)
    shape = [1, -1] + [1] * (input.dim() - 2)
    if not training and running_mean is not None and running_var is not None:
        factor = torch.rsqrt(running_var + eps)
        factor = factor if weight is None else factor * weight
        centred = (input - running_mean.view(shape)) * factor.view(shape)
        return centred if bias is None else centred + bias.view(shape)
    count = input.numel() // input.shape[1]
    if not training or count < 2 or eps <= 0:  # torch has an error for these
        return functional.batch_norm(*given, training, momentum, eps)
    ones = [input.shape[1], *shape[2:]]
    scale = input.new_ones(ones) if weight is None else weight.view(ones)
    shift = input.new_zeros(ones) if bias is None else bias.view(ones)
    dims = (0, *range(2, input.dim()))
    out, mean, var, *_ = _Normalised.apply(input, scale[None], shift[None], dims, eps)  # type: ignore[no-untyped-call]
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.mul_(1 - momentum).add_(mean.detach().flatten() * momentum)
            unbiased = var.detach().flatten() * (momentum * count / (count - 1))
            running_var.mul_(1 - momentum).add_(unbiased)
    return out  # type: ignore[no-any-return]


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    given = (input, running_mean, running_var, weight, bias)
    count = input.shape[2:].numel()
    alone = running_mean is None and running_var is None and use_input_stats
    if not alone or _mixed(given) or count < 2 or input.dim() < 3:
        return functional.instance_norm(*given, use_input_stats, momentum, eps)
    ones = [input.shape[1]] + [1] * (input.dim() - 2)
    one, zero = input.new_ones(()), input.new_zeros(())
    dims = tuple(range(2, input.dim()))
    out, *_ = _Normalised.apply(input, one, zero, dims, eps)  # type: ignore[no-untyped-call]
    out = out if weight is None else out * weight.view(ones)
    return out if bias is None else out + bias.view(ones)  # type: ignore[no-any-return]


def _mixed(tensors: tuple[Tensor | None, ...]) -> bool:
    """Whether tensors are of several types, or of one in which torch computes in another."""
    types = {tensor.dtype for tensor in tensors if tensor is not None}
    return len(types) != 1 or not types <= {torch.float32, torch.float64}


def _is_shared(args: tuple[Any, ...]) -> bool:
    """Whether all clients of a stack multiply with one matrix: a frozen layer."""
    return (
        len(args) > 1
        and args[1].dim() == 2
        and _differs_by_client(args[0])
        and not _differs_by_client(args[1])
    )


def _differs_by_client(tensor: Tensor) -> bool:
    functorch: Any = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


def _shared_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out = x.reshape(1, -1, x.shape[-1]) @ weight.t()[None]
    out = out.reshape(*x.shape[:-1], len(weight))
    return out if bias is None else out + bias


_STEADY: dict[Function, Function] = {
    functional.batch_norm: _batch_norm,
    functional.instance_norm: _instance_norm,
    **{function: partial(_elementwise, function) for function in _ELEMENTWISE},
}
"""The functions that are computed in another way than torch's, and that way."""
