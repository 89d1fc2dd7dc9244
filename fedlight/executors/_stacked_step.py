"""One local step of a stack of clients: all gradients, buffers and logged values at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torchmetrics import Metric, MetricCollection

from fedlight.executors._batch_hooks import batch_hooks
from fedlight.executors._capture import replaced_log, step_function
from fedlight.executors._narrow_layers import NarrowLayers
from fedlight.executors._rng import isolated_rng
from fedlight.executors._unused import warn_of_skipped
from fedlight.executors.base import Workplace, loss_of
from fedlight.parameters import check_kept
from fedlight.types import LoggedValue

if TYPE_CHECKING:
    from lightning import LightningModule

Outputs: TypeAlias = tuple[
    list[Tensor],  # gradients
    list[Tensor],  # floating buffers
    list[Tensor],  # integer buffers
    dict[str, Tensor],  # logged numbers
    list[tuple[tuple[Any, ...], dict[str, Any]]],  # inputs of metric objects
]


LOSS = "fedlight: the loss"
"""The name under which a step returns its loss, beside the values that the module logs."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """Stands for the value of a metric object that is updated after the step.

    Attributes:
        metric: The object's name in the module.
        batch: The number of the input of the step whose own value this is, or None.
        after: The number of inputs of the step after which the value of all inputs so far was
            computed, or None for the value at the end of the local run.
    """

    metric: str
    batch: int | None = None
    after: int | None = None


class StackedLog(NamedTuple):
    """What n clients logged in one step.

    Attributes:
        values: Logged numbers by name, each of shape ``[n]``.
        metrics: Values of metric objects by the name under which they were logged.
        inputs: The inputs of metric objects: the object's name in the module and its arguments,
            each of shape ``[n, …]``.
        weights: Number of examples of a logged value, if the step passed a ``batch_size``.
        skipped: Whether the step returned None, so that the batch is skipped.
    """

    values: dict[str, Tensor]
    metrics: dict[str, Deferred]
    inputs: list[tuple[str, tuple[Any, ...], dict[str, Any]]]
    weights: dict[str, float]
    skipped: bool = False


class StackedStep:
    """Loss gradients and logged values of a stack, by ``torch.func.vmap`` over ``grad``.

    ``training_step`` sees one client: its own parameters and buffers, and its batch. Buffers are
    changed in place. Metric objects check values of tensors, which ``vmap`` does not allow; their
    inputs are returned beside the logged values, and the objects are updated after the step.

    Args:
        workplace: The module, its state and the precision.
        narrow: Whether narrow layers run along the batch on a CPU (`NarrowLayers`).
    """

    def __init__(self, workplace: Workplace, narrow: bool = True) -> None:
        self._work = workplace
        state = workplace.state
        self._call = _TrainingStep(workplace)
        self._names = [
            [f"module.{name}" for name in layout.names]
            for layout in (state.param_layout, state.buffer_layout, state.counter_layout)
        ]
        self._metrics = {
            name: metric
            for name, metric in workplace.module.named_modules()
            if isinstance(metric, Metric)
        }
        self._log = StackedLog({}, {}, [], {})
        self._layers = NarrowLayers if narrow and state.device.type == "cpu" else nullcontext
        self._run = vmap(
            grad(self._loss, has_aux=True), in_dims=(0, 0, 0, 0, None), randomness="different"
        )

    @property
    def module(self) -> LightningModule:
        """The module whose ``training_step`` is computed."""
        return self._work.module

    def __call__(
        self,
        params: list[Tensor],
        buffers: list[Tensor],
        counters: list[Tensor],
        batch: Any,
        step: int,
    ) -> tuple[list[Tensor], StackedLog]:
        """Compute the gradients ``[n, *shape]`` at `params`, and what was logged.

        Args:
            params: Stacked parameters, not changed.
            buffers: Stacked floating buffers, changed in place.
            counters: Stacked integer buffers, changed in place.
            batch: Stacked batch, a tuple or a dict of tensors ``[n, b, …]``.
            step: Number of the local step.
        """
        outputs, log = self.raw(params, buffers, counters, batch, step)
        return self.unpacked(outputs, log, buffers, counters)

    def raw(
        self,
        params: list[Tensor],
        buffers: list[Tensor],
        counters: list[Tensor],
        batch: Any,
        step: int,
    ) -> tuple[Outputs, StackedLog]:
        """Return all outputs without writing to the buffers, and the names of what was logged."""
        with torch.enable_grad():
            grads, outputs = self._run(params, buffers, counters, batch, step)
        return (list(grads), *outputs), self._log

    def unpacked(
        self, outputs: Outputs, log: StackedLog, buffers: list[Tensor], counters: list[Tensor]
    ) -> tuple[list[Tensor], StackedLog]:
        """Write the new buffers of `raw` to the old ones; return gradients and logged values."""
        grads, new_buffers, new_counters, values, inputs = outputs
        if buffers or counters:
            with torch.no_grad():
                pairs = list(zip(buffers + counters, new_buffers + new_counters, strict=True))
                blocks = {old.untyped_storage().data_ptr() for old, _ in pairs}
                moved = [(old, new) for old, new in pairs if old.data_ptr() != new.data_ptr()]
                # A step may exchange buffers (`self.old = self.new`): then the source of one copy
                # is the target of another one.
                moved = [
                    (old, new.clone() if new.untyped_storage().data_ptr() in blocks else new)
                    for old, new in moved
                ]
                for old, new in moved:
                    old.copy_(new)
        fed = [(log.inputs[i][0], *arguments) for i, arguments in enumerate(inputs)]
        return grads, StackedLog(values, log.metrics, fed, log.weights, log.skipped)

    def unused(
        self,
        params: list[Tensor],
        buffers: list[Tensor],
        counters: list[Tensor],
        batch: Any,
        step: int,
    ) -> tuple[int, ...]:
        """The positions of the parameters that the loss of a step does not use.

        ``torch.func.grad`` gives zeros for them, which says less: a used parameter may have a
        gradient of zeros. So the step of the first client is computed once more by itself. What it
        uses is the same for all clients, since ``vmap`` allows no branch on the values of tensors.
        """

        def first(tensor: Tensor) -> Tensor:
            return tensor[0].detach().clone()

        leaves = [first(tensor).requires_grad_() for tensor in params]
        others = [first(tensor) for tensor in buffers], [first(tensor) for tensor in counters]
        alone = apply_to_collection(batch, Tensor, first)
        with torch.enable_grad(), isolated_rng():
            loss, _ = self._loss(leaves, *others, alone, step)
            if self._log.skipped:
                return tuple(range(len(leaves)))
            if not loss.requires_grad:
                return ()
            grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        return tuple([index for index, each in enumerate(grads) if each is None])

    def _loss(
        self,
        params: list[Tensor],
        buffers: list[Tensor],
        counters: list[Tensor],
        batch: Any,
        step: int,
    ) -> tuple[Tensor, Any]:
        module = self._work.module
        self._log = log = StackedLog({}, {}, [], {})
        self._times: dict[str, int] = {}
        tensors: dict[str, Tensor] = {}
        for names, values in zip(self._names, (params, buffers, counters), strict=True):
            tensors.update(zip(names, values, strict=True))
        with (
            self._layers(),
            replaced_log(module, self._record, self._record_dict),
            self._deferred_metrics(),
        ):
            output, buffers, counters = functional_call(self._call, tensors, (batch, step))
        if output is None:
            warn_of_skipped(module)
            self._log = log = log._replace(skipped=True)
            loss = torch.zeros((), device=self._work.state.device)
        else:
            loss = loss_of(module, output).reshape(())
        log.values[LOSS] = _kept(loss).float()
        inputs = [(args, kwargs) for _, args, kwargs in log.inputs]
        return loss, (buffers, counters, log.values, inputs)

    def _record(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("batch_size"):
            self._log.weights[name] = kwargs["batch_size"]
        if isinstance(value, Deferred):
            self._log.metrics[name] = value
        elif isinstance(value, Metric):
            known = {id(metric): key for key, metric in self._metrics.items()}
            self._log.metrics[name] = Deferred(known[id(value)])
        elif isinstance(value, Number):
            self._average(name, torch.tensor(float(value)))  # type: ignore[arg-type]
        elif isinstance(value, Tensor) and value.numel() == 1:
            self._average(name, _kept(value).reshape(()).float())
        else:
            raise TypeError(
                f"self.log({name!r}, …) takes a number, a tensor of one number or a metric, "
                f"got {value!r}"
            )

    def _average(self, name: str, value: Tensor) -> None:
        """Average what one step logs under a name, which is usually one value."""
        times = self._times[name] = self._times.get(name, 0) + 1
        before = self._log.values.get(name)
        self._log.values[name] = value if before is None else before + (value - before) / times

    def _record_dict(self, dictionary: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        if isinstance(dictionary, MetricCollection):
            dictionary = dict(dictionary.items(keep_base=False, copy_state=False))
        for name, value in dictionary.items():
            self._record(name, value, **kwargs)

    @contextmanager
    def _deferred_metrics(self) -> Iterator[None]:
        before = {name: dict(vars(metric)) for name, metric in self._metrics.items()}
        for name, metric in self._metrics.items():

            def defer(*args: Any, _name: str = name, **kwargs: Any) -> Deferred:
                named = {key: _kept(arg) for key, arg in kwargs.items()}
                self._log.inputs.append((_name, tuple(map(_kept, args)), named))
                return Deferred(_name, batch=len(self._log.inputs) - 1)

            def so_far(_name: str = name) -> Deferred:
                return Deferred(_name, after=len(self._log.inputs))

            vars(metric).update(forward=defer, update=defer, compute=so_far)
        try:
            with ungrouped(self._work.module):
                yield
        finally:
            for name, metric in self._metrics.items():
                vars(metric).clear()
                vars(metric).update(before[name])


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


class StackedRecorder:
    """Sums what a stack of clients logs, separately for each client.

    Args:
        module: The module, for its metric objects.
        steps: Number of local steps of each client, the largest first.
        batch_size: Examples per client and step.
    """

    def __init__(self, module: LightningModule, steps: Sequence[int], batch_size: int) -> None:
        self._module = module
        self._batch_size = batch_size
        self._steps = steps
        self._logs: list[StackedLog] = []
        self._active: list[int] = []

    def add(self, log: StackedLog, active: int) -> None:
        """Add what the first `active` clients logged in the next step."""
        self._logs.append(log)
        self._active.append(active)

    def collect(self) -> tuple[list[float], list[dict[str, LoggedValue]]]:
        """Each client's losses summed over its steps, and its logged values over its examples."""
        sums, weights = self._sums()
        losses = sums.pop(LOSS)
        collected: list[dict[str, LoggedValue]] = [{} for _ in self._steps]
        for name, totals in sums.items():
            for values, total, weight in zip(collected, totals, weights[name], strict=True):
                if weight:
                    values[name] = LoggedValue(total, weight)
        if any(log.metrics for log in self._logs):
            with ungrouped(self._module):
                for client, values in enumerate(collected):
                    self._feed(client, values)
        return losses, collected

    def _weight(self, name: str, log: StackedLog) -> float:
        if name == LOSS:
            return 1
        return log.weights.get(name, self._batch_size)

    def _sums(self) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """The sums of the logged values and of their weights, by name, one for each client."""
        steps = list(zip(self._logs, self._active, strict=True))
        rows = [
            value if value.shape[0] == active else value[:active]
            for log, active in steps
            for value in log.values.values()
        ]
        flat = torch.cat(rows).cpu().numpy().astype(np.float64)  # one transfer from the device
        n, first = len(self._steps), self._logs[0]
        # Nearly always all clients make the same steps and log the same names: one sum is enough.
        if self._active[-1] == n and all(
            log.values.keys() == first.values.keys() and not log.weights for log in self._logs
        ):
            sizes = {name: self._weight(name, first) for name in first.values}
            totals = flat.reshape(len(steps), -1, n).sum(axis=0)
            totals *= np.array(list(sizes.values()))[:, None]
            return (
                dict(zip(sizes, totals.tolist(), strict=True)),
                {name: [float(len(steps) * size)] * n for name, size in sizes.items()},
            )
        sums = {name: np.zeros(n) for log in self._logs for name in log.values}
        weights = {name: np.zeros(n) for name in sums}
        at = 0
        for log, active in steps:
            for name in log.values:
                size = self._weight(name, log)
                sums[name][:active] += size * flat[at : at + active]
                weights[name][:active] += size
                at += active
        return (
            {name: total.tolist() for name, total in sums.items()},
            {name: weight.tolist() for name, weight in weights.items()},
        )

    def _feed(self, client: int, values: dict[str, LoggedValue]) -> None:
        """Update the metric objects with one client's inputs and compute their values."""
        objects: dict[str, Any] = dict(self._module.named_modules())
        last: dict[str, str] = {}
        for log in self._logs[: self._steps[client]]:
            for name, number in self._fed(client, log, objects).items():
                total, weight = values.get(name, (0.0, 0))
                own = self._weight(name, log)
                values[name] = LoggedValue(total + number * own, weight + own)
            for name, value in log.metrics.items():
                if value.batch is None and value.after is None:
                    last[name] = value.metric
        examples = self._steps[client] * self._batch_size
        for name, key in last.items():
            values[name] = LoggedValue(float(objects[key].compute()) * examples, examples)
        for key in {key for log in self._logs for key, _, _ in log.inputs}:
            objects[key].reset()

    def _fed(self, client: int, log: StackedLog, objects: dict[str, Any]) -> dict[str, float]:
        """Update them with one step's inputs; return the values that the step itself logged."""
        found: dict[str, float] = {}
        wanted = {value.batch for value in log.metrics.values()}
        for position in range(len(log.inputs) + 1):
            for name, value in log.metrics.items():
                if value.after == position:
                    found[name] = float(objects[value.metric].compute())
            if position == len(log.inputs):
                break
            key, args, kwargs = log.inputs[position]
            own = [_of(client, arg) for arg in args]
            named = {name: _of(client, arg) for name, arg in kwargs.items()}
            if position not in wanted:
                objects[key].update(*own, **named)
                continue
            of_batch = float(objects[key](*own, **named))
            found |= {name: of_batch for name, v in log.metrics.items() if v.batch == position}
        return found


class _TrainingStep(nn.Module):
    """``training_step`` as a ``forward``, so that ``functional_call`` can run it.

    It also returns the buffers as the step leaves them, because ``functional_call`` restores those
    that the step replaces.
    """

    def __init__(self, workplace: Workplace) -> None:
        super().__init__()
        self.module = workplace.module
        self._step = step_function(workplace.module, "training_step")
        state = workplace.state
        self._floating, self._counting = state.buffer_layout.names, state.counter_layout.names
        self._prepared = batch_hooks(workplace.module)
        self._autocast = workplace.autocast

    def forward(self, batch: Any, step: int) -> tuple[Any, list[Tensor], list[Tensor]]:
        if self._prepared is not None:
            batch = self._prepared(batch)
        before = dict(self.module.named_parameters())
        with self._autocast():
            output = self._step(batch, step)
        check_kept(self.module, before)
        return (
            output,
            [self.module.get_buffer(name) for name in self._floating],
            [self.module.get_buffer(name) for name in self._counting],
        )


def _kept(value: Any) -> Any:
    """Copy a tensor: the step may change it, and the optimizer will, before it is read."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def _of(client: int, value: Any) -> Any:
    return value[client].detach() if isinstance(value, Tensor) else value
