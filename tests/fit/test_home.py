"""``~`` in a path is the home folder wherever a path is taken, and never a folder of that name."""

import pytest

from data_partitioners import IidPartitioner
from fedlight import Callback, cli, compare, sweep
from fedlight.aggregators import FedAvg
from fedlight.arrivals import Availability, IntervalWindows, Recording, UniformArrivals
from fedlight.arrivals.table import ScheduleTable
from fedlight.arrivals.traces import SAMPLE, read_traces
from fedlight.callbacks import CSVMetrics, EventLog, FedCheckpoint
from fedlight.data import FederatedDataModule
from fedlight.local_optimizers import LocalSGD
from fedlight.plot import timeline
from fedlight.studies import Study
from tests.boring import Point, points, trainer


@pytest.fixture
def home(monkeypatch, tmp_path):
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    yield home
    assert list(work.iterdir()) == []


class Saved(Callback):
    def on_round_end(self, trainer, module):
        trainer.save_checkpoint("~/by_hand.ckpt", "~/copies/copy.ckpt")


def test_what_a_fit_writes_and_reads(home):
    arrivals = Recording(UniformArrivals(per_round=1), "~/schedule.parquet")
    first = trainer(
        arrivals=arrivals,
        max_rounds=1,
        callbacks=[
            EventLog("~/logs/events.parquet"),
            CSVMetrics("~/logs/metrics.csv"),
            FedCheckpoint("~/kept"),
            Saved(),
        ],
        default_root_dir="~/root",
        logger=True,
        enable_checkpointing=True,
    )
    first.fit(Point(), points([1.0], [2.0]))
    written = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    expected = {"schedule.parquet", "logs/events.parquet", "logs/metrics.csv", "by_hand.ckpt"}
    assert expected | {"copies/copy.ckpt", "kept/last.ckpt"} <= written
    assert any(path.startswith("root/fedlight_logs/") for path in written)
    assert len(ScheduleTable.load("~/schedule.parquet").events) == 1
    assert timeline("~/logs/events.parquet") is not None
    again = trainer(arrivals=arrivals, max_rounds=2)
    again.fit(Point(), points([1.0], [2.0]), ckpt_path="~/by_hand.ckpt")
    assert again.version == 2
    again.validate(Point(), points([1.0], [2.0]), ckpt_path="~/copies/copy.ckpt")


def test_a_study(home):
    options = {
        "module": Point,
        "datamodule": points([1.0], [2.0]),
        "arrivals": UniformArrivals(per_round=1),
        "local_optimizer": LocalSGD(lr=0.1),
        "max_rounds": 1,
        "metric": "val_error",
        "seeds": [0],
    }
    sweep({"aggregator": [FedAvg()]}, path="~/study", logger_dir="~/board", workers=1, **options)
    assert (home / "study" / "study.json").is_file()
    assert len(Study.load("~/study").runs) == 1
    compare({"average": FedAvg()}, logger_dir="~/compared", **options)
    assert (home / "board").is_dir()
    assert (home / "compared" / "version_0").is_dir()


def test_files_of_devices_and_data(home):
    (home / "traces.json").write_bytes(SAMPLE.read_bytes())
    assert len(read_traces("~/traces.json")) == len(read_traces(SAMPLE))
    (home / "open.csv").write_text("client,start,end\n0,0,1\n")
    assert isinstance(IntervalWindows.from_file("~/open.csv"), IntervalWindows)
    assert Availability(UniformArrivals(per_round=1), "~/open.csv").windows is not None
    (home / "table").mkdir()
    (home / "table" / "train.csv").write_text("x,label\n0.5,1\n0.25,0\n")
    data = FederatedDataModule("~/table", IidPartitioner(2), cache="~/cache")
    assert repr(data).startswith(f"FederatedDataModule('{home}/table', ")
    with pytest.raises(NotADirectoryError, match="cache="):
        FederatedDataModule("mnist-mini", IidPartitioner(2), cache="~/open.csv")


def test_the_command_line(home):
    def main(folder: cli.Folder, figure: cli.Figure):
        """Show two paths.

        Args:
            folder: A folder.
            figure: A figure.
        """
        return folder, figure

    folder, figure = cli.run(main, ["--folder=~/new", "--figure=~/a.pdf"])
    assert (folder, figure) == (f"{home}/new", f"{home}/a.pdf")
