"""Dropout, and layers with dropout inside, on a stream of random numbers (`streams`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from fedlight.executors._random.tensors import replaces
from fedlight.executors._random.variates import Uncovered, below, uniform

if TYPE_CHECKING:
    from fedlight.executors._random.streams import Streams

NEVER = {torch.poisson, torch.binomial, torch._standard_gamma, torch._sample_dirichlet}
"""Functions that reject some of the numbers that they draw, so that their number is not known."""


def _noise(draw: Streams, input: Tensor, p: float, shape: Sequence[int]) -> Tensor:
    with torch.no_grad():
        kept = below(draw, shape, 1 - p, input.device).to(input.dtype)
        return kept if p == 1 else kept.div(1 - p)


def _channels(input: Tensor) -> tuple[int, ...]:
    """The shape of one number for each channel of each example."""
    if input.dim() < 2:
        raise Uncovered("for an input without channels")
    return (*input.shape[:2], *[1] * (input.dim() - 2))


def _dropped(draw: Streams, input: Tensor, p: float, shape: Sequence[int]) -> Tensor:
    return input * _noise(draw, input, p, shape)


def _alpha_dropped(draw: Streams, input: Tensor, p: float, shape: Sequence[int]) -> Tensor:
    """Set dropped numbers to the limit of SELU, -1.758, then restore mean and variance.

    Klambauer et al., "Self-normalizing neural networks", 2017, https://arxiv.org/abs/1706.02515.
    """
    if p == 1:
        return input * _noise(draw, input, p, shape)
    limit = 1.7580993408473766
    scale = 1 / math.sqrt((limit**2 * p + 1) * (1 - p))
    with torch.no_grad():
        kept = below(draw, shape, 1 - p, input.device).to(input.dtype)
        term = (kept - 1) * (limit * scale) + limit * scale * p
        factor = kept * scale
    return input * factor + term


def _register(
    function: Any,
    in_place: Any,
    kind: Callable[..., Tensor],
    shape: Callable[[Tensor], Sequence[int]],
) -> None:
    @replaces(function)
    def dropout(draw: Streams, input: Tensor, p: float, train: bool) -> Tensor:
        return kind(draw, input, p, shape(input)) if train and p else input

    @replaces(in_place)
    def dropout_(draw: Streams, input: Tensor, p: float, train: bool) -> Tensor:
        return input.copy_(kind(draw, input, p, shape(input))) if train and p else input


_register(torch.dropout, torch.dropout_, _dropped, lambda x: x.shape)
_register(torch.feature_dropout, torch.feature_dropout_, _dropped, _channels)
_register(torch.alpha_dropout, torch.alpha_dropout_, _alpha_dropped, lambda x: x.shape)
_register(torch.feature_alpha_dropout, torch.feature_alpha_dropout_, _alpha_dropped, _channels)


@replaces(torch.rrelu)
def _rrelu(
    draw: Streams,
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    **options: Any,
) -> Tensor:
    if not training:
        return torch.rrelu(input, lower, upper)
    with torch.no_grad():
        slopes = uniform(draw, input.shape, input.dtype, input.device) * (upper - lower) + lower
    return torch.where(input <= 0, input * slopes, input)


@replaces(torch.rrelu_)
def _rrelu_(draw: Streams, input: Tensor, *args: Any, **options: Any) -> Tensor:
    return input.copy_(_rrelu(draw, input, *args, **options))


_attend = functional.scaled_dot_product_attention


@replaces(_attend)
def _attention(
    draw: Streams,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """With dropout, softmax(q k' * scale + mask) is dropped from before it weighs the values."""
    if not dropout_p:
        options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
        return _attend(query, key, value, attn_mask, 0.0, is_causal, **options)
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(repeats, -3)
        value = value.repeat_interleave(repeats, -3)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * factor
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = scores.softmax(-1)
    return _dropped(draw, weights, dropout_p, weights.shape) @ value


def _layer_by_layer(function: Callable[..., Any]) -> None:
    """Replace a recurrent network that has dropout between its layers."""

    @replaces(function)
    def layers(draw: Streams, *args: Any, **kwargs: Any) -> Any:
        # The arguments are (input, state, weights, …), or for a packed sequence (data, batch_sizes,
        # state, weights, …).
        at = next(index for index, arg in enumerate(args) if isinstance(arg, list))
        *before, state = args[:at]
        weights, biases, count, p, train, both, *rest = args[at:]
        # torch's own function is faster, and the same if nothing is dropped.
        if count == 1 or not (train and p) or kwargs:
            return function(*args, **kwargs)
        parts = state if isinstance(state, tuple | list) else (state,)
        ways, each = 1 + both, len(weights) // count
        given, final = before[0], list[Any]()
        single = biases, 1, 0.0, train, both, *rest  # the options of one layer, without dropout
        for layer in range(count):
            states = tuple([part[ways * layer : ways * (layer + 1)] for part in parts])
            own = states if isinstance(state, tuple | list) else states[0]
            of_layer = list(weights[each * layer : each * (layer + 1)])
            given, *left = function(given, *before[1:], own, of_layer, *single)
            final.append(left)
            if layer + 1 < count:
                given = _dropped(draw, given, p, given.shape)
        return (given, *[torch.cat(list(part)) for part in zip(*final, strict=True)])


for _function in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu):
    _layer_by_layer(_function)


def _open(function: Any) -> None:
    """Also replace the random functions that a function of torch calls inside.

    Torch passes only the outermost function to a mode, and then leaves the mode. So a copy is
    called within the mode, which does not ask for modes itself.
    """
    unasked: Callable[..., bool] = lambda *_: False  # noqa: E731
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    known = {**function.__globals__, **dict.fromkeys(names, unasked)}
    copy = FunctionType(
        function.__code__, known, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__

    @replaces(function)
    def opened(draw: Streams, *args: Any, **kwargs: Any) -> Any:
        with draw:
            return copy(*args, **kwargs)


for _each in (
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
    functional.rrelu,
    functional.gumbel_softmax,
    functional.multi_head_attention_forward,
    # activation checkpointing computes parts of the step again in the backward pass
    torch.autograd.grad,
):
    _open(_each)
