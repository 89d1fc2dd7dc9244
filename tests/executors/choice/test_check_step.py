"""Local optimizers whose steps would train nothing are refused before the first round."""

import pytest

from fedlight.executors import ClientError
from fedlight.executors._choice.choose_executor import resolve_executor
from fedlight.local_optimizers import LocalSGD
from tests.boring import Boring, classes, fitted, workplace


class Rebinds(LocalSGD):
    """Trains nothing: the executors hold the tensors that were in `params`."""

    def step(self, run, grads):
        run.params = [param - 0.1 * grad for param, grad in zip(run.params, grads, strict=True)]


class Replaces(LocalSGD):
    def step(self, run, grads):
        for number, grad in enumerate(grads):
            run.params[number] = run.params[number] - 0.1 * grad


class Early(LocalSGD):
    def begin(self, run, module):
        run.params = list(run.params)


class Forgets(LocalSGD):
    def finish(self, run):
        pass


@pytest.mark.parametrize("executor", ["auto", "sequential", "vectorized"])
@pytest.mark.parametrize(
    ("optimizer", "error", "message"),
    [
        (Rebinds, AttributeError, r"run.params are changed in place.*run.descend\(direction\)"),
        (Early, AttributeError, r"run.params are changed in place"),
        (Replaces, TypeError, r"Replaces.step puts other tensors into run.params"),
        (Forgets, TypeError, r"Forgets.finish must return a list of tensors, got NoneType; run.cl"),
    ],
)
def test_what_would_train_nothing_is_refused(executor, optimizer, error, message):
    with pytest.raises(error, match=message):
        resolve_executor(executor, workplace(Boring(), classes(), optimizer(0.1)))


def test_params_are_refused_where_nothing_is_stacked_too():
    class One(Rebinds):
        stackable = False

    with pytest.raises(ClientError, match=r"run.params are changed in place"):
        fitted(Boring(), classes(), local_optimizer=One(0.1))
