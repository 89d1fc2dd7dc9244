"""The server's model on validation or test data."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities.data import extract_batch_size

from fedlight.executors.capture import LogRecorder, step_function
from fedlight.executors.rng import isolated_rng, seed_all

if TYPE_CHECKING:
    from lightning import LightningModule


def evaluate(
    module: LightningModule,
    batches: Iterable[Any],
    stage: str,
    *,
    limit: int | float | None = None,
    num_batches: int | None = None,
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
        limit: At most so many batches, or this share of `num_batches`.
        num_batches: How many batches there are.
        autocast: The context of the run's precision.
        seed: Seed of what the step draws.
    """
    limit = _limit(limit, num_batches)
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
                if limit is not None and index >= limit:
                    break
                recorder.batch_size = extract_batch_size(batch)
                examples += recorder.batch_size
                step(batch, index)
            getattr(module, f"on_{stage}_epoch_end")()
            logged = recorder.collect(max(examples, 1))
    finally:
        module.train(was_training)
    return {name: total / weight for name, (total, weight) in logged.items() if weight}


def _limit(limit: int | float | None, num_batches: int | None) -> int | None:
    if isinstance(limit, float) and num_batches is not None:
        return max(1, int(limit * num_batches))
    return None if limit is None else int(limit)
