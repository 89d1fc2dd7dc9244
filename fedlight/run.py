"""A run: all that one fit changes, and what a checkpoint keeps of it."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import lightning
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fedlight._runs.data_fingerprint import data_fingerprint
from fedlight._runs.identity import in_words
from fedlight._runs.loggers import go_on, position
from fedlight._runs.own_state import StateWatch
from fedlight._runs.records import record_from_list, record_to_list
from fedlight._support.growing import Growing
from fedlight._support.memory import BLOCKS
from fedlight.arrivals.schedule import Schedule
from fedlight.checkpoint import (
    FORMAT,
    CheckpointError,
    HyperParameters,
    Parts,
    differences,
    plain,
    plain_hparams,
    write_checkpoint,
)
from fedlight.clients import Clients
from fedlight.clients.pool import Pool
from fedlight.clients.sending import Sending
from fedlight.executors._choice.choose import resolve_executor
from fedlight.executors.base import Workplace
from fedlight.parameters import ModuleState, input_dtype
from fedlight.server import Server, Watcher
from fedlight.types import Federation, Metrics, RoundRecord

if TYPE_CHECKING:
    from lightning import LightningModule
    from lightning.fabric.loggers.logger import Logger

    from fedlight.aggregators import Aggregator
    from fedlight.arrivals import ArrivalProcess
    from fedlight.channel import Channel
    from fedlight.clients.large_updates import NormLimit
    from fedlight.data import FederatedDataModule
    from fedlight.data.examples import ExampleList, ExampleTable
    from fedlight.executors import Executor
    from fedlight.local_optimizers import LocalOptimizer
    from fedlight.loop import Limits
    from fedlight.types import ServerState


class Stateful(Protocol):
    """What a run keeps of a callback."""

    def state_dict(self) -> dict[str, Any]: ...  # noqa: D102
    def load_state_dict(self, state: dict[str, Any]) -> None: ...  # noqa: D102


class Run:
    """All that one fit changes. Two runs of the same arguments are the same to the bit.

    A run is made before the hooks at the start of a fit. `restore` takes up a checkpoint as far as
    those hooks may look at it, and `begin`, after them, reads the module.

    Args:
        module: The module.
        datamodule: The clients' data, set up.
        arrivals: Who arrives when.
        aggregator: How the server makes a new version.
        local_optimizer: The arithmetic of a local run.
        executor: How local runs are computed.
        limits: When the run stops.
        seed: All randomness follows from it.
        on_client_failure: "raise", "drop" or "retry".
        norm_limit: What is done with large updates, or None.
        channel: What updates go through on their way, or None.
        autocast: Makes the context in which local steps run (mixed precision).
        watcher: Is told of everything that happens at the server.
        callbacks: Callbacks whose state belongs to the run.
        loggers: Loggers that write on behind a checkpoint.

    Attributes:
        id: Sixteen hexadecimal digits that tell this run from others; a resumed run has that of
            its checkpoint. Nothing that is computed depends on it.
        federation: Who takes part.
        schedule: What happens next; the clock.
        server: The versions of the model. This and the next six are there from `begin` on.
        clients: The clients' runs and states.
        pool: The local runs to be computed.
        examples: The clients' examples on the device of the run.
        executor: The executor, set up.
        executor_reason: Why it was chosen.
        module_state: Reads and writes the module.
        history: One record for each round.
        metrics: The newest value of each metric.

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
        *,
        arrivals: ArrivalProcess,
        aggregator: Aggregator,
        local_optimizer: LocalOptimizer,
        executor: Executor | str,
        limits: Limits,
        seed: int,
        on_client_failure: str,
        norm_limit: NormLimit | None,
        channel: Channel | None,
        autocast: Callable[[], AbstractContextManager[Any]],
        watcher: Watcher,
        callbacks: Sequence[Stateful],
        loggers: Sequence[Logger],
    ) -> None:
        self.id = os.urandom(8).hex()
        self.module = module
        self.datamodule = datamodule
        self.arrivals, self.aggregator = arrivals, aggregator
        self.local_optimizer = local_optimizer
        self.limits = limits
        self.callbacks, self.loggers = callbacks, loggers
        self.history: list[RoundRecord] = []
        self.metrics = Metrics()
        partition = datamodule.partition
        self._data = data_fingerprint(partition, datamodule.train_data)
        federation = Federation(len(partition), partition.sizes, datamodule.batch_size, seed)
        self.schedule = Schedule(
            arrivals, federation, interval=aggregator.interval, max_time=limits.max_time
        )
        self.federation = replace(
            federation,
            expected_durations=arrivals.expected_durations(),
            groups=arrivals.groups,
        )
        self.begun = False
        self._asked, self._autocast = executor, autocast
        self._norm_limit, self._on_client_failure = norm_limit, on_client_failure
        self.channel = channel
        self._watcher = watcher
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
        module, datamodule = self.module, self.datamodule
        partition = datamodule.partition
        self.module_state = state = ModuleState(module)
        if self._checkpoint is not None:
            self._put_over(*self._checkpoint)
        self.examples = datamodule.train_data.to(state.device, input_dtype(module))
        workplace = Workplace(
            module=module,
            state=state,
            optimizer=self.local_optimizer,
            partition=partition,
            examples=self.examples,
            batch_size=datamodule.batch_size,
            seed=self.federation.seed,
            autocast=self._autocast,
        )
        choice = resolve_executor(self._asked, workplace)
        self.executor, self.executor_reason = choice.executor, choice.reason
        sending = None if self.channel is None else Sending(self.channel, self.federation.seed)
        ahead = not self.arrivals.may_stop
        self.pool = Pool(self.executor, self._norm_limit, sending, ahead)
        keep_states = self.local_optimizer.client_state
        self.clients = Clients(self.pool, partition.sizes, keep_states=keep_states)
        self.server = Server(
            self.aggregator,
            self.local_optimizer,
            self.clients,
            self.federation,
            state.present(),
            self.schedule,
            self._on_client_failure,
            self._watcher,
            self.channel,
        )
        if self._checkpoint is not None:
            saved = self._checkpoint[0]["fedlight"]
            self.executor.load_state_dict(saved.get("executor", {}))
            self.server.load_state_dict(saved["server"])
            state.write(self.server.state)
            self._checkpoint = None
        self._state_watch = StateWatch([self.arrivals, self.aggregator])
        self.begun = True
        self._in_event = False
        self._save_wanted()

    def close(self) -> None:
        """Let go of what `begin` has set up; the module holds the newest version."""
        self.show()
        if self.begun:
            self.executor.teardown()
        BLOCKS.end_run()

    @property
    def version(self) -> int:
        """Server updates so far."""
        return self.server.version if self.begun else int(self._saved("version"))

    @property
    def num_updates(self) -> int:
        """Client updates that have arrived."""
        return self.server.num_updates if self.begun else int(self._saved("num_updates"))

    @property
    def num_failures(self) -> int:
        """Tasks that failed or were lost so far."""
        return self.server.num_failures if self.begun else int(self._saved("num_failures"))

    @property
    def state(self) -> ServerState:
        """The newest version of the server's model; before `begin`, the module as it is."""
        return self.server.state if self.begun else ModuleState(self.module).read(self.version)

    def _saved(self, count: str) -> Any:
        """A number that the checkpoint holds of the server, 0 without one."""
        return 0 if self._checkpoint is None else self._checkpoint[0]["fedlight"]["server"][count]

    @property
    def over(self) -> bool:
        """Whether a limit is reached, or no local run succeeds any more."""
        server = self.server
        return server.over or self.limits.reached(server.version, server.num_updates)

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
        server = self.server
        used = len(self.history[-1].updates) if self.history else float("inf")
        until = self.limits.max_time or float("inf")
        return until, self.limits.updates_left(server.version, server.num_updates, used)

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
        if self.begun:
            self.module_state.show()

    def adopt(self) -> None:
        """Take what hooks have changed in the module into the newest version, as it holds there.

        Clients that pull from now on get it; those that are at work have pulled what was before.
        """
        if self.module_state.is_late:
            return  # nobody has looked at it
        present = self.module_state.present()
        if present is not self.server.state:
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
        kept: list[Stateful] = [self.aggregator, self.arrivals, *self.callbacks]
        for each in kept:
            try:
                state = each.state_dict()
            except (AttributeError, KeyError):  # it tells of what comes with the first update
                continue
            plain(state, f"{type(each).__name__}.state_dict()")

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits of the server's model: equal exactly if all its bits are."""
        state = self.state
        digest = hashlib.blake2b(str(state.version).encode(), digest_size=8)
        for tensor in (state.params, state.buffers, state.counters):
            digest.update(str(tensor.dtype).encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

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
            "global_step": self.server.version,
            "fedlight": {
                "format": FORMAT,
                "run": self.id,
                "federation": self.describe(),
                "server": self.server.state_dict(),
                "schedule": self.schedule.state_dict(),
                "executor": self.executor.state_dict(),
                "history": Growing(self.history, record_to_list),
                "metrics": dict(self.metrics),
                "callbacks": [[key, each.state_dict()] for key, each in _keyed(self.callbacks)],
                "loggers": [[key, position(each)] for key, each in _keyed(self.loggers)],
            },
        }
        self.module.on_save_checkpoint(content)
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
        saved = content["fedlight"]
        if not _fits(self.module, content["state_dict"]):
            present = self._described() | self._described_module(ModuleState(self.module))
            self._check(saved["federation"], present, path)
        known = {name: saved["federation"].get(name) for name in self._described()}
        self._check(known, self._described(), path)
        self.id = saved["run"]
        self.module.on_load_checkpoint(content)
        own = self.module.state_dict()
        fitting = {k: v for k, v in content["state_dict"].items() if _same_shape(own.get(k), v)}
        self.module.load_state_dict(fitting, strict=False)
        self._checkpoint = (content, path)
        self.schedule.load_state_dict(saved["schedule"])
        self.history[:] = map(record_from_list, saved["history"])
        for record in self.history:
            if record.metrics.prog_bar or record.metrics.unlogged:
                self.metrics.merge(record.metrics)  # how each name is shown
        self.metrics.update(saved["metrics"])
        states = dict(map(tuple, saved["callbacks"]))
        for key, callback in _keyed(self.callbacks):
            if key in states:
                callback.load_state_dict(states[key])
        places = dict(map(tuple, saved["loggers"]))
        for key, logger in _keyed(self.loggers):
            if key in places:
                go_on(logger, places[key], self.history)

    def _put_over(self, content: dict[str, Any], path: str) -> None:
        """Check the module against the checkpoint once more, and give it the frozen parameters."""
        self._check(content["fedlight"]["federation"], self.describe(), path)
        self._restore_frozen(content["state_dict"], path)

    def _check(self, saved: dict[str, Any], present: dict[str, Any], path: str) -> None:
        if saved.get("on_client_failure") == "raise":
            # Nothing has failed so far, or the run would have ended: the rest may be handled
            # otherwise, as if it had been from the start.
            saved = saved | {"on_client_failure": present.get("on_client_failure")}
        different = differences(saved, present)
        if different:
            raise CheckpointError(f"{path!r} is of another federation: {'; '.join(different)}")

    def _restore_frozen(self, tensors: Mapping[str, Tensor], path: str) -> None:
        """Parameters without a gradient take no part in the federation, but belong to the model."""
        for name, param in self.module.named_parameters():
            if not param.requires_grad:
                kept = tensors.get(name)
                if kept is None and not self.module.strict_loading:
                    continue  # the module says that its state_dict leaves some out
                if kept is None or kept.shape != param.shape:
                    raise CheckpointError(
                        f"{path!r} has no parameter {name!r} of shape {tuple(param.shape)}"
                    )
                param.data.copy_(kept)

    def describe(self) -> dict[str, Any]:
        """What two runs must have in common for one to go on from the other's checkpoint."""
        return self._described() | self._described_module(self.module_state)

    def _described(self) -> dict[str, Any]:
        federation = self.federation
        limit = self._norm_limit
        sizes = hashlib.blake2b(federation.num_examples.tobytes(), digest_size=8).hexdigest()
        return {
            "number of clients": federation.num_clients,
            "examples of the clients (hash)": sizes,
            "data (hash)": self._data,
            "batch_size": federation.batch_size,
            "seed": federation.seed,
            **self.strategies(),
            "on_client_failure": self._on_client_failure,
            "max_update_norm": limit and limit.most,
            "on_large_update": limit and ("clip" if limit.clip else "drop"),
        }

    def _described_module(self, state: ModuleState) -> dict[str, Any]:
        return {
            "parameters": _shapes(state.param_layout),
            "buffers": _shapes(state.buffer_layout) + _shapes(state.counter_layout),
        }

    def settings(self) -> dict[str, Any]:
        """The settings of the federation: the strategies in words, and the numbers beside them."""
        federation = self.federation
        return {
            **self.strategies(),
            "clients": federation.num_clients,
            "batch_size": federation.batch_size,
            "seed": federation.seed,
        }

    def strategies(self) -> dict[str, str]:
        """The strategies in words, by the names of the trainer's arguments."""
        channel = {} if self.channel is None else {"channel": in_words(self.channel)}
        return {
            "arrivals": in_words(self.arrivals),
            "aggregator": in_words(self.aggregator),
            "local_optimizer": in_words(self.local_optimizer),
            **channel,
        }


def _shapes(layout: Any) -> list[str]:
    return [
        f"{name} {tuple(shape)} {layout.dtype}"
        for name, shape in zip(layout.names, layout.shapes, strict=True)
    ]


def _fits(module: LightningModule, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a module has the tensors of a checkpoint, in their shapes."""
    own = module.state_dict()
    return all(_same_shape(own.get(name), tensor) for name, tensor in tensors.items())


def _same_shape(one: object, other: object) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape


def _keyed(objects: Sequence[Any]) -> Iterable[tuple[str, Any]]:
    """Objects with the name of their class and their number in it, which survive added ones."""
    seen: Counter[str] = Counter()
    for each in objects:
        name = type(each).__qualname__
        yield f"{name}-{seen[name]}", each
        seen[name] += 1
