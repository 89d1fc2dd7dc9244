"""Checkpoints and files: what `lightning.Trainer` decides about them is decided here as well."""

import dataclasses
import enum
import math
import shutil
from collections import OrderedDict
from pathlib import Path

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from fedlight import Callback
from fedlight.arrivals import Recording, UniformArrivals
from fedlight.callbacks import CSVMetrics, EarlyStopping, EventLog, FedCheckpoint
from fedlight.checkpoint import read_checkpoint
from tests.boring import Boring, Point, classes, fitted, points, trainer

EXECUTORS = ("sequential", "vectorized")


class Scored(Point):
    """Logs the next of a list of scores in each validation."""

    def __init__(self, scores=(), **hparams):
        super().__init__()
        self.save_hyperparameters(ignore=["scores"])
        self.scores = iter(scores)  # a list would be a setting, which a resumed run has again

    def validation_step(self, batch, batch_idx):
        self.log("score", next(self.scores))


def judge(**options) -> lightning.Trainer:
    """A `lightning.Trainer` that writes nothing of its own accord."""
    given = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "limit_train_batches": 1,
    }
    return lightning.Trainer(**{**given, **options})


def loader() -> DataLoader:
    return DataLoader(TensorDataset(torch.ones(2, 1)), batch_size=2)


def rounds_of(paths) -> list[int]:
    return [int(Path(path).stem.split("=")[-1].split("-")[0]) for path in paths]


NAN = math.nan


SCORES = [
    [NAN, 0.9, 0.5],
    [0.5, NAN, 0.9, NAN],
    [0.3, 0.3, 0.3, 0.2, 0.2],
    [0.1, 0.4, 0.2, 0.4, 0.1],
    [math.inf, 1.0, -math.inf, 2.0],
    [NAN, NAN, NAN],
    [NAN, -math.inf, math.inf, NAN],
    [math.inf, math.inf, NAN, math.inf],
]


# Each list is ranked in both modes, and so is each number that is kept.
@pytest.mark.parametrize(
    ("scores", "top_k", "mode"),
    [
        (scores, top_k, ("min", "max")[(row + column) % 2])
        for row, scores in enumerate(SCORES)
        for column, top_k in enumerate([1, 2, 3, -1])
    ],
)
def test_the_same_checkpoints_are_kept_as_by_model_checkpoint(scores, top_k, mode):
    """Nan is the worst value; of equal scores the first stays."""
    theirs = ModelCheckpoint(
        "theirs", "{epoch}", monitor="score", mode=mode, save_top_k=top_k, save_last=True
    )
    module = Scored(scores)
    judge(max_epochs=len(scores), callbacks=theirs).fit(module, loader(), loader())
    ours = FedCheckpoint("ours", monitor="score", mode=mode, save_top_k=top_k)
    fitted(
        Scored(scores),
        points([1.0], val=(1.0,)),
        arrivals=UniformArrivals(1, local_steps=1),
        callbacks=ours,
        max_rounds=len(scores),
    )
    kept = {epoch + 1 for epoch in rounds_of(theirs.best_k_models)}
    assert set(rounds_of(ours.best_k)) == kept
    assert set(rounds_of(Path("ours").glob("round=*.ckpt"))) == kept
    assert rounds_of([ours.best_model_path]) == [rounds_of([theirs.best_model_path])[0] + 1]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_only_rounds_that_have_the_metric_are_ranked(executor):
    """With a validation every five rounds there is nothing to rank before round 5."""
    keeper = FedCheckpoint("kept", monitor="score", mode="max", save_top_k=2)
    fitted(
        Scored([0.75, 0.25]),
        points([1.0], [2.0], val=(1.0,)),
        callbacks=keeper,
        max_rounds=12,
        check_val_every_n_rounds=5,
        executor=executor,
    )
    assert rounds_of(keeper.best_k) == [5, 10]
    assert list(keeper.best_k.values()) == [0.75, 0.25]
    assert read_checkpoint("kept/last.ckpt")["fedlight"]["server"]["version"] == 12


def test_a_save_between_rounds_is_not_ranked_with_a_score_of_another_round():
    """Saved after each arrival: rounds without a validation keep no score of an earlier one."""
    keeper = FedCheckpoint("kept", every_n_updates=1, monitor="score", mode="max", save_top_k=-1)
    fitted(
        Scored([0.75, 0.25]),
        points([1.0], [2.0], val=(1.0,)),
        callbacks=keeper,
        max_rounds=5,
        check_val_every_n_rounds=2,
    )
    assert keeper.best_k == {"kept/round=2.ckpt": 0.75, "kept/round=4.ckpt": 0.25}


def test_a_save_before_the_first_validation_after_updates_waits_for_the_metric():
    keeper = FedCheckpoint("kept", monitor="score", mode="max", save_top_k=-1)
    fitted(
        Scored([0.75, 0.25]),
        points([1.0], [2.0], val=(1.0,)),
        callbacks=keeper,
        max_rounds=4,
        check_val_every_n_rounds=None,
        check_val_every_n_updates=4,
    )
    assert keeper.best_k == {"kept/round=2.ckpt": 0.75, "kept/round=4.ckpt": 0.25}


def test_an_unknown_monitor_is_refused_once_a_validation_has_not_logged_it():
    given = {"check_val_every_n_rounds": 2, "max_rounds": 6}
    keeper = FedCheckpoint("kept", monitor="scor")
    run = trainer(callbacks=keeper, **given)
    with pytest.raises(ValueError, match=r"monitors 'scor', which was not logged; there are \['"):
        run.fit(Scored([1.0] * 9), points([1.0], [2.0], val=(1.0,)))
    assert run.version == 2
    with pytest.warns(UserWarning, match="monitors 'scor', which no round had"):
        fitted(
            Point(), points([1.0], [2.0], val=None), callbacks=FedCheckpoint("b", monitor="scor")
        )


# --- whose files are whose ---


def save_two(folder, ckpt_path=None, rounds=3, **options):
    keeper = FedCheckpoint(folder, save_top_k=2)
    run = trainer(callbacks=keeper, max_rounds=rounds, **options)
    run.fit(Boring(torch.nn.Linear(4, 3)), classes(), ckpt_path=ckpt_path)
    return keeper


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).glob("*.ckpt")}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_run_that_goes_on_elsewhere_leaves_the_old_folder_alone(executor):
    save_two("A", executor=executor)
    before = contents("A")
    assert sorted(before) == ["last.ckpt", "round=2.ckpt", "round=3.ckpt"]
    keeper = save_two("B", "A/round=3.ckpt", rounds=7, executor=executor)
    assert contents("A") == before
    assert sorted(contents("B")) == ["last.ckpt", "round=6.ckpt", "round=7.ckpt"]
    assert keeper.best_model_path == "B/round=7.ckpt"


@pytest.mark.parametrize("how", ["rename", "copy"])
def test_a_folder_that_was_renamed_or_copied_is_ranked_where_it_is(how):
    save_two("A")
    before = contents("A")
    if how == "rename":
        Path("A").rename("C")
    else:
        shutil.copytree("A", "C")
    save_two("C", "last", rounds=5)
    assert sorted(contents("C")) == ["last.ckpt", "round=4.ckpt", "round=5.ckpt"]
    assert not Path("A").exists() if how == "rename" else contents("A") == before


def test_files_of_another_run_of_the_same_name_are_not_taken_for_ones_own():
    """B holds checkpoints of another run, by chance with the names that A's run has kept."""
    save_two("A")
    save_two("B", seed=1)
    before = contents("B")
    with pytest.warns(UserWarning, match=r"'B' holds checkpoints of another run.*'last-v1.ckpt'"):
        save_two("B", "A/last.ckpt", rounds=5)
    after = contents("B")
    assert {name: after.pop(name) for name in before} == before
    assert sorted(after) == ["last-v1.ckpt", "round=4-v1.ckpt", "round=5-v1.ckpt"]


@pytest.mark.parametrize("last", [True, False])
def test_a_fresh_run_in_a_used_folder_takes_names_of_its_own_as_under_lightning(last):
    def theirs():
        keeper = ModelCheckpoint("theirs", "{epoch}", save_last=last, monitor=None)
        judge(max_epochs=1, callbacks=keeper).fit(Scored([1.0]), loader(), loader())

    def ours(ckpt_path=None, rounds=1):
        keeper = FedCheckpoint("ours", save_last=last)
        run = trainer(callbacks=keeper, max_rounds=rounds)
        run.fit(Boring(), classes(), ckpt_path=ckpt_path)
        return keeper

    theirs()
    ours()
    before = contents("ours")
    with pytest.warns(UserWarning, match="exists and is not empty"):
        theirs()
    with pytest.warns(UserWarning, match="holds checkpoints of another run, which stay") as seen:
        keeper = ours()
    assert len(seen) == 1
    expected = {name.replace("epoch=0", "round=1") for name in contents("theirs")}
    assert set(contents("ours")) == expected
    assert {name: contents("ours")[name] for name in before} == before
    assert Path(keeper.last_model_path).name == "last-v1.ckpt"
    keeper = ours("last", rounds=2)  # the newest, in its own names
    assert keeper.best_model_path == "ours/round=2-v1.ckpt"
    assert "round=1-v1.ckpt" not in contents("ours")
    with pytest.warns(UserWarning, match="holds checkpoints of another run"):
        ours()
    assert "round=1-v2.ckpt" in contents("ours")


def test_two_fresh_runs_of_one_callback_are_two_runs():
    keeper = FedCheckpoint("kept", save_top_k=2)
    run = trainer(callbacks=keeper, max_rounds=3)
    run.fit(Boring(), classes())
    before = contents("kept")
    with pytest.warns(UserWarning, match="another run"):
        run.fit(Boring(), classes())
    assert {name: contents("kept")[name] for name in before} == before
    assert rounds_of(keeper.best_k) == [3, 2]
    assert all("-v1" in path for path in keeper.best_k)


def test_two_runs_in_one_folder_at_the_same_time():
    """The second begins after the first's start and ends while the first goes on."""

    class Second(Callback):
        def on_round_end(self, trainer, module):
            if trainer.version == 2:
                part = Path("kept", ".round=9.ckpt.1.0123abcd.part")  # process 1 lives
                part.write_bytes(b"half")
                with pytest.warns(UserWarning, match="another run"):
                    save_two("kept", seed=1)
                assert part.is_file()

    keeper = FedCheckpoint("kept", save_top_k=2)
    fitted(Boring(), classes(), callbacks=[Second(), keeper], max_rounds=4)
    assert rounds_of(keeper.best_k) == [4, 3]
    names = {"round=3.ckpt", "round=4.ckpt", "last.ckpt"}
    assert set(contents("kept")) == names | {
        f"{n[:-5]}-v1.ckpt" for n in names - {"round=4.ckpt"}
    } | {"round=2-v1.ckpt"}


# --- trial runs ---


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("trial", [True, 2])
def test_a_trial_run_writes_nothing(trial, executor, tmp_path):
    theirs = ModelCheckpoint("theirs")
    csv = CSVLogger("theirs")
    judge(fast_dev_run=trial, callbacks=theirs, logger=csv).fit(
        Scored([1.0] * 9), loader(), loader()
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    shutil.rmtree("theirs", ignore_errors=True)

    def fit(trial, ckpt_path=None):
        arrivals = Recording(trainer().arrivals, "schedule.parquet")
        log = EventLog("events/events.parquet")
        run = trainer(
            arrivals=arrivals,
            callbacks=[
                CSVMetrics("csv/rounds.csv"),
                log,
                FedCheckpoint("kept"),
                ModelCheckpoint("mapped", save_last=True),
            ],
            logger=True,
            fast_dev_run=trial,
            max_rounds=3,
            executor=executor,
        )
        run.fit(Boring(), classes(), ckpt_path=ckpt_path)
        assert log.table().num_rows
        return run

    assert fit(trial).version == int(trial)
    assert list(tmp_path.iterdir()) == []
    fit(False)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(before) >= 6
    fit(trial)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


# --- hyper-parameters ---


class Colour(enum.Enum):
    RED = 1


class Size(enum.IntEnum):
    SMALL = 3


@dataclasses.dataclass
class Options:
    depth: int = 2


class Lazy(dict):
    """A mapping of another library, whose values may fail to be computed."""

    def __getitem__(self, key):
        raise KeyError(f"cannot interpolate {key}")


NESTED: list = []
NESTED.append(NESTED)

KEPT = {
    "dtype": torch.float16,
    "device": torch.device("cpu"),
    "set": {1, 2},
    "bytes": b"\0x",
    "complex": 1 + 2j,
    "tuple": (0.9, 0.999),
    "nested": {"a": [1, (2, {3: None})]},
    "ordered": OrderedDict(a=1),
    "size": torch.Size([2, 3]),
    "nothing": None,
    "text": "é",
    "huge": 2**80,
    "nan_free": 0.1,
}
LEFT_OUT = {
    "enum": Colour.RED,
    "number of an enum": Size.SMALL,
    "function": lambda x: x,
    "path": Path("data"),
    "array": np.arange(3),
    "dataclass": Options(),
    "class": int,
    "frozen": frozenset({1}),
    "generator": torch.Generator(),
    "lazy": Lazy(a=1),
    "itself": NESTED,
    "inside": {"deep": [Colour.RED]},
    "colour_key": {Colour.RED: 1},
}


class Odd(Boring):
    def __init__(self, kind=None, width=4):
        super().__init__()
        self.save_hyperparameters()


@pytest.mark.parametrize("kind", KEPT)
def test_hyper_parameters_that_are_kept_come_back_equal_and_of_their_kind(kind, recwarn):
    fitted(Odd(KEPT[kind]), classes(), callbacks=FedCheckpoint("kept"), max_rounds=2)
    assert [str(w.message) for w in recwarn if "hyper-parameters" in str(w.message)] == []
    ours = Odd.load_from_checkpoint("kept/last.ckpt").hparams
    judged = judge(max_epochs=1, enable_checkpointing=False)
    module = Odd(KEPT[kind])
    judged.fit(module, DataLoader(TensorDataset(torch.ones(2, 4), torch.ones(2).long())))
    judged.save_checkpoint("theirs.ckpt")
    theirs = Odd.load_from_checkpoint("theirs.ckpt").hparams
    assert dict(ours) == dict(theirs) == {"kind": KEPT[kind], "width": 4}
    assert type(ours["kind"]) is type(theirs["kind"])


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_other_hyper_parameters_are_left_out_with_one_warning(kind):
    with pytest.warns(UserWarning, match=r"hyper-parameters \['kind'\] of Odd are no") as seen:
        fitted(
            Odd(LEFT_OUT[kind], width=7), classes(), callbacks=FedCheckpoint("kept"), max_rounds=2
        )
    assert len([w for w in seen if "hyper-parameters" in str(w.message)]) == 1
    assert dict(Odd.load_from_checkpoint("kept/last.ckpt").hparams) == {"kind": None, "width": 7}
    again = trainer(callbacks=FedCheckpoint("kept"), max_rounds=3)
    with pytest.warns(UserWarning, match="hyper-parameters"):
        again.fit(Odd(LEFT_OUT[kind], width=7), classes(), ckpt_path="last")
    assert again.version == 3


class Positive(int):
    """As the numbers that jsonargparse checks."""


def test_numbers_of_other_libraries_become_pythons():
    fitted(
        Odd((np.float32(0.5), np.int64(3), np.bool_(True), Positive(7))),
        classes(),
        callbacks=FedCheckpoint("kept"),
    )
    kind = Odd.load_from_checkpoint("kept/last.ckpt").hparams["kind"]
    assert kind == (0.5, 3, True, 7)
    assert [type(each) for each in kind] == [float, int, bool, int]


def test_hyper_parameters_are_read_once_a_run(monkeypatch):
    reads = []
    monkeypatch.setattr(
        "fedlight.run.plain_hparams", lambda module: reads.append(module) or {"width": 4}
    )
    fitted(Odd(), classes(), callbacks=FedCheckpoint("kept"), max_rounds=4)
    assert len(reads) == 1


class Whole(Boring):
    """Saves one dict of settings as its hyper-parameters."""

    def __init__(self, conf):
        super().__init__()
        self.save_hyperparameters(conf)


def test_a_module_that_takes_its_hyper_parameters_as_one_dict_is_loaded():
    fitted(Whole({"width": 3}), classes(), callbacks=FedCheckpoint("kept"), max_rounds=1)
    assert dict(Whole.load_from_checkpoint("kept/last.ckpt").hparams) == {"width": 3}


# --- ckpt_path ---


@pytest.mark.parametrize("verb", ["validate", "test"])
@pytest.mark.parametrize("ckpt_path", ["last", "best", "kept/round=2.ckpt"])
def test_validate_and_test_load_the_weights_of_a_checkpoint(verb, ckpt_path):
    keeper = FedCheckpoint("kept", monitor="val_error", mode="max", save_top_k=-1)
    data = points([1.0, 2.0], [3.0], val=(5.0,), test=(5.0,))
    run = trainer(callbacks=keeper, max_rounds=4)
    module = Point()
    run.fit(module, data)
    paths = {"last": "kept/last.ckpt", "best": keeper.best_model_path}
    path = paths.get(ckpt_path, ckpt_path)
    weights = read_checkpoint(path)["state_dict"]
    fresh = Point(50.0)
    (metrics,) = getattr(run, verb)(fresh, data, ckpt_path=ckpt_path)
    assert torch.equal(fresh.w, weights["w"])
    judged = Point.load_from_checkpoint(path)
    expected = judge().__getattribute__(verb)(
        judged, DataLoader(TensorDataset(torch.tensor([[5.0]]))), verbose=False
    )
    assert metrics == expected[0]


def test_the_best_checkpoint_can_be_gone_on_from():
    keeper = FedCheckpoint("kept", monitor="score", mode="max")
    run = trainer(callbacks=keeper, max_rounds=4)
    run.fit(Scored([0.25, 0.75, 0.5, 0.0]), points([1.0], [2.0], val=(1.0,)))
    run.fit(Scored([0.125, 0.625]), points([1.0], [2.0], val=(1.0,)), ckpt_path="best")
    assert [record.metrics["score"] for record in run.history] == [0.25, 0.75, 0.125, 0.625]
    assert rounds_of(keeper.best_k) == [2]


@pytest.mark.parametrize(
    ("ckpt_path", "error", "words"),
    [
        (True, TypeError, 'must be the path of a file, "last" or "best", got True'),
        (3, TypeError, "got 3"),
        ("best", ValueError, "has kept no best checkpoint; fit first"),
        ("nowhere.ckpt", FileNotFoundError, "nowhere.ckpt"),
    ],
)
@pytest.mark.parametrize("verb", ["fit", "validate", "test"])
def test_a_ckpt_path_that_cannot_be_used_is_refused(verb, ckpt_path, error, words):
    run = trainer(callbacks=FedCheckpoint("kept"))
    with pytest.raises(error, match=words):
        getattr(run, verb)(Boring(), classes(), ckpt_path=ckpt_path)
    if verb == "fit" and ckpt_path == "best":
        with pytest.raises(ValueError, match="best"):
            judge(max_epochs=1).fit(Scored([1.0]), loader(), ckpt_path="best")


def test_a_checkpoint_of_another_model_is_refused_in_test():
    run = fitted(Point(), points([1.0], [2.0], test=(1.0,)), callbacks=FedCheckpoint("kept"))
    with pytest.raises(ValueError, match=r"last.ckpt' does not fit Boring: .*Missing key"):
        run.test(Boring(), classes(), ckpt_path="last")


# --- a run that was stopped early ---


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    "rule",
    [
        {"stopping_threshold": 0.5, "mode": "max"},
        {"divergence_threshold": 0.5, "mode": "min"},
        {"patience": 1, "mode": "min"},
        {"check_finite": True},
    ],
)
def test_a_second_start_of_a_run_that_stopped_early_trains_no_further_round(rule, executor):
    scores = [0.1, NAN] if "check_finite" in rule else [0.1, 0.9, 0.8, 0.7]

    def start(scores, **more):
        stopping = EarlyStopping("score", **{"patience": 20, **rule, **more})
        run = trainer(callbacks=[stopping, FedCheckpoint("kept")], max_rounds=9, executor=executor)
        run.fit(Scored(scores), points([1.0], [2.0], val=(1.0,)), ckpt_path="last")
        return run

    one = start(scores)
    assert one.version == 2
    two = start([])
    assert (two.version, two.fingerprint()) == (2, one.fingerprint())
    if "check_finite" not in rule:  # with a weaker rule it goes on
        name = next(iter(rule))
        weaker = {"stopping_threshold": 5.0, "divergence_threshold": 5.0, "patience": 20}
        assert start([0.2] * 9, **{name: weaker[name]}).version == 9


# --- the loggers' folders ---


@pytest.mark.parametrize("given", [True, "csv"])
def test_a_second_fit_writes_into_a_folder_of_its_own(given, tmp_path):
    logger = CSVLogger("logs", name="fedlight_logs") if given == "csv" else True
    root = "logs" if given is True else None
    run = trainer(logger=logger, default_root_dir=root, max_rounds=2)
    run.fit(Boring(), classes())
    folder = tmp_path / "logs" / "fedlight_logs"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path.parent.name for path in before} == {"version_0"}
    run.fit(Boring(), classes())
    assert sorted(path.name for path in folder.iterdir()) == ["version_0", "version_1"]
    assert all(path.read_bytes() == data for path, data in before.items())
    assert {path for path in folder.rglob("*") if path.is_file()} > set(before)


def test_a_version_that_the_user_has_named_is_kept(tmp_path):
    run = trainer(logger=CSVLogger("logs", name="", version="mine"), max_rounds=2)
    run.fit(Boring(), classes())
    with pytest.warns(UserWarning, match="not empty"):
        trainer(logger=CSVLogger("logs", name="", version="mine")).fit(Boring(), classes())
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["mine"]


def test_a_second_fit_that_goes_on_writes_on_in_the_first_ones_folder(tmp_path):
    class StopsOnce(Callback):
        def on_round_end(self, trainer, module):
            trainer.should_stop = trainer.version == 2

    callbacks = [StopsOnce(), FedCheckpoint("kept")]
    run = trainer(logger=CSVLogger("logs", name=""), max_rounds=4, callbacks=callbacks)
    run.fit(Boring(), classes())
    assert run.version == 2
    run.fit(Boring(), classes(), ckpt_path="last")
    (file,) = (tmp_path / "logs").rglob("metrics.csv")
    assert len(file.read_text().splitlines()) == 5


def test_no_hp_metric_is_drawn():
    from tests.kill_and_resume import points as curves

    fitted(Odd(), classes(), logger=True, max_rounds=2)
    (folder,) = Path("fedlight_logs").iterdir()
    drawn = curves(folder)
    assert "train_loss" in drawn
    assert "hp_metric" not in drawn
