"""How the server steps along a pseudo-gradient, and how a version is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedlight._support.checks import Rate, rate, rate_at
from fedlight._support.memory import new_tensor
from fedlight.parameters import weighted_sum
from fedlight.types import ClientUpdate, ServerState, UsedUpdate

OptimizerFactory = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
"""A function of a list of parameters that returns an optimizer: ``partial(Adam, lr=0.01)``."""


class ServerStep:
    """x <- x + server_lr * direction, or one step of an optimizer on the gradient -direction.

    A `BufferedAggregator` has one and sets it up. Another aggregator that uses one must call
    `setup` in its own `setup` and store the `state_dict` in its own state.

    Args:
        server_lr: eta, a number or a function of the version that the step starts from.
        server_optimizer: A function of a list of parameters that returns a
            ``torch.optim.Optimizer``, used instead of `server_lr`; it never sees buffers.

    Raises:
        TypeError: `server_optimizer` is not callable.
        ValueError: Both are given, or `server_lr` is not above 0.

    Example:
        >>> step = ServerStep(server_optimizer=lambda params: torch.optim.SGD(params, 1.0, 0.9))
    """

    def __init__(
        self, server_lr: Rate = 1.0, server_optimizer: OptimizerFactory | None = None
    ) -> None:
        if server_optimizer is not None and server_lr != 1.0:
            raise ValueError(
                f"give server_lr ({server_lr!r}) or server_optimizer, not both: "
                "the optimizer has its own learning rate"
            )
        if server_optimizer is not None and not callable(server_optimizer):
            raise TypeError(
                "server_optimizer must be a function of the parameters that returns an optimizer, "
                "got "
                f"{server_optimizer!r}; for example lambda params: torch.optim.Adam(params, 0.01)"
            )
        self.server_lr = rate("server_lr", server_lr)
        self._factory = server_optimizer
        self._optimizer: torch.optim.Optimizer | None = None
        self._param: torch.nn.Parameter | None = None

    def setup(self, state: ServerState) -> None:
        """Start with a fresh optimizer.

        Raises:
            TypeError: `server_optimizer` does not return an optimizer.
            ValueError: It returns one that needs a closure.
        """
        if self._factory is None:
            return
        self._param = torch.nn.Parameter(state.params.clone())
        self._optimizer = self._factory([self._param])
        if not isinstance(self._optimizer, torch.optim.Optimizer):
            raise TypeError(
                "server_optimizer must return a torch.optim.Optimizer, "
                f"got {type(self._optimizer).__name__}"
            )
        if isinstance(self._optimizer, torch.optim.LBFGS):
            raise ValueError(
                "server_optimizer returns LBFGS, which evaluates the loss several times per step, "
                "but a server has one pseudo-gradient per step; use for example SGD or Adam"
            )

    def lr_at(self, version: int) -> float:
        """The rate of the step from a version; for an optimizer, its current rate."""
        if self._optimizer is not None:
            return float(self._optimizer.param_groups[0]["lr"])
        return rate_at("server_lr", self.server_lr, version)

    def __call__(
        self,
        state: ServerState,
        direction: Tensor | None,
        used: Iterable[UsedUpdate],
        *,
        overwrite: bool = False,
    ) -> ServerState:
        """Return the next version: a step along `direction`, and buffers merged from `used`.

        Args:
            state: The current version.
            direction: The change at rate 1, shape ``[P]``; None if nothing arrived.
            used: The updates used and their weights.
            overwrite: Whether the new parameters may use the memory of `direction`, because it is
                not read again.

        Raises:
            RuntimeError: There is a `server_optimizer`, but `setup` was not called.
            TypeError: `used` holds other objects.
        """
        params = state.params
        if direction is not None:
            params = self._moved(state, direction, overwrite)
        return next_version(state, params, used)

    def _moved(self, state: ServerState, direction: Tensor, overwrite: bool) -> Tensor:
        if self._factory is None:
            lr = rate_at("server_lr", self.server_lr, state.version)
            new = direction if overwrite else new_tensor(state.params.shape, state.params)
            return torch.add(state.params, direction, alpha=lr, out=new)
        if self._optimizer is None or self._param is None:
            # Without this check the given optimizer would silently not be used.
            raise RuntimeError(
                "this ServerStep has a server_optimizer that was never set up: call its "
                "setup(state) in the aggregator's setup(federation, state)"
            )
        with torch.no_grad():
            self._param.copy_(state.params)
        self._param.grad = direction.neg()
        self._optimizer.step()
        return self._param.detach().clone()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state; empty for a rate."""
        return {} if self._optimizer is None else self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the optimizer's state, after `setup`."""
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state)


def pulled(update: ClientUpdate, rule: str) -> ServerState:
    """Return the version that the client of an update started from.

    Args:
        update: The update.
        rule: The rule that needs it and why, for the error message.

    Raises:
        ValueError: The update does not contain it.
    """
    if update.pulled is None:
        raise ValueError(
            f"{rule} needs the version that the client pulled: ClientUpdate(…, pulled=state)"
        )
    return update.pulled


def check_finite(name: str, values: Tensor) -> None:
    """Refuse numbers that are not finite, at the step that computes them.

    Args:
        name: The name of the function that computed them, for the error message.
        values: The numbers.

    Raises:
        ValueError: One of them is nan or infinite.
    """
    if math.isfinite(float(values.sum())):  # one read from the device is nearly always enough
        return
    wrong = int((~torch.isfinite(values)).sum())
    if wrong:
        raise ValueError(
            f"{name} must return finite numbers, but {wrong} of {values.numel()} are nan or "
            "infinite; look for a division by 0 or a rate that is too large"
        )


def next_version(
    state: ServerState, params: Tensor, used: Iterable[UsedUpdate], keep: float = 0.0
) -> ServerState:
    """Return the version after `state`.

    Floating buffers become ``keep * old + (1 - keep) * mean``, where ``mean`` is the weighted mean
    of the clients' buffers; integer buffers take the largest value. The server's rate does not
    apply to buffers.

    Args:
        state: The current version.
        params: The new parameters, shape ``[P]``.
        used: The updates used and their weights.
        keep: The share of the old buffers that is kept.

    Raises:
        TypeError: `used` holds other objects, such as plain updates.
    """
    used = tuple(used)
    for each in used:
        if not isinstance(each, UsedUpdate):
            raise TypeError(
                f"used must hold UsedUpdate(update, weight) objects, got {type(each).__name__}; "
                "for example [UsedUpdate(update, 1 / len(updates)) for update in updates]"
            )
    return ServerState(
        version=state.version + 1,
        params=params,
        buffers=_merged_buffers(state, used, keep),
        counters=_merged_counters(state, used),
        shared=state.shared,
        used=used,
    )


def _merged_buffers(state: ServerState, used: Sequence[UsedUpdate], keep: float) -> Tensor:
    if not state.buffers.numel():
        return state.buffers
    counted = [(update.local.buffers, weight) for update, weight in used if weight > 0]
    if not counted:
        return state.buffers
    block = torch.stack([buffers for buffers, _ in counted])
    total = sum(weight for _, weight in counted)
    mean = weighted_sum(list(block), [weight / total for _, weight in counted])
    merged = mean if keep == 0 else torch.lerp(mean, state.buffers, keep)
    # Constants (a causal mask with -inf, a table) keep their bits.
    return torch.where((block == state.buffers).all(dim=0), state.buffers, merged)


def _merged_counters(state: ServerState, used: Sequence[UsedUpdate]) -> Tensor:
    if not state.counters.numel() or not used:
        return state.counters
    block = torch.stack([state.counters, *(update.local.counters for update, _ in used)])
    return block.amax(dim=0)
