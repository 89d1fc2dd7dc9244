"""The base of all local optimizers, and the local run that they work on.

Everything here is written for a stack of n clients: each parameter of shape ``[*shape]`` is a
tensor ``[n, *shape]`` whose first dimension indexes the clients. The sequential executor uses
n = 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedlight._support.memory import sent
from fedlight._support.strategy import Strategy
from fedlight.local_optimizers.rates import ByStep, LocalRate, rate_in_step
from fedlight.parameters import shrinking
from fedlight.randomness import generator

if TYPE_CHECKING:
    import numpy as np
    from lightning import LightningModule
    from lightning.pytorch.utilities.types import LRSchedulerConfig

    from fedlight.types import ServerState, Task


@dataclass(slots=True)
class NativeOptimizer:
    """The module's own optimizer during a local run.

    Attributes:
        optimizers: The optimizer, alone in a list, as ``self.trainer.optimizers`` shows it.
        lr_scheduler_configs: Its schedulers.
        params: The module's trainable parameters, in order.
        steps: Number of steps so far.
        groups: The hyper-parameters of its groups in each step of this run, if they depend on the
            steps that the client has made; else empty.
    """

    optimizers: list[torch.optim.Optimizer]
    lr_scheduler_configs: list[LRSchedulerConfig]
    params: list[nn.Parameter]
    steps: int = 0
    groups: list[list[dict[str, Any]]] = field(default_factory=list)


@dataclass(slots=True)
class LocalRun:
    """The local runs of n clients at one time; each list holds one ``[n, *shape]`` per parameter.

    Only `params` and `memory` are changed in place. The other tensors may share memory with the
    server's model or with another client's state.

    Attributes:
        params: y, the current parameters; a step changes them in place.
        pulled: x_p, the parameters at the start of the local run.
        lr: eta_L of each local run, shape ``[n]``, or one number if all are equal.
        rates: Those of the local runs whose rate depends on the steps made (`ByStep`), from which
            `lr` follows in each step; empty if none does.
        num_steps: K of each local run, shape ``[n]``.
        client: The client state of each local run at its dispatch; empty without
            `LocalOptimizer.client_state`.
        has_state: Whether each client has a state from an earlier task; empty without
            `LocalOptimizer.client_state`.
        kept_steps: The number of steps that each client's kept tensors have seen in its earlier
            tasks; empty without `LocalOptimizer.kept`.
        shared: The server's vector, pulled together with the model; empty without
            `LocalOptimizer.shared_state`.
        full_gradient: The gradient of f_i at x_p over all examples of the client; empty without
            `LocalOptimizer.needs_full_gradient`.
        memory: Tensors with a leading client dimension that the optimizer keeps between steps, by
            name. At the start of each local run it has those of `LocalOptimizer.kept`.
        native: The module's own optimizer with its schedulers (`ModuleOptimizer`).
        tasks: The task of each local run, which names its client; n of them.
        seed: The seed of the run.
        seeds: The seed of each client's run, if the stack holds clients of several runs.
        step: The current local step: 0, 1, ..., K - 1; -1 in `LocalOptimizer.begin` and
            `LocalOptimizer.finish`.
        evaluate: Set by the executor during a step; `gradient` calls it.
        unused: The positions in `params` of the parameters that the loss of this step does not use.
            Their gradient is given as zeros, and the executor undoes changes that a step makes to
            them.
        skipped_steps: The steps skipped so far because ``training_step`` returned None.
    """

    params: list[Tensor]
    pulled: list[Tensor]
    lr: float | Tensor
    num_steps: Tensor
    rates: Sequence[float | ByStep] = ()
    client: list[Tensor] = field(default_factory=list)
    has_state: Sequence[bool] = ()
    kept_steps: Sequence[int] = ()
    shared: list[Tensor] = field(default_factory=list)
    full_gradient: list[Tensor] = field(default_factory=list)
    memory: dict[str, list[Tensor]] = field(default_factory=dict)
    native: NativeOptimizer | None = None
    tasks: Sequence[Task] = ()
    seed: int = 0
    seeds: Sequence[int] = ()
    step: int = -1
    evaluate: Callable[[], list[Tensor]] | None = None
    unused: tuple[int, ...] = ()
    skipped_steps: list[int] = field(default_factory=list)

    @property
    def skipped(self) -> int:
        """Number of steps skipped so far."""
        return len(self.skipped_steps)

    def remembered(self, name: str) -> list[Tensor]:
        """Return tensors like `params`, kept until the end of the local run; zeros at first.

        Those that `LocalOptimizer.kept` names are kept by the client: a local run begins with what
        the client's last one has left.

        If `LocalOptimizer.finish` reads them, call this in `LocalOptimizer.begin` or in the first
        step, since the stack may hold fewer clients later.
        """
        if name not in self.memory:
            self.memory[name] = [torch.zeros_like(param) for param in self.params]
        return self.memory[name]

    def gradient(self, at: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Compute the gradient of each client's loss again, on the batch of this step.

        It can be called any number of times within `LocalOptimizer.step`. The extra pass has no
        side effects: its loss and the values that ``training_step`` logs are not recorded, metric
        objects ignore it, and buffers such as BatchNorm's statistics keep their values from the
        first pass of the step. Random numbers in ``training_step`` (dropout) are drawn again.

        Args:
            at: The parameters at which to compute it, ``[n, *shape]`` each; `params` if None.
                The values of `params` are the same before and after the call.

        Returns:
            One tensor ``[n, *shape]`` per parameter, not to be changed in place.

        Raises:
            RuntimeError: It is called outside of a step, where there is no batch.
        """
        if self.evaluate is None:
            raise RuntimeError(
                "run.gradient() needs the batch of a local step; call it in "
                "LocalOptimizer.step, not in begin or finish"
            )
        if at is None:
            return self.evaluate()
        # The executors read `params`, so the point is copied there. Copying back is exact, whereas
        # adding an offset and subtracting it again would not be.
        kept = [param.clone() for param in self.params]
        torch._foreach_copy_(self.params, list(at))
        try:
            return self.evaluate()
        finally:
            torch._foreach_copy_(self.params, kept)

    def begin_step(self, k: int) -> None:
        """Set the step, and the rates that depend on it."""
        self.step = k
        if not self.rates:
            return
        now = [
            rate_in_step(rate, task, k) if isinstance(rate, ByStep) else rate
            for rate, task in zip(self.rates, self.tasks, strict=True)
        ]
        like = self.params[0]
        self.lr = now[0] if len(set(now)) == 1 else sent(now, like.device, like.dtype)

    def generators(self, name: str) -> list[np.random.Generator]:
        """Make one random generator per client for the current step.

        Each is determined by (seed, `name`, client, visit, step), so a client draws the same
        numbers alone, in any stack and after a resume. See `fedlight.randomness.generator`.

        Args:
            name: The purpose of the numbers; another name gives other numbers.
        """
        seeds = self.seeds or [self.seed] * len(self.tasks)
        return [
            generator(seed, name, task.client_id, task.visit, self.step)
            for seed, task in zip(seeds, self.tasks, strict=True)
        ]

    def first(self, n: int) -> LocalRun:
        """The first n local runs of the stack, as views."""
        if n == len(self.num_steps):
            return self
        return replace(
            self,
            params=[tensor[:n] for tensor in self.params],
            pulled=[tensor[:n] for tensor in self.pulled],
            lr=self.lr if isinstance(self.lr, float) else self.lr[:n],
            num_steps=self.num_steps[:n],
            client=[tensor[:n] for tensor in self.client],
            rates=self.rates[:n],
            has_state=self.has_state[:n],
            kept_steps=self.kept_steps[:n],
            shared=[tensor[:n] for tensor in self.shared],
            full_gradient=[tensor[:n] for tensor in self.full_gradient],
            memory={name: [t[:n] for t in tensors] for name, tensors in self.memory.items()},
            tasks=self.tasks[:n],
            seeds=self.seeds[:n],
        )

    def descend(self, direction: Sequence[Tensor]) -> None:
        """Take the step y <- y - lr * direction, in place."""
        if isinstance(self.lr, float):
            torch._foreach_add_(self.params, list(direction), alpha=-self.lr)
        else:
            rates = [per_client(self.lr, tensor) for tensor in direction]
            torch._foreach_addcmul_(self.params, list(direction), rates, value=-1.0)


class ReplacedParamsError(AttributeError):
    """A step has assigned another list to ``run.params``."""


_slot: Any = vars(LocalRun)["params"]


def _set_params(run: LocalRun, params: list[Tensor]) -> None:
    try:
        _slot.__get__(run)
    except AttributeError:  # the constructor sets them
        _slot.__set__(run, params)
        return
    raise ReplacedParamsError(
        "run.params are changed in place, since another list would have no effect; write "
        "run.descend(direction), or run.params[0].copy_(value) for each of them"
    )


# A slot that is set once: executors hold the same tensors and would not see replacements.
LocalRun.params = property(_slot.__get__, _set_params)  # type: ignore[assignment,misc]


class LocalOptimizer(Strategy, ABC):
    """Local steps y <- y - lr * h(y), starting from y = x_p, written once for all executors.

    A subclass defines `step`. The class attributes below declare what else it needs; all of them
    are off by default. An object is shared by all clients and all runs, so a step must not store
    anything on ``self``: use `LocalRun.remembered` within a task, and `client_state` between tasks.
    """

    client_state: bool = False
    """Whether each client keeps a vector ``[P]`` between its tasks (SCAFFOLD's c_i).

    It is zero at first, read at the dispatch (`LocalRun.client`) and written at the arrival
    (`finish`), whether or not the server uses the update.
    """

    kept: tuple[str, ...] = ()
    """Names of tensors of `LocalRun.remembered` that a client keeps between its tasks.

    They are zero before the client's first task; the clients keep the number of the steps that they
    have seen as well (`LocalRun.kept_steps`). They are read at the dispatch and written at the
    arrival, like a `client_state`, which an optimizer with kept tensors cannot have besides.
    """

    shared_state: bool = False
    """Whether the server keeps a vector ``[P]`` that is pulled with the model (SCAFFOLD's c).

    It is zero at first, read at the dispatch (`LocalRun.shared`) and changed by `absorb`.
    """

    needs_full_gradient: bool = False
    """Whether a local run begins with a pass over all examples of its client (SCAFFOLD)."""

    stackable: bool = True
    """Whether it can process several clients at once; if not, clients run sequentially."""

    lr: LocalRate | None = None
    """eta_L: a number, a function of the pulled version or of the steps that the client has made
    (`ByStep`); None if it has its own rates."""

    def bytes_down(self, size: int, itemsize: int) -> int:
        """Bytes that are sent for the pulled parameters, if the rule itself quantizes them.

        Args:
            size: Number of parameters.
            itemsize: Bytes of one of them.
        """
        return size * itemsize

    def begin(self, run: LocalRun, module: LightningModule) -> None:
        """Prepare for a local run, before its first step.

        Args:
            run: All local runs of the stack.
            module: The module. It has their parameters only in the sequential executor.
        """
        return

    @abstractmethod
    def step(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        """Make one local step of each local run; gradients are not tracked.

        Args:
            run: The local runs that still have steps to make; change `run.params` in place.
            grads: The gradient at `run.params`, one tensor ``[n, *shape]`` per parameter. Do not
                change it in place: two parameters that are only ever added to each other (the two
                biases of an LSTM) share the memory of one gradient.
        """

    def finish(self, run: LocalRun) -> list[Tensor]:
        """Return the clients' new states after the last step; by default they do not change.

        Returns:
            One tensor ``[n, *shape]`` per parameter; an empty list without `client_state`.
        """
        return run.client

    def absorb(self, state: ServerState, num_clients: int) -> ServerState:
        """Return a new version of the server's model with the new `shared` state, if it changes.

        Args:
            state: The new version; `state.used` are the updates that made it.
            num_clients: M, the number of all clients.
        """
        return state


def keeps_state(optimizer: LocalOptimizer) -> bool:
    """Whether clients keep anything between their tasks."""
    return optimizer.client_state or bool(optimizer.kept)


def state_size(optimizer: LocalOptimizer, num_params: int) -> int:
    """How many numbers a client keeps between its tasks.

    Args:
        optimizer: The local optimizer.
        num_params: P, the number of parameters.
    """
    if optimizer.kept:
        return len(optimizer.kept) * num_params + 1  # and the number of steps
    return num_params if optimizer.client_state else 0


def per_client(value: Tensor, like: Tensor) -> Tensor:
    """Reshape one number per client, ``[n]``, so that it broadcasts against ``[n, *shape]``.

    Example:
        >>> per_client(torch.ones(2), torch.zeros(2, 3, 4)).shape
        torch.Size([2, 1, 1])
    """
    return value.view(-1, *[1] * (like.dim() - 1))


def client_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Compute each client's Euclidean norm over a whole list of ``[n, *shape]``; shape ``[n]``.

    Example:
        >>> client_norms([torch.tensor([[3.0], [0.0]]), torch.tensor([4.0, 2.0])])
        tensor([5., 2.])
    """
    # Each client's squares lie in one row: how torch sums columns depends on their number.
    squares = [each.reshape(len(each), -1).square().sum(dim=1) for each in tensors]
    return torch.stack(squares, dim=1).sum(dim=1).sqrt()


def clipped(grads: Sequence[Tensor], max_norm: float) -> Sequence[Tensor]:
    """Scale each client's gradient down to a norm of at most `max_norm` over all parameters."""
    # The small constant is that of torch.nn.utils.clip_grad_norm_.
    scale = shrinking(client_norms(grads) + 1e-6, max_norm)
    return torch._foreach_mul(list(grads), [per_client(scale, grad) for grad in grads])
