"""The state of an aggregator as tensors and plain data, and back."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from torch import Tensor

_DICTS: dict[str, Any] = {kind.__name__: kind for kind in (dict, OrderedDict, Counter, defaultdict)}


@runtime_checkable
class Part(Protocol):
    """An object that saves and restores its own state, such as a client memory."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Restore the state."""


def is_part(value: object) -> TypeGuard[Part]:
    """Whether `value` saves and restores its own state; a class does not, its objects do."""
    return isinstance(value, Part) and not isinstance(value, type)


def pack(value: Any, name: str) -> Any:
    """Return `value` as tensors, numbers, strings and lists.

    A checkpoint holds no tuples, sets or arrays, so each container is stored as ``[kind, items]``
    and is restored with its kind.

    Args:
        value: The value of an attribute.
        name: The attribute's name, for the error message.

    Raises:
        TypeError: The value cannot be stored.
    """
    # NumPy's float64 is also a float, but acts differently in arithmetic with float32 arrays.
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return [kind, torch.from_numpy(np.array(value))]
    if value is None or isinstance(value, bool | int | float | str | Tensor):
        return value
    if type(value) in (list, tuple, set):
        return [type(value).__name__, [pack(item, name) for item in value]]
    if type(value) is deque:
        return ["deque", [value.maxlen, [pack(item, name) for item in value]]]
    if type(value) in _DICTS.values():
        pairs = [[pack(key, name), pack(item, name)] for key, item in value.items()]
        return [type(value).__name__, pairs]
    if is_part(value):
        return ["part", value.state_dict()]
    raise TypeError(
        f"{name} is a {type(value).__name__}, which a checkpoint cannot hold: keep tensors, "
        "numbers, strings, lists, tuples, sets, deques and dicts of them, or an object with "
        "state_dict and load_state_dict"
    )


def unpack(packed: Any, present: Any, device: torch.device, name: str) -> Any:
    """Return the value that `pack` stored.

    Args:
        packed: The value that `pack` returned.
        present: The attribute's value after set-up, or None: a part restores itself, and a tensor
            is restored on the device of the tensor that it replaces.
        device: The device for other tensors.
        name: The attribute's name, for the error message.

    Raises:
        TypeError: A part was made after set-up, so it cannot be restored.
    """
    if isinstance(packed, Tensor):
        alike = isinstance(present, Tensor) and present.shape == packed.shape
        if alike and present.dtype == packed.dtype:
            # Into the tensor that `start` made, so that views of it, an optimizer over it and other
            # names for it stay valid.
            with torch.no_grad():
                return present.copy_(packed)
        # A copy, since two aggregators must not share a tensor that they change in place.
        return packed.to(present.device if isinstance(present, Tensor) else device, copy=True)
    if not isinstance(packed, list):
        return packed
    kind, items = packed
    if kind == "part":
        if not is_part(present):
            raise TypeError(f"{name} cannot be restored: make it in start(federation, state)")
        present.load_state_dict(items)
        return present
    if kind in ("array", "scalar"):
        array = items.cpu().numpy().copy()
        return array if kind == "array" else array[()]
    if kind in _DICTS:
        known = present if isinstance(present, dict) else {}
        keys = [unpack(key, None, device, name) for key, _ in items]
        found = {
            key: unpack(item, known.get(key), device, name)
            for key, (_, item) in zip(keys, items, strict=True)
        }
        if kind != "defaultdict":
            return _DICTS[kind](found)
        if not isinstance(present, defaultdict):  # whose function no checkpoint holds
            raise TypeError(f"{name} cannot be restored: make it in start(federation, state)")
        return defaultdict(present.default_factory, found)
    if kind == "deque":
        most, items = items
        return deque((unpack(item, None, device, name) for item in items), most)
    made = list(present) if isinstance(present, list | tuple) else []
    made += [None] * (len(items) - len(made))
    values = [unpack(item, each, device, name) for item, each in zip(items, made, strict=False)]
    return {"list": list, "tuple": tuple, "set": set}[kind](values)
