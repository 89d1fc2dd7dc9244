"""The records: not to be changed, and what they work out by themselves."""

import pytest
import torch

from fedlight.types import ClientUpdate, LocalResult, Task

NONE = torch.empty(0)


def result(**given):
    return LocalResult(torch.tensor([3.0, -4.0]), NONE, NONE, **given)


def test_the_norm_is_taken_over_or_worked_out():
    assert result().update_norm == 5.0
    assert result(norm=7.0).update_norm == 7.0


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
