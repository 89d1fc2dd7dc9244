"""Which executor to use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from fedlight.executors.base import Executor, Workplace
from fedlight.executors.sequential import SequentialExecutor
from fedlight.executors.vectorized import VectorizedExecutor

if TYPE_CHECKING:
    from lightning import LightningModule

_SLOW_WHEN_STACKED = (
    nn.modules.conv._ConvNd,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
)


def resolve_executor(executor: Executor | str, workplace: Workplace) -> tuple[Executor, str]:
    """The executor for a run, set up, and why it was chosen.

    ``"auto"`` goes by these rules, in this order:

    1. on a CPU, a module with convolutions, recurrent or attention layers runs sequentially:
       stacking those does not pay there;
    2. what cannot be vectorised (the data, the local optimizer, or the module, which is tried on
       one stacked step) runs sequentially;
    3. all else is vectorized.

    Raises:
        ValueError: An executor was asked for that cannot run this module.
    """
    if isinstance(executor, str):
        if executor == "sequential":
            executor = SequentialExecutor()
        elif executor == "vectorized":
            executor = VectorizedExecutor()
    if isinstance(executor, Executor):
        executor.setup(workplace)
        return executor, "as given"
    sequential = SequentialExecutor()
    slow = _slow_layer(workplace.module)
    if workplace.state.device.type == "cpu" and slow:
        sequential.setup(workplace)
        return sequential, f"stacking {slow} layers does not pay on a CPU"
    vectorized = VectorizedExecutor()
    try:
        vectorized.setup(workplace)
    except ValueError as error:
        sequential.setup(workplace)
        return sequential, str(error)
    return vectorized, "the module can be stacked"


def check_executor(executor: object) -> Executor | str:
    """`executor` where it is an executor or the name of one.

    Raises:
        ValueError: It is another string.
        TypeError: It is something else.
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
    """The device in words: the card's name on CUDA."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)
