import math

import pytest

from fedlight.callbacks import ClientEvaluation, EarlyStopping, FedCheckpoint
from tests.boring import Boring, classes, trainer


class Scripted(Boring):
    """Validates to the values given, one after the other."""

    def __init__(self, values):
        super().__init__()
        self.values = list(values)
        self.done = -1

    def on_validation_epoch_start(self):
        self.done += 1

    def validation_step(self, batch, batch_idx):
        self.log("score", self.values[self.done])


def stopped(values, stopping, **kwargs):
    run = trainer(callbacks=stopping, **{"max_rounds": len(values), **kwargs})
    run.fit(Scripted(values), classes())
    return run.version


def test_it_stops_after_so_many_looks_without_a_better_value():
    stopping = EarlyStopping("score", patience=2)
    assert stopped([5, 4, 4.5, 4, 1, 1], stopping) == 4
    assert stopping.best_score == 4.0
    assert stopping.stopped_round == 4
    assert stopping.stopped_epoch == 3  # Lightning counts from 0
    assert "score was not smaller than 4 2 times in a row (mode='min')" in stopping.reason


def test_larger_is_better_for_max():
    stopping = EarlyStopping("score", patience=2, mode="max")
    assert stopped([1, 2, 3, 2, 4, 3, 3, 9], stopping) == 7
    assert stopping.best_score == 4.0


def test_a_value_must_be_better_by_more_than_min_delta():
    assert stopped([5, 4.5, 4, 3.5], EarlyStopping("score", patience=2, min_delta=1.0)) == 3
    assert stopped([5, 3.5, 2, 0.5], EarlyStopping("score", patience=2, min_delta=1.0)) == 4


def test_patience_counts_validations_not_rounds():
    stopping = EarlyStopping("score", patience=2)
    assert stopped([1] * 20, stopping, check_val_every_n_rounds=3) == 9


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_it_stops_where_the_metric_is_not_finite(value):
    stopping = EarlyStopping("score")
    assert stopped([1, value, 0.5], stopping) == 2
    assert "score is" in stopping.reason
    assert stopped([1, value, 0.5], EarlyStopping("score", check_finite=False)) == 3


def test_thresholds():
    assert stopped([5, 3, 1, 0], EarlyStopping("score", stopping_threshold=2)) == 3
    assert stopped([5, 6, 9, 0], EarlyStopping("score", divergence_threshold=8, patience=9)) == 3
    assert stopped([5, 6, 9], EarlyStopping("score", mode="max", stopping_threshold=5.5)) == 2


def test_training_metrics_and_those_of_other_callbacks_can_be_monitored():
    run = trainer(
        callbacks=EarlyStopping("train_loss", min_delta=100.0, patience=2),
        check_val_every_n_rounds=None,
    )
    run.fit(Boring(), classes())
    assert run.version == 3
    stopping = EarlyStopping("clients/val_loss_worst_tenth", min_delta=100.0, patience=2)
    run = trainer(callbacks=[stopping, ClientEvaluation(every_n_rounds=2)], max_rounds=9)
    run.fit(Boring(), classes())
    assert run.version == 4


def test_a_metric_that_is_not_there_is_an_error_that_lists_what_is():
    with pytest.raises(ValueError, match=r"monitors 'val_acc', which was not logged.*'val_loss'"):
        trainer(callbacks=EarlyStopping("val_acc")).fit(Boring(), classes())
    run = trainer(callbacks=EarlyStopping("val_acc", strict=False))
    run.fit(Boring(), classes())
    assert run.version == 5


@pytest.mark.parametrize("kind", [EarlyStopping, FedCheckpoint])
def test_a_run_without_validation_is_told_so(kind, tmp_path):
    def made():
        if kind is FedCheckpoint:
            return FedCheckpoint(tmp_path, monitor="val_loss", save_last=False)
        return EarlyStopping("val_loss")

    reasons = {
        "check_val_every_n_rounds=5": {"check_val_every_n_rounds": 5},
        "check_val_every_n_updates=99": {"check_val_every_n_updates": 99},
        "limit_val_batches=0": {"limit_val_batches": 0},
    }
    for why, options in reasons.items():
        with pytest.warns(UserWarning, match="monitors 'val_loss', which no round had") as caught:
            trainer(callbacks=made(), max_rounds=4, **options).fit(Boring(), classes())
        (words,) = (str(each.message) for each in caught if "monitors" in str(each.message))
        assert f"no validation took place in 4 rounds ({why})" in words
        assert "There are" not in words
    never = {"check_val_every_n_rounds": None}
    with pytest.raises(ValueError, match=r"in 1 round \(check_val_every_n_rounds=None\)$"):
        trainer(callbacks=made(), **never).fit(Boring(), classes())
    with pytest.raises(ValueError, match=r"did you mean 'train_loss'\?$"):
        trainer(callbacks=EarlyStopping("train_los"), **never).fit(Boring(), classes())


def test_it_goes_on_waiting_where_a_checkpoint_left_it(tmp_path):
    keeper = FedCheckpoint(tmp_path, save_top_k=-1)
    # The checkpoint of round 3 has waited once.
    assert stopped([5, 4, 4, 4, 4, 4, 4], [EarlyStopping("score"), keeper]) == 5
    again = EarlyStopping("score")
    run = trainer(callbacks=again, max_rounds=9)
    run.fit(Scripted([4] * 9), classes(), ckpt_path=tmp_path / "round=3.ckpt")
    assert run.version == 5
    assert again.best_score == 4.0


def test_the_next_run_begins_anew():
    stopping = EarlyStopping("score", patience=1)
    assert stopped([1, 2], stopping) == 2
    assert stopped([5, 4, 6], stopping) == 3


def test_it_says_what_got_better(capsys, caplog):
    stopped([2, 1, 3], EarlyStopping("score", verbose=True))
    said = capsys.readouterr().err + caplog.text
    assert "score = 1 after round 2 is better than 2" in said


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"patience": 0}, "patience must be at least 1"),
        ({"min_delta": math.inf}, "min_delta must be finite"),
        ({"mode": "best"}, "mode must be one of"),
        ({"stopping_threshold": math.nan}, "stopping_threshold must be finite"),
    ],
)
def test_bad_arguments_are_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        EarlyStopping("val_loss", **arguments)
