"""What is imported is out of the collector's sight; what is made afterwards is not."""

import gc
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import fedlight
from fedlight._support.garbage_collection import (
    leave_libraries_alone,
    no_collections,
    rarer_full_collections,
)
from tests.scripts import Scripts


@pytest.fixture
def freezes(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """What stands for the collector's `freeze`, as in a script that has not frozen anything yet."""
    leave_libraries_alone.cache_clear()
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)
    monkeypatch.delattr(sys, "ps1", raising=False)
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    freeze = Mock()
    monkeypatch.setattr(gc, "freeze", freeze)
    return freeze


@pytest.mark.parametrize(
    ("name", "frozen"), [("ClientUpdate", False), ("FedTrainer", True), ("sweep", True)]
)
def test_only_what_trains_has_its_imports_frozen(freezes: Mock, name: str, frozen: bool) -> None:
    fedlight.__getattr__(name)
    assert freezes.called is frozen


@pytest.mark.parametrize("where", ["-i", "prompt", "notebook"])
def test_where_somebody_types_nothing_is_frozen(
    freezes: Mock, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "-i":
        monkeypatch.setattr(sys, "flags", SimpleNamespace(interactive=1))
    elif where == "prompt":
        monkeypatch.setattr(sys, "ps1", ">", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "IPython", sys)
    leave_libraries_alone()
    assert not freezes.called


def test_what_a_script_makes_is_collected_and_its_files_are_written_out(
    tmp_path: Path, scripts: Scripts
) -> None:
    code = """
import gc, weakref
from fedlight import FedTrainer
frozen = gc.get_freeze_count()
assert frozen > 100_000

class Writer:
    def __init__(self):
        self.itself = self  # a cycle, which only the collector can end
        self.file = open("numbers.txt", "w")
        self.file.write("all of them")

writer = Writer()
from fedlight import FedTrainer
assert gc.get_freeze_count() <= frozen  # frozen once

class Cycle:
    def __init__(self):
        self.itself = self

gone = weakref.ref(Cycle())
gc.collect()
assert gone() is None
"""
    ended, _, errors = scripts.run(code)
    assert ended == 0, errors
    assert Path(tmp_path, "numbers.txt").read_text() == "all of them"


def test_full_collections_are_rarer_until_the_last_fit_that_is_under_way_ends() -> None:
    young, middle, full = before = gc.get_threshold()
    one, two = rarer_full_collections(), rarer_full_collections()
    with one:
        with two:
            assert gc.get_threshold() == (young, middle, 10 * full)
        assert gc.get_threshold() == (young, middle, 10 * full)
    assert gc.get_threshold() == before


def test_thresholds_that_a_callback_sets_stay() -> None:
    before = gc.get_threshold()
    try:
        with rarer_full_collections():
            gc.set_threshold(5, 6, 7)
        assert gc.get_threshold() == (5, 6, 7)
    finally:
        gc.set_threshold(*before)


def test_the_collector_rests_within_and_after_an_error_works_again():
    @no_collections()
    def fails():
        assert not gc.isenabled()
        with no_collections():
            pass
        assert not gc.isenabled()
        raise KeyError

    assert gc.isenabled()
    with pytest.raises(KeyError):
        fails()
    assert gc.isenabled()


def test_a_collector_that_the_user_has_stopped_stays_so():
    gc.disable()
    try:
        with no_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
