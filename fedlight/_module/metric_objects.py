"""The torchmetrics objects of a module, and the numbers that they give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fedlight._module.log_arguments import Options, not_one_number
from fedlight.types import LoggedValue

if TYPE_CHECKING:
    from lightning import LightningModule


def metrics_of(module: LightningModule) -> dict[str, Metric]:
    """The metric objects that are part of a module, by their names in it."""
    return {name: each for name, each in module.named_modules() if isinstance(each, Metric)}


@contextmanager
def restored_metrics(metrics: Iterable[Metric]) -> Iterator[None]:
    """Within the context, metric objects may be changed; on exit they are as before."""
    before = [(metric, dict(vars(metric))) for metric in metrics]
    try:
        yield
    finally:
        for metric, attributes in before:
            vars(metric).clear()
            vars(metric).update(attributes)


def no_attribute(metric: Metric, module: LightningModule) -> str:
    """Advice on a metric object that is kept outside of the module."""
    return (
        f"{type(metric).__name__}(), which is no attribute of {type(module).__name__}: assign it "
        "to self in __init__, and several in an nn.ModuleList or nn.ModuleDict, so that it moves "
        "with the module and is reset for each client"
    )


def read_together(values: Sequence[Any]) -> list[Any]:
    """The values, with numbers in the place of tensors of one number.

    All are read at once, because each time the host waits for the device.
    """
    found = list(values)
    where = [i for i, one in enumerate(found) if isinstance(one, Tensor) and one.numel() == 1]
    places = {found[i].device for i in where}
    for place in places:
        own = [i for i in where if found[i].device == place] if len(places) > 1 else where
        read = torch.stack([found[i].reshape(()) for i in own]).tolist()
        for i, number in zip(own, read, strict=True):
            found[i] = number
    return found


def as_float(value: Any) -> Any:
    """A value of a metric object; a whole number as a float with all its digits."""
    if not isinstance(value, Tensor) or value.is_floating_point():
        return value
    return value.float() if value.device.type == "mps" else value.double()


def number_of(name: str, value: Any) -> float:
    """The number that a metric object gives.

    Raises:
        TypeError: It gives something else.
    """
    if isinstance(value, Mapping) or (isinstance(value, Tensor) and value.numel() != 1):
        raise not_one_number(name, value)
    return float(value)


def metric_values(
    name: str, computed: Any, how: Options, examples: float
) -> Iterator[tuple[str, LoggedValue]]:
    """The values to be kept of a metric object's result over all steps.

    Args:
        name: The name under which the object was logged; a dictionary has names of its own.
        computed: The result.
        how: The arguments of ``self.log``. The object has reduced its values itself, and local
            runs are averaged.
        examples: The weight of the values.
    """
    how = how._replace(reduce="mean")
    numbers = computed if isinstance(computed, dict) else {name.removesuffix(how.suffix): computed}
    for key, value in numbers.items():
        total = number_of(key, value) * examples
        yield from how.values(key + how.suffix, None, (total, examples))
