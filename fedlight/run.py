"""A run: all that one fit changes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning import LightningModule
from lightning.fabric.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_warn

from fedlight._module.current_stage import moment_of
from fedlight._module.settings import LiveSettings
from fedlight._runs import restoring
from fedlight._runs.data_fingerprint import data_fingerprint
from fedlight._runs.describe import OPTIMIZER, check_same, describe_federation, describe_module
from fedlight._runs.loggers import go_on, position
from fedlight._runs.own_settings import own_optimizer
from fedlight._runs.own_state import StateWatch
from fedlight._runs.records import record_from_list, record_to_list
from fedlight._runs.setting import Setting
from fedlight._support.files import new_file
from fedlight._support.garbage_collection import no_collections
from fedlight._support.growing import Growing
from fedlight._support.memory import BLOCKS
from fedlight.arrivals.schedule import Schedule
from fedlight.arrivals.simulation import sharing
from fedlight.checkpoint import FORMAT, HyperParameters, Parts, plain_hparams, write_checkpoint
from fedlight.clients import Clients
from fedlight.clients.pool import Pool
from fedlight.clients.sending import Sending
from fedlight.data import FederatedDataModule
from fedlight.early_server import EarlyServer
from fedlight.executors._choice.choose_executor import resolve_executor
from fedlight.executors.base import Workplace
from fedlight.local_optimizers.base import keeps_state
from fedlight.loop import Counts
from fedlight.parameters import ModuleState, input_dtype
from fedlight.server import Server, Watcher
from fedlight.types import Federation, Metrics, RoundRecord, ServerState


class Run:
    """All that one fit changes. Two runs of the same arguments are the same to the bit.

    A run is made before the hooks at the start of a fit. `restore` loads as much of a checkpoint
    as those hooks may read, and `begin`, which comes after them, reads the module.

    Args:
        module: The module.
        datamodule: The clients' data, set up.
        setting: The options that the result depends on.
        autocast: Makes the context in which local steps run (mixed precision).
        watcher: Its methods are called for everything that happens at the server.
        callbacks: Callbacks whose state belongs to the run.
        loggers: Loggers, which a resumed run continues after the points of the checkpoint.

    Attributes:
        id: Sixteen hexadecimal digits that tell this run from others; a resumed run has that of
            its checkpoint. Nothing that is computed depends on it.
        counts: How far the run is.
        federation: Who takes part.
        schedule: The events to come; the clock.
        history: One record for each round.
        metrics: The newest value of each metric.
        server: The versions of the model. This and the next six are there from `begin` on.
        clients: The clients' runs and states.
        pool: The local runs to be computed.
        examples: The clients' examples on the device of the run.
        executor: The executor, set up.
        executor_reason: Why it was chosen.
        module_state: Reads and writes the module.

    Raises:
        ValueError: The data and the arrival process do not fit together.
    """

    def __init__(
        self,
        module: LightningModule,
        datamodule: FederatedDataModule,
        setting: Setting,
        *,
        autocast: Callable[[], AbstractContextManager[Any]],
        watcher: Watcher,
        callbacks: Sequence[restoring.Stateful],
        loggers: Sequence[Logger],
    ) -> None:
        self.id = os.urandom(8).hex()
        self.module, self.datamodule, self.setting = module, datamodule, setting
        self.callbacks, self.loggers = callbacks, loggers
        self.counts = Counts()
        self.history: list[RoundRecord] = []
        self.metrics = Metrics()
        partition, arrivals = datamodule.partition, setting.arrivals
        data = data_fingerprint(partition, datamodule.train_data)
        federation = Federation(
            len(partition),
            partition.sizes,
            datamodule.batch_size,
            setting.seed,
            tokens_per_example=datamodule.tokens_per_example,
        )
        if arrivals.shares_data:
            federation = sharing(federation, arrivals.shared_by)
        self.schedule = Schedule(
            arrivals,
            federation,
            interval=setting.aggregator.interval,
            max_time=setting.limits.max_time,
            buffer_size=setting.aggregator.buffer_size,
        )
        self.federation = replace(
            federation,
            expected_durations=arrivals.expected_durations(),
            groups=arrivals.groups,
            arrivals_per_send=arrivals.arrivals_per_send,
        )
        self._description = describe_federation(setting, self.federation, data)
        self._autocast, self._watcher = autocast, watcher
        # Until `begin`, the module itself is the model, which hooks may still change.
        self._read: Callable[[], ServerState]
        self._read = lambda: ModuleState(module).read(self.counts.version)
        self._show: Callable[[], None] = lambda: None
        self._set_up = ExitStack()
        self._checkpoint: tuple[dict[str, Any], str] | None = None
        # A checkpoint that is requested before the run has begun waits, as one within an event.
        self._in_event = True
        self._requested: list[tuple[str | Path, tuple[str | Path, ...], Parts | None]] = []

    def begin(self) -> None:
        """Read the module as version 0, or as the checkpoint's; set the executor up and try it.

        Raises:
            ValueError: The module, the data, the strategies or the executor do not fit together.
            CheckpointError: The checkpoint is of another module; the error names what differs.
        """
        module, datamodule, setting = self.module, self.datamodule, self.setting
        partition = datamodule.partition
        self.module_state = state = ModuleState(module)
        # Now, since hooks may change later what the module's optimizer is made from.
        self._description[OPTIMIZER] = own_optimizer(
            module, setting.local_optimizer, setting.limits
        )
        if self._checkpoint is not None:
            content, path = self._checkpoint
            check_same(content["fedlight"]["federation"], self._described(), path)
            restoring.load_frozen(module, content["state_dict"], path)
        self.examples = datamodule.train_data.to(state.device, input_dtype(module))
        settings = LiveSettings(module)
        workplace = Workplace(
            module=module,
            state=state,
            optimizer=setting.local_optimizer,
            partition=partition,
            examples=self.examples,
            batch_size=datamodule.batch_size,
            seed=setting.seed,
            autocast=self._autocast,
            settings=settings,
            pooled=setting.arrivals.shares_data,
        )
        choice = resolve_executor(setting.executor, workplace)
        self.executor, self.executor_reason = choice.executor, choice.reason
        settings.begin(choice.kept)
        self._set_up.callback(self.executor.teardown)
        sending = None if setting.channel is None else Sending(setting.channel, setting.seed)
        arrivals = setting.arrivals
        self.pool = Pool(self.executor, setting.norm_limit, sending, not arrivals.may_stop)
        self.federation = replace(self.federation, layout=state.param_layout)
        keep_states = keeps_state(setting.local_optimizer)
        self.clients = Clients(self.pool, self.federation, keep_states=keep_states)
        # Results are computed early in a replay, too, if their bits depend on when they are, or if
        # what follows a failure does.
        fails = setting.on_client_failure != "raise" or setting.on_large_update == "drop"
        early = arrivals.early_results and (fails or not self.executor.independent)
        kind = EarlyServer if arrivals.needs_feedback or early else Server
        self.server = kind(
            setting,
            self.federation,
            self.clients,
            self.schedule,
            state.present(),
            self._watcher,
            self.counts,
            settings,
        )
        if self._checkpoint is not None:
            saved = self._checkpoint[0]["fedlight"]
            self.executor.load_state_dict(saved.get("executor", {}))
            self.server.load_state_dict(saved["server"])
            state.write(self.server.state)
            self._checkpoint = None
        self._state_watch = StateWatch([setting.arrivals, setting.aggregator])
        server = self.server  # not `self`: a run that is over should hold itself in no circle
        self._read, self._show = (lambda: server.state), state.show
        self._in_event = False
        self._save_requested()

    def close(self) -> None:
        """Release what `begin` has set up; the module holds the newest version."""
        self.show()
        self._set_up.close()
        BLOCKS.end_run()

    def let_go(self) -> None:
        """Give up what is in flight, with the models that were pulled: nobody continues the run."""
        if hasattr(self, "pool"):
            self.pool.let_go()

    @property
    def state(self) -> ServerState:
        """The newest version of the server's model; before `begin`, the module's own state."""
        return self._read()

    @property
    def over(self) -> bool:
        """Whether a limit is reached, or no local run succeeds any more."""
        counts = self.counts
        return counts.over or self.setting.limits.reached(counts.version, counts.num_updates)

    def compute(self, waiting: Sequence[Any]) -> None:
        """Compute the local runs that the loop waits for."""
        until, useful = self._ahead()
        self.pool.compute(waiting, until=until, useful=useful)

    def batches(self, waiting: Sequence[Any]) -> Generator[list[Any], Sequence[Any], None]:
        """The batches of local runs that `compute` computes, for another caller; see `Pool`."""
        until, useful = self._ahead()
        return self.pool.batches(waiting, until=until, useful=useful)

    def in_parcels(self, waiting: Sequence[Any]) -> Generator[None, Sequence[Any], None]:
        """Compute with workers as `compute` does, for a caller that waits for them; see `Pool`."""
        until, useful = self._ahead()
        return self.pool.in_parcels(waiting, until=until, useful=useful)

    def _ahead(self) -> tuple[float, float]:
        """Show the model; return the last arrival time and the number of arrivals of use."""
        self.show()
        if self.executor.crew is not None:  # others look at the module when they compute
            self.module_state.check_kept()
        if not self.executor.independent:
            self.pool.pulled_before = self.schedule.now
        counts, limits = self.counts, self.setting.limits
        used = len(self.history[-1].updates) if self.history else float("inf")
        until = limits.max_time or float("inf")
        return until, limits.updates_left(counts.version, counts.num_updates, used)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """While events are handled; a checkpoint that is requested within one waits for its end."""
        self._in_event = True
        try:
            yield
        finally:
            self._in_event = False
        self._save_requested()

    # Two methods, because after most events a context manager would cost more than its body.
    def end_event(self) -> None:
        """Mark the end of an event: until the next one, a checkpoint is written at once."""
        self._in_event = False

    def begin_event(self) -> None:
        """Write the checkpoints that were requested, and mark the beginning of an event."""
        if self._requested:
            self._save_requested()
        self._in_event = True

    def save(self, path: str | Path, *copies: str | Path, parts: Parts | None = None) -> None:
        """Write a checkpoint, at once or as soon as the present event is over.

        Args:
            path: The file.
            *copies: More files to write the same to.
            parts: Where the full parts of growing lists go; None to have all in the file.

        Raises:
            TypeError: A path is none.
            ValueError: A path is empty or a folder.
        """
        for name, each in (("path", path), *(("copies", copy) for copy in copies)):
            new_file(name, each, "runs/last.ckpt")
        if self._in_event:
            self._requested.append((path, copies, parts))
        else:
            with no_collections():
                write_checkpoint(path, self.state_dict(), *copies, parts=parts)

    def _save_requested(self) -> None:
        requested, self._requested = self._requested, []
        for path, copies, parts in requested:
            self.save(path, *copies, parts=parts)

    def record(self, record: RoundRecord) -> None:
        """Add the record of a new version; from now on the module shows that version.

        It is copied into the module only when something reads the module (`show`): a run of
        asynchronous clients makes many versions that nothing reads.
        """
        if not self.module_state.is_late and self.module_state.is_changed:
            rank_zero_warn(
                f"fedlight: something has changed the weights of {type(self.module).__name__} "
                "while updates were arriving (on_update, on_train_epoch_start of a callback); this "
                "is lost with the server's next version. Change them in on_round_end or "
                "on_train_epoch_end, or around a validation"
            )
        self.module_state.write_late(self.server.state)
        self.history.append(record)

    def show(self) -> None:
        """Copy the newest version into the module, for code that is about to read the module.

        Executors leave the module as they found it, so hooks and validation see this version.
        """
        self._show()

    def adopt(self) -> None:
        """Copy changes that hooks have made to the module into the newest version.

        Clients that pull from now on get them; those already at work have pulled the version
        before the changes.
        """
        self.server.adopt_settings()
        if self.module_state.is_late:
            return  # no hook has read the module since the version was made
        present = self.module_state.present()
        if present.params is not self.server.state.params:
            new = self.server.adopt(present.params, present.buffers, present.counters)
            self.module_state.write(new)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Add metrics to the newest round."""
        if not metrics:
            return
        values = Metrics({name: float(value) for name, value in metrics.items()})
        if isinstance(metrics, Metrics):
            values.prog_bar, values.unlogged = metrics.prog_bar, metrics.unlogged
        self.history[-1].metrics.merge(values)
        self.metrics.merge(values)

    def check_savable(self) -> None:
        """Refuse a state now that a checkpoint of this run could not hold.

        Raises:
            TypeError: The state of a strategy or of a callback holds something that is no plain
                data; the error names it.
        """
        restoring.check_savable([self.setting.aggregator, self.setting.arrivals, *self.callbacks])

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits of the server's model: equal exactly if all its bits are."""
        state = self.state
        digest = hashlib.blake2b(str(state.version).encode(), digest_size=8)
        for tensor in (state.params, state.buffers, state.counters):
            digest.update(str(tensor.dtype).encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def finish(self, trial: bool = False) -> None:
        """End the run, once, after the last event.

        Args:
            trial: Whether this was a trial, at whose end arrival processes write no files.
        """
        self.show()
        self.clients.settle()
        if not trial:
            self.schedule.finish()

    @cached_property
    def _hparams(self) -> HyperParameters:
        return plain_hparams(self.module)

    def _described(self) -> dict[str, Any]:
        """The description that a checkpoint must share with a run that resumes from it."""
        return self._description | describe_module(self.module_state)

    def state_dict(self) -> dict[str, Any]:
        """Return the content of a checkpoint, as tensors and plain data, between two events.

        The random streams need no state: each is a function of the seed and its name.
        """
        self._state_watch.warn()
        self.show()
        content = {
            # These six are what ``Module.load_from_checkpoint`` of plain Lightning reads.
            "state_dict": {name: value.cpu() for name, value in self.module.state_dict().items()},
            "hyper_parameters": self._hparams,
            "hparams_name": getattr(self.module, "_hparams_name", None),
            "pytorch-lightning_version": lightning.__version__,
            "epoch": 0,
            "global_step": self.counts.version,
            "fedlight": {
                "format": FORMAT,
                "run": self.id,
                "federation": self._described(),
                "server": self.server.state_dict(),
                "schedule": self.schedule.state_dict(),
                "executor": self.executor.state_dict(),
                "history": Growing(self.history, record_to_list),
                "metrics": dict(self.metrics),
                "callbacks": [[key, c.state_dict()] for key, c in restoring.keyed(self.callbacks)],
                "loggers": [[key, position(each)] for key, each in restoring.keyed(self.loggers)],
            },
        }
        self.module.on_save_checkpoint(content)
        moment_of(self.module).touched = True
        return content

    def restore(self, content: dict[str, Any], path: str) -> None:
        """Resume from what `state_dict` returned, in a run of the same arguments.

        The module gets those weights of the checkpoint whose tensors it has. If its hooks then
        change them, `begin` undoes it.

        Args:
            content: The content of a checkpoint.
            path: Its name, for errors.

        Raises:
            CheckpointError: It is of another federation; the error names what differs.
        """
        saved, present = content["fedlight"], self._description
        known = saved["federation"]
        weights = content["state_dict"]
        if restoring.fitting(self.module, weights).keys() != weights.keys():
            check_same(known, present | describe_module(ModuleState(self.module)), path)
        # Hooks may still change the module, so only `begin` can compare all of it.
        check_same({name: known[name] for name in present if name in known}, present, path)
        self.id = saved["run"]
        self.counts.load_state_dict(saved["server"])
        self.module.on_load_checkpoint(content)
        # Read again, since `on_load_checkpoint` may have changed them.
        weights = restoring.fitting(self.module, content["state_dict"])
        self.module.load_state_dict(weights, strict=False)
        self._checkpoint = (content, path)
        self.schedule.load_state_dict(saved["schedule"])
        self.history[:] = map(record_from_list, saved["history"])
        for record in self.history:
            if record.metrics.prog_bar or record.metrics.unlogged:
                self.metrics.merge(record.metrics)  # how each name is shown
        self.metrics.update(saved["metrics"])
        for callback, state in restoring.matched(self.callbacks, saved["callbacks"]):
            callback.load_state_dict(state)
        for logger, place in restoring.matched(self.loggers, saved["loggers"]):
            go_on(logger, place, self.history)
