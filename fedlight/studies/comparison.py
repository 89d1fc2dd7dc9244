"""Comparison of aggregators on the same schedules and initial weights, over several seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.table import Table

from fedlight._support.checks import one_of, positive_int
from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess, ScheduleTable
from fedlight.callbacks import Callback
from fedlight.plot import curve
from fedlight.studies._cell_checks import check_callbacks, check_cell
from fedlight.studies._comparing import Start, check_names, fresh_folder, mode_of, say_what_is_best
from fedlight.studies.grid import Cell, seeds_of
from fedlight.studies.one_run import OneRun, StudySettings
from fedlight.studies.running import pair, run_plan
from fedlight.studies.runs import Planned
from fedlight.studies.workers import InTurn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.data import FederatedDataModule
    from fedlight.local_optimizers import LocalOptimizer
    from fedlight.types import RoundRecord

_MOST_SEEDS = 10_000  # more are a mistake, and a list of 10^12 seeds would fill the memory
Data: TypeAlias = "FederatedDataModule | Callable[[int], FederatedDataModule]"
"""A data module for all seeds, or a function of the seed that returns one."""


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRun:
    """One run of a comparison.

    Attributes:
        name: Name of the aggregator.
        seed: Its seed.
        history: The records of its rounds, ``trainer.history``.
        fingerprint: That of the server's last model, ``trainer.fingerprint()``.
    """

    name: str
    seed: int
    history: list[RoundRecord]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Summary:
    """The metric of an aggregator over the seeds; standard deviations are nan for one seed.

    Attributes:
        name: Name of the aggregator.
        best_mean: Mean over the seeds of the best value over the rounds.
        best_std: Its sample standard deviation.
        last_mean: Mean over the seeds of the last value.
        last_std: Its sample standard deviation.
        rounds: Mean number of server updates.
    """

    name: str
    best_mean: float
    best_std: float
    last_mean: float
    last_std: float
    rounds: float


class Comparison:
    """The result of `compare`; ``rich.print`` shows it as a table.

    Attributes:
        runs: The runs, by seed, then by aggregator in the order given.
        schedules: The recorded schedule of each seed; empty for ``schedule="live"``.
        metric: The metric that is shown if none is named.
        mode: "min" or "max" of it is best.
    """

    def __init__(
        self,
        runs: Sequence[ComparedRun],
        schedules: Mapping[int, ScheduleTable],
        metric: str,
        mode: str | None,
    ) -> None:
        if not runs:
            raise ValueError("runs must hold one or more, got none")
        self.runs = list(runs)
        self.schedules = dict(schedules)
        self.metric = metric
        self.mode = mode_of(metric, mode)

    @property
    def histories(self) -> dict[str, list[list[RoundRecord]]]:
        """The histories by name of the aggregator, one for each seed."""
        found: dict[str, list[list[RoundRecord]]] = {}
        for run in self.runs:
            found.setdefault(run.name, []).append(run.history)
        return found

    def curve(
        self, name: str, seed: int, metric: str | None = None, x: str = "round"
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the points of one run: their places on the axis `x`, and the values.

        Args:
            name: Name of the aggregator.
            seed: Seed of the run.
            metric: Name of the metric.
            x: "round", "virtual_time", "gradients", "models" or "bytes".

        Raises:
            KeyError: There is no such run.
            ValueError: `x` is another word, or the run has no such metric.
        """
        for run in self.runs:
            if (run.name, run.seed) == (name, seed):
                metric = self.metric if metric is None else metric
                points = curve(run.history, metric, x)
                if not len(points[0]):
                    raise _no_metric(name, metric, run.history)
                return points
        known = sorted({(run.name, run.seed) for run in self.runs})
        raise KeyError(f"there is no run of {name!r} with seed {seed!r}; the runs are {known}")

    def summary(
        self, metric: str | None = None, mode: str | None = None, last: int = 1
    ) -> list[Summary]:
        """Return mean and standard deviation over the seeds, one record for each aggregator.

        Args:
            metric: Name of the metric.
            mode: "min" or "max" of it is best; None decides by its name.
            last: The last value is the mean over this many last rounds that have the metric.

        Raises:
            ValueError: A run has no such metric.
        """
        positive_int("last", last)
        mode = self.mode if metric in (None, self.metric) and mode is None else mode
        metric = self.metric if metric is None else metric
        mode = mode_of(metric, mode)
        found = []
        for name, histories in self.histories.items():
            values = [curve(history, metric)[1] for history in histories]
            if not all(len(each) for each in values):
                raise _no_metric(name, metric, histories[0])
            best = [float(each.min() if mode == "min" else each.max()) for each in values]
            end = [float(each[-last:].mean()) for each in values]
            rounds = fmean(len(history) for history in histories)
            found.append(Summary(name, fmean(best), _std(best), fmean(end), _std(end), rounds))
        return found

    def table(self, metric: str | None = None, mode: str | None = None, last: int = 1) -> Table:
        """Return `summary` as a table for ``rich.print``, as mean ± standard deviation."""
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
        """Return all metrics as a data frame with a row for each round of each run."""
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
    """Train with each aggregator on the same schedule, data, seeds and initial weights.

    With ``schedule="recorded"`` the following is equal for all aggregators of a seed: who pulls and
    who arrives at which virtual time, after how many local steps, on which examples; and when
    rounds end. The schedule is recorded while the *first* aggregator trains, within the limits
    given. The others replay it to its end, so that all of them see the same arrivals.

    - If another aggregator makes its versions on the same occasions as the first (ends of rounds,
      the same `buffer_size`, the same `interval`), its clients also pull the recorded versions. The
      runs then differ in the server's arithmetic alone, and each is the same as a single run.
    - If it makes them on other occasions (FedAsync against FedBuff), the recorded version numbers
      have no meaning for it. A client then pulls, at the recorded time, the version that is newest
      at the end of that instant.
    - If clients wait for the server (``resume="on_aggregation"``), the times depend on the
      aggregator; those of the first one are used for all. This shows the effect of the arithmetic.
      To see which aggregator gets further in the same time, write ``schedule="live"``: each
      aggregator then runs with the process itself. With the same seed, each client's n-th task has
      the same duration and number of local steps, at the aggregator's own times.

    The runs of a seed start from the same weights. Each run has copies of the aggregator, the
    arrival process and the local optimizer; those given stay unused.

    `sweep` is the same over any axes, on several cores, in a folder that keeps what is finished.
    Here the first error of a run ends the comparison.

    Args:
        aggregators: The aggregators by name.
        arrivals: Decides who arrives when, how stale, and after how many local steps.
        module: The module, of which each run trains a copy. Or a function without arguments (or
            the class) that returns one; it is called once per seed with the global random
            generators seeded, so that each seed has its own initial weights.
        datamodule: The data; or a function of the seed that returns them, for a partition per seed.
        local_optimizer: As in `FedTrainer`.
        seeds: The seeds.
        max_rounds: Limit of the first run (of each run if live), in server updates.
        max_time: Limit of all runs, in virtual time.
        max_updates: Limit of the first run (of each run if live), in arrivals.
        metric: The metric that the result shows by default.
        mode: "min" or "max" of it is best; None decides by its name ("min" for a loss, an error, a
            perplexity).
        schedule: "recorded" or "live".
        logger_dir: A folder for TensorBoard. Each comparison makes a folder ``version_0``,
            ``version_1``, … in it, with a run ``<name>/seed=<seed>`` for each, which has the axes
            of `TensorBoardMetrics`. None writes nothing.
        callbacks: A function that returns new callbacks for each run.
        enable_progress_bar: Whether to show how many runs are done.
        **trainer_options: Any other argument of `FedTrainer`, such as ``accelerator``.

    Returns:
        The runs and their summary; ``rich.print`` shows a table, `fedlight.plot.curves` the curves.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range, or the parts do not fit together.
        OSError: `logger_dir` cannot be written to.
        KeyboardInterrupt: Ctrl-C ended a run; the runs after it were not started.
        SystemExit: SIGTERM did.

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
    check_names(aggregators, logger_dir)
    seeds = seeds_of(seeds, _MOST_SEEDS)
    one_of("schedule", schedule, ("recorded", "live"))
    given_mode, mode = mode, mode_of(metric, mode)
    say_what_is_best(metric, given_mode)
    check_callbacks(callbacks)
    for taken in ("seed", "logger", "aggregator", "default_root_dir", "on_interrupt"):
        if taken in trainer_options:
            raise TypeError(f"compare gives each run its own {taken}; leave it out")
    given = {
        "module": module,
        "datamodule": datamodule,
        "arrivals": arrivals,
        "local_optimizer": local_optimizer,
        "max_rounds": max_rounds,
        "max_time": max_time,
        "max_updates": max_updates,
        **trainer_options,
    }
    cells = [
        Cell({"aggregator": name}, {**given, "aggregator": each})
        for name, each in aggregators.items()
    ]
    for cell in cells:  # errors in the arguments appear before the first run
        check_cell(cell)
    shared = StudySettings(
        callbacks=callbacks,
        logger_dir=None if logger_dir is None else fresh_folder(Path(logger_dir)),
        metric=metric,
        mode=mode,
        axes_in_folders=False,
        most_data=1,  # all runs of a seed come before those of the next one
    )
    plan = [Planned(cell, seed) for seed in seeds for cell in cells]
    if schedule == "recorded":
        pair(plan)
        for planned in plan:
            planned.records = planned.after is None
    stopped: list[Planned] = []

    def watch(run: OneRun, first: bool) -> None:
        if run.error is not None:
            raise run.error
        if run.result is None:
            stopped.append(run.planned)
        elif first:  # a wrong name is an error after the first run, not after the last
            _check_metric(metric, run.result.history)

    try:
        found = run_plan(plan, shared, InTurn(), enable_progress_bar, watch)
    except KeyboardInterrupt as error:
        where = [f" in the run of {_name(each)!r} with seed {each.seed}" for each in stopped]
        raise KeyboardInterrupt(f"compare was stopped{''.join(where)}") from error
    runs = [
        ComparedRun(_name(each), run.seed, run.history, run.fingerprint)
        for each, run in found.items()
    ]
    schedules = {each.seed: each.schedule for each in plan if each.schedule is not None}
    return Comparison(runs, schedules, metric, mode)


def _name(planned: Planned) -> str:
    return str(planned.cell.names["aggregator"])


def _check_metric(metric: str, history: Sequence[RoundRecord]) -> None:
    known = sorted({name for record in history for name in record.metrics})
    if history and metric not in known:
        raise ValueError(f"metric={metric!r} is in no round; the metrics are {known}")


def _no_metric(name: str, metric: str, history: Sequence[RoundRecord]) -> ValueError:
    known = sorted({key for record in history for key in record.metrics})
    return ValueError(f"a run of {name!r} has no metric {metric!r}; its metrics are {known}")


def _std(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else float("nan")


def _with_std(mean: float, std: float) -> str:
    return f"{mean:.4f}" if std != std else f"{mean:.4f} ± {std:.4f}"
