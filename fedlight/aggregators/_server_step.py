"""How the server steps along a pseudo-gradient, and how a version is made."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedlight._support.checks import Rate, rate, rate_at, shown
from fedlight._support.flat_layout import FlatLayout
from fedlight._support.memory import new_tensor
from fedlight.parameters import weighted_sum
from fedlight.types import ClientUpdate, ServerState, UsedUpdate


class ServerParams(list[nn.Parameter]):
    """The parameters that a server optimizer gets: a list in the module's order, with names.

    Each has its true shape. They share the memory of one vector.

    Args:
        named: The parameters by name.

    Attributes:
        names: Their names in the module, in the same order.

    Example:
        >>> layer = nn.Linear(3, 1)
        >>> params = ServerParams(dict(layer.named_parameters()))
        >>> params.matrices.names, params.others.names
        (('weight',), ('bias',))
        >>> params.where(lambda name, param: name != "bias").names
        ('weight',)
    """

    def __init__(self, named: Mapping[str, nn.Parameter]) -> None:
        super().__init__(named.values())
        self.names = tuple(named)

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """Pairs of name and parameter, which torch's optimizers take as well."""
        return list(zip(self.names, self, strict=True))

    def where(self, chosen: Callable[[str, nn.Parameter], bool]) -> ServerParams:
        """Those for which a function of name and parameter is true."""
        return ServerParams({name: param for name, param in self.named() if chosen(name, param)})

    @property
    def matrices(self) -> ServerParams:
        """Those with two dimensions."""
        return self.where(lambda _, param: param.dim() == 2)

    @property
    def others(self) -> ServerParams:
        """Those without two dimensions."""
        return self.where(lambda _, param: param.dim() != 2)


OptimizerFactory = Callable[[ServerParams], Optimizer | Sequence[Optimizer]]
"""A function of a list of parameters that returns an optimizer, or several that share them."""


class ServerStep:
    """x <- x + server_lr * direction, or one step of an optimizer on the gradient -direction.

    A `BufferedAggregator` has one and sets it up. Another aggregator that uses one must call
    `setup` in its own `setup` and store the `state_dict` in its own state.

    Args:
        server_lr: eta, a number or a function of the version that the step starts from.
        server_optimizer: A function of the parameters that returns a ``torch.optim.Optimizer``,
            used instead of `server_lr`, or several, each for some of the parameters. It gets a list
            of parameters in their true shapes, which also knows their names (`ServerParams`); it
            never sees buffers.

    Raises:
        TypeError: `server_optimizer` is not callable.
        ValueError: Both are given, or `server_lr` is not above 0.

    Example:
        >>> step = ServerStep(server_optimizer=lambda params: torch.optim.SGD(params, 1.0, 0.9))
        >>> step = ServerStep(
        ...     server_optimizer=lambda params: [
        ...         torch.optim.Muon(params.matrices, lr=0.02),
        ...         torch.optim.AdamW(params.others, lr=1e-3),
        ...     ]
        ... )
    """

    def __init__(
        self, server_lr: Rate = 1.0, server_optimizer: OptimizerFactory | None = None
    ) -> None:
        self.server_lr = rate("server_lr", server_lr)
        if server_optimizer is not None and self.server_lr != 1.0:
            raise ValueError(
                f"give server_lr ({server_lr!r}) or server_optimizer, not both: "
                "the optimizer has its own learning rate"
            )
        if server_optimizer is not None and not _makes_optimizers(server_optimizer):
            raise TypeError(
                "server_optimizer must be a function of the parameters that returns an optimizer, "
                f"got {shown(server_optimizer)}; for example "
                "lambda params: torch.optim.Adam(params, 0.01)"
            )
        self._factory = server_optimizer
        self._optimizers: list[Optimizer] = []
        # The parameters and their gradients are views of these.
        self._vector: Tensor | None = None
        self._gradient: Tensor | None = None
        self._layers: list[tuple[nn.Parameter, Tensor, Tensor]] = []

    def setup(self, state: ServerState, layout: FlatLayout | None = None) -> None:
        """Start with fresh optimizers.

        Args:
            state: The version that the run starts from.
            layout: Names and shapes of its parameters (`Federation.layout`); None to show them to
                `server_optimizer` as one vector ``[P]``.

        Raises:
            TypeError: `server_optimizer` does not return an optimizer.
            ValueError: It returns one that needs a closure, or none for some of the parameters.
        """
        if self._factory is None:
            return
        self._vector = state.params.clone()
        self._gradient = torch.zeros_like(self._vector)
        names: Sequence[str] = ("params",)
        views, gradients = [self._vector], [self._gradient]
        if layout is not None:
            names, views = layout.names, layout.views(self._vector)
            gradients = layout.views(self._gradient)
        params = ServerParams(dict(zip(names, map(nn.Parameter, views), strict=True)))
        self._layers = list(zip(params, views, gradients, strict=True))
        try:
            made = self._factory(params)
        except Exception as error:
            error.add_note(
                f"It was raised in server_optimizer, which got {len(params)} parameters: "
                f"{', '.join(params.names[:5])}{', …' if len(params) > 5 else ''}; Muon takes "
                "those of params.matrices"
            )
            raise
        self._optimizers = [made] if isinstance(made, Optimizer) else _several(made)
        if any(isinstance(each, torch.optim.LBFGS) for each in self._optimizers):
            raise ValueError(
                "server_optimizer returns LBFGS, which evaluates the loss several times per step, "
                "but a server has one pseudo-gradient per step; use for example SGD or Adam"
            )
        _check_each_once(params, self._optimizers)

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return [group for each in self._optimizers for group in each.param_groups]

    def lr_at(self, version: int) -> float:
        """The rate of the step from a version; for an optimizer, that of its first group now."""
        if self._optimizers:
            return float(self._groups[0]["lr"])
        return rate_at("server_lr", self.server_lr, version)

    def rates(self, version: int) -> dict[str, float]:
        """The rate of the step from a version; for an optimizer, that of each group.

        They are called "server", "server_1", "server_2" …
        """
        if not self._optimizers:
            return {"server": self.lr_at(version)}
        names = ("server" if not k else f"server_{k}" for k in count())
        return {name: float(group["lr"]) for name, group in zip(names, self._groups, strict=False)}

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
        if self._vector is None or self._gradient is None:
            # Without this check the given optimizer would silently not be used.
            raise RuntimeError(
                "this ServerStep has a server_optimizer that was never set up: call its "
                "setup(state) in the aggregator's setup(federation, state)"
            )
        self._vector.copy_(state.params)
        torch.neg(direction, out=self._gradient)
        for param, _, gradient in self._layers:
            param.grad = gradient  # a step may have taken it away
        for optimizer in self._optimizers:
            optimizer.step()
        for param, view, _ in self._layers:
            if param.data_ptr() != view.data_ptr():  # a step has given it another tensor
                view.copy_(param.detach())
                param.data = view
        check_finite("the step of server_optimizer", self._vector)
        return self._vector.clone()

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizers; empty for a rate."""
        return (
            {"optimizers": [each.state_dict() for each in self._optimizers]}
            if self._optimizers
            else {}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the optimizers, after `setup`."""
        if not self._optimizers:
            return
        saved = state.get("optimizers")
        if saved is None:  # of an older checkpoint: one optimizer for one vector
            saved = [_by_layer(state, self._optimizers[0])]
        for optimizer, own in zip(self._optimizers, saved, strict=True):
            optimizer.load_state_dict(own)


def _several(made: object) -> list[Optimizer]:
    """The optimizers that a function returned.

    Raises:
        TypeError: It returned something else.
    """
    found: list[Any] | None = None
    if isinstance(made, Iterable) and not isinstance(made, str | Mapping):
        found = list(made)
    if not found or not all(isinstance(each, Optimizer) for each in found):
        kinds = "an empty list" if found == [] else type(made).__name__
        if found:
            kinds = ", ".join(type(each).__name__ for each in found)
        raise TypeError(
            f"server_optimizer must return a torch.optim.Optimizer, or a list of them, got {kinds}"
        )
    return found


def _check_each_once(params: ServerParams, optimizers: Sequence[Optimizer]) -> None:
    """Check that each parameter has one optimizer.

    Raises:
        ValueError: One has none or several, or an optimizer has a tensor of its own.
    """
    held = Counter(
        id(param) for each in optimizers for group in each.param_groups for param in group["params"]
    )
    for wrong, text in (
        ([name for name, param in params.named() if not held[id(param)]], "no optimizer"),
        ([name for name, param in params.named() if held[id(param)] > 1], "several optimizers"),
    ):
        if wrong:
            raise ValueError(
                f"server_optimizer gives {text} to {', '.join(wrong[:5])}"
                f"{', …' if len(wrong) > 5 else ''}; give each of the {len(params)} parameters to "
                "one, for example [Muon(params.matrices), AdamW(params.others)]"
            )
    if len(held) > len(params):
        raise ValueError(
            "server_optimizer returns an optimizer of other tensors than the parameters that it "
            "is given; write for example lambda params: torch.optim.Adam(params, 0.01)"
        )


def _by_layer(state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """The state of an optimizer of one vector, as that of one of its layers."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if len(params) == 1 or len(optimizer.param_groups) != 1:
        return state
    (group,) = state["param_groups"]
    sizes = [param.numel() for param in params]
    layers: dict[int, dict[str, Any]] = {number: {} for number in range(len(params))}
    for name, value in state["state"].get(0, {}).items():
        whole = isinstance(value, Tensor) and value.shape == (sum(sizes),)
        # Each with a count of its own, which a step raises in place.
        parts = value.split(sizes) if whole else [deepcopy(value) for _ in params]
        for number, (part, param) in enumerate(zip(parts, params, strict=True)):
            layers[number][name] = part.view(param.shape) if whole else part
    kept = layers if state["state"] else {}
    return {"state": kept, "param_groups": [{**group, "params": list(range(len(params)))}]}


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


def _makes_optimizers(value: object) -> bool:
    """Whether a value may be called for an optimizer: a function, or an optimizer's class."""
    return issubclass(value, Optimizer) if isinstance(value, type) else callable(value)
