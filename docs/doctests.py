"""Shows the examples in docstrings as code, and of each class what it adds to its bases.

For Griffe, which reads the docstrings, examples are under "Examples:"; "Example:" is a note.
"""

import re
from collections.abc import Iterator
from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Reads "Example:" as "Examples:"."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called with everything that may have a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )


class Additions(griffe.Extension):
    """Leaves out the methods that a base class explains: the rule is in the class's docstring."""

    def on_package(self, *, pkg: griffe.Module, loader: Any, **kwargs: Any) -> None:
        """Called with each package when all of it is known."""
        classes = list(_classes(pkg))
        # All are looked up before any is removed, as a base may itself have a base.
        repeated = [(each, name) for each in classes for name in _overrides(each)]
        for each, name in repeated:
            del each.members[name]


def _classes(module: griffe.Object) -> Iterator[griffe.Class]:
    for member in module.members.values():
        if isinstance(member, griffe.Class):
            yield member
        elif isinstance(member, griffe.Module):
            yield from _classes(member)


def _overrides(each: griffe.Class) -> list[str]:
    bases = [name for base in each.mro() for name in base.members]
    return [
        name
        for name, member in each.members.items()
        if name in bases and member.is_function and _says_little(member)
    ]


def _says_little(member: griffe.Object | griffe.Alias) -> bool:
    """Whether the docstring is a sentence; one with sections has something of its own to say."""
    return not member.name.startswith("__") and "\n\n" not in (
        member.docstring.value if member.docstring else ""
    )
