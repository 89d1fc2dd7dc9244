"""The examples that local steps use, chosen for many clients at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlight.executors._splitmix import GAMMA, mixed, names
from fedlight.randomness import Concern

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from data_partitioners import Partition
    from fedlight.types import Task

_AT_ONCE = 2**21
"""Bytes of examples that are gathered at once: about what stays in a core's own cache."""
_ALIGNED = 64  # bytes, as torch aligns new tensors; products may depend on it


def batch_rows(
    partition: Partition, tasks: Sequence[Task], batch_size: int, seed: int | Sequence[int]
) -> NDArray[np.int64]:
    """Row numbers of the batches of n tasks, shape ``[K, n, b]`` with K the largest `num_steps`.

    Each client goes through its n_i examples in a random order, then in another one, and so on; the
    stream is cut into full batches of b = min(batch_size, n_i). It depends on (seed, client, visit)
    alone.

    Args:
        partition: The row numbers of each client's examples.
        tasks: Tasks of clients with the same b.
        batch_size: Largest batch.
        seed: The seed of the fit; or one for each task, if they are of several fits.
    """
    clients = np.array([task.client_id for task in tasks])
    visits = np.array([task.visit for task in tasks])
    starts = partition.offsets[clients]
    sizes = partition.offsets[clients + 1] - starts
    longest = max(task.num_steps for task in tasks)
    batch = min(batch_size, int(sizes.min()))
    chosen = np.empty((longest, len(tasks), batch), dtype=np.int64)
    different = set(sizes.tolist())
    for size in different:
        which: Any = slice(None) if len(different) == 1 else np.flatnonzero(sizes == size)
        seeds = seed
        if not isinstance(seed, int) and len(different) > 1:
            seeds = [seed[index] for index in which]
        orders = _orders(seeds, clients[which], visits[which], -(-longest * batch // size), size)
        drawn = orders.reshape(len(orders), -1)[:, : longest * batch] + starts[which, None]
        rows = partition.rows[drawn].reshape(len(orders), longest, batch)
        chosen[:, which] = rows.swapaxes(0, 1)
    return chosen


class StackedBatches:
    """The batches of a stack, one for each local step.

    Small ones are gathered for all steps at once, since a call costs more than their numbers.

    Args:
        examples: The table from which they are gathered.
        rows: Row numbers, ``[K, n, b]``.
        example_bytes: Size of one example.
    """

    def __init__(self, examples: Any, rows: Tensor, example_bytes: int) -> None:
        self._examples, self._rows = examples, rows.unbind()
        self._parts: list[tuple[Tensor, ...]] = []
        if rows.numel() * example_bytes <= _AT_ONCE and len(rows) > 1:
            batch = examples.gather(rows)
            if type(batch) is tuple and all(map(_aligned, batch)):
                self._parts = list(zip(*[part.unbind() for part in batch], strict=True))

    def step(self, k: int, width: int) -> Any:
        """The batch of step k for the first `width` clients, for the step to change as it likes."""
        if not self._parts:
            return self.anew(k, width)
        parts = self._parts[k]
        return parts if len(parts[0]) == width else tuple([part[:width] for part in parts])

    def anew(self, k: int, width: int) -> Any:
        """The same batch, gathered from the table."""
        return self._examples.gather(self._rows[k][:width])


def _aligned(part: Tensor) -> bool:
    """Whether what is gathered for a step begins where a tensor of its own would begin."""
    return not part.is_floating_point() or part[0].nbytes % _ALIGNED == 0


def _orders(
    seed: int | Sequence[int],
    clients: NDArray[np.int64],
    visits: NDArray[np.int64],
    passes: int,
    size: int,
) -> NDArray[np.int64]:
    """Random orders of `size` examples, shape ``[n, passes, size]``.

    Examples are sorted by one random number each: a counter under the output of SplitMix64.
    """
    streams = names(seed, Concern.BATCHES, clients, visits)
    keys = mixed(streams[:, None] + _counters(passes * size)).reshape(len(streams), passes, size)
    # The position is kept in the low bits of its key: `sort` is twice as fast as `argsort`.
    low = np.uint64((1 << size.bit_length()) - 1)
    keys = (keys & ~low) | np.arange(size, dtype=np.uint64)
    keys.sort(axis=-1)
    return (keys & low).astype(np.int64)


@lru_cache(maxsize=64)
def _counters(number: int) -> NDArray[np.uint64]:
    return np.arange(1, number + 1, dtype=np.uint64) * np.uint64(GAMMA)
