"""A stacked step traced to plain operators and replayed: the same bits without the transforms."""

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

from fedlight.executors._rng import isolated_rng
from fedlight.executors._stacked_step import Outputs, StackedLog, StackedStep
from fedlight.executors._tracing.program import Program, Replay, compiled, program, resized
from fedlight.executors._tracing.surroundings import Surroundings, drawn, reads_index


@dataclass(frozen=True, slots=True)
class Trace:
    """A step for inputs of one shape.

    Attributes:
        replay: All outputs, flat, from all inputs.
        ends: Where among them the gradients, the floating buffers, the integer buffers and the
            logged numbers end.
        tree: How what metric objects are given lies in the last of them.
        log: The names of what is logged.
    """

    replay: Replay
    ends: tuple[int, int, int, int]
    tree: Any
    log: StackedLog

    def outputs(self, inputs: Sequence[Tensor]) -> Outputs:
        """The outputs as `StackedStep.raw` gives them."""
        flat = list(self.replay(*inputs))
        one, two, three, four = self.ends
        values = dict(zip(self.log.values, flat[three:four], strict=True))
        given = pytree.tree_unflatten(flat[four:], self.tree) if self.log.inputs else []
        return flat[:one], flat[one:two], flat[two:three], values, given


class TracedStep:
    """`StackedStep`, traced once per shape with ``make_fx`` and replayed without the transforms.

    ``vmap`` and ``grad`` cost something for each operator in each step, and what they end in is
    the same each time. A trace costs as much as some hundred steps save, so none is made for the
    first `after` steps. Where two stacks that differ in their number of clients alone were traced,
    programs for other numbers are made from theirs, at a tenth of the cost. A replay gives the bits
    of the untraced step, also where it draws random numbers, so when what is traced changes no
    result.

    What a step reads beside its tensors (attributes of the module, modes) is fixed in a trace;
    `begin` throws the traces away where some of that has changed.

    These run untraced: a step with effects beside its outputs (it changes an attribute of the
    module, or draws from Python's or NumPy's generators), and one whose first replay did not give
    the very bits of the untraced step. A step that reads ``batch_idx`` is traced for each value.

    Args:
        step: The untraced step.
        after: How many steps run untraced before the first trace; then a fourth of it for each
            number of clients, and an eighth where a program is made from two others.
        most: How many traces are made.
    """

    def __init__(
        self,
        step: StackedStep,
        after: int = 48,
        most: int = 96,
        without: Collection[str] = (),
    ) -> None:
        self.step = step
        self.after, self.most, self.without = after, most, without
        self.traces: dict[Any, Trace | None] = {}
        self._traced: dict[Any, dict[int, Program]] = defaultdict(dict)
        self._seen: Counter[Any] = Counter()
        self._reads_index = reads_index(step.module)
        self._surroundings = Surroundings(step.module)
        self._fixed = self._surroundings.state()

    def begin(self) -> None:
        """Called before the first step of a stack."""
        state = self._surroundings.state()
        if state != self._fixed:
            self._fixed = state
            self.traces.clear()
            self._traced.clear()
            self._seen.clear()

    def __call__(
        self,
        params: list[Tensor],
        buffers: list[Tensor],
        counters: list[Tensor],
        batch: tuple[Tensor, ...],
        step: int,
    ) -> tuple[list[Tensor], StackedLog]:
        """As `StackedStep`."""
        inputs = [*params, *buffers, *counters, *batch]
        shapes = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in inputs]
        key = (*shapes, step if self._reads_index else None)
        if key in self.traces:
            trace = self.traces[key]
            if trace is None:
                return self.step(params, buffers, counters, batch, step)
            return self.step.unpacked(trace.outputs(inputs), trace.log, buffers, counters)
        family = (*((shape[1:], *rest) for shape, *rest in shapes), key[-1])
        others = self._traced[family]
        self._seen[key] += 1
        self._seen[family] += 1
        seen, enough = (
            self._seen[key],
            self.after // (1, 4, 8)[min(len(others), 1 if "sizes" in self.without else 2)],
        )
        if not others and None not in self.traces.values():
            seen = self._seen[family]
        if seen < enough or len(self.traces) >= self.most:
            return self.step(params, buffers, counters, batch, step)
        before = self._surroundings.state(), drawn()
        result = self.step(params, buffers, counters, batch, step)
        pure = before == (self._surroundings.state(), drawn())
        sizes = (len(params), len(buffers), len(counters))
        self.traces[key] = self._trace(inputs, sizes, step, others) if pure else None
        return result

    def _trace(
        self,
        inputs: list[Tensor],
        sizes: tuple[int, int, int],
        step: int,
        others: dict[int, Program],
    ) -> Trace | None:
        """The trace for inputs like these, or None where it would not do.

        Args:
            inputs: All inputs of the step, flat.
            sizes: How many of them are parameters, floating buffers, integer buffers.
            step: Number of the local step.
            others: Programs for other numbers of clients; one that is traced here joins them.
        """
        made: list[tuple[Any, StackedLog]] = []

        def flat(*tensors: Tensor) -> list[Tensor]:
            one, two, three = accumulate(sizes)
            outputs, log = self.step.raw(
                list(tensors[:one]),
                list(tensors[one:two]),
                list(tensors[two:three]),
                tensors[three:],
                step,
            )
            grads, new_buffers, new_counters, values, given = outputs
            leaves, tree = pytree.tree_flatten(given)
            made.append((tree, log))
            return [*grads, *new_buffers, *new_counters, *values.values(), *leaves]

        def outcome(function: Replay) -> list[Tensor]:
            """All that a call gives or leaves behind, from the generators' present state."""
            tensors = [_copied(tensor) for tensor in inputs]
            with isolated_rng(), torch.no_grad():
                return [*function(*tensors), *tensors, torch.default_generator.get_state()]

        def checked(program: Program) -> Trace | None:
            """The program as a trace, or None where it does not give the very same."""
            try:
                with isolated_rng(), torch.no_grad():
                    replay = compiled(
                        program, list(map(_copied, inputs)), "interpreter" not in self.without
                    )
                # three times, as the interpreter rewrites what it runs after the first two calls
                if not all(all(map(_same, outcome(replay), expected)) for _ in range(3)):
                    return None
            except Exception:  # whatever it is that cannot be traced, it runs untraced
                return None
            (tree, log), (one, two, three) = made[0], accumulate(sizes)
            return Trace(replay, (one, two, three, three + len(log.values)), tree, log)

        n, expected = len(inputs[0]), outcome(flat)
        if len(others) > 1 and n > 1 and "sizes" not in self.without:
            (m, one), (k, two), *_ = others.items()
            likely = resized(one, m, two, k, n)
            trace = None if likely is None else checked(likely)
            if trace is not None:
                return trace
        try:
            with isolated_rng(), torch.no_grad():
                traced = program(make_fx(flat)(*map(_copied, inputs)), self.without)
        except Exception:  # make_fx raises what it likes where it does not know a thing
            return None
        trace = checked(traced)
        if trace is not None and n > 1:  # one client alone has other operators
            others[n] = traced
        return trace


def _copied(tensor: Tensor) -> Tensor:
    """A copy with the same strides, which ``clone`` gives only where there are no gaps."""
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor)


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())
