"""Records of what happened, one a round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import fsum, isnan, nan
from typing import Any

from fedlight._support.reductions import REDUCTIONS
from fedlight.types import (
    ClientUpdate,
    FailureRecord,
    LocalResult,
    LoggedAs,
    LoggedValue,
    Metrics,
    RoundRecord,
    ServerState,
    UpdateRecord,
    new_record,
)


def update_record(
    update: ClientUpdate,
    staleness: int,
    weight: float,
    norm: float,
    clipped_from: float | None = None,
) -> UpdateRecord:
    """The record of an update that the server used or dropped with a staleness."""
    task = update.task
    fields = (
        task.client_id,
        task.serial,
        task.pulled_version,
        staleness,
        task.num_steps,
        update.num_examples,
        weight,
        task.dispatched_at,
        task.arrives_at,
        norm,
        clipped_from,
        task.is_first_half,
    )
    return new_record(UpdateRecord, fields)


def round_record(
    state: ServerState,
    staleness: Sequence[int],
    now: float,
    dropped: list[UpdateRecord],
    failures: Sequence[FailureRecord] = (),
) -> RoundRecord:
    """The record of the step that made `state`, with its training metrics and figures.

    Args:
        state: The new version.
        staleness: That of each update used.
        now: Virtual time.
        dropped: The updates that were dropped since the version before.
        failures: The tasks that failed since then.
    """
    results = [update.local for update, _ in state.used]
    records = [
        update_record(update, stale, weight, result.update_norm, result.clipped_from)
        for (update, weight), stale, result in zip(state.used, staleness, results, strict=True)
    ]
    metrics = _training_metrics(results)
    metrics.update(_figures(records, now))
    metrics["fed/failures"] = float(sum(each.reason != "cancelled" for each in failures))
    return RoundRecord(state.version, now, metrics, records, dropped, list(failures))


def _training_metrics(results: Sequence[LocalResult]) -> Metrics:
    """Merge what the local runs logged; by default, the mean over all examples that they saw.

    ``reduce_fx="sum"`` gives the sum over all local runs, "max" and "min" the largest and the
    smallest value of any of them.
    """
    if len(results) == 1:  # as below, for the versions of one update each
        metrics, others = Metrics(), []
        for name, (total, weight, how) in results[0].metrics.items():
            if how is not None:
                others.append(name)
            elif weight:
                metrics[name] = (0.0 + total) / weight
        for name in others:
            metrics.put(name, *_merged([results[0].metrics[name]], 0.0, 0.0))
        return metrics
    totals: dict[str, float] = defaultdict(float)
    weights: dict[str, float] = defaultdict(float)
    special: dict[str, list[LoggedValue]] = {}
    for result in results:
        if not result.metrics:
            continue
        for name, logged in result.metrics.items():
            total, weight, how = logged
            if how is None:
                totals[name] += total
                weights[name] += weight
            else:
                special.setdefault(name, []).append(logged)
    metrics = Metrics({name: totals[name] / weights[name] for name in totals if weights[name]})
    for name, values in special.items():
        metrics.put(name, *_merged(values, totals.get(name, 0.0), weights.get(name, 0.0)))
    return metrics


def _merged(values: list[LoggedValue], total: float, weight: float) -> tuple[float, LoggedAs]:
    """Values of several local runs as one, and how to show it.

    Args:
        values: The values.
        total: The total of further values that are averaged as usual.
        weight: The weight of those.
    """
    how = values[-1].how
    assert how is not None
    reduction, totals = REDUCTIONS[how.reduce], [each.total for each in values]
    if not reduction.weighted:
        return reduction.over_runs(totals), how
    weight = sum([each.weight for each in values], weight)
    return reduction.over_runs([total, *totals]) / weight if weight else nan, how


def _figures(records: Sequence[UpdateRecord], now: float) -> dict[str, float]:
    figures = {"fed/time": now, "fed/participants": float(len(records))}
    if records:
        staleness = [record.staleness for record in records]
        figures["fed/staleness"] = fsum(staleness) / len(records)
        figures["fed/staleness_max"] = float(max(staleness))
        figures["fed/local_steps"] = fsum([record.num_steps for record in records]) / len(records)
        figures["fed/update_norm"] = fsum([record.norm for record in records]) / len(records)
    return figures


def record_to_list(record: RoundRecord) -> list[Any]:
    """A record as plain data."""
    metrics = record.metrics
    shown = [sorted(metrics.prog_bar), sorted(metrics.unlogged)]
    return [
        record.version,
        record.now,
        dict(metrics),
        list(map(list, record.updates)),
        list(map(list, record.dropped)),
        list(map(list, record.failures)),
        *(shown if any(shown) else []),
    ]


def update_from_list(fields: Sequence[Any]) -> UpdateRecord:
    """The record of an update from its fields."""
    record = UpdateRecord(*fields)
    # Tuples with the same nan are equal, so that a history may be compared with a restored one.
    return record._replace(norm=nan) if isnan(record.norm) else record


def record_from_list(fields: Sequence[Any]) -> RoundRecord:
    """The record that `record_to_list` made plain data of."""
    version, now, metrics, updates, dropped, failures, *shown = fields
    return RoundRecord(
        version,
        now,
        Metrics(metrics, *shown),
        [update_from_list(update) for update in updates],
        [update_from_list(update) for update in dropped],
        [FailureRecord(*failure) for failure in failures],
    )
