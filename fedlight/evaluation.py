"""The server's model on validation or test data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor

from fedlight.executors.capture import LogRecorder, step_function
from fedlight.executors.rng import isolated_rng, seed_all

if TYPE_CHECKING:
    from lightning import LightningModule

_KEPT_BYTES = 256 * 2**20


class EvaluationBatches:
    """The batches of a validation, made once and kept on the device where they are small.

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
        self._number = number if limit is None else min(number, limit)
        self._kept: list[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._kept is None:
            batches = islice(self._examples.batches(self._batch_size), self._number)
            if not self._examples.stackable:
                return batches
            first = next(batches)
            size = sum(part.nbytes for part in first if isinstance(part, Tensor))
            if size * self._number > _KEPT_BYTES:
                return islice(self._examples.batches(self._batch_size), self._number)
            self._kept = [first, *batches]
        return iter(self._kept)


def evaluate(
    module: LightningModule,
    batches: Iterable[Any],
    stage: str,
    autocast: AbstractContextManager[Any],
    seed: int = 0,
) -> dict[str, float]:
    """Run ``validation_step`` or ``test_step`` over batches; the metrics that it logged.

    Logged numbers are averaged over examples; metric objects are computed over all of them. The
    module's ``on_<stage>_epoch_start`` and ``on_<stage>_epoch_end`` are called. The global random
    generators are left as they were.

    Args:
        module: Holds the weights to be evaluated.
        batches: Batches on the module's device.
        stage: "validation" or "test".
        autocast: The context of the run's precision.
        seed: Seed of what the step draws.
    """
    recorder = LogRecorder(module)
    step = step_function(module, f"{stage}_step")
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad(), isolated_rng(), recorder.recording(), autocast:
            seed_all(seed)
            getattr(module, f"on_{stage}_epoch_start")()
            examples = 0
            for index, batch in enumerate(batches):
                recorder.batch_size = extract_batch_size(batch)
                examples += recorder.batch_size
                step(batch, index)
            getattr(module, f"on_{stage}_epoch_end")()
            logged = recorder.collect(max(examples, 1))
    finally:
        module.train(was_training)
    return {name: total / weight for name, (total, weight) in logged.items() if weight}
