"""Checkpoint files: whole or refused, and nothing in them is ever executed.

A checkpoint is a file that plain Lightning reads as well (``Module.load_from_checkpoint``): the
global model's ``state_dict`` and the module's hyper-parameters, with all that the run needs to go
on under the key ``"fedlight"``. The comment of its zip archive holds a checksum of all other bytes.
It is written beside its place, synced, and renamed.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FORMAT = 1
_MARK = b"fedlight-sha256:"
_TAIL = len(_MARK) + 64


class CheckpointError(ValueError):
    """A file is no whole checkpoint of ours, or one of another federation."""


def write_checkpoint(path: str | Path, content: dict[str, Any]) -> None:
    """Write tensors and plain data to `path`; what is there is replaced only by a whole file.

    Raises:
        OSError: The file cannot be written; what was at `path` is still there.
        TypeError: Something in `content` is neither.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(plain(content), buffer)
    archive = buffer.getvalue()
    comment = _MARK + hashlib.sha256(archive).hexdigest().encode()
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            # The last two bytes of a zip archive without a comment are the comment's length, 0.
            file.write(archive[:-2] + struct.pack("<H", _TAIL) + comment)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def plain(value: Any, place: str = "checkpoint") -> Any:
    """`value` made of tensors, numbers, strings, None, lists and dicts alone.

    Raises:
        TypeError: There is something else in it; names the place.
    """
    if isinstance(value, Tensor):
        return value.detach()
    if value is None or isinstance(value, bool | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {plain(key, place): plain(item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{place}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.from_numpy(np.ascontiguousarray(value))
    raise TypeError(
        f"{place} is a {type(value).__name__}; a state_dict may hold tensors and plain data only, "
        "so that loading a checkpoint never runs code"
    )


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a file that `write_checkpoint` wrote; the tensors are on the CPU.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: The file is damaged, cut short, or none of ours.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint file {str(path)!r}")
    data = path.read_bytes()
    archive = data[: -_TAIL - 2] + b"\0\0"
    expected = struct.pack("<H", _TAIL) + _MARK + hashlib.sha256(archive).hexdigest().encode()
    if len(data) < _TAIL + 2 or data[-_TAIL - 2 :] != expected:
        raise CheckpointError(
            f"{str(path)!r} is damaged, cut short, or not a checkpoint written by fedlight "
            "(its checksum does not fit); give another one"
        )
    try:
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{str(path)!r} holds something beside tensors and plain data, which could run code, "
            f"and is not read ({str(error).splitlines()[0]}); give another one"
        ) from error
    if not isinstance(content, dict) or not isinstance(content.get("fedlight"), dict):
        raise CheckpointError(f"{str(path)!r} holds no run of fedlight; give another one")
    if content["fedlight"].get("format") != FORMAT:
        raise CheckpointError(
            f"{str(path)!r} has format {content['fedlight'].get('format')!r}, this version of "
            f"fedlight reads format {FORMAT}; use the version that wrote it"
        )
    return content


def differences(saved: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """What differs between the descriptions of two runs, one phrase each."""
    names = [*present, *(name for name in saved if name not in present)]
    return [
        f"{name} was {saved.get(name)!r}, is {present.get(name)!r}"
        for name in names
        if saved.get(name) != present.get(name)
    ]
