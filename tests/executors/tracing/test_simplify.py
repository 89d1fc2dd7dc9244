"""A simplified graph gives the same bits with fewer operators."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

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


def scores_along_the_batch(scores, target):  # as NarrowLayers has it
    return functional.nll_loss(functional.log_softmax(scores, 0).t(), target)


def scores_along_the_classes(scores, target):
    return functional.cross_entropy(scores, target)


def gradients(loss):
    def run(scores, target):
        with torch.enable_grad():
            return vmap(grad(loss))(scores, target)

    return run


def labels(n, b, classes, seed=0):
    torch.manual_seed(seed)
    target = torch.randint(classes, (n, b))
    target[torch.rand(n, b) < 0.2] = -100  # ignored
    return torch.randn(n, classes, b), target


@settings(max_examples=10, deadline=None)
@given(n=st.integers(1, 4), b=st.integers(2, 9), classes=st.integers(1, 6), seed=st.integers(0, 99))
def test_nll_loss_is_put_together_again(n, b, classes, seed):
    run = gradients(scores_along_the_batch)
    scores, target = labels(n, b, classes, seed)
    module = simplified(run, scores, target)
    found = operators(module)
    assert aten.nll_loss2d_backward.default in found
    assert aten.scatter.value not in found
    torch.testing.assert_close(
        module(scores, target), run(scores, target), rtol=0, atol=0, equal_nan=True
    )
    other, others = labels(n, b, classes, seed + 1)  # what it was not made from
    torch.testing.assert_close(
        module(other, others), run(other, others), rtol=0, atol=0, equal_nan=True
    )


def test_the_loss_is_put_together_as_well():
    def run(scores, target):
        return vmap(scores_along_the_batch)(scores, target)

    scores, target = labels(3, 8, 5)
    module = simplified(run, scores, target)
    found = operators(module)
    assert aten.nll_loss2d_forward.default in found
    assert aten.gather.default not in found
    assert torch.equal(module(scores, target), run(scores, target))


def test_a_label_that_is_no_class_is_an_error_still():
    scores, target = labels(2, 8, 5)
    module = simplified(gradients(scores_along_the_batch), scores, target)
    target[1, 3] = 5
    with pytest.raises(IndexError, match="out of bounds"):
        module(scores, target)


@settings(max_examples=10, deadline=None)
@given(n=st.integers(1, 4), b=st.integers(1, 9), classes=st.integers(1, 6), seed=st.integers(0, 99))
def test_scores_that_lie_the_usual_way(n, b, classes, seed):
    run = gradients(scores_along_the_classes)
    scores, target = labels(n, b, classes, seed)
    scores = scores.transpose(1, 2).contiguous()
    module = simplified(run, scores, target)
    found = operators(module)
    assert aten.nll_loss_backward.default in found
    assert aten.scatter.value not in found
    torch.testing.assert_close(
        module(scores, target), run(scores, target), rtol=0, atol=0, equal_nan=True
    )

    def losses(scores, target):
        return vmap(scores_along_the_classes)(scores, target)

    module = simplified(losses, scores, target)
    assert aten.nll_loss_forward.default in operators(module)
    torch.testing.assert_close(
        module(scores, target), losses(scores, target), rtol=0, atol=0, equal_nan=True
    )


def test_a_softmax_over_another_dimension_keeps_its_operators():
    def loss(scores, target):
        return functional.nll_loss(functional.log_softmax(scores, 0), target)

    scores, target = labels(3, 5, 5)
    module = simplified(gradients(loss), scores, target)
    assert aten.nll_loss_backward.default not in operators(module)
    assert torch.equal(module(scores, target), gradients(loss)(scores, target))


def test_a_bias_is_not_multiplied_by_one():
    def run(x, weight, bias):
        return vmap(functional.linear)(x, weight, bias)

    given = torch.randn(3, 8, 4), torch.randn(3, 5, 4), torch.randn(3, 5)
    module = simplified(run, *given)
    assert aten.mul.Scalar not in operators(module)
    assert torch.equal(module(*given), run(*given))

    def alone(x):
        return aten.mul.Scalar(x, 1)

    module = simplified(alone, given[0])
    assert module(given[0]).data_ptr() != given[0].data_ptr()


@pytest.mark.parametrize(
    "loss",
    [
        lambda scores, target: functional.nll_loss(scores.t(), target),
        lambda scores, target: functional.nll_loss(scores.t().exp().contiguous(), target),
        lambda scores, target: functional.nll_loss(
            (2 * scores.t()).t().contiguous().t(), target, reduction="sum"
        ),
    ],
    ids=["plain", "other layout", "copied"],
)
def test_losses_of_what_is_no_softmax_keep_their_operators(loss):
    run = gradients(loss)
    scores, target = labels(3, 8, 5)
    module = simplified(run, scores, target)
    assert aten.nll_loss2d_backward.default not in operators(module)
    assert torch.equal(module(scores, target), run(scores, target))
    scores[0, 0, 0], scores[1, 1, 1] = torch.nan, torch.inf
    torch.testing.assert_close(
        module(scores, target), run(scores, target), rtol=0, atol=0, equal_nan=True
    )


def test_a_graph_that_writes_in_place_keeps_its_operators():
    loss = gradients(scores_along_the_batch)

    def run(scores, target):
        scores.add_(1)
        return loss(scores, target)

    scores, target = labels(2, 4, 3)
    module = simplified(run, scores.clone(), target)
    assert aten.nll_loss2d_backward.default not in operators(module)
    one, two = scores.clone(), scores.clone()
    torch.testing.assert_close(
        module(one, target), run(two, target), rtol=0, atol=0, equal_nan=True
    )
    assert torch.equal(one, two)


def test_a_draw_that_nothing_uses_is_kept():
    def run(x):
        torch.rand_like(x)
        return x + torch.rand_like(x)

    x = torch.ones(9)
    module = simplified(run, x)
    torch.manual_seed(0)
    one = module(x)
    torch.manual_seed(0)
    assert torch.equal(one, run(x))
