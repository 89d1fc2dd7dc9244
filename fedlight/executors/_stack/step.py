"""One local step of a stack of clients: their gradients and buffers, by ``vmap`` over ``grad``."""

from __future__ import annotations

from contextlib import nullcontext
from traceback import walk_tb
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torchmetrics import Metric

from fedlight._module.batch_hooks import batch_hooks
from fedlight._module.metric_objects import no_attribute
from fedlight._module.rng import isolated_rng
from fedlight._module.steps import step_function
from fedlight.executors._random.streams import Keys, Streams
from fedlight.executors._stack.independence import one_client
from fedlight.executors._stack.steady_functions import SteadyFunctions
from fedlight.executors._stack.step_log import LOSS, StackedLog, StepLog, detached_copy
from fedlight.executors._stack.unused_parameters import warn_of_skipped
from fedlight.executors.base import Workplace, loss_of
from fedlight.parameters import as_real, check_kept


class StepInputs(NamedTuple):
    """The inputs of one local step of n clients, apart from the keys of random numbers.

    Attributes:
        params: Stacked parameters, ``[n, *shape]`` each, not changed.
        buffers: Stacked floating buffers, changed in place.
        counters: Stacked integer buffers, changed in place.
        batch: Stacked batch, a tuple or a dict of tensors ``[n, b, …]``.
        number: Number of the local step.
    """

    params: list[Tensor]
    buffers: list[Tensor]
    counters: list[Tensor]
    batch: Any
    number: int


Outputs: TypeAlias = tuple[
    list[Tensor],  # gradients
    list[Tensor],  # floating buffers
    list[Tensor],  # integer buffers
    dict[str, Tensor],  # logged numbers
    list[tuple[tuple[Any, ...], dict[str, Any]]],  # inputs of metric objects
]


class Step(Protocol):
    """Computes a local step of a stack. However that is done, the bits are the same."""

    def __call__(self, inputs: StepInputs, keys: Keys) -> tuple[list[Tensor], StackedLog]:
        """Compute the gradients and the logged values."""

    def unused(self, inputs: StepInputs, keys: Keys) -> tuple[int, ...]:
        """The positions of the parameters that the loss of a step does not use."""


class StackedStep:
    """Loss gradients and logged values of a stack, by ``torch.func.vmap`` over ``grad``.

    ``training_step`` sees one client: its own parameters and buffers, and its batch. Metric objects
    check values of tensors, which ``vmap`` does not allow; their inputs are returned with the
    logged values, and the objects are updated after the step.

    Args:
        workplace: The module, its state and the precision.
        steady: Whether functions are computed on a CPU as `SteadyFunctions` says: independently of
            company, and narrow layers along the batch.

    Attributes:
        module: The module whose ``training_step`` is computed.
    """

    def __init__(self, workplace: Workplace, steady: bool = True) -> None:
        self.module, state = workplace.module, workplace.state
        self._call = _TrainingStep(workplace)
        self._names = [
            [f"module.{name}" for name in layout.names]
            for layout in (state.param_layout, state.buffer_layout, state.counter_layout)
        ]
        buffers = dict(self._call.named_buffers())
        self._complex = [name for name in self._names[1] if buffers[name].is_complex()]
        self._log = StepLog(workplace)
        self._layers = SteadyFunctions if steady and state.device.type == "cpu" else nullcontext
        self._streams = Streams(stacked=True)
        self._gradient = grad(self._loss, has_aux=True)
        # Clients would share random numbers that `Streams` does not cover, so they are an error.
        self._run = vmap(self._one, in_dims=(0, 0, 0, 0, None, 0), randomness="error")

    @property
    def drew(self) -> bool:
        """Whether the last step drew random numbers, so that it depends on its keys."""
        return self._streams.drew

    def __call__(self, inputs: StepInputs, keys: Keys) -> tuple[list[Tensor], StackedLog]:
        """Compute the gradients ``[n, *shape]`` at the parameters, and the logged values.

        Args:
            inputs: The models and the batch. Buffers are changed in place.
            keys: Makes the keys of the clients' random numbers in this step.
        """
        return self.unpacked(*self.raw(inputs, keys()), inputs)

    def raw(self, inputs: StepInputs, keys: Tensor) -> tuple[Outputs, StackedLog]:
        """Return all outputs without writing to the buffers, and the log with its names."""
        with torch.enable_grad():
            grads, outputs = self._run(*inputs, keys)
        return (list(grads), *outputs), self._log.logged

    def _one(self, *inputs_and_key: Any) -> Any:
        """All outputs of one client, whose key is the last input."""
        *inputs, key = inputs_and_key
        with self._streams.at(key):
            return self._gradient(*inputs)

    def unpacked(
        self, outputs: Outputs, log: StackedLog, inputs: StepInputs
    ) -> tuple[list[Tensor], StackedLog]:
        """Write the new buffers of `raw` to the old ones; return gradients and logged values."""
        grads, new_buffers, new_counters, values, given = outputs
        buffers, counters = inputs.buffers, inputs.counters
        if buffers or counters:
            with torch.no_grad():
                pairs = list(zip(buffers + counters, new_buffers + new_counters, strict=True))
                blocks = {old.untyped_storage().data_ptr() for old, _ in pairs}
                # A step may exchange buffers (`self.old = self.new`): then the source of one copy
                # is the target of another one.
                moved = [
                    (old, new.clone() if new.untyped_storage().data_ptr() in blocks else new)
                    for old, new in pairs
                    if old.data_ptr() != new.data_ptr()
                ]
                for old, new in moved:
                    old.copy_(new)
        fed = [(log.inputs[i][0], *arguments) for i, arguments in enumerate(given)]
        return grads, StackedLog(values, log.metrics, fed, log.weights, log.options, log.skipped)

    def unused(self, inputs: StepInputs, keys: Keys) -> tuple[int, ...]:
        """The positions of the parameters that the loss of a step does not use.

        ``torch.func.grad`` gives zeros for them, but a used parameter may have a gradient of zeros,
        too. So the step of the first client is computed once more by itself. All clients use the
        same parameters, since ``vmap`` allows no branch on the values of tensors.
        """
        alone = apply_to_collection(tuple(inputs), Tensor, lambda each: each[0].detach().clone())
        leaves = [each.requires_grad_() for each in alone[0]]
        own_numbers = self._streams.at(keys()[0])
        with one_client(), torch.enable_grad(), isolated_rng(), own_numbers:
            loss, _ = self._loss(*alone)
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
        index: int,
    ) -> tuple[Tensor, Any]:
        """The loss of one client, and its other outputs."""
        module, log = self.module, self._log
        logged = log.begin()
        tensors: dict[str, Tensor] = {}
        for names, values in zip(self._names, (params, buffers, counters), strict=True):
            tensors.update(zip(names, values, strict=True))
        for name in self._complex:
            tensors[name] = torch.view_as_complex(tensors[name])
        with self._layers(), log.recording(), log.deferring_metrics():
            try:
                output, buffers, counters = functional_call(self._call, tensors, (batch, index))
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
            loss = torch.zeros((), device=params[0].device)
        else:
            loss = loss_of(module, output).reshape(())
        logged.values[LOSS] = detached_copy(loss).float()
        inputs = [(args, kwargs) for _, args, kwargs in logged.inputs]
        return loss, (buffers, counters, logged.values, inputs)


class _TrainingStep(nn.Module):
    """``training_step`` as a ``forward``, so that ``functional_call`` can run it.

    It also returns the buffers after the step, because ``functional_call`` restores those that the
    step replaces.
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
            [as_real(self.module.get_buffer(name)) for name in self._floating],
            [self.module.get_buffer(name) for name in self._counting],
        )


def _metric_in(error: Exception) -> Metric | None:
    """The metric object in whose methods an error was raised, if it was in one."""
    for frame, _ in walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, Metric):
            return owner
    return None
