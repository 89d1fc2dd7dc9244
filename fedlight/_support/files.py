"""Writing files so that a reader never finds half of one."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

# A part file of a process that cannot be asked, as on another machine, is removed after this long.
_OLD_SECONDS = 24 * 60 * 60


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path that a user gives, with ``~`` and ``~name`` as the home folders that they stand for.

    Example:
        >>> user_path("~/runs") == Path.home() / "runs"
        True
    """
    return Path(path).expanduser()


def new_file(name: str, path: object, example: str) -> Path:
    """The file that an argument names, which may or may not exist.

    Args:
        name: Name of the argument.
        path: Its value.
        example: A path, for the error.

    Raises:
        TypeError: It is no path.
        ValueError: It is empty, or a folder.
    """
    if not isinstance(path, str | os.PathLike):
        from fedlight._support.checks import shown  # loads numpy, unlike help

        raise TypeError(f"{name} must name a file, such as {example!r}, got {shown(path)}")
    if not os.fspath(path):
        raise ValueError(f"{name} must name a file, such as {example!r}, got {path!r}")
    found = user_path(path)
    if found.is_dir():
        raise ValueError(f"{name} must name a file, but {os.fspath(path)!r} is a folder")
    return found


def existing_file(name: str, path: object, words: str) -> Path:
    """The file that an argument names.

    Args:
        name: Name of the argument.
        path: Its value.
        words: What the file is, for the error.

    Raises:
        TypeError: It is no path.
        FileNotFoundError: There is no such file.
    """
    if not isinstance(path, str | os.PathLike):
        kind = type(path).__name__
        from fedlight._support.checks import shown  # loads numpy, unlike help

        raise TypeError(f"{name} must be a path, got {shown(path)} ({kind}); it names a {words}")
    found = user_path(path)
    if not found.is_file():
        raise FileNotFoundError(f"there is no {words} {os.fspath(path)!r}; {name} must name one")
    return found


@contextmanager
def replacing(
    path: str | os.PathLike[str],
    mode: str = "wb",
    newline: str | None = None,
    sync: bool = True,
) -> Iterator[IO[Any]]:
    """An open file that takes the place of `path` when the block ends without an error.

    Until then the old file is unchanged, also if the machine loses its power. After an error
    nothing is left of the new one.

    Args:
        path: The file to write; its folder must exist.
        mode: "wb", or "w" for text (UTF-8).
        newline: As for `open`.
        sync: Sync the folder as well. A caller that writes several files into one folder passes
            False and calls `sync_folder` once, after the last of them.

    Raises:
        OSError: The file cannot be written; the error names `path`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "numbers.txt")
        >>> with replacing(path, "w") as file:
        ...     _ = file.write("1 2 3")
        >>> path.read_text()
        '1 2 3'
    """
    path, encoding = Path(path), None if "b" in mode else "utf-8"
    # The process number tells who is writing. The random part separates two writers of one path,
    # also on two machines that share a folder and may have equal process numbers.
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    with _naming(path, beside):
        try:
            with beside.open(mode, newline=newline, encoding=encoding) as file:
                yield file
                file.flush()
                # Without this, some file systems carry out the rename before the writing: after a
                # power cut there would be an empty file in the place of the old one.
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
        if sync:
            sync_folder(path.parent)


def remove_torn(folder: Path) -> None:
    """Remove the part files that killed processes have left in a folder and below it.

    The part file of a process that lives is left alone: another run may be writing to the folder.

    Args:
        folder: The folder; it need not exist.
    """
    for path in folder.glob("**/.*.part"):
        name = re.fullmatch(r"\..+\.(\d+)\.[0-9a-f]{8}\.part", path.name)
        if name is None:
            continue  # not one of ours
        try:
            old = time.time() - path.stat().st_mtime > _OLD_SECONDS
        except FileNotFoundError:
            continue  # its process has finished the file meanwhile
        if old or not _lives(int(name[1])):
            path.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        with suppress(PermissionError):  # a process of another user lives, too
            os.kill(process, 0)  # signal 0 is not sent; it only checks that there is such a process
    except (ProcessLookupError, OverflowError):
        return False
    return True


@contextmanager
def appending(
    path: str | os.PathLike[str], mode: str = "ab", newline: str | None = None
) -> Iterator[IO[Any]]:
    """A file opened to append; after an error it is as long as it was before the block.

    Args:
        path: The file; it is made if there is none.
        mode: "ab", or "a" for text (UTF-8).
        newline: As for `open`.

    Raises:
        OSError: The file cannot be written; the error names `path`.
    """
    path, encoding = Path(path), None if "b" in mode else "utf-8"
    with _naming(path):
        length = path.stat().st_size if path.exists() else 0
        try:
            with path.open(mode, newline=newline, encoding=encoding) as file:
                yield file
        except BaseException:
            # On a full disk the first half may have been written.
            if path.exists():
                os.truncate(path, length)
            raise


@contextmanager
def _naming(path: Path, beside: Path | None = None) -> Iterator[None]:
    """Make an OSError name the file that the user knows.

    An error of `write` or `fsync` names no file at all, and one of `open` names the part file.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None and str(error.filename) != str(beside):
            raise  # of another file, which the block was reading
        reason = error.strerror or str(error)
        raise OSError(error.errno or errno.EIO, reason, str(path)) from error


def sync_folder(folder: Path) -> None:
    """Sync a folder: it holds the new names of files, which must reach the disk as well."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
