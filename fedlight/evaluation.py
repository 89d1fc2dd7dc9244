"""The server's model on validation or test data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from fedlight.executors._capture import LogRecorder, step_function
from fedlight.executors._rng import isolated_rng, seed_all

if TYPE_CHECKING:
    from lightning import LightningModule

_KEPT_BYTES = 256 * 2**20


class EvaluationBatches:
    """The batches of a validation and their sizes, made once and kept where they are small.

    Args:
        examples: An `ExampleTable` or `ExampleList` on the device.
        batch_size: Examples per batch.
        limit: At most so many batches (int) or this share of them (float).
    """

    def __init__(self, examples: Any, batch_size: int, limit: int | float | None) -> None:
        self._examples, self._batch_size = examples, batch_size
        number = -(-len(examples) // batch_size)
        if isinstance(limit, float):
            limit = max(1, int(limit * number))
        number = number if limit is None else min(number, limit)
        self._sizes = [min(batch_size, len(examples) - k * batch_size) for k in range(number)]
        self._kept: list[Any] | None = None

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        if self._kept is None:
            if not self._examples.stackable:
                return self._made()
            _, first = next(self._made())
            if sum(part.nbytes for part in first) * len(self._sizes) > _KEPT_BYTES:
                return self._made()
            self._kept = [batch for _, batch in self._made()]
        return zip(self._sizes, self._kept, strict=True)

    def _made(self) -> Iterator[tuple[int, Any]]:
        return zip(self._sizes, self._examples.batches(self._batch_size), strict=False)


def evaluate(
    module: LightningModule,
    batches: Iterable[tuple[int, Any]],
    stage: str,
    autocast: AbstractContextManager[Any],
    seed: int = 0,
) -> dict[str, float]:
    """Run ``validation_step`` or ``test_step`` over batches; the metrics that it logged.

    Logged numbers are averaged over examples; metric objects are computed over all of them. The
    module's hooks ``on_<stage>_start``, ``on_<stage>_epoch_start``, ``on_<stage>_epoch_end`` and
    ``on_<stage>_end`` are called. The global random generators are left as they were.

    Args:
        module: Holds the weights to be evaluated.
        batches: Sizes and batches, on the module's device.
        stage: "validation" or "test".
        autocast: The context of the run's precision.
        seed: Seed of what the step draws.
    """
    recorder = LogRecorder(module)
    step = step_function(module, f"{stage}_step")
    modes = {child: child.training for child in module.modules()}
    module.eval()
    try:
        with torch.no_grad(), isolated_rng(), recorder.recording(), autocast:
            seed_all(seed)
            getattr(module, f"on_{stage}_start")()
            getattr(module, f"on_{stage}_epoch_start")()
            examples = 0
            for index, (size, batch) in enumerate(batches):
                recorder.batch_size = size
                examples += size
                step(batch, index)
            getattr(module, f"on_{stage}_epoch_end")()
            getattr(module, f"on_{stage}_end")()
            logged = recorder.collect(max(examples, 1))
    finally:
        recorder.clear()
        for child, training in modes.items():
            child.training = training
    return {name: total / weight for name, (total, weight) in logged.items() if weight}
