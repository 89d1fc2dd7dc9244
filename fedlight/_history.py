"""Records of what happened, one a round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import fsum
from typing import TYPE_CHECKING, Any

from fedlight.types import FailureRecord, RoundRecord, UpdateRecord, new_record

if TYPE_CHECKING:
    from fedlight.types import ClientUpdate, LocalResult, ServerState


def update_record(
    update: ClientUpdate,
    version: int,
    weight: float,
    norm: float,
    clipped_from: float | None = None,
) -> UpdateRecord:
    """The record of an update that a server at `version` used or dropped."""
    task = update.task
    fields = (
        task.client_id,
        task.serial,
        task.pulled_version,
        version - task.pulled_version,
        task.num_steps,
        update.num_examples,
        weight,
        task.dispatched_at,
        task.arrives_at,
        norm,
        clipped_from,
    )
    return new_record(UpdateRecord, fields)


def round_record(
    state: ServerState,
    now: float,
    dropped: list[UpdateRecord],
    failures: Sequence[FailureRecord] = (),
) -> RoundRecord:
    """The record of the step that made `state`, with its training metrics and figures."""
    results = [update.local for update, _ in state.used]
    records = [
        update_record(update, state.version - 1, weight, result.update_norm, result.clipped_from)
        for (update, weight), result in zip(state.used, results, strict=True)
    ]
    metrics = _training_metrics(results)
    metrics.update(_figures(records, now))
    metrics["fed/failures"] = float(len(failures))
    return RoundRecord(state.version, now, metrics, records, dropped, list(failures))


def _training_metrics(results: Sequence[LocalResult]) -> dict[str, float]:
    """Means over all examples that the local runs saw."""
    totals: dict[str, float] = defaultdict(float)
    weights: dict[str, float] = defaultdict(float)
    for result in results:
        if not result.metrics:
            continue
        for name, (total, weight) in result.metrics.items():
            totals[name] += total
            weights[name] += weight
    return {name: totals[name] / weights[name] for name in totals if weights[name]}


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
    return [
        record.version,
        record.now,
        record.metrics,
        list(map(list, record.updates)),
        list(map(list, record.dropped)),
        list(map(list, record.failures)),
    ]


def record_from_list(fields: Sequence[Any]) -> RoundRecord:
    """The record that `record_to_list` made plain data of."""
    version, now, metrics, updates, dropped, failures = fields
    return RoundRecord(
        version,
        now,
        dict(metrics),
        [UpdateRecord(*update) for update in updates],
        [UpdateRecord(*update) for update in dropped],
        [FailureRecord(*failure) for failure in failures],
    )
