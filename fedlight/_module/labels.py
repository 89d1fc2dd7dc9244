"""Hints about the data if a step fails: labels out of range, batches of another form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MOST_ROWS = 10_000
# torch's words: of `gather` (stacked clients), of `cross_entropy`, of an embedding
_OUT_OF_RANGE = re.compile(r"index (-?\d+) is out of bounds|Target (-?\d+) is out of bounds")
_NOT_A_DICT = "indices must be integers or slices, not str"
_A_KEY = "must be Tensor, not str"
# Python's words, with the number of values that the step takes
_UNPACKS = re.compile(r"(?:too many|not enough) values to unpack \(expected (?:at least )?(\d+)")
_SIZE = re.compile(r"with size (\d+)")


def hint_about(error: BaseException, examples: Any, rows: NDArray[np.int64]) -> str:
    """Explain an error of a client's step by its data; "" if nothing is known.

    Args:
        error: The error of the local step.
        examples: The examples of all clients.
        rows: The client's rows.
    """
    if not (_is_out_of_range(error) or _is_of_form(error)):
        return ""
    try:
        batch = examples.gather(torch.from_numpy(rows[:_MOST_ROWS]))
    except Exception:  # a hint must not hide the error that it explains
        return ""
    return hint_about_batch(error, batch, "The client's")


def hint_about_batch(error: BaseException, batch: Any, whose: str) -> str:
    """Explain an error of a step by its batch; "" if nothing is known.

    Args:
        error: The error of the step.
        batch: The batch.
        whose: The owner of the batch, with a capital letter, such as "The client's".
    """
    return _of_labels(error, batch, whose) if _is_out_of_range(error) else _of_form(error, batch)


def _is_out_of_range(error: BaseException) -> bool:
    # Not "list index out of range": that is an index of Python's, and no label.
    return "index out of range in" in str(error) or _OUT_OF_RANGE.search(str(error)) is not None


def _is_of_form(error: BaseException) -> bool:
    words = str(error)
    keys = isinstance(error, KeyError) or _NOT_A_DICT in words or _A_KEY in words
    return keys or _UNPACKS.search(words) is not None


def _of_form(error: BaseException, batch: Any) -> str:
    """The form of a batch, if a step takes it for a batch of another form."""
    if isinstance(batch, tuple | list) and _NOT_A_DICT in str(error):
        return (
            f". A batch of these data is a {type(batch).__name__} of {len(batch)} parts; for one "
            "that is a dict write FederatedDataModule(…, columns={KEY: COLUMN}), or give a "
            "transform or a collate_fn that returns a dict"
        )
    unpacked = _UNPACKS.search(str(error))
    if unpacked and isinstance(batch, tuple | list) and int(unpacked[1]) != len(batch):
        words = f". A batch of these data is a {type(batch).__name__} of {len(batch)} parts"
        if unpacked[1] == "2" and len({getattr(part, "shape", None) for part in batch}) == 1:
            words += (
                "; to make one input of all parts but the last, write FederatedDataModule(…, "
                "transform=lambda batch: (torch.stack(batch[:-1], dim=-1), batch[-1]))"
            )
        return words
    if not isinstance(batch, Mapping):
        return ""
    asked = error.args[0] if isinstance(error, KeyError) and error.args else None
    if unpacked or _A_KEY in str(error) or (isinstance(error, KeyError) and asked not in batch):
        return f". A batch of these data is a dict with the keys {list(batch)}"
    return ""


def _of_labels(error: BaseException, batch: Any, whose: str) -> str:
    message = str(error)
    found = _OUT_OF_RANGE.search(message)
    ranges = [
        ("".join(map(str, ("batch", *path))), int(part.min()), int(part.max()), part.dim() == 1)
        for path, part in tree_flatten_with_path(batch)[0]
        if isinstance(part, Tensor)
        and part.numel()
        and not (part.dtype == torch.bool or part.is_floating_point() or part.is_complex())
    ]
    if not ranges:
        return ""
    words = ", ".join(f"{where} from {least} to {most}" for where, least, most, _ in ranges)
    hint = f". {whose} integers are {words}"
    label = [each for each in ranges if each[3]][-1:]
    if found is not None and label:
        where, least, most, _ = label[0]
        index = int(found[1] or found[2])
        size = _SIZE.search(message)
        classes = int(size[1]) if size else most if index == most and least == 1 else None
        if index in (least, most) and classes is not None:
            hint += (
                f"; {classes} classes have the labels 0 … {classes - 1}, so {where} holds labels "
                "outside of them"
            )
            if least == 1 and most == classes:
                hint += ": subtract 1 from each"
        elif index in (least, most):
            hint += f"; labels must be 0 … C - 1 for C classes, but {where} holds {index}"
    return hint
