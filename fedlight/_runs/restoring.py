"""What a checkpoint gives back: weights of the module, states of callbacks, places of loggers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from fedlight._runs.loggers import go_on, position
from fedlight.checkpoint import CheckpointError, plain

if TYPE_CHECKING:
    from lightning import LightningModule
    from lightning.fabric.loggers.logger import Logger

    from fedlight.types import RoundRecord


class Stateful(Protocol):
    """What a run keeps of a callback."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def fits(module: LightningModule, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a module has the tensors of a checkpoint, in their shapes."""
    own = module.state_dict()
    return all(_same_shape(own.get(name), tensor) for name, tensor in tensors.items())


def load_fitting(module: LightningModule, tensors: Mapping[str, Tensor]) -> None:
    """Load the tensors that a module has, too, in the same shape."""
    own = module.state_dict()
    fitting = {k: v for k, v in tensors.items() if _same_shape(own.get(k), v)}
    module.load_state_dict(fitting, strict=False)


def load_frozen(module: LightningModule, tensors: Mapping[str, Tensor], path: str) -> None:
    """Load the parameters without a gradient.

    They take no part in the federation, but belong to the model.

    Raises:
        CheckpointError: The checkpoint lacks one, in its shape.
    """
    for name, param in module.named_parameters():
        if not param.requires_grad:
            kept = tensors.get(name)
            if kept is None and not module.strict_loading:
                continue  # the module says that its state_dict leaves some out
            if kept is None or kept.shape != param.shape:
                raise CheckpointError(
                    f"{path!r} has no parameter {name!r} of shape {tuple(param.shape)}"
                )
            param.data.copy_(kept)


def states_of(callbacks: Sequence[Stateful]) -> list[list[Any]]:
    """The states of callbacks, each beside its key."""
    return [[key, each.state_dict()] for key, each in _keyed(callbacks)]


def load_states(callbacks: Sequence[Stateful], saved: Iterable[Sequence[Any]]) -> None:
    """Give callbacks what `states_of` gave; those that were not there then keep their own."""
    states = dict(map(tuple, saved))
    for key, callback in _keyed(callbacks):
        if key in states:
            callback.load_state_dict(states[key])


def positions_of(loggers: Sequence[Logger]) -> list[list[Any]]:
    """The places where loggers write, each beside its key."""
    return [[key, position(each)] for key, each in _keyed(loggers)]


def let_write_on(
    loggers: Sequence[Logger], saved: Iterable[Sequence[Any]], history: Sequence[RoundRecord]
) -> None:
    """Let loggers go on at the places that `positions_of` gave, behind the rounds so far."""
    places = dict(map(tuple, saved))
    for key, logger in _keyed(loggers):
        if key in places:
            go_on(logger, places[key], history)


def check_savable(kept: Iterable[Stateful]) -> None:
    """Refuse a state that a checkpoint could not hold.

    Raises:
        TypeError: A state holds something that is no plain data; the error names it.
    """
    for each in kept:
        try:
            state = each.state_dict()
        except (AttributeError, KeyError):  # it tells of what comes with the first update
            continue
        plain(state, f"{type(each).__name__}.state_dict()")


def _same_shape(one: object, other: object) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape


def _keyed(objects: Sequence[Any]) -> Iterable[tuple[str, Any]]:
    """Objects with the name of their class and their number in it, which survive added ones."""
    seen: Counter[str] = Counter()
    for each in objects:
        name = type(each).__qualname__
        yield f"{name}-{seen[name]}", each
        seen[name] += 1
