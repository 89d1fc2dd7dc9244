"""The records: not to be changed, and what they work out by themselves."""

import pickle
from copy import deepcopy

import pytest
import torch

from fedlight.types import ClientUpdate, LocalResult, LoggedAs, LoggedValue, Measured, Metrics, Task

NONE = torch.empty(0)


def result(**given):
    return LocalResult(torch.tensor([3.0, -4.0]), NONE, NONE, **given)


def measured(delta):
    return LocalResult(delta, NONE, NONE, measured=Measured(delta, delta._version, 7.0))


def test_the_norm_is_taken_over_or_worked_out():
    assert result().update_norm == 5.0
    assert measured(torch.tensor([3.0, -4.0])).update_norm == 7.0


def test_the_norm_is_measured_again_where_the_delta_has_changed():
    one, two = measured(torch.tensor([3.0, -4.0])), measured(torch.tensor([3.0, -4.0]))
    assert one._replace(delta=torch.tensor([6.0, 8.0])).update_norm == 10.0
    two.delta.mul_(2)
    assert two.update_norm == 10.0


def test_updates_are_themselves_alone():
    task = Task(0, 0, 0.0, 1.0, 1, serial=0, visit=0)
    one, two = ClientUpdate(task, 1, result()), ClientUpdate(task, 1, result())
    assert one == one
    assert one != two
    assert [two, one].index(one) == 1
    assert len({one, two, one}) == 2


def test_nothing_logged_stays_nothing_logged():
    logged = result().metrics
    assert dict(logged) == {}
    with pytest.raises(TypeError):
        logged["loss"] = LoggedValue(1.0, 1)
    assert dict(pickle.loads(pickle.dumps(result())).metrics) == {}
    assert dict(deepcopy(result()).metrics) == {}


def test_an_update_computes_its_result_when_it_is_looked_at():
    asked = []

    def compute():
        asked.append(True)
        return result()

    update = ClientUpdate(Task(3, 2, 0.5, 1.5, 4, serial=9, visit=1), 6, compute)
    assert (update.client_id, update.pulled_version, update.num_steps) == (3, 2, 4)
    assert update.staleness(version=7) == 5
    assert not asked
    assert update.delta.tolist() == [3.0, -4.0]
    assert asked


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (Task(0, 0, 0.0, 1.0, 1, serial=0, visit=0), "lost"),
        (result(), "delta"),
        (ClientUpdate(Task(0, 0, 0.0, 1.0, 1, serial=0, visit=0), 1, result()), "pulled"),
    ],
    ids=["task", "result", "update"],
)
def test_records_are_not_changed(record, name):
    with pytest.raises(AttributeError):
        setattr(record, name, None)


def test_metrics_know_how_they_are_shown():
    metrics = Metrics({"a": 1.0})
    assert metrics.logged() is metrics
    metrics.put("b", 2.0, LoggedAs(prog_bar=True, logger=False))
    assert metrics == {"a": 1.0, "b": 2.0}
    assert metrics.logged() == {"a": 1.0}
    metrics.merge({"c": 3.0, "b": 4.0})  # a plain dictionary says nothing of how
    assert (metrics.prog_bar, metrics.unlogged) == ({"b"}, {"b"})
    metrics.merge(Metrics({"b": 5.0}))
    assert metrics == {"a": 1.0, "b": 5.0, "c": 3.0}
    assert (metrics.prog_bar, metrics.unlogged) == (set(), set())
