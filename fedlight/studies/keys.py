"""The keys of a study's runs: what defines them, and what could not be seen of it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

_SHOWN = 3  # sentences in the log


@dataclass(frozen=True, slots=True)
class RunKey:
    """The key of a run in the folder of a study.

    Attributes:
        key: Sixteen hexadecimal digits, the name of its file.
        parts: The digits of each part: the arguments by name, "module", "data", "seed".
        hidden: What a function or an argument has that is not part of the key, in words.
    """

    key: str
    parts: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """The key as plain data."""
        return {"key": self.key, "parts": dict(self.parts), "hidden": list(self.hidden)}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> RunKey:
        """The key of plain data made by `to_plain`; only the digits have to be there."""
        parts, hidden = data.get("parts"), data.get("hidden")
        return cls(
            data["key"],
            parts if isinstance(parts, dict) else {},
            tuple(hidden) if isinstance(hidden, list) else (),
        )

    def changed_from(self, before: RunKey) -> list[str]:
        """Return the names of the parts in which two keys differ."""
        names = dict.fromkeys([*before.parts, *self.parts])
        return [name for name in names if self.parts.get(name) != before.parts.get(name)]


@dataclass(frozen=True, slots=True)
class StudyKeys:
    """The keys of the runs of a study; `print` shows them.

    Attributes:
        runs: Cell, seed and key of each run.
        hidden: What is not part of the keys, in words, each once.
    """

    runs: tuple[tuple[dict[str, Hashable], int, RunKey], ...]
    hidden: tuple[str, ...]

    def __str__(self) -> str:
        lines = []
        for cell, seed, key in self.runs:
            names = ", ".join([*(f"{axis}={name}" for axis, name in cell.items()), f"seed {seed}"])
            lines.append(f"{key.key}  {names}")
        return "\n".join([*lines, *self.hidden])


def hidden_of(keys: list[RunKey]) -> tuple[str, ...]:
    """Return what is not part of any of some keys, each once."""
    return tuple(dict.fromkeys(each for key in keys for each in key.hidden))


def in_the_log(hidden: tuple[str, ...]) -> str:
    """Return a line about what is not part of the keys of a study."""
    more = len(hidden) - _SHOWN
    rest = f"; and {more} more, see study.keys()" if more > 0 else ""
    return (
        f"fedlight: {'; '.join(hidden[:_SHOWN])}{rest}. After a change of it, write fresh=True to "
        "compute all runs again"
    )
