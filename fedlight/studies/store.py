"""A folder is a study: finished runs, the checkpoints of those under way, and locks.

::

    path/study.json               the runs that were asked for: cell, seed, name of the file
    path/runs/<key>.json          a finished run; <key>.failed.json, why one failed
    path/runs/<key>.<n>.parquet   its schedule, if other runs replay it; the run's file names it
    path/checkpoints/<key>/       a run under way
    path/locks/<key>              held by the process that computes the run

Each JSON file begins with a hash of the rest, and a schedule has one of its content. A file that
was changed since it was written is not read: its run is computed again, and a line in the log says
so.

Where there is no ``fcntl`` (on Windows) nothing is locked, and a warning says so once. Only one
process at a time may then work on a folder: two of them would compute the same runs, and one might
drop runs from the list that the other has added.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from lightning_utilities.core.rank_zero import WarningCache

from fedlight._support.files import remove_torn, replacing, user_path
from fedlight._support.messages import say_once
from fedlight.arrivals import ScheduleTable
from fedlight.studies.keys import RunKey
from fedlight.studies.runs import Planned, StudyRun, plain_name

_FORMAT = 1
_HASHED = '{"hash":"'
_DIGITS = 32
_warnings = WarningCache()


def folder_of(name: str, path: object) -> Path:
    """The folder that an argument names.

    Raises:
        TypeError: It is no path.
        ValueError: It is empty, which would be the working folder.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f'{name} must be a folder, such as "studies/first", got {path!r}')
    if not os.fspath(path):
        raise ValueError(f"{name} must name a folder, got {path!r}; the working folder is '.'")
    return user_path(path)


def made_folder(name: str, given: Path, path: Path) -> Path:
    """Make a folder unless it is there.

    Args:
        name: The argument that names it.
        given: The value of the argument, for the error message.
        path: The folder, which is `given` or lies in it.

    Raises:
        OSError: It cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"{name}={str(given)!r} must be a folder that can be written to ({error.strerror})"
        ) from error
    return path


class Store:
    """The folder of a study.

    Args:
        path: The folder; it is made if there is none.
        fresh: Whether runs count as finished only if this object has kept them.

    Raises:
        TypeError: It is no path.
        ValueError: It is empty.
        OSError: It cannot be made.
    """

    def __init__(self, path: str | Path, fresh: bool = False) -> None:
        self.path = folder_of("path", path)
        for name in ("runs", "checkpoints", "locks"):
            made_folder("path", self.path, self.path / name)
        remove_torn(self.path / "runs")
        self._locks: dict[str, IO[Any]] = {}
        self._fresh = fresh
        self._own: set[str] = set()  # keys of runs that it has kept

    def _file(self, key: str, ending: str = "json") -> Path:
        return self.path / "runs" / f"{key}.{ending}"

    def checkpoints(self, key: str) -> Path:
        """The folder of the checkpoints of a run under way."""
        return self.path / "checkpoints" / key

    def find(self, planned: Planned) -> StudyRun | None:
        """The finished run, or None; its schedule is read, too."""
        if self._fresh and planned.key not in self._own:
            return None
        file = self._file(planned.key)
        run = _run_in(file, dict(planned.cell.names))
        if run is None:
            return None
        if planned.records:
            schedule = _schedule_in(file)
            try:
                planned.schedule = ScheduleTable.load(schedule)
            except FileNotFoundError:  # it ran when nobody replayed it: it is computed again
                return None
            except ValueError:
                _say_damaged(schedule)
                return None
        return run

    def keep(self, planned: Planned, run: StudyRun) -> None:
        """Write a run that is over; it is found again unless it failed.

        Raises:
            OSError: The file cannot be written.
        """
        key = planned.key
        if run.error is not None:
            _write(self._file(key, "failed.json"), {"format": _FORMAT, "run": run.to_plain()})
            return
        content: dict[str, Any] = {"format": _FORMAT, "run": run.to_plain()}
        before = [*self.path.glob(f"runs/{key}.*parquet")]
        if planned.schedule is not None:
            # Under a new name, so that the run and its schedule take their place in one moment.
            file = self._file(key, f"{os.urandom(4).hex()}.parquet")
            planned.schedule.save(file)
            content["schedule"] = file.name
        _write(self._file(key), content)
        self._own.add(key)
        for path in before:
            path.unlink(missing_ok=True)
        self._file(key, "failed.json").unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints(key), ignore_errors=True)

    def lock(self, key: str) -> bool:
        """Take a run for this process; False if another one computes it.

        The system releases the lock when the process ends, however it ends.
        """
        if key in self._locks:
            return True
        path = self.path / "locks" / key
        file = path.open("w")
        try:
            _lock(file, wait=False)
            # The process that held it before removes the file: the lock must be on the present one.
            held = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except OSError:
            held = False
        if not held:
            file.close()
            return False
        self._locks[key] = file
        if self._fresh and key not in self._own:  # what another call left on its way is old, too
            shutil.rmtree(self.checkpoints(key), ignore_errors=True)
        return True

    def unlock(self, key: str) -> None:
        """Release a run."""
        file = self._locks.pop(key, None)
        if file is not None:
            with suppress(OSError):
                os.unlink(file.name)
            file.close()

    def unlock_all(self) -> None:
        """Release all runs."""
        for key in list(self._locks):
            self.unlock(key)

    def note(self, plan: Iterable[Planned]) -> list[list[str]]:
        """Add runs to the list of those that were asked for.

        A run of the same cell and seed that is defined otherwise takes the place of the older one.

        Returns:
            For each finished run that has lost its place to one that is yet to be computed, the
            parts of its key that have changed.

        Raises:
            ValueError: The list is of another format.
        """
        lost = []
        with (self.path / "locks" / "study").open("w") as file:
            _lock(file, wait=True)
            listed = {_place(entry): entry for entry in self.listed()}
            for each in plan:
                names = {axis: plain_name(name) for axis, name in each.cell.names.items()}
                assert each.defined is not None
                entry = {"cell": names, "seed": each.seed, **each.defined.to_plain()}
                before = RunKey.from_plain(listed.get(_place(entry), entry))
                moved = before.key != each.key and self._file(before.key).is_file()
                if moved and not self._file(each.key).is_file():  # else it is taken as it is
                    lost.append(each.defined.changed_from(before) if before.parts else [])
                listed[_place(entry)] = entry
            _write(self.path / "study.json", {"format": _FORMAT, "runs": [*listed.values()]})
        return lost

    def listed(self) -> list[dict[str, Any]]:
        """The runs that were asked for: cell, seed and key.

        A damaged list is made again from the files of the runs, which hold cell and seed.

        Raises:
            ValueError: It is of another format.
        """
        file = self.path / "study.json"
        content = _read(file)
        if content is not None and content.get("format", _FORMAT) != _FORMAT:
            raise ValueError(
                f"path={str(self.path)!r} holds a study of format {content['format']!r}, and this "
                f"version of fedlight reads {_FORMAT}; use the one that made it, or another path"
            )
        entries = None if content is None else content.get("runs")
        if isinstance(entries, list) and all(map(_is_entry, entries)):
            return entries
        if not file.exists():
            return []
        found = []
        for path in sorted((self.path / "runs").glob("*.json")):
            run = _run_in(path)
            if run is not None:
                key = path.name.partition(".")[0]
                found.append({"cell": run.cell, "seed": run.seed, "key": key})
        return found

    def load(self) -> tuple[list[StudyRun], int]:
        """All runs that were asked for and are over, and how many are not."""
        found, missing, listed = [], 0, self.listed()
        cells = [json.dumps(entry["cell"]) for entry in listed]
        place = {cell: number for number, cell in enumerate(dict.fromkeys(cells))}
        # A seed that was added later stands with its cell, as in the study that computed it.
        for _, entry in sorted(zip(cells, listed, strict=True), key=lambda each: place[each[0]]):
            run = _run_in(self._file(entry["key"]), entry["cell"])
            run = run or _run_in(self._file(entry["key"], "failed.json"), entry["cell"])
            if run is None:
                missing += 1
            else:
                found.append(replace(run, key=RunKey.from_plain(entry)))
        return found, missing

    def settings(self) -> dict[str, Any]:
        """The settings of the newest call: metric and mode."""
        return _read(self.path / "settings.json") or {}

    def write_settings(self, settings: dict[str, Any]) -> None:
        """Write the settings of a call."""
        _write(self.path / "settings.json", settings)


def _lock(file: IO[Any], wait: bool) -> None:
    """Lock a file for this process until it is closed.

    Raises:
        OSError: `wait` is False, and another process has locked it.
    """
    try:
        import fcntl
    except ImportError:
        _warnings.warn(
            "fedlight: this system has no file locks (fcntl), so only one process at a time may "
            "work on the folder of a study (path=)"
        )
        return
    fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_entry(entry: object) -> bool:
    kinds = {"cell": dict, "seed": int, "key": str}
    return isinstance(entry, dict) and all(isinstance(entry.get(n), k) for n, k in kinds.items())


def _place(entry: dict[str, Any]) -> str:
    names = sorted((axis, str(name)) for axis, name in entry["cell"].items())
    return json.dumps([names, entry["seed"]])


def _run_in(path: Path, cell: dict[str, Any] | None = None) -> StudyRun | None:
    """The run in a file; None if there is none, or the file is damaged."""
    content = _read(path)
    if content is None or content.get("format") != _FORMAT:
        return None
    try:
        return StudyRun.from_plain(content["run"], cell)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None


def _schedule_in(file: Path) -> Path:
    """The file with the schedule of a run; it is not there if the run has none."""
    name = (_read(file) or {}).get("schedule")
    return file.with_name(name if isinstance(name, str) and name else f"{file.stem}.parquet")


def _read(path: Path) -> dict[str, Any] | None:
    """The content of a file; None if there is none, or it is damaged or was changed."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except ValueError:
        text = ""
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if isinstance(content, dict) and content.get("format", _FORMAT) == _FORMAT:
        begin = len(_HASHED) + _DIGITS + 2
        if text.startswith(_HASHED) and content["hash"] != _hash_of("{" + text[begin:]):
            content = None
    if not isinstance(content, dict):
        _say_damaged(path)
        return None
    content.pop("hash", None)  # a file of 0.2 has none
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, separators=(",", ":"))
    with replacing(path, "w") as file:
        file.write(f'{_HASHED}{_hash_of(text)}",{text[1:]}')


def _hash_of(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_DIGITS // 2).hexdigest()


def _say_damaged(path: Path) -> None:
    say_once(
        f"fedlight: {str(path)!r} was damaged or changed since it was written, and is not read"
    )
