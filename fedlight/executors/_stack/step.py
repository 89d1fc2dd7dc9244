"""One local step of a stack of clients: all gradients, buffers and logged values at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from numbers import Number
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten
from torchmetrics import Metric, MetricCollection

from fedlight._module.batch_hooks import batch_hooks
from fedlight._module.log import (
    USUAL,
    Log,
    Options,
    as_float,
    named_numbers,
    no_attribute,
    not_one_number,
    number_of,
    read_together,
    same_options,
    step_function,
)
from fedlight._module.rng import isolated_rng
from fedlight.executors._random.streams import Keys, Streams
from fedlight.executors._stack.narrow_layers import NarrowLayers
from fedlight.executors._stack.unused import warn_of_skipped
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


_Fed: TypeAlias = tuple[list[tuple[dict[str, Any], dict[str, Any]]], dict[str, Any]]
"""What the metric objects gave for one client: step by step, and at the end."""

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
        step: The input whose own value is the value of the step, if that is wanted too.
    """

    metric: str
    batch: int | None = None
    after: int | None = None
    step: int | None = None


class StackedLog(NamedTuple):
    """What n clients logged in one step.

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
        self._log = _StepLog(workplace, self._metrics)
        self._layers = NarrowLayers if narrow and state.device.type == "cpu" else nullcontext
        self._streams = Streams(stacked=True)
        self._gradient = grad(self._loss, has_aux=True)
        # Whatever `Streams` does not cover, the clients would share: an error.
        self._run = vmap(self._one, in_dims=(0, 0, 0, 0, None, 0), randomness="error")

    @property
    def module(self) -> LightningModule:
        """The module whose ``training_step`` is computed."""
        return self._work.module

    @property
    def drew(self) -> bool:
        """Whether the last step drew random numbers, so that it depends on its keys."""
        return self._streams.drew

    def __call__(
        self,
        params: list[Tensor],
        buffers: list[Tensor],
        counters: list[Tensor],
        batch: Any,
        step: int,
        keys: Keys,
    ) -> tuple[list[Tensor], StackedLog]:
        """Compute the gradients ``[n, *shape]`` at `params`, and what was logged.

        Args:
            params: Stacked parameters, not changed.
            buffers: Stacked floating buffers, changed in place.
            counters: Stacked integer buffers, changed in place.
            batch: Stacked batch, a tuple or a dict of tensors ``[n, b, …]``.
            step: Number of the local step.
            keys: The keys of the clients' random numbers in this step.
        """
        outputs, log = self.raw(params, buffers, counters, batch, step, keys())
        return self.unpacked(outputs, log, buffers, counters)

    def raw(
        self,
        params: list[Tensor],
        buffers: list[Tensor],
        counters: list[Tensor],
        batch: Any,
        step: int,
        keys: Tensor,
    ) -> tuple[Outputs, StackedLog]:
        """Return all outputs without writing to the buffers, and the names of what was logged."""
        with torch.enable_grad():
            grads, outputs = self._run(params, buffers, counters, batch, step, keys)
        return (list(grads), *outputs), self._log.logged

    def _one(
        self,
        params: list[Tensor],
        buffers: list[Tensor],
        counters: list[Tensor],
        batch: Any,
        step: int,
        key: Tensor,
    ) -> Any:
        with self._streams.at(key):
            return self._gradient(params, buffers, counters, batch, step)

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
        return grads, StackedLog(values, log.metrics, fed, log.weights, log.options, log.skipped)

    def unused(
        self,
        params: list[Tensor],
        buffers: list[Tensor],
        counters: list[Tensor],
        batch: Any,
        step: int,
        keys: Keys,
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
        with torch.enable_grad(), isolated_rng(), self._streams.at(keys()[0]):
            loss, _ = self._loss(leaves, *others, alone, step)
            if self._log.logged.skipped:
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
        module, log = self._work.module, self._log
        logged = log.begin()
        tensors: dict[str, Tensor] = {}
        for names, values in zip(self._names, (params, buffers, counters), strict=True):
            tensors.update(zip(names, values, strict=True))
        with (
            self._layers(),
            log.recording(),
            self._deferred_metrics(),
        ):
            try:
                output, buffers, counters = functional_call(self._call, tensors, (batch, step))
            except Exception as error:
                metric = _metric_in(error)
                if metric is None:
                    raise
                # Those of the module only keep their inputs here. torch's own words would not help.
                words = f"training_step calls {no_attribute(metric, module)}"
                raise TypeError(words) from error
        if output is None:
            warn_of_skipped(module)
            log.logged = logged = logged._replace(skipped=True)
            loss = torch.zeros((), device=self._work.state.device)
        else:
            loss = loss_of(module, output).reshape(())
        logged.values[LOSS] = _kept(loss).float()
        inputs = [(args, kwargs) for _, args, kwargs in logged.inputs]
        return loss, (buffers, counters, logged.values, inputs)

    @contextmanager
    def _deferred_metrics(self) -> Iterator[None]:
        before = {name: dict(vars(metric)) for name, metric in self._metrics.items()}
        for name, metric in self._metrics.items():

            def defer(*args: Any, _name: str = name, **kwargs: Any) -> Deferred:
                named = {key: _kept(arg) for key, arg in kwargs.items()}
                return self._log.feed(_name, tuple(map(_kept, args)), named)

            def forward(*args: Any, _name: str = name, **kwargs: Any) -> Deferred:
                named = {key: _kept(arg) for key, arg in kwargs.items()}
                return self._log.feed(_name, tuple(map(_kept, args)), named, forward=True)

            def so_far(_name: str = name) -> Deferred:
                return Deferred(_name, after=len(self._log.logged.inputs))

            vars(metric).update(forward=forward, update=defer, compute=so_far)
        try:
            with ungrouped(self._work.module):
                yield
        finally:
            for name, metric in self._metrics.items():
                vars(metric).clear()
                vars(metric).update(before[name])


class _StepLog(Log):
    """Keeps what one client logs in a step, as tensors that ``vmap`` stacks.

    Args:
        workplace: The module, and the precision in which numbers are kept.
        metrics: The module's metric objects by name.

    Attributes:
        logged: What was logged since `begin`.
    """

    training = True

    def __init__(self, workplace: Workplace, metrics: dict[str, Metric]) -> None:
        super().__init__(workplace.module)
        self._names = {id(metric): name for name, metric in metrics.items()}
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

    def feed(
        self, metric: str, args: tuple[Any, ...], kwargs: dict[str, Any], forward: bool = False
    ) -> Deferred:
        """Keep the input of a metric object; what its call would return."""
        number = len(self.logged.inputs)
        self.logged.inputs.append((metric, args, kwargs))
        if forward:
            self._forwarded[metric] = number
        return Deferred(metric, batch=number)

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
            value = _kept(value).reshape(())
            from_host = value.device.type == "cpu"
            kept = value.to(self._device, self._dtype, non_blocking=from_host)
            self._put(key, kept, how)
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
        times = self._times[key] = self._times.get(key, 0) + 1
        before = self.logged.values.get(key)
        if before is not None:
            if not how.on_epoch:
                pass  # the last value counts
            elif how.reduce == "mean":
                value = before + (value - before) / times
            elif how.reduce == "sum":
                value = before + value
            else:
                value = (torch.maximum if how.reduce == "max" else torch.minimum)(before, value)
        self.logged.values[key] = value


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
        if not self._logs:  # nobody had time for a step
            return [0.0] * len(self._steps), [{} for _ in self._steps]
        names = self._logs[0].values.keys()
        # Nearly always all clients make the same steps and log the same names, as means.
        if self._active[-1] == len(self._steps) and not any(
            log.options or log.weights or log.metrics or log.values.keys() != names
            for log in self._logs
        ):
            return self._usual(list(names))
        sums, weights, series = self._sums()
        losses = sums.pop(LOSS)
        collected: list[dict[str, LoggedValue]] = [{} for _ in self._steps]
        how = {key: value for log in self._logs for key, value in log.options.items()}
        for name, totals in sums.items():
            for values, total, weight in zip(collected, totals, weights[name], strict=True):
                if weight:
                    if name in how:
                        values.update(how[name].values(name, None, (total, weight)))
                    else:
                        values[name] = LoggedValue(total, weight)
        for name, steps in series.items():
            for client, values in enumerate(collected):
                own = [(row[client], size) for row, size in steps if client < len(row)]
                if own:
                    numbers, sizes = zip(*own, strict=True)
                    values.update(how[name].reduced(name, numbers, sizes))
        if any(log.metrics for log in self._logs):
            with ungrouped(self._module):
                objects: dict[str, Any] = dict(self._module.named_modules())
                fed = [self._fed(client, objects) for client in range(len(collected))]
            leaves, form = tree_flatten(fed)
            read = read_together(list(map(as_float, leaves)))
            for client, found in enumerate(tree_unflatten(read, form)):
                self._take_in(client, collected[client], found, how)
        return losses, collected

    def _usual(self, names: list[str]) -> tuple[list[float], list[dict[str, LoggedValue]]]:
        """What `collect` returns if all steps of all clients log these names, as means."""
        n = len(self._steps)
        rows = [value for log in self._logs for value in log.values.values()]
        if len(rows[0]) != n:  # the stack is padded
            rows = [row[:n] for row in rows]
        flat = torch.cat(rows).cpu().numpy()  # one transfer from the device
        totals = flat.reshape(len(self._logs), len(names), n).sum(axis=0, dtype=np.float64)
        losses: list[float] = totals[names.index(LOSS)].tolist()
        totals *= self._batch_size
        weight = float(len(self._logs) * self._batch_size)
        collected: list[dict[str, LoggedValue]] = [{} for _ in range(n)]
        for name, row in zip(names, totals.tolist(), strict=True):
            if name != LOSS:
                for values, total in zip(collected, row, strict=True):
                    values[name] = LoggedValue(total, weight)
        return losses, collected

    def _weight(self, name: str, log: StackedLog) -> float:
        if name == LOSS:
            return 1
        return log.weights.get(name, self._batch_size)

    def _sums(
        self,
    ) -> tuple[
        dict[str, list[float]], dict[str, list[float]], dict[str, list[tuple[list[float], float]]]
    ]:
        """The sums of the logged values and of their weights, by name, one for each client.

        In place of a sum, a name with another reduction has its values in each step, with their
        weight.
        """
        steps = list(zip(self._logs, self._active, strict=True))
        rows = [
            value if value.shape[0] == active else value[:active]
            for log, active in steps
            for value in log.values.values()
        ]
        flat = torch.cat(rows).cpu().numpy().astype(np.float64)  # one transfer from the device
        n = len(self._steps)
        other = {
            name for log in self._logs for name, how in log.options.items() if not how.averaged
        }
        sums = {name: np.zeros(n) for log in self._logs for name in log.values if name not in other}
        weights = {name: np.zeros(n) for name in sums}
        series: dict[str, list[tuple[list[float], float]]] = defaultdict(list)
        at = 0
        for log, active in steps:
            for name in log.values:
                size, row = self._weight(name, log), flat[at : at + active]
                at += active
                if name in other:
                    series[name].append((row.tolist(), size))
                    continue
                sums[name][:active] += size * row
                weights[name][:active] += size
        return (
            {name: total.tolist() for name, total in sums.items()},
            {name: weight.tolist() for name, weight in weights.items()},
            series,
        )

    def _fed(self, client: int, objects: dict[str, Any]) -> _Fed:
        """Update the metric objects with one client's inputs; what they give, not yet read.

        torchmetrics gives copies, which later updates do not change.
        """
        logs = self._logs[: self._steps[client]]
        steps = [self._fed_step(client, log, objects) for log in logs]
        last = {
            name: value.metric
            for log in logs
            for name, value in log.metrics.items()
            if value.batch is None and value.after is None
        }
        computed = {name: objects[key].compute() for name, key in last.items()}
        for key in {key for log in self._logs for key, _, _ in log.inputs}:
            objects[key].reset()
        return steps, computed

    def _fed_step(
        self, client: int, log: StackedLog, objects: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Update them with one step's inputs.

        Returns:
            The values that the step itself logged, and the values of this step of the objects that
            it logged with ``on_step``.
        """
        found: dict[str, Any] = {}
        newest: dict[str, Any] = {}
        wanted = {number for each in log.metrics.values() for number in (each.batch, each.step)}
        for position in range(len(log.inputs) + 1):
            for name, value in log.metrics.items():
                if value.after == position:
                    found[name] = objects[value.metric].compute()
            if position == len(log.inputs):
                break
            key, args, kwargs = log.inputs[position]
            own = [_of(client, arg) for arg in args]
            named = {name: _of(client, arg) for name, arg in kwargs.items()}
            if position not in wanted:
                objects[key].update(*own, **named)
                continue
            of_batch = objects[key](*own, **named)
            for name, value in log.metrics.items():
                if value.batch == position:
                    found[name] = of_batch
                if value.step == position:
                    newest[name] = of_batch
        return found, newest

    def _take_in(
        self, client: int, values: dict[str, LoggedValue], fed: _Fed, how: dict[str, Options]
    ) -> None:
        """Add to one client's values what its metric objects gave, which has been read."""
        steps, computed = fed
        logged: dict[str, list[tuple[float, float]]] = defaultdict(list)
        of_step: dict[str, tuple[float, float]] = {}
        for log, (found, newest) in zip(self._logs, steps, strict=False):
            for name, number in found.items():
                logged[name].append((number_of(name, number), self._weight(name, log)))
            for name, number in newest.items():
                of_step[name] = number_of(name, number), self._weight(name, log)
        for name, own in logged.items():
            numbers, sizes = zip(*own, strict=True)
            reduced = dict(how.get(name, USUAL).reduced(name, numbers, sizes))
            if name in values and name in reduced:  # other steps logged a number under the name
                before = values[name]
                total, weight = before.total + reduced[name].total, before.weight + sum(sizes)
                reduced[name] = before._replace(total=total, weight=weight)
            values.update(reduced)
        examples = self._steps[client] * self._batch_size
        for name, value in computed.items():
            options = how.get(name, USUAL)._replace(reduce="mean")
            values.update(options.values(name, of_step.get(name), None))
            for one, number in named_numbers(name, value, options.suffix).items():
                values.update(options.values(one, None, (number * examples, examples)))


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
        self._names = state.parameter_names
        self._floating, self._counting = state.buffer_layout.names, state.counter_layout.names
        self._prepared = batch_hooks(workplace.module)
        self._autocast = workplace.autocast

    def forward(self, batch: Any, step: int) -> tuple[Any, list[Tensor], list[Tensor]]:
        if self._prepared is not None:
            batch = self._prepared(batch)
        before = dict(self.module.named_parameters())
        with self._autocast():
            output = self._step(batch, step)
        check_kept(self.module, before, self._names)
        return (
            output,
            [self.module.get_buffer(name) for name in self._floating],
            [self.module.get_buffer(name) for name in self._counting],
        )


def _metric_in(error: Exception) -> Metric | None:
    """The metric object in whose methods an error was raised, if it was in one."""
    for frame, _ in walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, Metric):
            return owner
    return None


def _kept(value: Any) -> Any:
    """Copy a tensor: the step may change it, and the optimizer will, before it is read."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def _of(client: int, value: Any) -> Any:
    return value[client].detach() if isinstance(value, Tensor) else value
