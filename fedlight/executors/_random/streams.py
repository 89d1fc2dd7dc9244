"""The random numbers of a local step, as functions of their names: `Streams`.

The k-th call of a random function within a local step draws from the stream that is named (seed,
client, visit, step, k). So a client gets the same numbers alone, in any stack, in a traced program,
on any device and after a resume, and no generator has to be seeded, kept or restored.

A name is a 64-bit key, and the numbers are the output of SplitMix64 (`splitmix`) on a counter that
starts at the key: about twelve operators on whole tensors of integers, which ``vmap`` batches like
any others. Integers are exact, and all other numbers come from them by correctly rounded
operations. Logarithms are avoided: their last bits depend on the machine and, with vector
instructions, on the place of a number in its tensor. Hence the tables of `variates`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from fedlight.executors._random.layers import NEVER
from fedlight.executors._random.splitmix import FIRST, GAMMA, MASK, SECOND, mixed, names
from fedlight.executors._random.tensors import FUNCTIONS
from fedlight.executors._random.variates import Uncovered
from fedlight.randomness import Concern

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Task

Keys: TypeAlias = Callable[[], Tensor]
"""Gives the keys of a step, ``[n]``; not called for a step that draws nothing."""

FULL_GRADIENT = 1 << 63
"""The number of the first batch of a pass over all of a client's examples."""

_AGAIN = 1 << 32  # more than a run has steps, so the numbers of further gradients are new
_CALL = 0xD1342543DE82EF95  # an odd number without a small multiple in common with GAMMA
_MOST_CALLS = 1 << 31  # a larger distance between seeds is no count of calls


def step_keys(
    seed: int | Sequence[int], tasks: Sequence[Task], numbers: Sequence[int]
) -> NDArray[np.int64]:
    """The keys of the steps of n tasks, shape ``[K, n]``.

    Args:
        seed: The seed of the fit; or one for each task, if they are of several fits.
        tasks: The tasks.
        numbers: K numbers of steps: 0, 1, … for the local steps, `again` for further gradients of
            a step, and `FULL_GRADIENT` + j for the j-th batch of a pass over all examples.
    """
    clients = np.array([task.client_id for task in tasks])
    visits = np.array([task.visit for task in tasks])
    steps = np.array([number & MASK for number in numbers], dtype=np.uint64) * np.uint64(GAMMA)
    return mixed(names(seed, Concern.TRAINING, clients, visits) + steps[:, None]).view(np.int64)


def again(step: int, times: int) -> int:
    """The number under which the gradient of a step is computed for the `times`-th further time."""
    return step + times * _AGAIN


@dataclass(slots=True)
class StackKeys:
    """The keys of a stack of n clients, made when a step first asks for them.

    Attributes:
        seed: The seed of the fit; or one for each task, if they are of several fits.
        tasks: The tasks of the clients, and of the padding.
        num_steps: Largest number of local steps.
        device: Where the keys go.
    """

    seed: int | Sequence[int]
    tasks: Sequence[Task]
    num_steps: int
    device: torch.device
    _steps: Sequence[Tensor] = field(default=(), init=False)

    def step(self, k: int, width: int) -> Tensor:
        """The keys of the first `width` clients in local step k, ``[width]``."""
        if not self._steps:
            self._steps = self._made(self.seed, self.tasks, range(self.num_steps)).unbind()
        return self._steps[k][:width]

    def one(self, number: int, which: Sequence[int]) -> Tensor:
        """The keys of some of the clients in the step of any number, ``[len(which)]``."""
        seed = self.seed
        seeds = seed if isinstance(seed, int) else [seed[index] for index in which]
        return self._made(seeds, [self.tasks[index] for index in which], [number])[0]

    def _made(
        self, seed: int | Sequence[int], tasks: Sequence[Task], numbers: Sequence[int]
    ) -> Tensor:
        keys = torch.from_numpy(step_keys(seed, tasks, numbers))
        return keys.to(self.device, non_blocking=True)


class Streams(TorchFunctionMode):
    """Within the context, torch's random functions draw from the stream of the step.

    ::

        with streams.at(key):
            loss = module.training_step(batch, k)

    `FUNCTIONS` lists the covered functions: the ``dropout`` family, ``rand``, ``randn``,
    ``randint``, ``randperm``, ``normal``, ``bernoulli``, ``multinomial``, their ``_like`` and
    in-place forms, and layers that call them. Other calls go on to torch: functions whose number of
    draws depends on the data (``poisson``, ``_standard_gamma``), a ``generator=``, a ``vmap`` in
    the step itself.

    Args:
        stacked: Whether several clients are computed at once. They would share the numbers of a
            call that is not covered, so it is an error.
    """

    def __init__(self, stacked: bool) -> None:
        super().__init__()
        self.stacked = stacked
        self.key: Tensor | int = 0
        self._calls = self._first = self._levels = 0

    def at(self, key: Tensor | int) -> Streams:
        """Move to the step that has this key; for a stack, the key of one client under ``vmap``."""
        # Calls are counted from this seed, and only transforms within the step matter.
        self.key, self._calls = key, 0
        self._first = torch.default_generator.initial_seed()
        self._levels = len(_levels())
        return self

    @property
    def drew(self) -> bool:
        """Whether any number was drawn since `at`."""
        return self._calls > 0

    def bits(self, shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> Tensor:
        """Independent random bits of the next call: whole numbers, all of which are equally likely.

        Args:
            shape: The shape.
            device: The device.
            dtype: ``int64``, or ``int32`` or ``int16``, of which a 64-bit word gives two or four.
        """
        number, parts = self._number(), 8 // dtype.itemsize
        count = torch.Size(shape).numel()
        counter = torch.arange(1, -(-count // parts) + 1, device=device) * _signed(GAMMA)
        # The product is taken modulo 2^64 in both cases: tensors wrap around, Python's numbers do
        # not.
        if isinstance(self.key, int):
            words = counter + _signed(self.key + number * _CALL)
        else:
            words = counter + (self.key.to(device) + _signed(number * _CALL))
        # torch's shift to the right repeats the sign; the masks clear it.
        words = (words ^ ((words >> 30) & (MASK >> 30))) * _signed(FIRST)
        words = (words ^ ((words >> 27) & (MASK >> 27))) * _signed(SECOND)
        words = words ^ ((words >> 31) & (MASK >> 31))
        if parts > 1:
            words = words.view(dtype)
            if count % parts:
                words = words[:count]
        return words.view(torch.Size(shape))

    def _number(self) -> int:
        """The number of this call in its step.

        For one client it is kept in the seed of torch's generator. Activation checkpointing puts
        that back before it computes a part of the step again, which then draws the same numbers.

        Raises:
            Uncovered: The step has seeded torch's generator, or it calls ``vmap`` itself.
        """
        if any(_differs(level) for level in _levels()[self._levels :]):
            raise Uncovered("under a vmap with randomness= of the step's own")
        generator = torch.default_generator
        number = generator.initial_seed() - self._first
        if not 0 <= number < _MOST_CALLS or (self.stacked and number):
            raise Uncovered("after torch.manual_seed")
        self._calls += 1
        if self.stacked:  # `torch.func.grad` supports no checkpointing
            return self._calls - 1
        generator.manual_seed(self._first + number + 1)
        return number

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, or draw from the stream in its place."""
        kwargs = kwargs or {}
        # One lookup: every call of torch in a step passes here.
        function = FUNCTIONS.get(func)
        if function is None:
            if self.stacked and func in NEVER:
                raise _refused(func, "")
            return func(*args, **kwargs)
        try:
            if kwargs.get("generator") is not None:
                raise Uncovered("with a generator= of its own")
            return function(self, *args, **kwargs)
        except Uncovered as uncovered:
            if self.stacked:
                raise _refused(func, f" {uncovered}") from None
        return func(*args, **kwargs)


def _refused(func: Callable[..., Any], how: str) -> RuntimeError:
    name = resolve_name(func) or getattr(func, "__name__", repr(func))
    return RuntimeError(f"{name} draws random numbers{how}, which stacked clients would share")


def _signed(word: int) -> int:
    """The signed 64-bit number with the lowest 64 bits of `word`."""
    word &= MASK
    return word - (1 << 64) if word >> 63 else word


def _levels() -> Sequence[Any]:
    """The transforms of ``torch.func`` that are under way, the outermost first."""
    return torch._C._functorch.get_interpreter_stack() or ()


def _differs(level: Any) -> bool:
    """Whether it is a ``vmap`` whose copies may not share random numbers."""
    if level.key() != torch._C._functorch.TransformType.Vmap:
        return False
    randomness = torch._C._functorch.CVmapInterpreterPtr(level).randomness()
    return bool(randomness != torch._C._functorch.RandomnessType.Same)
