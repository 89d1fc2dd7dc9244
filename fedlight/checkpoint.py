"""Checkpoint files: whole or refused, and nothing in them is ever executed.

A checkpoint is a file that plain Lightning reads as well (``Module.load_from_checkpoint``): the
server's model as ``state_dict`` and the module's hyper-parameters, with all that the run needs to
go on under the key ``"fedlight"``. The comment of its zip archive holds a checksum of all other
bytes. It is written beside its place, synced, and renamed.

Lists that only grow (`Growing`: the history, a recorded schedule, an event log) would make each
checkpoint larger than the one before. Given a `Parts` folder, a checkpoint holds only the newest
items itself and names the full parts before them, which lie in the folder, each named by the hash
of its bytes. A part is written once, by a run or by several that share their beginning, and never
changed.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fedlight._files import replacing
from fedlight._growing import Growing

if TYPE_CHECKING:
    from lightning import LightningModule

__all__ = [
    "CheckpointError",
    "Growing",
    "Parts",
    "plain",
    "read_checkpoint",
    "write_checkpoint",
]

FORMAT = 2
_MARK = b"fedlight-sha256:"
_TAIL = len(_MARK) + 64
_FOLDER = "parts"


class CheckpointError(ValueError):
    """A file is no whole checkpoint of ours, or one of another federation."""


class Parts:
    """The folder ``parts`` beside the checkpoints of one run.

    Args:
        folder: The folder of the checkpoints.
        size: Items in a part. Each checkpoint holds fewer than this itself.
    """

    def __init__(self, folder: str | Path, size: int = 64) -> None:
        self._folder = Path(folder) / _FOLDER
        self._size = size
        self._names: dict[str, list[str]] = {}

    def store(self, growing: Growing, place: str) -> dict[str, Any]:
        """What stands for a list in the checkpoint: the names of its full parts, and the rest.

        Args:
            growing: The list; up to the last call's full parts it is what it was then.
            place: Where in the checkpoint it lies.

        Raises:
            OSError: A part cannot be written.
        """
        names, size = self._names.setdefault(place, []), self._size
        for start in range(len(names) * size, len(growing) - size + 1, size):
            names.append(self._write(growing.part(start, start + size), place))
        rest = growing.part(len(names) * size, len(growing))
        return {_FOLDER: list(names), "rest": plain(rest, place)}

    def _write(self, items: list[Any], place: str) -> str:
        buffer = io.BytesIO()
        torch.save(plain(items, place), buffer)
        name = _part_name(buffer.getvalue())
        path = self._folder / name
        if not path.exists() or _part_name(path.read_bytes()) != name:  # missing, or damaged
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(buffer.getvalue())
        return name


def write_checkpoint(
    path: str | Path, content: dict[str, Any], *copies: str | Path, parts: Parts | None = None
) -> None:
    """Write tensors and plain data to files; what is there is replaced only by a whole file.

    Args:
        path: The file.
        content: What it holds.
        *copies: More files with the same bytes.
        parts: Where the full parts of growing lists go; None to have all in the file itself.

    Raises:
        OSError: A file cannot be written; what was at its path is still there.
        TypeError: Something in `content` is neither tensor nor plain data.
    """
    buffer = io.BytesIO()
    torch.save(plain(content, parts=parts), buffer)
    archive = buffer.getvalue()
    comment = _MARK + hashlib.sha256(archive).hexdigest().encode()
    for each in map(Path, (path, *copies)):
        each.parent.mkdir(parents=True, exist_ok=True)
        with replacing(each) as file:
            # The last two bytes of a zip archive without a comment are the comment's length, 0.
            file.write(archive[:-2] + struct.pack("<H", _TAIL) + comment)


def plain(value: Any, place: str = "checkpoint", parts: Parts | None = None) -> Any:
    """`value` made of tensors, numbers, strings, None, lists and dicts alone.

    Args:
        value: The value.
        place: Where it lies, for errors.
        parts: Where the full parts of growing lists go; None for lists like others.

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
        return {
            plain(key, place): plain(item, f"{place}[{key!r}]", parts)
            for key, item in value.items()
        }
    if isinstance(value, Growing) and parts is not None:
        return parts.store(value, place)
    if isinstance(value, list | tuple | Growing):
        return [plain(item, f"{place}[{index}]", parts) for index, item in enumerate(value)]
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
        CheckpointError: The file is damaged, cut short, or none of ours, or parts are missing.
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
    return {**content, "fedlight": _joined(content["fedlight"], path)}


def _joined(value: Any, path: Path) -> Any:
    """`value` with each growing list put together again."""
    if isinstance(value, list):
        return [_joined(item, path) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_FOLDER, "rest"}:
        parts = [_read_part(name, path) for name in value[_FOLDER]]
        return [item for part in [*parts, value["rest"]] for item in part]
    return {key: _joined(item, path) for key, item in value.items()}


def _read_part(name: str, path: Path) -> list[Any]:
    file = path.parent / _FOLDER / name
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(
            f"{str(path)!r} needs {str(file)!r}, which is not there: the folder "
            f"{_FOLDER!r} beside a checkpoint holds its earlier rounds; copy both together"
        ) from None
    if _part_name(data) != name:
        raise CheckpointError(f"{str(file)!r}, a part of {str(path)!r}, is damaged")
    part: list[Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return part


def _part_name(data: bytes) -> str:
    return f"{hashlib.blake2b(data, digest_size=16).hexdigest()}.pt"


def plain_hparams(module: LightningModule) -> dict[str, Any]:
    """The module's hyper-parameters, as far as a file may hold them without running code."""
    plain, left_out = {}, []
    for name, value in module.hparams.items():
        buffer = io.BytesIO()
        try:
            torch.save(value, buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except Exception:  # values that cannot be written, or not be read safely, are left out
            left_out.append(name)
        else:
            plain[name] = value
    if left_out:
        rank_zero_warn(
            f"the hyper-parameters {left_out} of {type(module).__name__} are no plain data and are "
            "left out of the checkpoint; give them to load_from_checkpoint"
        )
    return plain


def differences(saved: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """What differs between the descriptions of two runs, one phrase each."""
    names = [*present, *(name for name in saved if name not in present)]
    return [
        f"{name} was {saved.get(name)!r}, is {present.get(name)!r}"
        for name in names
        if saved.get(name) != present.get(name)
    ]
