"""The state of arrival processes and their parts, as the plain data of checkpoints."""

from __future__ import annotations

from typing import Any, ClassVar

from fedlight.randomness import Uniforms


class Saved:
    """An object whose state is the attributes that its class names.

    A class lists those that it adds to its bases' in `_saved_attributes`, and creates them at
    set-up. They hold numbers, strings, None, lists, and sets or dicts of them; tuples become lists.
    A subclass that keeps state in another form extends both methods.
    """

    _saved_attributes: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps, as plain data."""
        return {name.lstrip("_"): _plain(vars(self)[name]) for name in saved_of(type(self))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; `setup` was called before."""
        # A checkpoint of 0.2 lacks the names that its process did not need.
        for name in saved_of(type(self)):
            if (key := name.lstrip("_")) in state:
                setattr(self, name, _restored(state[key], vars(self)[name]))


def saved_of(kind: type) -> list[str]:
    """The names of a class and of its bases, whose state a subclass only adds to."""
    bases = reversed(kind.__mro__)
    return [name for each in bases for name in vars(each).get("_saved_attributes", ())]


def _plain(value: Any) -> Any:
    """Return a copy of a value; a checkpoint holds no sets, no tuples and no keys but strings."""
    if isinstance(value, Saved):
        return value.state_dict()
    if isinstance(value, Uniforms):
        return value.taken
    if isinstance(value, dict):
        return [[key, _plain(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    # Sorted, since the order of a set depends on its history.
    return sorted(value) if isinstance(value, set) else value


def _restored(plain: Any, present: Any) -> Any:
    """Return the value that `_plain` turned into plain data.

    Args:
        plain: The plain data.
        present: The value after set-up, which has the type; it is changed in place if it can be.
    """
    if isinstance(present, Saved):
        present.load_state_dict(plain)
    elif isinstance(present, Uniforms):
        present.taken = plain
    elif isinstance(present, dict | set):
        present.clear()
        present.update(_plain(plain))
    else:
        return _plain(plain)
    return present
