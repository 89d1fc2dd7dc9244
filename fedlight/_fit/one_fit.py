"""One call of `FedTrainer.fit`: its run, and the work before, between and after its events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from signal import Signals
from typing import Any

from lightning import LightningModule

from fedlight._fit.callback_hooks import HasModule, Hooks
from fedlight._fit.endings import say_how_it_ended, say_if_lost, say_if_over, say_what_computes
from fedlight._fit.intervals import UpdateInterval, validation_interval
from fedlight._fit.module_hooks import warn_of_hooks
from fedlight._fit.options import TrainerOptions
from fedlight._fit.profiling import each_profiled
from fedlight._fit.start_order import set_up, start_training
from fedlight._fit.strategy_checks import (
    refuse_open_statistics,
    warn_of_own_optimizer,
    warn_of_single_examples,
)
from fedlight._module.evaluation import Evaluator
from fedlight._module.log_recorder import LogRecorder
from fedlight._runs.loggers import finalize, log_hyperparams, log_points, open_again
from fedlight._support.messages import voice
from fedlight.callbacks.checkpoint import keeper_of
from fedlight.data import FederatedDataModule
from fedlight.executors.base import ClientError
from fedlight.run import Run
from fedlight.types import RoundRecord


def evaluator_of(
    options: TrainerOptions,
    module: LightningModule,
    data: FederatedDataModule,
    inference_mode: bool = False,
) -> Evaluator:
    """The evaluator of a trainer with these options."""
    limits = {
        "validation": options.settings.limit_val_batches,
        "test": options.settings.limit_test_batches,
    }
    seed = options.setting.seed
    return Evaluator(module, data, options.fabric, limits, seed, inference_mode)


class Fit:
    """Makes the run, calls the hooks before and after its events, validates and logs.

    Args:
        trainer: The trainer, for the callbacks.
        options: Its options.
        logs: Holds the values that the module logs outside of its steps.
        module: The module.
        data: The clients' data, which are set up here.
        checkpoint: The content of the checkpoint that the run resumes from, or None.
        path: The name of the checkpoint.

    Attributes:
        hooks: Calls the callbacks.
        run: The run.
    """

    def __init__(
        self,
        trainer: HasModule,
        options: TrainerOptions,
        logs: LogRecorder,
        module: LightningModule,
        data: FederatedDataModule,
        checkpoint: dict[str, Any] | None,
        path: str,
    ) -> None:
        warn_of_hooks(module, data)
        data.prepare_data()
        module.prepare_data()
        data.setup("fit")
        open_again(options.open_loggers)
        self._options, self._logs = options, logs
        self._checkpoint, self._path = checkpoint, path
        self.hooks = Hooks(trainer, options, self._made_version)
        self._evaluator = evaluator_of(options, module, data)
        self._every_rounds, every = validation_interval(
            options.check_val_every_n_rounds,
            options.check_val_every_n_updates,
            options.setting.aggregator,
            options.setting.arrivals.shared_by or data.num_clients,
        )
        self._every_updates = None if every is None else UpdateInterval(every)
        if every is not None or self._every_rounds is not None:
            self._evaluator.check_step("validation")
        self.run = Run(
            module,
            data,
            options.setting,
            autocast=options.fabric.strategy.precision.forward_context,
            watcher=self.hooks,
            callbacks=options.callbacks,
            loggers=options.loggers,
        )

    def start(self) -> None:
        """Call the hooks before the first event, then read the module, which they may change."""
        run, options, hooks = self.run, self._options, self.hooks
        set_up(run.module, hooks, options.fabric, "fit")
        if self._checkpoint is not None:
            run.restore(self._checkpoint, self._path)
            voice().checkpoint(f"resumed after round {run.counts.version} from {self._path}")
        resumed = bool(run.counts.version or run.counts.num_updates)
        refuse_open_statistics(run)
        start_training(run.module, hooks, None if resumed else self._check_sanity)
        warn_of_own_optimizer(run.module, run.setting.local_optimizer)
        run.begin()
        say_what_computes(run)
        warn_of_single_examples(run)
        if resumed:
            say_if_over(run)
            return
        if keeper_of(options.callbacks) is not None:
            run.check_savable()
        if options.settings.enable_autolog_hparams:  # a resumed run's loggers have them already
            log_hyperparams(options.loggers, run.module, run.setting, run.federation)

    def _check_sanity(self) -> None:
        steps = self._options.settings.num_sanity_val_steps
        if steps:
            with self._logs.paused():
                self._evaluator.check_sanity(steps, self.run.metrics, self.hooks)

    def timed(self, steps: Iterable[Sequence[Any]]) -> Iterable[Sequence[Any]]:
        """The steps of the event loop; the profiler measures each of them."""
        return each_profiled(steps, self._options.settings.profiler, "events")

    def _made_version(self, record: RoundRecord) -> None:
        """Record, validate and log a version that the server has made."""
        run, settings = self.run, self._options.settings
        run.record(record)
        run.log(self._logs.metrics())
        validated = self._validation_due(record.version)
        if validated:
            run.show()
            self._evaluator.validate(record.metrics, run.metrics, self.hooks, settings.profiler)
        run.metrics.merge(record.metrics)
        self.hooks("on_round_end")
        run.log(self._logs.metrics())
        run.adopt()
        every = settings.log_every_n_steps
        if run.loggers and (validated or (every and record.version % every == 0)):
            run.show()
            log_points(self._options.fabric, record)

    def _validation_due(self, version: int) -> bool:
        if self._every_updates is not None:
            due = self._every_updates.passed(self.run.history)
        else:
            due = self._every_rounds is not None and version % self._every_rounds == 0
        return due and self._evaluator.can("validation")

    def finish(self, stopped: bool, stopped_by: Signals | None) -> None:
        """Say how the run has ended, and call the hooks after the last event.

        Args:
            stopped: Whether a callback or a signal asked for the end.
            stopped_by: The signal that ended it, or None.
        """
        run, hooks = self.run, self.hooks
        say_how_it_ended(run, stopped, stopped_by)
        run.finish(trial=bool(self._options.fast_dev_run))
        hooks("on_train_end")
        run.module.on_train_end()
        run.adopt()
        hooks("on_fit_end")
        run.module.on_fit_end()

    @contextmanager
    def ended(self) -> Iterator[None]:
        """End the fit on exit; after an error, call the hooks for errors first."""
        status = "failed"
        try:
            yield
            status = "success"
        except BaseException as error:
            if isinstance(error, ClientError):
                self.hooks("on_client_failure", error.task, error)
            self.hooks("on_exception", error)
            self.run.datamodule.on_exception(error)
            raise
        finally:
            self._end(status)

    def _end(self, status: str) -> None:
        """Release everything; if one step fails, the others are still done."""
        run = self.run
        # An exit stack calls the last one added first, and all of them even if one raises.
        with ExitStack() as stack:
            if status == "success":
                stack.callback(say_if_lost, run, self._logs)
            stack.callback(run.module.teardown, "fit")
            stack.callback(run.close)
            stack.callback(self.hooks.close)
            stack.callback(finalize, run.loggers, status)
            stack.callback(self.hooks.all, "teardown", "fit")
            run.datamodule.teardown("fit")
