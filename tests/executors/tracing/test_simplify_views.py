"""Views and equal operators that a traced graph can do without."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from fedlight.executors._tracing.simplify import simplify

aten = torch.ops.aten


def simplified(function, *inputs):
    """The function as a simplified graph."""
    module = make_fx(function)(*inputs)
    simplify(module.graph)
    module.recompile()
    return module


def operators(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def test_a_copy_that_is_only_turned_and_turned_back_goes_before_a_softmax():
    def run(x):
        turned = (x * 2).transpose(1, 2).clone(memory_format=torch.contiguous_format)
        return turned.transpose(1, 2).log_softmax(1)

    x = torch.randn(2, 3, 4)
    module = simplified(run, x)
    assert operators(module) == [aten.mul.Tensor, aten._log_softmax.default]
    assert torch.equal(module(x), run(x))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9), st.integers(0, 999))
def test_a_copy_in_front_of_anything_else_stays(n, a, b, seed):
    def run(x):  # sums and vectorised functions depend on how their numbers lie
        turned = (x * 2).transpose(1, 2).clone(memory_format=torch.contiguous_format)
        z = turned.transpose(1, 2)
        return z.sum(), z.square().mean((1, 2)), z.sigmoid(), z @ z.transpose(1, 2)

    torch.manual_seed(seed)
    x = torch.randn(n, a, b)
    module = simplified(run, x)
    assert aten.clone.default in operators(module)
    assert all(map(torch.equal, module(x), run(x)))


def test_a_copy_in_another_order_stays():
    def run(x):  # square, so that the shapes alone tell nothing
        return x.transpose(1, 2).clone(memory_format=torch.contiguous_format) + 1

    x = torch.randn(2, 3, 3)
    module = simplified(run, x)
    assert torch.equal(module(x), run(x))


@pytest.mark.parametrize(
    "show",
    [
        lambda copy: copy,
        lambda copy: copy.view(-1),
        lambda copy: copy[1:],
        lambda copy: copy.unbind()[0],
        lambda copy: copy.split(1)[1],
        lambda copy: copy.diagonal(),
    ],
    ids=["itself", "flat", "slice", "unbind", "split", "diagonal"],
)
def test_what_is_given_out_is_no_part_of_what_comes_in(show):
    def run(x):
        return show(x.clone()), x.clone().sum()

    x = torch.randn(2, 2)
    module = simplified(run, x)
    out, total = module(x)
    before = out.clone()
    x.zero_()
    assert torch.equal(out, before)
    assert total != 0


def test_a_graph_that_writes_in_place_keeps_its_copies():
    def run(x):
        copy = x.clone()
        copy.add_(1)
        return copy * x

    x = torch.randn(3)
    module = simplified(run, x)
    before = x.clone()
    assert torch.equal(module(x), (before + 1) * before)
    assert torch.equal(x, before)


def test_equal_operators_run_once():
    x = torch.randn(3)
    module = simplified(lambda x: (x.exp() + 1) * (x.exp() + 2), x)
    assert operators(module).count(aten.exp.default) == 1


def test_equal_draws_stay_apart():
    module = simplified(lambda x: torch.rand_like(x) - torch.rand_like(x), torch.ones(9))
    assert module(torch.ones(9)).abs().max() > 0


MOVES = {
    "turn": lambda x: x.transpose(0, 1),
    "swap": lambda x: x.transpose(1, 2),
    "copy": lambda x: x.clone(memory_format=torch.contiguous_format),
    "longer": lambda x: x.unsqueeze(0).squeeze(0),
    "flat": lambda x: x.reshape(-1).reshape(x.shape),
    "more": lambda x: x + 1,
}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(sorted(MOVES)), max_size=8), st.integers(1, 3), st.integers(1, 3))
def test_any_chain_of_views_and_copies_gives_the_same(moves, a, b):
    def run(x):
        kept = []
        for move in moves:
            x = MOVES[move](x)
            kept.append(x * 2)
        return x, kept

    x = torch.randn(a, b, b)
    module = simplified(run, x)
    one, two = module(x), run(x)
    assert torch.equal(one[0], two[0])
    assert all(map(torch.equal, one[1], two[1]))
