"""`FedTrainer`: a simulated event loop over an ordinary LightningModule."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning import Fabric, LightningModule
from lightning.fabric.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlight.aggregators import Aggregator
from fedlight.arguments import (
    as_callbacks,
    as_folder,
    as_loggers,
    as_module,
    check_can_discard,
    check_data,
    check_module,
    instance_of,
    limit_batches,
    number_of_trials,
    warn_of_hooks,
)
from fedlight.arrivals import ArrivalProcess
from fedlight.arrivals.schedule import Limits, Schedule
from fedlight.callbacks import Callback, FedCheckpoint
from fedlight.checkpoint import read_checkpoint, write_checkpoint
from fedlight.checks import integer, one_of, positive, positive_int
from fedlight.clients import Clients
from fedlight.data import FederatedDataModule
from fedlight.evaluation import EvaluationBatches, evaluate
from fedlight.events import Kind
from fedlight.executors import Executor, Workplace
from fedlight.executors._auto import check_executor, describe_device, resolve_executor
from fedlight.executors.base import ClientError
from fedlight.executors.pool import NormLimit, WorkPool
from fedlight.interrupts import Interrupt, graceful_interrupts
from fedlight.local_optimizers import LocalOptimizer, ModuleOptimizer
from fedlight.parameters import ModuleState, input_dtype
from fedlight.participation import warn_if_unfair
from fedlight.server import Server
from fedlight.snapshot import describe_strategies, own_state, restore_snapshot, take_snapshot
from fedlight.types import Federation, RoundRecord, ServerState, Task

if TYPE_CHECKING:
    from torch import Tensor


class FedTrainer:
    """Trains a LightningModule in a federation in which nobody has to wait for anybody.

    Args:
        arrivals: Who arrives when, how stale, after how many local steps.
        aggregator: How the server makes a new version from client updates.
        local_optimizer: The arithmetic of a local run; None for the module's own optimizer.
        executor: "auto", "sequential", "vectorized" or an `Executor`; changes the speed, never
            the result (up to float tolerance between executors).
        max_rounds: Stop after this many server updates.
        max_time: Stop before the first event later than this virtual time.
        max_updates: Stop after this many client updates have arrived.
        callbacks: One callback or several.
        logger: True for TensorBoard under `default_root_dir`, a Lightning logger, several, or
            False.
        accelerator: As in Lightning.
        devices: One device; clients share it.
        precision: As in Lightning.
        seed: All randomness of the run follows from it.
        check_val_every_n_rounds: Validate after every so many rounds; None for never.
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
        enable_progress_bar: Show the progress bar.
        default_root_dir: Where the default logger writes; the working directory by default.
        fast_dev_run: True (or n) for a trial run of one (n) rounds and validation batches, without
            loggers.

    Raises:
        TypeError: An argument is of the wrong kind.
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
        callbacks: Callback | Iterable[Callback] | None = None,
        logger: bool | Logger | Iterable[Logger] = True,
        accelerator: str = "auto",
        devices: int = 1,
        precision: Any = "32-true",
        seed: int = 0,
        check_val_every_n_rounds: int | None = 1,
        limit_val_batches: int | float | None = None,
        on_client_failure: str = "raise",
        max_update_norm: float | None = None,
        on_large_update: str = "clip",
        enable_progress_bar: bool = True,
        default_root_dir: str | Path | None = None,
        fast_dev_run: bool | int = False,
    ) -> None:
        self.arrivals = instance_of(
            ArrivalProcess, "arrivals", arrivals, "UniformArrivals(per_round=5)"
        )
        self.aggregator = instance_of(Aggregator, "aggregator", aggregator, "AFACD()")
        self.local_optimizer: LocalOptimizer = ModuleOptimizer()
        if local_optimizer is not None:
            self.local_optimizer = instance_of(
                LocalOptimizer, "local_optimizer", local_optimizer, "LocalSGD(lr=0.1)"
            )
        self.executor = check_executor(executor)
        self._trial = trial = number_of_trials(fast_dev_run)
        self._limits = Limits(trial or max_rounds, max_time, max_updates)
        self._limits.check(self.arrivals)
        if self.aggregator.needs_rounds and not self.arrivals.by_rounds:
            raise ValueError(
                f"{self.aggregator!r} steps at the end of rounds, but "
                f"{type(self.arrivals).__name__} has none: give the aggregator a buffer_size "
                "(a process of your own that yields "
                "EndRound says so with by_rounds = True)"
            )
        self.seed = integer("seed", seed)
        self.check_val_every_n_rounds = (
            None
            if check_val_every_n_rounds is None
            else positive_int("check_val_every_n_rounds", check_val_every_n_rounds)
        )
        self.limit_val_batches = trial or limit_batches(limit_val_batches)
        self.on_client_failure = one_of(
            "on_client_failure", on_client_failure, ("raise", "drop", "retry")
        )
        self.on_large_update = one_of("on_large_update", on_large_update, ("clip", "drop"))
        self.max_update_norm = (
            None if max_update_norm is None else positive("max_update_norm", max_update_norm)
        )
        if self.on_client_failure != "raise" or self.max_update_norm is not None:
            check_can_discard(self.aggregator)
        if positive_int("devices", devices) != 1:
            raise ValueError(
                f"devices must be 1, got {devices}: all clients share one device; "
                "to use several, give a distributed executor"
            )
        self.default_root_dir = as_folder(default_root_dir)
        self.fabric = Fabric(
            accelerator=accelerator,
            devices=1,
            precision=precision,
            loggers=[] if trial else as_loggers(logger, self.default_root_dir),
            callbacks=as_callbacks(callbacks, enable_progress_bar),
        )
        self.history: list[RoundRecord] = []
        self._latest: dict[str, float] = {}
        self.should_stop = False
        self._batches: dict[str, EvaluationBatches] = {}
        self._methods: dict[str, list[Callable[..., None]]] = {}
        self._in_event = self._fitting = False
        self._interrupt = Interrupt()
        self._wanted_checkpoints: list[Path] = []
        self._module: LightningModule | None = None
        self._data: FederatedDataModule | None = None

    # ------------------------------------------------------------------ what one sees

    @property
    def module(self) -> LightningModule:
        """The module; after ``fit`` it holds the server's model.

        Raises:
            RuntimeError: Nothing was fitted yet.
        """
        if self._module is None:
            raise RuntimeError("this trainer has no module yet; call fit(module, datamodule)")
        return self._module

    @property
    def version(self) -> int:
        """Server updates so far."""
        return self._server.state.version if hasattr(self, "_server") else 0

    @property
    def now(self) -> float:
        """Virtual time."""
        return self._schedule.now if hasattr(self, "_schedule") else 0.0

    @property
    def num_updates(self) -> int:
        """Client updates that have arrived."""
        return self._server.num_updates if hasattr(self, "_server") else 0

    @property
    def num_failures(self) -> int:
        """Tasks that failed or were lost so far."""
        return self._server.num_failures if hasattr(self, "_server") else 0

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM asked for the end of the run."""
        return self._interrupt.signal is not None

    @property
    def federation(self) -> Federation:
        """Who takes part, as the strategies know it.

        Raises:
            RuntimeError: Nothing was fitted yet.
        """
        self._started()
        return self._federation

    @property
    def state(self) -> ServerState:
        """The newest version of the server's model, as flat vectors.

        Raises:
            RuntimeError: Nothing was fitted yet.
        """
        return self._started().state

    @property
    def datamodule(self) -> FederatedDataModule | None:
        """The data, once they were given."""
        return self._data

    @property
    def loggers(self) -> Sequence[Logger]:
        """The loggers."""
        return self.fabric.loggers

    @property
    def logger(self) -> Logger | None:
        """The first logger, or None."""
        return self.fabric.loggers[0] if self.fabric.loggers else None

    @property
    def callbacks(self) -> Sequence[Any]:
        """The callbacks, in the order in which they are called."""
        return self.fabric._callbacks

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The newest value of each metric."""
        return {name: torch.tensor(value) for name, value in self._latest.items()}

    @property
    def max_rounds(self) -> int | None:
        """Stop after this many server updates."""
        return self._limits.max_rounds

    @property
    def max_time(self) -> float | None:
        """Stop before the first event later than this virtual time."""
        return self._limits.max_time

    @property
    def max_updates(self) -> int | None:
        """Stop after this many arrivals."""
        return self._limits.max_updates

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits of the server's model: equal where all its bits are."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(str(self.version).encode())
        for tensor in (self.state.params, self.state.buffers, self.state.counters):
            digest.update(str(tensor.dtype).encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    # ------------------------------------------------------------------ fit

    def fit(
        self,
        module: LightningModule,
        datamodule: FederatedDataModule,
        ckpt_path: str | Path | None = None,
    ) -> None:
        """Run the federation; `module` holds the server's model afterwards.

        Args:
            module: The module.
            datamodule: The clients' data.
            ckpt_path: A checkpoint to go on from, to the same bits as if the run had never
                stopped; "last" for the newest whole one of the `FedCheckpoint` callback, and a
                fresh start where there is none.

        Raises:
            TypeError: `module` or `datamodule` is of the wrong kind.
            ValueError: The module, the data, the strategies or the executor do not fit together.
            CheckpointError: The checkpoint is damaged, or one of another federation.
            ClientError: A client's local run failed.
            RuntimeError: It is called from within a fit of the same trainer.
        """
        check_module(module)
        with self._alone(), self._lent(module), graceful_interrupts() as self._interrupt:
            content = self._read(ckpt_path)
            self._begin(module, check_data(datamodule))
            status = "failed"
            try:
                if content is not None:
                    restore_snapshot(self, content, str(ckpt_path))
                    self._say_if_over()
                self._start()
                self._loop()
                self._finish()
                status = "success"
            except BaseException as error:
                if isinstance(error, ClientError):
                    self._call("on_client_failure", error.task, error)
                self._call("on_exception", error)
                raise
            finally:
                self._end(status)

    def _loop(self) -> None:
        """Handle one event after the other.

        ::

            for event in order of (time, kind, client, serial):
                arrival:       the aggregator receives the update
                end of round:  the aggregator is told
                if the server has to step (or a deadline has come):
                    compute what is held; take out what failed
                    aggregate; record; validate; log
                clients whose updates were used, or that are free, pull the model and work on
                checkpoints are written
        """
        schedule = self._schedule
        if self._over():
            return
        self._in_event = True
        for event in schedule.events():
            due, released, failed = event.kind is Kind.DEADLINE, list[int](), list[Task]()
            if event.task is not None:
                due, released = self._receive(event.task)
            elif event.kind is Kind.ROUND_END:
                due = self.aggregator.end_round()
            if due:
                released, failed = self._step(forced=event.task is None)
            schedule.send_on(event, self.version, released, failed)
            self._event_ended()
            if self._over():
                return

    def _over(self) -> bool:
        server = self._server
        reached = self._limits.reached(server.state.version, server.num_updates)
        return self.should_stop or reached or server.hopeless

    def _dispatch(self, task: Task) -> None:
        self._server.dispatch(task)
        self._call("on_dispatch", task)

    def _lose(self, task: Task) -> None:
        self._server.lose(task, self.now)
        self._call("on_client_failure", task, ClientError(task, "its result was lost"))
        self._schedule.stopped = self.interrupted

    def _receive(self, task: Task) -> tuple[bool, list[int]]:
        update = self._server.clients.arrive(task)
        for on_update in self._hooks("on_update"):
            try:
                on_update(self, self.module, update)
            except ClientError:  # it looked at the result; the server will, too
                if self.on_client_failure == "raise":
                    raise
        return self._server.receive(update)

    def _event_ended(self) -> None:
        """Between two events: the moment for checkpoints, and for stopping when asked to."""
        self._in_event = False
        if self.interrupted:
            self.should_stop = True
        self._call("on_event_end")
        self._write_wanted_checkpoints()
        self._in_event = True

    def _write_wanted_checkpoints(self) -> None:
        for path in self._wanted_checkpoints:
            write_checkpoint(path, take_snapshot(self))
        self._wanted_checkpoints.clear()

    def save_checkpoint(self, path: str | Path) -> None:
        """Write a checkpoint; within an event it is written as soon as the event is over.

        The file also opens with ``Module.load_from_checkpoint`` of plain Lightning.

        Raises:
            RuntimeError: Nothing was fitted yet.
            OSError: The file cannot be written.
        """
        self._started()
        if self._in_event:
            self._wanted_checkpoints.append(Path(path))
        else:
            write_checkpoint(path, take_snapshot(self))

    def _read(self, ckpt_path: str | Path | None) -> dict[str, Any] | None:
        if ckpt_path is None:
            return None
        if ckpt_path != "last":
            return read_checkpoint(ckpt_path)
        keepers = [each for each in self.callbacks if isinstance(each, FedCheckpoint)]
        if not keepers:
            raise ValueError(
                'ckpt_path="last" needs a FedCheckpoint among the callbacks, which knows where '
                "its files are; or give the path of a file"
            )
        return keepers[0].read_last()

    def _step(self, forced: bool) -> tuple[list[int], list[Task]]:
        """A new version, unless too little is left to make one when failures are taken out.

        Gives the clients whose updates were used or dropped, and the tasks to be tried again.
        """
        failures, full = self._server.sift(self.now)
        for error, _ in failures:
            self._call("on_client_failure", error.task, error)
        released = [error.task.client_id for error, retried in failures if not retried]
        if full or forced:
            released += self._advance()
        return released, [error.task for error, retried in failures if retried]

    def _advance(self) -> list[int]:
        """A new version: record, validate, log; returns the clients whose updates it used."""
        record = self._server.step(self.now)
        self._module_state.write(self.state)  # executors leave it there: hooks see the newest
        self.history.append(record)
        validated = self._validation_due()
        if validated:
            record.metrics.update(self._evaluate("validation"))
        self._latest.update(record.metrics)
        if validated:
            self._call("on_validation_end")
        self._call("on_round_end")
        if self.loggers:
            self.fabric.log_dict(record.metrics, step=self.version)
        return [update.client_id for update in record.updates]

    # ------------------------------------------------------------------ before and after

    def _begin(
        self,
        module: LightningModule,
        datamodule: FederatedDataModule,
    ) -> None:
        self._module, self._data = module, datamodule
        datamodule.prepare_data()
        datamodule.setup("fit")
        module.setup("fit")
        partition = datamodule.partition
        state = ModuleState(module)
        self._module_state = state
        federation = Federation(len(partition), partition.sizes, datamodule.batch_size, self.seed)
        self.history, self._latest, self._batches, self._methods = [], {}, {}, {}
        self.should_stop = False
        self._schedule = Schedule(
            self.arrivals,
            federation,
            interval=self.aggregator.interval,
            max_time=self._limits.max_time,
            on_dispatch=self._dispatch,
            on_lost=self._lose,
        )
        federation = replace(federation, expected_durations=self.arrivals.expected_durations())
        self._federation = federation
        work = Workplace(
            module=module,
            state=state,
            optimizer=self.local_optimizer,
            partition=partition,
            examples=datamodule.train_data.to(state.device, input_dtype(module)),
            batch_size=datamodule.batch_size,
            seed=self.seed,
            autocast=self.fabric.strategy.precision.forward_context,
        )
        self._executor, reason = resolve_executor(self.executor, work)
        _say_once(f"fedlight: {self._executor!r} on {describe_device(state.device)}: {reason}")
        limit = None
        if self.max_update_norm is not None:
            limit = NormLimit(self.max_update_norm, clip=self.on_large_update == "clip")
        self._server = Server(
            self.aggregator,
            self.local_optimizer,
            Clients(
                WorkPool(
                    self._executor,
                    self._limits.max_time or math.inf,
                    limit,
                    self._still_to_come,
                ),
                partition.sizes,
                keep_states=self.local_optimizer.client_state,
            ),
            federation,
            state.read(),
            self._schedule.needs_version,
            self.on_client_failure,
        )

    def _start(self) -> None:
        module = self.module
        self._own_states = [(each, own_state(each)) for each in (self.arrivals, self.aggregator)]
        warn_of_hooks(module)
        hparams = dict(module.hparams) if module._log_hyperparams else {}
        hparams |= {f"fed/{name}": value for name, value in describe_strategies(self).items()}
        for logger in self.fabric.loggers:
            # A resumed run's loggers have them already.
            if hasattr(logger, "log_hyperparams") and not (self.version or self.num_updates):
                logger.log_hyperparams(hparams)
        self._call("setup", "fit")
        self._call("on_fit_start")
        module.on_fit_start()
        module.on_train_start()

    def _finish(self) -> None:
        self._in_event = False
        self._write_wanted_checkpoints()
        self._say_what_is_left()
        warn_if_unfair(self)
        self._server.clients.settle()
        self._schedule.finish()
        self.module.on_train_end()
        self._call("on_fit_end")
        self.module.on_fit_end()

    def _end(self, status: str) -> None:
        self._in_event = False
        self._wanted_checkpoints.clear()
        self._call("teardown", "fit")
        for logger in self.fabric.loggers:
            if hasattr(logger, "finalize"):
                logger.finalize(status)
        self._executor.teardown()
        self.module.teardown("fit")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._fitting:
            raise RuntimeError("this trainer is in a fit already; make another FedTrainer for it")
        self._fitting = True
        try:
            yield
        finally:
            self._fitting = False

    @contextmanager
    def _lent(self, module: LightningModule) -> Iterator[None]:
        """The module on the run's device and precision; its ``device``, ``loggers`` … are ours."""
        before = module._fabric
        self.fabric.strategy.precision.convert_module(module)
        self.fabric.to_device(module)
        module.fabric = self.fabric
        try:
            yield
        finally:
            module.fabric = before

    def _last_checkpoint(self) -> str:
        keepers = [each for each in self.callbacks if isinstance(each, FedCheckpoint)]
        return '"last"' if keepers else "…, once there is a FedCheckpoint among the callbacks"

    def _started(self) -> Server:
        if not hasattr(self, "_server"):
            raise RuntimeError("this trainer has no model yet; call fit(module, datamodule)")
        return self._server

    def _say_if_over(self) -> None:
        if self._over():
            rank_zero_info(
                f"fedlight: the checkpoint is at its limit already ({self.version} rounds, "
                f"{self.num_updates} updates); a larger max_rounds or max_updates lets it go on"
            )

    def _say_what_is_left(self) -> None:
        if self._interrupt.signal is not None:
            rank_zero_info(
                f"fedlight: stopped by {self._interrupt.signal.name} after round {self.version} at "
                f"virtual time {self.now:g}; to go on, fit again with ckpt_path="
                f"{self._last_checkpoint()}"
            )
        held = 0 if self.interrupted else len(self.aggregator.held)
        where = f"the run ends after round {self.version} at virtual time {self.now:g}"
        if self._server.hopeless:
            rank_zero_warn(
                f"fedlight: nobody is left who could arrive with a result: the last "
                f"{self._server.failed_in_a_row} local runs have all failed; {where}"
            )
        elif self._schedule.exhausted and not self.arrivals.finite and not self._over():
            waits = (
                f"; {held} updates wait in a buffer that never fills: make it smaller, or let "
                'clients go on at once (resume="on_arrival")'
            )
            rank_zero_warn(
                f"fedlight: nobody is left who could arrive: {where}, before its limit"
                f"{waits if held else ''}"
            )
        if held:
            rank_zero_info(
                f"fedlight: {held} updates were left in the aggregator's buffer at the end "
                "and were not used"
            )
        if not self.history:
            rank_zero_warn("fedlight: the run ended before the server made its first update")

    def client_state(self, client_id: int) -> Tensor | None:
        """c_i as the client keeps it, shape ``[P]``; None where it never changed."""
        return self._started().clients.state(client_id)

    # ------------------------------------------------------------------ validate and test

    def validate(
        self,
        module: LightningModule | None = None,
        datamodule: FederatedDataModule | None = None,
    ) -> list[dict[str, float]]:
        """Run ``validation_step`` over the validation data; one dict of metrics, as Lightning.

        Args:
            module: The module; None for the one that was fitted.
            datamodule: The data; None for those of ``fit``.
        """
        return self._evaluate_alone("validation", "validate", module, datamodule)

    def test(
        self,
        module: LightningModule | None = None,
        datamodule: FederatedDataModule | None = None,
    ) -> list[dict[str, float]]:
        """Run ``test_step`` over the test data; one dict of metrics, as Lightning.

        Args:
            module: The module; None for the one that was fitted.
            datamodule: The data; None for those of ``fit``.
        """
        return self._evaluate_alone("test", "test", module, datamodule)

    def _evaluate_alone(
        self,
        stage: str,
        verb: str,
        module: LightningModule | None,
        datamodule: FederatedDataModule | None,
    ) -> list[dict[str, float]]:
        module = self.module if module is None else as_module(module)
        self._module, self._methods = module, {}
        if datamodule is not None:
            self._data = check_data(datamodule)
        self._batches = {}
        if self._data is None:
            raise ValueError(f"{verb} needs a datamodule: write trainer.{verb}(module, datamodule)")
        if not is_overridden(f"{stage}_step", module, LightningModule):
            raise ValueError(
                f"{type(module).__name__} has no {stage}_step; define {stage}_step(self, batch, "
                f"batch_idx) that logs what {verb} should report"
            )
        self._data.prepare_data()
        self._data.setup("validate" if verb == "validate" else verb)
        if self._examples(stage) is None:
            raise ValueError(f"{self._data!r} has no {stage} data")
        with self._lent(module):
            module.setup(verb)
            try:
                self._call("setup", verb)
                metrics = self._evaluate(stage)
                self._latest.update(metrics)
            finally:
                self._call("teardown", verb)
                module.teardown(verb)
        return [metrics]

    def _validation_due(self) -> bool:
        every = self.check_val_every_n_rounds
        return (
            every is not None
            and self.version % every == 0
            and self._examples("validation") is not None
            and is_overridden("validation_step", self.module, LightningModule)
        )

    def _evaluate(self, stage: str) -> dict[str, float]:
        assert self._data is not None
        if stage not in self._batches:
            examples = self._examples(stage).to(self.fabric.device, input_dtype(self.module))
            limit = self.limit_val_batches if stage == "validation" else self._trial or None
            self._batches[stage] = EvaluationBatches(examples, self._data.eval_batch_size, limit)
        batches = self._batches[stage]
        return evaluate(self.module, batches, stage, self.fabric.autocast(), self.seed)

    def _examples(self, stage: str) -> Any:
        assert self._data is not None
        return self._data.val_data if stage == "validation" else self._data.test_data

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Add metrics to the newest round, from a callback's ``on_round_end``.

        They go into its record in `history`, into `callback_metrics` and to all loggers.

        Args:
            metrics: Numbers by name.
        """
        values = {name: float(value) for name, value in metrics.items()}
        self.history[-1].metrics.update(values)
        self._latest.update(values)

    def _still_to_come(self) -> tuple[float, float]:
        """Now, and how many later arrivals the run may use, where its limits tell already."""
        left = math.inf
        if self.max_updates is not None:
            left = self.max_updates - self.num_updates
        if self.max_rounds is not None:
            rounds = self.max_rounds - self.version - 1  # after the one that is being made
            used = len(self.history[-1].updates) if self.history else math.inf
            left = min(left, rounds * used if rounds else 0)
        return self.now, left

    def _call(self, hook: str, *args: Any) -> None:
        for method in self._hooks(hook):  # fabric.call would look up each signature, each time
            method(self, self._module, *args)

    def _hooks(self, name: str) -> list[Callable[..., None]]:
        """The callbacks' methods of a name, without those that do nothing."""
        methods = self._methods.get(name)
        if methods is None:
            found = [getattr(callback, name, None) for callback in self.callbacks]
            nothing = getattr(Callback, name, None)
            methods = [m for m in found if m and getattr(m, "__func__", m) is not nothing]
            self._methods[name] = methods
        return methods


@cache
def _say_once(message: str) -> None:
    rank_zero_info(message)
