"""`check_independence` says in words whether bits depend on company."""

import pytest
import torch
from torch import nn

import fedlight
from fedlight import check_independence, independence
from fedlight.executors.base import ClientError
from fedlight.local_optimizers import FedProx
from tests.boring import Boring, classes


def conv() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(6, 3))


def test_a_stacked_module_is_compared_in_its_stacks():
    module = Boring(nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)))
    before = [param.clone() for param in module.parameters()]
    answer = check_independence(module, classes(), FedProx(lr=0.1, mu=0.1))
    assert answer
    assert answer.num_stacks == 16
    assert answer.differing == 0
    assert "do not depend on its stack (compared in 16 stacks of 2, 3, 7 clients)" in str(answer)
    assert all(map(torch.equal, before, module.parameters()))
    assert fedlight.check_independence is check_independence


def test_an_operator_that_stands_in_the_way_is_named():
    answer = check_independence(Boring(conv()), classes(), executor="vectorized")
    assert not answer
    assert "convolution" in answer.causes
    assert "may depend on its stack, because of convolution" in str(answer)


def test_clients_that_are_not_stacked_have_no_company():
    answer = check_independence(Boring(conv()), classes())
    assert answer
    assert str(answer).startswith("Boring, SequentialExecutor() on cpu: clients are not stacked")


def test_a_difference_is_found_though_the_table_knows_none(monkeypatch):
    monkeypatch.setattr(independence, "_equal", lambda one, other: False)
    answer = check_independence(Boring(), classes())
    assert not answer
    assert "though all operators are listed as independent; in 16 of 16 stacks" in str(answer)


def test_a_client_that_fails_is_an_error():
    class Fails(Boring):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * float("nan")

    with pytest.raises(ClientError, match=r"client 0 failed .* the loss is not finite"):
        check_independence(Fails(), classes())


def test_an_unknown_executor_is_refused():
    with pytest.raises(ValueError, match=r"executor must be one of .*, got 'fast'"):
        check_independence(Boring(), classes(), executor="fast")
