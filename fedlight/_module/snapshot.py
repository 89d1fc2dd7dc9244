"""A snapshot of the attributes of a module, to find the changes that a step makes and undo them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, MutableMapping
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from fedlight._module.attributes import own_attributes, own_layers

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PLAIN = (int, float, complex, str, bytes, type(None))
_CONTAINERS = (dict, list, set, deque)
_CLOSED = (nn.Module, Tensor, np.ndarray, type, FunctionType, MethodType, ModuleType)
_DEPTH = 3
_MOST = 1000  # longer containers hold data, not the state of a step


class Change(NamedTuple):
    """An attribute of a module that has changed.

    Attributes:
        name: Its name, with the path of the layer that has it, such as ``net.last``.
        owner: The attributes of the module or of that layer.
        key: Its name there.
        tensors: Whether tensors in it were changed, added or removed.
    """

    name: str
    owner: MutableMapping[str, Any]
    key: str
    tensors: bool


class Snapshot:
    """The attributes of a module and of its layers as they are now.

    Numbers and strings are compared by value, tensors by identity and by whether they were written
    to. The same holds for the contents of lists, dicts, sets and plain objects. Parameters and
    buffers are not included, as each client has its own; nor are metric objects, which are reset
    for each client.

    Args:
        module: The module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._layers = own_layers(module)
        self._before = [own_attributes(layer) for _, layer in self._layers]
        self._contents: dict[int, tuple[Any, Any]] = {}
        self._tensors: dict[int, tuple[Tensor, int, Tensor]] = {}
        self._arrays: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        for attributes in self._before:
            for value in attributes.values():
                self._remember(value, _DEPTH)

    def changes(self) -> list[Change]:
        """The changes since then, sorted by name."""
        found = {}
        for (path, layer), before in zip(self._layers, self._before, strict=True):
            now = own_attributes(layer)
            for key in {**before, **now}:
                parts = list(self._differing(before.get(key), now.get(key), _DEPTH))
                if parts or (key in before) != (key in now):
                    name = f"{path}.{key}".lstrip(".")
                    found[name] = Change(name, vars(layer), key, any(map(_holds_tensors, parts)))
        return [found[name] for name in sorted(found)]

    def restore(self) -> None:
        """Put everything back as it was."""
        for (_, layer), before in zip(self._layers, self._before, strict=True):
            for key in own_attributes(layer).keys() - before.keys():
                del vars(layer)[key]
            vars(layer).update(before)
        for holder, content in self._contents.values():
            holder.clear()
            (holder.update if isinstance(holder, dict | set) else holder.extend)(content)
        for array, kept in self._arrays.values():
            array[...] = kept
        for tensor, version, content in list(self._tensors.values()):
            if tensor._version != version:
                tensor.data.copy_(content)  # which does not count as a version
                self._tensors[id(tensor)] = tensor, tensor._version, content

    def _remember(self, value: Any, depth: int) -> None:
        # The copy restores the numbers; the version tells whether that is needed.
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            self._tensors[id(value)] = value, value._version, value.detach().clone()
        if isinstance(value, np.ndarray) and value.size <= _MOST:
            self._arrays[id(value)] = value, value.copy()
        holder = _holder(value)
        if holder is None or not depth or id(holder) in self._contents or len(holder) > _MOST:
            return
        if isinstance(holder, _CONTAINERS):
            self._contents[id(holder)] = holder, holder.copy()
        for each in _items(holder):
            self._remember(each, depth - 1)

    def _differing(self, before: Any, now: Any, depth: int) -> Iterator[Any]:
        """The values that were removed or added, at any depth."""
        if before is not now:
            if isinstance(before, _PLAIN) and isinstance(now, _PLAIN):
                # By repr, since nan differs from itself.
                if type(before) is not type(now) or repr(before) != repr(now):
                    yield now
                return
            seen = (Tensor, np.ndarray, *_PLAIN, *_CONTAINERS, tuple)
            if isinstance(now, seen) or _holds_tensors(now) or _holds_tensors(before):
                yield from (before, now)
            return
        if isinstance(now, Tensor):
            if id(now) in self._tensors and now._version != self._tensors[id(now)][1]:
                yield now
            return
        if isinstance(now, np.ndarray):
            if id(now) in self._arrays and now.tobytes() != self._arrays[id(now)][1].tobytes():
                yield now
            return
        holder = _holder(now)
        if holder is None or not depth:
            return
        if id(holder) not in self._contents:
            if isinstance(holder, tuple):  # it always holds the same objects
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


class NotATensor:
    """Replaces a tensor, so that a step which reads it fails."""


def _holder(value: Any) -> Any:
    """The value if it is a container, or the attributes of a plain object; else None."""
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
