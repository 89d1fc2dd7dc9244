"""A run: all that one fit changes, and what a checkpoint keeps of it."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

import lightning
import torch

from fedlight._growing import Growing
from fedlight._history import record_from_list, record_to_list
from fedlight._loggers import go_on, position
from fedlight._own_state import StateWatch
from fedlight.arrivals.schedule import Schedule
from fedlight.checkpoint import (
    FORMAT,
    CheckpointError,
    Parts,
    differences,
    plain_hparams,
    write_checkpoint,
)
from fedlight.clients import Clients
from fedlight.executors._auto import resolve_executor
from fedlight.executors.base import Workplace
from fedlight.executors.pool import Pool
from fedlight.parameters import ModuleState, input_dtype
from fedlight.server import Server, Watcher
from fedlight.types import Federation, RoundRecord

if TYPE_CHECKING:
    from lightning import LightningModule
    from lightning.fabric.loggers.logger import Logger
    from torch import Tensor

    from fedlight.aggregators import Aggregator
    from fedlight.arrivals import ArrivalProcess
    from fedlight.data import FederatedDataModule
    from fedlight.executors import Executor
    from fedlight.executors.large_updates import NormLimit
    from fedlight.local_optimizers import LocalOptimizer
    from fedlight.loop import Limits


class Stateful(Protocol):
    """What a run keeps of a callback."""

    def state_dict(self) -> dict[str, Any]: ...  # noqa: D102
    def load_state_dict(self, state: dict[str, Any]) -> None: ...  # noqa: D102


class Run:
    """All that one fit changes. Two runs of the same arguments are the same to the bit.

    Args:
        module: The module, on its device; its state is version 0.
        datamodule: The clients' data, set up.
        arrivals: Who arrives when.
        aggregator: How the server makes a new version.
        local_optimizer: The arithmetic of a local run.
        executor: How local runs are computed.
        limits: When the run stops.
        seed: All randomness follows from it.
        on_client_failure: "raise", "drop" or "retry".
        norm_limit: What is done with large updates, or None.
        autocast: Makes the context in which local steps run (mixed precision).
        watcher: Is told of everything that happens at the server.
        callbacks: Callbacks whose state belongs to the run.
        loggers: Loggers that write on behind a checkpoint.

    Attributes:
        federation: Who takes part.
        schedule: What happens next; the clock.
        server: The versions of the model.
        clients: The clients' runs and states.
        pool: The local runs to be computed.
        executor: The executor, set up.
        executor_reason: Why it was chosen.
        module_state: Reads and writes the module.
        history: One record for each round.
        metrics: The newest value of each metric.

    Raises:
        ValueError: The module, the data, the strategies or the executor do not fit together.
    """

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
        autocast: Callable[[], AbstractContextManager[Any]],
        watcher: Watcher,
        callbacks: Sequence[Stateful],
        loggers: Sequence[Logger],
    ) -> None:
        self.module = module
        self.arrivals, self.aggregator = arrivals, aggregator
        self.local_optimizer = local_optimizer
        self.limits = limits
        self.callbacks, self.loggers = callbacks, loggers
        self.history: list[RoundRecord] = []
        self.metrics: dict[str, float] = {}
        partition = datamodule.partition
        self.module_state = state = ModuleState(module)
        federation = Federation(len(partition), partition.sizes, datamodule.batch_size, seed)
        self.schedule = Schedule(
            arrivals, federation, interval=aggregator.interval, max_time=limits.max_time
        )
        self.federation = replace(federation, expected_durations=arrivals.expected_durations())
        workplace = Workplace(
            module=module,
            state=state,
            optimizer=local_optimizer,
            partition=partition,
            examples=datamodule.train_data.to(state.device, input_dtype(module)),
            batch_size=datamodule.batch_size,
            seed=seed,
            autocast=autocast,
        )
        self.executor, self.executor_reason = resolve_executor(executor, workplace)
        self.pool = Pool(self.executor, norm_limit)
        self.clients = Clients(self.pool, partition.sizes, keep_states=local_optimizer.client_state)
        self.server = Server(
            aggregator,
            local_optimizer,
            self.clients,
            self.federation,
            state.read(),
            self.schedule,
            on_client_failure,
            watcher,
        )
        self._state_watch = StateWatch([arrivals, aggregator])
        self._in_event = False
        self._wanted: list[tuple[str | Path, tuple[str | Path, ...], Parts | None]] = []

    @property
    def over(self) -> bool:
        """Whether a limit is reached, or no local run succeeds any more."""
        server = self.server
        return server.over or self.limits.reached(server.version, server.num_updates)

    def compute(self, waiting: Sequence[Any]) -> None:
        """Compute the local runs that the loop waits for."""
        server = self.server
        used = len(self.history[-1].updates) if self.history else float("inf")
        self.pool.compute(
            waiting,
            until=self.limits.max_time or float("inf"),
            useful=self.limits.updates_left(server.version, server.num_updates, used),
        )

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """While events are handled; a checkpoint that is wanted in the middle of one waits."""
        self._in_event = True
        try:
            yield
        finally:
            self._in_event = False
        self._save_wanted()

    @contextmanager
    def between_events(self) -> Iterator[None]:
        """The moment between two events, in which a checkpoint is written at once."""
        self._in_event = False
        yield
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
        """Take up the record of a new version, and put that version into the module.

        Executors leave the module as they found it, so hooks and validation see the newest version.
        """
        self.module_state.write(self.server.state)
        self.history.append(record)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Add metrics to the newest round."""
        values = {name: float(value) for name, value in metrics.items()}
        self.history[-1].metrics.update(values)
        self.metrics.update(values)

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits of the server's model: equal exactly if all its bits are."""
        state = self.server.state
        digest = hashlib.blake2b(str(state.version).encode(), digest_size=8)
        for tensor in (state.params, state.buffers, state.counters):
            digest.update(str(tensor.dtype).encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def finish(self) -> None:
        """Called once after the last event."""
        self.clients.settle()
        self.schedule.finish()

    def state_dict(self) -> dict[str, Any]:
        """The run between two events: what a checkpoint holds, as tensors and plain data.

        The random streams need no state: each is named by the seed and by what it is for.
        """
        self._state_watch.warn()
        return {
            # These five are what ``Module.load_from_checkpoint`` of plain Lightning reads.
            "state_dict": {name: value.cpu() for name, value in self.module.state_dict().items()},
            "hyper_parameters": plain_hparams(self.module),
            "pytorch-lightning_version": lightning.__version__,
            "epoch": 0,
            "global_step": self.server.version,
            "fedlight": {
                "format": FORMAT,
                "federation": self.describe(),
                "server": self.server.state_dict(),
                "schedule": self.schedule.state_dict(),
                "history": Growing(self.history, record_to_list),
                "metrics": dict(self.metrics),
                "callbacks": [[key, each.state_dict()] for key, each in _keyed(self.callbacks)],
                "loggers": [[key, position(each)] for key, each in _keyed(self.loggers)],
            },
        }

    def load_state_dict(self, content: dict[str, Any], path: str) -> None:
        """Go on from what `state_dict` gave, in a run of the same arguments.

        Args:
            content: The content of a checkpoint.
            path: Its name, for errors.

        Raises:
            CheckpointError: It is of another federation; the error names what differs.
        """
        saved = content["fedlight"]
        different = differences(saved["federation"], self.describe())
        if different:
            raise CheckpointError(f"{path!r} is of another federation: {'; '.join(different)}")
        self._restore_frozen(content["state_dict"], path)
        self.server.load_state_dict(saved["server"])
        # Until the next version is made, hooks, validation and checkpoints see this one.
        self.module_state.write(self.server.state)
        self.schedule.load_state_dict(saved["schedule"])
        self.history[:] = map(record_from_list, saved["history"])
        self.metrics.update(saved["metrics"])
        states = dict(map(tuple, saved["callbacks"]))
        for key, callback in _keyed(self.callbacks):
            if key in states:
                callback.load_state_dict(states[key])
        places = dict(map(tuple, saved["loggers"]))
        for key, logger in _keyed(self.loggers):
            if key in places:
                go_on(logger, places[key], self.history)

    def _restore_frozen(self, tensors: Mapping[str, Tensor], path: str) -> None:
        """Parameters without a gradient take no part in the federation, but belong to the model."""
        for name, param in self.module.named_parameters():
            if not param.requires_grad:
                kept = tensors.get(name)
                if kept is None or kept.shape != param.shape:
                    raise CheckpointError(
                        f"{path!r} has no parameter {name!r} of shape {tuple(param.shape)}"
                    )
                param.data.copy_(kept)

    def describe(self) -> dict[str, Any]:
        """What two runs must have in common for one to go on from the other's checkpoint."""
        federation, state = self.federation, self.module_state
        sizes = hashlib.blake2b(federation.num_examples.tobytes(), digest_size=8).hexdigest()
        return {
            "number of clients": federation.num_clients,
            "examples of the clients (hash)": sizes,
            "batch_size": federation.batch_size,
            "seed": federation.seed,
            "parameters": _shapes(state.param_layout),
            "buffers": _shapes(state.buffer_layout) + _shapes(state.counter_layout),
            **self.strategies(),
        }

    def strategies(self) -> dict[str, str]:
        """The strategies in words, by the names of the trainer's arguments."""
        return {
            "arrivals": _named(self.arrivals),
            "aggregator": _named(self.aggregator),
            "local_optimizer": _named(self.local_optimizer),
        }


def _named(value: object, depth: int = 2) -> str:
    """A strategy in words, without the addresses of the objects in it.

    A class of one's own seldom has a repr: its constructor's arguments that it keeps are named, as
    a run must not go on under others. Of a function the code counts.
    """
    if isinstance(value, FunctionType):
        code = value.__code__
        content = repr((code.co_code, _without_addresses(repr(code.co_consts)), code.co_names))
        return f"{value.__name__} {hashlib.blake2b(content.encode(), digest_size=4).hexdigest()}"
    words = _without_addresses(repr(value))
    if not hasattr(value, "__dict__") or not depth:
        return words
    kept, plain = vars(value), type(value).__repr__ is object.__repr__
    told = [
        f"{name}={_named(kept[name], depth - 1)}"
        for name in signature(type(value)).parameters
        if name in kept and (plain or isinstance(kept[name], FunctionType))
    ]
    return f"{type(value).__qualname__}({', '.join(told)})" if plain else " ".join([words, *told])


def _without_addresses(words: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", words)


def _shapes(layout: Any) -> list[str]:
    return [
        f"{name} {tuple(shape)} {layout.dtype}"
        for name, shape in zip(layout.names, layout.shapes, strict=True)
    ]


def _keyed(objects: Sequence[Any]) -> Iterable[tuple[str, Any]]:
    """Objects with the name of their class and their number in it, which survive added ones."""
    seen: Counter[str] = Counter()
    for each in objects:
        name = type(each).__qualname__
        yield f"{name}-{seen[name]}", each
        seen[name] += 1
