"""Checkpoint files: whole or refused, and nothing in them is ever executed.

A checkpoint is a file that plain Lightning reads as well (``Module.load_from_checkpoint``): the
server's model as ``state_dict`` and the module's hyper-parameters. All that a resumed run needs is
under the key ``"fedlight"``. The comment of its zip archive holds a checksum of all other
bytes. It is written under another name, synced, and renamed.

Lists that only grow (`Growing`: the history, a recorded schedule, an event log) would make each
checkpoint larger than the one before. Given a `Parts` folder, a checkpoint holds only the newest
items itself and the name of the full part before them. Each part names the part before it, so that
not even the list of names grows. Parts lie in the folder, each named by the hash of its bytes. A
part is written once, by a run or by several that share their beginning, and never changed.

Long lists of like items (the tasks in flight, the updates of a round) are tables of columns, so
that a run with 100,000 clients in flight is written in seconds.
"""

from __future__ import annotations

import hashlib
import io
import pickletools
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fedlight._support.files import replacing, sync_folder, user_path
from fedlight._support.garbage_collection import no_collections
from fedlight._support.growing import Growing
from fedlight._support.tables import is_table, packed, unpacked

__all__ = [
    "CheckpointError",
    "Growing",
    "Parts",
    "plain",
    "read_checkpoint",
    "write_checkpoint",
]

FORMAT = 4
_READ = (3, FORMAT)  # one of 3 has no tables
_MARK = b"fedlight-sha256:"
_TAIL = len(_MARK) + 64
_FOLDER = "parts"

# Kinds that `torch.load(weights_only=True)` gives back as they were.
_NUMBERS = frozenset({int, float, bool, type(None)})
_SAFE = (bytes, bytearray, complex, torch.dtype, torch.device, torch.Size, torch.layout)


class CheckpointError(ValueError):
    """A file is no whole checkpoint of ours, or one of another federation."""


class Parts:
    """The folder ``parts`` next to the checkpoints of one run.

    Args:
        folder: The folder of the checkpoints.
        size: Items in a part. Each checkpoint holds fewer than this itself.
    """

    def __init__(self, folder: str | Path, size: int = 64) -> None:
        self._folder = Path(folder) / _FOLDER
        self._size = size
        # By the place of a list: the number of its items in parts, and the name of the newest part.
        self._stored: dict[str, tuple[int, str | None]] = {}

    def store(self, growing: Growing, place: str) -> dict[str, Any]:
        """Return the entry of a list in the checkpoint: its newest full part by name, and the rest.

        Args:
            growing: The list; the items of the parts that earlier calls wrote are unchanged.
            place: Where in the checkpoint it lies.

        Raises:
            OSError: A part cannot be written.
        """
        size = self._size
        start, newest = self._stored.get(place, (0, None))
        while len(growing) - start >= size:
            newest = self._write(growing.part(start, start + size), newest, place)
            start += size
            self._stored[place] = start, newest
        rest = plain(growing.part(start, len(growing)), place, tables=True)
        return {_FOLDER: newest, "rest": rest}

    def _write(self, items: list[Any], before: str | None, place: str) -> str:
        buffer = io.BytesIO()
        torch.save({"before": before, "items": plain(items, place, tables=True)}, buffer)
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
        content: Tensors and plain data.
        *copies: More files with the same bytes.
        parts: Where the full parts of growing lists go; None to have all in the file itself.

    Raises:
        OSError: A file cannot be written; what was at its path is still there.
        TypeError: Something in `content` is neither tensor nor plain data.
    """
    buffer = io.BytesIO()
    try:
        # Plain Lightning reads the others as they are, so only ours has tables.
        own = {_key(key, "checkpoint"): key == "fedlight" for key in content}
        made = {
            key: plain(content[key], place=f"checkpoint[{key!r}]", parts=parts, tables=tables)
            for key, tables in own.items()
        }
        torch.save(made, buffer)
    except RecursionError:
        raise TypeError(
            "something in the checkpoint holds itself (a dict or a list within itself); a "
            "state_dict may hold tensors and plain data only"
        ) from None
    archive = buffer.getvalue()
    comment = _MARK + hashlib.sha256(archive).hexdigest().encode()
    # One after the other, each whole on the disk before the next: a machine that loses its power
    # may tear the one being written, and the other one is still there.
    paths = [user_path(each) for each in (path, *copies)]
    for each in paths:
        each.parent.mkdir(parents=True, exist_ok=True)
        with replacing(each, sync=False) as file:
            # The last two bytes of a zip archive without a comment are the comment's length, 0.
            file.write(archive[:-2] + struct.pack("<H", _TAIL) + comment)
    for folder in dict.fromkeys(each.parent for each in paths):
        sync_folder(folder)


class HyperParameters(dict[str, Any]):
    """Hyper-parameters that `plain_hparams` has checked, which `plain` does not change."""


def plain(
    value: Any, place: str = "checkpoint", parts: Parts | None = None, *, tables: bool = False
) -> Any:
    """`value` made of tensors, numbers, strings, None, lists and dicts alone.

    Bytes, and torch's types and devices, are not changed; sets stay sets.

    Args:
        value: The value.
        place: Where it lies, for errors.
        parts: Where the full parts of growing lists go; None for lists like others.
        tables: Whether long lists of like items become tables (`packed`).

    Raises:
        TypeError: There is something else in it; names the place.
    """
    if type(value) in _NUMBERS:
        return value
    if isinstance(value, Tensor):
        return value.detach().cpu()  # plain Lightning reads it on machines without the device, too
    if isinstance(value, HyperParameters):
        return dict(value)
    if isinstance(value, np.generic):
        value = value.item()  # numpy's bool is no `Integral`, its float32 no `Real`
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # A pickle holds a string once for each of its objects. With one object for each string,
        # equal items make equal bytes, and so parts of the same name, also in a resumed run.
        return sys.intern(str(value))
    if type(value) in _SAFE:
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Path):
        return str(value)
    if tables and type(value) in (dict, list, tuple):
        # An unlike column is a list with an item for each row; its items may be long themselves.
        table = packed(value, lambda items: [plain(each, place, tables=True) for each in items])
        if table is not None:
            return table
    if isinstance(value, Mapping):
        return {
            _key(key, place): item
            if type(item) in _NUMBERS
            else plain(item, f"{place}[{key!r}]", parts, tables=tables)
            for key, item in value.items()
        }
    if isinstance(value, set | frozenset):
        return {_key(item, place) for item in value}
    if isinstance(value, Growing) and parts is not None:
        return parts.store(value, place)
    if isinstance(value, list | tuple | Growing):
        # A checkpoint is thousands of numbers: the call and the name of the place would cost most.
        return [
            item
            if type(item) in _NUMBERS
            else plain(item, f"{place}[{index}]", parts, tables=tables)
            for index, item in enumerate(value)
        ]
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.from_numpy(np.ascontiguousarray(value))
    raise TypeError(
        f"{place} is a {type(value).__name__}; a state_dict may hold tensors and plain data only, "
        "so that loading a checkpoint never runs code"
    )


def _key(key: Any, place: str) -> Any:
    """A key of a dict, or an item of a set, as plain data."""
    if type(key) is str:
        return sys.intern(key)
    made = None if isinstance(key, Tensor | tuple | frozenset | Mapping) else plain(key, place)
    if made is None and key is not None:
        raise TypeError(
            f"{place} has the key {key!r}, which is a {type(key).__name__}; the keys of a "
            "state_dict must be strings or numbers: write them as a list of [key, value] pairs"
        )
    return made


@no_collections()
def read_checkpoint(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a file that `write_checkpoint` wrote; the tensors are on the CPU.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: The file is damaged, cut short, or none of ours, or parts are missing.
    """
    path = user_path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint file {str(path)!r}")
    data = path.read_bytes()
    archive = data[: -_TAIL - 2] + b"\0\0"
    expected = struct.pack("<H", _TAIL) + _MARK + hashlib.sha256(archive).hexdigest().encode()
    if len(data) < _TAIL + 2 or data[-_TAIL - 2 :] != expected:
        if _is_lightnings(data):
            raise CheckpointError(
                f"{str(path)!r} is a checkpoint of lightning.Trainer; write "
                "Net.load_from_checkpoint(path), with your module's class for Net, and pass that "
                "module"
            )
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
    if content["fedlight"].get("format") not in _READ:
        raise CheckpointError(
            f"{str(path)!r} has format {content['fedlight'].get('format')!r}, this version of "
            f"fedlight reads format {FORMAT}; use the version that wrote it"
        )
    return {**content, "fedlight": _joined(content["fedlight"], path)}


def _is_lightnings(data: bytes) -> bool:
    """Whether a file is a checkpoint of `lightning.Trainer`; nothing in it is executed."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            (name,) = (each for each in archive.namelist() if each.endswith("/data.pkl"))
            words = {word for _, word, _ in pickletools.genops(archive.read(name))}
    except Exception:  # damaged, or of another kind
        return False
    return "pytorch-lightning_version" in words and "fedlight" not in words


def _joined(value: Any, path: Path) -> Any:
    """`value` with each growing list put together again, and each table a list or dict again."""
    if is_table(value):
        return unpacked(value, lambda items: _joined(items, path))
    if isinstance(value, list):
        return [_joined(item, path) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_FOLDER, "rest"}:
        parts, name = [_joined(value["rest"], path)], value[_FOLDER]
        while name is not None:  # from the newest part to the first one
            part = _read_part(name, path)
            parts.append(_joined(part["items"], path))
            name = part["before"]
        return [item for part in reversed(parts) for item in part]
    return {key: _joined(item, path) for key, item in value.items()}


def _read_part(name: str, path: Path) -> dict[str, Any]:
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
    part: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return part


def _part_name(data: bytes) -> str:
    return f"{hashlib.blake2b(data, digest_size=16).hexdigest()}.pt"


def run_of(path: Path) -> str | None:
    """The `Run.id` of the run that wrote a checkpoint; None if the file cannot be read.

    The tensors are not read.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return str(content["fedlight"]["run"])
    except Exception:  # not one of ours, damaged, or removed meanwhile
        return None


def load_weights(module: LightningModule, content: Mapping[str, Any], path: str) -> None:
    """Put the model of a checkpoint into a module.

    Args:
        module: The module.
        content: The content of the checkpoint.
        path: Its name, for errors.

    Raises:
        CheckpointError: The checkpoint is that of another model.
    """
    try:
        module.load_state_dict(content["state_dict"])
    except RuntimeError as error:
        raise CheckpointError(
            f"{path!r} does not fit {type(module).__name__}: {' '.join(str(error).split())}"
        ) from error


def plain_hparams(module: LightningModule) -> HyperParameters:
    """The module's hyper-parameters, as far as a file may hold them without running code.

    Those that are written come back equal and of the same kind, as ``__init__`` expects them; the
    others are left out, with one warning that names them.
    """
    kept = HyperParameters()
    left_out = []
    try:
        names = list(module.hparams)
    except Exception as error:  # a mapping of another library may compute its keys
        rank_zero_warn(f"the hyper-parameters of {type(module).__name__} cannot be read: {error}")
        return kept
    for name in names:
        try:
            kept[str(name)] = exactly(module.hparams[name])
        except Exception:  # also one that cannot be computed, or that holds itself
            left_out.append(name)
    if left_out:
        rank_zero_warn(
            f"the hyper-parameters {left_out} of {type(module).__name__} are no plain data and are "
            "left out of the checkpoint; give them to load_from_checkpoint"
        )
    return kept


def exactly(value: Any) -> Any:
    """`value` for a file, of the same kind; only numbers of other libraries become Python's.

    Those are numbers of numpy, and of subclasses of int and float without attributes of their own,
    such as jsonargparse's ``PositiveInt``.

    Raises:
        TypeError: There is something in it that `plain` would refuse or make another kind of.
    """
    if isinstance(value, np.generic):
        value = value.item()
    kind = type(value)
    # An Enum has its name among its attributes.
    if isinstance(value, int | float) and kind is not bool and not getattr(value, "__dict__", None):
        value = int(value) if isinstance(value, int) else float(value)
        kind = type(value)
    if value is None or kind in (bool, int, float, str, Tensor, *_SAFE):
        return plain(value)
    if kind in (list, tuple, set):
        return kind([exactly(item) for item in value])
    if kind in (dict, OrderedDict):
        return kind((exactly(key), exactly(item)) for key, item in value.items())
    raise TypeError(f"{kind.__name__} is not plain data")
