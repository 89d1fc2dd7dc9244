"""`FedTrainer`: a simulated event loop over an ordinary LightningModule."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
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
    as_loggers,
    check_data,
    check_module,
    instance_of,
    limit_batches,
)
from fedlight.arrivals import ArrivalProcess
from fedlight.arrivals.schedule import Limits, Schedule
from fedlight.callbacks import Callback
from fedlight.checks import integer, non_negative_int, one_of, positive_int
from fedlight.data import FederatedDataModule
from fedlight.evaluation import EvaluationBatches, evaluate
from fedlight.events import Kind
from fedlight.executors import Executor, Workplace
from fedlight.executors.auto import check_executor, describe_device, resolve_executor
from fedlight.executors.pool import PendingResult, WorkPool
from fedlight.history import round_record, update_record
from fedlight.local_optimizers import LocalOptimizer, ModuleOptimizer
from fedlight.parameters import ModuleState
from fedlight.types import ClientUpdate, Federation, RoundRecord, ServerState, Task, UpdateRecord

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
        on_client_failure: "raise" stops the run with the client's error.
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
        trial = non_negative_int("fast_dev_run", int(fast_dev_run))
        self._limits = Limits(trial or max_rounds, max_time, max_updates)
        self._limits.check(self.arrivals)
        if self.aggregator.needs_rounds and not self.arrivals.by_rounds:
            raise ValueError(
                f"{self.aggregator!r} steps at the end of rounds, but {self.arrivals!r} has none: "
                "give the aggregator a buffer_size"
            )
        self.seed = integer("seed", seed)
        self.check_val_every_n_rounds = (
            None
            if check_val_every_n_rounds is None
            else positive_int("check_val_every_n_rounds", check_val_every_n_rounds)
        )
        self.limit_val_batches = trial or limit_batches(limit_val_batches)
        self.on_client_failure = one_of("on_client_failure", on_client_failure, ("raise",))
        if positive_int("devices", devices) != 1:
            raise ValueError(
                f"devices must be 1, got {devices}: all clients share one device; "
                "to use several, give a distributed executor"
            )
        self.default_root_dir = Path(default_root_dir or ".")
        self.fabric = Fabric(
            accelerator=accelerator,
            devices=1,
            precision=precision,
            loggers=[] if trial else as_loggers(logger, self.default_root_dir),
            callbacks=as_callbacks(callbacks, enable_progress_bar),
        )
        self.history: list[RoundRecord] = []
        self.callback_metrics: dict[str, Tensor] = {}
        self.should_stop = False
        self.num_updates = 0
        self._dropped: list[UpdateRecord] = []
        self._batches: dict[str, EvaluationBatches] = {}
        self._state: ServerState | None = None
        self._schedule: Schedule | None = None
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
        return 0 if self._state is None else self._state.version

    @property
    def now(self) -> float:
        """Virtual time."""
        return 0.0 if self._schedule is None else self._schedule.now

    @property
    def state(self) -> ServerState:
        """The newest version of the server's model, as flat vectors.

        Raises:
            RuntimeError: Nothing was fitted yet.
        """
        if self._state is None:
            raise RuntimeError("this trainer has no model yet; call fit(module, datamodule)")
        return self._state

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

    def fit(self, module: LightningModule, datamodule: FederatedDataModule) -> None:
        """Run the federation; `module` holds the server's model afterwards.

        Raises:
            TypeError: `module` or `datamodule` is of the wrong kind.
            ValueError: The module, the data, the strategies or the executor do not fit together.
            ClientError: A client's local run failed.
        """
        self._begin(module, datamodule)
        try:
            self._loop()
            self._say_what_is_left()
            self._call("on_fit_end")
        except BaseException as error:
            self.fabric.call("on_exception", self, module, error)
            raise
        finally:
            self._end()

    def _loop(self) -> None:
        """Handle one event after the other.

        ::

            for event in order of (time, kind, client, serial):
                arrival:       the aggregator receives the update
                end of round:  the aggregator is told
                if the server has to step (or a deadline has come):
                    aggregate; record; validate; log
                clients whose updates were used, or that are free, pull the model and work on
        """
        assert self._schedule is not None
        for event in self._schedule.events():
            due, released = event.kind is Kind.DEADLINE, list[int]()
            if event.task is not None:
                due, released = self._receive(event.task)
            elif event.kind is Kind.ROUND_END:
                due = self.aggregator.end_round()
            if due:
                released = self._step()
            self._schedule.send_on(event, self.version, released)
            if self.should_stop or self._limits.reached(self.version, self.num_updates):
                return

    def _dispatch(self, task: Task) -> None:
        """A client pulls: its work is put into the pool, and computed when it is needed."""
        if not task.lost:
            after = None
            if self.local_optimizer.client_state:
                after = self._client_states.get(task.client_id)
            pulled = self._versions[task.pulled_version]
            self._pending[task.serial] = self._pool.submit(task, pulled, after)
        self._call("on_dispatch", task)

    def _receive(self, task: Task) -> tuple[bool, list[int]]:
        """An update arrives: is a step due, and who is let go without one?"""
        pending = self._pending.pop(task.serial)
        replaced = None
        if self.local_optimizer.client_state:
            before = self._client_states.get(task.client_id)
            self._client_states[task.client_id] = pending
            replaced = None if before is None else before.client_state
        size = int(self._federation.num_examples[task.client_id])
        update = ClientUpdate(task, size, pending, replaced)
        self.num_updates += 1
        self._call("on_update", update)
        if self.aggregator.accepts(update, self.version):
            return self.aggregator.receive(update), []
        self._pool.discard(pending)
        self._dropped.append(update_record(update, self.version, 0.0, math.nan))
        return False, [task.client_id]

    def _step(self) -> list[int]:
        """The server makes a new version; returns the clients whose updates it used."""
        state = self.local_optimizer.absorb(
            self.aggregator.step(self.state), self._federation.num_clients
        )
        record = round_record(state, self.now, self._dropped)
        self._dropped = []
        released = [used.update.client_id for used in state.used]
        for used in state.used:
            if isinstance(used.update.result, PendingResult):
                used.update.result.release()
        self._remember(replace(state, used=()))
        self.history.append(record)
        if self._validation_due():
            record.metrics.update(self._evaluate("validation"))
            self._publish(record.metrics)
            self._call("on_validation_end")
        else:
            self._publish(record.metrics)
        self.fabric.log_dict(record.metrics, step=self.version)
        self._call("on_round_end")
        return released

    def _remember(self, state: ServerState) -> None:
        """Make `state` the newest version, and forget those that nobody can pull any more."""
        assert self._schedule is not None
        self._state = state
        self._versions[state.version] = state
        for version in list(self._versions):
            if version != state.version and not self._schedule.needs_version(version):
                del self._versions[version]

    # ------------------------------------------------------------------ before and after

    def _begin(self, module: LightningModule, datamodule: FederatedDataModule) -> None:
        check_module(module)
        self._module, self._data = module, check_data(datamodule)
        datamodule.prepare_data()
        datamodule.setup("fit")
        self._place(module)
        module.setup("fit")
        partition = datamodule.partition
        state = ModuleState(module)
        self._module_state = state
        self._federation = Federation(
            len(partition), partition.sizes, datamodule.batch_size, self.seed
        )
        self._state = state.read()
        self.history, self.callback_metrics, self._batches = [], {}, {}
        self.should_stop, self.num_updates = False, 0
        self._versions = {0: self._state}
        self._pending: dict[int, PendingResult] = {}
        self._client_states: dict[int, PendingResult] = {}
        self._dropped = []
        self._schedule = Schedule(
            self.arrivals,
            self._federation,
            interval=self.aggregator.interval,
            max_time=self._limits.max_time,
            on_dispatch=self._dispatch,
        )
        self._federation = replace(
            self._federation, expected_durations=self.arrivals.expected_durations()
        )
        self.aggregator.setup(self._federation, self._state)
        dtype = state.param_layout.dtype
        work = Workplace(
            module=module,
            state=state,
            optimizer=self.local_optimizer,
            partition=partition,
            examples=datamodule.train_data.to(state.device, dtype),
            batch_size=datamodule.batch_size,
            seed=self.seed,
            autocast=self.fabric.autocast,
        )
        self._executor, reason = resolve_executor(self.executor, work)
        _say_once(f"fedlight: {self._executor!r} on {describe_device(state.device)}: {reason}")
        self._pool = WorkPool(self._executor, horizon=self._limits.max_time or math.inf)
        for logger in self.fabric.loggers:
            if hasattr(logger, "log_hyperparams") and module.hparams:
                logger.log_hyperparams(dict(module.hparams))
        self.fabric.call("setup", self, module, "fit")
        module.on_fit_start()
        self._call("on_fit_start")
        module.on_train_start()

    def _end(self) -> None:
        module = self.module
        self._module_state.write(self.state)
        module.on_train_end()
        module.on_fit_end()
        for pending in self._client_states.values():
            pending.client_state()
        self.fabric.call("teardown", self, module, "fit")
        for logger in self.fabric.loggers:
            if hasattr(logger, "finalize"):
                logger.finalize("success")
        self._executor.teardown()
        module.teardown("fit")
        module.fabric = None

    def _place(self, module: LightningModule) -> None:
        """Move the module to the run's device and precision; ``self.device`` follows."""
        self.fabric.strategy.precision.convert_module(module)
        self.fabric.to_device(module)
        module.fabric = self.fabric

    def _say_what_is_left(self) -> None:
        held = len(self.aggregator.held)
        if held:
            rank_zero_info(
                f"fedlight: {held} updates were left in the aggregator's buffer at the end "
                "and were not used"
            )
        if not self.history:
            rank_zero_warn("fedlight: the run ended before the server made its first update")

    def client_state(self, client_id: int) -> Tensor | None:
        """c_i as the client keeps it, shape ``[P]``; None where it never changed."""
        pending = self._client_states.get(client_id)
        return None if pending is None else pending.client_state()

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
        if module is not None:
            self._module = module
        if datamodule is not None:
            self._data = check_data(datamodule)
        self._batches = {}
        module = self.module
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
        self._place(module)
        self.fabric.call("setup", self, module, verb)
        try:
            metrics = self._evaluate(stage, write=False)
            self._publish(metrics)
        finally:
            self.fabric.call("teardown", self, module, verb)
            module.fabric = None
        return [metrics]

    def _validation_due(self) -> bool:
        every = self.check_val_every_n_rounds
        return (
            every is not None
            and self.version % every == 0
            and self._examples("validation") is not None
            and is_overridden("validation_step", self.module, LightningModule)
        )

    def _evaluate(self, stage: str, write: bool = True) -> dict[str, float]:
        if write:
            self._module_state.write(self.state)
        assert self._data is not None
        if stage not in self._batches:
            parameter = next(self.module.parameters())
            examples = self._examples(stage).to(parameter.device, parameter.dtype)
            self._batches[stage] = EvaluationBatches(
                examples, self._data.eval_batch_size, self.limit_val_batches
            )
        batches = self._batches[stage]
        return evaluate(self.module, batches, stage, self.fabric.autocast(), self.seed)

    def _examples(self, stage: str) -> Any:
        assert self._data is not None
        return self._data.val_data if stage == "validation" else self._data.test_data

    def _publish(self, metrics: dict[str, float]) -> None:
        self.callback_metrics.update({k: torch.tensor(v) for k, v in metrics.items()})

    def _call(self, hook: str, *args: Any) -> None:
        self.fabric.call(hook, self, self._module, *args)


@cache
def _say_once(message: str) -> None:
    rank_zero_info(message)
