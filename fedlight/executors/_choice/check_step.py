"""The trial of a local optimizer: one step on two clients."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fedlight.executors.base import Workplace, ran_out_of_memory, trial_task
from fedlight.local_optimizers import LocalOptimizer, LocalRun
from fedlight.local_optimizers.base import ReplacedParamsError


def check_step(workplace: Workplace) -> None:
    """Try one step of the local optimizer on two clients, with zero gradients.

    A step that returns new parameters instead of changing them would never move the model.

    Raises:
        TypeError: ``step`` returns something, or ``finish`` does not return a list.
        ValueError: ``step`` fails, or ``finish`` returns tensors of other shapes.
    """
    optimizer = workplace.optimizer
    name = type(optimizer).__name__
    _check_kept(optimizer, workplace.state.param_layout.dtype)
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
        kept_steps=[0, 0] if optimizer.kept else (),
        shared=zeros() if optimizer.shared_state else [],
        full_gradient=zeros() if optimizer.needs_full_gradient else [],
        tasks=[trial_task(client) for client in range(2)],
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
        raise ValueError(
            f"{name}.step fails for two clients at once ({error}); all its tensors have a leading "
            "client dimension, [n, *shape]. One that works for one client at a time says so with "
            "stackable = False"
        ) from error
    if any(now is not before for now, before in zip(run.params, tensors, strict=False)):
        raise TypeError(
            f"{name}.step puts other tensors into run.params, which would "
            "train nothing: change them in place, for example run.descend(grads) or "
            "run.params[0].copy_(value)"
        )
    if returned is not None:
        raise TypeError(
            f"{name}.step must change run.params in place and return nothing, "
            f"returned {type(returned).__name__}; for example run.descend(grads)"
        )
    run.step, run.evaluate = -1, None
    unknown = [each for each in optimizer.kept if each not in run.memory]
    if unknown:
        rank_zero_warn(
            f"fedlight: {name}.kept names {unknown[0]!r}, for which its first step does not ask "
            f"run.remembered({unknown[0]!r}); it asks for {', '.join(run.memory) or 'nothing'}"
        )
    with torch.no_grad():
        states: Any = optimizer.finish(run)
    if not isinstance(states, list | tuple):
        raise TypeError(
            f"{name}.finish must return a list of tensors, got "
            f"{type(states).__name__}; run.client, if the clients' states stay as they are"
        )
    given = [tuple(state.shape) for state in states]
    if given != ([tuple(copy.shape) for copy in copies] if optimizer.client_state else []):
        raise ValueError(
            f"{name}.finish must give one tensor [n, *shape] for each "
            f"parameter with client_state = True and an empty list without, got shapes {given} for "
            f"two clients and client_state = {optimizer.client_state}"
        )


def _check_kept(optimizer: LocalOptimizer, dtype: torch.dtype) -> None:
    """Check what clients keep between their tasks.

    Raises:
        TypeError: `kept` is no tuple of names.
        ValueError: It names something twice, or there is a client state besides; or the parameters
            have too few bits for the number of steps.
    """
    name, kept = type(optimizer).__name__, optimizer.kept
    # The order counts, which a set does not have.
    if not isinstance(kept, tuple | list) or not all(isinstance(each, str) for each in kept):
        raise TypeError(
            f"{name}.kept must be a tuple of names of run.remembered, such as "
            f'kept = ("velocity",), got {kept!r}'
        )
    if len(set(kept)) < len(kept):
        raise ValueError(f"{name}.kept must name each tensor once, got {kept!r}")
    if optimizer.kept and optimizer.client_state:
        raise ValueError(
            f"{name} keeps {', '.join(optimizer.kept)} and has client_state = True; name all that "
            "the client keeps in `kept`, and leave client_state out"
        )
    if optimizer.kept and dtype.itemsize < 4:
        raise ValueError(
            f"{optimizer!r} keeps tensors between tasks, and their number of steps, which does not "
            f"fit into {dtype}; use parameters of float32, for "
            'example precision="bf16-mixed", or keep="task"'
        )
