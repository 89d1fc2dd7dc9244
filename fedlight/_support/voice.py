"""Who says what a run has to say: the run at once, or a study once for all of its runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

_said: set[str] = set()
_kept: list[str] | None = None  # what is left to the process that has started this one


@dataclass(frozen=True, slots=True)
class Note:
    """A message about how a run went, told at its end.

    Attributes:
        kind: Notes of one kind say the same of different runs, perhaps with other numbers.
        words: The message.
        warns: Whether it is a warning.
    """

    kind: str
    words: str
    warns: bool = False


class Voice:
    """Prints what a run says, at once.

    Attributes:
        of_many: Whether the run is one of a study, about which something is said once.
    """

    of_many = False

    def executor(self, executor: object, device: str, reason: str) -> None:
        """Say, once a process, which executor computes the local runs, and why that one."""
        say_once(f"fedlight: {executor!r} on {device}: {reason}")

    def note(self, run: object, note: Note) -> None:
        """Say how a run went."""
        say(note)

    def notes_of(self, run: object) -> list[Note]:
        """Hand over the notes of a run that were not printed."""
        return []


_V = TypeVar("_V", bound=Voice)
_voice: ContextVar[Voice] = ContextVar("voice")
_ALONE = Voice()


def voice() -> Voice:
    """The voice of the run that is under way."""
    return _voice.get(_ALONE)


@contextmanager
def speaking(new: _V) -> Iterator[_V]:
    """Let another voice speak for the runs in this context."""
    before = _voice.set(new)
    try:
        yield new
    finally:
        _voice.reset(before)


def say(note: Note) -> None:
    """Print a note."""
    (rank_zero_warn if note.warns else rank_zero_info)(note.words)


def say_once(message: str) -> None:
    """Say something that is not said again by this process."""
    if message not in _said:
        _said.add(message)
        (rank_zero_info if _kept is None else _kept.append)(message)


def keep_what_is_said_once() -> list[str]:
    """Collect what `say_once` is given, so that of several processes one can say it."""
    global _kept
    _kept = []
    return _kept
