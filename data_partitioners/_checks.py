"""Checks of arguments, shared by the partitioners."""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import datasets


def brief(value: Any) -> str:
    """Return the first line of a value's repr, shortened, for an error."""
    if isinstance(value, type):
        return value.__name__
    lines = repr(value).splitlines()
    return f"{lines[0][:80]}…" if len(lines) > 1 or len(lines[0]) > 80 else lines[0]


def check_integer(name: str, value: Any, minimum: int) -> int:
    """Return ``value`` as an int, or raise an error if it is not an integer >= ``minimum``."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; give a whole number (int)")
    number = int(value)
    if number < minimum:
        raise ValueError(f"{name}={value} is too small; give a whole number >= {minimum}")
    if minimum > 0 and number >= 2**63:
        raise ValueError(f"{name}={repr(value)[:40]}… is too large; give a number below 2**63")
    return number


def check_real(name: str, value: Any) -> float:
    """Return ``value`` as a finite float, or raise an error if it is not one."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; give a number (float)")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(
            f"{name}={repr(value)[:40]}… is too large; give a number (float)"
        ) from None
    if not math.isfinite(number):
        raise ValueError(f"{name}={value} is not finite; give a finite number")
    return number


def check_column_name(name: str, value: Any) -> str:
    """Return ``value`` if it can be the name of a column."""
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; give a column's name (str)")
    if not value:
        raise ValueError(f"{name}='' names no column; give the name of a column of the data set")
    return value


def check_dataset(dataset: Any) -> datasets.Dataset:
    """Return ``dataset`` if it is a map-style data set of the package ``datasets``."""
    import datasets  # takes half a second, which those who make no partition need not wait

    if isinstance(dataset, datasets.DatasetDict):
        raise TypeError(f"dataset has several splits; give one of {sorted(dataset)}")
    if not isinstance(dataset, datasets.Dataset):
        raise TypeError(
            f"dataset={brief(dataset)} is a {type(dataset).__name__}; give a datasets.Dataset "
            "(datasets.Dataset.from_dict makes one from plain lists)"
        )
    return dataset


def check_enough_rows(num_partitions: int, num_rows: int, per_client: int = 1) -> None:
    """Raise an error unless each client can have ``per_client`` of the ``num_rows`` rows."""
    if num_partitions * per_client > num_rows:
        raise ValueError(
            f"num_partitions={num_partitions} clients with at least {per_client} row(s) each "
            f"need {num_partitions * per_client} rows, the data set has {num_rows}; "
            f"give num_partitions <= {num_rows // per_client}"
        )
