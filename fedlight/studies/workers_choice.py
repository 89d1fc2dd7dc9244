"""The choice of how the runs of a study are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from lightning.pytorch.utilities import rank_zero_info

from fedlight._support.checks import positive_int
from fedlight.executors import Executor, ProcessExecutor, SequentialExecutor
from fedlight.executors._remote.fork import cores_to_use
from fedlight.studies.forked_runs import Processes
from fedlight.studies.ray_runs import RayWorkers
from fedlight.studies.shared_workers import (
    SharedWorkers,
    WorkerExecutor,
    has_workers,
    is_same,
)
from fedlight.studies.together import Together, first_stacks
from fedlight.studies.workers import InTurn, Workers

if TYPE_CHECKING:
    from fedlight.studies.grid import Cell
    from fedlight.studies.one_run import StudySettings
    from fedlight.studies.runs import Planned
    from fedlight.studies.workers import PendingRuns

_PER_CORE = 0.85
"""How many times faster runs are with each core that works on them."""


def chosen_workers(workers: object, cells: Iterable[Cell] = ()) -> Workers:
    """The workers that an argument names.

    Args:
        workers: The argument.
        cells: The cells of the study.

    Raises:
        TypeError: It is neither a word, a number, a `Workers` nor an executor with workers.
        ValueError: It is another word, or a number below 1; or a cell asks for an executor that
            does not go with it.
    """
    how = _named(workers)
    for cell in cells:
        _check_executor(how, workers, cell)
    return how


def _named(workers: object) -> Workers:
    if isinstance(workers, Workers):
        return workers
    if isinstance(workers, WorkerExecutor):
        return SharedWorkers(workers)
    named: dict[str, Callable[[], Workers]] = {
        "auto": Auto,
        "together": AsAsked,
        "processes": Processes,
    }
    if isinstance(workers, str) and workers in named:
        return named[workers]()
    if isinstance(workers, int) and not isinstance(workers, bool):
        number = positive_int("workers", workers)
        return InTurn() if number == 1 else Processes(number)
    kind = ValueError if isinstance(workers, str) else TypeError
    raise kind(
        'workers must be "auto", "together", "processes", a number of processes, '
        "ProcessExecutor(…), RayExecutor(…) or RayWorkers(…), "
        f"got {workers!r}"
    )


def _check_executor(how: Workers, workers: object, cell: Cell) -> None:
    """Check that the executor of a cell goes with the way in which runs are computed.

    Raises:
        ValueError: It does not. The error says what to write.
    """
    asked = cell.arguments.get("executor", "auto")
    words = f"workers={workers!r} and executor={asked!r}" + (f" of {cell}" if cell.names else "")
    if isinstance(how, Processes | RayWorkers) and has_workers(asked):
        instead = asked if isinstance(asked, Executor) else f"ProcessExecutor({_number(how)})"
        raise ValueError(
            f"{words} would start workers within workers: write workers={instead!s} for runs that "
            "share them, or leave out executor= for one run at a time in each"
        )
    if isinstance(how, SharedWorkers) and asked != "auto" and not _may_have(how.executor, asked):
        raise ValueError(
            f"{words} do not go together, as all local runs are computed by {how.executor!r}: "
            f"leave out executor=, or write workers={_for(asked)}"
        )


def _number(how: Workers) -> str:
    return str(how.workers) if isinstance(how, Processes) else ""


def _may_have(executor: WorkerExecutor, asked: object) -> bool:
    """Whether workers compute local runs as the executor that a cell asks for does."""
    if isinstance(executor, ProcessExecutor):
        alike = asked == "sequential" or asked == "processes"
        return alike or type(asked) is SequentialExecutor or is_same(asked, executor)
    return is_same(asked, executor) or is_same(asked, executor.executor)


def _for(asked: object) -> str:
    """The workers for runs with an executor."""
    if has_workers(asked):
        return repr(asked) if isinstance(asked, Executor) else "ProcessExecutor()"
    return '"auto"'


def shared_executor(ready: Sequence[Planned]) -> WorkerExecutor | None:
    """The executor with workers that all of some runs ask for; None if there is none."""
    first, *others = (each.cell.arguments.get("executor", "auto") for each in ready)
    if not has_workers(first) or not all(is_same(first, each) for each in others):
        return None
    return first if isinstance(first, WorkerExecutor) else ProcessExecutor()


class AsAsked(Workers):
    """Together: as one stack, or with the workers of the executor that all runs ask for."""

    def run(self, pending: PendingRuns) -> None:
        """Compute runs."""
        shared = shared_executor(pending.ready) if pending.ready else None
        workers = Together() if shared is None else SharedWorkers(shared)
        workers.run(pending)


class Auto(Workers):
    """Chooses when the runs are known, and says why in one line.

    - A single run is computed in this process.
    - Runs whose executor has workers share those; if their executors differ, one run follows
      another.
    - On a GPU, runs go together: one stack keeps it busier than many.
    - On a CPU, runs go together if they stack clients and if the stacks of one run are so narrow
      that wider ones gain more than the cores of the machine, each of which would compute a run;
      this is estimated from its first few stacks.
    - Otherwise each run has a process of its own if there are several cores; with one core, one
      run follows another.
    """

    def run(self, pending: PendingRuns) -> None:
        """Compute runs."""
        workers, reason = _as_asked(pending.ready) or choose(pending.ready, pending.shared)
        if len(pending.ready) > 1:
            rank_zero_info(f"fedlight: {len(pending.ready)} runs {reason}")
        workers.run(pending)


def _as_asked(ready: Sequence[Planned]) -> tuple[Workers, str] | None:
    """The choice for runs of which some ask for an executor with workers; None if none does."""
    asked = [each.cell.arguments.get("executor", "auto") for each in ready]
    if len(ready) < 2 or not any(map(has_workers, asked)):
        return None
    shared = shared_executor(ready)
    if shared is None:
        return InTurn(), "one after another: some of them have workers, and not all the same"
    return SharedWorkers(shared), f"together, by the workers of {shared!r}"


def choose(ready: Sequence[Planned], shared: StudySettings) -> tuple[Workers, str]:
    """Choose how runs are computed.

    Returns:
        The choice, and the reason for it in words.
    """
    if len(ready) < 2:
        return InTurn(), "in this process"
    first, cores = first_stacks(ready[0], shared), min(cores_to_use(), len(ready))
    if first is None:
        return InTurn(), "one after another: the first one fails"
    if first.device != "cpu":
        return Together(executors=first.executors), "together, as one stack on the GPU"
    if first.width is None:
        why = "their clients are not stacked"
    else:
        gain = _gain_of_wider_stacks(first.width, first.most)
        alone = f"stacks {first.width:.0f} clients by itself"
        if gain > max(1.0, _PER_CORE * cores):
            return Together(
                executors=first.executors
            ), f"together, as one stack: each of them {alone}"
        why = f"each of them {alone}"
        if gain > 1:
            why += ", and the cores gain more than wider stacks"
    first.executors.close()
    if cores > 1:
        return Processes(cores), f"in {cores} processes: {why}"
    return InTurn(), f"one after another: {why}, and there is one core"


def _gain_of_wider_stacks(width: float, most: int) -> float:
    """About how many times faster ten runs are together than one after another.

    The numbers are those that ``benchmarks/studies.py`` measures, rounded down. Where a stack of
    one run is nearly as large as a stack may be, others do not make it larger.

    Args:
        width: How many clients a run stacks by itself.
        most: How many a stack may hold.
    """
    if width <= min(16, most / 4):
        return 3.0
    return 2.0 if width <= min(32, 0.75 * most) else 1.0
