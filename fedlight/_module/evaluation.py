"""The server's model on validation or test data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from lightning import LightningModule
from lightning.fabric.utilities.device_dtype_mixin import _DeviceDtypeModuleMixin
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning_utilities.core.rank_zero import WarningCache
from rich.console import Console
from rich.table import Table

from fedlight._module.attributes import own_generators
from fedlight._module.batch_hooks import batch_hooks
from fedlight._module.current_stage import SANITY_CHECK, at_stage
from fedlight._module.evaluation_batches import EvaluationBatches
from fedlight._module.labels import hint_about_batch
from fedlight._module.log_recorder import LogRecorder, metrics_from
from fedlight._module.rng import isolated_rng, seed_all
from fedlight._module.steps import evaluation_step
from fedlight.parameters import input_dtype
from fedlight.types import LoggedValue

if TYPE_CHECKING:
    from lightning import Fabric
    from lightning.pytorch.profilers import Profiler

    from fedlight.data import FederatedDataModule
    from fedlight.types import Metrics


_warnings = WarningCache()


@contextmanager
def lent(module: LightningModule, fabric: Fabric) -> Iterator[None]:
    """Within the context, ``self.device`` is the run's; on exit the module is on its own device.

    `place` moves the module to the device, once all its layers are made. Its numbers keep the
    precision that they have got, as under `lightning.Trainer`.

    Args:
        module: The module.
        fabric: Gives device and precision.
    """
    tensors = chain(module.parameters(), module.buffers())
    home = next((tensor.device for tensor in tensors), torch.device("cpu"))
    for child in module.modules():
        if isinstance(child, _DeviceDtypeModuleMixin):
            child._device = fabric.device  # ``setup`` reads it as ``self.device``
    try:
        yield
    finally:
        module.to(home)


def warn_if_logged_twice(training: Mapping[str, float], validation: Mapping[str, float]) -> None:
    """Warn once of names under which both training and validation log a value."""
    for name in validation.keys() & training.keys():
        _warnings.warn(
            f"fedlight: self.log({name!r}, …) is called in training and in validation; a round has "
            "one value for a name, and the validation's replaces the other in rounds that are "
            f"validated. Give them two names, such as 'train_{name}' and 'val_{name}'"
        )


def place(module: LightningModule, fabric: Fabric) -> None:
    """Give a module the precision and the device of a run."""
    fabric.strategy.precision.convert_module(module)
    fabric.to_device(module)


@dataclass(frozen=True, eq=False, repr=False)
class Evaluator:
    """Runs a module's ``validation_step`` or ``test_step`` over the data of that stage.

    Attributes:
        module: The module; its weights at the time of a call are evaluated.
        datamodule: The data, set up. Batches are made at the first call and kept.
        fabric: Gives device and precision.
        limits: At most so many batches (int) or this share of them (float), by stage.
        seed: Seed of the random numbers that a step draws.
        inference_mode: Run under ``torch.inference_mode`` instead of ``torch.no_grad``.
        most: In addition to the limits, at most so many batches of each data set.
    """

    module: LightningModule
    datamodule: FederatedDataModule
    fabric: Fabric
    limits: Mapping[str, int | float | None]
    seed: int
    inference_mode: bool = False
    most: int | None = None
    _batches: dict[str, list[EvaluationBatches]] = field(default_factory=dict, init=False)

    def has_step(self, stage: str) -> bool:
        """Whether the module defines ``<stage>_step``."""
        return bool(is_overridden(f"{stage}_step", self.module, LightningModule))

    def has_data(self, stage: str) -> bool:
        """Whether there are data for the stage."""
        return bool(self.datamodule.evaluation_data(stage))

    def check_step(self, stage: str) -> None:
        """Check that the step takes ``dataloader_idx`` if there are several data sets.

        Raises:
            ValueError: It does not, or it needs one though there is a single data set.
        """
        if self.has_data(stage) and self.has_step(stage):
            evaluation_step(self.module, stage, len(self.datamodule.evaluation_data(stage)))

    def can(self, stage: str) -> bool:
        """Whether the module has the step and the data module the data, and batches may be used."""
        return self.has_data(stage) and self.has_step(stage) and self.limits[stage] != 0

    def validate(
        self, of_round: Metrics, newest: Metrics, hooks: Callable[[str], object], profiler: Profiler
    ) -> None:
        """Validate a new version within a fit.

        Args:
            of_round: The metrics of its round, which get those of the validation.
            newest: The newest value of each metric, which gets both before ``on_validation_end``.
            hooks: Calls a hook of the callbacks by its name.
            profiler: Measures it.
        """
        with at_stage(self.module, "validate"):
            self.module.on_validation_model_zero_grad()
            hooks("on_validation_start")
            with profiler.profile("validation"):
                found = self("validation", newest)
            warn_if_logged_twice(of_round, found)
            of_round.merge(found)
            newest.merge(of_round)
            hooks("on_validation_end")

    def check_sanity(self, steps: int, newest: Metrics, hooks: Callable[[str], object]) -> None:
        """Run over the first validation batches; as in Lightning, hooks alone see the metrics.

        Args:
            steps: How many; -1 for all.
            newest: The newest value of each metric, empty before and afterwards.
            hooks: Calls a hook of the callbacks by its name.
        """
        if not self.can("validation"):
            return
        first = replace(self, most=None if steps == -1 else steps)
        with at_stage(self.module, SANITY_CHECK):
            hooks("on_sanity_check_start")
            hooks("on_validation_start")
            newest.merge(first("validation", newest))
            hooks("on_validation_end")
            hooks("on_sanity_check_end")
        newest.clear()
        newest.prog_bar = newest.unlogged = frozenset()

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
                f"{type(self.module).__name__} has no {stage}_step; define {stage}_step(self, "
                f"batch, batch_idx) that logs what {verb} should report"
            )
        self.datamodule.prepare_data()
        self.module.prepare_data()
        self.datamodule.setup(verb)
        if not self.has_data(stage):
            raise ValueError(f"{self.datamodule!r} has no {stage} data")
        self.check_step(stage)

    def __call__(self, stage: str, newest: Metrics) -> Metrics:
        """The metrics of a stage, "validation" or "test".

        Args:
            stage: The stage.
            newest: Gets the values that the steps have logged, before the hooks at the end.
        """
        if stage not in self._batches:
            device, dtype = self.fabric.device, input_dtype(self.module)
            size, limit = self.datamodule.eval_batch_size, self.limits[stage]
            self._batches[stage] = [
                EvaluationBatches(examples, size, limit, self.most, device, dtype)
                for examples in self.datamodule.evaluation_data(stage)
            ]
        autocast = self.fabric.autocast()
        first, *more = self._batches[stage]
        return evaluate(
            self.module, first, stage, autocast, self.seed, more, self.inference_mode, newest
        )

    def by_data_set(self, stage: str, metrics: Mapping[str, float]) -> list[dict[str, float]]:
        """One dict for each data set; a name without the number of a data set is in all of them."""
        suffixes = [
            f"/dataloader_idx_{k}" for k in range(len(self.datamodule.evaluation_data(stage)))
        ]
        return [
            {
                name: value
                for name, value in metrics.items()
                if name.endswith(own) or not name.endswith(tuple(suffixes))
            }
            for own in suffixes
        ]


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
    more: Sequence[Iterable[tuple[int, Any]]] = (),
    inference_mode: bool = False,
    newest: Metrics | None = None,
) -> Metrics:
    """Run ``validation_step`` or ``test_step`` over batches; the metrics that it logged.

    Logged numbers are averaged over examples, or reduced as ``reduce_fx`` says; metric objects are
    computed over all of them. With ``on_step=True``, ``name_step`` is the last batch's value. The
    module's hooks are called as by Lightning: ``on_<stage>_model_eval``, ``on_<stage>_start``,
    ``on_<stage>_epoch_start``, for each batch its transfer hooks, ``on_<stage>_batch_start`` and
    ``on_<stage>_batch_end``, then ``on_<stage>_epoch_end``, ``on_<stage>_end`` and
    ``on_<stage>_model_train``. The global random generators are left as they were.

    As in Lightning, a value logged over the k-th of several data sets has the name
    ``<name>/dataloader_idx_k``. A metric object is not reset between them.

    Args:
        module: Holds the weights to be evaluated.
        batches: Sizes and batches, on the module's device.
        stage: "validation" or "test".
        autocast: The context of the run's precision.
        seed: Seed of the random numbers that the step draws.
        more: Sizes and batches of further data sets.
        inference_mode: Run the steps under ``torch.inference_mode`` instead of ``torch.no_grad``.
        newest: Gets the values that the steps have logged. The hooks at the end may read it.

    Raises:
        ValueError: The step does not take the ``dataloader_idx`` that it needs, or needs one though
            there is a single data set.
    """
    recorder = LogRecorder(module)
    sets = [batches, *more]
    step = evaluation_step(module, stage, len(sets))
    # By layer: a module may keep some of its layers in evaluation mode while it trains.
    modes = {child: child.training for child in module.modules()}
    prepared = batch_hooks(module)
    generators = own_generators(module).values()
    before, after = (getattr(module, f"on_{stage}_batch_{moment}") for moment in ("start", "end"))
    try:
        with (
            at_stage(module, "validate" if stage == "validation" else stage),
            torch.no_grad(),
            isolated_rng(generators),
            recorder.recording(),
            autocast,
        ):
            seed_all(seed, generators)
            examples = 0
            logged: dict[str, LoggedValue] = {}
            with torch.inference_mode() if inference_mode else nullcontext():
                # Lightning's own hook needs `self.trainer.model`, so its effect is repeated here.
                if is_overridden(f"on_{stage}_model_eval", module, LightningModule):
                    getattr(module, f"on_{stage}_model_eval")()
                else:
                    module.eval()
                getattr(module, f"on_{stage}_start")()
                getattr(module, f"on_{stage}_epoch_start")()
                recorder.next_hook()
                for number, batches in enumerate(sets):
                    which = (number,) if more else ()  # Lightning names the data set only then
                    recorder.dataloader_idx = number if more else None
                    for index, (size, batch) in enumerate(batches):
                        recorder.batch_size = size
                        examples += size
                        if prepared is not None:
                            batch = prepared(batch)
                        before(batch, index, *which)
                        try:
                            output = step(batch, index, number)
                        except Exception as error:
                            if hint := hint_about_batch(error, batch, "The batch's"):
                                error.add_note(f"({hint.removeprefix('. ')})")
                            raise
                        after(output, batch, index, *which)
                    if more:
                        logged |= recorder.collect(max(examples, 1), reset=False)
                recorder.dataloader_idx = None
                ends = [f"on_{stage}_epoch_end", f"on_{stage}_end"]
                if newest is not None and any(
                    is_overridden(name, module, LightningModule) for name in ends
                ):
                    logged |= recorder.collect(max(examples, 1), reset=False)
                    newest.merge(metrics_from(logged))
                recorder.next_hook()
                getattr(module, f"on_{stage}_epoch_end")()
                getattr(module, f"on_{stage}_end")()
            # Outside of it, so that metric objects get back states that a later fit may change.
            logged |= recorder.collect(max(examples, 1))
            if is_overridden(f"on_{stage}_model_train", module, LightningModule):
                getattr(module, f"on_{stage}_model_train")()
                modes.clear()  # the module itself has set the modes to go on with
    finally:
        recorder.clear()
        for child, training in modes.items():
            child.training = training
    return metrics_from(logged)
