"""Messages of a run: printed at once, or once by a study for all of its runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

_said: set[str] = set()
_kept: list[str] | None = None  # messages for the process that has started this one


@dataclass(frozen=True, slots=True)
class Note:
    """A message about how a run went, told at its end.

    Attributes:
        kind: Notes of one kind are the same message for different runs, perhaps with other numbers.
        words: The message.
        warns: Whether it is a warning.
    """

    kind: str
    words: str
    warns: bool = False


class Voice:
    """Prints the messages of a run at once.

    Attributes:
        of_many: Whether the run is one of a study, which prints a message once for all runs.
    """

    of_many = False

    def executor(self, executor: object, device: str, reason: str) -> None:
        """Print, once a process, which executor computes the local runs, and the reason."""
        say_once(f"fedlight: {executor!r} on {device}: {reason}")

    def checkpoint(self, words: str) -> None:
        """Print which checkpoint a call begins with; a study resumes its runs without a word."""
        if not self.of_many:
            rank_zero_info(f"fedlight: {words}")

    def note(self, run: object, note: Note) -> None:
        """Print a note about how a run went."""
        say(note)

    def notes_of(self, run: object) -> list[Note]:
        """Return the notes of a run that were not printed."""
        return []


_V = TypeVar("_V", bound=Voice)
_voice: ContextVar[Voice] = ContextVar("voice")
_ALONE = Voice()


def voice() -> Voice:
    """The voice of the current run."""
    return _voice.get(_ALONE)


@contextmanager
def speaking(new: _V) -> Iterator[_V]:
    """Within the context, another voice prints the messages of runs."""
    before = _voice.set(new)
    try:
        yield new
    finally:
        _voice.reset(before)


def say(note: Note) -> None:
    """Print a note."""
    (rank_zero_warn if note.warns else rank_zero_info)(note.words)


def say_once(message: str) -> None:
    """Print a message once in this process."""
    if message not in _said:
        _said.add(message)
        (rank_zero_info if _kept is None else _kept.append)(message)


def keep_what_is_said_once() -> list[str]:
    """Collect the messages of `say_once`, so that one of several processes can print them."""
    global _kept
    _kept = []
    return _kept
