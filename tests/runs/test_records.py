import io
import math

import pytest
import torch

from fedlight._runs.records import (
    _training_metrics,
    record_from_list,
    record_to_list,
    round_record,
    update_from_list,
    update_record,
)
from fedlight.types import (
    ClientUpdate,
    LocalResult,
    LoggedAs,
    LoggedValue,
    RoundRecord,
    ServerState,
    Task,
    UpdateRecord,
    UsedUpdate,
)

NOTHING = torch.empty(0)


def update(client=0, pulled=0, steps=1, serial=0, delta=(0.0,), examples=1, metrics=None):
    task = Task(client, pulled, 0.5, 2.5, steps, serial, visit=0)
    result = LocalResult(torch.tensor(delta), NOTHING, NOTHING.long(), metrics or {})
    return ClientUpdate(task, examples, result)


def version(number, *used):
    return ServerState(number, NOTHING, NOTHING, NOTHING.long(), used=used)


def test_an_update_as_it_was_used():
    record = update_record(update(3, pulled=2, steps=4, serial=9, examples=6), 3, 0.25, 1.5)
    assert record == UpdateRecord(
        client_id=3,
        serial=9,
        pulled_version=2,
        staleness=3,
        num_steps=4,
        num_examples=6,
        weight=0.25,
        dispatched_at=0.5,
        arrived_at=2.5,
        norm=1.5,
    )


def test_a_round_has_the_figures_of_its_updates():
    one = update(1, pulled=3, steps=2, delta=(3.0, 4.0))
    two = update(2, pulled=1, steps=6, delta=(0.0, 1.0))
    used = UsedUpdate(one, 0.5), UsedUpdate(two, 0.25)
    record = round_record(version(4, *used), [0, 2], 7.0, [])
    assert [used.staleness for used in record.updates] == [0, 2]
    assert [used.weight for used in record.updates] == [0.5, 0.25]
    assert [used.norm for used in record.updates] == [5.0, 1.0]
    assert record.metrics == {
        "fed/time": 7.0,
        "fed/participants": 2.0,
        "fed/staleness": 1.0,
        "fed/staleness_max": 2.0,
        "fed/local_steps": 4.0,
        "fed/update_norm": 3.0,
        "fed/failures": 0.0,
    }


def test_training_metrics_are_means_over_examples():
    one = update(metrics={"loss": LoggedValue(6.0, 2.0), "rare": LoggedValue(5.0, 1.0)})
    two = update(metrics={"loss": LoggedValue(4.0, 8.0), "never": LoggedValue(0.0, 0.0)})
    used = UsedUpdate(one, 0.9), UsedUpdate(two, 0.1)
    record = round_record(version(1, *used), [0, 0], 1.0, [])
    own = {k: v for k, v in record.metrics.items() if not k.startswith("fed/")}
    assert own == {"loss": pytest.approx((6 + 4) / (2 + 8)), "rare": 5.0}


def test_how_training_metrics_of_other_kinds_are_merged():
    how = {name: LoggedAs(name) for name in ("mean", "sum", "max", "min")}
    one = update(metrics={name: LoggedValue(6.0, 2.0, kind) for name, kind in how.items()})
    two = update(metrics={name: LoggedValue(4.0, 8.0, kind) for name, kind in how.items()})
    used = UsedUpdate(one, 0.5), UsedUpdate(two, 0.5)
    metrics = round_record(version(1, *used), [0, 0], 1.0, []).metrics
    assert metrics["mean"] == pytest.approx((6 + 4) / (2 + 8))
    assert (metrics["sum"], metrics["max"], metrics["min"]) == (10.0, 6.0, 4.0)


def test_a_record_as_plain_data_keeps_how_names_are_shown():
    hidden = LoggedValue(1.0, 1.0, LoggedAs("mean", prog_bar=True, logger=False))
    usual = LoggedValue(1.0, 1.0)
    one = update(metrics={"hidden": hidden, "usual": usual})
    record = round_record(version(1, UsedUpdate(one, 1.0)), [0], 1.0, [])
    assert "hidden" not in record.metrics.logged()
    again = record_from_list(record_to_list(record))
    assert again == record
    assert type(record_to_list(record)[2]) is dict
    assert (again.metrics.prog_bar, again.metrics.unlogged) == ({"hidden"}, {"hidden"})
    used = UsedUpdate(update(metrics={"usual": usual}), 1.0)
    plain = round_record(version(1, used), [0], 1.0, [])
    assert len(record_to_list(plain)) == 6  # as ever


def test_a_round_in_which_nobody_came():
    dropped = [update_record(update(), 4, 0.0, math.nan)]
    record = round_record(version(5), [], 3.0, dropped)
    metrics = {"fed/time": 3.0, "fed/participants": 0.0, "fed/failures": 0.0}
    assert record == RoundRecord(5, 3.0, metrics, [], dropped)


def test_a_restored_record_equals_the_first_one():
    """The norm of a dropped update is nan, which equals no nan read from a file."""
    dropped = update_record(update(), 4, 0.0, math.nan)
    record = round_record(version(5), [], 3.0, [dropped])
    file = io.BytesIO()
    torch.save(record_to_list(record), file)
    file.seek(0)
    assert record_from_list(torch.load(file)) == record
    assert update_from_list([*dropped[:-3], float("nan"), None, False]) == dropped


def test_the_metrics_of_one_local_run_are_those_of_several() -> None:
    logged = {
        "worst": LoggedValue(2.0, 4.0, LoggedAs("max")),
        "loss": LoggedValue(3.0, 4.0),
        "zero": LoggedValue(-0.0, 4.0),
        "empty": LoggedValue(1.0, 0.0),
        "sum": LoggedValue(5.0, 4.0, LoggedAs("sum", logger=False)),
    }
    result = LocalResult(torch.zeros(1), NOTHING, NOTHING, logged)
    silent = LocalResult(torch.zeros(1), NOTHING, NOTHING)
    one, several = _training_metrics([result]), _training_metrics([result, silent])
    numbers = [("loss", 0.75), ("zero", 0.0), ("worst", 2.0), ("sum", 5.0)]
    assert list(one.items()) == list(several.items()) == numbers
    assert math.copysign(1, one["zero"]) == math.copysign(1, several["zero"]) == 1
    assert one.unlogged == several.unlogged == {"sum"}
