"""Long lists of like items as columns, in which a file has one tensor for many numbers.

A run with 100,000 clients in flight has as many tasks, and each of them is a dozen numbers. Written
one object at a time, the millions of numbers of such a checkpoint take longer than the training in
between. As columns they are a few tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

SHORTEST = 256
"""A shorter list is written as it is: a tensor costs as much as some hundred objects."""

_TABLE = "fedlight table"
_NUMBERS = {int: np.int64, float: np.float64, bool: np.bool_}


def packed(value: Sequence[Any] | Mapping[Any, Any], plain: Callable[[Any], Any]) -> Any:
    """A list, or a dict whose keys are integers, as a table of columns.

    Args:
        value: The list or dict.
        plain: Turns a column of unlike items, a list, into plain data.

    Returns:
        Plain data and tensors, for `unpacked`; None if the value is short, or its items are unlike.

    Example:
        >>> table = packed({number: [number, 0.5, None] for number in range(1000)}, list)
        >>> unpacked(table, list)[999]
        [999, 0.5, None]
    """
    if len(value) < SHORTEST:
        return None
    if isinstance(value, Mapping):
        keys = None if set(map(type, value)) != {int} else _numbers([*value], int)
        if keys is None:
            return None
        return {_TABLE: "mapping", "keys": keys, "values": _column([*value.values()], plain)}
    return _packed(value, plain)


def _packed(items: Sequence[Any], plain: Callable[[Any], Any]) -> Any:
    """A column of like items, or None."""
    kinds = set(map(type, items))
    if kinds <= {list, tuple}:
        # Rows of one length; a tuple comes back as a list, as in all plain data.
        if len(set(map(len, items))) > 1 or not items[0]:
            return None
        columns = [_column(column, plain) for column in zip(*items, strict=True)]
        return {_TABLE: "rows", "columns": columns}
    if len(kinds) > 1:
        return None
    (kind,) = kinds
    if kind in _NUMBERS:
        return _numbers(items, kind)
    if kind is type(None):
        return {_TABLE: "none", "number": len(items)}
    if kind is str:
        places = {text: place for place, text in enumerate(dict.fromkeys(items))}
        if len(places) * 2 > len(items):
            return None
        codes = _numbers([places[text] for text in items], int)
        # Interned, as all strings of a checkpoint, so that equal items make equal bytes.
        return {_TABLE: "text", "distinct": [*map(sys.intern, places)], "codes": codes}
    if kind is dict:
        names = [*items[0]]
        if not names or set(map(type, names)) != {str} or any([*each] != names for each in items):
            return None
        columns = [_column([each[name] for each in items], plain) for name in names]
        return {_TABLE: "dicts", "names": [*map(sys.intern, names)], "columns": columns}
    return None


def _column(items: Sequence[Any], plain: Callable[[Any], Any]) -> Any:
    table = _packed(items, plain)
    return {_TABLE: "list", "items": plain(list(items))} if table is None else table


def _numbers(items: Sequence[Any], kind: type) -> dict[str, Any] | None:
    try:
        values: NDArray[Any] = np.array(items, _NUMBERS[kind])
    except OverflowError:  # an integer of more than 64 bits
        return None
    return {_TABLE: "numbers", "values": torch.from_numpy(values)}


def is_table(value: Any) -> bool:
    """Return whether plain data are what `packed` returned."""
    return isinstance(value, dict) and _TABLE in value


def unpacked(table: dict[str, Any], restored: Callable[[Any], Any]) -> Any:
    """Return the list or dict of which `packed` made a table.

    Args:
        table: The table.
        restored: The inverse of the argument `plain` of `packed`.
    """
    match table[_TABLE]:
        case "numbers":
            return table["values"].tolist()
        case "none":
            return [None] * table["number"]
        case "text":
            distinct = table["distinct"]
            return [distinct[code] for code in unpacked(table["codes"], restored)]
        case "list":
            return restored(table["items"])
        case "mapping":
            keys, values = (unpacked(table[name], restored) for name in ("keys", "values"))
            return dict(zip(keys, values, strict=True))
    columns = [unpacked(column, restored) for column in table["columns"]]
    rows = zip(*columns, strict=True)
    if table[_TABLE] == "rows":
        return [list(row) for row in rows]
    return [dict(zip(table["names"], row, strict=True)) for row in rows]
