"""Conversion between a module's state and flat vectors.

``delta = after - before`` everywhere. The trainable parameters are one vector of length P.
Floating buffers (BatchNorm's running statistics) and integer buffers are vectors of lengths Q and R
of their own, because they are averaged or counted and not optimised. A complex buffer is two
floating ones, its real and imaginary parts: a last dimension of 2. Parameters with
``requires_grad=False`` and the buffers of torchmetrics objects are in none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import is_
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torchmetrics import Metric, MetricCollection

from fedlight._support.flat_layout import FlatLayout
from fedlight._support.memory import new_tensor, sent
from fedlight.types import ServerState

_PIECE = 1 << 16
"""Numbers of each vector that are added up at a time."""


class _Slot(NamedTuple):
    """The place of a buffer in its module, and the tensor that belongs there."""

    tensors: dict[str, Tensor | None]
    name: str
    own: Tensor

    @classmethod
    def of(cls, module: nn.Module, name: str) -> _Slot:
        path, _, last = name.rpartition(".")
        tensors, own = module.get_submodule(path)._buffers, module.get_buffer(name)
        if _shares_with_itself(own):  # it could not be written to
            tensors[last] = own = own.clone(memory_format=torch.contiguous_format)
        return cls(tensors, last, own)

    @property
    def tensor(self) -> Tensor:
        tensor = self.tensors[self.name]
        return self.own if tensor is None else tensor

    def restored(self) -> Tensor:
        self.tensors[self.name] = self.own
        return as_real(self.own)


class ModuleState:
    """Reads and writes the state of one module as flat vectors.

    Args:
        module: The module. Its tensors keep their identity; only their values are written. If a
            step has replaced a buffer by another tensor, `write` puts the original one back.

    Raises:
        ValueError: Nothing in it can be trained, or a parameter is complex or has no values yet.
    """

    def __init__(self, module: nn.Module) -> None:
        params = {name: param for name, param in module.named_parameters() if param.requires_grad}
        if not params:
            raise ValueError(
                f"{type(module).__name__} has no parameter with requires_grad=True; "
                "there is nothing that a federation could train"
            )
        for name, param in params.items():
            if (reason := _why_untrainable(param)) is not None:
                raise ValueError(f"parameter {name!r} of {type(module).__name__} {reason}")
        buffers = {name: as_real(buffer) for name, buffer in _own_buffers(module)}
        floating = {name: b for name, b in buffers.items() if b.is_floating_point()}
        counting = {name: b for name, b in buffers.items() if name not in floating}
        self.module = module
        self._written: tuple[ServerState, list[int]] | None = None
        self._due: ServerState | None = None
        self._every = dict(module.named_parameters())
        self._trained = {name: param.requires_grad for name, param in self._every.items()}
        self.params = list(params.values())
        default = self.params[0].dtype
        self.param_layout = FlatLayout.of(params, default)
        self.buffer_layout = FlatLayout.of(floating, default)
        self.counter_layout = FlatLayout.of(counting, torch.int64)
        self._buffers = [_Slot.of(module, name) for name in floating]
        self._counters = [_Slot.of(module, name) for name in counting]
        self._slots = (self._buffers, self.buffer_layout), (self._counters, self.counter_layout)

    @property
    def parameter_names(self) -> Collection[str]:
        """The names of all parameters, those without a gradient included."""
        return self._every.keys()

    def check_kept(self) -> None:
        """Check that the module still has the parameters and the kinds of buffers that it had.

        Raises:
            ValueError: A parameter was replaced, added or removed, or began or ceased to require
                a gradient; or a buffer has another shape.
        """
        check_kept(self.module, self._every)
        name = type(self.module).__name__
        turned = [n for n, param in self._every.items() if param.requires_grad != self._trained[n]]
        for each in turned:
            self._every[each].requires_grad_(self._trained[each])
        if turned:
            raise ValueError(
                f"requires_grad of the parameters {', '.join(turned)} of {name} has changed during "
                "the run, for which it is fixed which parameters are trained: set it in __init__, "
                "setup or on_fit_start, and train others in another fit"
            )
        for slots, layout in self._slots:
            for slot, buffer, shape in zip(slots, layout.names, layout.shapes, strict=True):
                now = as_real(slot.tensor).shape
                if now != shape:
                    raise ValueError(
                        f"the buffer {buffer!r} of {name} has got the shape "
                        f"{tuple(now)} in training_step, and had {tuple(shape)}; the "
                        "server averages buffers of one shape: give it its final shape at once, or "
                        "keep it as a plain attribute"
                    )

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.params[0].device

    def read(self, version: int = 0) -> ServerState:
        """Return a copy of the module's state as a version of the server's model."""
        return ServerState(
            version=version,
            params=self.param_layout.flatten([param.detach() for param in self.params]),
            buffers=self.read_buffers(),
            counters=self.read_counters(),
        )

    def present(self) -> ServerState:
        """Return the state that the module holds now, to be written back later.

        It is the one that was written or returned here last, without a copy, unless a tensor was
        changed since.
        """
        self.show()
        if self._written is None or self.is_changed:
            self._written = self.read(), self._changes()
        return self._written[0]

    @property
    def is_changed(self) -> bool:
        """Whether a tensor of the module was changed since the last `write` or `present`."""
        return self._written is not None and self._written[1] != self._changes()

    def moved(self, pulled: Tensor) -> Tensor:
        """Return delta, the parameters minus those at the start, shape ``[P]``.

        Args:
            pulled: The parameters at the start, shape ``[P]``.
        """
        if any(param.dtype != pulled.dtype for param in self.params):
            return self.param_layout.flatten([param.detach() for param in self.params]) - pulled
        delta, layout = new_tensor(pulled.shape, pulled), self.param_layout
        for param, before, out in zip(
            self.params, layout.views(pulled), layout.views(delta), strict=True
        ):
            torch.sub(param.detach(), before, out=out)
        return delta

    def read_buffers(self) -> Tensor:
        """Return a copy of the floating buffers, shape ``[Q]``."""
        return self._flat(self._buffers, self.buffer_layout)

    def read_counters(self) -> Tensor:
        """Return a copy of the integer buffers, shape ``[R]``."""
        return self._flat(self._counters, self.counter_layout)

    def _changes(self) -> list[int]:
        """How often each tensor was changed; -1 for a buffer that a step has replaced."""
        slots = [*self._buffers, *self._counters]
        return [param._version for param in self.params] + [
            slot.own._version if slot.tensor is slot.own else -1 for slot in slots
        ]

    @torch.no_grad()
    def write(self, state: ServerState) -> None:
        """Copy a version of the server's model into the module."""
        _copy(self.params, self.param_layout.views(state.params))
        flats = state.buffers, state.counters
        for (slots, layout), flat in zip(self._slots, flats, strict=True):
            if slots:
                _copy([slot.restored() for slot in slots], layout.views(flat))
        self._written, self._due = (state, self._changes()), None

    def write_late(self, state: ServerState) -> None:
        """Keep a version that `show` writes, when something is about to read the module."""
        self._written, self._due = None, state

    def show(self) -> None:
        """Write the version that `write_late` has kept, if there is one."""
        if self._due is not None:
            self.write(self._due)

    @property
    def is_late(self) -> bool:
        """Whether a version is kept that is not written to the module yet."""
        return self._due is not None

    def _flat(self, slots: Sequence[_Slot], layout: FlatLayout) -> Tensor:
        if not slots:
            return torch.empty(0, dtype=layout.dtype, device=self.device)
        return layout.flatten([as_real(slot.tensor) for slot in slots])


def check_kept(
    module: nn.Module, before: Mapping[str, Tensor], names: Collection[str] = ()
) -> None:
    """Check that a module still has the parameters that it had before a step.

    Args:
        module: The module.
        before: Its parameters by name, before the step.
        names: The names of those that it had before the run, if steps may have added some since.

    Raises:
        ValueError: One of them was replaced, added or removed.
    """
    if names and before.keys() != names:
        before = {name: each for name, each in before.items() if name in names}
    now = dict(module.named_parameters())
    if len(now) == len(before) and all(map(is_, now.values(), before.values())):
        return
    changed = [name for name in {**before, **now} if now.get(name) is not before.get(name)]
    raise ValueError(
        f"training_step of {type(module).__name__} replaces, adds or removes the parameters "
        f"{', '.join(changed)}, which no optimizer would train; make them in __init__, setup or "
        "configure_model, and change their numbers in place, within torch.no_grad()"
    )


def _why_untrainable(param: Tensor) -> str | None:
    """Why a federation cannot train a parameter, and the remedy; None if it can."""
    if is_lazy(param) or param.is_meta:
        return (
            "has no values yet; run one batch through the module (lazy layers) or give it real "
            "tensors (meta device)"
        )
    if param.is_inference():
        return (
            "was made in torch.inference_mode(), so that it cannot be trained; make the module "
            "outside of it"
        )
    if _shares_with_itself(param):
        return (
            "is an expanded tensor: several of its numbers lie in one place in memory; make it "
            "nn.Parameter(tensor.expand(…).clone())"
        )
    if param.is_complex():
        return f"is complex ({param.dtype}); write it as two real parameters"
    return None


def _shares_with_itself(tensor: Tensor) -> bool:
    """Whether several elements lie in one place, as in an expanded tensor."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(step == 0 and length > 1 for length, step in pairs)


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as real numbers ``[*shape, 2]`` in the same memory; others unchanged."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def input_dtype(module: nn.Module) -> torch.dtype:
    """Return the dtype for floating-point inputs: the widest of the trainable parameters."""
    params = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return FlatLayout.of(params, torch.get_default_dtype()).dtype


def block_of(rows: Sequence[Tensor]) -> Tensor:
    """Return m vectors of length P as one block ``[m, P]``, which must not be changed in place.

    Nothing is copied if they are the first rows of a block already, in this order. This holds for
    the deltas of clients that were computed in one stack.
    """
    block = _common_block(rows)
    return torch.stack(list(rows)) if block is None else block


def weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the sum of w_i * t_i in the order given, as matrix products: m * P work.

    Args:
        tensors: m vectors of length P.
        weights: m weights.
    """
    factors, length = sent(weights, tensors[0].device, tensors[0].dtype), len(tensors[0])
    if length > _PIECE and _common_block(tensors) is None:
        # Piece by piece, since a block of all would take as much memory as they do.
        total = new_tensor((length,), tensors[0])
        for start in range(0, length, _PIECE):
            piece = torch.stack([tensor[start : start + _PIECE] for tensor in tensors])
            torch.mm(factors[None], piece, out=total[None, start : start + _PIECE])
        return total
    return factors @ block_of(tensors)


def shrinking(norms: Tensor, most: float) -> Tensor:
    """Return min(1, C / |u|), the factors that scale vectors down to a norm of at most C.

    Args:
        norms: |u|, the norm of each vector.
        most: C.
    """
    return (most / norms).clamp(max=1)


def _common_block(rows: Sequence[Tensor]) -> Tensor | None:
    """The block whose first rows these are, if they are rows of one."""
    first = rows[0]
    block, start, step = first._base, first.data_ptr(), first.nbytes
    if block is None or step == 0 or start != block.data_ptr() or not first.is_contiguous():
        return None
    for number, row in enumerate(rows):
        if row._base is not block or row.data_ptr() != start + number * step:
            return None
    return block.as_strided((len(rows), len(first)), (len(first), 1), first.storage_offset())


def _own_buffers(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    metrics = tuple(
        f"{name}."
        for name, child in module.named_modules()
        if isinstance(child, Metric | MetricCollection)
    )
    for name, buffer in module.named_buffers():
        if not name.startswith(metrics):
            yield name, buffer


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    torch._foreach_copy_(list(targets), list(sources))
