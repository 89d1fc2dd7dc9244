"""One local step of a stack of clients: gradients, buffers and logged values of all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torchmetrics import Metric, MetricCollection

from fedlight.executors.base import Workplace, loss_of
from fedlight.executors.capture import replaced_log, step_function
from fedlight.types import LoggedValue

if TYPE_CHECKING:
    from lightning import LightningModule


@dataclass(frozen=True, slots=True)
class StackedLog:
    """What n clients logged in one step.

    Attributes:
        values: Logged numbers by name, each of shape ``[n]``.
        metrics: Names under which metric objects were logged.
        inputs: What metric objects were given: the object's name in the module and its inputs,
            each of shape ``[n, …]``.
    """

    values: dict[str, Tensor]
    metrics: dict[str, str]
    inputs: list[tuple[str, tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Deferred:
    """Stands for the value of a metric object that is fed only after the step."""

    metric: str


class StackedStep:
    """``(loss gradient, logged values)`` of a stack, by ``torch.func.vmap`` over ``grad``.

    ``training_step`` sees one client: its own parameters and buffers, and its batch. Buffers are
    changed in place. Metric objects cannot be used under ``vmap``; what they are given is handed
    out beside the logged values and they are fed afterwards.

    Args:
        workplace: The module, its state and the precision.
    """

    def __init__(self, workplace: Workplace) -> None:
        self._work = workplace
        self._call = _TrainingStep(workplace.module)
        state = workplace.state
        self._names = [
            [f"module.{name}" for name in layout.names]
            for layout in (state.param_layout, state.buffer_layout, state.counter_layout)
        ]
        self._metrics = {
            name: metric
            for name, metric in workplace.module.named_modules()
            if isinstance(metric, Metric)
        }
        self._log = StackedLog({}, {}, [])
        self._run = vmap(
            grad(self._loss, has_aux=True), in_dims=(0, 0, 0, 0, None), randomness="different"
        )

    def __call__(
        self,
        params: list[Tensor],
        buffers: list[Tensor],
        counters: list[Tensor],
        batch: Any,
        step: int,
    ) -> tuple[list[Tensor], StackedLog]:
        """Gradients ``[n, *shape]`` at `params`, and what was logged.

        Args:
            params: Stacked parameters, not changed.
            buffers: Stacked floating buffers, changed in place.
            counters: Stacked integer buffers, changed in place.
            batch: Stacked batch, ``[n, b, …]`` each.
            step: Number of the local step.
        """
        with torch.enable_grad():
            grads, (new_buffers, new_counters, values, inputs) = self._run(
                params, buffers, counters, batch, step
            )
        with torch.no_grad():
            for old, new in zip(buffers + counters, new_buffers + new_counters, strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)
        names = [name for name, _, _ in self._log.inputs]
        fed = [(name, *arguments) for name, arguments in zip(names, inputs, strict=True)]
        return list(grads), StackedLog(values, self._log.metrics, fed)

    def _loss(
        self,
        params: list[Tensor],
        buffers: list[Tensor],
        counters: list[Tensor],
        batch: Any,
        step: int,
    ) -> tuple[Tensor, Any]:
        module = self._work.module
        self._log = log = StackedLog({}, {}, [])
        tensors: dict[str, Tensor] = {}
        for names, values in zip(self._names, (params, buffers, counters), strict=True):
            tensors.update(zip(names, values, strict=True))
        with (
            replaced_log(module, self._record, self._record_dict),
            self._deferred_metrics(),
            self._work.autocast(),
        ):
            output = functional_call(self._call, tensors, (batch, step))
        loss = loss_of(module, output).reshape(())
        inputs = [(args, kwargs) for _, args, kwargs in log.inputs]
        return loss, (buffers, counters, log.values, inputs)

    def _record(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(value, Deferred):
            self._log.metrics[name] = value.metric
        elif isinstance(value, Metric):
            known = {id(metric): key for key, metric in self._metrics.items()}
            self._log.metrics[name] = known[id(value)]
        elif isinstance(value, Number):
            self._log.values[name] = torch.tensor(float(value))  # type: ignore[arg-type]
        elif isinstance(value, Tensor) and value.numel() == 1:
            self._log.values[name] = value.detach().reshape(()).float()
        else:
            raise TypeError(
                f"self.log({name!r}, …) takes a number, a tensor of one number or a metric, "
                f"got {value!r}"
            )

    def _record_dict(self, dictionary: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        if isinstance(dictionary, MetricCollection):
            dictionary = dict(dictionary.items(keep_base=False, copy_state=False))
        for name, value in dictionary.items():
            self._record(name, value)

    @contextmanager
    def _deferred_metrics(self) -> Iterator[None]:
        before = {name: dict(vars(metric)) for name, metric in self._metrics.items()}
        for name, metric in self._metrics.items():

            def defer(*args: Any, _name: str = name, **kwargs: Any) -> Deferred:
                self._log.inputs.append((_name, args, kwargs))
                return Deferred(_name)

            vars(metric).update(
                forward=defer, update=defer, compute=lambda _name=name: Deferred(_name)
            )
        try:
            yield
        finally:
            for name, metric in self._metrics.items():
                vars(metric).clear()
                vars(metric).update(before[name])


class StackedRecorder:
    """Adds up what a stack of clients logs, step by step, each client for itself.

    Args:
        module: The module, for its metric objects.
        num_clients: n, clients in the stack.
        batch_size: Examples per client and step.
    """

    def __init__(self, module: LightningModule, num_clients: int, batch_size: int) -> None:
        self._module = module
        self._batch_size = batch_size
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, list[int]] = {}
        self._num_clients = num_clients
        self._steps: list[tuple[int, StackedLog]] = []

    def add(self, active: int, log: StackedLog) -> None:
        """Take what the first `active` clients logged in one step."""
        for name, values in log.values.items():
            if name not in self._sums:
                self._sums[name] = values.new_zeros(self._num_clients)
                self._counts[name] = [0] * self._num_clients
            self._sums[name][:active] += values
            for client in range(active):
                self._counts[name][client] += 1
        if log.metrics:
            self._steps.append((active, log))

    def collect(self) -> list[dict[str, LoggedValue]]:
        """The logged values of each client, summed over its examples."""
        collected: list[dict[str, LoggedValue]] = [{} for _ in range(self._num_clients)]
        for name, sums in self._sums.items():
            for client, total in enumerate(sums.tolist()):
                count = self._counts[name][client]
                if count:
                    size = self._batch_size
                    collected[client][name] = LoggedValue(total * size, count * size)
        for client, values in enumerate(collected):
            self._feed(client, values)
        return collected

    def _feed(self, client: int, values: dict[str, LoggedValue]) -> None:
        """Feed the metric objects with one client's inputs and take their values."""
        objects = dict(self._module.named_modules())
        names: dict[str, str] = {}
        examples = 0
        for active, log in self._steps:
            if client >= active:
                break
            names.update(log.metrics)
            examples += self._batch_size
            for name, args, kwargs in log.inputs:
                metric: Any = objects[name]
                metric.update(
                    *(_of(client, arg) for arg in args),
                    **{key: _of(client, arg) for key, arg in kwargs.items()},
                )
        for name, key in names.items():
            metric = objects[key]
            values[name] = LoggedValue(float(metric.compute()) * examples, examples)
        for key in {key for _, log in self._steps for key, _, _ in log.inputs}:
            metric = objects[key]
            metric.reset()


class _TrainingStep(nn.Module):
    """``training_step`` as a forward, so that ``functional_call`` can run it."""

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self.module = module
        self._step = step_function(module, "training_step")

    def forward(self, batch: Any, step: int) -> Any:
        return self._step(batch, step)


def _of(client: int, value: Any) -> Any:
    return value[client].detach() if isinstance(value, Tensor) else value
