"""`sweep`: a grid of runs, over several seeds, in one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from fedlight._support.checks import flag, one_of, optional, positive
from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess
from fedlight.callbacks import Callback
from fedlight.data import FederatedDataModule
from fedlight.studies._cell_checks import check_callbacks, check_cell
from fedlight.studies._cell_key import RunKeys
from fedlight.studies._measures import metrics_of, of_validation
from fedlight.studies._modes import chosen_mode
from fedlight.studies._origin import Origin
from fedlight.studies.grid import MOST_RUNS, Axes, Cell, cells_of, refuse_own, seeds_of
from fedlight.studies.keys import hidden_of, in_the_log
from fedlight.studies.one_run import Data, OneRun, Start, StudySettings, cell_folder
from fedlight.studies.running import pair, run_plan
from fedlight.studies.runs import Planned
from fedlight.studies.shared_workers import WorkerExecutor
from fedlight.studies.store import Store, folder_of, made_folder
from fedlight.studies.study import Study
from fedlight.studies.workers import Workers
from fedlight.studies.workers_choice import chosen_workers

if TYPE_CHECKING:
    from fedlight.local_optimizers import LocalOptimizer


def sweep(
    over: Axes | None = None,
    *,
    seeds: Iterable[int],
    module: Start | None = None,
    datamodule: Data | None = None,
    arrivals: ArrivalProcess | None = None,
    aggregator: Aggregator | None = None,
    local_optimizer: LocalOptimizer | None = None,
    max_rounds: int | None = None,
    max_time: float | None = None,
    max_updates: int | None = None,
    workers: str | int | Workers | WorkerExecutor = "auto",
    path: str | Path | None = None,
    metric: str = "val_acc",
    mode: str | None = None,
    schedule: str = "live",
    logger_dir: str | Path | None = None,
    callbacks: Callable[[], Iterable[Callback]] | None = None,
    checkpoint_seconds: float = 30.0,
    fresh: bool = False,
    enable_progress_bar: bool = True,
    **trainer_options: Any,
) -> Study:
    """Train every cell of a grid with every seed, and keep the finished runs.

    **Paired by design.** With the same seed, all cells start from the same weights (of modules made
    alike), and the arrival process draws the same clients, durations and numbers of local steps;
    each client takes the same batches. Differences between cells are therefore taken seed by seed.
    With ``schedule="live"`` each run has the arrival process itself: if clients do not wait for the
    server, all cells see the same arrivals at the same times; if they do
    (``resume="on_aggregation"``), each client's n-th task has the same duration at the aggregator's
    own times, so that the comparison over virtual time is a fair one. A cell's result then depends
    on no other cell. With ``schedule="recorded"`` the runs that differ in neither arrivals, data,
    limits nor seed replay, as in `compare`, the schedule that the first of them has recorded. This
    shows the effect of the arithmetic alone.

    **A folder is a study.** With `path`, each finished run is a file there. It is found again by
    the content that defines the run: its arguments (with the code of your own classes), seed,
    weights at the start, data, and the version of fedlight. A study that was stopped or killed
    continues, and so do its unfinished runs, from their last checkpoint. Another seed or cell adds
    only itself. Two processes may work on one folder: each run is computed by one of them.
    `Study.load` reads it.

    **Equal to the run alone.** A run in a study gives the result of `FedTrainer` with the same
    arguments: to the bit with ``workers=1``, with "processes", and wherever clients are not
    stacked; with an executor as `workers`, it is the run with that ``executor=``, to the bit; to
    float tolerance when runs go together, as a stack of another size may round
    otherwise (logistic regressions and small networks on a CPU have the same bits).

    **Failures.** A run that raises an error is that cell's failure, which the table shows; the
    others continue, and the next call tries it again. Ctrl-C ends the study in order: runs under
    way are saved, and nothing finished is lost.

    Args:
        over: The axes of the grid: ``{axis: {name: value}}``, or ``{axis: [value, …]}``. A value is
            any argument of `FedTrainer` or ``fit``, or a dict of several of them by name (for those
            that belong together: a server rate and its aggregator, limits and arrivals), or a
            method of `fedlight.methods`, which is such a dict. An axis called after an argument
            gives that one; otherwise the type of the value decides.
        seeds: The seeds.
        module: The module, of which each run trains a copy; or a function without arguments (or the
            class) that returns one, called once per seed with the random generators seeded.
        datamodule: The data; or a function of the seed that returns them.
        arrivals: Who arrives when, how stale, after how many local steps.
        aggregator: How the server makes a new version.
        local_optimizer: The arithmetic of a local run.
        max_rounds: Limit of a run, in server updates.
        max_time: Limit of a run, in virtual time.
        max_updates: Limit of a run, in arrivals.
        workers: How the runs are computed: "together" in lockstep in this process, the local runs
            of all of them as one stack; "processes", or a number of them, each of which computes a
            run; a `RayWorkers`; a `ProcessExecutor` or `RayExecutor`, whose workers compute the
            local runs of all runs; or "auto", which chooses and says why.
        path: The folder of the study, or None to keep nothing.
        metric: The metric that tables and figures show by default.
        mode: "min" or "max" of it is best; None decides by its name.
        schedule: "live" or "recorded".
        logger_dir: A folder for TensorBoard, with a folder for each run. A run that is computed
            anew takes the place of the older one, whose folder is renamed, out of TensorBoard's
            sight.
        callbacks: A function that returns new callbacks for each run; that of an axis replaces it.
        checkpoint_seconds: Real time between two checkpoints of a run, in a study with a folder.
        fresh: Compute all runs again. A finished run of the folder is there until the new one takes
            its place; it stays if the new one fails or is stopped.
        enable_progress_bar: Show the progress over all runs.
        **trainer_options: Any other argument of `FedTrainer`, such as ``accelerator``.

    Returns:
        The study.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range, or the parts do not fit together.
        OSError: `path` or `logger_dir` cannot be written to.
        KeyboardInterrupt: Ctrl-C ended the study.
        SystemExit: SIGTERM did.

    Example:
        >>> import torch
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
        >>> study = sweep(
        ...     over={"aggregator": {"AFA-CD": AFACD(), "FedAvg": FedAvg()}},
        ...     seeds=range(2),
        ...     module=lambda: LogisticRegression(4, 2),
        ...     datamodule=FederatedDataModule.from_client_datasets(
        ...         clients, batch_size=4, val_dataset=TensorDataset(x, y)
        ...     ),
        ...     arrivals=UniformArrivals(per_round=2, max_staleness=1, local_steps=3),
        ...     local_optimizer=LocalSGD(lr=0.1),
        ...     max_rounds=5,
        ...     metric="val_loss",
        ...     enable_progress_bar=False,
        ... )
        >>> [(run.cell, run.seed, len(run.history)) for run in study.runs][:2]
        [({'aggregator': 'AFA-CD'}, 0, 5), ({'aggregator': 'AFA-CD'}, 1, 5)]
    """
    chosen = seeds_of(seeds)
    mode = chosen_mode(metric, mode)
    fresh = flag("fresh", fresh)
    enable_progress_bar = flag("enable_progress_bar", enable_progress_bar)
    one_of("schedule", schedule, ("live", "recorded"))
    check_callbacks(callbacks)
    refuse_own(trainer_options, "sweep")
    given = {
        "module": module,
        "datamodule": datamodule,
        "arrivals": arrivals,
        "aggregator": aggregator,
        "local_optimizer": local_optimizer,
        "max_rounds": max_rounds,
        "max_time": max_time,
        "max_updates": max_updates,
    }
    cells = cells_of(over, {**given, **trainer_options})
    if len(cells) * len(chosen) > MOST_RUNS:
        raise ValueError(f"a study may have {MOST_RUNS:,} runs, got {len(cells) * len(chosen):,}")
    for cell in cells:
        for name in ("module", "datamodule", "arrivals", "aggregator"):
            if cell.arguments.get(name) is None:
                raise TypeError(
                    f"sweep needs {name}=, or an axis that gives it, got None ({cell} has none)"
                )
        check_cell(cell)
    _warn_without_validation(metric, cells)
    how = chosen_workers(workers, cells)
    board = optional(folder_of, "logger_dir", logger_dir)
    if board is not None:
        _check_folders(cells)
    shared = StudySettings(
        store=None if path is None else Store(path, fresh=fresh),
        callbacks=callbacks,
        logger_dir=None if board is None else made_folder("logger_dir", board, board),
        metric=metric,
        mode=mode,
        checkpoint_seconds=positive("checkpoint_seconds", checkpoint_seconds),
    )
    settings = {"metric": metric, "mode": mode, "schedule": schedule, "callbacks": callbacks}
    origin = Origin.of("sweep", cells, chosen, settings)
    plan = [Planned(cell, seed) for cell in cells for seed in chosen]
    if schedule == "recorded":
        pair(plan)
    if shared.store is not None:
        keys = RunKeys(shared)
        for planned in plan:
            planned.defined = keys.of(planned)
        _tell_of_keys(plan, shared.store.note(plan))
        shared.store.write_settings({"metric": metric, "mode": mode, "origin": origin.to_plain()})
    runs = run_plan(
        plan, shared, how, enable_progress_bar, partial(_warn_of_metric, metric), _advice(path)
    )
    finished = [replace(runs[each], key=each.defined) for each in plan if each in runs]
    return Study(finished, metric, mode, origin=origin)


def _check_folders(cells: Sequence[Cell]) -> None:
    """Check that each cell has a folder of its own in `logger_dir`."""
    folders = Counter(cell_folder(cell.names) for cell in cells)
    twice = [name for name, number in folders.items() if number > 1]
    if twice:
        raise ValueError(
            "names of values must differ in more than slashes, as they name the folders in "
            f"logger_dir, got {twice[0]!r} twice"
        )


def _warn_without_validation(metric: str, cells: Sequence[Cell]) -> None:
    """Warn before training that a metric of validation will have no values."""
    given = [cell.arguments["datamodule"] for cell in cells]
    known = {id(data): data for data in given if isinstance(data, FederatedDataModule)}
    if metric.startswith("val") and any(data.lacks_validation for data in known.values()):
        rank_zero_warn(
            f"fedlight: metric={metric!r} is a metric of validation, and the data have no "
            "validation set: give it to the data module as val_dataset=, or write metric= with "
            "another one"
        )


def _warn_of_metric(metric: str, run: OneRun, first: bool) -> None:
    """Warn after the first run, not after the last one, that there is no such metric."""
    if not first or run.result is None or not run.result.history:
        return
    known = metrics_of([run.result.history])
    if metric not in known:
        rank_zero_warn(
            f"fedlight: metric={metric!r} is in no round of the first run ({run.planned}); unless "
            f"it was too short, tables need metric= with one of {known}"
            f"{of_validation(metric, known)}"
        )


def _advice(path: str | Path | None) -> str:
    """The advice after Ctrl-C."""
    if path is None:
        return "; with path= finished runs are kept, and the same call goes on"
    return f"; finished runs are kept, and the same call with path={str(path)!r} goes on"


def _tell_of_keys(plan: Sequence[Planned], lost: Sequence[list[str]]) -> None:
    """Say how many finished runs are computed again, and what is not part of the keys.

    Args:
        plan: The runs.
        lost: For each finished run that is computed again, the parts of its key that have changed.
    """
    if lost:
        names = sorted({name for each in lost for name in each})
        what = f" ({', '.join(names)})" if names else ""
        rank_zero_info(
            f"fedlight: {len(lost)} of {len(plan)} runs were finished, and are computed again, as "
            f"what defines them has changed{what}: an argument, code, data, the version of "
            "fedlight, or a strategy that an earlier fit has used"
        )
    hidden = hidden_of([each.defined for each in plan if each.defined is not None])
    if hidden:
        rank_zero_info(in_the_log(hidden))
