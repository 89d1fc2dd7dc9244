"""`validate`, `test` and `predict` of `FedTrainer`: the server's model without a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fedlight._fit.arguments import as_module, check_data, given_module
from fedlight._fit.callback_hooks import Hooks
from fedlight._fit.lightning_arguments import refuse_arguments
from fedlight._fit.module_trainer import attached
from fedlight._fit.order import set_up, with_callbacks_of
from fedlight._fit.surroundings import profiled, surroundings
from fedlight._module.evaluation import Evaluator, lent, show_metrics
from fedlight._module.prediction import are_loaders, batches_to_predict, predict
from fedlight.callbacks.checkpoint import content_of
from fedlight.checkpoint import load_weights

if TYPE_CHECKING:
    from pathlib import Path

    from lightning import Fabric, LightningModule
    from lightning.pytorch.profilers import Profiler

    from fedlight._fit.lightning_arguments import Settings
    from fedlight.callbacks import Callback
    from fedlight.data import FederatedDataModule
    from fedlight.trainer import FedTrainer
    from fedlight.types import Metrics, RoundRecord

T = TypeVar("T")


class OutsideOfFit:
    """The verbs of a trainer that train nothing. The attributes are those of `FedTrainer`."""

    datamodule: FederatedDataModule | None
    callbacks: list[Callback]
    fabric: Fabric
    settings: Settings
    profiler: Profiler
    limit_val_batches: int | float | None
    seed: int
    default_root_dir: Path
    newest_metrics: Metrics
    _module: LightningModule | None
    _hooks: Hooks

    if TYPE_CHECKING:

        @property
        def module(self) -> LightningModule: ...

        def _made_version(self, record: RoundRecord) -> None: ...

    def _evaluator_of(
        self, module: LightningModule, data: FederatedDataModule, inference_mode: bool = False
    ) -> Evaluator:
        limits = {"validation": self.limit_val_batches, "test": self.settings.limit_test_batches}
        return Evaluator(module, data, self.fabric, limits, self.seed, inference_mode)

    def validate(
        self,
        module: LightningModule | None = None,
        datamodule: FederatedDataModule | None = None,
        ckpt_path: str | Path | None = None,
        verbose: bool = False,
        *,
        model: LightningModule | None = None,
        **others: Any,
    ) -> list[dict[str, float]]:
        """Run ``validation_step`` over the validation data; a dict of metrics for each data set.

        Args:
            module: The module; None for the one that was fitted.
            datamodule: The data; None for those of ``fit``.
            ckpt_path: A checkpoint whose weights are loaded into the module; also "last", "best".
            verbose: Print the metrics.
            model: The module, by its name in Lightning.
            **others: Refused, with what to write for Lightning's.
        """
        refuse_arguments("validate", others)
        return self._evaluate_alone(
            "validation", "validate", given_module(module, model), datamodule, ckpt_path, verbose
        )

    def test(
        self,
        module: LightningModule | None = None,
        datamodule: FederatedDataModule | None = None,
        ckpt_path: str | Path | None = None,
        verbose: bool = False,
        *,
        model: LightningModule | None = None,
        **others: Any,
    ) -> list[dict[str, float]]:
        """Run ``test_step`` over the test data; a dict of metrics for each data set.

        Args:
            module: The module; None for the one that was fitted.
            datamodule: The data; None for those of ``fit``.
            ckpt_path: A checkpoint whose weights are loaded into the module; also "last", "best".
            verbose: Print the metrics.
            model: The module, by its name in Lightning.
            **others: Refused, with what to write for Lightning's.
        """
        refuse_arguments("test", others)
        return self._evaluate_alone(
            "test", "test", given_module(module, model), datamodule, ckpt_path, verbose
        )

    def _evaluate_alone(
        self,
        stage: str,
        verb: str,
        given: object,
        datamodule: FederatedDataModule | None,
        ckpt_path: str | Path | None,
        verbose: bool,
    ) -> list[dict[str, float]]:
        module = self.module if given is None else as_module(given)
        data = self.datamodule if datamodule is None else check_data(datamodule)
        if data is None:
            raise ValueError(f"{verb} needs a datamodule: write trainer.{verb}(module, datamodule)")
        evaluator = self._evaluator_of(module, data, self.settings.inference_mode)
        ready = partial(evaluator.get_ready, stage, verb)
        with self._outside_of_fit(verb, module, data, ckpt_path, ready):
            if not evaluator.can(stage):  # its number of batches is limited to 0
                return []
            self._hooks(f"on_{stage}_start")
            metrics = evaluator(stage, self.newest_metrics)
            self.newest_metrics.merge(metrics)
            self._hooks(f"on_{stage}_end")
        if verbose:
            show_metrics(stage, metrics.logged())
        return evaluator.by_data_set(stage, metrics.logged())

    def predict(
        self,
        module: LightningModule | None = None,
        datamodule: FederatedDataModule | None = None,
        dataloaders: Any = None,
        dataset: Any = None,
        return_predictions: bool = True,
        ckpt_path: str | Path | None = None,
        *,
        model: LightningModule | None = None,
        **others: Any,
    ) -> list[Any] | None:
        """Run ``predict_step`` (by default ``forward``) over data; what it returns for each batch.

        Args:
            module: The module; None for the one that was fitted.
            datamodule: Its test data are taken; None for that of ``fit``. A `DataLoader`, or a list
                of them, is taken for `dataloaders`.
            dataloaders: Batches to take instead, such as a `DataLoader`; of a list of loaders the
                result is a list for each.
            dataset: A data set to take instead.
            return_predictions: Whether to keep the predictions, on the CPU; else None is returned.
            ckpt_path: A checkpoint whose weights are loaded into the module; also "last", "best".
            model: The module, by its name in Lightning.
            **others: Refused, with what to write for Lightning's.
        """
        refuse_arguments("predict", others)
        if dataloaders is None and are_loaders(datamodule):  # the second argument of Lightning's
            datamodule, dataloaders = None, datamodule
        given = given_module(module, model)
        module = self.module if given is None else as_module(given)
        data = self.datamodule if datamodule is None else check_data(datamodule)
        limit, inference = self.settings.limit_predict_batches, self.settings.inference_mode
        ready = partial(batches_to_predict, module, self.fabric, data, dataloaders, dataset, limit)
        with self._outside_of_fit("predict", module, data, ckpt_path, ready) as batches:
            self._hooks("on_predict_start")
            found = predict(module, self.fabric, batches, return_predictions, inference, self.seed)
            self._hooks("on_predict_end")
        return found

    @contextmanager
    def _outside_of_fit(
        self,
        verb: str,
        module: LightningModule,
        data: FederatedDataModule | None,
        ckpt_path: str | Path | None,
        get_ready: Callable[[], T],
    ) -> Iterator[T]:
        trainer = cast("FedTrainer", self)
        if module is self._module:
            module = trainer.module  # within a fit: as the server has it now
        self._module, self.datamodule = module, data
        with (
            lent(module, self.fabric),
            attached(module, trainer, verb, ckpt_path),
            surroundings(self.settings),
            profiled(self.profiler, verb),
        ):
            self.callbacks[:] = with_callbacks_of(module, self.callbacks, self.default_root_dir)
            self._hooks = Hooks(trainer, self.callbacks, self._made_version)
            content = content_of(ckpt_path, self.callbacks)
            ready = get_ready()
            try:
                set_up(module, self._hooks, self.fabric, verb)
                if content is not None:
                    load_weights(module, content, str(ckpt_path))
                yield ready
            finally:
                if data is not None:
                    data.teardown(verb)
                self._hooks("teardown", verb)
                module.teardown(verb)
