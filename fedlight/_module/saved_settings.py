"""Settings in a checkpoint: the attributes that differ between versions."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from fedlight._module.settings import LiveSettings, Owner, Settings
from fedlight._module.values import MISSING, fields_of
from fedlight.checkpoint import HyperParameters, exactly

_ABSENT, _PLAIN, _ARRAY, _ITEMS, _MAPPING, _OBJECT, _OF_START = range(7)


def saved_settings(
    live: LiveSettings, versions: Mapping[int, Settings], runs: Mapping[int, Settings]
) -> dict[str, Any] | None:
    """What a checkpoint holds of the settings that are still needed; None if none has changed.

    Attributes that are the same in all of them are left out. An attribute that is no plain data (a
    layer, a function) is left out with a warning.

    Args:
        live: The settings of the run.
        versions: Those of the versions that are kept, by number.
        runs: Those of local runs that have others than their version, by serial number.
    """
    assert live.current is not None
    assert live.start is not None
    needed = {id(each): each for each in (live.current, *versions.values(), *runs.values())}
    if list(needed) == [id(live.start)]:
        return None
    first = live.paths
    left_out: set[str] = set()
    places = _places(live.start, needed.values())
    sets = []
    for settings in needed.values():
        values = []
        for layer, key in places:
            value = settings.layers.get(layer, {}).get(key, MISSING)
            like = live.start.layers.get(layer, {}).get(key, MISSING)
            try:
                code = _layers(value, first) if key == "_modules" else _encoded(value, like)
                values.append([first[layer], key, code])
            except Exception:  # a value may raise anything when it is looked at
                left_out |= set(_names(first[layer], key, value, like))
        sets.append({"values": values, "tensors": _tensors(live, settings, needed.values())})
    if left_out and not left_out <= live.left_out:
        live.left_out |= left_out
        rank_zero_warn(
            f"fedlight: a hook has changed {', '.join(sorted(left_out))} of "
            f"{type(live.module).__name__}, which is no plain data and not in the checkpoint: a "
            "run that is resumed from it goes on with those that the module has at its start"
        )
    index = {each: number for number, each in enumerate(needed)}
    return {
        "sets": [_Kept(each) for each in sets],
        "live": index[id(live.current)],
        "versions": {version: index[id(each)] for version, each in versions.items()},
        "runs": {serial: index[id(each)] for serial, each in runs.items()},
        "left_out": sorted(live.left_out),
    }


_Kept = HyperParameters  # `plain` leaves such a dict as it is: kinds of values matter here


def restored_settings(
    live: LiveSettings, saved: Mapping[str, Any] | None
) -> tuple[dict[int, Settings], dict[int, Settings]]:
    """The settings of versions and of local runs from a checkpoint; the newest are installed.

    Args:
        live: The settings of the run.
        saved: What `saved_settings` returned.
    """
    if saved is None:
        return {}, {}
    assert live.start is not None
    if saved["left_out"]:
        live.left_out |= set(saved["left_out"])
        rank_zero_warn(
            f"fedlight: the checkpoint does not hold {', '.join(saved['left_out'])} of "
            f"{type(live.module).__name__}, which a hook had changed and which is no plain data: "
            "local runs of the versions in it go on with those that the module has now, and the "
            "run does not go on to the same bits"
        )
    layers = {path: layer for layer, path in live.paths.items()}
    tensors = dict(live.named_tensors())
    start = live.start
    sets = []
    for each in saved["sets"]:
        changed = {layer: dict(values) for layer, values in start.layers.items()}
        for path, key, code in each["values"]:
            if path not in layers:
                continue
            values = changed[layers[path]]
            if key == "_modules":
                value = {name: None if of is None else layers[of] for name, of in code}
            else:
                value = _decoded(code, start.layers[layers[path]].get(key, MISSING))
            if value is MISSING:
                values.pop(key, None)
            else:
                values[key] = value
        own = dict(start.tensors)
        for name, value in each["tensors"].items():
            if name in tensors:
                own[tensors[name]] = value.to(tensors[name].device)
        sets.append(Settings(changed, own))
    live.install(sets[saved["live"]])
    return (
        {version: sets[index] for version, index in saved["versions"].items()},
        {serial: sets[index] for serial, index in saved["runs"].items()},
    )


def _places(start: Settings, needed: Iterable[Settings]) -> list[tuple[Owner, str]]:
    """The attributes that differ from those of the start in some settings."""
    found: dict[tuple[Owner, str], None] = {}
    for settings in needed:
        for layer, values in settings.layers.items():
            old = start.layers.get(layer)
            if old is None or old is values:  # a new layer is named by the one that holds it
                continue
            for key in {**old, **values}:
                value, before = values.get(key, MISSING), old.get(key, MISSING)
                if value is not before:
                    found[layer, key] = None
    return list(found)


def _names(path: str | None, key: str, value: Any, like: Any) -> list[str]:
    """The names of an attribute, or of the layers that differ, to be shown."""
    keys = [key]
    if key == "_modules":
        keys = [name for name in {**like, **value} if value.get(name) is not like.get(name)]
    return [f"{path or ''}.{each}".lstrip(".") for each in keys]


def _layers(value: Any, paths: Mapping[Owner, str]) -> list[Any]:
    """The layers of a layer by name, each as its path.

    Raises:
        KeyError: One of them was not there at the start.
    """
    return [[name, None if each is None else paths[each]] for name, each in value.items()]


def _tensors(
    live: LiveSettings, settings: Settings, needed: Iterable[Settings]
) -> dict[str, Tensor]:
    """The values of tensors that are no part of the federation, if they have changed."""
    assert live.start is not None
    start = live.start.tensors
    changed = {
        id(tensor)
        for each in needed
        for tensor, value in each.tensors.items()
        if value is not start.get(tensor)
    }
    if not changed:
        return {}
    return {
        name: value.cpu()
        for name, tensor in live.named_tensors()
        if id(tensor) in changed and (value := settings.tensors.get(tensor)) is not None
    }


def _encoded(value: Any, like: Any) -> list[Any]:
    """A value as tensors and plain data, of the kind that the start's value has.

    Raises:
        TypeError: It is no plain data.
    """
    if value is MISSING:
        return [_ABSENT]
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        return [_PLAIN, value.detach().cpu()]
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return [_ARRAY, torch.from_numpy(value.copy())]
    same_kind = type(value) is type(like)
    if isinstance(value, dict) and (same_kind or type(value) is dict):
        others = like if same_kind else {}
        items = [
            [exactly(key), _encoded(item, others.get(key, MISSING))] for key, item in value.items()
        ]
        return [_MAPPING, items]
    if type(value) is set:
        return [_ITEMS, "set", [_encoded(item, MISSING) for item in value]]
    if type(value) in (list, tuple, deque):
        others = list(like) if same_kind and len(like) == len(value) else [MISSING] * len(value)
        items = [_encoded(item, other) for item, other in zip(value, others, strict=True)]
        return [_ITEMS, type(value).__name__, items]
    if same_kind and not isinstance(value, nn.Module | type) and fields_of(value):
        others = fields_of(like)
        items = [
            [name, _encoded(item, others.get(name, MISSING))]
            for name, item in fields_of(value).items()
        ]
        return [_OBJECT, items]
    if value is like and callable(value):
        return [_OF_START]  # a schedule of rates in an object, another attribute of which differs
    return [_PLAIN, exactly(value)]


_KINDS = {"list": list, "tuple": tuple, "deque": deque, "set": set}


def _decoded(code: list[Any], like: Any) -> Any:
    """The value that `_encoded` encoded."""
    kind, *content = code
    others: Any
    made: Any
    if kind == _ABSENT:
        return MISSING
    if kind == _OF_START:
        return like
    if kind == _PLAIN:
        (value,) = content
        return value.to(like.device) if isinstance(like, Tensor) else value
    if kind == _ARRAY:
        return content[0].numpy().copy()
    if kind == _ITEMS:
        name, items = content
        others = [MISSING] * len(items)
        if type(like).__name__ == name and len(like) == len(items):
            others = list(like)
        return _KINDS[name](
            _decoded(item, other) for item, other in zip(items, others, strict=True)
        )
    (items,) = content
    if kind == _MAPPING:
        made = copy.copy(like) if isinstance(like, dict) else {}
        others = dict(made)
        made.clear()
        for key, item in items:
            dict.__setitem__(made, key, _decoded(item, others.get(key, MISSING)))
        return made
    others, made = fields_of(like), copy.copy(like)
    for name, item in items:
        object.__setattr__(made, name, _decoded(item, others.get(name, MISSING)))
    return made
