"""What one local step of a module is found to do."""

import random

import numpy as np
import pytest
import torch

from fedlight._module.current_stage import Moment, moment_of
from fedlight.executors._choice.trial import try_step
from tests.boring import Boring, classes, workplace


class Does(Boring):
    """Does something in each step."""

    def __init__(self, act):
        super().__init__()
        self.act, self.count, self.last = act, 0, torch.zeros(1)
        self.own = np.random.default_rng(0)
        self.trainer = Moment()

    def training_step(self, batch, batch_idx):
        self.act(self)
        return super().training_step(batch, batch_idx)


def adds(module):
    module.count += 1


def keeps(module):
    module.last = torch.ones(1)


def rereads(module):
    module.last = module.last + 1


def fails(module):
    raise KeyError("no such column")


@pytest.mark.parametrize(
    ("act", "found", "words"),
    [
        (lambda module: None, {}, ""),
        (adds, {"changes": ["count"]}, "training_step changes count, which stacked clients"),
        (
            keeps,
            {"keeps": ["last"], "changes": ["last"]},
            "training_step of Does keeps tensors in self.last, which stacked clients would share",
        ),
        (
            rereads,
            {"keeps": ["last"], "changes": ["last"], "rereads": True},
            "training_step of Does keeps tensors in self.last",
        ),
        (
            lambda module: random.random(),
            {"draws": ["Python's random"]},
            "a local step draws from Python's random, which stacked clients would share",
        ),
        (
            lambda module: module.own.normal(),
            {"draws": ["own"]},
            "a local step draws from own, which stacked clients would share",
        ),
        (
            lambda module: moment_of(module).ask("callback_metrics"),
            {"asks": ["callback_metrics"]},
            "training_step reads self.trainer.callback_metrics, which stacked clients would share",
        ),
    ],
)
def test_findings(act, found, words):
    module = Does(act)
    trial = try_step(workplace(module, classes()))
    nothing = {"asks": [], "draws": [], "keeps": [], "rereads": False, "changes": []}
    expected = {**nothing, **found}
    assert {name: getattr(trial, name) for name in expected} == expected
    assert trial.failure is None
    assert trial.shares == bool(found)
    assert trial.in_words().startswith(words)
    assert bool(trial.in_words()) == bool(words)
    assert (module.count, module.last.tolist()) == (0, [0.0])


def test_a_step_that_fails():
    trial = try_step(workplace(Does(fails), classes()))
    assert isinstance(trial.failure.__cause__, KeyError)
    assert not trial.shares
    assert trial.in_words().startswith("training_step fails (KeyError: 'no such column'")
