"""Programs for other numbers of clients are made from two that were traced."""

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from fedlight.executors._stack.step import StepInputs
from fedlight.executors._tracing import TracedStep, traced_step
from fedlight.executors._tracing.program import compiled, program, resized
from tests.executors.tracing.test_traced_step import (
    Net,
    keys,
    linear,
    norm_and_dropout,
    stack,
    step_of,
)

SIZES = (2, 3, 4, 7, 10)


def programs(function, make, sizes):
    return [program(make_fx(function)(*make(n))) for n in sizes]


def flat(x, w):
    """Numbers that are multiples of n, numbers that are not, and one that only looks like n."""
    rows = x.reshape(len(x) * 5, 3) @ w
    return [rows.view(len(x), 5, 4).transpose(0, 1).contiguous().view(5, -1) * 3.0]


def inputs(n):
    torch.manual_seed(n)
    return torch.randn(n, 5, 3), torch.randn(3, 4)


@pytest.mark.parametrize("pair", [(3, 5), (5, 3), (2, 4), (10, 9)])
def test_numbers_grow_with_the_size(pair):
    one, two = programs(flat, inputs, pair)
    for n in SIZES:
        likely = resized(one, pair[0], two, pair[1], n)
        assert likely is not None
        assert torch.equal(compiled(likely, inputs(n))(*inputs(n))[0], flat(*inputs(n))[0])


def square(x, w):
    return [x.reshape(-1).expand(len(x), -1).reshape(len(x) * len(x), -1) + len(x)]


def shared_out(x, w):
    return [x * (1 / len(x))]


def half(x, w):
    return [x[: len(x) // 2] + 1]


def other_operators(x, w):
    return [x.exp() if len(x) > 3 else x.sin()]


def numbered(x, w):
    return [x + torch.arange(len(x)).view(-1, 1, 1)]


def other_constants(x, w):
    return [x + torch.tensor(float(len(x)))]


def right(function, likely):
    """Whether a program gives what the function does, as it is checked before it is used."""
    try:
        return torch.equal(compiled(likely, inputs(7))(*inputs(7))[0], function(*inputs(7))[0])
    except RuntimeError:
        return False


def test_constants_grow_as_well():
    one, two = programs(numbered, inputs, (3, 5))
    assert right(numbered, resized(one, 3, two, 5, 7))


def test_what_does_not_grow_evenly_comes_out_wrong_at_worst():
    one, two = programs(square, inputs, (3, 5))
    likely = resized(one, 3, two, 5, 7)
    assert likely is None or not right(square, likely)


@pytest.mark.parametrize("function", [half, other_operators, other_constants, shared_out])
def test_programs_that_differ_in_more_than_numbers_that_grow_are_no_pattern(function):
    one, two = programs(function, inputs, (3, 5))
    assert resized(one, 3, two, 5, 7) is None


class Sequence(Net):
    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self.net(x.unsqueeze(2).expand(-1, -1, 3).transpose(1, 2))
        return functional.cross_entropy(scores.flatten(0, 1), y.repeat_interleave(3))


@pytest.mark.parametrize(
    ("kind", "net"),
    [(Net, linear), (Net, norm_and_dropout), (Sequence, linear)],
    ids=["linear", "norm and dropout", "sequence"],
)
def test_a_step_is_traced_twice_and_made_for_other_sizes(kind, net, monkeypatch):
    traced = []
    real = traced_step.make_fx
    monkeypatch.setattr(
        traced_step, "make_fx", lambda function: traced.append(function) or real(function)
    )
    torch.manual_seed(0)
    untraced, state = step_of(kind(net()))
    step = TracedStep(untraced, after=1)
    for n in SIZES:
        torch.manual_seed(n)
        given = stack(state, n)
        for _ in range(3):
            grads, log = step(StepInputs(*given, 0), keys(n))
        assert None not in step.traces.values()
        again = stack(state, n)
        again = ([p.clone() for p in given[0]], *again[1:3], given[3])
        expected, other = untraced(StepInputs(*again, 0), keys(n))
        assert all(map(torch.equal, grads, expected))
        assert all(torch.equal(log.values[name], other.values[name]) for name in other.values)
    assert len(step.traces) == len(SIZES)
    assert len(traced) == 2


def test_a_pattern_that_does_not_fit_is_traced_after_all(monkeypatch):
    real = traced_step.resized

    def off(*arguments):
        made = real(*arguments)
        return made._replace(source=made.source.replace("return", "raise"), words=None)

    monkeypatch.setattr(traced_step, "resized", off)
    untraced, state = step_of(Net(linear()))
    step = TracedStep(untraced, after=1)
    for n in (2, 3, 4):
        for _ in range(2):
            grads, _ = step(StepInputs(*stack(state, n), 0), keys(n))
        assert all(map(torch.equal, grads, untraced(StepInputs(*stack(state, n), 0), keys(n))[0]))
    assert None not in step.traces.values()
    (known,) = step._traced.values()
    assert sorted(known) == [2, 3, 4]


def test_one_client_alone_is_no_pattern_for_more():
    untraced, state = step_of(Net(nn.Linear(4, 3)))
    step = TracedStep(untraced, after=1)
    for n in (1, 2, 3, 4):
        for _ in range(2):
            grads, _ = step(StepInputs(*stack(state, n), 0), keys(n))
        assert all(map(torch.equal, grads, untraced(StepInputs(*stack(state, n), 0), keys(n))[0]))
    (known,) = [each for each in step._traced.values() if each]
    assert sorted(known) == [2, 3]


def test_where_a_trace_would_not_do_the_next_one_is_not_tried_at_once(monkeypatch):
    tried = []

    def refuses(function):
        tried.append(function)
        raise NotImplementedError("no")

    monkeypatch.setattr(traced_step, "make_fx", refuses)
    untraced, state = step_of(Net(linear()))
    step = TracedStep(untraced, after=8)
    for n in (2, 3, 4, 5):
        for _ in range(7):
            step(StepInputs(*stack(state, n), 0), keys(n))
    assert len(tried) == 1
