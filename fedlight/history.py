"""Records of what happened, one a round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from fedlight.parameters import block_of
from fedlight.types import FailureRecord, RoundRecord, UpdateRecord

if TYPE_CHECKING:
    from fedlight.types import ClientUpdate, ServerState


def update_record(
    update: ClientUpdate,
    version: int,
    weight: float,
    norm: float,
    clipped_from: float | None = None,
) -> UpdateRecord:
    """The record of an update that a server at `version` used or dropped."""
    task = update.task
    return UpdateRecord(
        client_id=task.client_id,
        serial=task.serial,
        pulled_version=task.pulled_version,
        staleness=update.staleness(version),
        num_steps=task.num_steps,
        num_examples=update.num_examples,
        weight=weight,
        dispatched_at=task.dispatched_at,
        arrived_at=task.arrives_at,
        norm=norm,
        clipped_from=clipped_from,
    )


def round_record(
    state: ServerState,
    now: float,
    dropped: list[UpdateRecord],
    failures: Sequence[FailureRecord] = (),
) -> RoundRecord:
    """The record of the step that made `state`, with its training metrics and figures."""
    updates = [used.update for used in state.used]
    norms: list[float] = []
    if updates:
        deltas = block_of([update.delta for update in updates])
        norms = torch.linalg.vector_norm(deltas, dim=1).tolist()
    records = [
        update_record(
            used.update, state.version - 1, used.weight, norm, used.update.local.clipped_from
        )
        for used, norm in zip(state.used, norms, strict=True)
    ]
    metrics = _training_metrics(updates)
    metrics.update(_figures(records, now))
    metrics["fed/failures"] = float(len(failures))
    return RoundRecord(state.version, now, metrics, records, dropped, list(failures))


def _training_metrics(updates: Sequence[ClientUpdate]) -> dict[str, float]:
    """Means over all examples that the updates saw."""
    totals: dict[str, float] = defaultdict(float)
    weights: dict[str, float] = defaultdict(float)
    for update in updates:
        for name, (total, weight) in update.local.metrics.items():
            totals[name] += total
            weights[name] += weight
    return {name: totals[name] / weights[name] for name in totals if weights[name]}


def _figures(records: Sequence[UpdateRecord], now: float) -> dict[str, float]:
    figures = {"fed/time": now, "fed/participants": float(len(records))}
    if records:
        figures["fed/staleness"] = fmean(record.staleness for record in records)
        figures["fed/staleness_max"] = float(max(record.staleness for record in records))
        figures["fed/local_steps"] = fmean(record.num_steps for record in records)
        figures["fed/update_norm"] = fmean(record.norm for record in records)
    return figures
