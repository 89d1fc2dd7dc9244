"""A run of a study, from its arguments to its record; the caller computes its local runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, TypeAlias

from lightning import LightningModule

from fedlight._fit.argument_checks import as_module, check_data
from fedlight._module.rng import isolated_rng, seed_all
from fedlight._runs.loggers import CellLogger
from fedlight._support.messages import Note, voice
from fedlight.arrivals import Recording, ReplayArrivals
from fedlight.callbacks import Callback, FedCheckpoint, TensorBoardMetrics
from fedlight.checkpoint import CheckpointError
from fedlight.studies.runs import Planned, StudyRun
from fedlight.studies.store import Store
from fedlight.trainer import FedTrainer

if TYPE_CHECKING:
    from fedlight.data import FederatedDataModule
    from fedlight.executors import Executor

_STRATEGIES = ("arrivals", "aggregator", "local_optimizer")
_LONGEST = 200  # bytes of the name of a folder
_LIMITS = ("max_rounds", "max_updates")  # a replayed schedule has its own end


Start: TypeAlias = LightningModule | Callable[[], LightningModule]
"""A module, of which each run trains a copy; or a class or function, called once for each seed."""
Data: TypeAlias = "FederatedDataModule | Callable[[int], FederatedDataModule]"
"""A data module for all seeds, or a function of the seed that returns one."""


@dataclass(slots=True, eq=False)
class StudySettings:
    """The settings, the data and the start that all runs of a study share.

    Attributes:
        store: The folder of the study, or None.
        callbacks: Makes the callbacks of a run, or None.
        logger_dir: The folder for TensorBoard, or None.
        metric: The metric that TensorBoard shows first.
        mode: "min" or "max" of it is best.
        checkpoint_seconds: Real time between the checkpoints of a run.
        silent: Whether callbacks that a cell has are left out, too.
        axes_in_folders: Whether the names of TensorBoard's folders have the axes in them.
        most_data: The largest number of data modules, and of modules at the start, that are kept.
    """

    store: Store | None = None
    callbacks: Callable[[], Iterable[Callback]] | None = None
    logger_dir: Path | None = None
    metric: str = "val_acc"
    mode: str = "max"
    checkpoint_seconds: float = 30.0
    silent: bool = False
    axes_in_folders: bool = True
    most_data: int = 64
    _data: dict[tuple[int, int | None], FederatedDataModule] = field(default_factory=dict)
    _starts: dict[tuple[int, int], LightningModule] = field(default_factory=dict)

    def bare(self) -> StudySettings:
        """The same without folders, loggers and callbacks."""
        return replace(self, store=None, callbacks=None, logger_dir=None, silent=True)

    def for_task(self, keep: bool) -> StudySettings:
        """The settings for a run on another machine.

        Args:
            keep: Whether it writes its checkpoints to the folder of the study.
        """
        store = None
        if keep and self.store is not None:
            store = Store(self.store.path.absolute())  # with no locks of this process
        return replace(self, store=store, _data={}, _starts={})

    def data_of(self, planned: Planned) -> FederatedDataModule:
        """The data of a run, set up; runs of the same data share one object."""
        given = planned.cell.arguments["datamodule"]
        key = planned.data_key
        if key not in self._data:
            while len(self._data) >= self.most_data:
                del self._data[next(iter(self._data))]
            data = self._data[key] = check_data(given(planned.seed) if callable(given) else given)
            data.prepare_data()
            data.setup("fit")
        return self._data[key]

    def start_of(self, planned: Planned) -> LightningModule:
        """The module of a run with the weights at its start; not to be trained itself."""
        given = planned.cell.arguments["module"]
        key = id(given), planned.seed
        if key not in self._starts:
            while len(self._starts) >= self.most_data:
                del self._starts[next(iter(self._starts))]
            self._starts[key] = _first_module(given, planned.seed)
        return self._starts[key]


@dataclass(slots=True, eq=False)
class OneRun:
    """A run of a study, which its caller advances step by step.

    Args:
        planned: Its place in the plan.
        shared: What all runs share.
        executor: Computes its local runs; None for the executor that its arguments name.

    Attributes:
        trainer: Its trainer, once it has begun.
        result: Its record, once it is over; None if it was interrupted.
        error: Its error, or None.
        notes: Its notes about its end; a study prints them once for all of its runs.
    """

    planned: Planned
    shared: StudySettings
    executor: Executor | None = None
    trainer: FedTrainer | None = None
    result: StudyRun | None = None
    error: Exception | None = None
    notes: list[Note] = field(default_factory=list)

    def steps(self) -> Generator[Sequence[Any], None, None]:
        """Advance the run; an error in it is its result.

        Yields:
            Local runs that have to be computed before the next step.
        """
        started = time.perf_counter()
        try:
            yield from self._fit()
        except Exception as error:
            self.error = error
            self.result = self.planned.failed(error, time.perf_counter() - started)
            if self.trainer is not None:
                with suppress(RuntimeError):  # it has failed before there was a run
                    self.notes = voice().notes_of(self.trainer.run)
                    self.trainer.run.let_go()
            _empty_frames(error)
            return
        trainer = self.trainer
        assert trainer is not None
        self.notes = voice().notes_of(trainer.run)
        if not trainer.interrupted:
            self._keep(trainer, time.perf_counter() - started)
        trainer.run.let_go()

    def _keep(self, trainer: FedTrainer, seconds: float) -> None:
        """Keep the record of a run that is over."""
        if self.planned.records:
            assert isinstance(trainer.arrivals, Recording)
            self.planned.schedule = trainer.arrivals.table()
        self.result = StudyRun(
            cell=dict(self.planned.cell.names),
            seed=self.planned.seed,
            history=trainer.history,
            fingerprint=trainer.fingerprint(),
            seconds=seconds,
            papers=self.planned.papers,
        )

    def _fit(self) -> Generator[Sequence[Any], None, None]:
        planned, shared = self.planned, self.shared
        data = shared.data_of(planned)
        last = None
        if shared.store is not None:
            last = shared.store.checkpoints(planned.key) / "last.ckpt"
            last = last if last.is_file() else None
        try:
            self.trainer = trainer = self._trainer()
            yield from trainer.steps_of_fit(deepcopy(shared.start_of(planned)), data, last)
        except CheckpointError:
            if last is None:
                raise
            last.unlink()  # damaged, or of other settings: the run starts again
            self.trainer = trainer = self._trainer()
            yield from trainer.steps_of_fit(deepcopy(shared.start_of(planned)), data)

    def _trainer(self) -> FedTrainer:
        shared, planned = self.shared, self.planned
        options = trainer_options(planned.cell.arguments)
        if self.executor is not None:
            options["executor"] = self.executor
        own = None if shared.silent else planned.cell.arguments.get("callbacks")
        make = own or shared.callbacks
        callbacks = [] if make is None else list(make())
        logger: Any = False
        if shared.logger_dir is not None:
            logger = _logger_of(shared.logger_dir, planned, shared.axes_in_folders)
            if not any(isinstance(each, TensorBoardMetrics) for each in callbacks):
                callbacks.append(TensorBoardMetrics(metric=shared.metric, mode=shared.mode))
        if shared.store is not None:
            callbacks.append(
                FedCheckpoint(
                    shared.store.checkpoints(planned.key),
                    save_top_k=0,
                    every_seconds=shared.checkpoint_seconds,
                )
            )
        if planned.after is not None:
            options.update(_replayed(planned))
        elif planned.records:
            options["arrivals"] = Recording(options["arrivals"])
        return FedTrainer(
            **options,
            seed=planned.seed,
            callbacks=callbacks,
            logger=logger,
            enable_progress_bar=False,
            on_interrupt="return",
        )


def _empty_frames(error: Exception) -> None:
    """Clear the variables of an error's frames, which hold the trainer with its models.

    The first frame is still at work. It holds the error, so it is taken out.
    """
    own = error.__traceback__
    error.__traceback__ = None if own is None else own.tb_next
    clear_frames(error.__traceback__)


def _first_module(module: Start, seed: int) -> LightningModule:
    if isinstance(module, LightningModule):
        return module
    with isolated_rng():
        seed_all(seed)
        return as_module(module())


def folder_name(name: str) -> str:
    """Return a name without slashes, which is that of one folder."""
    return name.replace("/", "-").replace("\\", "-")


def cell_folder(cell: Mapping[str, Hashable], axes: bool = True) -> str:
    """Return the name of the folder of a cell for TensorBoard: ``<axis>=<name>,…``.

    Args:
        cell: The names of its values by axis.
        axes: Whether the axes are in it; else it is ``<name>,…``.
    """
    name = folder_name(
        ",".join(f"{axis}={name}" if axes else str(name) for axis, name in cell.items())
    )
    if len(name.encode()) > _LONGEST:  # the names of folders are limited to 255 bytes
        short = name.encode()[:_LONGEST].decode(errors="ignore")
        name = f"{short}… {blake2b(name.encode(), digest_size=4).hexdigest()}"
    return name


def _logger_of(folder: Path, planned: Planned, axes: bool) -> CellLogger:
    """The logger of a run, which writes to ``seed=<seed>`` in the folder of its cell."""
    cell = planned.cell.names
    name = cell_folder(cell, axes)
    return CellLogger(
        cell, planned.seed, planned.shows_data, folder, name=name, default_hp_metric=False
    )


def trainer_options(arguments: Mapping[str, Any], copies: bool = True) -> dict[str, Any]:
    """The arguments of `FedTrainer` of a run, with strategies of its own: each run changes them.

    Args:
        arguments: The arguments of the run.
        copies: False for the strategies themselves, to check them.
    """
    options = {k: v for k, v in arguments.items() if k not in ("module", "datamodule", "callbacks")}
    for name in _STRATEGIES if copies else ():
        if options.get(name) is not None:
            options[name] = deepcopy(options[name])
    return options


def _replayed(planned: Planned) -> dict[str, Any]:
    """The arrivals of a run that replays another one's, and the limits that it does not have."""
    before = planned.after
    assert before is not None
    if before.schedule is None:
        raise RuntimeError(f"the run of {before}, whose schedule this one replays, has failed")
    own, first = planned.cell.arguments["aggregator"], before.cell.arguments["aggregator"]
    pull = "recorded" if own.occasions == first.occasions else "newest"
    replay = ReplayArrivals(before.schedule, pull=pull)
    return {"arrivals": replay, **dict.fromkeys(_LIMITS)}
