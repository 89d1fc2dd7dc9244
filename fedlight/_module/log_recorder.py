"""Records the values that a module logs in its steps and hooks, and reduces them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torchmetrics import Metric

from fedlight._module.log import Log
from fedlight._module.log_arguments import USUAL, Options, not_one_number, same_options
from fedlight._module.metric_objects import (
    as_float,
    metric_values,
    metrics_of,
    read_together,
    restored_metrics,
)
from fedlight._support.memory import sent
from fedlight._support.reductions import REDUCTIONS
from fedlight.types import LoggedValue, Metrics

if TYPE_CHECKING:
    from lightning import LightningModule


@dataclass(slots=True)
class _Logged:
    """The values that were logged under one name.

    Attributes:
        how: The arguments of ``self.log``.
        values: The numbers; of a metric object with ``on_step``, its value of the last step.
        weights: The weight of each, in examples.
        metric: The metric object, if one was logged.
    """

    how: Options
    values: list[Tensor] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    metric: Metric | None = None


class LogRecorder(Log):
    """Keeps the values that a module logs, and reduces them.

    Numbers are averaged over examples unless ``reduce_fx`` says otherwise. A torchmetrics object is
    kept; `collect` computes its value and resets it.

    Args:
        module: The module whose ``log`` and ``log_dict`` are replaced within `recording`.
        training: Whether ``training_step`` is recorded, which has other defaults.
    """

    def __init__(self, module: LightningModule, training: bool = False) -> None:
        super().__init__(module)
        self.training = training
        self._metric_objects = list(metrics_of(module).values())
        self.batch_size = 1
        self.clear()

    def clear(self, reset: bool = True) -> None:
        """Discard the logged values, and reset the metric objects unless `reset` is False."""
        for metric in self._metric_objects if reset else ():
            if metric.update_called:
                metric.reset()
        self._logged: dict[str, _Logged] = {}
        self._earlier: set[str] = set()

    def next_hook(self) -> None:
        """Note that another hook logs from now on.

        As in Lightning, its value of a name replaces the one that an earlier hook has logged.
        """
        self._earlier = set(self._logged)

    def _take(self, key: str, value: Any, how: Options, batch_size: int | None) -> None:
        if isinstance(value, Number) and not isinstance(value, complex | np.complexfloating):
            value = sent(float(value), self._module.device)  # type: ignore[arg-type]  # no complex
        if not isinstance(value, Tensor) or value.numel() != 1 or value.is_complex():
            raise not_one_number(key, value)
        value = value.detach().clone()  # the step may change the tensor before it is read
        if value.device != self._module.device:  # all are read at once later
            # Only on the way to a device: the host must not read a value before it has arrived.
            to_device = value.device.type == "cpu"
            value = value.to(self._module.device, non_blocking=to_device)
        logged = self._of(key, how)
        logged.values.append(value)
        logged.weights.append(batch_size or self.batch_size)

    def _take_metric(self, key: str, metric: Metric, how: Options) -> None:
        logged = self._of(key, how)
        logged.metric = metric
        value = metric._forward_cache
        if how.on_step and value is not None:
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise not_one_number(key, value)
            logged.values, logged.weights = [value.detach().clone()], [self.batch_size]

    def _of(self, key: str, how: Options) -> _Logged:
        """The record of a name."""
        if key in self._earlier:
            self._earlier.discard(key)
            self._logged.pop(key, None)
        logged = self._logged.get(key)
        if logged is None:
            logged = self._logged[key] = _Logged(how)
        elif logged.how is not how:
            same_options(key, logged.how, how)
        return logged

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing within, and leave metric objects as they were before."""
        logged, self._logged = self._logged, {}
        try:
            with restored_metrics(self._metric_objects):
                for metric in self._metric_objects:
                    # An update may change a state in place, so it gets a copy to change.
                    for name, state in metric.metric_state.items():
                        own = list(state) if isinstance(state, list) else state.clone()
                        setattr(metric, name, own)
                yield
        finally:
            self._logged = logged

    def collect(self, examples: float, reset: bool = True) -> dict[str, LoggedValue]:
        """Return the values logged since the last call, and reset the module's metric objects.

        Args:
            examples: The weight of the values of metric objects, in examples.
            reset: Whether metric objects are reset.
        """
        values: dict[str, LoggedValue] = {}
        every: list[Any] = [value for one in self._logged.values() for value in one.values]
        given = {
            name: one.metric.compute()
            for name, one in self._logged.items()
            if one.metric is not None
        }
        if given:
            leaves, form = tree_flatten(given)
            read = iter(read_together([*every, *map(as_float, leaves)]))
        else:  # the usual case, without a look at each
            every = [value.reshape(()) for value in every]
            read = iter(torch.stack(every).tolist() if every else ())
        mean = REDUCTIONS["mean"].over_steps
        for name, one in self._logged.items():
            numbers, how, weights = list(islice(read, len(one.values))), one.how, one.weights
            if not numbers:
                continue
            if one.metric is not None:
                values.update(how.values(name, (numbers[0], weights[0]), None))
            elif how is USUAL:
                values[name] = LoggedValue(float(mean(numbers, weights)), sum(weights))
            else:
                values.update(how.reduced(name, numbers, weights))
        for name, computed in tree_unflatten(list(read), form).items() if given else ():
            values.update(metric_values(name, computed, self._logged[name].how, examples))
        self.clear(reset)
        return values

    @property
    def names(self) -> list[str]:
        """The names that were logged since the last call of `collect`."""
        return list(self._logged)

    def metrics(self) -> Metrics:
        """The values logged since the last call, by name; usually there are none."""
        return metrics_from(self.collect(1)) if self._logged else Metrics()


def metrics_from(logged: Mapping[str, LoggedValue]) -> Metrics:
    """The numbers by themselves."""
    metrics = Metrics()
    for name, value in logged.items():
        if value.weight:
            metrics.put(name, value.value, value.how)
    return metrics
