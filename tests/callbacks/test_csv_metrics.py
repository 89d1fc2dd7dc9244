import csv

import pytest
import torch

from fedlight import Callback
from fedlight.callbacks import ClientEvaluation, CSVMetrics, FedCheckpoint
from tests.boring import Boring, classes, trainer


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("flush", [1, 2, 100])
def test_a_row_per_round_with_all_its_metrics(tmp_path, flush):
    path = tmp_path / "new" / "metrics.csv"
    run = trainer(
        callbacks=[
            CSVMetrics(path, flush_every_n_rounds=flush),
            ClientEvaluation(every_n_rounds=2),
        ],
        check_val_every_n_rounds=2,
    )
    run.fit(Boring(), classes())
    rows = read(path)
    assert [row["version"] for row in rows] == ["1", "2", "3", "4", "5"]
    names = {name for record in run.history for name in record.metrics}
    assert rows[0].keys() == {"version", *names}
    for row, record in zip(rows, run.history, strict=True):
        found = {name: float(row[name]) for name in names if row[name]}
        assert found == record.metrics
    assert rows[0]["val_loss"] == ""
    assert [p.name for p in path.parent.iterdir()] == ["metrics.csv"]


def test_what_loggers_do_not_get_is_left_out(tmp_path):
    class Logs(Boring):
        def training_step(self, batch, batch_idx):
            self.log("kept", 1.0)
            self.log("secret", 2.0, logger=False)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.log("both", 3.0, on_step=True, on_epoch=True)

    path = tmp_path / "metrics.csv"
    run = trainer(callbacks=CSVMetrics(path, 1), max_rounds=3)
    run.fit(Logs(), classes())
    assert run.history[0].metrics["secret"] == 2.0
    rows = read(path)
    assert "secret" not in rows[0]
    assert (rows[2]["kept"], rows[2]["both_epoch"]) == ("1.0", "3.0")
    assert "both" not in rows[2]


class Killed(Exception):
    pass


class Kill(Callback):
    def on_round_end(self, trainer, module):
        if trainer.version == 4:
            raise Killed


def test_a_resumed_run_writes_the_same_file(tmp_path):
    texts = []
    for name in ("whole", "resumed"):
        path = tmp_path / f"{name}.csv"
        torch.manual_seed(0)
        module = Boring()
        if name == "resumed":
            keeper = FedCheckpoint(tmp_path / name, every_n_rounds=2)
            with pytest.raises(Killed):
                trainer(callbacks=[keeper, CSVMetrics(path, 1), Kill()]).fit(module, classes())
            assert len(read(path)) == 4  # one more than the checkpoint knows
        keeper = FedCheckpoint(tmp_path / name, every_n_rounds=2)
        trainer(callbacks=[CSVMetrics(path), keeper]).fit(module, classes(), ckpt_path="last")
        texts.append(path.read_text())
    assert texts[0] == texts[1]


def test_the_next_run_replaces_the_file(tmp_path):
    callback = CSVMetrics(tmp_path / "metrics.csv")
    for rounds in (5, 3):
        trainer(callbacks=callback, max_rounds=rounds).fit(Boring(), classes())
        assert len(read(callback.path)) == rounds


def test_a_full_disk_leaves_whole_rows(tmp_path, monkeypatch):
    path = tmp_path / "metrics.csv"
    callback = CSVMetrics(path, flush_every_n_rounds=1)

    class Full(Callback):
        """From round 3 on the disk takes half a row and no more."""

        def on_round_end(self, trainer, module):
            if trainer.version == 3:
                monkeypatch.setattr(callback, "_row", self.half)

        def half(self, record):
            with path.open("a") as file:
                file.write("3,0.")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '.*metrics\.csv'"):
        trainer(callbacks=[Full(), callback]).fit(Boring(), classes())
    assert [row["version"] for row in read(path)] == ["1", "2"]


def test_bad_arguments_are_refused():
    with pytest.raises(TypeError, match="path must name a file"):
        CSVMetrics(None)
    with pytest.raises(ValueError, match="flush_every_n_rounds must be at least 1"):
        CSVMetrics("metrics.csv", flush_every_n_rounds=0)
