"""What a local optimizer is: the arithmetic of one local run, for one client or a stack of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedlight.checks import positive

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.checks import Rate
    from fedlight.types import ServerState


@dataclass(slots=True)
class LocalRun:
    """A stack of n local runs under way; all lists hold one tensor ``[n, *shape]`` a parameter.

    Attributes:
        params: y, the parameters now; optimizers change them in place.
        pulled: x_p, the parameters at the start; never changed.
        lr: eta_L of each run, shape ``[n]``, or one number where all are equal.
        num_steps: K of each run, shape ``[n]``.
        client: c_i of each run, where the optimizer has client state.
        shared: c pulled with the model, where the optimizer has client state.
        full_gradient: The gradient of f_i at x_p over all the client's examples, where the
            optimizer needs it.
        memory: What the optimizer keeps from step to step; zeros at the start of each run.
        native: The module's own optimizer and its schedulers, where those do the work.
    """

    params: list[Tensor]
    pulled: list[Tensor]
    lr: float | Tensor
    num_steps: Tensor
    client: list[Tensor] = field(default_factory=list)
    shared: list[Tensor] = field(default_factory=list)
    full_gradient: list[Tensor] = field(default_factory=list)
    memory: dict[str, list[Tensor]] = field(default_factory=dict)
    native: Any = None

    def remembered(self, name: str) -> list[Tensor]:
        """A list shaped like the parameters that survives from step to step; zeros at first."""
        if name not in self.memory:
            self.memory[name] = [torch.zeros_like(param) for param in self.params]
        return self.memory[name]

    def first(self, n: int) -> LocalRun:
        """The first n runs of the stack, as views."""
        if n == len(self.num_steps):
            return self
        return LocalRun(
            params=[tensor[:n] for tensor in self.params],
            pulled=[tensor[:n] for tensor in self.pulled],
            lr=self.lr if isinstance(self.lr, float) else self.lr[:n],
            num_steps=self.num_steps[:n],
            client=[tensor[:n] for tensor in self.client],
            shared=[tensor[:n] for tensor in self.shared],
            full_gradient=[tensor[:n] for tensor in self.full_gradient],
            memory={name: [t[:n] for t in tensors] for name, tensors in self.memory.items()},
            native=self.native,
        )

    def descend(self, direction: Sequence[Tensor]) -> None:
        """Y <- y - lr * direction, in place."""
        if isinstance(self.lr, float):
            torch._foreach_add_(self.params, list(direction), alpha=-self.lr)
        else:
            rates = [per_client(self.lr, tensor) for tensor in direction]
            torch._foreach_addcmul_(self.params, list(direction), rates, value=-1.0)


class LocalOptimizer(ABC):
    """y_0 = x_p; y_{k+1} = y_k - lr * h(y_k): one local step, written once for all executors.

    A step works elementwise on lists of tensors with a leading client dimension, in place. What it
    keeps between steps lives in the run and is fresh for each task.
    """

    client_state: bool = False
    """Whether a client keeps a state between its tasks (SCAFFOLD's control variate)."""

    needs_full_gradient: bool = False
    """Whether a run begins with a pass over all the client's examples (SCAFFOLD's option I)."""

    stackable: bool = True
    """Whether it works on several clients at once."""

    lr: Rate | None = None
    """eta_L, a number or a function of the pulled version; None where it has rates of its own."""

    def begin(self, run: LocalRun, module: LightningModule) -> None:
        """Called before the first step; `module` holds the parameters of a run that is alone."""
        return

    @abstractmethod
    def step(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        """One local step of every run of the stack.

        `grads` are not to be changed in place: two parameters that are only ever added to each
        other (the two biases of an LSTM) share the memory of one gradient.
        """

    def finish(self, run: LocalRun) -> list[Tensor]:
        """The clients' new states after the last step; empty where there is none."""
        return []

    def absorb(self, state: ServerState, num_clients: int) -> ServerState:
        """Called with each new version: what its ``used`` updates change in ``shared``."""
        return state


def per_client(value: Tensor, like: Tensor) -> Tensor:
    """A vector ``[n]`` shaped to be multiplied with a tensor ``[n, *shape]``."""
    return value.view(-1, *[1] * (like.dim() - 1))


def clipped(grads: Sequence[Tensor], max_norm: float) -> Sequence[Tensor]:
    """Each client's gradient, scaled down to a norm of at most `max_norm` over all parameters."""
    squares = torch.stack([grad.reshape(len(grad), -1).square().sum(dim=1) for grad in grads])
    norms = squares.sum(dim=0).sqrt()
    scale = (max_norm / (norms + 1e-6)).clamp(max=1.0)
    return torch._foreach_mul(list(grads), [per_client(scale, grad) for grad in grads])


def grad_norm_limit(value: object) -> float | None:
    """`max_grad_norm` where it is None or a number above 0."""
    return None if value is None else positive("max_grad_norm", value)
