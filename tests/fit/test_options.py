"""The options of a trainer live in one record, which its attributes read."""

from typing import get_args

import pytest

from fedlight import FedTrainer
from fedlight._fit.options import Option
from fedlight._fit.trainer_attributes import ATTRIBUTES
from fedlight.channel import TopK
from tests.boring import Point, points, trainer

OPTIONS = {name: each for name, each in vars(FedTrainer).items() if isinstance(each, Option)}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("given", [{}, {"channel": TopK(0.5), "max_update_norm": 1.0}])
def test_an_option_has_the_type_that_it_declares(name, given):
    (kind,) = get_args(OPTIONS[name].__orig_class__)
    assert isinstance(getattr(trainer(**given), name), getattr(kind, "__origin__", kind))


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_cannot_be_changed(name):
    run = trainer()
    before = getattr(run, name)
    with pytest.raises(AttributeError, match="cannot be changed; make another FedTrainer"):
        setattr(run, name, before)


def test_an_option_is_what_was_given():
    run = trainer(max_rounds=7, max_time=9.0, seed=3, max_update_norm=2.0, on_large_update="drop")
    assert (run.max_rounds, run.max_time, run.seed, run.max_update_norm) == (7, 9.0, 3, 2.0)
    assert run.on_large_update == "drop"


def test_the_run_reads_the_same_record():
    run = trainer(max_rounds=1)
    run.fit(Point(), points([1.0], [2.0]))
    setting = run.run.setting
    assert setting.aggregator is run.aggregator is run.run.server.aggregator
    assert setting.limits is run.limits


def test_each_attribute_of_the_table_answers():
    run = trainer(max_rounds=1)
    run.fit(Point(), points([1.0], [2.0]))
    for name in ATTRIBUTES:
        getattr(run, name)
