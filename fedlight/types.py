"""Records that the parts of fedlight pass to one another.

They are frozen, except `RoundRecord`, whose metrics grow while callbacks add theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fedlight._support.reductions import REDUCTIONS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fedlight._support.flat_layout import FlatLayout


@dataclass(frozen=True, slots=True)
class Federation:
    """The clients of a run: all that arrival processes and aggregators may know before it starts.

    Attributes:
        num_clients: M, the number of clients.
        num_examples: n_i, examples per client, shape ``[M]``.
        batch_size: Examples per local step; client i uses ``min(batch_size, n_i)``.
        seed: The run's seed.
        expected_durations: T_i, virtual time of one task of client i, shape ``[M]``, or None
            if the arrival process does not know it.
        groups: The tags of the arrival process's groups of clients in their order (`Tiers`).
        layout: The names and shapes of the model's parameters, which aggregators get; None for a
            model without layers.
        tokens_per_example: Tokens that are learned from in one example; None if there are none.
        arrivals_per_send: Of groups with a server each: K, the arrivals after which one sends
            (`Regions`); None for groups that share one server.
        shard_sizes: Examples of each part of the data, shape ``[S]``, if all clients share them
            (`ArrivalProcess.shares_data`); n_i is then an equal share of all examples.
    """

    num_clients: int
    num_examples: NDArray[np.int64]
    batch_size: int
    seed: int = 0
    expected_durations: NDArray[np.float64] | None = None
    groups: tuple[str, ...] = ()
    layout: FlatLayout | None = None
    tokens_per_example: int | None = None
    arrivals_per_send: int | None = None
    shard_sizes: NDArray[np.int64] | None = None

    def layers(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of a vector by the name of the parameter, in their true shapes.

        A rule that treats each layer for itself reads and writes deltas and models through them.

        Args:
            vector: Such as an update's delta or the model, shape ``[P]``.

        Example:
            >>> import numpy as np, torch
            >>> Federation(2, np.array([8, 8]), 4).layers(torch.ones(3))  # without a layout
            {'params': tensor([1., 1., 1.])}
        """
        if self.layout is None:
            return {"params": vector}
        return dict(zip(self.layout.names, self.layout.views(vector), strict=True))


new_record = tuple.__new__
"""``new_record(Task, (…))`` is ``Task(…)`` in half the time; for records of every event."""


class Chunk(NamedTuple):
    """What a task reads of data that all clients share: the next examples of an endless stream.

    ``examples start, start + 1, ..., start + K b - 1`` for a task of K steps with batches of b. A
    stream goes through its examples again and again; one pass is an epoch of it.

    Attributes:
        start: Number of examples of the stream that earlier tasks have taken.
        shard: The part of the data whose examples the stream has; None for those of all parts.
        shuffle: Whether each epoch has an order of its own, drawn from the run's seed, the shard
            and the number of the epoch; else the examples keep the order of the data.
    """

    start: int
    shard: int | None = None
    shuffle: bool = True


class Task(NamedTuple):
    """One local run of one client.

    Attributes:
        client_id: The client.
        pulled_version: Version of the server's model that the local run starts from.
        dispatched_at: Virtual time of the pull.
        arrives_at: Virtual time at which the server receives the result.
        num_steps: K, the number of local steps; 0 if a client is polled before its first one ends.
        serial: Number of the dispatch, counted over the whole run; breaks ties between events.
        visit: Number of earlier tasks of this client.
        lost: Whether the result never reaches the server.
        tries: How often this task has failed before; 0 if the arrival process asked for it.
        tag: The group that the client works in (`Tiers`, `CompassArrivals`), or the half of a task
            that it is (`RefreshedTasks`); None without either.
        cut: Whether it was cut short (`Cut`); it arrives after the others of that time.
        steps_before: Local steps of the client's tasks that had arrived when it was dispatched,
            without those that were lost.
        chunk: What it reads of data that all clients share (`SharedStream`, `LeastVisitedShards`);
            None for the client's own examples.
    """

    client_id: int
    pulled_version: int
    dispatched_at: float
    arrives_at: float
    num_steps: int
    serial: int
    visit: int
    lost: bool = False
    tries: int = 0
    tag: str | None = None
    cut: bool = False
    steps_before: int = 0
    chunk: Chunk | None = None

    @property
    def is_first_half(self) -> bool:
        """Whether it is the first half of a task, whose client sends nothing (`RefreshedTasks`)."""
        return self.tag is not None and self.tag.startswith("half ")

    @property
    def is_second_half(self) -> bool:
        """Whether it is the second half of a task (`RefreshedTasks`)."""
        return self.tag is not None and self.tag.startswith("from ")

    @property
    def began_with(self) -> int:
        """The version pulled before the first half for a second half; else `pulled_version`."""
        if self.tag is None or not self.is_second_half:
            return self.pulled_version
        return int(self.tag.removeprefix("from "))


def with_chunk(record: Any) -> Any:
    """A task or a dispatch that was read from plain data, in which its chunk is a list."""
    return record if record.chunk is None else record._replace(chunk=Chunk(*record.chunk))


class LoggedAs(NamedTuple):
    """How values of one name are put together and where they are shown.

    Attributes:
        reduce: "mean", "sum", "max" or "min".
        prog_bar: Whether the progress bar shows the value first.
        logger: Whether loggers get the value.
    """

    reduce: str = "mean"
    prog_bar: bool = False
    logger: bool = True


class LoggedValue(NamedTuple):
    """A value that was logged in one local run or one evaluation.

    Attributes:
        total: The sum over examples, for a mean; else the sum, the largest or the smallest value.
        weight: Number of examples.
        how: How it is merged with other values and shown; None for a mean that is shown as usual.
    """

    total: float
    weight: float
    how: LoggedAs | None = None

    @property
    def value(self) -> float:
        """The value without its weight."""
        mean = self.how is None or REDUCTIONS[self.how.reduce].weighted
        return self.total / self.weight if mean else self.total


class Metrics(dict[str, float]):
    """Numbers by name, and how each is shown.

    Attributes:
        prog_bar: The names that the progress bar shows first.
        unlogged: The names that are kept from loggers (``self.log(…, logger=False)``).
    """

    __slots__ = ("prog_bar", "unlogged")

    def __init__(
        self,
        values: Mapping[str, float] | None = None,
        prog_bar: Iterable[str] = (),
        unlogged: Iterable[str] = (),
    ) -> None:
        super().__init__(values or {})
        self.prog_bar, self.unlogged = frozenset(prog_bar), frozenset(unlogged)

    def put(self, name: str, value: float, how: LoggedAs | None = None) -> None:
        """Set one number."""
        self[name] = value
        if how is not None:
            self.mark(name, how.prog_bar, how.logger)

    def merge(self, values: Mapping[str, float]) -> None:
        """Update these numbers by others; how a name is shown is copied, too."""
        self.update(values)
        if not isinstance(values, Metrics):
            return
        if self.prog_bar or self.unlogged or values.prog_bar or values.unlogged:
            for name in values:
                self.mark(name, name in values.prog_bar, name not in values.unlogged)

    def mark(self, name: str, prog_bar: bool, logger: bool) -> None:
        """Say how a number is shown."""
        here = frozenset((name,))
        self.prog_bar = self.prog_bar | here if prog_bar else self.prog_bar - here
        self.unlogged = self.unlogged - here if logger else self.unlogged | here

    def logged(self) -> dict[str, float]:
        """The numbers that go to loggers."""
        if not self.unlogged:
            return self
        return {name: value for name, value in self.items() if name not in self.unlogged}


class Measured(NamedTuple):
    """The Euclidean norm of a tensor at one time.

    Attributes:
        tensor: The tensor.
        version: How often the tensor had been changed in place at that time.
        norm: Its norm at that time.
    """

    tensor: Tensor
    version: int
    norm: float


class _NoMetrics(Mapping[str, LoggedValue]):
    """An empty mapping that cannot be changed, so that it may be a default."""

    def __getitem__(self, name: str) -> LoggedValue:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class LocalResult(NamedTuple):
    """The result of a local run.

    Attributes:
        delta: Parameters after minus parameters before, flat, shape ``[P]``.
        buffers: Floating buffers after the run, flat, shape ``[Q]``.
        counters: Integer buffers after the run, flat, shape ``[R]``.
        metrics: Values that ``training_step`` logged, summed over the examples seen.
        client_state: The client's new state (SCAFFOLD's control variate), shape ``[P]``, or None.
        clipped_from: The delta's Euclidean norm before it was scaled down to ``max_update_norm``,
            or None if it was not scaled.
        measured: The delta's Euclidean norm as the executor computed it, or None.
    """

    delta: Tensor
    buffers: Tensor
    counters: Tensor
    metrics: Mapping[str, LoggedValue] = _NoMetrics()
    client_state: Tensor | None = None
    clipped_from: float | None = None
    measured: Measured | None = None

    @property
    def update_norm(self) -> float:
        """The delta's Euclidean norm, computed again if the delta has changed since `measured`."""
        if self.measured is not None:
            tensor, version, norm = self.measured
            if tensor is self.delta and tensor._version == version:
                return norm
        return float(self.delta.norm())

    def changed_buffers(self, pulled: ServerState) -> str | None:
        """Return which buffers differ from those pulled: "floating", "integer", or None."""
        if not bool((self.buffers == pulled.buffers).all()):
            return "floating"
        return None if bool((self.counters == pulled.counters).all()) else "integer"


class ClientUpdate(NamedTuple):
    """The result of a task as the server holds it; it may not be computed yet.

    Two updates are equal only if they are the same object.

    Attributes:
        task: The task.
        num_examples: n_i, the number of examples of the client.
        result: The local result, or a function that computes it when called.
        replaced_state: A function that returns the client state, shape ``[P]``, which was replaced
            when this update arrived, or None for zeros; None if there was none to replace.
        pulled: The version of the server's model that the client started from, or None if it is no
            longer kept.
    """

    task: Task
    num_examples: int
    result: LocalResult | Callable[[], LocalResult]
    replaced_state: Callable[[], Tensor | None] | None = None
    pulled: ServerState | None = None

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)

    @property
    def client_id(self) -> int:
        """The client."""
        return self.task.client_id

    @property
    def pulled_version(self) -> int:
        """The version that the client started from."""
        return self.task.pulled_version

    @property
    def num_steps(self) -> int:
        """K, the number of local steps."""
        return self.task.num_steps

    @property
    def local(self) -> LocalResult:
        """The local result.

        If it is not computed yet, it is computed apart from other local runs, which costs time.
        """
        return self.result() if callable(self.result) else self.result

    @property
    def delta(self) -> Tensor:
        """Parameters after minus parameters before, shape ``[P]``."""
        return self.local.delta

    def staleness(self, version: int) -> int:
        """Return tau = version - pulled version, the age of the update at `version`."""
        return version - self.task.pulled_version


class Seen(NamedTuple):
    """What the server sees of an update that it has accepted; see `ArrivalProcess.on_feedback`.

    Attributes:
        metrics: What ``training_step`` logged in this local run, by name: means over the examples
            that it has seen, or what ``reduce_fx`` says.
        norm: Euclidean norm of the delta as the server gets it, after a channel.
        num_examples: n_i, the number of examples of the client.
        duration: Virtual time from the pull to the arrival.
        staleness: tau, the server updates made since the pull.
    """

    metrics: Mapping[str, float]
    norm: float
    num_examples: int
    duration: float
    staleness: int

    def metric(self, name: str) -> float:
        """Return a logged value.

        Raises:
            ValueError: The local run has not logged this name; the error lists those that it has.

        Example:
            >>> Seen({"train_loss": 0.5}, 1.0, 10, 2.0, 0).metric("train_loss")
            0.5
        """
        if name not in self.metrics:
            logged = ", ".join(map(repr, self.metrics)) or "nothing"
            raise ValueError(
                f"metric={name!r} is not logged by training_step, which has logged {logged}; write "
                f"self.log({name!r}, …) in every training_step, or give the name of one of those"
            )
        return self.metrics[name]


class UsedUpdate(NamedTuple):
    """An update that a server step used.

    Attributes:
        update: The update.
        weight: The weight that the aggregator gave to it.
    """

    update: ClientUpdate
    weight: float


@dataclass(frozen=True, slots=True, eq=False)
class ServerState:
    """One version of the server's model.

    Attributes:
        version: Server updates so far.
        params: Trainable parameters, flat, shape ``[P]``.
        buffers: Floating buffers, flat, shape ``[Q]``.
        counters: Integer buffers, flat, shape ``[R]``.
        shared: State pulled together with the model (SCAFFOLD's c), shape ``[P]``, or None.
        used: The updates that made this version.
        settings: What hooks may change on the module, as it was when the version was pulled; None
            for the module as it is.
    """

    version: int
    params: Tensor
    buffers: Tensor
    counters: Tensor
    shared: Tensor | None = None
    used: tuple[UsedUpdate, ...] = ()
    settings: Any = None


class UpdateRecord(NamedTuple):
    """One client update in the history of a run.

    Attributes:
        client_id: The client.
        serial: Number of its task.
        pulled_version: Version that the client started from.
        staleness: Version of the server just before the update was used, minus `pulled_version`.
        num_steps: K, the number of local steps.
        num_examples: n_i, the number of examples of the client.
        weight: Weight that the aggregator gave to it; 0.0 if it was dropped.
        dispatched_at: Virtual time of its pull.
        arrived_at: Virtual time of its arrival.
        norm: Euclidean norm of its delta; nan if it was dropped.
        clipped_from: That norm before it was scaled down to ``max_update_norm``, or None.
        first_half: Whether it is the first half of a task, after which the client has sent nothing
            (`RefreshedTasks`); it is listed among the dropped ones.
    """

    client_id: int
    serial: int
    pulled_version: int
    staleness: int
    num_steps: int
    num_examples: int
    weight: float
    dispatched_at: float
    arrived_at: float
    norm: float
    clipped_from: float | None = None
    first_half: bool = False


class FailureRecord(NamedTuple):
    """A task without a result, in the history of a run.

    Attributes:
        client_id: The client.
        serial: Number of the task.
        pulled_version: Version that the client started from.
        now: Virtual time at which the server noticed.
        reason: Why the task failed; "lost" if its result never arrived, "cancelled" if the arrival
            process stopped it.
        retried: Whether the client was dispatched again for the same task.
        worked: Virtual time from the pull until the task was lost or stopped, or had arrived.
    """

    client_id: int
    serial: int
    pulled_version: int
    now: float
    reason: str
    retried: bool = False
    worked: float = 0.0


@dataclass(slots=True)
class RoundRecord:
    """One server update (round) in the history of a run.

    Attributes:
        version: The version that was made.
        now: Virtual time at which it was made.
        metrics: Training metrics averaged over examples, figures of the round under ``fed/``,
            and the validation metrics if the round was validated.
        updates: The updates that were used, in the order of arrival.
        dropped: Updates that the server dropped since the round before.
        failures: Tasks that failed, were lost or were cancelled since the round before.
    """

    version: int
    now: float
    metrics: Metrics
    updates: list[UpdateRecord]
    dropped: list[UpdateRecord] = field(default_factory=list)
    failures: list[FailureRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.metrics, Metrics):
            self.metrics = Metrics(self.metrics)
