"""The folder of a study on a system without file locks."""

import runpy
import sys
import warnings

import pytest

from fedlight.studies import store
from fedlight.studies.store import Store
from tests.studies.grid_of_boring import prints, swept


def test_two_processes_do_not_take_one_run(tmp_path) -> None:
    one, other = Store(tmp_path), Store(tmp_path)
    assert one.lock("a")
    assert not other.lock("a")
    assert other.lock("b")
    one.unlock("a")
    assert other.lock("a")
    other.unlock_all()


def test_without_file_locks_a_study_runs_with_one_warning(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert "Store" in runpy.run_path(store.__file__)  # the module can be imported there
    monkeypatch.setattr(store, "_warnings", type(store._warnings)())
    with pytest.warns(UserWarning, match="no file locks .*, so only one process") as caught:
        first = swept(path=tmp_path, seeds=[0])
    assert sum("no file locks" in str(each.message) for each in caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = swept(path=tmp_path, seeds=[0])
    assert prints(again) == prints(first)
