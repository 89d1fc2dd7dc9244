"""Decoded columns on disk, so that the next run maps them instead of decoding them again.

A file holds one column of one data set in NumPy's own format, one row per example, and after it
the hash of these bytes. Its name is a hash of all that defines the values: the data set's
fingerprint, the column, and the decoding.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from fedlight._support.files import remove_torn, replacing, user_path

if TYPE_CHECKING:
    import datasets

_FORMAT = 2  # to be raised if the decoding changes
_HASH_BYTES = 16
_NAME = re.compile(r"decoded-[0-9a-f]{32}\.npy")
_UNUSED_SECONDS = 30 * 24 * 60 * 60


def checked_cache(cache: object) -> bool | Path:
    """Check the argument `cache`, and return a folder as a `Path`.

    Raises:
        TypeError: It is neither a bool nor a folder.
        NotADirectoryError: It is a file.
    """
    if isinstance(cache, bool):
        return cache
    if not isinstance(cache, str | os.PathLike) or not os.fspath(cache):
        raise TypeError(
            "cache must be True (keep decoded columns beside the datasets library's cache), False "
            f"or a folder, got {cache!r}"
        )
    folder = user_path(cache)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"cache={str(cache)!r} is a file; give a folder, True or False")
    return folder.absolute()


def cached(
    cache: bool | Path,
    dataset: datasets.Dataset,
    name: str,
    how: str,
    decode: Callable[[], Tensor],
) -> Tensor:
    """The decoded values of a column: mapped from its file, or decoded and written to it.

    The file is written under another name and renamed, so two processes may do this at once. If it
    is damaged or was changed, the column is decoded again, and a line in the log says so. If it
    cannot be written, a warning says so.

    Args:
        cache: True for `fedlight` in the cache of the `datasets` library, False, or a folder.
        dataset: The data set. Without files of its own (made in memory), nothing is kept.
        name: The column.
        how: The kind of decoding, and its version.
        decode: Returns the values, uint8 `[rows, ...]`.
    """
    folder = _folder(cache)
    if folder is None or not dataset.cache_files:
        return decode()
    key = json.dumps([_FORMAT, dataset._fingerprint, len(dataset), name, how])
    path = folder / f"decoded-{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.npy"
    values = _mapped(path, len(dataset))
    if values is None:
        if path.exists():
            rank_zero_info(
                f"fedlight: {str(path)!r}, the decoded column {name!r}, was damaged or changed "
                "since it was written; the column is decoded again"
            )
        values = decode()
        try:
            _write(path, values)
        except OSError as error:
            rank_zero_warn(
                f"the decoded column {name!r} cannot be kept, so the next run decodes it again "
                f"({error}); give FederatedDataModule(cache=FOLDER) with room, or cache=False"
            )
    return values


def _folder(cache: bool | Path) -> Path | None:
    import datasets

    if not isinstance(cache, bool):
        return cache
    # Without its cache, the library gives a data set another fingerprint in each run.
    wanted = cache and datasets.is_caching_enabled()
    return Path(datasets.config.HF_DATASETS_CACHE) / "fedlight" if wanted else None


def _mapped(path: Path, rows: int) -> Tensor | None:
    """The values in a file, mapped; None if it is missing, damaged or changed."""
    import xxhash  # only data sets of the `datasets` library, which brings it, are kept

    try:
        everything = np.memmap(path, np.uint8, mode="r")
        # Far faster than a hash that withstands an attacker, who could write another hash as well.
        digest = xxhash.xxh3_128_digest(everything[:-_HASH_BYTES].data)
        if digest != everything[-_HASH_BYTES:].tobytes():
            return None
        # Copy-on-write: nobody can change the file, and torch gets an array that may be written to.
        values = np.lib.format.open_memmap(path, mode="c")
    except (OSError, ValueError):
        return None
    fits = values.dtype == np.uint8 and values.shape[:1] == (rows,) and values.flags.c_contiguous
    if not fits:
        return None
    with suppress(OSError):  # a folder of which we may only read
        os.utime(path)  # `_remove_unused` asks when it was last used
    return torch.from_numpy(values)


def _write(path: Path, values: Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_torn(path.parent)
    _remove_unused(path.parent)
    with replacing(path) as file:
        hashed = _Hashed(file)
        np.lib.format.write_array(hashed, values.numpy(), allow_pickle=False)
        file.write(hashed.digest.digest())


class _Hashed:
    """A file to be written to that hashes what is written."""

    def __init__(self, file: IO[bytes]) -> None:
        import xxhash

        self._file, self.digest = file, xxhash.xxh3_128()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._file.write(data)


def _remove_unused(folder: Path) -> None:
    """Remove the files of data sets that no run has asked for in a month."""
    for path in folder.iterdir():
        if _NAME.fullmatch(path.name):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _UNUSED_SECONDS:
                    path.unlink()
