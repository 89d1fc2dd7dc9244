"""The choice of an executor."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlight._module.attributes import own_generators
from fedlight._module.kept import Change, Kept, Untouchable
from fedlight._module.moment import moment_of
from fedlight.executors.base import (
    ClientError,
    Executor,
    Job,
    Outcome,
    Workplace,
    ran_out_of_memory,
)
from fedlight.executors.processes import ProcessExecutor, cores_to_use
from fedlight.executors.sequential import SequentialExecutor
from fedlight.executors.vectorized import VectorizedExecutor
from fedlight.local_optimizers import LocalOptimizer, LocalRun
from fedlight.local_optimizers.base import ReplacedParamsError
from fedlight.types import LocalResult, Task

if TYPE_CHECKING:
    from lightning import LightningModule

# Their fused operators have no rule for `vmap`, which loops over the clients or fails.
_SLOW_EVERYWHERE = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
_SLOW_ON_A_CPU = (nn.modules.conv._ConvNd,)

_FALLS_BACK = re.compile(r"batching rule for (\S+?)\.? ")
"""How torch says that ``vmap`` has to compute an operator for one client after another."""

_KEEP_INSTEAD = (
    'stacked clients would share them: write executor="sequential", or register_buffer in '
    "__init__, since each client has buffers of its own"
)


class _Draws(ValueError):
    """Clients would share random numbers."""


def resolve_executor(executor: Executor | str, workplace: Workplace) -> tuple[Executor, str]:
    """Choose the executor of a fit and set it up.

    ``"auto"`` applies the first rule that fits:

    1. A module with recurrent layers or `nn.MultiheadAttention` runs sequentially, on a CPU one
       with convolutions too: batched versions of those layers are slower than one client after
       another, or there are none. On other devices the same holds for a module one of whose
       operators ``vmap`` can only compute for one client after another (attention of one's own).
    2. If the data, the local optimizer or the module cannot be vectorised, the clients run
       sequentially. The module is tried on one stacked step of two clients.
    3. A module whose ``training_step`` draws from the generators of Python or NumPy, changes
       attributes of its own (a counter, tensors for the next step) or asks ``self.trainer`` for
       something that changes during a run runs sequentially: stacked clients would share those, and
       the result would depend on who is in the stack. (Dropout and torch's other random functions
       have streams of their own.)
    4. Everything else is vectorized.

    The rules look at the module, the data, the local optimizer and the kind of device only, so the
    same fit gets the same executor on every machine of a kind.

    Args:
        executor: "auto", "sequential", "vectorized", "processes", or an executor, which is taken
            as it is.
        workplace: What the local runs share.

    Returns:
        The executor, and the reason for it in words.

    Raises:
        TypeError: The local optimizer's step returns something.
        ValueError: The requested executor cannot run this module, or the local optimizer's step
            fails. A vectorized one refuses a module whose steps go on from tensors that the step
            before has left on it.
    """
    try:
        _check_step(workplace)
    except Exception as error:
        if not ran_out_of_memory(error):  # two clients may have no room where one has
            raise
    if isinstance(executor, str):
        if executor == "sequential":
            executor = SequentialExecutor()
        elif executor == "vectorized":
            executor = VectorizedExecutor()
        elif executor == "processes":
            executor = ProcessExecutor()
    if isinstance(executor, VectorizedExecutor):
        shared, draws = "", None
        try:
            if workplace.optimizer.stackable:
                shared = _what_is_shared(workplace, refuse=True)
        except _Draws as error:
            draws = error
        kept = Kept(workplace.module)
        try:
            executor.setup(workplace)  # may name the very function that draws
        finally:
            kept.restore()
        if draws is not None:
            raise draws
        return executor, f"as given{shared}"
    if isinstance(executor, Executor):
        executor.setup(workplace)
        return executor, "as given"
    sequential = SequentialExecutor()
    on_cpu = workplace.state.device.type == "cpu"
    slow = _layer(workplace.module, _SLOW_EVERYWHERE)
    if slow or on_cpu:
        slow = slow or _layer(workplace.module, _SLOW_ON_A_CPU)
    if slow:
        sequential.setup(workplace)
        where = " on a CPU" if on_cpu else ""
        cores = cores_to_use() if on_cpu else 1
        faster = f'; on {cores} cores executor="processes" may be faster' if cores > 1 else ""
        return sequential, f"stacking {slow} layers does not pay{where}{faster}"
    vectorized = VectorizedExecutor()
    kept = Kept(workplace.module)
    try:
        with nullcontext(list[str]()) if on_cpu else _operators_in_a_loop() as looped:
            vectorized.setup(workplace)
    except ValueError as error:
        kept.restore()
        sequential.setup(workplace)
        return sequential, _kept_tensors(workplace) or str(error)
    kept.restore()
    if looped and not on_cpu:
        vectorized.teardown()
        sequential.setup(workplace)
        return sequential, f"vmap computes {looped[0]} for one client after another"
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
    names = ("auto", "sequential", "vectorized", "processes")
    listed = ", ".join(repr(name) for name in names)
    if isinstance(executor, str):
        if executor in names:
            return executor
        raise ValueError(f"executor must be one of {listed} or an Executor, got {executor!r}")
    raise TypeError(
        f"executor must be one of {listed} or an Executor, "
        f"got {executor!r} ({type(executor).__name__})"
    )


def _layer(module: LightningModule, kinds: tuple[type[nn.Module], ...]) -> str:
    """The name of the first layer of some kinds, or ""."""
    return next((type(c).__name__ for c in module.modules() if isinstance(c, kinds)), "")


@contextmanager
def _operators_in_a_loop() -> Iterator[list[str]]:
    """Collect the operators for which torch warns that ``vmap`` has no rule; pass on the rest."""
    found: list[str] = []
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield found
    finally:
        for each in caught:
            match = _FALLS_BACK.search(str(each.message))
            if match:
                found.append(match[1])
            else:
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def describe_device(device: torch.device) -> str:
    """The device in words, with the name of the card on CUDA."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)


def _what_is_shared(workplace: Workplace, refuse: bool = False) -> str:
    """What the clients of a stack would share, found in one step of one client; "" for nothing.

    Raises:
        ValueError: `refuse` is set, and the stack would be wrong: the loss has no gradient (under
            ``vmap`` this raises no error, and nothing would be learned), clients would share random
            numbers, or the step goes on from tensors that the step before has left on the module.
    """
    module = workplace.module
    probe = SequentialExecutor()
    probe.setup(workplace)
    generators = own_generators(module)
    moment = moment_of(module)
    moment.asked.clear()
    kept = Kept(module)
    try:
        job, outcome, drawn = _one_step(probe, workplace)
        after = own_generators(module)
        drawn += [name for name, state in generators.items() if after.get(name) != state]
        changes = kept.changes()
        if changes and not drawn and isinstance(outcome, LocalResult):
            # What only a first step makes (a mask, a library's setting) is no state: look again.
            settled = Kept(module)
            job, outcome, _ = _one_step(probe, workplace)
            changes = settled.changes()
        tensors = [each for each in changes if each.tensors]
        if refuse and isinstance(outcome, LocalResult) and _reads(probe, job, tensors):
            raise ValueError(f"{_what_it_keeps(module, tensors)}; {_KEEP_INSTEAD}")
    finally:
        kept.restore()
    if isinstance(outcome, ClientError):
        if refuse and "has no gradient" in outcome.reason:
            raise ValueError(outcome.reason.removeprefix("ValueError: "))
        return "" if refuse else f"; training_step fails ({outcome.reason})"
    if moment.asked:
        names = ", ".join(f"self.trainer.{name}" for name in sorted(moment.asked))
        return f"; training_step reads {names}, which stacked clients would share"
    if drawn:
        names = " and ".join(drawn)
        if refuse:
            raise _Draws(
                f"a local step draws from {names}, which stacked clients would share; draw with "
                'torch.rand and its kin, or use executor="sequential"'
            )
        return f"; a local step draws from {names}, which stacked clients would share"
    if tensors:
        return f"; {_what_it_keeps(module, tensors)}, which stacked clients would share"
    if changes:
        names = ", ".join(each.name for each in changes)
        return f"; training_step changes {names}, which stacked clients would share"
    return ""


def _one_step(probe: SequentialExecutor, workplace: Workplace) -> tuple[Job, Outcome, list[str]]:
    """A step of the first of three clients with which it succeeds, and what it drew from."""
    holders = np.flatnonzero(workplace.partition.sizes)
    # three clients: a failure may be due to the data of one
    for client in dict.fromkeys(holders[[0, len(holders) // 2, -1]].tolist()):
        job = Job(Task(client, 0, 0.0, 1.0, num_steps=1, serial=0, visit=0), workplace.state.read())
        outcome, drawn = probe.watch(job)
        if isinstance(outcome, LocalResult):
            break
    return job, outcome, drawn


def _reads(probe: SequentialExecutor, job: Job, left: Sequence[Change]) -> bool:
    """Whether a step reads the tensors that the step before has left, or adds to them."""
    if any(not isinstance(each.owner.get(each.key), Tensor) for each in left):
        return True  # a list or the like, whose tensors it adds to
    for each in left:
        each.owner[each.key] = Untouchable()
    return bool(left) and isinstance(probe.watch(job)[0], ClientError)


def _kept_tensors(workplace: Workplace) -> str:
    """What to say of a module that cannot be stacked because its step keeps tensors; or ""."""
    if not (workplace.optimizer.stackable and workplace.examples.stackable):
        return ""  # there is another reason, and no need to try a step
    shared = _what_is_shared(workplace).lstrip("; ")
    return shared if "keeps tensors" in shared else ""


def _what_it_keeps(module: LightningModule, left: Sequence[Change]) -> str:
    names = ", ".join(f"self.{each.name}" for each in left)
    return f"training_step of {type(module).__name__} keeps tensors in {names}"


def _fails(optimizer: LocalOptimizer, error: Exception) -> ValueError:
    return ValueError(
        f"{type(optimizer).__name__}.step fails for two clients at once ({error}); all its "
        "tensors have a leading client dimension, [n, *shape]. One that works for one client "
        "at a time says so with stackable = False"
    )


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
    tensors = list(run.params)
    try:
        with torch.no_grad():
            returned: object = optimizer.step(run, zeros())
    except ReplacedParamsError:
        raise
    except Exception as error:
        if ran_out_of_memory(error):
            raise
        raise _fails(optimizer, error) from error
    if any(now is not before for now, before in zip(run.params, tensors, strict=False)):
        raise TypeError(
            f"{type(optimizer).__name__}.step puts other tensors into run.params, which would "
            "train nothing: change them in place, for example run.descend(grads) or "
            "run.params[0].copy_(value)"
        )
    if returned is not None:
        raise TypeError(
            f"{type(optimizer).__name__}.step must change run.params in place and return nothing, "
            f"returned {type(returned).__name__}; for example run.descend(grads)"
        )
    run.step, run.evaluate = -1, None
    with torch.no_grad():
        states: Any = optimizer.finish(run)
    if not isinstance(states, list | tuple):
        raise TypeError(
            f"{type(optimizer).__name__}.finish must return a list of tensors, got "
            f"{type(states).__name__}; run.client, if the clients' states stay as they are"
        )
    given = [tuple(state.shape) for state in states]
    if given != ([tuple(copy.shape) for copy in copies] if optimizer.client_state else []):
        raise ValueError(
            f"{type(optimizer).__name__}.finish must give one tensor [n, *shape] for each "
            f"parameter with client_state = True and an empty list without, got shapes {given} for "
            f"two clients and client_state = {optimizer.client_state}"
        )
