"""What aggregators share: the buffer of updates, and the step along a pseudo-gradient."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedlight.checks import Rate, one_of, positive, positive_int, rate, rate_at
from fedlight.events import to_ticks
from fedlight.parameters import block_of
from fedlight.types import ClientUpdate, Federation, ServerState, UsedUpdate

if TYPE_CHECKING:
    from numpy.typing import NDArray

OptimizerFactory = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


class UpdateBuffer:
    """Updates received and not used yet, in their order of arrival.

    Args:
        size: m, full after so many updates; None for "until the end of the round".
    """

    def __init__(self, size: int | None) -> None:
        self.size = None if size is None else positive_int("buffer_size", size)
        self.updates: list[ClientUpdate] = []

    def add(self, update: ClientUpdate) -> bool:
        """Store an update; True when the buffer is full."""
        self.updates.append(update)
        return self.size is not None and len(self.updates) >= self.size

    @property
    def full(self) -> bool:
        """Whether there are as many updates as it takes."""
        return self.size is not None and len(self.updates) >= self.size

    def discard(self, updates: Collection[ClientUpdate]) -> bool:
        """Take some updates out; True when the buffer is full still."""
        self.updates = [update for update in self.updates if update not in updates]
        return self.full

    def drain(self) -> list[ClientUpdate]:
        """All updates; the buffer is empty then."""
        updates, self.updates = self.updates, []
        return updates

    def clear(self) -> None:
        """Forget all updates."""
        self.updates = []


class ServerStep:
    """x <- x + server_lr * direction, or one step of an optimizer on the gradient -direction.

    Args:
        server_lr: eta, a number or a function of the version that the step starts from.
        server_optimizer: A function of a list of parameters giving a ``torch.optim.Optimizer``,
            in place of `server_lr`; it never sees buffers.

    Raises:
        TypeError: `server_optimizer` is no function.
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
                "the optimizer has a learning rate of its own"
            )
        if server_optimizer is not None and not callable(server_optimizer):
            raise TypeError(
                "server_optimizer must be a function of the parameters giving an optimizer, got "
                f"{server_optimizer!r}; for example lambda params: torch.optim.Adam(params, 0.01)"
            )
        self.server_lr = rate("server_lr", server_lr)
        self._factory = server_optimizer
        self._optimizer: torch.optim.Optimizer | None = None
        self._param: torch.nn.Parameter | None = None

    def setup(self, state: ServerState) -> None:
        """Start with fresh optimizer state.

        Raises:
            TypeError: `server_optimizer` gives no optimizer.
            ValueError: It gives one that needs a closure.
        """
        if self._factory is None:
            return
        self._param = torch.nn.Parameter(state.params.clone())
        self._optimizer = self._factory([self._param])
        if not isinstance(self._optimizer, torch.optim.Optimizer):
            raise TypeError(
                "server_optimizer must give a torch.optim.Optimizer, "
                f"got {type(self._optimizer).__name__}"
            )
        if isinstance(self._optimizer, torch.optim.LBFGS):
            raise ValueError(
                "server_optimizer gives LBFGS, which calls the loss several times a step; "
                "a server has one pseudo-gradient a step: give SGD, Adam or the like"
            )

    def lr_at(self, version: int) -> float:
        """The rate of the step from a version; of an optimizer, the rate that it has now."""
        if self._optimizer is not None:
            return float(self._optimizer.param_groups[0]["lr"])
        return rate_at("server_lr", self.server_lr, version)

    def __call__(
        self, state: ServerState, direction: Tensor | None, used: Sequence[UsedUpdate]
    ) -> ServerState:
        """The next version: a step along `direction`, and buffers merged from the updates used.

        Args:
            state: The present version.
            direction: What is added at rate 1, shape ``[P]``; None where nothing arrived.
            used: The updates used and the weights given to them.
        """
        params = state.params
        if direction is not None:
            params = self._moved(state, direction)
        return next_version(state, params, used)

    def _moved(self, state: ServerState, direction: Tensor) -> Tensor:
        if self._optimizer is None or self._param is None:
            lr = rate_at("server_lr", self.server_lr, state.version)
            return torch.add(state.params, direction, alpha=lr)
        with torch.no_grad():
            self._param.copy_(state.params)
        self._param.grad = direction.neg()
        self._optimizer.step()
        return self._param.detach().clone()

    def __str__(self) -> str:
        """As the last arguments of an aggregator; nothing where they are the defaults."""
        if self._factory is not None:
            return f", server_optimizer={self._factory}"
        return "" if self.server_lr == 1 else f", server_lr={self.server_lr}"

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state."""
        return {} if self._optimizer is None else self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the optimizer's state."""
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state)


def next_version(
    state: ServerState, params: Tensor, used: Sequence[UsedUpdate], keep: float = 0.0
) -> ServerState:
    """The version after `state`.

    Floating buffers become ``keep * old + (1 - keep) * mean`` with the mean of the clients' buffers
    by their weights; integer ones take the largest value. Neither sees a server learning rate.

    Args:
        state: The present version.
        params: The new parameters.
        used: The updates used and their weights.
        keep: Share of the old buffers that stays.
    """
    return ServerState(
        version=state.version + 1,
        params=params,
        buffers=_merged_buffers(state, used, keep),
        counters=_merged_counters(state, used),
        shared=state.shared,
        used=tuple(used),
    )


def weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Sum of w_i * t_i in the order given, as one matrix product: m * P work."""
    block = block_of(tensors)
    return block.new_tensor(weights) @ block


def client_importance(name: str, federation: Federation) -> NDArray[np.float64]:
    """p_i, shape ``[M]``: 1/M for "uniform", n_i / sum of n for "examples"."""
    if name == "uniform":
        return np.full(federation.num_clients, 1.0 / federation.num_clients)
    total = float(federation.num_examples.sum())
    return federation.num_examples.astype(np.float64) / total


def check_client_weights(value: object) -> str:
    """`client_weights` where it is "examples" or "uniform"."""
    return one_of("client_weights", value, ("examples", "uniform"))


def check_interval(value: object) -> float:
    """`interval` as virtual time of at least one tick."""
    interval = positive("interval", value)
    if to_ticks(interval) < 1:
        raise ValueError(f"interval must be at least 1e-9, the clock's resolution, got {value!r}")
    return interval


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
    # Constants (a causal mask with -inf, a table) stay as they are, to the bit.
    return torch.where((block == state.buffers).all(dim=0), state.buffers, merged)


def _merged_counters(state: ServerState, used: Sequence[UsedUpdate]) -> Tensor:
    if not state.counters.numel() or not used:
        return state.counters
    block = torch.stack([state.counters, *(update.local.counters for update, _ in used)])
    return block.amax(dim=0)
