import pyarrow.parquet as pq
import pytest
import torch

from fedlight import Callback
from fedlight.aggregators import FedAsync, FedAvg
from fedlight.arrivals import ContinuousArrivals, DropOut, FixedDurations
from fedlight.callbacks import EventLog, FedCheckpoint
from tests.boring import Boring, Point, classes, points, replay, trainer


def rows(path, *columns):
    return [tuple(row[name] for name in columns) for row in pq.read_table(path).to_pylist()]


def test_each_event_is_a_row(tmp_path):
    path = tmp_path / "new" / "events.parquet"
    run = trainer(
        arrivals=replay((0, 0, 1.0, 2), (1, 0, 2.0, 7), (0, 1, 3.0, 3)),
        aggregator=FedAsync(alpha=0.5, max_staleness=0),
        callbacks=EventLog(path),
    )
    run.fit(Point(), points([1.0], [3.0]))
    assert rows(path, "event", "time", "version", "client", "serial", "num_steps") == [
        ("dispatch", 0.0, 0, 0, 0, 2),
        ("dispatch", 0.0, 0, 1, 1, 7),
        ("arrival", 1.0, 0, 0, 0, 2),
        ("use", 1.0, 1, 0, 0, 2),
        ("server_update", 1.0, 1, None, None, None),
        ("dispatch", 1.0, 1, 0, 2, 3),
        ("arrival", 2.0, 1, 1, 1, 7),
        ("drop", 2.0, 1, 1, 1, 7),
        ("arrival", 3.0, 1, 0, 2, 3),
        ("use", 3.0, 2, 0, 2, 3),
        ("server_update", 3.0, 2, None, None, None),
    ]
    dispatched = rows(path, "event", "arrives_at", "pulled_version")
    assert [row[1:] for row in dispatched if row[0] == "dispatch"] == [(1.0, 0), (2.0, 0), (3.0, 1)]
    assert all(row[1] is None for row in dispatched if row[0] != "dispatch")
    used = [
        row[1:] for row in rows(path, "event", "weight", "staleness", "norm") if row[0] == "use"
    ]
    expected = [(u.weight, u.staleness, u.norm) for r in run.history for u in r.updates]
    assert used == expected
    assert expected[0][:2] == (0.5, 0)
    drops = [row[1:] for row in rows(path, "event", "staleness", "norm") if row[0] == "drop"]
    assert drops == [(1, None)]
    assert pq.read_schema(path).metadata[b"fedlight.num_clients"] == b"2"


def test_lost_tasks_never_arrive(tmp_path):
    path = tmp_path / "events.parquet"
    arrivals = DropOut(
        ContinuousArrivals(FixedDurations([1.0] * 4), resume="on_arrival", local_steps=1), 0.5
    )
    run = trainer(
        arrivals=arrivals, aggregator=FedAvg(buffer_size=2), max_time=10, callbacks=EventLog(path)
    )
    run.fit(Boring(), classes())
    found = rows(path, "event", "serial", "arrives_at")
    lost = {serial for event, serial, at in found if event == "dispatch" and at is None}
    arrived = {serial for event, serial, _ in found if event == "arrival"}
    assert lost
    assert arrived
    assert not lost & arrived


class Killed(Exception):
    pass


class Kill(Callback):
    def on_update(self, trainer, module, update):
        if trainer.version >= 4:
            raise Killed


def test_a_resumed_run_writes_the_same_file(tmp_path):
    tables = []
    for name in ("whole", "resumed"):
        path = tmp_path / f"{name}.parquet"
        keeper = FedCheckpoint(tmp_path / name, every_n_updates=3)
        torch.manual_seed(0)
        module = Boring()
        if name == "resumed":
            killed = trainer(callbacks=[keeper, EventLog(path), Kill()])
            with pytest.raises(Killed):
                killed.fit(module, classes())
            assert pq.read_table(path).num_rows < tables[0].num_rows
            keeper = FedCheckpoint(tmp_path / name, every_n_updates=3)
        trainer(callbacks=[EventLog(path), keeper]).fit(module, classes(), ckpt_path="last")
        tables.append(pq.read_table(path))
    assert tables[1].equals(tables[0])


def test_the_next_run_begins_anew(tmp_path):
    log = EventLog(tmp_path / "events.parquet")
    sizes = []
    for _ in range(2):
        trainer(callbacks=log).fit(Boring(), classes())
        sizes.append(log.table().num_rows)
    assert sizes[0] == sizes[1]


class Choosy(FedAsync):
    """Accepts every second update that it is asked about."""

    asked = 0

    def accepts(self, update, version):
        self.asked += 1
        return self.asked % 2 == 1


@pytest.mark.parametrize("logged", [False, True])
def test_the_server_alone_decides_what_is_dropped(tmp_path, logged):
    """An `accepts` that counts gives the same run with and without the log."""
    log = EventLog(tmp_path / "events.parquet")
    aggregator = Choosy(alpha=0.5)
    run = trainer(
        arrivals=replay(*[(0, 0, float(time), 1) for time in range(1, 8)]),
        aggregator=aggregator,
        callbacks=log if logged else None,
    )
    run.fit(Point(), points([1.0]))
    assert aggregator.asked == 7
    assert [record.now for record in run.history] == [1.0, 3.0, 5.0, 7.0]
    if logged:
        found = rows(log.path, "event", "time")
        assert [time for event, time in found if event == "drop"] == [2.0, 4.0, 6.0]


def test_each_dropped_update_is_told_of_after_its_arrival():
    calls = []

    class Note(Callback):
        def on_update(self, trainer, module, update):
            calls.append(("update", update))

        def on_drop(self, trainer, module, update):
            calls.append(("drop", update))

        def on_round_end(self, trainer, module):
            calls.append(("round", trainer.version))

    run = trainer(
        arrivals=replay((0, 0, 1.0, 1), (0, 0, 2.0, 1), (0, 1, 3.0, 1)),
        aggregator=FedAsync(alpha=0.5, max_staleness=0),
        callbacks=Note(),
    )
    run.fit(Point(), points([1.0]))
    assert [name for name, _ in calls] == ["update", "round", "update", "drop", "update", "round"]
    assert calls[3][1] is calls[2][1]


def test_the_state_is_a_list_that_only_grows(tmp_path):
    """A checkpoint stores new rows alone: those that it has stored stay as they are."""
    log, seen = EventLog(tmp_path / "events.parquet"), []

    class Look(Callback):
        def on_event_end(self, trainer, module):
            found = list(log.state_dict()["rows"])
            assert not seen or found[: len(seen[-1])] == seen[-1]
            seen.append(list(found))

    trainer(callbacks=[log, Look()]).fit(Boring(), classes())
    assert len(seen[-1]) > len(seen[0]) > 0
    again = EventLog(tmp_path / "again.parquet")
    again.load_state_dict({"rows": [list(row) for row in log.state_dict()["rows"]]})
    assert again.table().equals(log.table())


def test_the_events_outlive_a_full_disk(tmp_path, monkeypatch):
    log = EventLog(tmp_path / "events.parquet")

    def full(table, where):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(OSError, match=r"No space left on device: .*events\.parquet"):
        trainer(callbacks=log).fit(Boring(), classes())
    assert "server_update" in log.table()["event"].to_pylist()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "events.parquet"
    path.write_bytes(b"old")

    def fails(table, where):
        where.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", fails)
    with pytest.raises(OSError, match=r"No space left on device: .*events\.parquet"):
        trainer(callbacks=EventLog(path)).fit(Boring(), classes())
    assert [p.name for p in tmp_path.iterdir()] == ["events.parquet"]
    assert path.read_bytes() == b"old"


def test_the_path_is_a_path():
    with pytest.raises(TypeError, match="path must name a file"):
        EventLog(3)


class Fails(Boring):
    def training_step(self, batch, batch_idx):
        if batch_idx == 1:
            raise RuntimeError("no")
        return super().training_step(batch, batch_idx)


def test_failures_are_events_and_the_file_is_written_after_an_error(tmp_path):
    path = tmp_path / "events.parquet"
    run = trainer(
        arrivals=replay((0, 0, 1.0, 1), (1, 0, 2.0, 2)),
        aggregator=FedAvg(buffer_size=1),
        executor="sequential",
        callbacks=EventLog(path),
    )
    with pytest.raises(Exception, match="no"):
        run.fit(Fails(), classes())
    found = rows(path, "event", "time", "client")
    assert found[-1] == ("failure", 2.0, 1)
    assert ("server_update", 1.0, None) in found
