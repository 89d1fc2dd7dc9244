"""The values that a trace holds as constants, and whether they have changed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from fedlight._module.attributes import OF_LIGHTNING, own_layers
from fedlight._module.current_stage import moment_of

if TYPE_CHECKING:
    from lightning import LightningModule

_ATOMS = {bool, int, str, type(None)}


class Constants:
    """The attributes of a module and of its layers that a step may read.

    A trace holds their values as constants. Tensors are compared by identity only, because a
    program refers to the tensor itself and reads its current numbers.

    Args:
        module: The module; its metric objects are left out, since they are updated after the step.
    """

    # The state is read before each stack, so it must stay cheap. A longer container counts as
    # changed only if it is replaced.
    _MOST = 32

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._places = [vars(layer) for _, layer in own_layers(module)]

    def state(self) -> list[Any]:
        """All values as plain data that can be compared.

        The state changes also if a step asks the trainer for something that changes during a run,
        because a trace would keep the answer for ever.
        """
        return [moment_of(self._module).times] + [
            (name, value if type(value) in _ATOMS else self._plain(value))
            for place in self._places
            for name, value in place.items()
            if name not in OF_LIGHTNING
        ]

    def _plain(self, value: Any, depth: int = 3) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float | complex):
            return repr(value)  # nan differs from itself
        if isinstance(value, np.ndarray) and value.nbytes <= 32 * self._MOST:
            return value.dtype.str, value.shape, value.tobytes()
        if depth and isinstance(value, dict) and len(value) <= self._MOST:
            return [(repr(key), self._plain(each, depth - 1)) for key, each in value.items()]
        if depth and isinstance(value, list | tuple) and len(value) <= self._MOST:
            return [self._plain(each, depth - 1) for each in value]
        if isinstance(value, set | frozenset) and len(value) <= self._MOST:
            return sorted(map(repr, value))
        if depth and hasattr(value, "__dict__") and not isinstance(value, Tensor | type):
            return id(value), self._plain(vars(value), depth - 1)
        return id(value)


def drawn() -> tuple[Any, ...]:
    """The states of the generators of Python and NumPy, which a trace would draw from only once."""
    numpy: Any = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numpy[1].tobytes(), numpy[2:]
