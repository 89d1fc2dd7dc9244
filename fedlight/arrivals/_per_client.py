"""Arguments that are one number for all clients, or one number for each client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedlight._support.checks import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation

T = TypeVar("T")


def one_for_all_or_each(name: str, value: object, check: Callable[[str, object], T]) -> T | list[T]:
    """Check a number for all clients, or a list of one number for each client.

    Args:
        name: The argument's name.
        value: The number or the numbers: a list, a one-dimensional array, a generator.
        check: Checks one number and returns it.

    Raises:
        TypeError: `value` is neither a number nor such a list.
        ValueError: The list is empty, or `check` refuses a number.
    """
    listed = as_list(name, value)
    return check(name, value) if listed is None else one_for_each(name, listed, check)


def one_for_each(
    name: str, value: object, check: Callable[[str, object], T], equal: str = "x"
) -> list[T]:
    """Check a list of one number for each client; see `one_for_all_or_each`.

    Args:
        name: Name of the argument.
        value: Its value.
        check: Checks one number.
        equal: The number, in words, that the error tells to write if all are equal.

    Raises:
        TypeError: `value` is not such a list.
        ValueError: The list is empty, or `check` refuses a number.
    """
    listed = as_list(name, value)
    if listed is None:
        raise TypeError(
            f"{name} must be a list of one number for each client, got {shown(value)}; "
            f"for equal numbers write {name}=[{equal}] * num_clients"
        )
    if not listed:
        raise ValueError(f"{name} must hold one number for each client, got none")
    return [check(f"{name}[{client}]", each) for client, each in enumerate(listed)]


def as_list(name: str, value: object) -> list[Any] | None:
    """Return the elements of a list-like `value`, or None if it is a single object.

    Raises:
        TypeError: The elements of `value` are not one for each client in the order of the clients.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return None
    # Iterating over a mapping gives its keys, which are numbers too if they name clients.
    if isinstance(value, Mapping):
        raise TypeError(
            f"{name} must be a list, got the mapping {value!r}, whose keys would be used as the "
            "numbers; write its values as a list, in the order of the clients"
        )
    if isinstance(value, Set):
        raise TypeError(f"{name} must be a list, got the set {value!r}, which has no order")
    # Arrays, tensors and series have a shape and tolist(); a data frame has two dimensions.
    shape = getattr(value, "shape", None)
    if shape is None:
        return list(value)
    if len(shape) != 1:
        raise TypeError(
            f"{name} must be a number or have one dimension, one number for each client, got "
            f"{type(value).__name__} of shape {tuple(shape)}; pass one column of a table, and "
            "x.item() for a single number"
        )
    listed: list[Any] = value.tolist()  # type: ignore[attr-defined]
    return listed


def check_length(name: str, value: object, federation: Federation) -> None:
    """Check that a list has as many elements as there are clients.

    Raises:
        ValueError: It has another number of elements.
    """
    if not isinstance(value, list | tuple | np.ndarray):
        return
    if len(value) != federation.num_clients:
        raise ValueError(
            f"{name} has {len(value)} numbers, "
            f"but there are {federation.num_clients} clients; give one for each"
        )


def no_client(source: str, client: int, federation: Federation) -> ValueError:
    """Return the error for a client that does not exist; `source` is the argument that names it."""
    most = federation.num_clients
    return ValueError(
        f"{source} names client {client}, but there are only {most} clients (0 to {most - 1})"
    )


def of_client(value: T | list[T], client_id: int) -> T:
    """Return the number of one client."""
    return value[client_id] if isinstance(value, list) else value


def spread_out(value: float | Sequence[float], federation: Federation) -> NDArray[np.float64]:
    """Return one number for each client, shape ``[M]``."""
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (federation.num_clients,)).copy()
