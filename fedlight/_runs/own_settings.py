"""What defines a run and no argument shows: private attributes, and the module's own optimizer."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
from lightning import LightningModule
from torch import Tensor, nn

from fedlight._module.rng import isolated_rng
from fedlight._module.snapshot import Snapshot
from fedlight._runs.content import content
from fedlight._runs.identity import in_words
from fedlight._runs.ownership import of_the_user
from fedlight._runs.reading import closure_of
from fedlight._support.strategy import Strategy, digest
from fedlight.aggregators import Aggregator
from fedlight.local_optimizers import LocalOptimizer, ModuleOptimizer
from fedlight.local_optimizers.module_optimizer import optimizers_of
from fedlight.loop import Limits

_DEPTH = 4
_MOST = 1000  # longer lists and dicts hold numbers of clients, no strategies
_LONG = 80
_NAMESPACES = (SimpleNamespace, argparse.Namespace)


def own_settings(strategies: Mapping[str, Strategy]) -> dict[str, dict[str, str]]:
    """The attributes of the strategies that the user has written, at any depth.

    Those of the library are their arguments. An arrival process has been set up, so that its state
    is that of a run that begins. The state of an aggregator is not looked at: a checkpoint has it.

    Args:
        strategies: The strategies by name.

    Returns:
        By place, such as ``arrivals.durations``, the attributes by name, in words.
    """
    found: dict[str, dict[str, str]] = {}
    seen: set[int] = set()
    for name, strategy in strategies.items():
        for place, each in _within(name, strategy, seen):
            if _is_foreign(type(each)) and not isinstance(each, Aggregator):
                attributes = sorted(_held_by(each).items())
                found[place] = {key: _short(_words(value)) for key, value in attributes}
    return found


def _within(place: str, value: object, seen: set[int]) -> Iterator[tuple[str, object]]:
    """The strategies, callable objects and functions with a closure in a value, by their places.

    Of a bound method it is the object.
    """
    if isinstance(value, Strategy) or _is_callable_object(value):
        if id(value) not in seen:
            seen.add(id(value))
            yield place, value
            for name, each in vars(value).items():
                yield from _within(f"{place}.{name.lstrip('_')}", each, seen)
    elif isinstance(value, MethodType):
        held = value.__self__
        if _vars_of(held) and not isinstance(held, type | nn.Module) and id(held) not in seen:
            seen.add(id(held))
            yield place, held
    elif isinstance(value, partial):
        yield from _within(place, value.func, seen)
    elif isinstance(value, FunctionType):
        if id(value) not in seen and value.__closure__ and of_the_user(value.__module__):
            seen.add(id(value))
            yield place, value
    elif isinstance(value, list | tuple | dict) and len(value) <= _MOST:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in items:
            yield from _within(f"{place}[{key!r}]", each, seen)


def _is_callable_object(value: object) -> bool:
    """Whether a value is called as a function is, and has attributes."""
    known = (type, FunctionType, MethodType, partial, nn.Module)
    return callable(value) and not isinstance(value, known) and bool(getattr(value, "__dict__", 0))


def _held_by(value: object) -> dict[str, Any]:
    """The attributes of an object; the closure of a function, but no models, which runs train."""
    if not isinstance(value, FunctionType):
        return vars(value)
    held = closure_of(value).items()
    return {name: each for name, each in held if not isinstance(each, nn.Module | Tensor)}


def _is_foreign(kind: type) -> bool:
    return kind.__module__.split(".")[0] != "fedlight"


def _words(value: Any, depth: int = _DEPTH) -> str:
    """A value in words that are the same in every process."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value.item() if isinstance(value, np.generic) else value)
    if isinstance(value, FunctionType | Tensor | np.ndarray):
        return in_words(value)
    if isinstance(value, Strategy) or not depth:  # a strategy has its own place
        return type(value).__qualname__
    if isinstance(value, np.generic):
        return repr(value.item())
    if isinstance(value, partial):
        return f"partial({_words([value.func, value.args, value.keywords], depth - 1)})"
    if isinstance(value, MethodType):
        return _words([value.__func__, value.__self__], depth - 1)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_words(each, depth - 1) for each in value)}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(_words(each, depth - 1) for each in value))}}}"
    if isinstance(value, dict):
        items = (f"{_words(k, depth - 1)}: {_words(v, depth - 1)}" for k, v in value.items())
        return f"{{{', '.join(items)}}}"
    kind: Any = type(value)
    if isinstance(value, nn.Module):  # its words have no numbers
        return f"{kind.__qualname__} {content(value)}"
    told = kind.__repr__ is not object.__repr__
    # Words of the user's own may leave out attributes, and those of a namespace have an ellipsis.
    if told and not (_vars_of(value) and (of_the_user(kind.__module__) or kind in _NAMESPACES)):
        return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    if not _is_foreign(kind):
        return str(kind.__qualname__)
    return f"{kind.__qualname__}({_words(_vars_of(value), depth - 1)})"


def _vars_of(value: object) -> dict[str, Any]:
    """The attributes of an object, or none."""
    return getattr(value, "__dict__", {})


def _short(words: str) -> str:
    return words if len(words) <= _LONG else f"{words[: _LONG // 2]}... {digest(words)}"


def own_optimizer(
    module: LightningModule, local_optimizer: LocalOptimizer, limits: Limits
) -> dict[str, Any]:
    """What ``configure_optimizers`` of a module returns, if the run trains with it.

    The module is left as it was. Of a scheduler, the settings often follow from the limits
    (a cosine over ``self.trainer.max_epochs``), so these are noted with them.
    """
    if not isinstance(local_optimizer, ModuleOptimizer):
        return {}
    before = Snapshot(module)
    try:
        with isolated_rng():
            _, optimizers, schedulers = optimizers_of(module)
            groups = {
                f"{type(each).__name__}[{number}]": _group(group)
                for each in optimizers
                for number, group in enumerate(each.param_groups)
            }
            found = [each if isinstance(each, dict) else {"scheduler": each} for each in schedulers]
            settings = {
                f"{type(each['scheduler']).__name__}[{number}]": _schedule(each)
                for number, each in enumerate(found)
            }
    except Exception:  # the first local run, which is tried, raises it
        return {}
    finally:
        before.restore()
    limited = [limits.max_rounds, limits.max_time, limits.max_updates]
    return {"optimizer": groups, "scheduler": settings, "limits": limited}


def _group(group: dict[str, Any]) -> dict[str, str]:
    """The settings of a group of parameters; the rate is that before any scheduler."""
    found = {name: value for name, value in group.items() if name not in ("params", "initial_lr")}
    found["lr"] = group.get("initial_lr", group.get("lr"))
    found = {name: v.tolist() if isinstance(v, Tensor) else v for name, v in found.items()}
    words = {name: _short(_words(value)) for name, value in found.items()}
    return words | {"parameters": str(len(group["params"]))}


def _schedule(given: dict[str, Any]) -> dict[str, str]:
    """The settings of a scheduler, and how often it steps."""
    scheduler = given["scheduler"]
    found = dict(scheduler.state_dict()) | {"lr_lambdas": getattr(scheduler, "lr_lambdas", None)}
    found |= {name: given[name] for name in ("interval", "frequency") if name in given}
    return {name: _short(_words(value)) for name, value in found.items()}


def differing(
    saved: Mapping[str, Mapping[str, str]], present: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """What differs, in words; names that only one of them has do not count.

    Another version of a library may keep more or fewer attributes.
    """
    for place in sorted(saved.keys() & present.keys()):
        one, two = saved[place], present[place]
        for name in sorted(one.keys() & two.keys()):
            if one[name] != two[name]:
                yield f"{name} of {place} was {one[name]}, is {two[name]}"


def differing_optimizers(saved: Mapping[str, Any], present: Mapping[str, Any]) -> Iterator[str]:
    """How the module's own optimizers differ, in words; nothing if a run has no such optimizer."""
    for name in ("optimizer", "scheduler") if saved and present else ():
        one, two = saved[name], present[name]
        if one.keys() != two.keys():
            known = (", ".join(each) or "none" for each in (one, two))
            yield f"the module's {name} was {next(known)}, is {next(known)}"
        elif name == "optimizer" or saved["limits"] == present["limits"]:
            yield from (f"the module's {words}" for words in differing(one, two))
