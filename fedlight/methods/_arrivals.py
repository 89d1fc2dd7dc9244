"""Arrival processes that methods of several families share."""

from __future__ import annotations

from fedlight import settings
from fedlight._support.checks import non_negative_int, positive_int
from fedlight.arrivals import (
    ArrivalProcess,
    ContinuousArrivals,
    DurationModel,
    ExponentialDurations,
    LocalSteps,
    UniformArrivals,
)


def at_once(
    durations: DurationModel | None,
    concurrency: int | None,
    local_steps: LocalSteps | int,
    restart_after: int | None = None,
) -> ContinuousArrivals:
    """Clients that go on when they arrive."""
    times = ExponentialDurations(1.0) if durations is None else durations
    return ContinuousArrivals(
        times, concurrency, 0.0, "on_arrival", local_steps, restart_after=restart_after
    )


def after_aggregation(
    durations: DurationModel | None, local_steps: LocalSteps | int
) -> ContinuousArrivals:
    """Clients that wait until their update was used, by default with the speeds of F80."""
    times = settings.fedfix(80) if durations is None else durations
    return ContinuousArrivals(times, resume="on_aggregation", local_steps=local_steps)


def drawn_or_by_the_clock(
    buffer_size: int,
    max_staleness: int,
    local_steps: LocalSteps | int,
    durations: DurationModel | None,
    concurrency: int | None,
) -> ArrivalProcess:
    """Rounds with a drawn staleness, as in the papers' experiments; by the clock with durations."""
    buffer_size = positive_int("buffer_size", buffer_size)
    max_staleness = non_negative_int("max_staleness", max_staleness)
    if durations is not None:
        return at_once(durations, concurrency, local_steps)
    if concurrency is not None:
        raise ValueError(
            f"concurrency={concurrency!r} needs durations, such as ExponentialDurations(1.0), "
            "got durations=None; without them the staleness is drawn, and nobody is at work by a "
            "clock"
        )
    return UniformArrivals(buffer_size, max_staleness, local_steps)
