import json
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import (
    EventAccumulator as NewAccumulator,
)
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata

from fedlight import Callback
from fedlight.aggregators import FedAsync, FedAvg, FedFix
from fedlight.arrivals import UniformArrivals, UniformSteps
from fedlight.callbacks import ClientEvaluation, FedCheckpoint, TensorBoardMetrics
from fedlight.callbacks.tensorboard_extras import AXES
from fedlight.channel import TopK
from fedlight.local_optimizers import LocalSGD, ModuleOptimizer
from tests.boring import Boring, Point, classes, points, replay, trainer

EVERYTHING = dict.fromkeys(("scalars", "histograms", "images", "tensors"), 0)

# Client 0 arrives twice and client 1 once; version 2 is made at time 2.5 from one update.
SCHEDULE = ((0, 0, 1.0, 2), (1, 0, 1.0, 3), (0, 1, 2.5, 4))


def logger(path, version="run"):
    return TensorBoardLogger(path, name="logs", version=version)


def read(path, version="run"):
    events = EventAccumulator(str(path / "logs" / version), size_guidance=EVERYTHING)
    events.Reload()
    return events


def scalars(events):
    """Tag to its points, hyper-parameters left out."""
    return {
        tag: [(e.step, round(e.value, 6)) for e in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
        if tag != "hp_metric"
    }


def test_each_scalar_lies_on_each_axis(tmp_path):
    run = trainer(
        arrivals=replay(*SCHEDULE, round_ends=[1.0, 2.5]),
        callbacks=TensorBoardMetrics(),
        logger=logger(tmp_path),
    )
    run.fit(Point(), points([1.0], [3.0]))
    found = scalars(read(tmp_path))
    errors = [round(record.metrics["val_error"], 6) for record in run.history]
    # pulls 0 and 1 before version 1, 2 before version 2: 2 + 2 and 3 + 3 models of 4 bytes each
    steps = {
        "val_error": [1, 2],
        "val_error/by_virtual_time": [1000, 2500],
        "val_error/by_gradients": [5, 9],
        "val_error/by_models": [4, 6],
        "val_error/by_bytes": [16, 24],
    }
    for tag, expected in steps.items():
        assert found[tag] == list(zip(expected, errors, strict=True)), tag
    for name in run.history[0].metrics:
        axes = {tag for tag in found if tag.startswith(f"{name}/by_")}
        total = name in AXES.values()
        assert len(axes) == (0 if total else 4), name


def test_the_axes_and_the_metrics_can_be_chosen(tmp_path):
    chosen = TensorBoardMetrics(
        axes=["models", "virtual_time"], metrics=["val_error"], time_resolution=10
    )
    run = trainer(
        arrivals=replay(*SCHEDULE, round_ends=[1.0, 2.5]),
        callbacks=chosen,
        logger=logger(tmp_path),
    )
    run.fit(Point(), points([1.0], [3.0]))
    found = scalars(read(tmp_path))
    assert {tag for tag in found if "/by_" in tag} == {
        "val_error/by_models",
        "val_error/by_virtual_time",
    }
    assert [step for step, _ in found["val_error/by_virtual_time"]] == [10, 25]


def test_tokens_are_an_axis_of_data_that_say_how_many(tmp_path):
    for tokens in (None, 7):
        data = points([1.0], [3.0, 5.0])
        data.tokens_per_example = tokens
        run = trainer(
            arrivals=replay(*SCHEDULE, round_ends=[1.0, 2.5]),
            callbacks=TensorBoardMetrics(axes=["tokens", "examples"]),
            logger=logger(tmp_path / str(tokens)),
        )
        run.fit(Point(), data)
        found = scalars(read(tmp_path / str(tokens)))
        steps = [step for step, _ in found["val_error/by_examples"]]
        assert steps == [record.metrics["fed/examples"] for record in run.history]
        if tokens is None:
            assert not [tag for tag in found if tag.endswith("by_tokens")]
        else:
            assert [step for step, _ in found["val_error/by_tokens"]] == [7 * s for s in steps]


def test_dropped_and_lost_work_counts(tmp_path):
    run = trainer(
        arrivals=replay((0, 0, 1.0, 1), (1, 0, 2.0, 7), (0, 1, 3.0, 1)),
        aggregator=FedAsync(alpha=0.5, max_staleness=0),
        callbacks=TensorBoardMetrics(),
        logger=logger(tmp_path),
    )
    run.fit(Point(), points([1.0], [3.0]))
    found = scalars(read(tmp_path))
    assert [step for step, _ in found["val_error/by_gradients"]] == [1, 9]
    assert [step for step, _ in found["val_error/by_models"]] == [2 + 1, 3 + 3]


def test_an_axis_that_stands_still_gets_no_second_point(tmp_path):
    run = trainer(
        arrivals=replay((0, 0, 3.5, 2)),
        aggregator=FedFix(interval=1.0),
        callbacks=TensorBoardMetrics(),
        logger=logger(tmp_path),
    )
    run.fit(Point(), points([1.0]))
    found = scalars(read(tmp_path))
    assert [step for step, _ in found["val_error"]] == [1, 2, 3, 4]
    assert [step for step, _ in found["val_error/by_gradients"]] == [0, 2]


def test_metrics_of_other_callbacks_are_on_the_axes_whatever_the_order(tmp_path):
    run = trainer(
        callbacks=[TensorBoardMetrics(), ClientEvaluation(every_n_rounds=2)],
        logger=logger(tmp_path),
    )
    run.fit(Boring(), classes())
    found = scalars(read(tmp_path))
    assert [step for step, _ in found["clients/val_loss_std"]] == [1, 2, 4]
    assert [s for s, _ in found["clients/val_loss_std/by_virtual_time"]] == [1000, 2000, 4000]


def test_histograms_hold_what_the_history_holds(tmp_path):
    run = trainer(
        callbacks=TensorBoardMetrics(histogram_every_n_rounds=2, picture_every_n_rounds=None),
        logger=logger(tmp_path),
        max_rounds=5,
    )
    run.fit(Boring(), classes())
    events = read(tmp_path)
    pages = {2: run.history[:2], 4: run.history[2:4], 5: run.history[4:]}
    for tag, field in (
        ("updates/staleness", "staleness"),
        ("updates/local_steps", "num_steps"),
        ("updates/norm", "norm"),
    ):
        histograms = events.Histograms(tag)
        assert [h.step for h in histograms] == [2, 4, 5]
        for histogram in histograms:
            values = [getattr(u, field) for r in pages[histogram.step] for u in r.updates]
            assert histogram.histogram_value.num == len(values)
            assert histogram.histogram_value.sum == pytest.approx(sum(values), rel=1e-6)
    used = events.Histograms("clients/updates_used")
    assert [h.histogram_value.sum for h in used] == [4.0, 8.0, 10.0]
    assert all(h.histogram_value.num == 4 for h in used)
    assert events.Tags()["images"] == []


def test_pictures_are_there_at_their_rounds(tmp_path):
    run = trainer(
        callbacks=TensorBoardMetrics(picture_every_n_rounds=2),
        logger=logger(tmp_path),
        max_rounds=5,
    )
    run.fit(Boring(), classes())
    events = read(tmp_path)
    assert [e.step for e in events.Images("clients/labels")] == [0]
    assert [e.step for e in events.Images("clients/timeline")] == [2, 4, 5]
    assert [e.step for e in events.Images("clients/participation")] == [2, 4, 5]
    image = events.Images("clients/labels")[0]
    assert image.width == 640
    assert image.encoded_image_string.startswith(b"\x89PNG")


class Killed(Exception):
    pass


class Kill(Callback):
    def __init__(self, version):
        self.version = version

    def on_event_end(self, trainer, module):
        if trainer.version >= self.version:
            raise Killed


def callbacks(path, kill_at=None):
    made = [
        FedCheckpoint(path / "checkpoints", every_n_rounds=3, save_top_k=0),
        TensorBoardMetrics(histogram_every_n_rounds=2, picture_every_n_rounds=4),
        ClientEvaluation(every_n_rounds=2),
    ]
    return made if kill_at is None else [*made, Kill(kill_at)]


# In the second, the axes fall behind the number of the round: 1e-4 units of virtual time a round,
# and deadlines at which nothing has arrived. It is killed at version 8, whose update brings the
# gradients to 4, and goes on from the checkpoint of version 6, with 3.
RUNS = {
    "by rounds": {
        "arrivals": UniformArrivals(2, 2, UniformSteps(1, 5)),
        "aggregator": FedAvg(),
        "max_rounds": 10,
    },
    "empty deadlines": {
        "arrivals": replay(
            (0, 0, 0.00035, 1), (1, 0, 0.0006, 2), (0, 1, 0.00075, 1), (1, 2, 0.00095, 1)
        ),
        "aggregator": FedFix(interval=0.0001),
    },
}


@pytest.mark.parametrize(
    ("options", "same_logger"), [("by rounds", True), ("empty deadlines", False)]
)
def test_a_resumed_run_has_each_point_once(tmp_path, options, same_logger):
    options = RUNS[options]
    whole = trainer(**options, callbacks=callbacks(tmp_path / "a"), logger=logger(tmp_path, "a"))
    torch.manual_seed(0)
    whole.fit(Boring(), classes())

    first = logger(tmp_path, "b")
    killed = trainer(**options, callbacks=callbacks(tmp_path / "b", 8), logger=first)
    torch.manual_seed(0)
    with pytest.raises(Killed):
        killed.fit(Boring(), classes())
    assert killed.version == 8
    time.sleep(1.1)  # event files are read in the order of their names, which count seconds
    again = first if same_logger else logger(tmp_path, "b")
    resumed = trainer(**options, callbacks=callbacks(tmp_path / "b"), logger=again)
    resumed.fit(Boring(), classes(), ckpt_path="last")
    assert resumed.fingerprint() == whole.fingerprint()

    for accumulator in (EventAccumulator, NewAccumulator):  # the old reader, and the new one
        found = {}
        for version in "ab":
            events = accumulator(str(tmp_path / "logs" / version), size_guidance=EVERYTHING)
            events.Reload()
            if accumulator is EventAccumulator:
                tags = events.Tags()
                found[version] = scalars(events) | {
                    tag: [(e.step, e.histogram_value.num) for e in events.Histograms(tag)]
                    for tag in tags["histograms"]
                }
                found[version] |= {
                    tag: [(e.step, e.encoded_image_string) for e in events.Images(tag)]
                    for tag in tags["images"]
                }
            else:
                found[version] = {
                    tag: [e.step for e in events.Tensors(tag)]
                    for tag in events.Tags()["tensors"]
                    if tag != "hp_metric"
                }
        assert found["b"].keys() == found["a"].keys()
        # real time differs, and is there once
        assert len(found["b"].pop("run/seconds")) == len(found["a"].pop("run/seconds")) == 1
        for tag, expected in found["a"].items():
            assert found["b"][tag] == expected, tag


def test_a_resumed_run_in_another_folder_goes_on_from_the_checkpoint(tmp_path):
    options = RUNS["by rounds"]
    killed = trainer(**options, callbacks=callbacks(tmp_path, 8), logger=logger(tmp_path, "a"))
    with pytest.raises(Killed):
        killed.fit(Boring(), classes())
    other = tmp_path / "other"
    resumed = trainer(**options, callbacks=callbacks(tmp_path), logger=logger(other))
    resumed.fit(Boring(), classes(), ckpt_path="last")
    found = scalars(read(other))
    assert [step for step, _ in found["val_loss"]] == [7, 8, 9, 10]
    assert [s for s, _ in found["val_loss/by_virtual_time"]] == [7000, 8000, 9000, 10000]


def test_other_loggers_get_the_axes_as_metrics(tmp_path):
    run = trainer(
        arrivals=replay(*SCHEDULE, round_ends=[1.0, 2.5]),
        logger=CSVLogger(tmp_path, name="logs", version="run"),
    )
    run.fit(Point(), points([1.0], [3.0]))
    lines = (tmp_path / "logs" / "run" / "metrics.csv").read_text().splitlines()
    assert len(lines) == 3
    names = lines[0].split(",")
    last = dict(zip(names, lines[2].split(","), strict=True))
    assert [float(last[f"fed/{x}"]) for x in ("time", "gradients", "models", "bytes")] == [
        2.5,
        9.0,
        6.0,
        24.0,
    ]


def test_without_a_tensorboard_logger_it_says_so(tmp_path):
    run = trainer(callbacks=TensorBoardMetrics(), logger=CSVLogger(tmp_path))
    with pytest.warns(UserWarning, match="nothing to write to"):
        run.fit(Boring(), classes())
    trainer(callbacks=TensorBoardMetrics()).fit(Boring(), classes())  # no logger: silent


def test_writing_changes_nothing_in_the_run(tmp_path):
    torch.manual_seed(0)
    plain, written = trainer(), trainer(callbacks=TensorBoardMetrics(), logger=logger(tmp_path))
    start = Boring()
    for run in (plain, written):
        module = Boring()
        module.load_state_dict(start.state_dict())
        run.fit(module, classes())
    assert plain.fingerprint() == written.fingerprint()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"axes": ["rounds"]}, "axes must be one of 'virtual_time'"),
        ({"time_resolution": 0}, "time_resolution must be larger than 0"),
        ({"histogram_every_n_rounds": 0}, "histogram_every_n_rounds must be at least 1"),
        ({"picture_every_n_rounds": -1}, "picture_every_n_rounds must be at least 1"),
    ],
)
def test_bad_arguments_are_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        TensorBoardMetrics(**arguments)


def test_a_running_tensorboard_serves_the_tags(tmp_path):
    run = trainer(callbacks=TensorBoardMetrics(), logger=logger(tmp_path))
    run.fit(Boring(), classes())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path / "logs")]
    command += ["--host", "127.0.0.1", "--port", str(port), "--load_fast", "false"]
    # No proxy stands between this machine and itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def served(plugin):
        url = f"http://127.0.0.1:{port}/data/plugin/{plugin}/tags"
        with opener.open(url, timeout=60) as answer:
            return json.load(answer).get("run", {})

    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        axes = ("virtual_time", "gradients", "models", "bytes")
        missing = {
            "scalars": {"val_loss", *(f"val_loss/by_{axis}" for axis in axes)},
            "histograms": {"updates/staleness", "updates/local_steps", "updates/norm"},
            "images": {"clients/labels", "clients/timeline", "clients/participation"},
        }
        # The server answers while it still reads: what it lacks now may come later.
        deadline = time.monotonic() + 300
        while any(missing.values()) and time.monotonic() < deadline:
            assert server.poll() is None, "tensorboard ended"
            try:
                missing = {plugin: tags - served(plugin).keys() for plugin, tags in missing.items()}
            except OSError:
                time.sleep(0.3)
        assert not any(missing.values()), missing
    finally:
        server.terminate()
        try:
            server.wait(timeout=60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


# --- the first page ---


def opened(tags):
    """The two groups of cards that TensorBoard opens: it sorts tags, and slashes come first."""
    ordered = sorted(tags, key=lambda tag: tag.replace("/", "\0"))
    return list(dict.fromkeys(tag.partition("/")[0] for tag in ordered))[:2]


@pytest.mark.parametrize("own", [[], [TensorBoardMetrics(), ClientEvaluation(every_n_rounds=2)]])
def test_tensorboard_opens_on_the_metrics_of_the_module(tmp_path, own):
    run = trainer(logger=logger(tmp_path), callbacks=own)
    run.fit(Boring(), classes())
    events = read(tmp_path)
    tags = [tag for kind in ("scalars", "histograms", "images") for tag in events.Tags()[kind]]
    assert opened(tags) == ["Evaluation", "Training"]
    found = scalars(events)
    first = {tag for tag in found if tag.partition("/")[0] in ("Evaluation", "Training")}
    assert first == {"Evaluation/val_loss", "Training/train_loss", "Training/train_acc"}
    for tag in first:
        assert found[tag] == found[tag.partition("/")[2]]


def test_a_metric_that_is_kept_from_loggers_has_no_card(tmp_path):
    class Quiet(Boring):
        def validation_step(self, batch, batch_idx):
            self.log("val_quiet", 1.0, logger=False)
            super().validation_step(batch, batch_idx)

    trainer(logger=logger(tmp_path)).fit(Quiet(), classes())
    assert not any("quiet" in tag for tag in scalars(read(tmp_path)))


# --- the page HParams ---


class Tuned(Point):
    """Has hyper-parameters of its optimizer, by whatever names, and others."""

    def __init__(self, lr=0.125, rate_of_decay=0.25, width=3, shape=(1, 2)):
        super().__init__()
        self.save_hyperparameters()

    def configure_optimizers(self):
        return torch.optim.SGD(
            self.parameters(), self.hparams.lr, weight_decay=self.hparams["rate_of_decay"]
        )


def page(folder):
    """The values on TensorBoard's page HParams, by name, and the metrics beside them."""
    (file,) = folder.rglob("events.out*")
    reader = NewAccumulator(str(file))
    reader.Reload()
    content = reader.PluginTagToContent("hparams")
    assert metadata.EXPERIMENT_TAG not in content  # else the page shows no metric but its own
    start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])
    values = start.hparams
    return {name: getattr(values[name], values[name].WhichOneof("kind")) for name in values}


@pytest.mark.parametrize("own", [True, False])
def test_hparams_shows_the_federation_and_no_rate_that_has_no_effect(tmp_path, own):
    given = {"local_optimizer": ModuleOptimizer()} if own else {"local_optimizer": LocalSGD(0.03)}
    given |= {"callbacks": TensorBoardMetrics(), "channel": TopK(0.5)}
    run = trainer(logger=True, default_root_dir=tmp_path, max_rounds=2, seed=5, **given)
    run.fit(Tuned(), points([1.0], [3.0]))
    expected = {
        "width": 3.0,
        "shape": "(1, 2)",
        "arrivals": "UniformArrivals",
        "arrivals.per_round": 2.0,
        "arrivals.max_staleness": 2.0,
        "arrivals.local_steps": "UniformSteps",
        "arrivals.local_steps.low": 1.0,
        "arrivals.local_steps.high": 5.0,
        "aggregator": "FedAvg",
        "aggregator.client_weights": "examples",
        "channel": "TopK",
        "channel.share": 0.5,
        "clients": 2.0,
        "batch_size": 64.0,
        "seed": 5.0,
    }
    if own:
        expected |= {"lr": 0.125, "rate_of_decay": 0.25, "local_optimizer": "ModuleOptimizer"}
    else:
        expected |= {"local_optimizer": "LocalSGD", "local_optimizer.lr": 0.03}
    shown = page(tmp_path)
    assert expected.items() <= shown.items()
    assert ("lr" in shown) is own
    (file,) = tmp_path.rglob("hparams.yaml")
    assert "rate_of_decay: 0.25" in file.read_text()  # what load_from_checkpoint needs
    (events,) = tmp_path.rglob("events.out*")
    curves = EventAccumulator(str(events), size_guidance=EVERYTHING)
    curves.Reload()
    assert "hp_metric" not in curves.Tags()["scalars"]
    ends = ("val_error/best", "val_error/last", "run/seconds")
    assert set(ends) <= set(curves.Tags()["scalars"])
    values = [each.metrics["val_error"] for each in run.history]
    assert curves.Scalars(ends[0])[0].value == pytest.approx(min(values))
    assert curves.Scalars(ends[1])[0].value == pytest.approx(values[-1])


def test_custom_scalars_show_the_chosen_metric_on_each_axis(tmp_path):
    run = trainer(
        logger=True, default_root_dir=tmp_path, max_rounds=2, callbacks=TensorBoardMetrics()
    )
    run.fit(Tuned(), points([1.0], [3.0]))
    reader = NewAccumulator(str(next(tmp_path.rglob("events.out*"))))
    reader.Reload()
    (content,) = reader.PluginTagToContent("custom_scalars").keys()
    layout = layout_pb2.Layout()
    layout.ParseFromString(reader.Tensors(content)[0].tensor_proto.string_val[0])
    (category,) = layout.category
    titles = [chart.title for chart in category.chart]
    assert titles[:2] == [
        "val_error over rounds",
        "val_error over virtual time (a unit is 1000 steps)",
    ]
    assert category.chart[2].multiline.tag[0] == "^val_error/by_gradients$"


def test_hparams_is_the_users_own_where_lightning_fills_it(tmp_path):
    run = trainer(logger=logger(tmp_path), max_rounds=1)
    run.fit(Tuned(), points([1.0], [3.0]))
    content = NewAccumulator(str(next((tmp_path / "logs").rglob("events.out*"))))
    content.Reload()
    assert metadata.EXPERIMENT_TAG in content.PluginTagToContent("hparams")


def test_hparams_may_be_left_out(tmp_path):
    run = trainer(
        logger=True, default_root_dir=tmp_path, max_rounds=1, enable_autolog_hparams=False
    )
    run.fit(Tuned(), points([1.0], [3.0]))
    reader = NewAccumulator(str(next(tmp_path.rglob("events.out*"))))
    reader.Reload()
    with pytest.raises(KeyError):
        reader.PluginTagToContent("hparams")
