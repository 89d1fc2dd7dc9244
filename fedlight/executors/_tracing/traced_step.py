"""A stacked step that is traced to a program of plain operators, and run as that program."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fedlight._module.rng import isolated_rng
from fedlight._module.steps import reads_index
from fedlight.executors._random.streams import Keys
from fedlight.executors._stack.independence import Operators
from fedlight.executors._stack.step import Outputs, StackedStep, StepInputs
from fedlight.executors._stack.step_log import StackedLog
from fedlight.executors._tracing.constants import Constants, drawn
from fedlight.executors._tracing.program import Function, Program, compiled, program, resized

_LARGE = 32 * 2**20
"""Bytes of the parameters of one client, from which on a step is not traced."""


_SETTINGS = 4
"""Settings of the module whose traces are kept."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A checked program for inputs of one shape, and the structure of its outputs.

    Attributes:
        function: From all inputs, flat, to all outputs, flat.
        drew: Whether the step draws random numbers, so that their keys are its last input.
        ends: The positions in the outputs at which the gradients, the floating buffers, the integer
            buffers and the logged numbers end.
        tree: The structure of the rest, which are the inputs of metric objects.
        log: The names of the logged values.
    """

    function: Function
    drew: bool
    ends: tuple[int, int, int, int]
    tree: Any
    log: StackedLog

    def outputs(self, inputs: Sequence[Tensor], keys: Keys) -> Outputs:
        """The outputs as `StackedStep.raw` returns them."""
        # Slices instead of a tree of the outputs: this runs in every step.
        flat = list(self.function(*inputs, keys()) if self.drew else self.function(*inputs))
        one, two, three, four = self.ends
        values = dict(zip(self.log.values, flat[three:four], strict=True))
        given = pytree.tree_unflatten(flat[four:], self.tree) if self.log.inputs else []
        return flat[:one], flat[one:two], flat[two:three], values, given


class _Known:
    """What is known of a step under some settings of the module.

    Attributes:
        settings: The settings, kept so that no others are taken for them.
        constants: What the step may read besides its inputs.
        fixed: The state of that under which the traces were made.
        traces: The traces by shape; None for a shape that stays untraced.
        unused: The positions of the unused parameters, by the number of the step.
        traced: Programs by the family of their shapes and the number of clients.
        seen: How often a shape or a family has come up.
    """

    def __init__(self, settings: object, constants: Constants) -> None:
        self.settings, self.constants = settings, constants
        self.fixed = constants.state()
        self.traces: dict[Any, Trace | None] = {}
        self.unused: dict[int, tuple[int, ...]] = {}
        self.traced: dict[Any, dict[int, Program]] = defaultdict(dict)
        self.seen: Counter[Any] = Counter()


class TracedStep:
    """A `StackedStep` that is traced once per shape and gives the same bits without ``vmap``.

    A trace gives the bits of the untraced step, also if it draws torch's random numbers, so the
    time at which a shape is traced changes no result. `begin` drops all traces if something has
    changed that a trace holds as a constant (an attribute of the module, a mode).

    Three kinds of steps run untraced. A step with side effects does: it changes an attribute of the
    module, or draws from the generators of Python or NumPy. So does a step whose program does not
    give the very bits of the untraced step. The third kind is a step of one client with a large
    model: the check of a program needs the model and its gradient several times in memory, and
    nearly all of the time is spent on arithmetic anyway. A step that reads ``batch_idx`` is traced
    for each value.

    Args:
        step: The untraced step.
        after: Number of untraced steps before the first trace.
        most: Largest number of traces.
        without: Parts to leave out, to measure their gain: "simplify", "sizes" (programs for
            other numbers of clients), "interpreter" (TorchScript's).

    Attributes:
        reads_index: Whether the step may read ``batch_idx``, so that its steps may differ.
        operators: The operators of the first step of each shape (of at most `most` steps).
    """

    # A trace takes 0.1 to 0.16 s and saves 1 to 3 ms a step: it pays for itself within some fifty
    # steps. To wait for as many steps first is the rule for renting or buying: however many steps
    # come, this costs at most twice as much as the best decision.
    def __init__(
        self,
        step: StackedStep,
        after: int = 48,
        most: int = 96,
        without: Collection[str] = (),
    ) -> None:
        self.step = step
        self.after, self.most, self.without = after, most, without
        self.reads_index = reads_index(step.module)
        self.operators, self._looked_at = Operators(), 0
        self._use(_Known(None, Constants(step.module)))
        self._all = [self._known]  # the newest last

    def use(self, settings: object) -> None:
        """Go on with the traces that were made under these settings of the module, which it has.

        Local runs of some versions take turns, so the traces of the newest settings are kept.
        """
        if settings is self._known.settings:
            return
        known = next((each for each in self._all if each.settings is settings), None)
        if known is None:
            known = _Known(settings, Constants(self.step.module))
        others = [each for each in self._all if each is not known]
        self._all = [*others[1 - _SETTINGS :], known]
        self._use(known)

    def _use(self, known: _Known) -> None:
        self._known = known
        self.traces, self._unused = known.traces, known.unused
        self._traced, self._seen = known.traced, known.seen
        self._constants = known.constants

    def begin(self) -> None:
        """Drop the traces if the module has changed. To be called before each stack."""
        state = self._constants.state()
        if state != self._known.fixed:
            self._known.fixed = state
            for known in (self.traces, self._traced, self._seen, self._unused):
                known.clear()

    def unused(self, inputs: StepInputs, keys: Keys) -> tuple[int, ...]:
        """The positions of the parameters that the loss of a step does not use."""
        number = inputs.number if self.reads_index else 0
        if number not in self._unused:
            self._unused[number] = self.step.unused(inputs, keys)
        return self._unused[number]

    def __call__(self, inputs: StepInputs, keys: Keys) -> tuple[list[Tensor], StackedLog]:
        """Compute what `StackedStep` does."""
        # No tree of all inputs: to flatten it would cost as much as a small step.
        params, buffers, counters, batch, number = inputs
        leaves, form = flattened(batch)
        flat = [*params, *buffers, *counters, *leaves]
        # strides too: other strides may lead to other kernels, and so to other bits
        shapes = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in flat]
        key = (*shapes, form, number if self.reads_index else None)
        if key in self.traces:
            trace = self.traces[key]
            if trace is None:
                return self.step(inputs, keys)
            return self.step.unpacked(trace.outputs(flat, keys), trace.log, inputs)
        # shapes that differ in the number of clients alone
        family = (*((shape[1:], *rest) for shape, *rest in shapes), *key[-2:])
        large = len(params[0]) == 1 and sum(param.nbytes for param in params) > _LARGE
        if not self._is_due(key, family, large):
            if self._seen[family] > 1 or self._looked_at >= self.most:
                return self.step(inputs, keys)
            self._looked_at += 1
            with self.operators:
                return self.step(inputs, keys)
        # The effects are looked for around a step that is needed anyway.
        before = self._constants.state(), drawn()
        result = self.step(inputs, keys)
        pure = before == (self._constants.state(), drawn())
        self.traces[key] = None  # whatever fails below, this shape is not tried again
        if pure:
            untraced = FlatStep(self.step, inputs, flat, form, keys())
            self.traces[key] = self._trace(untraced, self._traced[family])
        return result

    def _is_due(self, key: Any, family: Any, large: bool) -> bool:
        """Count a step of this shape; tell whether the shape is to be traced now."""
        self._seen[key] += 1
        self._seen[family] += 1
        if len(self.traces) >= self.most or large:
            return False
        known = len(self._traced[family])
        if known == 0:
            # Before the first trace, steps of all sizes count. After a failure, those of each size
            # do, so that a module that cannot be traced is not tried over and over again.
            failed = None in self.traces.values()
            return self._seen[key if failed else family] >= self.after
        # Now it is known that the step can be traced. The second trace makes programs for all other
        # sizes possible; those cost a tenth of a trace.
        cheap = known > 1 and "sizes" not in self.without
        return self._seen[key] >= self.after // (8 if cheap else 4)

    def _trace(self, step: FlatStep, others: dict[int, Program]) -> Trace | None:
        """Make a trace of a step, or return None if no program gives the same bits.

        Args:
            step: The step.
            others: Programs for other numbers of clients. One that is traced here is added.
        """
        n, expected = len(step.inputs[0]), outcome(step, step.inputs)
        # A program from two others takes a tenth of the time of a trace, so it is tried first.
        if len(others) > 1 and n > 1 and "sizes" not in self.without:
            (m, one), (k, two), *_ = others.items()
            likely = resized(one, m, two, k, n)
            trace = None if likely is None else self._checked(likely, step, expected)
            if trace is not None:
                return trace
        try:
            with isolated_rng(), torch.no_grad():
                graph = make_fx(step)(*map(_copied, step.inputs))
                traced = program(graph, "simplify" not in self.without)
        except Exception:  # `make_fx` raises various exceptions for unsupported operators
            return None
        trace = self._checked(traced, step, expected)
        # For a single client, `vmap` and torch leave out operators: no pattern for other sizes.
        if trace is not None and n > 1:
            others[n] = traced
        return trace

    def _checked(
        self, program: Program, step: FlatStep, expected: Sequence[Tensor]
    ) -> Trace | None:
        """The program as a trace, or None if its outcome differs from the expected one."""
        interpreted = "interpreter" not in self.without
        try:
            with isolated_rng(), torch.no_grad():
                function = compiled(program, list(map(_copied, step.inputs)), interpreted)
            # Three calls: TorchScript profiles its first calls and then rewrites the graph, so an
            # equal first result does not prove that the later ones are equal.
            for _ in range(3):
                if not all(map(_same, outcome(function, step.inputs), expected)):
                    return None
        except Exception:  # a program made for another size may ask for impossible shapes
            return None
        return step.traced_as(function)


class FlatStep:
    """A step as a function from flat tensors to flat tensors, as `make_fx` and programs need it.

    Args:
        step: The untraced step, which has just been computed.
        given: Its inputs.
        flat: All tensors of the inputs.
        form: How the last of them make the batch, as `flattened` returns it.
        keys: The keys of its random numbers.

    Attributes:
        inputs: The tensors of the inputs. A step that draws nothing does not get the keys, so
            nobody has to make them.
    """

    def __init__(
        self, step: StackedStep, given: StepInputs, flat: list[Tensor], form: Any, keys: Tensor
    ) -> None:
        self._step, self._form, self._keys, self._drew = step, form, keys, step.drew
        self._number, self._end = given.number, len(flat)
        self._sizes = tuple(accumulate(map(len, (given.params, given.buffers, given.counters))))
        self._structure: tuple[Any, StackedLog] | None = None  # of the outputs
        self.inputs = [*flat, keys] if self._drew else flat

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Compute the step."""
        one, two, three = self._sizes
        batch = tensors[three : self._end]
        inputs = StepInputs(
            list(tensors[:one]),
            list(tensors[one:two]),
            list(tensors[two:three]),
            batch if self._form is None else pytree.tree_unflatten(batch, self._form),
            self._number,
        )
        keys = tensors[self._end] if self._drew else self._keys
        (grads, buffers, counters, values, given), log = self._step.raw(inputs, keys)
        leaves, tree = pytree.tree_flatten(given)
        self._structure = self._structure or (tree, log)
        return [*grads, *buffers, *counters, *values.values(), *leaves]

    def traced_as(self, function: Function) -> Trace:
        """A function that computes the same, with the structure of the outputs."""
        assert self._structure is not None
        (tree, log), (one, two, three) = self._structure, self._sizes
        return Trace(function, self._drew, (one, two, three, three + len(log.values)), tree, log)


def outcome(function: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
    """All that a call returns, writes and draws, from the generators' present state."""
    # The function may write to its inputs, and every call must start from the same numbers.
    tensors = list(map(_copied, inputs))
    with isolated_rng(), torch.no_grad():
        return [*function(*tensors), *tensors, torch.default_generator.get_state()]


def flattened(batch: Any) -> tuple[Sequence[Tensor], Any]:
    """The tensors of a batch and its structure, or None for a tuple of tensors.

    Most batches are such tuples, for which `tree_flatten` would cost more than the check.
    """
    if type(batch) is tuple and all(isinstance(part, Tensor) for part in batch):
        return batch, None
    return pytree.tree_flatten(batch)


def _copied(tensor: Tensor) -> Tensor:
    """A copy with the same strides. ``clone`` keeps them only if there are no gaps."""
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor)


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if torch.equal(one, other):  # a single pass; a nan is equal to no number
        return True
    return bool(((one == other) | ((one != one) & (other != other))).all())
