"""The operators of which a client's bits in a stack do not depend on who else is in it.

The table holds for torch on a CPU, float32 and float64, one thread, MKL's strict reproducibility
(`fedlight._support.products`) and stacks of at least two. It was measured with torch 2.13 on the
AVX2 and AVX-512 builds of its operators and on MKL's AVX2 and Intel AVX-512 paths, and
``tests/executors/stack/test_independence.py`` measures it on the machine at hand: each operator is
computed, with its gradient, in stacks of several widths and from several places on, for several
shapes, and the rows are compared bit by bit.

Not in the table, as their bits depend on company: convolutions, products that join the rows of all
clients (``mm``, ``addmm``), torch's own batch normalisation, and all that was not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_STRUCTURE = """
    arange cat channel_shuffle clone constant_pad_nd copy diag_embed diagonal_copy empty
    empty_like empty_strided eye fill flip linspace pixel_shuffle pixel_unshuffle unsafe_split
    full full_like gather index index_add index_put index_select lift_fresh masked_fill
    new_empty new_empty_strided new_full new_ones new_zeros ones ones_like repeat roll
    scalar_tensor diagonal_backward scatter scatter_add select_backward select_scatter
    slice_backward slice_scatter sort squeeze stack t topk transpose tril triu unbind unsqueeze
    where _to_copy _unsafe_index _unsafe_index_put _unsafe_view zero zeros zeros_like
    _efficientzerotensor _local_scalar_dense
"""
_ARITHMETIC = """
    abs add addcdiv addcmul ceil clamp clamp_max clamp_min div floor fmod frac lerp maximum minimum
    mul neg reciprocal remainder round rsqrt rsub sgn sign sqrt sub trunc
    eq ge gt le lt ne isnan isinf logical_and logical_not logical_or logical_xor
"""
_FUNCTIONS = """
    acos acosh asin asinh atan cos digamma erf erfc erfinv exp expm1 lgamma log log10 log1p log2
    polygamma sin sinc tan tanh tanh_backward sigmoid_backward logit xlogy
"""
_ACTIVATIONS = """
    glu glu_backward hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward hardswish
    hardswish_backward hardtanh hardtanh_backward leaky_relu leaky_relu_backward log_sigmoid_forward
    log_sigmoid_backward relu softshrink softshrink_backward threshold threshold_backward
    _prelu_kernel _prelu_kernel_backward
"""
_REDUCTIONS = """
    all amax amin any argmax argmin cumprod cumsum linalg_vector_norm logcumsumexp logsumexp max
    mean min prod std sum var var_mean
    _log_softmax _log_softmax_backward_data _softmax _softmax_backward_data
"""
_LAYERS = """
    bmm baddbmm embedding embedding_dense_backward native_group_norm native_layer_norm
    native_layer_norm_backward
    avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
    max_pool2d_with_indices max_pool2d_with_indices_backward
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
"""
_LOSSES = """
    binary_cross_entropy binary_cross_entropy_backward huber_loss mse_loss
    smooth_l1_loss
"""
_HALF_SCALAR = """
    atan2 atanh celu cosh elu elu_backward exp2 gelu gelu_backward hypot logaddexp mish
    pow sigmoid silu sinh softplus softplus_backward
"""
MOVING = frozenset(_STRUCTURE.split())
"""The operators that make, move or choose numbers, and compute none."""

INDEPENDENT = frozenset(
    " ".join(
        (_STRUCTURE, _ARITHMETIC, _FUNCTIONS, _ACTIVATIONS, _REDUCTIONS, _LAYERS, _LOSSES)
    ).split()
)
"""The operators that are independent whatever their inputs are."""

WITH_GAPS = frozenset(_HALF_SCALAR.split())
"""Those that are if one input has a gap between the clients (`SteadyFunctions`)."""

REDUCTIONS = frozenset(_REDUCTIONS.split())
"""Those that are if the clients are the first dimension, the outermost one in memory.

Otherwise, as in the sum of a list's k numbers by client, ``[k, n]``, clients are lanes of a vector.
"""

_BATCHED_PRODUCTS = ("bmm", "baddbmm")
_PRECISE = (torch.float32, torch.float64)
_EXACT_POWERS = (-1, -0.5, 0, 0.5, 1, 2, 3)

_alone: list[bool] = []


@contextmanager
def one_client() -> Iterator[None]:
    """Within the context, one client is computed by itself: no operator is one of a stack."""
    _alone.append(True)
    try:
        yield
    finally:
        _alone.pop()


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within the context, collects the operators that are not in the table.

    Attributes:
        seen: The names of all operators.
        dependent: The names of those that are not in the table, in their order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()
        self.dependent: dict[str, None] = {}
        self._splits_products = False

    @property
    def one_thread(self) -> bool:
        """Whether several threads for products might change a bit.

        They do not if all products are batched ones, of which each matrix belongs to one thread.
        """
        return self._splits_products or bool(self.dependent)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the operator and take down its name."""
        result = func(*args, **(kwargs or {}))
        if not _alone:
            name = operator_name(func)
            self.seen.add(name)
            inputs = [*_tensors(args), *_tensors(kwargs)]
            outputs = list(_tensors(result))
            if not (_only_looks(func) or _counts(inputs, outputs)):
                odd = [str(t.dtype) for t in (*inputs, *outputs) if not _is_plain(t)]
                if odd:
                    self.dependent[f"numbers of {odd[0]}"] = None
                elif not (name in INDEPENDENT or _is_apart(name, args, inputs)):
                    self.dependent[name] = None
                elif name in REDUCTIONS and _is_across(func, args, inputs, outputs):
                    self.dependent[f"{name} along the clients"] = None
                elif name in _BATCHED_PRODUCTS:
                    self._splits_products |= not all(map(_is_batch_of_matrices, inputs))
                elif name.startswith("_scaled_dot_product"):
                    self._splits_products = True
        return result


def _tensors(given: Any) -> Iterator[Tensor]:
    """The tensors that an operator is given or returns: alone, in lists, by name."""
    # Operators take no other containers, and torch's own walk through them takes longer than many
    # an operator.
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for each in given:
            yield from _tensors(each)
    elif isinstance(given, dict):
        for each in given.values():
            yield from _tensors(each)


@cache
def operator_name(func: Any) -> str:
    """The name by which an operator is listed: that of its kin that returns a new tensor."""
    name = str(func.overloadpacket.__name__)
    if func.namespace not in ("aten", "prims"):
        return f"{func.namespace}::{name}"
    name = name.removeprefix("_foreach_")
    return name if name.startswith("__") else name.rstrip("_")


@cache
def _only_looks(func: Any) -> bool:
    """Whether an operator returns views."""
    returns = func._schema.returns
    return bool(returns) and all(
        each.alias_info is not None and not each.alias_info.is_write for each in returns
    )


def _counts(inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    """Whether an operator computes with whole numbers only, which are exact."""
    each = (*inputs, *outputs)
    return bool(each) and not any(t.is_floating_point() or t.is_complex() for t in each)


def _is_plain(tensor: Tensor) -> bool:
    floating = tensor.is_floating_point() or tensor.is_complex()
    return tensor.layout is torch.strided and (not floating or tensor.dtype in _PRECISE)


def _is_batch_of_matrices(tensor: Tensor) -> bool:
    """Whether MKL's batched product takes it; torch multiplies the others one by one."""
    (n, rows, columns), (_, down, along) = tensor.shape, tensor.stride()
    return n > 1 and ((along == 1 and down >= columns) or (down == 1 and along >= rows))


def _is_apart(name: str, args: tuple[Any, ...], inputs: list[Tensor]) -> bool:
    if name == "pow" and not isinstance(args[1], Tensor | list) and args[1] in _EXACT_POWERS:
        return True
    return name in WITH_GAPS and any(map(_has_gaps, inputs))


def _has_gaps(tensor: Tensor) -> bool:
    """Whether the numbers of one client do not reach to those of the next one."""
    if tensor.dim() == 0:
        return False
    pairs = zip(tensor.shape[1:], tensor.stride()[1:], strict=True)
    return tensor.stride(0) > 1 + sum((size - 1) * stride for size, stride in pairs)


def _is_across(
    func: Any, args: tuple[Any, ...], inputs: list[Tensor], outputs: list[Tensor]
) -> bool:
    """Whether a reduction treats the clients as numbers of one vector.

    It does if they are not outermost in memory. A sum also does if it adds one number repeatedly
    (as ``expand`` makes it) and no other number lies between those of two clients.
    """
    name, source = operator_name(func), inputs[0]
    if source.dim() < 2 or all(each.numel() < 2 for each in outputs):
        return False
    names = [each.name for each in func._schema.arguments]
    place = names.index("dim") if "dim" in names else len(args)
    dims = args[place] if place < len(args) else ()
    over = {dim % source.dim() for dim in (dims if isinstance(dims, list | tuple) else [dims])}
    sides = list(zip(source.shape, source.stride(), strict=True))
    if 0 in over or len(source) == 1:
        return 0 in over
    if name in ("sum", "mean") and any(sides[dim][0] > 1 and sides[dim][1] == 0 for dim in over):
        left = source[tuple(0 if dim in over else slice(None) for dim in range(source.dim()))]
        return left.is_contiguous()
    return 0 < source.stride(0) < max(stride for size, stride in sides if size > 1)
