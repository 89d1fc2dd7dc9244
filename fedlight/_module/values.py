"""Values of a module's attributes: how they are copied, compared with a copy, and written back.

Layers, parameters, classes, data sets and random generators stand for themselves.
"""

from __future__ import annotations

import copy
import operator
from collections import OrderedDict, deque
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np
import torch
from lightning import Fabric, LightningDataModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedlight._module.attributes import GENERATORS
from fedlight._module.current_stage import Moment

_ATOMS = frozenset({bool, int, str, bytes, type(None)})
_NUMBERS = frozenset({float, complex})
_CONTAINERS = frozenset({dict, OrderedDict, list, tuple})
_THEMSELVES = (
    nn.Module,
    nn.Parameter,
    type,
    BuiltinFunctionType,
    ModuleType,
    Moment,
    Fabric,
    Dataset,
    DataLoader,
    LightningDataModule,
    *GENERATORS,
)
_SMALL = 4 * 2**20
LARGE = 64 * 2**20
"""Bytes of a tensor from which on it is not copied."""
_MOST = 1000
"""Items of a container from which on its items are not copied."""
_DATA = 100_000
"""Items of a container from which on it holds data and is not copied."""
_SAMPLE = 4096
"""Numbers of a tensor that is not small, with which a write to its ``.data`` is noticed."""
MISSING: Any = object()
"""In place of an attribute that is not there."""


def copied(value: Any, memo: dict[int, Any]) -> Any:
    """A copy; what stands for itself, or cannot be copied, is the same in it."""
    kind = type(value)
    if kind in _ATOMS or kind in _NUMBERS or isinstance(value, _THEMSELVES):
        return value
    if id(value) in memo:
        return memo[id(value)]
    try:
        made = _copy(value, memo)
    except Exception:  # a copy may raise anything
        made = value
    memo[id(value)] = made
    return made


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, Tensor):
        if value.nbytes > LARGE:
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, np.ndarray | bytearray):
        return value.copy()
    if isinstance(value, MethodType | partial | FunctionType):
        return _copied_function(value, memo)
    if isinstance(value, list | deque | dict | set | tuple):
        if isinstance(value, set):
            return copy.copy(value)
        if len(value) > _MOST:
            return value if len(value) > _DATA or isinstance(value, tuple) else copy.copy(value)
        if isinstance(value, tuple):
            items = [copied(each, memo) for each in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            made = value if same else _tuple_of(value, items)
        else:
            made = memo[id(value)] = copy.copy(value)
            if isinstance(value, dict):
                for key, item in value.items():
                    dict.__setitem__(cast(Any, made), key, copied(item, memo))
            else:
                for index, item in enumerate(value):
                    made[index] = copied(item, memo)
        return made
    fields = fields_of(value)
    if not fields and not _is_plain(value):
        return value  # a number of another kind, a path, a lock
    made = memo[id(value)] = copy.copy(value)
    if made is not value:
        for name, item in fields.items():
            object.__setattr__(made, name, copied(item, memo))
    return made


def _copied_function(value: Any, memo: dict[int, Any]) -> Any:
    """A function with copies of what it holds: its object, its arguments or its closure."""
    if isinstance(value, MethodType):
        own = copied(value.__self__, memo)
        return value if own is value.__self__ else MethodType(value.__func__, own)
    if isinstance(value, FunctionType):
        held = _held(value)
        memo[id(value)] = value  # it may hold itself
        own = [copied(each, memo) for each in held]
        if all(map(operator.is_, own, held)):
            return value
        cells = tuple(map(CellType, own))
        made = FunctionType(
            value.__code__, value.__globals__, value.__name__, value.__defaults__, cells
        )
        made.__kwdefaults__, made.__module__ = value.__kwdefaults__, value.__module__
        made.__dict__.update(vars(value))
        return made
    args, keywords = copied(value.args, memo), copied(value.keywords, memo)
    if args is value.args and not value.keywords:
        return value
    return type(value)(value.func, *args, **keywords)


def _held(function: FunctionType) -> list[Any]:
    """The values of the variables of other functions that a function reads."""
    return [each.cell_contents for each in function.__closure__ or ()]


def written(live: Any, value: Any, memo: dict[int, Any]) -> Any:
    """The live object with a value written into it, if it can take it; else a copy of the value.

    So others who hold the object (a callback, another attribute) see the value, too.
    """
    kind = type(live)
    functions = (FunctionType, MethodType, partial)
    if kind is not type(value) or isinstance(live, (*_THEMSELVES, *functions)):
        return copied(value, memo)
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(live, Tensor | np.ndarray):
        if live.shape != value.shape or live.dtype != value.dtype:
            return copied(value, memo)
        if isinstance(live, Tensor):
            live.data.copy_(value)
        else:
            live[...] = value
    elif isinstance(live, dict):
        memo[id(value)] = live
        items = [(key, written(live.get(key, MISSING), item, memo)) for key, item in value.items()]
        live.clear()
        for key, item in items:
            dict.__setitem__(cast(Any, live), key, item)
    elif isinstance(live, list | deque):
        memo[id(value)] = live
        olds = [*live, *[MISSING] * len(value)]
        news = [written(old, item, memo) for old, item in zip(olds, value, strict=False)]
        live.clear()
        live.extend(news)
    elif isinstance(live, set):
        live.clear()
        live.update(value)
    elif _is_plain(live):
        memo[id(value)] = live
        for name, item in fields_of(value).items():
            old = fields_of(live).get(name, MISSING)
            object.__setattr__(live, name, written(old, item, memo))
    else:
        return copied(value, memo)
    memo[id(value)] = live
    return live


def _tuple_of(like: Any, items: list[Any]) -> Any:
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)


def fields_of(value: Any) -> dict[str, Any]:
    """The attributes of a plain object, those in ``__slots__`` too."""
    attributes = getattr(value, "__dict__", None)
    found = dict(attributes) if type(attributes) is dict else {}
    for each in type(value).__mro__:
        names = each.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _is_plain(value: Any) -> bool:
    return type(getattr(value, "__dict__", None)) is dict


class Compared:
    """Compares live values with copies that were made of them earlier."""

    def __init__(self) -> None:
        # By the identity of a live tensor: the tensor, its version, and the copy that it equals.
        self._tensors: dict[int, tuple[Tensor, int, Tensor | None]] = {}
        self._pairs: set[tuple[int, int]] = set()

    def begin(self) -> None:
        """Called before each comparison of a module."""
        self._pairs.clear()
        if len(self._tensors) > _MOST:
            self._tensors.clear()

    def note(self, tensor: Tensor, equal: Tensor | None) -> None:
        """Note that a tensor equals a copy now."""
        if not tensor.is_inference():
            self._tensors[id(tensor)] = tensor, tensor._version, equal

    def moved(self, tensor: Tensor) -> bool:
        """Whether a tensor was written to since it was noted."""
        known = self._tensors.get(id(tensor))
        return known is not None and known[0] is tensor and known[1] != tensor._version

    def same_tensor(self, live: Tensor, kept: Tensor | None) -> bool:
        """Whether a tensor has the numbers of a copy."""
        if kept is None or live is kept:
            return True
        known = self._tensors.get(id(live))
        noted = known is not None and known[0] is live and known[2] is kept
        # Of small tensors the numbers are compared: to write to ``.data`` counts as no version.
        small = live.nbytes <= _SMALL
        if not small and noted and known is not None and known[1] == live._version:
            every = max(1, live.numel() // _SAMPLE)
            if not live.is_contiguous() or torch.equal(
                live.detach().reshape(-1)[::every], kept.detach().reshape(-1)[::every]
            ):
                return True
        if live.shape != kept.shape or live.dtype != kept.dtype or live.device != kept.device:
            return False
        equal = torch.equal(live, kept)
        if not equal and live.dtype.is_floating_point:  # a nan is equal to no number
            equal = bool(((live == kept) | ((live != live) & (kept != kept))).all())
        if equal:
            self.note(live, kept)
        return equal

    def same(self, live: Any, kept: Any) -> bool:
        """Whether a value is what was copied."""
        if live is kept:
            return True
        kind = type(live)
        if kind is not type(kept):
            return False
        if kind in _ATOMS:
            return bool(live == kept)
        if kind in _NUMBERS:
            return repr(live) == repr(kept)
        if kind in _CONTAINERS and not live:  # a layer has a dozen of hooks' dicts
            return not kept
        if kind not in _CONTAINERS and isinstance(live, _THEMSELVES):
            return False
        if kind in _CONTAINERS:
            return self._same_pair(live, kept)
        if isinstance(live, Tensor):
            return live.requires_grad == kept.requires_grad and self.same_tensor(live, kept)
        if isinstance(live, np.ndarray):
            return bool(
                live.dtype == kept.dtype
                and live.shape == kept.shape
                and live.tobytes() == kept.tobytes()
            )
        return self._same_pair(live, kept)

    def _same_pair(self, live: Any, kept: Any) -> bool:
        pair = id(live), id(kept)
        if pair in self._pairs:  # it holds itself, or was compared already
            return True
        self._pairs.add(pair)
        equal = self._same_parts(live, kept)
        if not equal:
            self._pairs.discard(pair)
        return equal

    def _same_parts(self, live: Any, kept: Any) -> bool:
        if isinstance(live, list | dict | deque) and len(live) > _MOST:
            try:
                return bool(live == kept)
            except Exception:  # arrays and tensors have no truth
                return False
        if isinstance(live, dict):
            return list(live) == list(kept) and all(
                item is other or self.same(item, other)
                for item, other in zip(live.values(), kept.values(), strict=True)
            )
        if isinstance(live, MethodType):
            return live.__func__ is kept.__func__ and self.same(live.__self__, kept.__self__)
        if isinstance(live, FunctionType):
            return live.__code__ is kept.__code__ and all(
                map(self.same, (_held(live), live.__defaults__), (_held(kept), kept.__defaults__))
            )
        if isinstance(live, partial):
            return live.func is kept.func and all(
                map(self.same, (live.args, live.keywords), (kept.args, kept.keywords))
            )
        if isinstance(live, list | tuple | deque):
            return len(live) == len(kept) and all(map(self.same, live, kept))
        if isinstance(live, set):
            return bool(live == kept)
        fields = fields_of(live)
        if fields or _is_plain(live):
            others = fields_of(kept)
            return fields.keys() == others.keys() and all(
                self.same(item, others[name]) for name, item in fields.items()
            )
        try:
            return (live == kept) is True
        except Exception:  # a comparison may raise anything
            return False
