"""A stacked step traced to plain operators and replayed: the same bits without the transforms."""

from __future__ import annotations

import dis
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fedlight.executors.rng import isolated_rng
from fedlight.executors.stacked_step import Outputs, StackedLog, StackedStep

if TYPE_CHECKING:
    from lightning import LightningModule

Replay: TypeAlias = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class _Trace:
    replay: Replay
    spec: Any
    log: StackedLog


class TracedStep:
    """`StackedStep`, traced with ``make_fx`` once per shape and replayed without the transforms.

    ``vmap`` and ``grad`` pay for each operator at each step; the operators that they end in are
    the same each time. A shape is traced once it has come up `after` times, since a trace costs
    as much as some dozens of steps, and no more than `most` of them are made. Replaying gives
    the bits of the untraced step, also of what it draws, so that neither number changes a result.

    What cannot be traced runs untraced: a step that has other effects than its outputs (it counts
    in an attribute, draws from Python's or NumPy's generators), or whose first replay did not
    give the very bits of the untraced step. A step that reads ``batch_idx`` is traced for each
    value of it.

    Args:
        step: The untraced step.
        after: How many times a shape runs untraced before it is traced.
        most: How many traces are kept.
    """

    def __init__(self, step: StackedStep, after: int = 16, most: int = 64) -> None:
        self.step = step
        self.after, self.most = after, most
        self.traces: dict[Any, _Trace | None] = {}
        self._seen: Counter[Any] = Counter()
        self._reads_index = _reads_index(step.module)

    def __call__(
        self,
        params: list[Tensor],
        buffers: list[Tensor],
        counters: list[Tensor],
        batch: Any,
        step: int,
    ) -> tuple[list[Tensor], StackedLog]:
        """As `StackedStep`."""
        leaves, spec = pytree.tree_flatten((params, buffers, counters, batch))
        if not all(isinstance(leaf, Tensor) for leaf in leaves):
            return self.step(params, buffers, counters, batch, step)
        key = tuple((leaf.shape, leaf.stride(), leaf.dtype) for leaf in leaves)
        if self._reads_index:
            key = (*key, step)  # type: ignore[assignment]  # a key all the same
        if key not in self.traces:
            self._seen[key] += 1
            if self._seen[key] <= self.after or len(self.traces) >= self.most:
                return self.step(params, buffers, counters, batch, step)
            del self._seen[key]
            self.traces[key] = self._trace(leaves, spec, step)
        trace = self.traces[key]
        if trace is None:
            return self.step(params, buffers, counters, batch, step)
        with torch.no_grad():
            outputs = pytree.tree_unflatten(trace.replay(*leaves), trace.spec)
        return self.step.unpacked(buffers, counters, outputs, trace.log)

    def _trace(self, leaves: Sequence[Tensor], spec: Any, step: int) -> _Trace | None:
        """The trace for inputs like these, or None where it would not do."""
        specs: list[Any] = []
        logs: list[StackedLog] = []

        def flat(*leaves: Tensor) -> list[Tensor]:
            outputs, log = self.step.raw(*pytree.tree_unflatten(leaves, spec), step)
            flattened, out_spec = pytree.tree_flatten(outputs)
            specs.append(out_spec)
            logs.append(log)
            return flattened

        def copies() -> list[Tensor]:
            return [leaf.detach().clone(memory_format=torch.preserve_format) for leaf in leaves]

        def drawn(function: Replay) -> tuple[Sequence[Tensor], list[Tensor]]:
            inputs = copies()
            with isolated_rng(), torch.no_grad():
                return function(*inputs), inputs

        before = _plain_state(self.step.module)
        with isolated_rng():
            python, numpy = random.getstate(), _numpy_state()
            with torch.enable_grad():
                pass
            try:
                graph = make_fx(flat)(*leaves_of(copies()))
            except Exception:  # whatever it is, the untraced step works
                return None
            if random.getstate() != python or _numpy_state() != numpy:
                return None
        replay = _compiled(graph)
        expected = drawn(flat)
        if _plain_state(self.step.module) != before or not _same(drawn(replay), expected):
            return None
        return _Trace(replay, specs[0], logs[0])
