"""Parts of a checkpoint's content: the module's weights, and states by their keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from lightning import LightningModule
from torch import Tensor

from fedlight.checkpoint import CheckpointError, plain

T = TypeVar("T")


class Stateful(Protocol):
    """An object whose state a checkpoint holds."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def fitting(module: LightningModule, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Those tensors of a checkpoint that a module has, too, in the same shape."""
    own = {name: each for name, each in module.state_dict().items() if isinstance(each, Tensor)}
    return {
        name: each
        for name, each in tensors.items()
        if name in own and isinstance(each, Tensor) and own[name].shape == each.shape
    }


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
                continue  # strict_loading=False: the module's state_dict leaves some out
            if kept is None or kept.shape != param.shape:
                raise CheckpointError(
                    f"{path!r} has no parameter {name!r} of shape {tuple(param.shape)}"
                )
            param.data.copy_(kept)


def keyed(objects: Iterable[T]) -> Iterator[tuple[str, T]]:
    """Objects with their keys in a checkpoint: the class and the index within the class.

    A key stays the same if objects of other classes are added to a resumed run.
    """
    seen: Counter[str] = Counter()
    for each in objects:
        name = type(each).__qualname__
        yield f"{name}-{seen[name]}", each
        seen[name] += 1


def matched(objects: Iterable[T], saved: Iterable[Sequence[Any]]) -> Iterator[tuple[T, Any]]:
    """Those objects that a checkpoint knows, each with its saved state.

    Args:
        objects: The callbacks or loggers of the run.
        saved: Pairs of a key and a state, from the checkpoint.
    """
    states = dict(map(tuple, saved))
    return ((each, states[key]) for key, each in keyed(objects) if key in states)


def check_savable(kept: Iterable[Stateful]) -> None:
    """Refuse a state that a checkpoint could not hold.

    Raises:
        TypeError: A state holds something that is no plain data; the error names it.
    """
    for each in kept:
        try:
            state = each.state_dict()
        except (AttributeError, KeyError):  # its state exists from the first update on
            continue
        plain(state, f"{type(each).__name__}.state_dict()")
