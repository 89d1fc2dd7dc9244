"""A strategy is known by its constructor's arguments.

Whether two runs are the same is a question about the arguments of their strategies. `arguments`
gives them by name; the repr, the words in checkpoints, the columns of tables and the keys of
studies are all made from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from reprlib import recursive_repr
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from fedlight._support.checks import optional, word

_MOST_LISTED = 20
_FLOAT = (float, "float")


class Strategy:
    """The base of all objects that define a run: known by the arguments that made them.

    A subclass keeps each argument under its own name, with or without a leading underscore, and
    gives those that it keeps in another form in `_kept_otherwise`.
    """

    # How the repr is written; subclasses set these. A user's class may use any usual name for
    # itself, so these names are unusual, and methods are called through this class.
    _repr_positional: ClassVar[int] = 0
    """How many of the first arguments are written without their names."""
    _repr_short: ClassVar[bool] = False
    """Whether an argument that is annotated as a plain float is written as 1 instead of 1.0."""

    @property
    def _repr_optional(self) -> Collection[str]:
        """Arguments that are left out if they have their default."""
        return ()

    def _kept_otherwise(self) -> dict[str, Any]:
        """Arguments that are not attributes of their names."""
        return {}

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments by name, in order, with the values that are kept."""
        return _among(vars(self) | self._kept_otherwise(), type(self))

    def repr_as_call(self, name: str | None = None) -> str:
        """Return the call that makes this strategy, as text.

        Args:
            name: The name to call; None for that of the class.

        Raises:
            TypeError: `name` is no string.
            ValueError: It is empty.
        """
        optional(word, "name", name)
        kind = type(self)
        given = arguments(self)
        name = kind.__name__ if name is None else name
        summaries = [each for each in given.values() if isinstance(each, Summary) and each.whole]
        if summaries:
            return f"{name}({summaries[0]})"
        # A default is left out only if it is also the default of the class that calls it optional:
        # a subclass with another one is written in full.
        usual = parameters(next(each for each in kind.__mro__ if "_repr_optional" in vars(each)))
        parts = []
        for place, (argument, parameter) in enumerate(parameters(kind).items()):
            if argument not in given:
                continue
            value = given[argument]
            defaults = [parameter.default, usual.get(argument, parameter).default]
            if argument in self._repr_optional and all(_same(value, each) for each in defaults):
                continue
            plain = self._repr_short and isinstance(value, float) and parameter.annotation in _FLOAT
            text = shortly(value) if plain else brief(value)
            parts.append(text if place < self._repr_positional else f"{argument}={text}")
        return f"{name}({', '.join(parts)})"

    @recursive_repr("...")
    def __repr__(self) -> str:
        return Strategy.repr_as_call(self)


@dataclass(frozen=True, slots=True)
class Summary:
    """Stands for an argument that is too long, or not fit, to be written out.

    Attributes:
        text: The text in the repr.
        whole: Whether the text identifies all arguments of the strategy, so that the repr needs no
            other.
    """

    text: str
    whole: bool = True

    def __repr__(self) -> str:
        return self.text


def parameters(kind: type) -> dict[str, Parameter]:
    """Return the constructor's parameters by name.

    If the constructor takes ``**kwargs``, those of the next base class follow.
    """
    found: dict[str, Parameter] = {}
    for each in kind.__mro__:
        if "__init__" not in vars(each):
            continue
        try:
            own = _after_self(vars(each)["__init__"])
        except (TypeError, ValueError):  # a class written in C
            break
        kinds = {parameter.kind for parameter in own}
        several = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        for parameter in own:
            if parameter.kind not in several:
                found.setdefault(parameter.name, parameter)
        if Parameter.VAR_KEYWORD not in kinds:
            break
    return found


# Weak, since a constructor that uses `super` keeps its class alive.
_AFTER_SELF: WeakKeyDictionary[Callable[..., None], tuple[Parameter, ...]] = WeakKeyDictionary()


def _after_self(init: Callable[..., None]) -> tuple[Parameter, ...]:
    """The parameters of a constructor without the first one, `self`."""
    # They are read about fifty times in a fit, and slow to find out.
    found = _AFTER_SELF.get(init)
    if found is None:
        found = (*signature(init).parameters.values(),)[1:]
        _AFTER_SELF[init] = found
    return found


def arguments(value: object) -> dict[str, Any]:
    """Return the constructor's arguments by name, in order, with the values that are kept.

    Args:
        value: A strategy. Of an object of another class, the arguments are those attributes that
            have the name of one, with or without a leading underscore.
    """
    if isinstance(value, Strategy):
        return Strategy.arguments(value)  # the user's class may have an attribute of this name
    return _among(getattr(value, "__dict__", {}), type(value))


def _among(kept: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The constructor's arguments among the attributes of an object."""
    places = {name: name if name in kept else f"_{name}" for name in parameters(kind)}
    return {name: kept[place] for name, place in places.items() if place in kept}


def _same(value: object, default: object) -> bool:
    plain = value is None or isinstance(value, bool | int | float | str)
    return value is default or (plain and value == default)


def brief(value: object) -> str:
    """Return the repr of a number or a list; for a long list, its beginning and a hash.

    A checkpoint identifies a process by its repr, so different lists must have different ones.
    """
    # A table of pairs, such as the factors of durations, is written out.
    if isinstance(value, list) and len(value) > _MOST_LISTED and not isinstance(value[0], tuple):
        return f"[{', '.join(map(repr, value[:3]))}, ... {len(value)} in all, {digest(value)}]"
    return repr(value)


def shortly(value: float) -> str:
    """Return a number with six digits, or with as many as are needed to identify it."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def digest(content: object) -> str:
    """Return eight hexadecimal digits of the repr of plain data."""
    return hashlib.blake2b(repr(content).encode(), digest_size=4).hexdigest()
