"""Torch functions that make or fill a tensor with random numbers, on a stream (`streams`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from fedlight.executors._random.variates import DIGITS, Uncovered, below, quantiles, uniform, whole

if TYPE_CHECKING:
    from fedlight.executors._random.streams import Streams

F = TypeVar("F", bound=Callable[..., Any])

FUNCTIONS: dict[Any, Callable[..., Any]] = {}
"""The covered functions of torch, with the replacement of each on a stream."""


def replaces(*functions: Any) -> Callable[[F], F]:
    """Register a function in `FUNCTIONS` as the replacement of others."""

    def listed(function: F) -> F:
        FUNCTIONS.update(dict.fromkeys(functions, function))
        return function

    return listed


def _filled(
    values: Callable[[tuple[int, ...], torch.dtype, Any], Tensor],
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **others: Any,
) -> Tensor:
    usual = {"generator": None, "pin_memory": others.get("pin_memory"), "layout": torch.strided}
    unknown = [name for name, each in others.items() if each not in (None, usual.get(name))]
    if unknown:
        raise Uncovered(f"with {', '.join(sorted(unknown))}=")
    where = torch.get_default_device() if device is None else torch.device(device)
    with torch.no_grad():
        made = values(tuple(size), dtype or torch.get_default_dtype(), where)
    return made.requires_grad_() if requires_grad else made


def _size(size: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, ...]:
    given = options.pop("size", size)
    return tuple(given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given)


def _like(tensor: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    options.pop("memory_format", None)
    given = {name: value for name, value in options.items() if value is not None}
    return {"dtype": tensor.dtype, "device": tensor.device} | given


@replaces(torch.rand)
def _rand(draw: Streams, *size: Any, **options: Any) -> Tensor:
    shape = _size(size, options)
    return _filled(lambda *how: uniform(draw, *how), shape, **options)


@replaces(torch.rand_like)
def _rand_like(draw: Streams, input: Tensor, **options: Any) -> Tensor:
    return _rand(draw, input.shape, **_like(input, options))


@replaces(torch.randn)
def _randn(draw: Streams, *size: Any, **options: Any) -> Tensor:
    shape = _size(size, options)
    return _filled(lambda *how: quantiles(draw, "normal", *how), shape, **options)


@replaces(torch.randn_like)
def _randn_like(draw: Streams, input: Tensor, **options: Any) -> Tensor:
    return _randn(draw, input.shape, **_like(input, options))


@replaces(torch.randint)
def _randint(draw: Streams, *args: Any, **options: Any) -> Tensor:
    numbers = list(args)
    if numbers and isinstance(numbers[-1], list | tuple):
        options["size"] = numbers.pop()
    numbers = [*numbers, *(options.pop(name) for name in ("low", "high") if name in options)]
    if any(isinstance(number, Tensor) for number in numbers):
        raise Uncovered("between tensors")
    low, high = numbers if len(numbers) == 2 else (0, *numbers)
    shape = _size((), options)
    options["dtype"] = options.get("dtype") or torch.int64
    return _filled(lambda s, dt, dev: whole(draw, low, high, s, dev).to(dt), shape, **options)


@replaces(torch.randint_like)
def _randint_like(draw: Streams, input: Tensor, *args: Any, **options: Any) -> Tensor:
    return _randint(draw, *args, tuple(input.shape), **_like(input, options))


@replaces(torch.randperm)
def _randperm(draw: Streams, n: int, **options: Any) -> Tensor:
    options["dtype"] = options.get("dtype") or torch.int64

    def values(shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> Tensor:
        return draw.bits(shape, device, torch.int64).argsort().to(dtype)

    return _filled(values, (n,), **options)


@replaces(torch.empty)
def _empty(draw: Streams, *size: Any, **options: Any) -> Tensor:
    """In a stack, a tensor for each client, so that it can be filled with random numbers."""
    key = draw.key
    if not draw.stacked or isinstance(key, int) or options.keys() - {"size", "dtype", "device"}:
        return torch.empty(*size, **options)
    shape = _size(size, options)
    dtype = options.get("dtype") or torch.get_default_dtype()
    return key.new_empty(shape, dtype=dtype, device=options.get("device"))


@replaces(torch.normal)
def _normal(
    draw: Streams, mean: Any = 0.0, std: Any = 1.0, size: Any = None, **options: Any
) -> Tensor:
    given = [each for each in (mean, std) if isinstance(each, Tensor)]
    if not given:
        return _randn(draw, size, **options).mul(std).add(mean)
    if any(value is not None for value in options.values()):
        raise Uncovered(f"with {', '.join(sorted(options))}=")
    like = given[0]
    with torch.no_grad():
        shape = (mean + std).shape
        drawn = quantiles(draw, "normal", shape, like.dtype, like.device)
        made: Tensor = (drawn * std + mean).to(like.dtype)
    return made


@replaces(torch.bernoulli, torch.Tensor.bernoulli)
def _bernoulli(draw: Streams, input: Tensor, p: Any = None, **options: Any) -> Tensor:
    if options.get("out") is not None:
        raise Uncovered("with out=")
    with torch.no_grad():
        return _coins(draw, input, input if p is None else p).to(input.dtype)


def _coins(draw: Streams, input: Tensor, p: Any) -> Tensor:
    if not isinstance(p, Tensor):
        return below(draw, input.shape, float(p), input.device)
    dtype = torch.float64 if p.dtype == torch.float64 else torch.float32
    drawn: Tensor = uniform(draw, input.shape, dtype, input.device) < p
    return drawn


@replaces(torch.multinomial, torch.Tensor.multinomial)
def _multinomial(
    draw: Streams, input: Tensor, num_samples: int, replacement: bool = False, **options: Any
) -> Tensor:
    if options.get("out") is not None:
        raise Uncovered("with out=")
    with torch.no_grad():
        if replacement and num_samples > 1:
            sums = input.cumsum(-1)
            shape = (*input.shape[:-1], num_samples)
            drawn = uniform(draw, shape, sums.dtype, input.device) * sums[..., -1:]
            places = (sums.unsqueeze(-2) <= drawn.unsqueeze(-1)).sum(-1)
            return places.clamp(max=input.shape[-1] - 1)
        # Of independent exponential times with these rates, the smallest ones. Unlike a search in
        # cumulated sums, this draws without replacement.
        clocks = _exponential(draw, input.shape, input.dtype, input.device)
        found: Tensor = (input / clocks).topk(num_samples, dim=-1).indices
        return found


def _exponential(draw: Streams, shape: Sequence[int], dtype: torch.dtype, device: Any) -> Tensor:
    return quantiles(draw, "exponential", shape, dtype, device)


def _fills(*functions: Any) -> Callable[[Callable[..., Tensor]], Callable[..., Any]]:
    """Register a function that returns new values for methods that write them to a tensor."""

    def listed(function: Callable[..., Tensor]) -> Callable[..., Any]:
        @wraps(function)
        def fill(
            draw: Streams, tensor: Tensor, *args: Any, generator: Any = None, **kw: Any
        ) -> Any:
            with torch.no_grad():
                values = function(draw, tensor, *args, **kw)
            try:
                return tensor.copy_(values)
            except RuntimeError as error:
                if "vmap" in str(error):  # one tensor cannot hold the numbers of all clients
                    raise Uncovered("into a tensor that the step did not make itself") from error
                raise

        return replaces(*functions)(fill)

    return listed


def _as_filled(tensor: Tensor) -> tuple[Any, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device


@_fills(torch.Tensor.uniform_)
def _uniform_(draw: Streams, tensor: Tensor, a: float = 0, b: float = 1, **to: float) -> Tensor:
    a, b = to.get("from", a), to.get("to", b)
    return uniform(draw, *_as_filled(tensor)) * (b - a) + a


@_fills(torch.Tensor.normal_)
def _normal_(draw: Streams, tensor: Tensor, mean: float = 0, std: float = 1) -> Tensor:
    return quantiles(draw, "normal", *_as_filled(tensor)) * std + mean


@_fills(torch.Tensor.log_normal_)
def _log_normal_(draw: Streams, tensor: Tensor, mean: float = 1, std: float = 2) -> Tensor:
    return (quantiles(draw, "normal", *_as_filled(tensor)) * std + mean).exp()


@_fills(torch.Tensor.exponential_)
def _exponential_(draw: Streams, tensor: Tensor, lambd: float = 1) -> Tensor:
    return _exponential(draw, *_as_filled(tensor)) / lambd


@_fills(torch.Tensor.cauchy_)
def _cauchy_(draw: Streams, tensor: Tensor, median: float = 0, sigma: float = 1) -> Tensor:
    return quantiles(draw, "cauchy", *_as_filled(tensor)) * sigma + median


@_fills(torch.Tensor.geometric_)
def _geometric_(draw: Streams, tensor: Tensor, p: float) -> Tensor:
    if not 0 < p < 1:
        raise Uncovered(f"with the probability {p}")
    clocks = _exponential(draw, tensor.shape, torch.float32, tensor.device)
    return (clocks / -math.log1p(-p)).ceil().clamp(min=1)


@_fills(torch.Tensor.bernoulli_)
def _bernoulli_(draw: Streams, tensor: Tensor, p: Any = 0.5) -> Tensor:
    return _coins(draw, tensor, p)


@_fills(torch.Tensor.random_)
def _random_(draw: Streams, tensor: Tensor, *ends: int, **named: int) -> Tensor:
    given = [*ends, *(named[name] for name in ("from", "to") if named.get(name) is not None)]
    if not given:
        floating = tensor.is_floating_point()
        given = [(1 << DIGITS[tensor.dtype]) + 1 if floating else torch.iinfo(tensor.dtype).max]
    low, high = given if len(given) == 2 else (0, *given)
    return whole(draw, low, high, tensor.shape, tensor.device)
