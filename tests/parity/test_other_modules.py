"""Modules of other packages, unchanged, beside `lightning.Trainer`; see `other_modules`."""

import contextlib
from importlib.util import find_spec

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule
from fedlight.arrivals import SynchronousArrivals
from fedlight.executors.base import ClientError
from fedlight.local_optimizers import LocalSGD
from tests.boring import trainer
from tests.parity.other_modules import CASES, Text, compare, federated, tiny_bert, tolerance

# Other packages warn of what they please.
pytestmark = pytest.mark.filterwarnings("ignore")
REFUSALS = (ValueError, ClientError)
EXECUTORS = ("sequential", "vectorized")


THERE = [case for case in CASES if all(find_spec(name.split(".")[0]) for name in case.needs)]


@pytest.fixture(params=THERE, ids=lambda case: case.id)
def case(request):
    reason = request.param.missing()
    if reason:
        pytest.skip(reason)
    return request.param


@pytest.mark.parametrize("executor", ["auto", *EXECUTORS])
def test_three_clients_train(case, executor):
    if executor == "vectorized" and not case.stacks:
        pytest.skip("nobody says that it stacks")
    run = federated(case, executor)
    assert run.version == 3
    deltas = [float(record.metrics["fed/update_norm"]) for record in run.history]
    assert all(0 < norm < float("inf") for norm in deltas)


def test_one_client_has_the_weights_of_lightning(case):
    if case.own:
        compare(case, "sequential", own=True).same_weights(tolerance(case))
    if case.local is not None:
        compare(case, "sequential", own=False).same_weights(tolerance(case))


def test_one_stacked_client_has_the_weights_of_lightning(case):
    if case.local is None:
        pytest.skip("no local optimizer")
    # The others may be refused, or fail in their first round; if they are taken, they are right.
    refused = contextlib.nullcontext() if case.stacks else contextlib.suppress(*REFUSALS)
    runs = None
    with refused:
        runs = compare(case, "vectorized", own=False)
    if runs is not None:
        runs.same_weights(tolerance(case))


class Largest(TorchDispatchMode):
    """Measures the largest tensor that any operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.numel = max(self.numel, leaf.untyped_storage().nbytes() // leaf.itemsize)
        return out


def fitted(module, executor):
    """The trainer of 24 clients, and the numbers in the largest tensor of the run."""
    clients, tokens = 24, torch.randint(1, 30, (2, 6))
    shares = [TensorDataset(tokens, torch.tensor([0, 1]))] * clients
    run = trainer(
        arrivals=SynchronousArrivals(local_steps=2),
        local_optimizer=LocalSGD(lr=0.05),
        executor=executor,
        max_rounds=2,
    )
    with Largest() as largest:
        run.fit(module, FederatedDataModule.from_client_datasets(shares, batch_size=2))
    return run, largest.numel


@pytest.fixture
def encoder():
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    return tiny_bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_only_adapters_travel_and_the_backbone_is_there_once(encoder, executor):
    peft = pytest.importorskip("peft")
    adapters = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    module = Text(peft.get_peft_model(encoder, adapters))
    frozen = {n: p for n, p in module.named_parameters() if not p.requires_grad}
    before = {name: (param.data_ptr(), param.clone()) for name, param in frozen.items()}
    trainable = sum(p.numel() for p in module.parameters() if p.requires_grad)
    run, largest = fitted(module, executor)
    backbone = sum(param.numel() for param in frozen.values())
    assert run.state.params.numel() == trainable < backbone / 10
    assert run.state.buffers.numel() == 0
    for name, param in frozen.items():
        assert param.data_ptr() == before[name][0]
        assert torch.equal(param, before[name][1])
    # No operation gives as much as two copies of the backbone, and stacks hold 24 clients.
    assert 0 < largest < 2 * backbone


def test_a_stack_of_whole_encoders_is_seen(encoder):
    """The measure above is not blind: without adapters, there is a copy for each client."""
    _, largest = fitted(Text(encoder), "vectorized")
    assert largest >= 24 * sum(param.numel() for param in encoder.parameters())
