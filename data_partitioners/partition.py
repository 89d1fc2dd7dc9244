"""The record of who holds which rows."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from data_partitioners._checks import brief, check_column_name, check_integer
from data_partitioners._columns import encode, read_codes

if TYPE_CHECKING:
    import datasets


def _no_rows() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    r"""Which client holds which rows of a data set, in three flat arrays.

    $$\text{client } i \text{ holds } \mathrm{rows}[\mathrm{offsets}_i : \mathrm{offsets}_{i+1}]$$

    ``rows`` and ``unused`` together hold each row number from 0 on exactly once. ``partition[i]``
    is a view of ``rows``, not a copy: do not change it.

    Args:
        rows: Row numbers of client 0, then of client 1, and so on.
        offsets: ``len(partition) + 1`` positions in ``rows``.
        unused: Rows that no client holds.
        unused_reason: Why there are such rows.
        client_ids: The clients' natural ids, in the order of the clients. Only with them may a
            client have no rows here: it then has rows in another split.

    Raises:
        ValueError: The arrays contradict each other, a row is held twice or is missing, a client
            without a natural id has no rows, or ``unused_reason`` is missing.

    Example:
        >>> import numpy as np
        >>> partition = Partition(rows=np.array([4, 0, 1, 3, 2]), offsets=np.array([0, 2, 5]))
        >>> partition
        Partition(2 clients with 2 to 3 of 5 rows)
        >>> partition[0], partition.sizes
        (array([4, 0]), array([2, 3]))
        >>> partition.label_counts(["cat", "cat", "dog", "dog", "cat"])
        array([[2, 0],
               [1, 2]])
    """

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]
    unused: NDArray[np.int64] = field(default_factory=_no_rows)
    unused_reason: str = ""
    client_ids: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Check the arrays and store them as int64."""
        for name in ("rows", "offsets", "unused"):
            object.__setattr__(self, name, _as_row_numbers(name, getattr(self, name)))
        if (
            len(self.offsets) < 2
            or self.offsets[0] != 0
            or self.offsets[-1] != len(self.rows)
            or (self.sizes < 0).any()
        ):
            raise ValueError(
                f"offsets={self.offsets} must rise from 0 to the {len(self.rows)} rows "
                "and bound one client or more"
            )
        if not isinstance(self.unused_reason, str):
            raise TypeError(f"unused_reason={self.unused_reason!r} is no text; write a sentence")
        if self.client_ids is not None:
            object.__setattr__(self, "client_ids", _as_names(self.client_ids))
        if self.client_ids is None and not self.sizes.all():
            empty = np.flatnonzero(self.sizes == 0)
            raise ValueError(
                f"{len(empty)} of {len(self)} clients have no rows, the first is client {empty[0]}"
            )
        if self.client_ids is not None and len(self.client_ids) != len(self):
            raise ValueError(
                f"{len(self.client_ids)} client_ids for {len(self)} clients, got "
                f"client_ids={self.client_ids!r:.80}"
            )
        if len(self.unused) and not self.unused_reason:
            raise ValueError(f"{len(self.unused)} rows are unused; say why in unused_reason")
        self._check_rows()

    def _check_rows(self) -> None:
        everything = np.concatenate([self.rows, self.unused])
        if len(everything) and (everything.min() < 0 or everything.max() >= len(everything)):
            raise ValueError(
                f"rows and unused hold {len(everything)} row numbers, so each of "
                f"0..{len(everything) - 1} once, but they reach from {everything.min()} "
                f"to {everything.max()}"
            )
        seen = np.zeros(len(everything), dtype=bool)
        seen[everything] = True
        if not seen.all():
            raise ValueError(
                f"row {np.flatnonzero(~seen)[0]} is in neither rows nor unused, "
                "so that another row is there twice"
            )

    @classmethod
    def from_owners(
        cls,
        owners: NDArray[np.int64],
        num_partitions: int,
        unused_reason: str = "",
        client_ids: tuple[str, ...] | None = None,
    ) -> Partition:
        """Make a partition from each row's client; each client's rows are then in rising order.

        Args:
            owners: The client of each row of the data set, or -1 for no client.
            num_partitions: Number of clients.
            unused_reason: Why some rows belong to no client.
            client_ids: The clients' natural ids.

        Raises:
            ValueError: A client number lies outside -1..num_partitions-1, or the record is
                refused.

        Example:
            >>> import numpy as np
            >>> Partition.from_owners(np.array([1, 0, -1, 1]), 2, unused_reason="spoilt").rows
            array([1, 0, 3])
        """
        num_partitions = check_integer("num_partitions", num_partitions, 1)
        owners = _as_row_numbers("owners", owners)
        if not isinstance(unused_reason, str):
            raise TypeError(f"unused_reason={unused_reason!r} is no text; write a sentence")
        if len(owners) and (owners.min() < -1 or owners.max() >= num_partitions):
            raise ValueError(
                f"owners reach from {owners.min()} to {owners.max()}; "
                f"with num_partitions={num_partitions} they are -1..{num_partitions - 1}"
            )
        if client_ids is None:
            clients = np.unique(owners[owners >= 0])
            if len(clients) < num_partitions:
                place = np.flatnonzero(clients != np.arange(len(clients)))
                first = place[0] if len(place) else len(clients)
                raise ValueError(
                    f"owners={repr(owners.tolist())[:80]}: {num_partitions - len(clients)} of "
                    f"{num_partitions} clients have no rows, the first is client {first}"
                )
        order = np.argsort(owners, kind="stable").astype(np.int64, copy=False)
        sizes = np.bincount(owners + 1, minlength=num_partitions + 1)
        nobody = int(sizes[0])
        offsets = np.cumsum(sizes) - nobody
        return cls(
            order[nobody:], offsets, order[:nobody], unused_reason if nobody else "", client_ids
        )

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of rows of each client."""
        return np.diff(self.offsets)

    def label_counts(
        self, labels: datasets.Dataset | ArrayLike, column: str = "label"
    ) -> NDArray[np.int64]:
        """Count each client's rows of each class.

        Args:
            labels: One label per row of the data set, or the data set itself.
            column: The data set's column of labels.

        Returns:
            Counts of shape [clients, classes]. The classes are the distinct labels in sorted
            order; those of a ClassLabel are all that it names, also when no row has one.

        Raises:
            TypeError: ``column`` is not a string.
            ValueError: Labels are missing, or there is not one for each row.
        """
        check_column_name("column", column)
        library = sys.modules.get("datasets")  # if it is not loaded, nobody has a data set of it
        if library is not None and isinstance(labels, library.Dataset):
            codes, distinct = read_codes(labels, column)
            num_classes = len(distinct)
            if isinstance(labels.features[column], library.ClassLabel):
                codes, num_classes = distinct[codes], labels.features[column].num_classes
        else:
            codes, distinct = encode(_without_gaps(labels))
            num_classes = len(distinct)
        if len(codes) != len(self.rows) + len(self.unused):
            raise ValueError(
                f"{len(codes)} labels for {len(self.rows) + len(self.unused)} rows; give the "
                "labels of the data set that was partitioned"
            )
        clients = np.repeat(np.arange(len(self)), self.sizes)
        cells = clients * num_classes + codes[self.rows]
        counts = np.bincount(cells, minlength=len(self) * num_classes)
        return counts.reshape(len(self), num_classes)

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.offsets) - 1

    def __getitem__(self, client_id: int) -> NDArray[np.int64]:
        """Return one client's rows, as a view."""
        if not -len(self) <= client_id < len(self):
            raise IndexError(f"client {client_id} of a partition with {len(self)} clients")
        client_id %= len(self)
        return self.rows[self.offsets[client_id] : self.offsets[client_id + 1]]

    def __eq__(self, other: object) -> bool:
        """Tell whether two partitions give the same rows, in the same order, to the same."""
        if not isinstance(other, Partition):
            return NotImplemented
        return (
            np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.rows, other.rows)
            and np.array_equal(self.unused, other.unused)
            and self.unused_reason == other.unused_reason
            and self.client_ids == other.client_ids
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Say what was achieved, in one line whatever the number of clients."""
        sizes = self.sizes
        total = len(self.rows) + len(self.unused)
        unused = f", {len(self.unused)} unused: {self.unused_reason}" if len(self.unused) else ""
        return (
            f"Partition({len(self)} clients with {sizes.min()} to {sizes.max()} "
            f"of {total} rows{unused})"
        )


def _as_row_numbers(name: str, values: Any) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        words = f"an array of {array.dtype} with shape {array.shape}"
        words = f"{repr(values)[:80]}, {words}"
        raise TypeError(f"{name} is {words}; give a flat array of integers")
    return array.astype(np.int64, copy=False)


def _as_names(value: Any) -> tuple[str, ...]:
    names = tuple(value) if isinstance(value, list | tuple) else None
    if names is None or not all(issubclass(kind, str) for kind in set(map(type, names))):
        raise TypeError(
            f"client_ids={repr(value)[:80]} are no names; give a tuple of strings, one for each "
            "client"
        )
    return names


def _without_gaps(labels: ArrayLike) -> NDArray[Any]:
    array = np.asarray(labels)
    if array.ndim != 1:
        raise ValueError(f"labels={brief(labels)} have shape {array.shape}; give one label per row")
    if array.dtype.kind in "fO":
        gaps = sum(label is None or label != label for label in array.tolist())
        if gaps:
            raise ValueError(f"{gaps} of {len(array)} labels are None or NaN")
    return array
