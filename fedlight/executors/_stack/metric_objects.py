"""Updates the metric objects of a module after the steps of a stack, client by client."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torchmetrics import MetricCollection

from fedlight._module.log_arguments import USUAL, Options
from fedlight._module.metric_objects import as_float, metric_values, number_of, read_together
from fedlight.types import LoggedValue

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.executors._stack.step_log import StackedLog


class _Found(NamedTuple):
    """What metric objects gave for one client.

    Attributes:
        logged: For each step, the values that the step itself logged, by name.
        newest: For each step, its own values of the objects that it logged with ``on_step``.
        computed: The values over all steps of the objects that were logged, by name.
    """

    logged: list[dict[str, Any]]
    newest: list[dict[str, Any]]
    computed: dict[str, Any]


class FedMetrics:
    """The values of metric objects of each client of a stack.

    Args:
        module: The module, for its metric objects.
        logs: What the clients logged in each step.
        steps: Number of local steps of each client.
        batch_size: Examples per client and step.
        how: How a name is logged, if not as usual.
    """

    def __init__(
        self,
        module: LightningModule,
        logs: Sequence[StackedLog],
        steps: Sequence[int],
        batch_size: int,
        how: dict[str, Options],
    ) -> None:
        self._logs, self._steps, self._batch_size, self._how = logs, steps, batch_size, how
        self._objects: dict[str, Any] = dict(module.named_modules())
        with ungrouped(module):
            found = [self._client(client) for client in range(len(steps))]
        leaves, form = tree_flatten(found)
        # All are read at once: torchmetrics gives copies, which later updates do not change.
        self._found: list[_Found] = tree_unflatten(read_together(list(map(as_float, leaves))), form)

    def _client(self, client: int) -> _Found:
        """Update the metric objects with one client's inputs; what they give, not yet read."""
        logs = self._logs[: self._steps[client]]
        found = _Found([], [], {})
        for log in logs:
            self._step(client, log, found)
        last = {
            name: value.metric
            for log in logs
            for name, value in log.metrics.items()
            if value.batch is None and value.after is None
        }
        found.computed.update({name: self._objects[key].compute() for name, key in last.items()})
        for key in {key for log in self._logs for key, _, _ in log.inputs}:
            self._objects[key].reset()
        return found

    def _step(self, client: int, log: StackedLog, found: _Found) -> None:
        """Update the metric objects with one client's inputs of one step."""
        logged: dict[str, Any] = {}
        newest: dict[str, Any] = {}
        wanted = {number for each in log.metrics.values() for number in (each.batch, each.step)}
        for position in range(len(log.inputs) + 1):
            for name, value in log.metrics.items():
                if value.after == position:
                    logged[name] = self._objects[value.metric].compute()
            if position == len(log.inputs):
                break
            key, args, kwargs = log.inputs[position]
            own = [_of(client, arg) for arg in args]
            named = {name: _of(client, arg) for name, arg in kwargs.items()}
            if position not in wanted:
                self._objects[key].update(*own, **named)
                continue
            of_batch = self._objects[key](*own, **named)
            for name, value in log.metrics.items():
                if value.batch == position:
                    logged[name] = of_batch
                if value.step == position:
                    newest[name] = of_batch
        found.logged.append(logged)
        found.newest.append(newest)

    def add_to(self, values: dict[str, LoggedValue], client: int) -> None:
        """Add one client's values to the numbers that it logged."""
        found = self._found[client]
        logged: dict[str, list[tuple[float, float]]] = defaultdict(list)
        of_step: dict[str, tuple[float, float]] = {}
        for log, in_step, newest in zip(self._logs, found.logged, found.newest, strict=False):
            for name, number in in_step.items():
                weight = log.weight(name, self._batch_size)
                logged[name].append((number_of(name, number), weight))
            for name, number in newest.items():
                of_step[name] = number_of(name, number), log.weight(name, self._batch_size)
        for name, own in logged.items():
            numbers, sizes = zip(*own, strict=True)
            reduced = dict(self._how.get(name, USUAL).reduced(name, numbers, sizes))
            if name in values and name in reduced:  # other steps logged a number under the name
                before = values[name]
                total, weight = before.total + reduced[name].total, before.weight + sum(sizes)
                reduced[name] = before._replace(total=total, weight=weight)
            values.update(reduced)
        examples = self._steps[client] * self._batch_size
        for name, value in found.computed.items():
            options = self._how.get(name, USUAL)
            values.update(options._replace(reduce="mean").values(name, of_step.get(name), None))
            values.update(metric_values(name, value, options, examples))


@contextmanager
def ungrouped(module: LightningModule) -> Iterator[None]:
    """Within the context, each metric of a collection is updated by itself.

    A collection groups metrics whose states are equal after its first update, and then updates one
    of each group. The states of metrics that are updated after the step are always equal.
    """
    collections = [child for child in module.modules() if isinstance(child, MetricCollection)]
    before = [(each._enable_compute_groups, each._groups_checked) for each in collections]
    for collection in collections:
        if collection._groups_checked:  # their states are shared
            for metric in collection.values(copy_state=False):
                metric.reset()
        collection._enable_compute_groups = collection._groups_checked = False
    try:
        yield
    finally:
        for collection, flags in zip(collections, before, strict=True):
            collection._enable_compute_groups, collection._groups_checked = flags


def _of(client: int, value: Any) -> Any:
    return value[client].detach() if isinstance(value, Tensor) else value
