"""The server's model on validation or test data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from lightning import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from rich.console import Console
from rich.table import Table

from fedlight.executors._capture import LogRecorder, step_function
from fedlight.executors._rng import isolated_rng, seed_all
from fedlight.parameters import input_dtype

if TYPE_CHECKING:
    from lightning import Fabric

    from fedlight.data import FederatedDataModule

_KEPT_BYTES = 256 * 2**20


@contextmanager
def lent(module: LightningModule, fabric: Fabric) -> Iterator[None]:
    """Within it the module is on a device and precision; its ``device``, ``trainer`` … answer.

    Args:
        module: The module.
        fabric: Gives device, precision and loggers.
    """
    before = module._fabric
    fabric.strategy.precision.convert_module(module)
    fabric.to_device(module)
    module.fabric = fabric
    try:
        yield
    finally:
        module.fabric = before


class Evaluator:
    """Runs a module's ``validation_step`` or ``test_step`` over the data of that stage.

    Args:
        module: The module; its weights at the time of a call are evaluated.
        datamodule: The data, set up. Batches are made at the first call and kept.
        fabric: Gives device and precision.
        limits: At most so many batches (int) or this share of them (float), by stage.
        seed: Seed of what a step draws.
        inference_mode: Run under ``torch.inference_mode`` instead of ``torch.no_grad``.
    """

    def __init__(
        self,
        module: LightningModule,
        datamodule: FederatedDataModule,
        fabric: Fabric,
        limits: Mapping[str, int | float | None],
        seed: int,
        inference_mode: bool = False,
    ) -> None:
        self._module, self._data, self._fabric = module, datamodule, fabric
        self._limits, self._seed = limits, seed
        self._inference_mode = inference_mode
        self._batches: dict[str, EvaluationBatches] = {}

    def has_step(self, stage: str) -> bool:
        """Whether the module defines ``<stage>_step``."""
        return bool(is_overridden(f"{stage}_step", self._module, LightningModule))

    def has_data(self, stage: str) -> bool:
        """Whether there are data for the stage."""
        return self._examples(stage) is not None

    def can(self, stage: str) -> bool:
        """Whether the module has the step and the data module the data, and batches may be used."""
        return self.has_data(stage) and self.has_step(stage) and self._limits[stage] != 0

    def check_sanity(self, steps: int, hooks: Callable[[str], None]) -> None:
        """Run over the first validation batches, and discard the metrics.

        Args:
            steps: How many; -1 for all.
            hooks: Calls a hook of the callbacks by its name.
        """
        if not self.can("validation"):
            return
        limits = {"validation": self._limits["validation"] if steps == -1 else steps}
        first = Evaluator(
            self._module, self._data, self._fabric, limits, self._seed, self._inference_mode
        )
        hooks("on_sanity_check_start")
        hooks("on_validation_start")
        first("validation")
        hooks("on_validation_end")
        hooks("on_sanity_check_end")

    def get_ready(self, stage: str, verb: str) -> None:
        """Set the data up for a stage, and check that there is something to do.

        Args:
            stage: "validation" or "test".
            verb: The trainer's method, "validate" or "test".

        Raises:
            ValueError: The module has no such step, or there are no data for it.
        """
        if not self.has_step(stage):
            raise ValueError(
                f"{type(self._module).__name__} has no {stage}_step; define {stage}_step(self, "
                f"batch, batch_idx) that logs what {verb} should report"
            )
        self._data.prepare_data()
        self._data.setup(verb)
        if not self.has_data(stage):
            raise ValueError(f"{self._data!r} has no {stage} data")

    def __call__(self, stage: str) -> dict[str, float]:
        """The metrics of a stage, "validation" or "test"."""
        if stage not in self._batches:
            examples: Any = self._examples(stage)
            self._batches[stage] = EvaluationBatches(
                examples.to(self._fabric.device, input_dtype(self._module)),
                self._data.eval_batch_size,
                self._limits[stage],
            )
        autocast, batches = self._fabric.autocast(), self._batches[stage]
        return evaluate(self._module, batches, stage, autocast, self._seed, self._inference_mode)

    def _examples(self, stage: str) -> Any:
        return self._data.val_data if stage == "validation" else self._data.test_data


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
        if not self._sizes:
            return iter(())
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


def show_metrics(stage: str, metrics: Mapping[str, float]) -> None:
    """Print the metrics of a stage as a table."""
    table = Table(f"{stage} metric", "value")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.6g}")
    Console().print(table)


def evaluate(
    module: LightningModule,
    batches: Iterable[tuple[int, Any]],
    stage: str,
    autocast: AbstractContextManager[Any],
    seed: int = 0,
    inference_mode: bool = False,
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
        inference_mode: Run the steps under ``torch.inference_mode`` instead of ``torch.no_grad``.
    """
    recorder = LogRecorder(module)
    step = step_function(module, f"{stage}_step")
    modes = {child: child.training for child in module.modules()}
    module.eval()
    try:
        with torch.no_grad(), isolated_rng(), recorder.recording(), autocast:
            seed_all(seed)
            examples = 0
            with torch.inference_mode() if inference_mode else nullcontext():
                getattr(module, f"on_{stage}_start")()
                getattr(module, f"on_{stage}_epoch_start")()
                for index, (size, batch) in enumerate(batches):
                    recorder.batch_size = size
                    examples += size
                    step(batch, index)
                getattr(module, f"on_{stage}_epoch_end")()
                getattr(module, f"on_{stage}_end")()
            # Outside of it, so that metric objects get back states that a later fit may change.
            logged = recorder.collect(max(examples, 1))
    finally:
        recorder.clear()
        for child, training in modes.items():
            child.training = training
    return {name: total / weight for name, (total, weight) in logged.items() if weight}
