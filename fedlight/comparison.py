"""Several aggregators on the same schedule, from the same start, over several seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, TypeAlias

from lightning import LightningModule
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedlight._arguments import as_module, check_data, instance_of
from fedlight._checks import integer, one_of, positive_int
from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess, Recording, ReplayArrivals, ScheduleTable
from fedlight.callbacks import Callback, TensorBoardMetrics
from fedlight.callbacks.client_evaluation import LOWER_IS_BETTER
from fedlight.callbacks.progress import lacks_widgets
from fedlight.executors._rng import isolated_rng, seed_all
from fedlight.plot import curve
from fedlight.trainer import FedTrainer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.data import FederatedDataModule
    from fedlight.local_optimizers import LocalOptimizer
    from fedlight.types import RoundRecord

Start: TypeAlias = LightningModule | Callable[[], LightningModule]
Data: TypeAlias = "FederatedDataModule | Callable[[int], FederatedDataModule]"


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRun:
    """One run of a comparison.

    Attributes:
        name: Name of the aggregator.
        seed: Its seed.
        history: ``trainer.history``.
        fingerprint: ``trainer.fingerprint()``, of the server's last model.
    """

    name: str
    seed: int
    history: list[RoundRecord]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Summary:
    """What an aggregator reached, over the seeds; a standard deviation is nan for one seed.

    Attributes:
        name: Name of the aggregator.
        best_mean: Mean over the seeds of the best value over the rounds.
        best_std: Its standard deviation (of a sample).
        last_mean: Mean over the seeds of the last value.
        last_std: Its standard deviation (of a sample).
        rounds: Mean number of server updates.
    """

    name: str
    best_mean: float
    best_std: float
    last_mean: float
    last_std: float
    rounds: float


class Comparison:
    """What `compare` found; ``rich.print`` shows it as a table.

    Attributes:
        runs: The runs, by seed, then by aggregator in the order given.
        schedules: The recorded schedule of each seed; empty for ``schedule="live"``.
        metric: The metric that is shown where none is named.
        mode: Whether "min" or "max" of it is best.
    """

    def __init__(
        self,
        runs: Sequence[ComparedRun],
        schedules: Mapping[int, ScheduleTable],
        metric: str,
        mode: str | None,
    ) -> None:
        self.runs = list(runs)
        self.schedules = dict(schedules)
        self.metric = metric
        self.mode = _mode(metric, mode)

    @property
    def histories(self) -> dict[str, list[list[RoundRecord]]]:
        """The histories by name, one for each seed."""
        found: dict[str, list[list[RoundRecord]]] = {}
        for run in self.runs:
            found.setdefault(run.name, []).append(run.history)
        return found

    def curve(
        self, name: str, seed: int, metric: str | None = None, x: str = "round"
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The points of one run: where they lie on the axis `x`, and the values.

        Args:
            name: Name of the aggregator.
            seed: Seed of the run.
            metric: Name of the metric.
            x: "round", "virtual_time", "gradients", "models" or "bytes".

        Raises:
            KeyError: There is no such run.
        """
        for run in self.runs:
            if (run.name, run.seed) == (name, seed):
                return curve(run.history, self.metric if metric is None else metric, x)
        raise KeyError(f"there is no run of {name!r} with seed {seed!r}")

    def summary(
        self, metric: str | None = None, mode: str | None = None, last: int = 1
    ) -> list[Summary]:
        """Mean and standard deviation over the seeds, a record for each aggregator.

        Args:
            metric: Name of the metric.
            mode: Whether "min" or "max" of it is best; None goes by its name.
            last: The last value is the mean over the last so many rounds that have it.

        Raises:
            ValueError: A run has no such metric.
        """
        positive_int("last", last)
        mode = self.mode if metric in (None, self.metric) and mode is None else mode
        metric = self.metric if metric is None else metric
        mode = _mode(metric, mode)
        found = []
        for name, histories in self.histories.items():
            values = [curve(history, metric)[1] for history in histories]
            if not all(len(each) for each in values):
                known = sorted({key for record in histories[0] for key in record.metrics})
                raise ValueError(f"a run of {name!r} has no metric {metric!r}; there are {known}")
            best = [float(each.min() if mode == "min" else each.max()) for each in values]
            end = [float(each[-last:].mean()) for each in values]
            rounds = fmean(len(history) for history in histories)
            found.append(Summary(name, fmean(best), _std(best), fmean(end), _std(end), rounds))
        return found

    def table(self, metric: str | None = None, mode: str | None = None, last: int = 1) -> Table:
        """`summary` as a table for ``rich.print``; mean ± standard deviation over the seeds."""
        seeds = len({run.seed for run in self.runs})
        metric = self.metric if metric is None else metric
        end = "last" if last == 1 else f"mean of the last {last}"
        table = Table(title=f"{metric}, {seeds} seed{'s' * (seeds != 1)}")
        for column in ("aggregator", "best", end, "rounds"):
            table.add_column(column, justify="left" if column == "aggregator" else "right")
        for each in self.summary(metric, mode, last):
            table.add_row(
                each.name,
                _with_std(each.best_mean, each.best_std),
                _with_std(each.last_mean, each.last_std),
                f"{each.rounds:g}",
            )
        return table

    def to_pandas(self) -> Any:
        """All metrics of all rounds as a data frame: a row for each round of each run."""
        import pyarrow as pa

        rows: list[dict[str, object]] = [
            {"name": run.name, "seed": run.seed, "round": record.version, **record.metrics}
            for run in self.runs
            for record in run.history
        ]
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: [row.get(name) for row in rows] for name in names}).to_pandas()

    def __repr__(self) -> str:
        names = ", ".join(self.histories)
        seeds = sorted({run.seed for run in self.runs})
        return f"<Comparison of {names}; seeds={seeds}, metric={self.metric!r}, mode={self.mode!r}>"

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        lines = [f"{self.metric} (best, last)"]
        lines += [
            f"{each.name}: {_with_std(each.best_mean, each.best_std)}, "
            f"{_with_std(each.last_mean, each.last_std)}"
            for each in self.summary()
        ]
        return "\n".join(lines)


def compare(
    aggregators: Mapping[str, Aggregator],
    *,
    arrivals: ArrivalProcess,
    module: Start,
    datamodule: Data,
    local_optimizer: LocalOptimizer | None = None,
    seeds: Iterable[int] = (0, 1, 2),
    max_rounds: int | None = None,
    max_time: float | None = None,
    max_updates: int | None = None,
    metric: str = "val_acc",
    mode: str | None = None,
    schedule: str = "recorded",
    logger_dir: str | Path | None = None,
    callbacks: Callable[[], Iterable[Callback]] | None = None,
    enable_progress_bar: bool = True,
    **trainer_options: Any,
) -> Comparison:
    """Train with each aggregator on the same schedule, data, seeds and start.

    What is held fixed, for each seed, with ``schedule="recorded"``: who pulls and who arrives at
    which virtual time, after how many local steps, on which examples; and when rounds end. The
    schedule is recorded while the *first* aggregator trains, within the limits given, and the
    others replay it to its end, so that all of them see the same arrivals.

    - Where another aggregator makes its versions on the same occasions as the first (ends of
      rounds, the same `buffer_size`, the same `interval`), the versions pulled are the recorded
      ones as well: runs differ in the server's arithmetic alone, and each is what it would have
      been by itself.
    - Where it makes them on other occasions (FedAsync against FedBuff), the recorded version
      numbers mean nothing for it: a client pulls, at the recorded time, whatever version is newest
      by the end of that instant.
    - Where clients wait for the server (``resume="on_aggregation"``) the times themselves depend on
      the aggregator; those of the first one are used for all. That answers "what does the
      arithmetic change?". For "who gets further in the same time?" write ``schedule="live"``:
      each aggregator then meets the process itself, with the same seed, and so the same durations
      and numbers of steps for each client's n-th task, at its own times.

    The runs of a seed start from the same weights. An aggregator, an arrival process and a local
    optimizer start anew with each run, so the same objects serve for all.

    Args:
        aggregators: The aggregators by name.
        arrivals: Who arrives when, how stale, after how many local steps.
        module: The module; each run trains a copy of it. Or a function without arguments (or the
            class) that makes one, called once per seed with that seed set: another start per seed.
        datamodule: The data; or a function of the seed giving them, for another partition per seed.
        local_optimizer: As for `FedTrainer`.
        seeds: The seeds.
        max_rounds: Limit of the first run (of each run, where live), in server updates.
        max_time: Limit of all runs, in virtual time.
        max_updates: Limit of the first run (of each run, where live), in arrivals.
        metric: The metric that the result shows by default.
        mode: Whether "min" or "max" of it is best; None goes by its name ("min" for a loss, an
            error, a perplexity).
        schedule: "recorded" or "live".
        logger_dir: A folder for TensorBoard: each comparison makes ``version_0``, ``version_1``, …
            in it, with a run ``<name>/seed=<seed>`` for each, all of them with the axes of
            `TensorBoardMetrics`. None writes nothing.
        callbacks: A function giving fresh callbacks for each run.
        enable_progress_bar: Show how many runs are done.
        **trainer_options: Any other argument of `FedTrainer`, such as ``accelerator``.

    Returns:
        The runs and their summary; ``rich.print`` shows a table, `fedlight.plot.curves` the curves.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range, or the parts do not fit together.
        KeyboardInterrupt: Ctrl-C or SIGTERM ended one of the runs; the others are not begun.

    Example:
        >>> import rich, torch
        >>> from torch.utils.data import TensorDataset
        >>> from fedlight import FederatedDataModule
        >>> from fedlight.aggregators import AFACD, FedAvg
        >>> from fedlight.arrivals import UniformArrivals
        >>> from fedlight.local_optimizers import LocalSGD
        >>> from fedlight.models import LogisticRegression
        >>> random = torch.Generator().manual_seed(0)
        >>> x = torch.randn(40, 4, generator=random)
        >>> y = (x[:, 0] > 0).long()
        >>> clients = [TensorDataset(x[i::5], y[i::5]) for i in range(5)]
        >>> result = compare(
        ...     {"AFA-CD": AFACD(), "FedAvg": FedAvg()},
        ...     arrivals=UniformArrivals(per_round=2, max_staleness=1, local_steps=3),
        ...     module=LogisticRegression(4, 2),
        ...     datamodule=FederatedDataModule.from_client_datasets(
        ...         clients, batch_size=4, val_dataset=TensorDataset(x, y)
        ...     ),
        ...     local_optimizer=LocalSGD(lr=0.1),
        ...     seeds=(0, 1),
        ...     max_rounds=5,
        ...     enable_progress_bar=False,
        ... )
        >>> [(each.name, each.rounds) for each in result.summary("val_loss")]
        [('AFA-CD', 5.0), ('FedAvg', 5.0)]
    """
    if not isinstance(aggregators, Mapping) or not aggregators:
        raise ValueError(
            f'aggregators must name one or more, such as {{"AFA-CD": AFACD()}}, got {aggregators!r}'
        )
    if not isinstance(seeds, Iterable):
        raise TypeError(f"seeds must be several, such as range({seeds}), got {seeds!r}")
    seeds = [integer("seeds", seed) for seed in seeds]
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be one or more, each of them once, got {seeds}")
    one_of("schedule", schedule, ("recorded", "live"))
    mode = _mode(metric, mode)
    if callbacks is not None and not callable(callbacks):
        raise TypeError(
            "callbacks must be a function giving fresh ones for each run, such as "
            f"lambda: [ClientEvaluation()], got {callbacks!r}"
        )
    for taken in ("seed", "logger", "aggregator", "default_root_dir"):
        if taken in trainer_options:
            raise TypeError(f"compare gives each run its own {taken}; leave it out")
    instance_of(ArrivalProcess, "arrivals", arrivals, "UniformArrivals(per_round=5)")
    options: dict[str, Any] = {
        "local_optimizer": local_optimizer,
        "enable_progress_bar": False,
        **trainer_options,
    }
    limits: dict[str, Any] = {
        "max_rounds": max_rounds,
        "max_time": max_time,
        "max_updates": max_updates,
    }
    for aggregator in aggregators.values():  # what cannot work fails now, not after the first run
        FedTrainer(arrivals=arrivals, aggregator=aggregator, logger=False, **limits, **options)
    folder = None if logger_dir is None else _fresh(Path(logger_dir))

    runs: list[ComparedRun] = []
    schedules: dict[int, ScheduleTable] = {}
    first = next(iter(aggregators.values()))
    plan = [(seed, name) for seed in seeds for name in aggregators]
    for seed, name in _shown(plan, enable_progress_bar):
        aggregator = aggregators[name]
        if name == next(iter(aggregators)):
            start = _start(module, seed)
            data = datamodule(seed) if callable(datamodule) else datamodule
            check_data(data)
        process, within = arrivals, limits
        if schedule == "recorded" and seed not in schedules:
            process = Recording(arrivals)
        elif schedule == "recorded":
            same = aggregator.occasions == first.occasions
            process = ReplayArrivals(schedules[seed], pull="recorded" if same else "newest")
            within = {"max_time": max_time}
        trainer = FedTrainer(
            arrivals=process,
            aggregator=aggregator,
            seed=seed,
            logger=False if folder is None else _logger(folder, name, seed),
            callbacks=_callbacks(callbacks, folder is not None),
            **within,
            **options,
        )
        trainer.fit(deepcopy(start), data)
        if trainer.interrupted:
            raise KeyboardInterrupt(f"compare was stopped in the run of {name!r} with seed {seed}")
        if not runs:  # a wrong name is told after the first run, not after the last
            _check_metric(metric, trainer.history)
        if isinstance(process, Recording):
            schedules[seed] = process.table()
        runs.append(ComparedRun(name, seed, trainer.history, trainer.fingerprint()))
    return Comparison(runs, schedules, metric, mode)


def _check_metric(metric: str, history: Sequence[RoundRecord]) -> None:
    known = sorted({name for record in history for name in record.metrics})
    if history and metric not in known:
        raise ValueError(f"metric={metric!r} is in no round; there are {known}")


def _start(module: Start, seed: int) -> LightningModule:
    if isinstance(module, LightningModule):
        return module
    if not callable(module):
        return as_module(module)  # raises
    with isolated_rng():
        seed_all(seed)
        return as_module(module())


def _callbacks(callbacks: Callable[[], Iterable[Callback]] | None, logs: bool) -> list[Callback]:
    made = [] if callbacks is None else list(callbacks())
    if logs and not any(isinstance(each, TensorBoardMetrics) for each in made):
        made.append(TensorBoardMetrics())
    return made


def _fresh(folder: Path) -> Path:
    """The next version in a folder, so that no run is written over an older one."""
    return next(path for k in count() if not (path := folder / f"version_{k}").exists())


def _logger(folder: Path, name: str, seed: int) -> TensorBoardLogger:
    plain = name.replace("/", "-").replace("\\", "-")
    return TensorBoardLogger(folder, name=plain, version=f"seed={seed}", default_hp_metric=False)


def _shown(plan: Sequence[tuple[int, str]], bar: bool) -> Iterator[tuple[int, str]]:
    if not bar:
        return iter(plan)
    console = Console(stderr=True)
    if lacks_widgets(console):
        console = Console(stderr=True, force_jupyter=False)
    return iter(track(plan, description="runs", console=console))


def _mode(metric: str, mode: str | None) -> str:
    if mode is not None:
        return one_of("mode", mode, ("min", "max"))
    return "min" if any(word in metric.lower() for word in LOWER_IS_BETTER) else "max"


def _std(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else float("nan")


def _with_std(mean: float, std: float) -> str:
    return f"{mean:.4f}" if std != std else f"{mean:.4f} ± {std:.4f}"
