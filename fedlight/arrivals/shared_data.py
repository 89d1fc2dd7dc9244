"""Tasks that read from data which all clients share: a stream, or the least visited shard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlight._support.checks import client_count, flag, one_of, optional
from fedlight.arrivals.base import Action, ArrivalProcess
from fedlight.arrivals.wrapper import Wrapper
from fedlight.types import Chunk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation


class _SharedData(Wrapper):
    """Does not change the actions of the wrapped process, but says what its tasks read."""

    def __init__(self, arrivals: ArrivalProcess, num_clients: int | None, shuffle: bool) -> None:
        super().__init__(arrivals)
        if arrivals.shares_data:
            raise TypeError(
                "arrivals must be a process whose clients have data of their own, got "
                f"{arrivals!r}, which says itself what tasks read; leave {type(self).__name__} out"
            )
        self.shares_data = True
        self.num_clients = optional(client_count, "num_clients", num_clients)
        self.shared_by = self.num_clients
        self.shuffle = flag("shuffle", shuffle)

    def setup(self, federation: Federation) -> None:
        """Set up the wrapped process, and start with data that no task has read."""
        super().setup(federation)
        shards = federation.shard_sizes
        self._sizes = federation.num_examples if shards is None else shards
        self._batch_size = federation.batch_size

    def change(self, actions: Iterable[Action], now: float) -> Iterable[Action]:
        """Return the actions unchanged."""
        return actions


class SharedStream(_SharedData):
    """Each task reads the next examples of one stream, whichever client asks.

    ``examples p, p + 1, ..., p + K b - 1 for a task of K steps; then p <- p + K b``

    The stream has the examples of all clients of the partition, and b = min(batch_size, N) for N
    examples. When it ends, it begins anew as another epoch. So no example is read twice before all
    were read once. What a task reads is fixed when its client pulls the model, and does not depend
    on when it arrives: the examples of a task that is lost, cancelled or cut short are not read by
    another one in this epoch, and one that is tried again reads the same.

    The number of clients may differ from that of the partition's parts; a partition with one part
    will do. As no client has data of its own, n_i is N / M for each of M clients (rounded down),
    and all updates have equal weights. A "full gradient" is that over the examples of the task.

    Args:
        arrivals: The arrival process that says when clients work and for how many steps.
        num_clients: M, the number of clients; None for as many as the partition has parts.
        shuffle: Whether each epoch has a random order of its own, drawn from the run's seed. False
            keeps the order of the data: all examples of part 0, then those of part 1, and so on.

    Raises:
        TypeError: `arrivals` is not an arrival process whose clients have data of their own, or
            another argument is of the wrong kind.
        ValueError: `num_clients` is less than 1.

    Source: Liu et al., [Asynchronous Local-SGD Training for Language
    Modeling](https://arxiv.org/abs/2401.09135): workers are not bound to data of their own.

    Example:
        Two islands with tasks of 2 steps; the second one is three times as slow. Batches hold 2 of
        10 examples, so a task takes 4. Both pull at time 0, and the fast one again at 1 and 2: it
        reads 0 to 3, then 8 to 11, of which 10 and 11 are examples 0 and 1 of the second epoch.

        >>> from fedlight.arrivals import ContinuousArrivals, FixedDurations
        >>> arrivals = SharedStream(
        ...     ContinuousArrivals(FixedDurations([1.0, 3.0]), local_steps=2), shuffle=False
        ... )
        >>> table = arrivals.simulate(
        ...     num_clients=2, num_examples=5, batch_size=2, buffer_size=1, max_time=3
        ... )
        >>> [(e.client, e.dispatched_at, e.chunk_start) for e in table.events]
        [(0, 0.0, 0), (0, 1.0, 8), (0, 2.0, 12), (1, 0.0, 4)]
    """

    _repr_positional = 1
    _repr_optional = ("num_clients",)
    _saved_attributes = ("_position",)

    def __init__(
        self, arrivals: ArrivalProcess, num_clients: int | None = None, shuffle: bool = True
    ) -> None:
        super().__init__(arrivals, num_clients, shuffle)

    def setup(self, federation: Federation) -> None:
        """Set up the wrapped process, and start at the beginning of the stream."""
        super().setup(federation)
        self._position = 0
        self._batch = min(self._batch_size, int(self._sizes.sum()))

    def chunk(self, client_id: int, num_steps: int) -> Chunk:
        """The next examples of the stream."""
        start = self._position
        self._position += num_steps * self._batch
        return Chunk(start, None, self.shuffle)


class LeastVisitedShards(_SharedData):
    """Each task reads from the shard that has been visited least, whichever client asks.

    ``s = argmin_s v_s, the smallest s of equals; then v_s <- v_s + 1``

    The shards are the parts of the partition, of which there may be more or fewer than clients. A
    shard is a stream of its own: a task of K steps with batches of b = min(batch_size, n_s) takes
    the next K b of its n_s examples, and a later task goes on there. So no example of a shard is
    read twice before all of the shard were read once. The shard and the examples are fixed when the
    client pulls the model; a visit counts from then on, also if its task is lost or cancelled. A
    task that is tried again reads the same examples.

    An update counts the n_s examples of its shard (``client_weights="examples"``). For everything
    else, a client has an equal share of all N examples: n_i is N / M for each of M clients, rounded
    down.

    Args:
        arrivals: The arrival process that says when clients work and for how many steps.
        num_clients: M, the number of clients; None for as many as there are shards.
        by: "visits": v_s is the number of visits. "examples": v_s is the number of examples taken
            from the shard, divided by n_s; large shards are then visited more often, so that all
            examples are read equally often, also if numbers of steps differ. Write
            ``client_weights="uniform"`` with it, or large shards count twice.
        shuffle: Whether each pass over a shard has a random order of its own, drawn from the run's
            seed; False keeps the order of the data.

    Raises:
        TypeError: `arrivals` is not an arrival process whose clients have data of their own, or
            another argument is of the wrong kind.
        ValueError: `num_clients` is less than 1, or there is no such way to count.

    Source: Liu et al., [Asynchronous Local-SGD Training for Language
    Modeling](https://arxiv.org/abs/2401.09135), where a worker gets a shard by how little was
    learned from it, ``|D_s| / sum |D| - n_s / sum n`` for n_s examples; they draw it at random in
    proportion to this number, whereas ``by="examples"`` takes a shard that lags most.

    Example:
        Two islands and three shards. Both pull at time 0 and get shards 0 and 1; the fast one is
        back at 1 for shard 2, and at 2 and 3 for shards 0 and 1, of which 4 examples are taken.

        >>> from fedlight.arrivals import ContinuousArrivals, FixedDurations
        >>> arrivals = LeastVisitedShards(
        ...     ContinuousArrivals(FixedDurations([1.0, 5.0]), local_steps=2), num_clients=2
        ... )
        >>> table = arrivals.simulate(
        ...     num_clients=2, num_examples=[6, 6, 8], batch_size=2, buffer_size=1, max_time=4
        ... )
        >>> [(e.dispatched_at, e.chunk_shard, e.chunk_start) for e in table.events]
        [(0.0, 0, 0), (1.0, 2, 0), (2.0, 0, 4), (3.0, 1, 4)]
    """

    _repr_positional = 1
    _repr_optional = ("num_clients",)
    _saved_attributes = ("_visits", "_taken")

    def __init__(
        self,
        arrivals: ArrivalProcess,
        num_clients: int | None = None,
        by: str = "visits",
        shuffle: bool = True,
    ) -> None:
        super().__init__(arrivals, num_clients, shuffle)
        self.by = one_of("by", by, ("visits", "examples"))
        self._visits: list[int] = []  # no shard is known before `setup`

    def setup(self, federation: Federation) -> None:
        """Set up the wrapped process, and start with shards that nobody has visited."""
        super().setup(federation)
        self._batches = np.minimum(self._batch_size, self._sizes)
        self._visits = [0] * len(self._sizes)
        self._taken = [0] * len(self._sizes)  # examples
        self._progress = self._progress_of()

    @property
    def visits(self) -> list[int]:
        """How often each shard has been visited so far, shape ``[S]``."""
        return list(self._visits)

    def chunk(self, client_id: int, num_steps: int) -> Chunk:
        """The next examples of the shard that has been visited least."""
        shard = int(self._progress.argmin())  # the first of equals
        start = self._taken[shard]
        self._visits[shard] += 1
        self._taken[shard] += num_steps * int(self._batches[shard])
        by_visits = self.by == "visits"
        size = int(self._sizes[shard])
        self._progress[shard] = self._visits[shard] if by_visits else self._taken[shard] / size
        return Chunk(start, shard, self.shuffle)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the wrapped process, and of each shard."""
        super().load_state_dict(state)
        self._progress = self._progress_of()

    def _progress_of(self) -> NDArray[np.float64]:
        """v_s of each shard; a division of the same whole numbers as in `chunk`."""
        if self.by == "visits":
            return np.array(self._visits, dtype=np.float64)
        return np.array(self._taken, dtype=np.float64) / self._sizes
