"""The common part of aggregators: a buffer of updates, weights, and a step along their sum."""

from __future__ import annotations

import math
import random
import reprlib
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedlight._support.checks import Rate, optional, positive, positive_int
from fedlight.aggregators._server_step import (
    OptimizerFactory,
    ServerStep,
    check_finite,
    next_version,
)
from fedlight.aggregators._state import is_part, pack, unpack
from fedlight.aggregators.base import Aggregator
from fedlight.events import to_ticks
from fedlight.parameters import weighted_sum
from fedlight.types import UsedUpdate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import ClientUpdate, Federation, ServerState

Updates: TypeAlias = "Sequence[ClientUpdate]"
"""The updates of a server step, one or more, in order of arrival."""

Weights: TypeAlias = "Sequence[float] | Tensor | NDArray[np.floating]"
"""One weight for each update of a server step, in their order."""


class BufferedAggregator(Aggregator):
    """x <- x + eta * sum of w_i * delta_i over the updates held, once they are due.

    A subclass defines the weights w_i, and also the direction if that is not a weighted sum. This
    class does the rest. Arguments of the subclass are stored under their own names and never
    change. Values that change during a run are assigned to `self` in `start` (or later): tensors,
    numbers, strings, lists, tuples, sets and dicts of them, and objects that have ``state_dict``
    and ``load_state_dict``. They are the aggregator's state, which is forgotten at set-up, saved in
    checkpoints and restored from them. Tensors are restored on the device that they have after
    `start`, or else on the model's.

    A step is due after `buffer_size` updates or at a deadline every `interval`, whichever comes
    first. With neither, it is due at the end of the arrival process's round. A step without updates
    (an empty round, or a deadline before any arrival) makes a new version with the same model.

    Args:
        buffer_size: m, the number of updates that make a step due.
        server_lr: eta, a number or a function of the version that the step starts from.
        server_optimizer: A function of the parameters that returns a ``torch.optim.Optimizer``, or
            a list of them, used instead of `server_lr`. It gets them in their true shapes, with
            their names (`ServerParams`).
        interval: Virtual time between deadlines.

    Attributes:
        federation: The participating clients; available from `setup` on.

    Raises:
        TypeError: An argument is of another kind.
        ValueError: An argument is outside its range.

    Example:
        >>> class Fresh(BufferedAggregator):
        ...     def weights(self, updates, version):
        ...         fresh = [float(update.staleness(version) == 0) for update in updates]
        ...         return [each / len(updates) for each in fresh]
        >>> Fresh(buffer_size=5)
        Fresh(buffer_size=5)
    """

    _repr_optional = ("server_lr", "server_optimizer", "interval")
    federation: Federation
    _made = False
    # Settings with a state of their own, which the subclass saves and restores itself.
    _saved_apart: frozenset[str] = frozenset()

    def __init__(
        self,
        buffer_size: int | None = None,
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
        *,
        interval: float | None = None,
    ) -> None:
        self.buffer_size = optional(positive_int, "buffer_size", buffer_size)
        self.interval = optional(_interval, "interval", interval)
        self.needs_rounds = buffer_size is None and interval is None
        self._server = ServerStep(server_lr, server_optimizer)  # it checks both
        self.server_lr = self._server.server_lr
        self.server_optimizer = server_optimizer
        self._held: list[ClientUpdate] = []
        self._settings: dict[str, Any] = {}
        self._made = True

    # A subclass defines these.

    @abstractmethod
    def weights(self, updates: Updates, version: int) -> Weights:
        """Return the weight of each update; called once per step.

        Weights are finite and not negative. They are recorded, used to average the floating
        buffers, and multiplied with the deltas unless `direction` is defined.

        Args:
            updates: The updates that are due, one or more, in order of arrival.
            version: The version that the step starts from.
        """

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """Return the change of the parameters at rate 1, shape ``[P]``: sum of w_i * delta_i.

        A rule that treats each layer for itself reads and writes vectors through the views of
        ``self.federation.layers(vector)``.

        Args:
            updates: The updates that are due, one or more, in order of arrival.
            weights: The weights returned by `weights`, as floats.
            state: The version that the step starts from.
        """
        return weighted_sum([update.delta for update in updates], weights)

    def start(self, federation: Federation, state: ServerState) -> None:
        """Assign the initial state to `self`; called once per run.

        Args:
            federation: The participating clients.
            state: The version that the run starts from; its tensors show shape, dtype and device.
        """
        return

    # The contract, which a subclass does not need to change.

    def setup(self, federation: Federation, state: ServerState) -> None:
        """Forget any earlier run, then call `start`.

        Raises:
            TypeError: The constructor assigned a value that can change in place.
            ValueError: A value that the constructor assigned has changed.
        """
        if not self._made:
            raise TypeError(
                f"{type(self).__name__}.__init__ does not call super().__init__(buffer_size, …), "
                "which creates the buffer; call it first"
            )
        if not self._settings:
            # Not in the constructor, since those of subclasses assign after it.
            self._settings = dict(self._attributes())
        before = dict(self._state())
        for name in before:
            delattr(self, name)
        self.federation = federation
        self._model_device = state.params.device
        # Summed once: `importance` is asked for every update, and M may be large.
        self._num_examples = float(federation.num_examples.sum())
        self._held = []
        self._server = ServerStep(self.server_lr, self.server_optimizer)
        self._server.setup(state, federation.layout)
        self.start(federation, state)
        self._check_settings(before)

    def __getstate__(self) -> dict[str, Any]:
        """The attributes; of settings that still have their first value only the names."""
        # `_state` compares by identity, and pickle makes two of one number.
        kept = [name for name, value in self._settings.items() if vars(self).get(name) is value]
        others = {name: x for name, x in self._settings.items() if name not in kept}
        return {**vars(self), "_settings": (kept, others)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take up the attributes."""
        kept, others = state.pop("_settings")
        vars(self).update(state, _settings={name: state[name] for name in kept} | others)

    @property
    def full(self) -> bool:
        """Whether the updates held make a step due."""
        return self.buffer_size is not None and len(self._held) >= self.buffer_size

    def receive(self, update: ClientUpdate) -> bool:
        """Store the update; return True if the buffer is full."""
        self._held.append(update)
        return self.full

    def drain(self) -> list[ClientUpdate]:
        """Return the held updates and empty the buffer."""
        updates, self._held = self._held, []
        return updates

    def step(self, state: ServerState) -> ServerState:
        """Compute the weights of the held updates and step along their direction.

        Raises:
            TypeError: `weights` or `direction` returned a value of the wrong kind.
            ValueError: A weight is negative or not finite, or the direction is not finite.
        """
        updates = self.drain()
        if not updates:
            return next_version(state, state.params, ())
        weights = self._checked(self.weights(updates, state.version), len(updates))
        direction = self.direction(updates, weights, state)
        self._check_direction(direction, state.params)
        used = list(map(UsedUpdate, updates, weights))
        return self._server(state, direction, used, overwrite=self._sums)

    @property
    def held(self) -> list[ClientUpdate]:
        """Updates received and not used yet, in order of arrival."""
        return self._held

    def discard(self, failed: Collection[ClientUpdate]) -> bool:
        """Forget held updates that failed; return True if the others still fill the buffer."""
        self._held = [update for update in self._held if update not in failed]
        return self.full

    def rates(self, version: int) -> dict[str, float]:
        """Return eta of the step from a version; for an optimizer, the rates of its groups."""
        return self._server.rates(version)

    def state_dict(self) -> dict[str, Any]:
        """The server optimizer's state and everything assigned since `setup` began.

        Raises:
            TypeError: An attribute cannot be stored.
        """
        # Without the held updates: the caller passes them to `receive` again.
        own = {name: pack(value, f"{type(self).__name__}.{name}") for name, value in self._state()}
        return {"server": self._server.state_dict(), "own": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; `setup` was called before."""
        self._server.load_state_dict(state["server"])
        present = dict(self._state())
        for name in present.keys() - state["own"].keys():
            if name in self._settings:  # it had the constructor's value again
                setattr(self, name, self._settings[name])
            else:  # `receive` made it, and the saved aggregator did not have it
                delattr(self, name)
        for name, packed in state["own"].items():
            known, label = present.get(name), f"{type(self).__name__}.{name}"
            setattr(self, name, unpack(packed, known, self._model_device, label))

    def importance(self, client_id: int) -> float:
        """p_i according to `client_weights`: 1/M, or n_i / sum of n over all clients."""
        if self.client_weights == "uniform":
            return 1.0 / self.federation.num_clients
        return float(self.federation.num_examples[client_id]) / self._num_examples

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        """All attributes but those of this class's own machinery."""
        left_out = _MACHINERY | self._saved_apart
        return ((name, value) for name, value in vars(self).items() if name not in left_out)

    def _state(self) -> Iterator[tuple[str, Any]]:
        """Attributes that the constructor did not assign, or that were assigned again since."""
        for name, value in self._attributes():
            if self._settings.get(name, _MISSING) is not value:
                yield name, value

    def _check_settings(self, before: Mapping[str, Any]) -> None:
        """Refuse settings that change, since the next run would start from the changed values.

        Args:
            before: The state of the previous run, which has been forgotten by now.
        """
        kind, present = type(self).__name__, vars(self)
        changed = [name for name in self._settings if name not in present]
        for name in changed:
            setattr(self, name, self._settings[name])
        if changed:
            name = changed[0]
            raise ValueError(
                f"{kind}.{name} was {self._settings[name]!r} at first and {before[name]!r} later; "
                "assign values that change during a run in start(federation, state), and make "
                "another aggregator for another setting"
            )
        for name, value in self._settings.items():
            # A change in place cannot be noticed, so settings that allow one are refused.
            if present[name] is value and (is_part(value) or isinstance(value, _CHANGEABLE)):
                raise TypeError(
                    f"{kind}.__init__ assigns {name}, a {type(value).__name__}; assign values that "
                    "change during a run in start(federation, state), and keep a setting in an "
                    "object that cannot change, such as a tuple"
                )

    @property
    def _sums(self) -> bool:
        """Whether the direction is the sum that is made here, a new tensor each time."""
        return type(self).direction is BufferedAggregator.direction

    def _check_direction(self, direction: object, params: Tensor) -> None:
        if not isinstance(direction, Tensor):
            found = type(direction).__name__
        elif direction.shape != params.shape or direction.dtype != params.dtype:
            found = f"shape {tuple(direction.shape)} and {direction.dtype}"
        else:
            # Updates and weights are finite, so only the direction of a subclass needs the check.
            if not self._sums:
                check_finite(f"{type(self).__name__}.direction", direction)
            return
        raise TypeError(
            f"{type(self).__name__}.direction must return a tensor of shape "
            f"{tuple(params.shape)} and {params.dtype}, got {found}"
        )

    def _checked(self, weights: Weights, count: int) -> list[float]:
        """The weights as floats.

        Raises:
            TypeError: They are not one number for each update.
            ValueError: One of them is negative or not finite.
        """
        # The usual case, checked quickly: the sum is finite only if all weights are.
        usual = type(weights) is list and len(weights) == count
        usual = usual and set(map(type, weights)) == {float} and min(weights) >= 0
        if usual and sum(weights) < math.inf:
            return list(weights)
        values = weights.tolist() if isinstance(weights, Tensor | np.ndarray) else weights
        try:
            if isinstance(values, str) or not isinstance(values, Sequence) or len(values) != count:
                raise TypeError
            floats = [float(value) for value in values]
        except (TypeError, ValueError):
            raise TypeError(
                f"{type(self).__name__}.weights must return one number for each of the {count} "
                f"updates, got {reprlib.repr(weights)}; for example "
                "[1 / len(updates)] * len(updates)"
            ) from None
        for number, value in enumerate(floats):
            if not 0 <= value < math.inf:
                raise ValueError(
                    f"{type(self).__name__}.weights must return finite numbers of at least 0, got "
                    f"{value} for update {number}; if the rule is not a weighted sum, define "
                    "direction as well"
                )
        return floats


_MISSING = object()
_CHANGEABLE = (
    *(list, dict, set, deque, bytearray, np.ndarray, Tensor),
    *(np.random.Generator, torch.Generator, random.Random),
)
_MACHINERY = frozenset(
    {"federation", "_made", "_model_device", "_held", "_num_examples", "_server", "_settings"}
)


def _interval(name: str, value: object) -> float:
    interval = positive(name, value)
    if to_ticks(interval) < 1:
        raise ValueError(f"{name} must be at least 1e-9, the clock's resolution, got {value!r}")
    return interval
