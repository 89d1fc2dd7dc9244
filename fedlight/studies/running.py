"""The running of a plan: each of its runs is found finished, or computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info

from fedlight._runs.identity import in_words
from fedlight._support.interrupts import graceful_interrupts
from fedlight.studies._messages import speaking_for
from fedlight.studies._progress import StudyBar
from fedlight.studies.one_run import OneRun, StudySettings
from fedlight.studies.runs import Planned, StudyRun
from fedlight.studies.workers import PendingRuns, Workers

_LOOK_AGAIN = 0.5  # seconds until a run of another process is looked for again


def pair(plan: Sequence[Planned]) -> None:
    """Let runs that differ in neither arrivals, data, limits nor seed replay the first of them."""
    first: dict[Any, Planned] = {}
    for planned in plan:
        given = planned.cell.arguments
        limits = tuple(given.get(name) for name in ("max_rounds", "max_time", "max_updates"))
        place = (planned.seed, in_words(given["arrivals"]), id(given["datamodule"]), limits)
        if place in first:
            planned.after = first[place]
            first[place].records = True
        else:
            first[place] = planned


def run_plan(
    plan: Sequence[Planned],
    shared: StudySettings,
    how: Workers,
    bar: bool,
    watch: Callable[[OneRun, bool], None],
    when_stopped: str = "",
) -> dict[Planned, StudyRun]:
    """Find or compute all runs of a plan.

    Args:
        plan: The runs. One that replays another one's schedule begins after that one.
        shared: What all runs share.
        how: Computes them.
        bar: Whether to show the progress.
        watch: Called with each run that is over or interrupted, and whether no run is finished yet.
            An error that it raises ends the study.
        when_stopped: A message for the case that a signal has ended the study.

    Raises:
        KeyboardInterrupt: Ctrl-C ended the study.
        SystemExit: SIGTERM did.
    """
    runs: dict[Planned, StudyRun] = {}
    store = shared.store
    for first in {planned.data_key: planned for planned in reversed(plan)}.values():
        first.shows_data = True
    begun: set[str] = set()  # keys of runs under way: two cells may be the same run

    def found(planned: Planned) -> bool:
        run = None if store is None else store.find(planned)
        if run is not None:
            runs[planned] = run
        return run is not None

    def over(each: OneRun) -> None:
        watch(each, not runs)
        if each.result is not None:
            runs[each.planned] = each.result
            voice.count(each.planned, each.notes)
            if store is not None:
                store.keep(each.planned, each.result)
            progress.over(each)
        if store is not None:
            begun.discard(each.planned.key)
            store.unlock(each.planned.key)

    def free(todo: Sequence[Planned]) -> Iterator[Planned]:
        """Those that this process may compute, locked as they are asked for."""
        for planned in todo:
            if planned.after is not None and planned.after not in runs:
                continue
            if store is not None:
                if planned.key in begun or not store.lock(planned.key):
                    continue  # this or another process computes it
                # Looked for again under the lock: another process may have just finished it.
                if found(planned):
                    store.unlock(planned.key)
                    continue
                begun.add(planned.key)
            yield planned

    todo = [planned for planned in plan if not found(planned)]
    if len(todo) < len(plan):
        rank_zero_info(
            f"fedlight: {len(plan) - len(todo)} of {len(plan)} runs are finished already"
        )

    def stopped() -> bool:
        return interrupt.signal is not None

    with (
        graceful_interrupts() as interrupt,
        speaking_for(plan) as voice,
        StudyBar(plan, runs, bar, shared.metric) as progress,
    ):
        with torch.enable_grad():
            while todo and not stopped():
                before = len(runs)
                ready = [each for each in todo if each.after is None or each.after in runs]
                how.run(PendingRuns(ready, free(todo), shared, over, stopped, progress))
                todo = [each for each in todo if each not in runs and not found(each)]
                if todo and len(runs) == before and not stopped():
                    time.sleep(_LOOK_AGAIN)
        if store is not None:
            store.unlock_all()
    if stopped():
        rank_zero_info(
            f"fedlight: stopped with {len(runs)} of {len(plan)} runs finished{when_stopped}"
        )
    interrupt.end_the_script()
    return runs
