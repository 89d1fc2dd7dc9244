"""The messages of the runs of a study, each printed once for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from fedlight._support.messages import Note, Voice, say, speaking
from fedlight.studies._shared_executors import StudyExecutor

if TYPE_CHECKING:
    from fedlight.studies.runs import Planned


class StudyVoice(Voice):
    """Keeps the notes of runs about their ends, and prints each kind once, with a count of runs.

    Args:
        plan: The runs of the study.
    """

    of_many = True

    def __init__(self, plan: Iterable[Planned] = ()) -> None:
        self._place = {planned: place for place, planned in enumerate(plan)}
        self._told: list[tuple[object, Note]] = []  # by runs that are under way
        self._kinds: dict[str, dict[Planned, Note]] = {}  # of runs that are over

    def executor(self, executor: object, device: str, reason: str) -> None:
        """Say which executor computes; the reason for a shared one is that of its first run."""
        if isinstance(executor, StudyExecutor):
            reason = executor.shared.reason
        super().executor(executor, device, reason)

    def note(self, run: object, note: Note) -> None:
        """Keep a note until the run is over."""
        self._told.append((run, note))

    def notes_of(self, run: object) -> list[Note]:
        """Remove and return the notes of a run that is over."""
        found = [note for teller, note in self._told if teller is run]
        self._told = [each for each in self._told if each[0] is not run]
        return found

    def count(self, planned: Planned, notes: Iterable[Note]) -> None:
        """Count the notes of a run that is finished."""
        for note in notes:
            self._kinds.setdefault(note.kind, {})[planned] = note

    def say_all(self) -> None:
        """Print each kind of note: that of the first run, and how many others have one."""
        for notes in self._kinds.values():
            first = min(notes, key=self._place.__getitem__)
            more = len(notes) - 1
            alike = f"; likewise in {more} more of {len(self._place)} runs" if more else ""
            say(replace(notes[first], words=f"{notes[first].words} ({first}{alike})"))
        for _, note in self._told:  # of other fits, such as one within a callback
            say(note)


@contextmanager
def speaking_for(plan: Iterable[Planned]) -> Iterator[StudyVoice]:
    """Collect the notes of the runs of a study, and print them at its end, however it ends."""
    with speaking(StudyVoice(plan)) as voice:
        try:
            yield voice
        except BaseException:
            with suppress(Warning):  # made an error by a filter, it must not take this one's place
                voice.say_all()
            raise
        voice.say_all()
