"""The calls of `fit`, `validate`, `test` and `predict`, and the results of the newest one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from lightning import LightningModule

from fedlight._fit.argument_checks import as_module, check_data
from fedlight._fit.callback_hooks import HasModule, Hooks
from fedlight._fit.module_trainer import attached
from fedlight._fit.one_fit import Fit, evaluator_of
from fedlight._fit.options import TrainerOptions
from fedlight._fit.profiling import profiled
from fedlight._fit.start_order import set_up, with_callbacks_of
from fedlight._fit.torch_settings import torch_settings
from fedlight._module.evaluation import lent, show_metrics
from fedlight._module.log_recorder import LogRecorder
from fedlight._module.prediction import are_loaders, batches_to_predict, predict
from fedlight._support.checks import flag
from fedlight._support.interrupts import Alone, Interrupt, graceful_interrupts
from fedlight._support.messages import voice
from fedlight.callbacks.checkpoint import content_of
from fedlight.checkpoint import load_weights
from fedlight.data import FederatedDataModule
from fedlight.loop import Counts
from fedlight.run import Run
from fedlight.types import Metrics, RoundRecord

T = TypeVar("T")


class Calls:
    """Prepares module, data and PyTorch for a call, and keeps module, data and results.

    Each call gets the trainer, for callbacks and modules. It is not kept: with a circle, the models
    of a trainer that nobody needs would stay until Python looks for circles.

    Args:
        options: The options of the trainer.

    Attributes:
        given: The module of the newest call, which need not show the newest model; or None.
        datamodule: The data of the newest call, or None.
        counts: How far the newest run is.
        history: Its rounds.
        metrics: The newest value of each metric, of that run and of evaluations since.
        interrupt: The signal that has ended the newest fit.
    """

    def __init__(self, options: TrainerOptions) -> None:
        self._options = options
        self.given: LightningModule | None = None
        self.datamodule: FederatedDataModule | None = None
        self._run: Run | None = None
        self.counts = Counts()
        self.history: list[RoundRecord] = []
        self.metrics = Metrics()
        self.interrupt = Interrupt()
        self._alone = Alone()

    @property
    def module(self) -> LightningModule:
        """The module, with the server's newest model in it.

        Raises:
            RuntimeError: There was no call yet.
        """
        if self.given is None:
            raise RuntimeError("this trainer has no module yet; call fit(module, datamodule)")
        if self._run is not None and self._run.module is self.given:
            self._run.show()
        return self.given

    @property
    def run(self) -> Run:
        """The newest run.

        Raises:
            RuntimeError: Nothing was fitted yet.
        """
        if self._run is None:
            raise RuntimeError("this trainer has no model yet; call fit(module, datamodule)")
        return self._run

    @property
    def now(self) -> float:
        """The virtual time of the newest run; 0 before the first."""
        return 0.0 if self._run is None else self._run.schedule.now

    @contextmanager
    def fit(
        self,
        trainer: HasModule,
        module: LightningModule,
        data: FederatedDataModule,
        ckpt_path: str | Path | None,
    ) -> Iterator[Fit]:
        """Within the context a fit is under way; it is ended on exit, also after an error."""
        with (
            self._alone,
            self._prepared(trainer, "fit", module, ckpt_path) as logs,
            graceful_interrupts() as self.interrupt,
        ):
            content, path = self._with_callbacks_of(module, ckpt_path)
            if path and content is None:
                voice().checkpoint(f"no checkpoint in {path}: a new run")
            self.given, self.datamodule = module, data
            fit = Fit(trainer, self._options, logs, module, data, content, path)
            self._run = run = fit.run
            self.counts, self.history, self.metrics = run.counts, run.history, run.metrics
            with fit.ended():
                yield fit

    def evaluate(
        self,
        trainer: HasModule,
        verb: str,
        module: object,
        datamodule: FederatedDataModule | None,
        ckpt_path: str | Path | None,
        verbose: bool,
    ) -> list[dict[str, float]]:
        """Do what `validate` or `test` does; the arguments are theirs.

        Args:
            trainer: The trainer.
            verb: "validate" or "test".
            module: The module; None for that of the newest call.
            datamodule: The data; None for those of the newest call.
            ckpt_path: A checkpoint whose weights are loaded into the module.
            verbose: Whether the metrics are printed.
        """
        stage = {"validate": "validation", "test": "test"}[verb]
        verbose = flag("verbose", verbose)
        own, data = self._chosen(module, datamodule)
        if data is None:
            raise ValueError(f"{verb} needs a datamodule: write trainer.{verb}(module, datamodule)")
        inference = self._options.settings.inference_mode
        evaluator = evaluator_of(self._options, own, data, inference)
        ready = partial(evaluator.get_ready, stage, verb)
        with self._outside_of_fit(trainer, verb, own, data, ckpt_path, ready) as (hooks, _):
            if not evaluator.can(stage):  # its number of batches is limited to 0
                return []
            hooks(f"on_{stage}_start")
            metrics = evaluator(stage, self.metrics)
            self.metrics.merge(metrics)
            hooks(f"on_{stage}_end")
        if verbose:
            show_metrics(stage, metrics.logged())
        return evaluator.by_data_set(stage, metrics.logged())

    def predict(
        self,
        trainer: HasModule,
        module: object,
        datamodule: FederatedDataModule | None,
        dataloaders: Any,
        dataset: Any,
        return_predictions: bool,
        ckpt_path: str | Path | None,
    ) -> list[Any] | None:
        """Do what `FedTrainer.predict` does; the arguments are its."""
        keep = flag("return_predictions", return_predictions)
        if dataloaders is None and are_loaders(datamodule):  # the second argument of Lightning's
            datamodule, dataloaders = None, datamodule
        own, data = self._chosen(module, datamodule)
        settings, fabric = self._options.settings, self._options.fabric
        limit = settings.limit_predict_batches
        ready = partial(batches_to_predict, own, fabric, data, dataloaders, dataset, limit)
        outside = self._outside_of_fit(trainer, "predict", own, data, ckpt_path, ready)
        with outside as (hooks, batches):
            hooks("on_predict_start")
            inference, seed = settings.inference_mode, self._options.setting.seed
            found = predict(own, fabric, batches, keep, inference, seed)
            hooks("on_predict_end")
        return found

    def _chosen(
        self, module: object, data: object
    ) -> tuple[LightningModule, FederatedDataModule | None]:
        """The module and the data of an evaluation: those given, or those of the newest call."""
        own = self.module if module is None else as_module(module)
        return own, self.datamodule if data is None else check_data(data)

    @contextmanager
    def _outside_of_fit(
        self,
        trainer: HasModule,
        verb: str,
        module: LightningModule,
        data: FederatedDataModule | None,
        ckpt_path: str | Path | None,
        get_ready: Callable[[], T],
    ) -> Iterator[tuple[Hooks, T]]:
        """Within the context a module is evaluated; yield the hooks and `get_ready`'s value."""
        self.given, self.datamodule = module, data
        module = self.module  # called within a fit, with the server's newest model in it
        with self._prepared(trainer, verb, module, ckpt_path):
            content, path = self._with_callbacks_of(module, ckpt_path)
            hooks = Hooks(trainer, self._options)
            ready = get_ready()
            try:
                set_up(module, hooks, self._options.fabric, verb)
                if content is not None:
                    load_weights(module, content, path)
                    voice().checkpoint(f"weights of {path}")
                elif path:
                    voice().checkpoint(f"no checkpoint in {path}: the module keeps its weights")
                yield hooks, ready
            finally:
                if data is not None:
                    data.teardown(verb)
                hooks("teardown", verb)
                module.teardown(verb)

    @contextmanager
    def _prepared(
        self,
        trainer: HasModule,
        verb: str,
        module: LightningModule,
        ckpt_path: str | Path | None,
    ) -> Iterator[LogRecorder]:
        """Within the context the module has its device and its trainer, PyTorch its settings."""
        settings = self._options.settings
        with (
            lent(module, self._options.fabric),
            attached(module, trainer, verb, ckpt_path) as logs,
            torch_settings(settings),
            profiled(settings.profiler, verb),
        ):
            yield logs

    def _with_callbacks_of(
        self, module: LightningModule, ckpt_path: str | Path | None
    ) -> tuple[dict[str, Any] | None, str]:
        """Add the module's own callbacks; return the content of the checkpoint and its path."""
        callbacks = self._options.callbacks
        callbacks[:] = with_callbacks_of(module, callbacks, self._options.default_root_dir)
        return content_of(ckpt_path, callbacks)
