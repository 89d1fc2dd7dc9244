"""The examples that local steps use, chosen for many clients at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlight.executors._random.splitmix import GAMMA, mixed, names
from fedlight.randomness import Concern

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from data_partitioners import Partition
    from fedlight.types import Task

_AT_ONCE = 2**21
"""Bytes of examples that are gathered at once: about what stays in a core's own cache."""
_ROWS_AT_ONCE = 2**18
"""Row numbers that are drawn in one call."""
_CHUNK = attrgetter("chunk")
_ALL = -1
"""In the place of a client, the name of a stream of all examples."""
_ALIGNED = 64  # bytes, as torch aligns new tensors; the last bits of products may depend on it


def batch_rows(
    partition: Partition, tasks: Sequence[Task], batch_size: int, seed: int | Sequence[int]
) -> NDArray[np.int64]:
    """Row numbers of the batches of n tasks, shape ``[K, n, b]`` with K the largest `num_steps`.

    Each client goes through its n_i examples in a random order, then in another one, and so on; the
    stream is cut into full batches of b = min(batch_size, n_i). It depends on (seed, client, visit)
    alone. Tasks with a chunk read that of shared data instead.

    Args:
        partition: The row numbers of each client's examples.
        tasks: Tasks with the same b.
        batch_size: Largest batch.
        seed: The seed of the fit; or one for each task, if they are of several fits.
    """
    if any(map(_CHUNK, tasks)):
        return _with_chunks(partition, tasks, batch_size, seed)
    clients = np.array([task.client_id for task in tasks])
    visits = np.array([task.visit for task in tasks])
    starts = partition.offsets[clients]
    sizes = partition.offsets[clients + 1] - starts
    longest = max(task.num_steps for task in tasks)
    # Clients with equally many examples are drawn together: a call of numpy for each client would
    # cost more than its numbers.
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


def rows_in_turn(
    partition: Partition, tasks: Sequence[Task], batch_size: int, seed: int
) -> Iterator[NDArray[np.int64]]:
    """Row numbers of the batches of one task after another, ``[K, b]`` each.

    They are those of `batch_rows`, which takes hardly longer for several small tasks than for one.

    Args:
        partition: The row numbers of each client's examples.
        tasks: Tasks of any clients.
        batch_size: Largest batch.
        seed: The seed of the fit.
    """
    if any(map(_CHUNK, tasks)):
        for task in tasks:
            yield batch_rows(partition, [task], batch_size, seed)[:, 0]
        return
    clients = np.array([task.client_id for task in tasks])
    sizes = (partition.offsets[clients + 1] - partition.offsets[clients]).tolist()
    start = 0
    while start < len(tasks):
        batch, end, numbers = min(batch_size, sizes[start]), start, 0
        while end < len(tasks) and min(batch_size, sizes[end]) == batch:
            numbers += max(tasks[end].num_steps * batch, sizes[end])
            if end > start and numbers > _ROWS_AT_ONCE:
                break
            end += 1
        rows = batch_rows(partition, tasks[start:end], batch_size, seed)
        for index, task in enumerate(tasks[start:end]):
            yield rows[: task.num_steps, index]
        start = end


def rows_for(partition: Partition, task: Task) -> NDArray[np.int64]:
    """Row numbers of all examples from which a task's are taken, in the order of the data.

    They are those of its client, of the shard that it visits, or of all parts of the data.
    """
    if task.chunk is None:
        return partition[task.client_id]
    return partition.rows if task.chunk.shard is None else partition[task.chunk.shard]


def _with_chunks(
    partition: Partition, tasks: Sequence[Task], batch_size: int, seed: int | Sequence[int]
) -> NDArray[np.int64]:
    """As `batch_rows`; steps after the last one of a task have rows that nobody uses."""
    batch = min(batch_size, len(rows_for(partition, tasks[0])))
    longest = max(task.num_steps for task in tasks)
    chosen = np.zeros((longest, len(tasks), batch), dtype=np.int64)
    for index, task in enumerate(tasks):
        own = seed if isinstance(seed, int) else seed[index]
        if task.chunk is None:
            chosen[: task.num_steps, index] = batch_rows(partition, [task], batch_size, own)[:, 0]
        else:
            rows = _chunk_rows(partition, task, task.num_steps * batch, own)
            chosen[: task.num_steps, index] = rows.reshape(task.num_steps, batch)
    return chosen


def _chunk_rows(partition: Partition, task: Task, number: int, seed: int) -> NDArray[np.int64]:
    """Row numbers of the next examples of a task's stream, ``[number]``."""
    assert task.chunk is not None
    start, shard, shuffle = task.chunk
    rows = rows_for(partition, task)
    epochs, places = np.divmod(np.arange(start, start + number), len(rows))
    if shuffle:
        for epoch in range(start // len(rows), -(-(start + number) // len(rows))):
            now = epochs == epoch
            places[now] = _epoch_order(seed, shard, epoch, len(rows))[places[now]]
    return rows[places]


# Cached, since the tasks of a stack and those after them read from the same epoch.
@lru_cache(maxsize=4)
def _epoch_order(seed: int, shard: int | None, epoch: int, size: int) -> NDArray[np.int64]:
    """The order of `size` examples in an epoch of a stream.

    It is that of the first pass of a client with the number of the shard, if the number of its
    visit is that of the epoch.
    """
    name = _ALL if shard is None else shard
    order: NDArray[np.int64] = _orders(seed, np.array([name]), np.array([epoch]), 1, size)[0, 0]
    return order


class StackedBatches:
    """The batches of a stack, one for each local step.

    Small ones are gathered for all steps at once, since a call costs more than their numbers.

    Args:
        examples: The table from which they are gathered.
        rows: Row numbers, ``[K, n, b]``, or those of one client, ``[K, b]``.
        example_bytes: Size of one example; infinite to gather each batch for itself.
    """

    def __init__(self, examples: Any, rows: Tensor, example_bytes: float) -> None:
        self._examples, self._rows = examples, rows.unbind()
        self._parts: list[tuple[Tensor, ...]] = []
        if rows.numel() * example_bytes <= _AT_ONCE and len(rows) > 1:
            # One gather for all steps; each step then gets a view. A view that begins elsewhere in
            # memory than a tensor of its own could change bits, so such batches are gathered alone.
            batch = examples.gather(rows)
            if type(batch) is tuple and all(map(_aligned, batch)):
                self._parts = list(zip(*[part.unbind() for part in batch], strict=True))

    def step(self, k: int, width: int | None = None) -> Any:
        """The batch of step k, which the step may change.

        Args:
            k: The step.
            width: For the first so many clients; None for all, and for rows of one client.
        """
        if not self._parts:
            return self.gathered(k, width)
        parts = self._parts[k]
        if width is None or len(parts[0]) == width:
            return parts
        return tuple([part[:width] for part in parts])

    def gathered(self, k: int, width: int | None = None) -> Any:
        """The same batch, gathered from the table again."""
        rows = self._rows[k]
        return self._examples.gather(rows if width is None else rows[:width])


def _aligned(part: Tensor) -> bool:
    """Whether the part of each step is aligned as a tensor of its own would be."""
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
