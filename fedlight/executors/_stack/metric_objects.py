"""Updates the metric objects of a module after the steps of a stack, client by client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torchmetrics import MetricCollection

from fedlight._module.metric_objects import as_float, read_together

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.executors._stack.step_log import StackedLog


class MetricValues(NamedTuple):
    """The values of metric objects for one client.

    Attributes:
        logged: For each step, the values that the step itself logged, by name.
        newest: The own value of the last step of each object that was logged with ``on_step``, and
            the number of that step, by name.
        computed: The values over all steps of the objects that were logged, by name.
    """

    logged: list[dict[str, Any]]
    newest: dict[str, tuple[Any, int]]
    computed: dict[str, Any]


def values_of_metrics(
    module: LightningModule, logs: Sequence[StackedLog], steps: Sequence[int]
) -> list[MetricValues]:
    """Update the metric objects with the inputs of one client after another.

    Args:
        module: The module, for its metric objects.
        logs: The logged values of each step.
        steps: Number of local steps of each client.
    """
    objects: dict[str, Any] = dict(module.named_modules())
    with ungrouped(module):
        found = [_of_client(client, logs[:number], objects) for client, number in enumerate(steps)]
    leaves, form = tree_flatten(found)
    # All are read at once. torchmetrics gives copies, which later updates do not change.
    read: list[MetricValues] = tree_unflatten(read_together(list(map(as_float, leaves))), form)
    return read


def _of_client(client: int, logs: Sequence[StackedLog], objects: dict[str, Any]) -> MetricValues:
    found = MetricValues([], {}, {})
    for number, log in enumerate(logs):
        found.logged.append({})
        _feed(client, log, number, objects, found)
    last = {
        name: value.metric
        for log in logs
        for name, value in log.metrics.items()
        if value.batch is None and value.after is None
    }
    found.computed.update({name: objects[key].compute() for name, key in last.items()})
    for key in {key for log in logs for key, _, _ in log.inputs}:
        objects[key].reset()
    return found


def _feed(
    client: int, log: StackedLog, number: int, objects: dict[str, Any], found: MetricValues
) -> None:
    """Update the metric objects with one client's inputs of one step."""
    # An update alone is half the work of a call, which also computes the value of the batch.
    wanted = {position for each in log.metrics.values() for position in (each.batch, each.step)}
    for position in range(len(log.inputs) + 1):
        for name, value in log.metrics.items():
            if value.after == position:
                found.logged[-1][name] = objects[value.metric].compute()
        if position == len(log.inputs):
            break
        key, args, kwargs = log.inputs[position]
        own = [_row(client, arg) for arg in args]
        named = {name: _row(client, arg) for name, arg in kwargs.items()}
        if position not in wanted:
            objects[key].update(*own, **named)
            continue
        of_batch = objects[key](*own, **named)
        for name, value in log.metrics.items():
            if value.batch == position:
                found.logged[-1][name] = of_batch
            if value.step == position:
                found.newest[name] = of_batch, number


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


def _row(client: int, value: Any) -> Any:
    return value[client].detach() if isinstance(value, Tensor) else value
