"""Files by content, where data name them.

A path is known by its place among the others that the same data name, not by its place on this
machine: data may move to another folder. Of a folder the files in it count, unless some of them are
named themselves.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

_WORDS = {"root", "path", "paths", "file", "files", "filename", "folder", "dir", "directory"}
_NAME = re.compile(r"[/\\]|\.\w{1,8}$")  # a folder's separator, or the ending of a file
_LONGEST = 4096  # signs of a path
_MOST_FILES = 200_000
_WHOLE_BYTES = 1 << 30  # in all; of files beyond it the beginning and the end count
_END = 1 << 12
_CHUNK = 1 << 22


class Files:
    """The files and folders that some data name.

    Attributes:
        hidden: What does not count of them, in words.
    """

    def __init__(self) -> None:
        self.hidden: list[str] = []
        self._numbers: dict[str, int] = {}

    @property
    def found(self) -> bool:
        """Whether any is named."""
        return bool(self._numbers)

    def number(self, value: Any, name: str) -> int | None:
        """Return the number of a path, in the order of their first mention; None for other values.

        Args:
            value: A value in the data. A string is a path if it has a slash or an ending, or its
                name says so, and there is such a file; of a folder, if it is an absolute path.
            name: The name of the value.
        """
        named = isinstance(value, os.PathLike) or bool(
            _WORDS & set(re.split(r"[\W_\d]+", name.rpartition(".")[2].lower()))
        )
        path = os.fspath(value)
        if not isinstance(path, str) or not 0 < len(path) <= _LONGEST:
            return None
        if not named and not _NAME.search(path):
            return None
        path = os.path.abspath(path)
        if os.path.isdir(path):
            if not (named or os.path.isabs(value)):
                return None  # "/" may separate words
            if os.path.ismount(path) or Path(path) == Path.home():
                if not named:
                    return None
                self.hidden.append(f"the folder {value}")
                return None
        elif not os.path.isfile(path):
            return None
        return self._numbers.setdefault(path, len(self._numbers))

    def parts(self) -> Iterator[bytes]:
        """Yield places and contents of all paths, in the order of their numbers."""
        if not self._numbers:
            return
        files = [each for each in self._numbers if os.path.isfile(each)]
        common = os.path.commonpath([os.path.dirname(each) for each in files]) if files else ""
        above = {str(parent) for each in files for parent in Path(each).parents}
        whole = _WHOLE_BYTES
        for path in self._numbers:
            if path in above:
                yield b"folder of files that are named;"
                continue
            folder = os.path.isdir(path)
            for each in self._below(path) if folder else [path]:
                place = os.path.relpath(each, path if folder else common)
                state = os.stat(each)
                if state.st_size > whole:
                    self.hidden.append(
                        f"the middle of files below {path}, as all are more than 1 GiB,"
                    )
                content = _content(each, state.st_size, state.st_mtime_ns, state.st_size <= whole)
                whole -= min(whole, state.st_size)
                yield f"{Path(place).as_posix()}:{content};".encode()

    def _below(self, folder: str) -> Iterator[str]:
        """The files in a folder, in an order of their names."""
        count = 0
        for place, folders, names in os.walk(folder):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(place, name)
                try:
                    regular = stat.S_ISREG(os.stat(path).st_mode)
                except OSError:
                    continue
                count += regular
                if count > _MOST_FILES:
                    self.hidden.append(f"files beyond the first {_MOST_FILES:,} in {folder}")
                    return
                if regular:
                    yield path


@lru_cache(maxsize=1 << 18)
def _content(path: str, size: int, changed: int, whole: bool) -> str:
    """A hash of a file; size and time of the last change tell when it has to be read again."""
    hashed = hashlib.blake2b(str(size).encode(), digest_size=8)
    try:
        with open(path, "rb") as file:
            if whole:
                while chunk := file.read(_CHUNK):
                    hashed.update(chunk)
            else:
                hashed.update(file.read(_END))
                file.seek(max(size - _END, 0))
                hashed.update(file.read(_END))
    except OSError as error:
        return type(error).__name__
    return hashed.hexdigest()
