"""What a step leaves on a module beside its parameters and buffers: counters, lists, tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from lightning import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_PLAIN = (int, float, complex, str, bytes, type(None))
_CONTAINERS = (dict, list, set, deque)
_CLOSED = (nn.Module, Tensor, np.ndarray, type, FunctionType, MethodType, ModuleType)
_DEPTH = 3
_MOST = 1000  # longer containers are data, not what a step keeps


class Change(NamedTuple):
    """An attribute of a module that is another one than it was.

    Attributes:
        name: Its name, with the path of the layer that has it, such as ``net.last``.
        owner: The attributes of the module or of that layer.
        key: Its name there.
        tensors: Whether tensors in it have changed, come or gone.
    """

    name: str
    owner: MutableMapping[str, Any]
    key: str
    tensors: bool


class Kept:
    """The attributes of a module and of its layers as they are now.

    Numbers and strings are compared by value, tensors by identity and by whether they were written
    to, and so is what lies in lists, dicts, sets and plain objects. Parameters and buffers have
    their own place, and metric objects are reset for each client.

    Args:
        module: The module.
    """

    def __init__(self, module: LightningModule) -> None:
        everywhere = set(vars(LightningModule())) - {"training"} | {"log", "log_dict"}
        self._everywhere = everywhere
        self._layers = [
            (path, vars(layer))
            for path, layer in module.named_modules()
            if not isinstance(layer, Metric | MetricCollection)
        ]
        self._before = [dict(self._own(layer)) for _, layer in self._layers]
        self._contents: dict[int, tuple[Any, Any]] = {}
        self._tensors: dict[int, tuple[Tensor, int, Tensor]] = {}
        for attributes in self._before:
            for value in attributes.values():
                self._remember(value, _DEPTH)

    def changes(self) -> list[Change]:
        """What has changed, by name."""
        found = {}
        for (path, layer), before in zip(self._layers, self._before, strict=True):
            now = dict(self._own(layer))
            for key in {**before, **now}:
                parts = list(self._differing(before.get(key), now.get(key), _DEPTH))
                if parts or (key in before) != (key in now):
                    name = f"{path}.{key}".lstrip(".")
                    found[name] = Change(name, layer, key, any(map(_holds_tensors, parts)))
        return [found[name] for name in sorted(found)]

    def restore(self) -> None:
        """Put everything back as it was."""
        for (_, layer), before in zip(self._layers, self._before, strict=True):
            for key in [key for key, _ in self._own(layer) if key not in before]:
                del layer[key]
            layer.update(before)
        for holder, content in self._contents.values():
            if isinstance(holder, dict | set):
                holder.clear()
                holder.update(content)
            else:
                holder.clear()
                holder.extend(content)
        for tensor, version, content in list(self._tensors.values()):
            if tensor._version != version:
                tensor.data.copy_(content)  # which does not count as a version
                self._tensors[id(tensor)] = tensor, tensor._version, content

    def _own(self, layer: MutableMapping[str, Any]) -> Iterator[tuple[str, Any]]:
        return ((key, value) for key, value in layer.items() if key not in self._everywhere)

    def _remember(self, value: Any, depth: int) -> None:
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            self._tensors[id(value)] = value, value._version, value.detach().clone()
        holder = _holder(value)
        if holder is None or not depth or id(holder) in self._contents or len(holder) > _MOST:
            return
        if isinstance(holder, _CONTAINERS):
            self._contents[id(holder)] = holder, holder.copy()
        for each in _items(holder):
            self._remember(each, depth - 1)

    def _differing(self, before: Any, now: Any, depth: int) -> Iterator[Any]:
        """The values that are no longer there or that are new, at any depth."""
        if before is not now:
            if isinstance(before, _PLAIN) and isinstance(now, _PLAIN):
                if type(before) is not type(now) or repr(before) != repr(now):
                    yield now
                return
            seen = (Tensor, *_PLAIN, *_CONTAINERS, tuple)
            if isinstance(now, seen) or _holds_tensors(now) or _holds_tensors(before):
                yield from (before, now)
            return
        if isinstance(now, Tensor):
            if id(now) in self._tensors and now._version != self._tensors[id(now)][1]:
                yield now
            return
        holder = _holder(now)
        if holder is None or not depth:
            return
        if id(holder) not in self._contents:
            if isinstance(holder, tuple):  # which holds the same objects for ever
                for each in holder:
                    yield from self._differing(each, each, depth - 1)
            return
        content = self._contents[id(holder)][1]
        if isinstance(holder, dict):
            for key in {**content, **holder}:
                yield from self._differing(content.get(key), holder.get(key), depth - 1)
        elif isinstance(holder, set):
            yield from content ^ holder
        else:
            for old, new in zip(content, holder, strict=False):
                yield from self._differing(old, new, depth - 1)
            shorter = min(len(content), len(holder))
            yield from [*list(content)[shorter:], *list(holder)[shorter:]]


class Untouchable:
    """Takes the place of a tensor; a step that reads it fails, as it is none."""


def _holder(value: Any) -> Any:
    """The container that a value is, or the attributes of a plain object; None for neither."""
    if isinstance(value, (*_CONTAINERS, tuple)):
        return value
    if isinstance(value, (*_CLOSED, *_PLAIN)):
        return None
    attributes = getattr(value, "__dict__", None)
    return attributes if type(attributes) is dict else None


def _items(holder: Any) -> Iterable[Any]:
    return holder.values() if isinstance(holder, dict) else holder


def _holds_tensors(value: Any, depth: int = _DEPTH) -> bool:
    if isinstance(value, Tensor):
        return True
    holder = _holder(value)
    if holder is None or not depth or len(holder) > _MOST:
        return False
    return any(_holds_tensors(each, depth - 1) for each in _items(holder))
