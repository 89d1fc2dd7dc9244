"""The choice of an executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fedlight._moment import moment_of
from fedlight.executors._attributes import own_generators, plain_attributes, restored
from fedlight.executors.base import ClientError, Executor, Job, Workplace
from fedlight.executors.sequential import SequentialExecutor
from fedlight.executors.vectorized import VectorizedExecutor
from fedlight.local_optimizers import LocalRun
from fedlight.types import LocalResult, Task

if TYPE_CHECKING:
    from lightning import LightningModule

_SLOW_WHEN_STACKED = (
    nn.modules.conv._ConvNd,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
)


def resolve_executor(executor: Executor | str, workplace: Workplace) -> tuple[Executor, str]:
    """Choose the executor of a fit and set it up.

    ``"auto"`` applies the first rule that fits:

    1. On a CPU, a module with convolutions, recurrent layers or `nn.MultiheadAttention` runs
       sequentially: batched versions of those layers are slower there than one client after
       another.
    2. If the data, the local optimizer or the module cannot be vectorised, the clients run
       sequentially. The module is tried on one stacked step of two clients.
    3. A module whose ``training_step`` draws from the generators of Python or NumPy, changes plain
       attributes of its own (a counter) or asks ``self.trainer`` for something that changes during
       a run runs sequentially: stacked clients would share those, and the result would depend on
       who is in the stack. (Dropout and torch's other random functions have streams of their own.)
    4. Everything else is vectorized.

    The rules look at the module, the data, the local optimizer and the kind of device only, so the
    same fit gets the same executor on every machine of a kind.

    Args:
        executor: "auto", "sequential", "vectorized", or an executor, which is taken as it is.
        workplace: What the local runs share.

    Returns:
        The executor, and the reason for it in words.

    Raises:
        TypeError: The local optimizer's step returns something.
        ValueError: The requested executor cannot run this module, or the local optimizer's step
            fails.
    """
    _check_step(workplace)
    if isinstance(executor, str):
        if executor == "sequential":
            executor = SequentialExecutor()
        elif executor == "vectorized":
            executor = VectorizedExecutor()
    if isinstance(executor, Executor):
        executor.setup(workplace)
        if isinstance(executor, VectorizedExecutor):
            return executor, f"as given{_what_is_shared(workplace, refuse=True)}"
        return executor, "as given"
    sequential = SequentialExecutor()
    slow = _slow_layer(workplace.module)
    if workplace.state.device.type == "cpu" and slow:
        sequential.setup(workplace)
        return sequential, f"stacking {slow} layers does not pay on a CPU"
    vectorized = VectorizedExecutor()
    attributes = plain_attributes(workplace.module)
    try:
        vectorized.setup(workplace)
    except ValueError as error:
        sequential.setup(workplace)
        return sequential, str(error)
    finally:
        restored(workplace.module, attributes)
    shared = _what_is_shared(workplace)
    if shared:
        vectorized.teardown()
        sequential.setup(workplace)
        return sequential, shared.lstrip("; ")
    return vectorized, "the module can be stacked"


def check_executor(executor: object) -> Executor | str:
    """Return `executor` if it is an executor or the name of one.

    Raises:
        ValueError: `executor` is another string.
        TypeError: `executor` is something else.
    """
    if isinstance(executor, Executor):
        return executor
    names = ("auto", "sequential", "vectorized")
    listed = ", ".join(repr(name) for name in names)
    if isinstance(executor, str):
        if executor in names:
            return executor
        raise ValueError(f"executor must be one of {listed} or an Executor, got {executor!r}")
    raise TypeError(
        f"executor must be one of {listed} or an Executor, "
        f"got {executor!r} ({type(executor).__name__})"
    )


def _slow_layer(module: LightningModule) -> str:
    for child in module.modules():
        if isinstance(child, _SLOW_WHEN_STACKED):
            return type(child).__name__
    return ""


def describe_device(device: torch.device) -> str:
    """The device in words, with the name of the card on CUDA."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)


def _what_is_shared(workplace: Workplace, refuse: bool = False) -> str:
    """What the clients of a stack would share, found in one step of one client; "" for nothing.

    Raises:
        ValueError: `refuse` is set, and clients would share random numbers or the loss has no
            gradient. Under ``vmap`` neither raises an error: the stack would silently learn
            nothing.
    """
    module = workplace.module
    probe = SequentialExecutor()
    probe.setup(workplace)
    before, generators = plain_attributes(module), own_generators(module)
    moment = moment_of(module)
    moment.asked.clear()
    holders = np.flatnonzero(workplace.partition.sizes)
    # three clients: a failure may be due to the data of one
    outcome, drawn = None, list[str]()
    for client in dict.fromkeys(holders[[0, len(holders) // 2, -1]].tolist()):
        task = Task(client, 0, 0.0, 1.0, num_steps=1, serial=0, visit=0)
        outcome, drawn = probe.watch(Job(task, workplace.state.read()))
        if isinstance(outcome, LocalResult):
            break
    changed = restored(module, before)
    after = own_generators(module)
    drawn += [name for name, state in generators.items() if after.get(name) != state]
    if isinstance(outcome, ClientError):
        if refuse and "does not require grad" in outcome.reason:
            raise ValueError(
                f"the loss of {type(module).__name__} has no gradient ({outcome.reason}); return "
                "it from training_step without detach() or no_grad()"
            )
        return "" if refuse else f"; training_step fails ({outcome.reason})"
    if moment.asked:
        names = ", ".join(f"self.trainer.{name}" for name in sorted(moment.asked))
        return f"; training_step reads {names}, which stacked clients would share"
    if drawn:
        names = " and ".join(drawn)
        if refuse:
            raise ValueError(
                f"a local step draws from {names}, which stacked clients would share; draw with "
                'torch.rand and its kin, or use executor="sequential"'
            )
        return f"; a local step draws from {names}, which stacked clients would share"
    if changed:
        names = ", ".join(sorted(set(changed)))
        return f"; training_step changes {names}, which stacked clients would share"
    return ""


def _check_step(workplace: Workplace) -> None:
    """Try one step of the local optimizer on two clients, with zero gradients.

    A step that returns new parameters instead of changing them would never move the model.
    """
    optimizer = workplace.optimizer
    if not optimizer.stackable:
        return
    copies = [param.detach().expand(2, *param.shape) for param in workplace.state.params]

    def zeros() -> list[Tensor]:
        return [torch.zeros_like(param) for param in copies]

    run = LocalRun(
        params=[param.clone() for param in copies],
        pulled=copies,
        lr=0.1,
        num_steps=torch.ones(2, dtype=torch.int64, device=workplace.state.device),
        client=zeros() if optimizer.client_state else [],
        shared=zeros() if optimizer.shared_state else [],
        full_gradient=zeros() if optimizer.needs_full_gradient else [],
        tasks=[Task(client, 0, 0.0, 1.0, num_steps=1, serial=0, visit=0) for client in range(2)],
        seed=workplace.seed,
    )
    optimizer.begin(run, workplace.module)
    run.step, run.evaluate = 0, zeros
    try:
        with torch.no_grad():
            returned: object = optimizer.step(run, zeros())
    except Exception as error:
        raise ValueError(
            f"{type(optimizer).__name__}.step fails for two clients at once ({error}); all its "
            "tensors have a leading client dimension, [n, *shape]. One that works for one client "
            "at a time says so with stackable = False"
        ) from error
    if returned is not None:
        raise TypeError(
            f"{type(optimizer).__name__}.step must change run.params in place and return nothing, "
            f"returned {type(returned).__name__}; for example run.descend(grads)"
        )
    run.step, run.evaluate = -1, None
    with torch.no_grad():
        states = optimizer.finish(run)
    given = [tuple(state.shape) for state in states]
    if given != ([tuple(copy.shape) for copy in copies] if optimizer.client_state else []):
        raise ValueError(
            f"{type(optimizer).__name__}.finish must give one tensor [n, *shape] for each "
            f"parameter with client_state = True and an empty list without, got shapes {given} for "
            f"two clients and client_state = {optimizer.client_state}"
        )
