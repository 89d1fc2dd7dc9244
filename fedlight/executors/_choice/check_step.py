"""The trial of a local optimizer: one step on two clients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedlight.executors.base import Workplace, ran_out_of_memory, trial_task
from fedlight.local_optimizers import LocalRun
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
    if not optimizer.stackable:
        return
    if optimizer.kept and optimizer.client_state:
        raise ValueError(
            f"{name} keeps {', '.join(optimizer.kept)} and has client_state = True; name all that "
            "the client keeps in `kept`, and leave client_state out"
        )
    if optimizer.kept and workplace.state.param_layout.dtype.itemsize < 4:
        raise ValueError(
            f"{optimizer!r} keeps tensors between tasks, and their number of steps, which does not "
            f"fit into {workplace.state.param_layout.dtype}; use parameters of float32, for "
            'example precision="bf16-mixed", or keep="task"'
        )
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
        memory={name: zeros() for name in optimizer.kept},
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
