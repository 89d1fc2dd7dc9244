"""A run: all that one fit changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
from lightning.pytorch.utilities import rank_zero_warn

from fedlight._module.moment import moment_of
from fedlight._module.settings import LiveSettings
from fedlight._runs import restoring
from fedlight._runs.data_fingerprint import data_fingerprint
from fedlight._runs.describe import check_same, describe_federation, describe_module
from fedlight._runs.fingerprint import fingerprint
from fedlight._runs.own_state import StateWatch
from fedlight._runs.records import record_from_list, record_to_list
from fedlight._support.growing import Growing
from fedlight._support.memory import BLOCKS
from fedlight.arrivals.schedule import Schedule
from fedlight.checkpoint import FORMAT, HyperParameters, Parts, plain_hparams, write_checkpoint
from fedlight.clients import Clients
from fedlight.clients.pool import Pool
from fedlight.clients.sending import Sending
from fedlight.executors._choice.choose import resolve_executor
from fedlight.executors.base import Workplace
from fedlight.loop import Counts
from fedlight.parameters import ModuleState, input_dtype
from fedlight.server import Server, Watcher
from fedlight.types import Federation, Metrics, RoundRecord

if TYPE_CHECKING:
    from lightning import LightningModule
    from lightning.fabric.loggers.logger import Logger

    from fedlight._runs.setting import Setting
    from fedlight.data import FederatedDataModule
    from fedlight.data.examples import ExampleList, ExampleTable
    from fedlight.executors import Executor
    from fedlight.types import ServerState


class _Unread:
    """The model before `Run.begin` reads it: the module as it is, which hooks may still change."""

    def __init__(self, module: LightningModule, counts: Counts) -> None:
        self._module, self._counts = module, counts

    @property
    def state(self) -> ServerState:
        """What the module holds now."""
        return ModuleState(self._module).read(self._counts.version)

    def show(self) -> None:
        """Do nothing: the module holds the model."""


class _Served:
    """The model from `Run.begin` on: the server's newest version, which the module has to show."""

    def __init__(self, server: Server, module_state: ModuleState) -> None:
        self._server = server
        self.show = module_state.show

    @property
    def state(self) -> ServerState:
        """The server's newest version."""
        return self._server.state


class Run:
    """All that one fit changes. Two runs of the same arguments are the same to the bit.

    A run is made before the hooks at the start of a fit. `restore` takes up a checkpoint as far as
    those hooks may look at it, and `begin`, after them, reads the module.

    Args:
        module: The module.
        datamodule: The clients' data, set up.
        setting: The options that the result depends on.
        autocast: Makes the context in which local steps run (mixed precision).
        watcher: Is told of everything that happens at the server.
        callbacks: Callbacks whose state belongs to the run.
        loggers: Loggers that write on behind a checkpoint.

    Attributes:
        id: Sixteen hexadecimal digits that tell this run from others; a resumed run has that of
            its checkpoint. Nothing that is computed depends on it.
        counts: How far the run is.
        federation: Who takes part.
        schedule: What happens next; the clock.
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

    server: Server
    clients: Clients
    pool: Pool
    examples: ExampleTable | ExampleList
    executor: Executor
    executor_reason: str
    module_state: ModuleState

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
            len(partition), partition.sizes, datamodule.batch_size, setting.seed
        )
        self.schedule = Schedule(
            arrivals,
            federation,
            interval=setting.aggregator.interval,
            max_time=setting.limits.max_time,
        )
        self.federation = replace(
            federation,
            expected_durations=arrivals.expected_durations(),
            groups=arrivals.groups,
        )
        self._description = describe_federation(setting, self.federation, data)
        self._autocast, self._watcher = autocast, watcher
        self._model: _Unread | _Served = _Unread(module, self.counts)
        self._set_up = ExitStack()
        self._checkpoint: tuple[dict[str, Any], str] | None = None
        # A checkpoint that is wanted before the run has begun waits as well.
        self._in_event = True
        self._wanted: list[tuple[str | Path, tuple[str | Path, ...], Parts | None]] = []

    def begin(self) -> None:
        """Read the module as version 0, or as the checkpoint's; set the executor up and try it.

        Raises:
            ValueError: The module, the data, the strategies or the executor do not fit together.
            CheckpointError: The checkpoint is of another module; the error names what differs.
        """
        module, datamodule, setting = self.module, self.datamodule, self.setting
        partition = datamodule.partition
        self.module_state = state = ModuleState(module)
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
        )
        choice = resolve_executor(setting.executor, workplace)
        self.executor, self.executor_reason = choice.executor, choice.reason
        settings.begin(choice.kept)
        self._set_up.callback(self.executor.teardown)
        sending = None if setting.channel is None else Sending(setting.channel, setting.seed)
        ahead = not setting.arrivals.may_stop
        self.pool = Pool(self.executor, setting.norm_limit, sending, ahead)
        keep_states = setting.local_optimizer.client_state
        self.clients = Clients(self.pool, partition.sizes, keep_states=keep_states)
        self.server = Server(
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
        self._model = _Served(self.server, state)
        self._in_event = False
        self._save_wanted()

    def close(self) -> None:
        """Let go of what `begin` has set up; the module holds the newest version."""
        self.show()
        self._set_up.close()
        BLOCKS.end_run()

    @property
    def state(self) -> ServerState:
        """The newest version of the server's model; before `begin`, the module as it is."""
        return self._model.state

    @property
    def over(self) -> bool:
        """Whether a limit is reached, or no local run succeeds any more."""
        counts = self.counts
        return counts.over or self.setting.limits.reached(counts.version, counts.num_updates)

    def compute(self, waiting: Sequence[Any]) -> None:
        """Compute the local runs that the loop waits for."""
        self.show()
        until, useful = self._ahead()
        self.pool.compute(waiting, until=until, useful=useful)

    def batches(self, waiting: Sequence[Any]) -> Generator[list[Any], Sequence[Any], None]:
        """What `compute` computes, batch by batch, for a caller that computes it; see `Pool`."""
        self.show()
        until, useful = self._ahead()
        return self.pool.batches(waiting, until=until, useful=useful)

    def _ahead(self) -> tuple[float, float]:
        """How far ahead of its arrival a local run may still be useful."""
        counts, limits = self.counts, self.setting.limits
        used = len(self.history[-1].updates) if self.history else float("inf")
        until = limits.max_time or float("inf")
        return until, limits.updates_left(counts.version, counts.num_updates, used)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """While events are handled; a checkpoint that is wanted in the middle of one waits."""
        self._in_event = True
        try:
            yield
        finally:
            self._in_event = False
        self._save_wanted()

    # Two methods, since a context manager would cost more than all that it does after most events.
    def end_event(self) -> None:
        """The moment between two events begins, in which a checkpoint is written at once."""
        self._in_event = False

    def begin_event(self) -> None:
        """It is over; checkpoints that were wanted before it are written now."""
        if self._wanted:
            self._save_wanted()
        self._in_event = True

    def save(self, path: str | Path, *copies: str | Path, parts: Parts | None = None) -> None:
        """Write a checkpoint, at once or as soon as the present event is over.

        Args:
            path: The file.
            *copies: More files to write the same to.
            parts: Where the full parts of growing lists go; None to have all in the file.
        """
        if self._in_event:
            self._wanted.append((path, copies, parts))
        else:
            write_checkpoint(path, self.state_dict(), *copies, parts=parts)

    def _save_wanted(self) -> None:
        wanted, self._wanted = self._wanted, []
        for path, copies, parts in wanted:
            self.save(path, *copies, parts=parts)

    def record(self, record: RoundRecord) -> None:
        """Take up the record of a new version, which is from now on the one that the module shows.

        It is not copied into the module before somebody looks (`show`): a run of asynchronous
        clients makes many versions that nobody sees.
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
        """Put the newest version into the module, which others are about to look at.

        Executors leave the module as they found it, so hooks and validation see this version.
        """
        self._model.show()

    def adopt(self) -> None:
        """Take what hooks have changed in the module into the newest version, as it holds there.

        Clients that pull from now on get it; those that are at work have pulled what was before.
        """
        self.server.adopt_settings()
        if self.module_state.is_late:
            return  # nobody has looked at it
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
        """Refuse now what a checkpoint of this run could not hold.

        Raises:
            TypeError: The state of a strategy or of a callback holds something that is no plain
                data; the error names it.
        """
        restoring.check_savable([self.setting.aggregator, self.setting.arrivals, *self.callbacks])

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits of the server's model: equal exactly if all its bits are."""
        return fingerprint(self.state)

    def finish(self, trial: bool = False) -> None:
        """Called once after the last event.

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
        """What two runs must have in common for one to go on from the other's checkpoint."""
        return self._description | describe_module(self.module_state)

    def state_dict(self) -> dict[str, Any]:
        """The run between two events: what a checkpoint holds, as tensors and plain data.

        The random streams need no state: each is named by the seed and by what it is for.
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
                "callbacks": restoring.states_of(self.callbacks),
                "loggers": restoring.positions_of(self.loggers),
            },
        }
        self.module.on_save_checkpoint(content)
        moment_of(self.module).touched = True
        return content

    def restore(self, content: dict[str, Any], path: str) -> None:
        """Go on from what `state_dict` gave, in a run of the same arguments.

        The module gets the checkpoint's weights, as far as it has the same tensors; what it then
        does with them in its hooks is undone by `begin`.

        Args:
            content: The content of a checkpoint.
            path: Its name, for errors.

        Raises:
            CheckpointError: It is of another federation; the error names what differs.
        """
        saved, present = content["fedlight"], self._description
        known = saved["federation"]
        if not restoring.fits(self.module, content["state_dict"]):
            check_same(known, present | describe_module(ModuleState(self.module)), path)
        # Hooks may still change the module, so only `begin` can compare all of it.
        check_same({name: known.get(name) for name in present}, present, path)
        self.id = saved["run"]
        self.counts.load_state_dict(saved["server"])
        self.module.on_load_checkpoint(content)
        restoring.load_fitting(self.module, content["state_dict"])
        self._checkpoint = (content, path)
        self.schedule.load_state_dict(saved["schedule"])
        self.history[:] = map(record_from_list, saved["history"])
        for record in self.history:
            if record.metrics.prog_bar or record.metrics.unlogged:
                self.metrics.merge(record.metrics)  # how each name is shown
        self.metrics.update(saved["metrics"])
        restoring.load_states(self.callbacks, saved["callbacks"])
        restoring.let_write_on(self.loggers, saved["loggers"], self.history)
