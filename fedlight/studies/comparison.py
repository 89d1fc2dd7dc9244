"""Comparison of aggregators on the same schedules and initial weights, over several seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlight._fit.argument_checks import instance_of
from fedlight._support.checks import flag, integer, one_of, optional, shown, word
from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess, ScheduleTable
from fedlight.callbacks import Callback
from fedlight.plot import curve
from fedlight.studies._cell_checks import check_callbacks, check_cell
from fedlight.studies._groups import grouped
from fedlight.studies._measures import best_of, check_metric, end_of, metrics_of
from fedlight.studies._modes import chosen_mode
from fedlight.studies._origin import Origin
from fedlight.studies.grid import cells_of, seeds_of
from fedlight.studies.one_run import Data, OneRun, Start, StudySettings, folder_name
from fedlight.studies.running import pair, run_plan
from fedlight.studies.runs import Planned, StudyRun
from fedlight.studies.shared_workers import WorkerExecutor
from fedlight.studies.store import folder_of, made_folder
from fedlight.studies.study import Study
from fedlight.studies.tables import Entry, StudyTable
from fedlight.studies.together import MOST_TOGETHER
from fedlight.studies.workers import InTurn, Workers
from fedlight.studies.workers_choice import chosen_workers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.local_optimizers import LocalOptimizer
    from fedlight.types import RoundRecord

_MOST_SEEDS = 10_000  # more are a mistake, and a list of 10^12 seeds would fill the memory
_AXIS = "aggregator"


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRun:
    """One run of a comparison.

    Attributes:
        name: Name of the aggregator.
        seed: Its seed.
        history: The records of its rounds, ``trainer.history``.
        fingerprint: That of the server's last model, ``trainer.fingerprint()``.
        papers: The keys of the papers of its strategies, see `fedlight.cite`.
    """

    name: str
    seed: int
    history: list[RoundRecord]
    fingerprint: str
    papers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """The metric of an aggregator over the seeds at which it is a number.

    Standard deviations are nan for one seed.

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

    It is a view of a `Study` with the one axis "aggregator", whose other tables and figures are
    those of `study`.

    Attributes:
        runs: The runs, by seed, then by aggregator in the order given.
        schedules: The recorded schedule of each seed; empty for ``schedule="live"``.
        study: The same runs as a study.
        metric: The metric that is shown if none is named.
        mode: "min" or "max" of it is best.
    """

    def __init__(
        self,
        runs: Sequence[ComparedRun],
        schedules: Mapping[int, ScheduleTable],
        metric: str,
        mode: str | None,
        origin: Origin | None = None,
    ) -> None:
        self.runs = list(runs)
        self.schedules = dict(schedules)
        cells = [
            StudyRun({_AXIS: run.name}, run.seed, run.history, run.fingerprint, papers=run.papers)
            for run in runs
        ]
        self.study = Study(cells, metric, mode, origin=origin)
        self.metric, self.mode = metric, self.study.mode

    @property
    def histories(self) -> dict[str, list[list[RoundRecord]]]:
        """The histories by name of the aggregator, one for each seed that has a round."""
        return self.study.histories

    def curve(
        self, name: str, seed: int, metric: str | None = None, x: str = "round"
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the points of one run: their places on the axis `x`, and the values.

        Args:
            name: Name of the aggregator.
            seed: Seed of the run.
            metric: Name of the metric.
            x: "round", "virtual_time", "gradients", "models", "bytes", "examples" or "tokens".

        Raises:
            TypeError: `seed` is not an integer, or `metric` no name.
            ValueError: There is no such run, `x` is another word, or the run has no such metric.
        """
        found = {(run.name, run.seed): run.history for run in self.runs}
        integer("seed", seed)
        if not isinstance(name, str) or (name, seed) not in found:
            raise ValueError(
                f"there is no run of name={shown(name)} and seed={seed}; the runs are "
                f"{sorted(found)}"
            )
        metric = self.metric if metric is None else word("metric", metric)
        _check_has(name, found[name, seed], metric)
        return curve(found[name, seed], metric, x)

    def summary(
        self, metric: str | None = None, mode: str | None = None, last: float = 1
    ) -> list[Summary]:
        """Return mean and standard deviation over the seeds, one record for each aggregator.

        Args:
            metric: Name of the metric.
            mode: "min" or "max" of it is best; None decides by its name.
            last: The last value is the mean over this many last rounds that have the metric; or,
                below 1, over this last share of the virtual time.

        Raises:
            ValueError: A run has no such metric.
        """
        metric, mode = self.study.shown(metric, mode)
        measures = best_of(metric, mode), end_of(metric, last), len
        found = []
        for (name,), runs in grouped(self.study.runs, [_AXIS]).items():
            for run in runs:
                _check_has(str(name), run.history, metric)
            best, end, rounds = (Entry.of(runs, measure) for measure in measures)
            means = best.mean, best.std, end.mean, end.std, rounds.mean
            found.append(Summary(str(name), *means))
        return found

    def table(
        self, metric: str | None = None, mode: str | None = None, last: float = 1
    ) -> StudyTable:
        """Return the table of `Study.table` for ``rich.print``, as mean ± standard deviation."""
        return self.study.table(metric=metric, mode=mode, last=last)

    def to_pandas(self) -> Any:
        """Return all metrics as a data frame with a row for each round of each run."""
        frame = self.study.to_pandas()
        frame.columns = ["name", *frame.columns[1:]]
        return frame

    def __repr__(self) -> str:
        names = ", ".join(map(str, self.study.axes[_AXIS]))
        seeds = sorted({run.seed for run in self.runs})
        return f"<Comparison of {names}; seeds={seeds}, metric={self.metric!r}, mode={self.mode!r}>"

    def __rich__(self) -> Any:
        return self.table().__rich__()

    def __str__(self) -> str:
        entries = self.table().entries
        lines = [f"{self.metric} (best, last)"]
        for name in self.study.axes[_AXIS]:
            ends = (entries[(name,), end].words(digits=4) for end in ("best", "last"))
            lines.append(f"{name}: {', '.join(ends)}")
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
    workers: str | int | Workers | WorkerExecutor = 1,
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

    `sweep` does the same over any axes, in a folder that keeps finished runs.
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
        workers: How the runs are computed, as for `sweep`; by default one after another in this
            process. Those that replay a schedule begin when it is recorded.
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
    _check_names(aggregators, logger_dir)
    seeds = seeds_of(seeds, _MOST_SEEDS)
    one_of("schedule", schedule, ("recorded", "live"))
    mode = chosen_mode(metric, mode)
    enable_progress_bar = flag("enable_progress_bar", enable_progress_bar)
    board = optional(folder_of, "logger_dir", logger_dir)
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
    for name, each in aggregators.items() if isinstance(aggregators, Mapping) else ():
        instance_of(Aggregator, f"aggregators[{name!r}]", each, '{"FedAvg": FedAvg()}')
    cells = cells_of({_AXIS: aggregators}, given)
    for cell in cells:  # errors in the arguments appear before the first run
        check_cell(cell)
    how = chosen_workers(workers, cells)
    shared = StudySettings(
        callbacks=callbacks,
        logger_dir=None if board is None else _fresh_folder(board),
        metric=metric,
        mode=mode,
        axes_in_folders=False,
        # One after another, all runs of a seed come before those of the next one.
        most_data=1 if isinstance(how, InTurn) else MOST_TOGETHER,
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
        if run.result is not None and run.result.error is not None:  # of another process
            raise RuntimeError(run.result.error)
        if run.result is None:
            stopped.append(run.planned)
        elif first:  # a wrong name is an error after the first run, not after the last
            check_metric([run.result], metric)

    try:
        found = run_plan(plan, shared, how, enable_progress_bar, watch)
    except KeyboardInterrupt as error:
        where = [f" in the run of {_name(each)!r} with seed {each.seed}" for each in stopped]
        raise KeyboardInterrupt(f"compare was stopped{''.join(where)}") from error
    runs = [
        ComparedRun(_name(each), run.seed, run.history, run.fingerprint, run.papers)
        for each, run in ((each, found[each]) for each in plan if each in found)
    ]
    schedules = {each.seed: each.schedule for each in plan if each.schedule is not None}
    settings = {"metric": metric, "mode": mode, "schedule": schedule, "callbacks": callbacks}
    origin = Origin.of("compare", cells, seeds, settings)
    return Comparison(runs, schedules, metric, mode, origin)


def _check_names(aggregators: Mapping[str, Aggregator], logger_dir: str | Path | None) -> None:
    for name in aggregators:
        if not isinstance(name, str) or not name.strip():
            raise TypeError(f"each name of aggregators must be a word, got {name!r}")
    folders = [folder_name(name) for name in aggregators]
    if logger_dir is not None and len(set(folders)) < len(folders):
        raise ValueError(
            f"names of aggregators must differ in more than slashes, as each names a folder in "
            f"logger_dir, got {list(aggregators)}"
        )


def _fresh_folder(folder: Path) -> Path:
    """Make the next free version in `logger_dir`, so that no older run is overwritten.

    Raises:
        OSError: It cannot be made; the error comes before the first run, and names the argument.
    """
    path = next(path for k in count() if not (path := folder / f"version_{k}").exists())
    return made_folder("logger_dir", folder, path)


def _name(planned: Planned) -> str:
    return str(planned.cell.names[_AXIS])


def _check_has(name: str, history: Sequence[RoundRecord], metric: str) -> None:
    known = metrics_of([history])
    if metric not in known:
        raise ValueError(f"a run of {name!r} has no metric {metric!r}; its metrics are {known}")
