"""The choice of an executor: the rule of "auto", and the check of one that was asked for."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from fedlight._module.snapshot import Snapshot
from fedlight.executors._choice.check_step import check_step
from fedlight.executors._choice.trial import Trial, try_step
from fedlight.executors._remote.fork import cores_to_use
from fedlight.executors.base import Executor, NoGradientError, Workplace, ran_out_of_memory
from fedlight.executors.processes import ProcessExecutor
from fedlight.executors.sequential import SequentialExecutor
from fedlight.executors.vectorized import VectorizedExecutor

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

_AS_GIVEN = "as given"
_NAMED: dict[str, Callable[[], Executor]] = {
    "sequential": SequentialExecutor,
    "vectorized": VectorizedExecutor,
    "processes": ProcessExecutor,
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The executor of a fit, set up.

    Attributes:
        executor: The executor.
        reason: Why it was chosen, in words. Nothing is decided by them.
        shares: Whether stacked clients would share something that the step of the module reads or
            changes. False if the module was not tried.
        kept: The attributes that steps change and no later step reads, by path and name.
    """

    executor: Executor
    reason: str
    shares: bool = False
    kept: frozenset[tuple[str, str]] = frozenset()


def resolve_executor(executor: Executor | str, workplace: Workplace) -> Choice:
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
        executor: "auto", "sequential", "vectorized", "processes", or an executor.
        workplace: The module, the data and the settings of the local runs.

    Returns:
        The choice.

    Raises:
        TypeError: The step of the local optimizer returns something.
        ValueError: The requested executor cannot run this module, the local optimizer's step
            fails, or the steps of the module go on from what the step before has left on it. A
            vectorized executor refuses also steps that only add to tensors that they keep.
    """
    if workplace.settings is not None:  # here, since every process that computes comes by
        workplace.settings.join(workplace.optimizer)
    try:
        check_step(workplace)
    except Exception as error:
        if not ran_out_of_memory(error):  # one client may have room even if two have not
            raise
    if isinstance(executor, str) and executor != "auto":
        executor = _NAMED[executor]()
    optimizer = workplace.optimizer
    if isinstance(executor, Executor) and (
        executor.tries_itself
        or (isinstance(executor, VectorizedExecutor) and not optimizer.stackable)
    ):
        executor.setup(workplace)  # it refuses the optimizer, or tries the module itself
        return Choice(executor, _AS_GIVEN, kept=executor.kept)
    if isinstance(executor, SequentialExecutor):
        return _one_by_one(workplace, _AS_GIVEN, executor)
    slow = _slow_layers(workplace) if executor == "auto" else ""
    if slow:
        return _one_by_one(workplace, slow)
    if isinstance(executor, Executor) and not isinstance(executor, VectorizedExecutor):
        executor.setup(workplace)
        return Choice(executor, _AS_GIVEN)
    if executor == "auto" and not (optimizer.stackable and workplace.examples.stackable):
        return _chosen(workplace, None)
    trial = try_step(workplace)
    if isinstance(executor, VectorizedExecutor):
        choice = _stacked_as_given(executor, workplace, trial)
    elif trial.refusal():
        raise ValueError(trial.refusal())
    else:
        choice = _chosen(workplace, trial)
    return replace(choice, kept=trial.kept)


def _stacked_as_given(executor: VectorizedExecutor, workplace: Workplace, trial: Trial) -> Choice:
    """Set up an executor that stacks clients, unless the stack would compute something wrong.

    Raises:
        ValueError: The loss has no gradient (under ``vmap`` this raises no error, and nothing would
            be learned), clients would share random numbers, or the step goes on from tensors that
            the step before has left on the module.
    """
    if trial.rereads and not trial.reads:
        raise ValueError(f"{trial.keeps_in_words()}; {_KEEP_INSTEAD}")
    if trial.refusal():
        raise ValueError(trial.refusal())
    if trial.failure is not None:
        cause = trial.failure.__cause__
        if isinstance(cause, NoGradientError):
            raise cause
    _set_up(executor, workplace)  # before the next error: its own may name the function that draws
    if not trial.shares:
        return _stacked(executor, _AS_GIVEN)
    if trial.draws and not trial.asks:
        raise ValueError(
            f'{trial.in_words()}; draw with torch.rand and the like, or use executor="sequential"'
        )
    return _stacked(executor, f"{_AS_GIVEN}; {trial.in_words()}", shares=True)


def _slow_layers(workplace: Workplace) -> str:
    """Why layers of the module are slower in a stack; "" if none is."""
    on_cpu = workplace.state.device.type == "cpu"
    slow = _layer(workplace.module, _SLOW_EVERYWHERE)
    if on_cpu:
        slow = slow or _layer(workplace.module, _SLOW_ON_A_CPU)
    if not slow:
        return ""
    where = " on a CPU" if on_cpu else ""
    cores = cores_to_use() if on_cpu else 1
    faster = f'; on {cores} cores executor="processes" may be faster' if cores > 1 else ""
    return f"stacking {slow} layers does not pay{where}{faster}"


def _chosen(workplace: Workplace, trial: Trial | None) -> Choice:
    """The choice of "auto".

    Args:
        workplace: The module, the data and the settings of the local runs.
        trial: The trial of the module; None if data or optimizer cannot be stacked anyway.
    """
    on_cpu = workplace.state.device.type == "cpu"
    vectorized = VectorizedExecutor()
    try:
        with nullcontext(list[str]()) if on_cpu else _operators_in_a_loop() as looped:
            _set_up(vectorized, workplace)
    except ValueError as error:
        reason = str(error)
        # If data and optimizer can be stacked, it is the step that cannot.
        if trial is not None and trial.failure is None and trial.keeps:
            reason = trial.in_words()
        return _one_by_one(workplace, reason)
    if looped:
        vectorized.teardown()
        return _one_by_one(workplace, f"vmap computes {looped[0]} for one client after another")
    if trial is not None and (trial.shares or trial.failure is not None):
        vectorized.teardown()
        return _one_by_one(workplace, trial.in_words())
    return _stacked(vectorized, "the module can be stacked")


def _stacked(executor: VectorizedExecutor, reason: str, shares: bool = False) -> Choice:
    """The choice of an executor that stacks clients; the reason says if bits depend on company."""
    if not executor.independent:
        causes = ", ".join(executor.dependence)
        reason += f"; last bits depend on who is stacked together, because of {causes}"
    return Choice(executor, reason, shares)


def _one_by_one(
    workplace: Workplace, reason: str, sequential: SequentialExecutor | None = None
) -> Choice:
    """The executor that runs any module; its first local run is the trial.

    So a hook of the module is called as often as by Lightning. Only if that run changes the module,
    the module is tried.
    """
    sequential = SequentialExecutor() if sequential is None else sequential
    sequential.setup(workplace)
    sequential.changes_found = partial(_check_changes, workplace)
    return Choice(sequential, reason)


def _check_changes(workplace: Workplace) -> None:
    """Refuse a module whose steps read what earlier ones have left on it.

    Raises:
        ValueError: They do.
    """
    trial = try_step(workplace)
    if trial.refusal():
        raise ValueError(trial.refusal())
    if workplace.settings is not None:
        workplace.settings.ignore(trial.kept)


def _set_up(executor: VectorizedExecutor, workplace: Workplace) -> None:
    """Set an executor up, and undo the changes that its trial step has made to the module."""
    before = Snapshot(workplace.module)
    try:
        executor.setup(workplace)
    finally:
        before.restore()


def check_executor(executor: object) -> Executor | str:
    """Return `executor` if it is an executor or the name of one.

    Raises:
        ValueError: `executor` is another string.
        TypeError: `executor` is something else.
    """
    if isinstance(executor, Executor):
        return executor
    names = ("auto", *_NAMED)
    if isinstance(executor, str) and executor in names:
        return executor
    listed = ", ".join(map(repr, names))
    words = f"executor must be one of {listed} or an Executor, got {executor!r}"
    if isinstance(executor, str):
        raise ValueError(words)
    raise TypeError(f"{words} ({type(executor).__name__})")


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
