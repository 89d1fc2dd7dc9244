"""What defines a run, as the name of the file that keeps it.

Two runs with the same key have the same result: the key is a hash of the content of the arguments,
the seed, the weights at the start, the data and the version of fedlight. Names of cells are no part
of it, so a cell may be renamed. What cannot be seen of them is kept beside the key, in words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from fedlight import __version__
from fedlight._runs.content import Content, content_of
from fedlight._runs.data_fingerprint import data_content
from fedlight.studies.keys import RunKey
from fedlight.studies.one_run import StudySettings
from fedlight.studies.runs import Planned


def cell_key(parts: Mapping[str, str]) -> str:
    """Sixteen hexadecimal digits of what defines a run: content by name, in any order."""
    digest = hashlib.blake2b(__version__.encode(), digest_size=8)
    for name in sorted(parts):
        digest.update(f"\0{name}\0{parts[name]}".encode())
    return digest.hexdigest()


class RunKeys:
    """Makes the keys of the runs of a study; what several runs share is looked at once."""

    def __init__(self, shared: StudySettings) -> None:
        self._shared = shared
        self._known: dict[Any, Content] = {}
        self._kept: list[object] = []  # so that no address is used again

    def of(self, planned: Planned) -> RunKey:
        """The key of a run; that of the run whose schedule it replays must be there."""
        shared = self._shared
        found = {
            name: self._content(name, value)
            for name, value in planned.cell.arguments.items()
            if name not in ("module", "datamodule")
        }
        start = planned.cell.arguments["module"]
        found["module"] = self._once(
            ("module", id(start), planned.seed),
            start,
            lambda: content_of(shared.start_of(planned), "module"),
        )
        found["data"] = self._once(
            ("data", *planned.data_key),
            planned.cell.arguments["datamodule"],
            lambda: data_content(shared.data_of(planned)),
        )
        if shared.callbacks is not None:
            found["callbacks"] = self._content("callbacks", shared.callbacks)
        parts = {name: each.digest for name, each in found.items()}
        parts["seed"] = str(planned.seed)
        if planned.after is not None:
            parts["after"] = planned.after.key
        hidden = [each for name in found for each in found[name].hidden]
        return RunKey(cell_key(parts), parts, tuple(dict.fromkeys(hidden)))

    def _content(self, name: str, value: object) -> Content:
        return self._once((name, id(value)), value, lambda: content_of(value, name))

    def _once(self, place: Any, value: object, make: Callable[[], Content]) -> Content:
        if place not in self._known:
            self._kept.append(value)
            self._known[place] = make()
        return self._known[place]
