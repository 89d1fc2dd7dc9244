"""Local rules give what the optimizers of torch give, client by client."""

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from fedlight.local_optimizers import SAM, FedDyn, FedProx, LocalAdam, LocalSGD

SGD = [
    {},
    {"momentum": 0.9},
    {"weight_decay": 0.3},
    {"momentum": 0.9, "weight_decay": 0.3},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.3},
]
ADAM = [{}, {"betas": (0.5, 0.8), "eps": 1e-3}, {"weight_decay": 0.3}, {"betas": (0.0, 0.0)}]


def same(run, expected):
    for actual, wanted in zip(run.params, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12)


LIMITS = pytest.mark.parametrize("limit", [None, 0.7, 4.0])  # always or now and then too large


def clip(limit):
    return None if limit is None else lambda params, client: clip_grad_norm_(params, limit)


@LIMITS
@pytest.mark.parametrize("options", SGD, ids=str)
def test_sgd(toy, rate, options, limit):
    run = toy.run(LocalSGD(0.1, **options, max_grad_norm=limit), rate)
    same(
        run,
        toy.expected(
            lambda params, lr: torch.optim.SGD(params, lr, **options),
            rate,
            clip(limit),
        ),
    )


@LIMITS
@pytest.mark.parametrize("options", ADAM, ids=str)
def test_adam(toy, rate, options, limit):
    run = toy.run(LocalAdam(0.1, **options, max_grad_norm=limit), rate)
    same(
        run,
        toy.expected(
            lambda params, lr: torch.optim.Adam(params, lr, **options),
            rate,
            clip(limit),
        ),
    )


@LIMITS
@pytest.mark.parametrize("options", SGD, ids=str)
def test_fedprox_is_sgd_on_the_loss_with_the_proximal_term(toy, rate, options, limit):
    mu = 0.6

    def before_step(params, client):
        for param, start in zip(params, toy.start, strict=True):
            param.grad += mu * (param.detach() - start[client])
        if limit is not None:
            clip_grad_norm_(params, limit)

    optimizer = FedProx(0.1, mu, **options, max_grad_norm=limit)
    same(
        toy.run(optimizer, rate),
        toy.expected(lambda params, lr: torch.optim.SGD(params, lr, **options), rate, before_step),
    )


@LIMITS
@pytest.mark.parametrize("options", SGD, ids=str)
def test_feddyn_is_sgd_on_the_regularised_loss(toy, rate, options, limit):
    alpha = 0.6

    def before_step(params, client):
        for param, start, own in zip(params, toy.start, toy.own, strict=True):
            param.grad += alpha * (param.detach() - start[client]) - own[client]
        if limit is not None:
            clip_grad_norm_(params, limit)

    optimizer = FedDyn(0.1, alpha, **options, max_grad_norm=limit)
    run = toy.run(optimizer, rate)
    same(
        run,
        toy.expected(lambda params, lr: torch.optim.SGD(params, lr, **options), rate, before_step),
    )
    states = zip(optimizer.finish(run), toy.own, run.params, toy.start, strict=True)
    for state, own, after, start in states:
        torch.testing.assert_close(state, own - alpha * (after - start), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", SGD, ids=str)
def test_fedprox_without_mu_is_sgd(toy, rate, options):
    same(
        toy.run(FedProx(0.1, 0.0, **options), rate), toy.run(LocalSGD(0.1, **options), rate).params
    )


OTHERS = [
    FedProx(0.1, 0.5),
    FedProx(0.1, 0.5, momentum=0.9),
    FedDyn(0.1, 0.5),
    LocalAdam(0.1),
    *(LocalSGD(0.1, **options) for options in SGD[1:]),
    LocalSGD(0.1, max_grad_norm=0.7),
    LocalAdam(0.1, weight_decay=0.3),
    LocalAdam(0.1, max_grad_norm=0.1, eps=1.0),
]


def test_every_option_makes_a_difference(toy):
    seen = [toy.run(LocalSGD(0.1), 0.1).params[0][0]]
    for optimizer in OTHERS:
        seen.append(toy.run(optimizer, 0.1).params[0][0])
    for number, one in enumerate(seen):
        for other in seen[:number]:
            assert not torch.allclose(one, other, atol=1e-6)


def test_proximal_pull_makes_a_difference_from_the_second_step_on(toy):
    sgd, prox = toy.run(LocalSGD(0.1), 0.1), toy.run(FedProx(0.1, 0.5), 0.1)
    assert torch.equal(sgd.params[0][3], prox.params[0][3])  # one step, made at the centre
    for client in (0, 1, 2):
        drift = [(run.params[0][client] - toy.start[0][client]).norm() for run in (sgd, prox)]
        assert drift[1] < drift[0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: LocalSGD(0), ValueError, "lr must be larger than 0, got 0"),
        (lambda: LocalSGD("0.1"), TypeError, "lr must be a number or a function of the version"),
        (lambda: LocalSGD(0.1, momentum=1), ValueError, "momentum must be smaller than 1"),
        (lambda: LocalSGD(0.1, momentum=-1), ValueError, "momentum must lie between 0 and 1"),
        (lambda: LocalSGD(0.1, weight_decay=-1), ValueError, "weight_decay must be 0 or larger"),
        (lambda: LocalSGD(0.1, nesterov=True), ValueError, "nesterov=True needs a momentum"),
        (lambda: LocalSGD(0.1, max_grad_norm=0), ValueError, "max_grad_norm must be larger"),
        (lambda: FedProx(0.1, -0.1), ValueError, "mu must be 0 or larger, got -0.1"),
        (lambda: FedProx(0.1, "a bit"), TypeError, "mu must be a number, got 'a bit'"),
        (lambda: FedProx(-0.1, 0.1), ValueError, "lr must be larger than 0, got -0.1"),
        (lambda: FedProx(0.1, 0.1, nesterov=True), ValueError, "nesterov=True needs a momentum"),
        (lambda: FedDyn(0.1, 0), ValueError, "alpha must be larger than 0, got 0"),
        (lambda: FedDyn(0, 0.1), ValueError, "lr must be larger than 0, got 0"),
        (lambda: SAM(0.1, -0.1), ValueError, "rho must be 0 or larger, got -0.1"),
        (lambda: SAM(0.1, "big"), TypeError, "rho must be a number, got 'big'"),
        (lambda: LocalAdam(0.1, betas=0.9), TypeError, "betas must be two numbers"),
        (lambda: LocalAdam(0.1, betas=(0.9, 1)), ValueError, "betas must be smaller than 1"),
        (lambda: LocalAdam(0.1, betas=(-0.9, 0.9)), ValueError, r"betas\[0\] must lie between"),
        (lambda: LocalAdam(0.1, eps=0), ValueError, "eps must be larger than 0, got 0"),
        (lambda: LocalAdam(0.1, weight_decay=-1), ValueError, "weight_decay must be 0 or larger"),
        (lambda: LocalAdam(0.1, max_grad_norm=-1), ValueError, "max_grad_norm must be larger"),
    ],
    ids=range(21),
)
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
