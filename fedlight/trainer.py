"""`FedTrainer`: a simulated event loop over an ordinary LightningModule."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import Any, Unpack

from lightning import LightningModule
from lightning.fabric.loggers.logger import Logger
from lightning.pytorch.profilers import Profiler

from fedlight._fit.arguments import (
    AnyCallback,
    as_callbacks,
    as_folder,
    as_loggers,
    check_can_discard,
    check_data,
    check_module,
    given_module,
    instance_of,
    number_of_trials,
)
from fedlight._fit.callback_hooks import Hooks
from fedlight._fit.device import fabric_of
from fedlight._fit.endings import say_how_it_ended, say_if_lost, say_if_over, say_what_computes
from fedlight._fit.intervals import UpdateInterval, check_intervals, validation_interval
from fedlight._fit.lightning_arguments import (
    LightningArguments,
    lightning_settings,
    limit_batches,
    refuse_arguments,
    virtual_time,
)
from fedlight._fit.lightning_names import LightningNames
from fedlight._fit.module_hooks import warn_of_hooks
from fedlight._fit.module_trainer import attached
from fedlight._fit.order import set_up, start_training, with_callbacks_of
from fedlight._fit.outside_of_fit import OutsideOfFit
from fedlight._fit.partners import check_partners
from fedlight._fit.run_view import RunView
from fedlight._fit.surroundings import each_profiled, profiled, surroundings
from fedlight._module.evaluation import Evaluator, lent
from fedlight._runs.loggers import begin_anew, finalize, left_open, log_hyperparams
from fedlight._support.checks import integer, one_of, optional, positive
from fedlight._support.interrupts import Alone, graceful_interrupts
from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess
from fedlight.callbacks.checkpoint import content_of, keeper_of
from fedlight.channel import Channel, as_channel
from fedlight.checkpoint import Parts
from fedlight.clients.large_updates import NormLimit
from fedlight.data import FederatedDataModule
from fedlight.executors import Executor
from fedlight.executors._choice.choose import check_executor
from fedlight.executors.base import ClientError
from fedlight.local_optimizers import LocalOptimizer, ModuleOptimizer
from fedlight.loop import Limits, drive, play
from fedlight.run import Run
from fedlight.types import RoundRecord


class FedTrainer(OutsideOfFit, LightningNames, RunView):
    """Trains a LightningModule in a simulated federation of asynchronous clients.

    Args:
        arrivals: Who arrives when, how stale, after how many local steps.
        aggregator: How the server makes a new version from client updates.
        local_optimizer: The arithmetic of a local run; None for the module's own optimizer.
        executor: "auto", "sequential", "vectorized", "processes" or an `Executor`; changes the
            speed, never the result (up to float tolerance between executors).
        max_rounds: Stop after this many server updates.
        max_time: Stop before the first event later than this virtual time.
        max_updates: Stop after this many client updates have arrived.
        callbacks: One callback or several, ours or Lightning's.
        logger: True for TensorBoard under `default_root_dir`, a Lightning logger, several, or
            False.
        accelerator: As in Lightning.
        devices: One device, which clients share: 1, "auto" or [k] for the k-th.
        precision: As in Lightning, but for "16-mixed" on a GPU: write "bf16-mixed".
        seed: All randomness of the run follows from it.
        check_val_every_n_rounds: Validate after every so many rounds; None for never. "auto" is
            each round; but where the aggregator makes a version of fewer than ten updates, as
            `FedAsync` does, it is every ten updates (or as many as there are clients).
        check_val_every_n_updates: Validate instead after the rounds in which the number of client
            updates that were used or dropped reaches a multiple of this.
        limit_val_batches: At most so many validation batches (int), or this share (float).
        on_client_failure: What happens when a client's ``training_step`` raises, or its loss or
            update is not finite: "raise" stops the run with the client's error; "drop" goes on
            without the update; "retry" also sends the client off again, from the newest version
            with the same steps and duration, up to three tries in a row. A failure is noticed when
            the server is about to use the update. Tasks that are lost (`DropOut`) are counted as
            well, and are never an error: the arrival process sends their clients on.
        max_update_norm: The largest Euclidean norm that an update may have; None for any.
        on_large_update: "clip" scales a larger update down to that norm; "drop" leaves it out, as
            a failure that is neither raised nor tried again.
        channel: What an update goes through on its way, one channel or several in turn.
        enable_progress_bar: Show the progress bar.
        default_root_dir: Where the default logger writes; the working directory by default.
        fast_dev_run: True (or n) for a trial run of one (n) rounds and validation batches, without
            loggers; our callbacks and `Recording` write no files.
        on_interrupt: What `fit` does after Ctrl-C or SIGTERM has ended the run and all is saved:
            "raise" (KeyboardInterrupt, or SystemExit with status 143) ends a script's loop over
            runs as well; "return" lets the script look at `interrupted`.
        **lightning: Arguments of `lightning.Trainer` by their names, see `LightningArguments`.

    Attributes:
        callbacks: The callbacks, in the order in which they are called.
        loggers: The loggers.
        fabric: Lightning's Fabric: device, precision.
        datamodule: The data, once they were given.
        should_stop: Set it to end the run after the present event.

    Raises:
        TypeError: An argument is of the wrong kind, or has no meaning in a federation.
        ValueError: An argument is outside its range.

    Example:
        >>> from fedlight.aggregators import AFACD
        >>> from fedlight.arrivals import UniformArrivals
        >>> trainer = FedTrainer(
        ...     arrivals=UniformArrivals(per_round=5), aggregator=AFACD(), max_rounds=150
        ... )
        >>> trainer.version
        0
    """

    def __init__(
        self,
        *,
        arrivals: ArrivalProcess,
        aggregator: Aggregator,
        local_optimizer: LocalOptimizer | None = None,
        executor: Executor | str = "auto",
        max_rounds: int | None = None,
        max_time: float | None = None,
        max_updates: int | None = None,
        callbacks: AnyCallback | Iterable[AnyCallback] | None = None,
        logger: bool | Logger | Iterable[Logger] = True,
        accelerator: str = "auto",
        devices: int | str | list[int] = 1,
        precision: Any = "32-true",
        seed: int = 0,
        check_val_every_n_rounds: int | str | None = "auto",
        check_val_every_n_updates: int | None = None,
        limit_val_batches: int | float | None = None,
        on_client_failure: str = "raise",
        max_update_norm: float | None = None,
        on_large_update: str = "clip",
        channel: Channel | Iterable[Channel] | None = None,
        enable_progress_bar: bool = True,
        default_root_dir: str | Path | None = None,
        fast_dev_run: bool | int = False,
        on_interrupt: str = "raise",
        **lightning: Unpack[LightningArguments],
    ) -> None:
        example = "UniformArrivals(per_round=5)"
        self.arrivals = instance_of(ArrivalProcess, "arrivals", arrivals, example)
        self.aggregator = instance_of(Aggregator, "aggregator", aggregator, "AFACD()")
        optimizer = ModuleOptimizer() if local_optimizer is None else local_optimizer
        example = "LocalSGD(lr=0.1)"
        self.local_optimizer = instance_of(LocalOptimizer, "local_optimizer", optimizer, example)
        self.executor = check_executor(executor)
        self._trial = trial = number_of_trials(fast_dev_run)
        self.fast_dev_run = fast_dev_run
        self.on_interrupt = one_of("on_interrupt", on_interrupt, ("raise", "return"))
        self.settings = lightning_settings(lightning, signature(FedTrainer).parameters, trial)
        virtual_time(max_time)
        self.limits = Limits(trial or max_rounds, max_time, max_updates)
        self.limits.check(self.arrivals)
        self.max_rounds, self.max_time = self.limits.max_rounds, self.limits.max_time
        self.max_updates = self.limits.max_updates
        check_partners(self.aggregator, self.arrivals, self.local_optimizer)
        self.seed = integer("seed", seed)
        if trial and check_val_every_n_rounds == "auto":
            check_val_every_n_rounds = 1
        intervals = check_intervals(check_val_every_n_rounds, check_val_every_n_updates)
        self.check_val_every_n_rounds, self.check_val_every_n_updates = intervals
        self.limit_val_batches = trial or limit_batches("limit_val_batches", limit_val_batches)
        choices = ("raise", "drop", "retry")
        self.on_client_failure = one_of("on_client_failure", on_client_failure, choices)
        self.on_large_update = one_of("on_large_update", on_large_update, ("clip", "drop"))
        self.max_update_norm = optional(positive, "max_update_norm", max_update_norm)
        self.channel = optional(as_channel, "channel", channel)
        if self.on_client_failure != "raise" or self.max_update_norm is not None:
            check_can_discard(self.aggregator)
        self.default_root_dir = as_folder(default_root_dir)
        self.loggers = [] if trial else as_loggers(logger, self.default_root_dir)
        self._open_loggers = left_open(self.loggers)
        self.callbacks = as_callbacks(
            callbacks, enable_progress_bar, self.default_root_dir, self.settings
        )
        self.fabric = fabric_of(accelerator, devices, precision, self.loggers, self.callbacks)
        super().__init__()
        self.datamodule: FederatedDataModule | None = None
        self.should_stop = self.sanity_checking = False
        self.profiler: Profiler = self.settings.profiler
        self._hooks = Hooks(self, self.callbacks, self._made_version)
        self._evaluator: Evaluator | None = None
        self._alone = Alone()

    def __repr__(self) -> str:
        names = "arrivals aggregator local_optimizer executor max_rounds max_time max_updates seed"
        given = {name: vars(self)[name] for name in names.split()}
        shown = (f"{name}={value!r}" for name, value in given.items() if value is not None)
        return f"FedTrainer({', '.join(shown)})"

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Add metrics to the newest round, from a callback's ``on_round_end``.

        They go into its record in `history`, into `callback_metrics` and to all loggers.

        Args:
            metrics: Numbers by name.
        """
        self.run.log(metrics)

    # ------------------------------------------------------------------ fit

    def fit(
        self,
        module: LightningModule | None = None,
        datamodule: FederatedDataModule | None = None,
        ckpt_path: str | Path | None = None,
        *,
        model: LightningModule | None = None,
        **others: Any,
    ) -> None:
        """Run the federation; `module` holds the server's model afterwards.

        Args:
            module: The module; or `model`, its name in Lightning.
            datamodule: The clients' data.
            model: The module.
            **others: Refused, with what to write for Lightning's.
            ckpt_path: A checkpoint to go on from, to the same bits as if the run had never
                stopped; "last" for the newest whole one of the `FedCheckpoint` callback, and a
                fresh start where there is none; "best" for the best one that it has kept.

        Raises:
            TypeError: `module` or `datamodule` is of the wrong kind.
            ValueError: The module, the data, the strategies or the executor do not fit together.
            CheckpointError: The checkpoint is damaged, or one of another federation.
            ClientError: A client's local run failed.
            KeyboardInterrupt: Ctrl-C ended the run; see `on_interrupt`.
            SystemExit: SIGTERM did.
            RuntimeError: It is called from within a fit of the same trainer.
        """
        refuse_arguments("fit", others)
        steps = self.steps_of_fit(given_module(module, model), datamodule, ckpt_path)
        drive(steps, lambda waiting: self.run.compute(waiting))

    def steps_of_fit(
        self, module: object, datamodule: object, ckpt_path: str | Path | None = None
    ) -> Generator[Sequence[Any], None, None]:
        """Do what `fit` does; the caller computes the local runs yielded, with `Run.batches`."""
        module, data = check_module(module), check_data(datamodule)
        with (
            self._alone,
            lent(module, self.fabric),
            attached(module, self, "fit", ckpt_path) as self._logs,
            surroundings(self.settings),
            profiled(self.profiler, "fit"),
            graceful_interrupts() as self._interrupt,
        ):
            self.callbacks[:] = with_callbacks_of(module, self.callbacks, self.default_root_dir)
            content = content_of(ckpt_path, self.callbacks)
            run = self._prepare(module, data)
            status = "failed"
            try:
                set_up(module, self._hooks, self.fabric, "fit")
                if content is not None:
                    run.restore(content, str(ckpt_path))
                self._start(run)
                yield from self._go_through_events(run)
                self._finish(run)
                status = "success"
            except BaseException as error:
                if isinstance(error, ClientError):
                    self._hooks("on_client_failure", error.task, error)
                self._hooks("on_exception", error)
                data.on_exception(error)
                raise
            finally:
                self._end(run, status)
        if self.on_interrupt == "raise":
            self._interrupt.end_the_script()

    def _go_through_events(self, run: Run) -> Generator[Sequence[Any], None, None]:
        """Handle one event after the other; `play` says what an event is and who handles it.

        ::

            for each event:                 an arrival, an end of round, a deadline
                the server handles it       computes what it needs, makes a version if one is due
                    validate, log           for each version
                clients go on               those that are free pull the newest version
                checkpoint, or stop         between two events
        """
        if self.should_stop:
            return
        with run.going_on():
            steps = play(run.schedule, run.server, self.limits)
            for waiting in each_profiled(steps, self.profiler, "events"):
                if waiting:
                    with self.profiler.profile("local_runs"):
                        yield waiting
                    continue
                run.end_event()
                self.should_stop |= self.interrupted
                if self._hooks("on_event_end"):
                    run.adopt()
                run.begin_event()
                if self.should_stop:
                    return

    def _made_version(self, record: RoundRecord) -> None:
        """The server has made a new version: record, validate, log."""
        run = self.run
        run.record(record)
        run.log(self._logs.metrics())
        validated = self._validation_due()
        if validated:
            assert self._evaluator is not None
            run.show()
            self._evaluator.validate(record.metrics, run.metrics, self._hooks, self.profiler)
        run.metrics.merge(record.metrics)
        self._hooks("on_round_end")
        run.log(self._logs.metrics())
        run.adopt()
        every = self.settings.log_every_n_steps
        if self.loggers and (validated or (every and record.version % every == 0)):
            run.show()
            self.fabric.log_dict(record.metrics.logged(), step=record.version)

    def _validation_due(self) -> bool:
        if self._val_interval is not None:
            due = self._val_interval.passed(self.history)
        else:
            due = self._val_rounds is not None and self.version % self._val_rounds == 0
        return due and self._evaluator is not None and self._evaluator.can("validation")

    def save_checkpoint(
        self, path: str | Path, *copies: str | Path, parts: Parts | None = None
    ) -> None:
        """Write a checkpoint; within an event it is written as soon as the event is over.

        The file also opens with ``Module.load_from_checkpoint`` of plain Lightning.

        Args:
            path: The file.
            *copies: More files to write the same to.
            parts: Where the history goes that earlier checkpoints hold already (`FedCheckpoint`
                uses it, so that a checkpoint costs the same however long the run is); None for a
                file that holds everything.

        Raises:
            RuntimeError: Nothing was fitted yet.
            OSError: The file cannot be written.
        """
        self.run.save(path, *copies, parts=parts)

    # ------------------------------------------------------------------ before and after

    def _prepare(self, module: LightningModule, datamodule: FederatedDataModule) -> Run:
        self._module, self.datamodule = module, datamodule
        warn_of_hooks(module, datamodule)
        datamodule.prepare_data()
        module.prepare_data()
        datamodule.setup("fit")
        self.should_stop = False
        begin_anew(self._open_loggers)
        self._hooks = Hooks(self, self.callbacks, self._made_version)
        self._evaluator = self._evaluator_of(module, datamodule)
        self._val_rounds, every = validation_interval(
            self.check_val_every_n_rounds,
            self.check_val_every_n_updates,
            self.aggregator,
            datamodule.num_clients,
        )
        self._val_interval = None if every is None else UpdateInterval(every)
        if every is not None or self._val_rounds is not None:
            self._evaluator.check_step("validation")
        self._run = run = Run(
            module,
            datamodule,
            arrivals=self.arrivals,
            aggregator=self.aggregator,
            local_optimizer=self.local_optimizer,
            executor=self.executor,
            limits=self.limits,
            seed=self.seed,
            on_client_failure=self.on_client_failure,
            norm_limit=NormLimit.of(self.max_update_norm, self.on_large_update),
            channel=self.channel,
            autocast=self.fabric.strategy.precision.forward_context,
            watcher=self._hooks,
            callbacks=self.callbacks,
            loggers=self.loggers,
        )
        self.newest_metrics = run.metrics
        return run

    def _start(self, run: Run) -> None:
        """Call the hooks before the first event, then read what they have made of the module."""
        resumed = bool(self.version or self.num_updates)
        start_training(run.module, self._hooks, None if resumed else self._check_sanity)
        run.begin()
        say_what_computes(run)
        if resumed:
            say_if_over(run)
            return
        if keeper_of(self.callbacks) is not None:
            run.check_savable()
        if self.settings.enable_autolog_hparams:  # a resumed run's loggers have them already
            log_hyperparams(self.loggers, run)

    def _check_sanity(self) -> None:
        steps = self.settings.num_sanity_val_steps
        if steps and self._evaluator is not None:
            self.sanity_checking = True
            try:
                with self._logs.paused():
                    self._evaluator.check_sanity(steps, self.newest_metrics, self._hooks)
            finally:
                self.sanity_checking = False

    def _finish(self, run: Run) -> None:
        say_how_it_ended(run, self.should_stop, self._interrupt.signal)
        run.finish(trial=self._trial > 0)
        self._hooks("on_train_end")
        run.module.on_train_end()
        run.adopt()
        self._hooks("on_fit_end")
        run.module.on_fit_end()

    def _end(self, run: Run, status: str) -> None:
        """Let go of everything; what fails does not keep the rest from being let go."""
        with ExitStack() as stack:  # in the opposite order
            if status == "success":
                stack.callback(say_if_lost, run, self._logs)
            stack.callback(run.module.teardown, "fit")
            stack.callback(run.close)
            stack.callback(finalize, self.loggers, status)
            stack.callback(self._hooks.all, "teardown", "fit")
            run.datamodule.teardown("fit")
