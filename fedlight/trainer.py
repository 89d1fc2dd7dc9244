"""`FedTrainer`: a simulated event loop over an ordinary LightningModule."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from lightning import Fabric, LightningModule
from lightning.fabric.loggers.logger import Logger
from lightning.pytorch.profilers import Profiler
from torch import Tensor

from fedlight._fit.argument_checks import (
    AnyCallback,
    check_data,
    check_module,
    check_parts,
    checked_metrics,
    client_index,
    given_module,
)
from fedlight._fit.lightning_arguments import LightningArguments, LightningSettings
from fedlight._fit.options import Option, options_of
from fedlight._fit.trainer_attributes import answer_of_trainer, as_tensors, log_dir_of
from fedlight._fit.trainer_calls import Calls
from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess
from fedlight.channel import Channel
from fedlight.checkpoint import Parts
from fedlight.data import FederatedDataModule
from fedlight.executors import Executor
from fedlight.local_optimizers import LocalOptimizer
from fedlight.loop import Limits, drive, play
from fedlight.run import Run
from fedlight.types import Federation, Metrics, RoundRecord, ServerState


class FedTrainer:
    """Trains a LightningModule in a simulated federation of asynchronous clients.

    Args:
        arrivals: Who arrives when, how stale, after how many local steps.
        aggregator: How the server makes a new version from client updates.
        local_optimizer: The arithmetic of a local run; None for the module's own optimizer.
        executor: "auto", "sequential", "vectorized", "processes" or an `Executor`; changes the
            speed, never the result (up to float tolerance between executors).
        max_rounds: Stop after this many server updates.
        max_time: Stop before the first event later than this virtual time.
        max_updates: Stop after this many client updates have arrived; the two halves of a task of
            `RefreshedTasks` count as two.
        callbacks: One callback or several, ours or Lightning's.
        logger: True for TensorBoard under `default_root_dir`, a Lightning logger, several, or
            False.
        accelerator: As in Lightning.
        devices: One device, which clients share: 1, "auto" or [k] for the k-th.
        precision: As in Lightning, but for "16-mixed" on a GPU: write "bf16-mixed".
        seed: All randomness of the run follows from it.
        check_val_every_n_rounds: Validate after every so many rounds; None for never. "auto" is
            each round; but if the aggregator makes a version of fewer than ten updates, as
            `FedAsync` does, it is every ten updates (or as many as there are clients).
        check_val_every_n_updates: Validate instead after the rounds in which the number of client
            updates that were used or dropped reaches a multiple of this.
        limit_val_batches: At most so many validation batches (int), or this share (float).
        on_client_failure: The treatment of a client whose ``training_step`` raises, or whose loss
            or update is not finite: "raise" stops the run with the client's error; "drop" continues
            without the update; "retry" also sends the client off again, from the newest version
            with the same steps and duration, up to three tries in a row. A failure is noticed when
            the server is about to use the update, or, if `arrivals` choose by what clients have
            logged, when the update arrives. Tasks that are lost (`DropOut`) are counted as
            well, and are never an error: the arrival process sends their clients on.
        max_update_norm: The largest Euclidean norm that an update may have; None for any.
        on_large_update: "clip" scales a larger update down to that norm; "drop" leaves it out, as
            a failure that is neither raised nor tried again.
        channel: Changes an update on its way to the server, one channel or several in turn.
        enable_progress_bar: Show the progress bar.
        default_root_dir: Where the default logger writes; the working directory by default.
        fast_dev_run: True (or n) for a trial run of one (n) rounds and validation batches, without
            loggers; our callbacks and `Recording` write no files.
        on_interrupt: The end of `fit` after Ctrl-C or SIGTERM has ended the run and all is saved:
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

    arrivals = Option[ArrivalProcess]("_options.setting.arrivals")
    aggregator = Option[Aggregator]("_options.setting.aggregator")
    local_optimizer = Option[LocalOptimizer]("_options.setting.local_optimizer")
    executor = Option[Executor | str]("_options.setting.executor")
    channel = Option[Channel | None]("_options.setting.channel")
    seed = Option[int]("_options.setting.seed")
    limits = Option[Limits]("_options.setting.limits")
    max_rounds = Option[int | None]("_options.setting.limits.max_rounds")
    max_time = Option[float | None]("_options.setting.limits.max_time")
    max_updates = Option[int | None]("_options.setting.limits.max_updates")
    on_client_failure = Option[str]("_options.setting.on_client_failure")
    max_update_norm = Option[float | None]("_options.setting.max_update_norm")
    on_large_update = Option[str]("_options.setting.on_large_update")
    callbacks = Option[list[Any]]("_options.callbacks")
    loggers = Option[list[Logger]]("_options.loggers")
    fabric = Option[Fabric]("_options.fabric")
    check_val_every_n_rounds = Option[int | str | None]("_options.check_val_every_n_rounds")
    check_val_every_n_updates = Option[int | None]("_options.check_val_every_n_updates")
    limit_val_batches = Option[int | float | None]("_options.settings.limit_val_batches")
    default_root_dir = Option[Path]("_options.default_root_dir")
    fast_dev_run = Option[bool | int]("_options.fast_dev_run")
    on_interrupt = Option[str]("_options.on_interrupt")
    settings = Option[LightningSettings]("_options.settings")
    profiler = Option[Profiler]("_options.settings.profiler")

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
        # The locals are the arguments as long as no other name is bound here. They are passed in
        # one dict, because a call with twenty-four names is the third place to keep the same list,
        # and an argument that it leaves out would be ignored.
        given = {k: v for k, v in locals().items() if k not in ("self", "lightning")}
        self._options = options_of(given, lightning)
        self._calls = Calls(self._options)
        self.should_stop = False

    def __repr__(self) -> str:
        names = "arrivals aggregator local_optimizer executor max_rounds max_time max_updates seed"
        given = {name: getattr(self, name) for name in names.split()}
        shown = (f"{name}={value!r}" for name, value in given.items() if value is not None)
        return f"FedTrainer({', '.join(shown)})"

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
            ckpt_path: A checkpoint to resume from, to the same bits as if the run had never
                stopped; "last" for the newest whole one of the `FedCheckpoint` callback, and a
                new run if there is none; "best" for the best one that it has kept.

        Raises:
            TypeError: `module` or `datamodule` is of the wrong kind.
            ValueError: The module, the data, the strategies or the executor do not fit together.
            CheckpointError: The checkpoint is damaged, or one of another federation.
            ClientError: A client's local run failed.
            KeyboardInterrupt: Ctrl-C ended the run; see `on_interrupt`.
            SystemExit: SIGTERM did.
            RuntimeError: It is called from within a fit of the same trainer.
        """
        given = given_module("fit", module, model, others)
        steps = self.steps_of_fit(given, datamodule, ckpt_path)
        # `run` is looked up for each call, since there is none before the first step.
        drive(steps, lambda waiting: self.run.compute(waiting))

    def steps_of_fit(
        self, module: object, datamodule: object, ckpt_path: str | Path | None = None
    ) -> Generator[Sequence[Any], None, None]:
        """Do what `fit` does; the caller computes the local runs yielded, with `Run.batches`.

        ::

            call the hooks, read the module     as version 0, or as that of a checkpoint
            for each event:                     an arrival, an end of round, a deadline
                the server handles it           yields the local runs that it needs; then
                    validate, log               for each version that it makes
                clients go on                   those that are free pull the newest version
                checkpoint, or stop             between two events
            call the hooks                      also after an error
        """
        given, data = check_module(module), check_data(datamodule)
        with self._calls.fit(self, given, data, ckpt_path) as fit:
            self.should_stop = False
            fit.start()
            run = fit.run
            events = () if self.should_stop else play(run.schedule, run.server, self.limits)
            with run.going_on():
                for waiting in fit.timed(events):
                    if waiting:
                        with self.profiler.profile("local_runs"):
                            yield waiting
                        continue
                    run.end_event()
                    self.should_stop |= self.interrupted
                    if fit.hooks("on_event_end"):
                        run.adopt()
                    run.begin_event()
                    if self.should_stop:
                        break
            fit.finish(self.should_stop, self._calls.interrupt.signal)
        if self.on_interrupt == "raise":
            self._calls.interrupt.end_the_script()

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
        given = given_module("validate", module, model, others)
        return self._calls.evaluate(self, "validate", given, datamodule, ckpt_path, verbose)

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
        given = given_module("test", module, model, others)
        return self._calls.evaluate(self, "test", given, datamodule, ckpt_path, verbose)

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
        """Run ``predict_step`` (by default ``forward``) over data; its result for each batch.

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
        given = given_module("predict", module, model, others)
        return self._calls.predict(
            self, given, datamodule, dataloaders, dataset, return_predictions, ckpt_path
        )

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
            TypeError: An argument is of the wrong kind.
            ValueError: A path is empty, or a folder.
        """
        check_parts(parts)
        self.run.save(path, *copies, parts=parts)

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Add metrics to the newest round, from a callback's ``on_round_end``.

        They go into its record in `history`, into `callback_metrics` and to all loggers.

        Args:
            metrics: Numbers by name; names that begin with "fed/" belong to the trainer.

        Raises:
            ValueError: A name begins with "fed/".
            TypeError: `metrics` is not a mapping, a name not a string, or a value not a number.
        """
        self.run.log(checked_metrics(metrics))

    # ------------------------------------------------------------------ what one sees of the run

    @property
    def module(self) -> LightningModule:
        """The module; after ``fit`` it holds the server's model.

        Raises:
            RuntimeError: Nothing was fitted yet.
        """
        return self._calls.module

    @property
    def datamodule(self) -> FederatedDataModule | None:
        """The data, once they were given."""
        return self._calls.datamodule

    @datamodule.setter
    def datamodule(self, data: FederatedDataModule | None) -> None:
        self._calls.datamodule = data

    @property
    def run(self) -> Run:
        """All that the fit changes: schedule, server, clients, history.

        Raises:
            RuntimeError: Nothing was fitted yet.
        """
        return self._calls.run

    @property
    def version(self) -> int:
        """Server updates so far."""
        return self._calls.counts.version

    @property
    def now(self) -> float:
        """Virtual time."""
        return self._calls.now

    @property
    def num_updates(self) -> int:
        """Client updates that have arrived."""
        return self._calls.counts.num_updates

    @property
    def num_failures(self) -> int:
        """Tasks that failed or were lost so far."""
        return self._calls.counts.num_failures

    @property
    def history(self) -> list[RoundRecord]:
        """One record for each round."""
        return self._calls.history

    @property
    def newest_metrics(self) -> Metrics:
        """The newest value of each metric, and how each is shown."""
        return self._calls.metrics

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM asked for the end of the run."""
        return self._calls.interrupt.signal is not None

    @property
    def federation(self) -> Federation:
        """Who takes part, as the strategies know it."""
        return self.run.federation

    @property
    def state(self) -> ServerState:
        """The newest version of the server's model, as flat vectors."""
        return self.run.state

    @property
    def logger(self) -> Logger | None:
        """The first logger, or None."""
        return next(iter(self.loggers), None)

    def client_state(self, client_id: int) -> Tensor | None:
        """c_i as the client keeps it, shape ``[P]``; None if it never changed.

        Raises:
            RuntimeError: Nothing was fitted yet.
            TypeError: `client_id` is not an integer.
            ValueError: There is no such client.
        """
        run = self.run
        return run.clients.state(client_index(client_id, run.federation))

    def client_memory(self, client_id: int) -> Tensor | None:
        """The error that the channel has kept of a client, shape ``[P]``; None if there is none.

        Raises:
            RuntimeError: Nothing was fitted yet.
            TypeError: `client_id` is not an integer.
            ValueError: There is no such client.
        """
        run = self.run
        return run.clients.memory(client_index(client_id, run.federation))

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits of the server's model: equal exactly if all its bits are."""
        return self.run.fingerprint()

    # ------------------------------------------------------------------ Lightning's names

    @property
    def model(self) -> LightningModule:
        """The module, as `module`."""
        return self.module

    @property
    def current_epoch(self) -> int:
        """The version of the server's model: rounds so far."""
        return self.version

    @property
    def global_step(self) -> int:
        """The version of the server's model: server updates so far, the step of all loggers."""
        return self.version

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The newest value of each metric."""
        return as_tensors(self.newest_metrics)

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """The newest value of each metric that goes to loggers."""
        return as_tensors(self.newest_metrics.logged())

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """The newest value of each metric that was logged with ``prog_bar=True``."""
        metrics = self.newest_metrics
        return {name: value for name, value in metrics.items() if name in metrics.prog_bar}

    @property
    def log_dir(self) -> str:
        """Where the first logger writes; `default_root_dir` if there is none."""
        return log_dir_of(self)

    if not TYPE_CHECKING:  # else every misspelled attribute would pass for one

        def __getattr__(self, name: str) -> Any:
            """The attributes of ``self.trainer`` of a module, read from the trainer itself.

            Raises:
                AttributeError: There is no such attribute, or no module yet.
            """
            calls = vars(self).get("_calls")  # none in a copy that is being made
            return answer_of_trainer(name, self, calls and calls.given)
