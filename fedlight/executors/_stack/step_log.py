"""Keeps the values that ``training_step`` logs under ``vmap``, which stacks them by client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from fedlight._module.log import Log
from fedlight._module.log_arguments import USUAL, Options, not_one_number, same_options
from fedlight._module.metric_objects import metrics_of, restored_metrics
from fedlight._support.reductions import REDUCTIONS
from fedlight.executors._stack.metric_objects import ungrouped

if TYPE_CHECKING:
    from fedlight.executors.base import Workplace

LOSS = "fedlight: the loss"
"""The name under which a step returns its loss, in addition to the values that the module logs."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """A placeholder for the value of a metric object that is updated after the step.

    Attributes:
        metric: The object's name in the module.
        batch: The number of the input of the step whose own value this is, or None.
        after: The number of inputs of the step after which the value of all inputs so far was
            computed, or None for the value at the end of the local run.
        step: The input whose own value is the value of the step, if that is wanted too.
    """

    metric: str
    batch: int | None = None
    after: int | None = None
    step: int | None = None


class StackedLog(NamedTuple):
    """The values that n clients logged in one step.

    Attributes:
        values: Logged numbers by name, each of shape ``[n]``.
        metrics: Values of metric objects by the name under which they were logged.
        inputs: The inputs of metric objects: the object's name in the module and its arguments,
            each of shape ``[n, …]``.
        weights: Number of examples of a logged value, if the step passed a ``batch_size``.
        options: How a name is logged, if not as usual.
        skipped: Whether the step returned None, so that the batch is skipped.
    """

    values: dict[str, Tensor]
    metrics: dict[str, Deferred]
    inputs: list[tuple[str, tuple[Any, ...], dict[str, Any]]]
    weights: dict[str, float]
    options: dict[str, Options]
    skipped: bool = False

    def weight(self, name: str, batch_size: int) -> float:
        """The weight of the value of a name; a step's loss counts once."""
        return 1 if name == LOSS else self.weights.get(name, batch_size)


class StepLog(Log):
    """Keeps what one client logs in a step, as tensors that ``vmap`` stacks.

    Args:
        workplace: The module, and the precision in which numbers are kept.

    Attributes:
        logged: The values logged since `begin`.
    """

    training = True

    def __init__(self, workplace: Workplace) -> None:
        super().__init__(workplace.module)
        self._metrics = metrics_of(workplace.module)
        self._names = {id(metric): name for name, metric in self._metrics.items()}
        self._device = workplace.state.device
        double = workplace.state.param_layout.dtype == torch.float64
        self._dtype = torch.float64 if double else torch.float32
        self.begin()

    def begin(self) -> StackedLog:
        """Start a step."""
        self.logged = StackedLog({}, {}, [], {}, {})
        self._times: dict[str, int] = {}
        self._forwarded: dict[str, int] = {}
        return self.logged

    @contextmanager
    def deferring_metrics(self) -> Iterator[None]:
        """Within the context, metric objects keep their inputs here in place of an update.

        They check values of tensors, which ``vmap`` does not allow.
        """
        with restored_metrics(self._metrics.values()), ungrouped(self._module):
            for name, metric in self._metrics.items():
                vars(metric).update(
                    forward=partial(self._feed, name, True),
                    update=partial(self._feed, name, False),
                    compute=partial(self._so_far, name),
                )
            yield

    def _feed(self, metric: str, forward: bool, /, *args: Any, **kwargs: Any) -> Deferred:
        """Keep the input of a metric object; return a placeholder for the result of its call."""
        number = len(self.logged.inputs)
        named = {key: detached_copy(arg) for key, arg in kwargs.items()}
        self.logged.inputs.append((metric, tuple(map(detached_copy, args)), named))
        if forward:
            self._forwarded[metric] = number
        return Deferred(metric, batch=number)

    def _so_far(self, metric: str, /) -> Deferred:
        return Deferred(metric, after=len(self.logged.inputs))

    def _take(self, key: str, value: Any, how: Options, batch_size: int | None) -> None:
        if batch_size:
            self.logged.weights[key] = batch_size
        self._keep(key, how)
        if isinstance(value, Deferred):
            self.logged.metrics[key] = value
        elif isinstance(value, Number):
            # An operator of its own: a constant of the graph would keep it from the interpreter.
            number = float(value)  # type: ignore[arg-type]
            self._put(key, torch.full((), number, dtype=self._dtype, device=self._device), how)
        elif isinstance(value, Tensor) and value.numel() == 1:
            value = detached_copy(value).reshape(())
            from_host = value.device.type == "cpu"
            value = value.to(self._device, self._dtype, non_blocking=from_host)
            self._put(key, value, how)
        else:
            raise not_one_number(key, value)

    def _take_metric(self, key: str, metric: Metric, how: Options) -> None:
        self._keep(key, how)
        name = self._names[id(metric)]
        step = self._forwarded.get(name) if how.on_step else None
        self.logged.metrics[key] = Deferred(name, step=step)

    def _keep(self, key: str, how: Options) -> None:
        log = self.logged
        if how is not USUAL or key in log.options:
            known = key in log.values or key in log.metrics
            same_options(key, log.options.get(key, USUAL if known else how), how)
            log.options[key] = how

    def _put(self, key: str, value: Tensor, how: Options) -> None:
        """Join what one step logs under a name, which is usually one value."""
        number = self._times[key] = self._times.get(key, 0) + 1
        # With `on_step` alone, the last value counts.
        if number > 1 and how.on_epoch:
            value = REDUCTIONS[how.reduce].joined(self.logged.values[key], value, number)
        self.logged.values[key] = value


def detached_copy(value: Any) -> Any:
    """Copy a tensor: the step may change it, and the optimizer will, before it is read."""
    return value.detach().clone() if isinstance(value, Tensor) else value
