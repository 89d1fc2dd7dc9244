"""Which runs share an executor."""

import pytest
import torch
from torch import nn

from fedlight.executors import VectorizedExecutor
from fedlight.executors._choice.trial import Trial
from fedlight.local_optimizers import LocalSGD
from fedlight.studies._shared_executors import SharedExecutor, SharedExecutors
from tests.boring import Boring, classes, workplace

DATA = classes()


def place(module=None, data=DATA, lr=0.1):
    torch.manual_seed(0)
    return workplace(module or Boring(), data, LocalSGD(lr))


class Counts(Boring):
    calls = 0

    def training_step(self, batch, batch_idx):
        self.calls += 1
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("words", ["", "as given", "the module can be stacked"])
def test_who_shares_is_decided_by_no_words(words, monkeypatch) -> None:
    monkeypatch.setattr(Trial, "in_words", lambda self: words)
    monkeypatch.setattr("fedlight.executors._choice.choose_executor._AS_GIVEN", "asked for")
    assert SharedExecutor("auto", place()).open
    assert SharedExecutor("vectorized", place()).open
    assert not SharedExecutor("auto", place(Counts())).open
    assert not SharedExecutor("vectorized", place(Counts())).open
    assert not SharedExecutor("sequential", place()).open


def test_a_stack_whose_bits_depend_on_company_is_not_shared() -> None:
    layers = nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(6, 3)
    shared = SharedExecutor("vectorized", place(Boring(nn.Sequential(*layers))))
    assert not shared.executor.independent
    assert not shared.open


def test_runs_that_differ_in_start_and_rate_share() -> None:
    shared = SharedExecutor("auto", place())
    other = Boring()
    with torch.no_grad():
        other.net.weight.add_(1)
    assert shared.takes("auto", place(other, lr=0.5))
    assert not shared.takes("vectorized", place())
    other.penalty = 0.5
    assert not shared.takes("auto", place(other))
    assert not shared.takes("auto", place(data=classes(seed=3)))


def test_executors_are_the_same_if_their_arguments_are() -> None:
    own = VectorizedExecutor(8)
    shared = SharedExecutor(own, place())
    assert shared.takes(own, place())
    assert shared.takes(VectorizedExecutor(8), place())
    assert not shared.takes(VectorizedExecutor(9), place())
    assert not shared.takes(VectorizedExecutor(8, max_bytes=10**9), place())

    class Own(VectorizedExecutor):
        """Has arguments that nobody knows."""

    shared = SharedExecutor(Own(8), place())
    assert not shared.takes(Own(8), place())


def test_a_run_that_fits_none_gets_an_executor_of_its_own() -> None:
    executors = SharedExecutors()
    first = executors.join("auto", place())
    assert executors.join("auto", place()) is first
    assert executors.join("vectorized", place()) is not first
    executors.close()
    assert executors.join("auto", place()) is not first
