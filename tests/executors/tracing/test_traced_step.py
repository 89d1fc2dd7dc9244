"""Traced or not: the same bits; what cannot be traced runs untraced."""

import random

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.nn import functional
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from fedlight._module.rng import isolated_rng, seed_all
from fedlight._module.steps import reads_index
from fedlight.executors._random.streams import step_keys
from fedlight.executors._stack.step import StackedStep, StepInputs
from fedlight.executors._tracing import TracedStep, traced_step
from fedlight.executors.base import Workplace
from fedlight.local_optimizers import LocalSGD
from fedlight.parameters import ModuleState
from fedlight.types import Task


class Net(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def loss(self, batch):
        x, y = batch
        loss = functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        self.log("size", len(y))
        return loss

    def training_step(self, batch, batch_idx):
        return self.loss(batch)


class WithMetrics(Net):
    def __init__(self, net):
        super().__init__(net)
        self.acc, self.mean = MulticlassAccuracy(3), MeanMetric()

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("acc", self.acc(self.net(batch[0]), batch[1]))
        self.mean.update(loss, weight=batch[0].mean())
        self.log("mean", self.mean)
        return loss


def linear():
    return nn.Linear(4, 3)


def norm_and_dropout():
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
    )


def convolution():
    return nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 3))


def step_of(module):
    state = ModuleState(module)
    work = Workplace(module, state, LocalSGD(lr=0.1), None, None, batch_size=8, seed=0)
    return StackedStep(work), state


def stack(state, n, seed=0):
    """Parameters that are rows of one block, and buffers, of n clients; and a batch of 8 each."""
    rng = torch.Generator().manual_seed(seed)
    params = state.read().params.expand(n, -1).clone()
    params += 0.1 * torch.randn(params.shape, generator=rng)
    buffers = [v.contiguous() for v in state.buffer_layout.views(state.read().buffers.repeat(n, 1))]
    counters = [
        v.contiguous() for v in state.counter_layout.views(state.read().counters.repeat(n, 1))
    ]
    batch = (
        torch.randn(n, 8, 4, generator=rng),
        torch.randint(3, (n, 8), generator=rng),
    )
    return state.param_layout.views(params), buffers, counters, batch


def keys(n, k=0):
    """The keys of n clients in step k."""
    return lambda: torch.from_numpy(
        step_keys(5, [Task(i, 0, 0.0, 1.0, num_steps=9, serial=0, visit=0) for i in range(n)], [k])
    )[0]


def everything(step, state, n, steps=4):
    """All that some steps give, leave behind and draw."""
    params, buffers, counters, batch = stack(state, n)
    seen = []
    with isolated_rng():
        seed_all(5)
        for k in range(steps):
            grads, log = step(StepInputs(params, buffers, counters, batch, k), keys(n, k))
            seen += [*grads, *(b.clone() for b in buffers + counters), *log.values.values()]
            for _, args, kwargs in log.inputs:
                seen += [*args, *kwargs.values()]
            torch._foreach_add_(params, grads, alpha=-0.1)
        seen.append(torch.default_generator.get_state())
    return [*seen, *params]


@pytest.mark.parametrize(
    ("kind", "net", "n"),
    [
        (Net, linear, 1),
        (Net, norm_and_dropout, 3),
        (Net, convolution, 1),
        (WithMetrics, linear, 3),
        (WithMetrics, norm_and_dropout, 1),
        (WithMetrics, convolution, 3),
    ],
)
def test_a_trace_gives_the_same_bits(kind, net, n):
    torch.manual_seed(0)
    untraced, state = step_of(kind(net()))
    traced = TracedStep(untraced, after=1)
    everything(traced, state, n)
    assert [type(trace).__name__ for trace in traced.traces.values()] == ["Trace"]
    one, two = everything(untraced, state, n), everything(traced, state, n)
    assert len(one) == len(two)
    assert all(map(torch.equal, one, two))


@pytest.mark.parametrize(
    ("without", "traced"), [((), 2), (("simplify", "interpreter"), 2), (("sizes",), 4)]
)
def test_parts_can_be_left_out_and_change_no_bit(without, traced, monkeypatch):
    graphs = []
    real = traced_step.make_fx
    monkeypatch.setattr(
        traced_step, "make_fx", lambda function: graphs.append(function) or real(function)
    )
    untraced, state = step_of(Net(linear()))
    step = TracedStep(untraced, after=1, without=without)
    for n in (2, 3, 4, 5):
        for _ in range(2):
            grads, _ = step(StepInputs(*stack(state, n), 0), keys(n))
        assert all(map(torch.equal, grads, untraced(StepInputs(*stack(state, n), 0), keys(n))[0]))
    assert None not in step.traces.values()
    assert len(graphs) == traced


def test_names_survive():
    untraced, state = step_of(WithMetrics(linear()))
    traced = TracedStep(untraced, after=1)
    inputs = stack(state, 2)
    (_, one), (_, two) = [step(StepInputs(*inputs, 0), keys(2)) for step in (untraced, traced)]
    (_, three) = traced(StepInputs(*inputs, 0), keys(2))
    for log in (two, three):
        assert list(log.values) == list(one.values)
        assert {"loss", "size"} <= log.values.keys()
        assert log.metrics == one.metrics
        assert [name for name, _, _ in log.inputs] == ["acc", "mean"]
        assert log.inputs[1][2].keys() == {"weight"}


def test_a_shape_is_traced_when_it_has_come_up_often_enough():
    untraced, state = step_of(Net(linear()))
    step = TracedStep(untraced, after=16)
    due = {2: 16, 4: 4, 3: 2, 5: 2}  # a quarter once one was traced, an eighth once two were
    for traces, (n, times) in enumerate(due.items()):
        for seen in range(1, times + 1):
            step(StepInputs(*stack(state, n), 0), keys(n))
            assert len(step.traces) == traces + (seen == times)


@pytest.mark.parametrize(("n", "spare", "traces"), [(1, -1, 0), (1, 0, 1), (2, -1, 1)])
def test_one_client_with_a_large_model_stays_untraced(n, spare, traces, monkeypatch):
    untraced, state = step_of(Net(linear()))
    size = sum(param.nbytes for param in state.params)
    monkeypatch.setattr(traced_step, "_LARGE", size + spare)
    step = TracedStep(untraced, after=1)
    step(StepInputs(*stack(state, n), 0), keys(n))
    assert len(step.traces) == traces


def test_no_more_traces_are_made_than_asked_for():
    untraced, state = step_of(Net(linear()))
    step = TracedStep(untraced, after=1, most=2)
    for n in (2, 3, 4):
        step(StepInputs(*stack(state, n), 0), keys(n))
    assert len(step.traces) == 2


def test_the_number_of_traces_is_bounded():
    untraced, state = step_of(Net(linear()))
    traced = TracedStep(untraced, after=1, most=2)
    for n in (1, 2, 3, 4):
        grads, _ = traced(StepInputs(*stack(state, n), 0), keys(n))
        expected, _ = untraced(StepInputs(*stack(state, n), 0), keys(n))
        assert all(map(torch.equal, grads, expected))
    assert len(traced.traces) == 2


class DrawsFromPython(Net):
    def training_step(self, batch, batch_idx):
        return random.random() * self.loss(batch)


class DrawsFromNumpy(Net):
    def training_step(self, batch, batch_idx):
        return np.random.rand() * self.loss(batch)  # noqa: NPY002


class CountsItsCalls(Net):
    calls = 0

    def training_step(self, batch, batch_idx):
        self.calls += 1
        return self.loss(batch) / self.calls


@pytest.mark.parametrize("kind", [DrawsFromPython, DrawsFromNumpy, CountsItsCalls])
def test_a_step_with_other_effects_runs_untraced(kind):
    def gradients(after):
        torch.manual_seed(0)
        untraced, state = step_of(kind(linear()))
        traced = TracedStep(untraced, after=after)
        with isolated_rng():
            seed_all(3)
            found = [traced(StepInputs(*stack(state, 2), 0), keys(2))[0][0] for _ in range(4)]
        return found, traced.traces

    one, _ = gradients(after=100)
    two, traces = gradients(after=1)
    assert list(traces.values()) == [None]
    assert all(map(torch.equal, one, two))
    assert not torch.equal(one[0], one[1])


def test_what_make_fx_refuses_runs_untraced(monkeypatch):
    def refuses(function):
        raise NotImplementedError("no")

    monkeypatch.setattr("fedlight.executors._tracing.traced_step.make_fx", refuses)
    untraced, state = step_of(Net(linear()))
    traced = TracedStep(untraced, after=1)
    for _ in range(2):
        grads, _ = traced(StepInputs(*stack(state, 2), 0), keys(2))
    assert list(traced.traces.values()) == [None]
    assert all(map(torch.equal, grads, untraced(StepInputs(*stack(state, 2), 0), keys(2))[0]))


def test_a_replay_that_is_off_by_a_bit_is_not_used(monkeypatch):
    real, calls = traced_step.compiled, []

    def off(*given):
        replay = real(*given)

        def nearly(*tensors):
            calls.append(1)
            grad, *others = replay(*tensors)
            return [torch.nextafter(grad, grad + 1), *others]

        return nearly

    monkeypatch.setattr(traced_step, "compiled", off)
    untraced, state = step_of(Net(linear()))
    traced = TracedStep(untraced, after=1)
    traced(StepInputs(*stack(state, 2), 0), keys(2))
    assert list(traced.traces.values()) == [None]
    assert calls  # it has run, and was compared


class Scheduled(Net):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 if batch_idx < 2 else 0.5)


class Ignores(Net):
    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self.net(batch[0]), batch[1])


class WithoutIndex(Net):
    def training_step(self, batch):
        return functional.cross_entropy(self.net(batch[0]), batch[1])


def test_a_step_that_reads_its_number_is_traced_for_each():
    untraced, state = step_of(Scheduled(linear()))
    traced = TracedStep(untraced, after=1)
    for _ in range(2):
        for k in range(4):
            grads, _ = traced(StepInputs(*stack(state, 2), k), keys(2))
            assert all(
                map(torch.equal, grads, untraced(StepInputs(*stack(state, 2), k), keys(2))[0])
            )
    assert len(traced.traces) == 4


def test_who_reads_the_number_of_the_step():
    assert reads_index(Scheduled(linear()))
    assert not reads_index(Ignores(linear()))
    assert not reads_index(WithoutIndex(linear()))


class Named(Net):
    """Takes a dict, a tuple or a list."""

    def training_step(self, batch, batch_idx):
        if isinstance(batch, dict):
            batch = (batch["x"], *batch["rest"])
        return self.loss(batch)


def test_a_batch_may_be_a_dict_and_has_a_trace_of_its_own():
    untraced, state = step_of(Named(linear()))
    step = TracedStep(untraced, after=1)
    for n in (2, 3, 4):
        params, buffers, counters, (x, y) = stack(state, n)
        for batch in ({"x": x, "rest": [y]}, (x, y), [x, y]):
            for _ in range(2):
                grads, log = step(StepInputs(params, buffers, counters, batch, 0), keys(n))
            expected, _ = untraced(StepInputs(params, buffers, counters, (x, y), 0), keys(n))
            assert all(map(torch.equal, grads, expected))
            assert log.values["loss"].shape == (n,)
    assert [type(trace).__name__ for trace in step.traces.values()] == ["Trace"] * 9
