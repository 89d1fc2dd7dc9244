"""Adaptive servers: a torch optimizer on the pseudo-gradient, against sequences made by hand."""

import numpy as np
import pytest
import torch

from fedlight.aggregators import FedAvg

DELTAS = [[0.5, -1.0], [0.25, 3.0], [-2.0, 0.0], [1.0, 1.0]]


class FedYogi(torch.optim.Optimizer):
    """m <- b1 m + (1 - b1) g; v <- v - (1 - b2) sign(v - g^2) g^2; x <- x - lr m / (sqrt(v) + tau).

    Adaptive Federated Optimization (Reddi et al., 2021), Algorithm 2.
    """

    def __init__(self, params, lr=0.1, betas=(0.9, 0.99), tau=1e-3):
        super().__init__(params, {"lr": lr, "betas": betas, "tau": tau})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for param in group["params"]:
                state, square = self.state[param], param.grad**2
                if not state:
                    state["mean"] = torch.zeros_like(param)
                    state["square"] = torch.full_like(param, group["tau"] ** 2)
                state["mean"].lerp_(param.grad, 1 - b1)
                sign = torch.sign(state["square"] - square)
                state["square"].sub_((1 - b2) * sign * square)
                param.sub_(group["lr"] * state["mean"] / (state["square"].sqrt() + group["tau"]))


def models(server_optimizer, make_update, make_state, make_federation):
    aggregator, state = FedAvg(1, server_optimizer=server_optimizer), make_state([1.0, 2.0])
    aggregator.setup(make_federation(), state)
    seen = []
    for delta in DELTAS:
        aggregator.receive(make_update(0, delta))
        state = aggregator.step(state)
        seen.append(state.params.numpy())
    return np.stack(seen)


def test_fedavgm(make_update, make_state, make_federation):
    def server(params):
        return torch.optim.SGD(params, lr=0.5, momentum=0.9)

    x, v, expected = np.array([1.0, 2.0]), 0.0, []
    for delta in np.array(DELTAS):
        v = 0.9 * v + delta
        x = x + 0.5 * v
        expected.append(x)
    actual = models(server, make_update, make_state, make_federation)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_fedadam(make_update, make_state, make_federation):
    def server(params):
        return torch.optim.Adam(params, lr=0.1, betas=(0.9, 0.99), eps=1e-3)

    x, m, v, expected = np.array([1.0, 2.0]), 0.0, 0.0, []
    for t, delta in enumerate(np.array(DELTAS), start=1):
        m = 0.9 * m + 0.1 * delta
        v = 0.99 * v + 0.01 * delta**2
        x = x + 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.99**t)) + 1e-3)
        expected.append(x)
    actual = models(server, make_update, make_state, make_federation)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_fedyogi(make_update, make_state, make_federation):
    x, m, v, expected = np.array([1.0, 2.0]), 0.0, np.full(2, 1e-6), []
    for delta in np.array(DELTAS):
        m = 0.9 * m + 0.1 * delta
        v = v - 0.01 * np.sign(v - delta**2) * delta**2
        x = x + 0.1 * m / (np.sqrt(v) + 1e-3)
        expected.append(x)
    actual = models(FedYogi, make_update, make_state, make_federation)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_plain_sgd_of_rate_eta_is_server_lr(make_update, make_state, make_federation):
    actual = models(
        lambda params: torch.optim.SGD(params, lr=0.25), make_update, make_state, make_federation
    )
    expected = np.array([1.0, 2.0]) + 0.25 * np.cumsum(DELTAS, axis=0)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_what_gives_no_optimizer_is_refused(make_state, make_federation):
    aggregator = FedAvg(server_optimizer=lambda params: params)
    with pytest.raises(TypeError, match=r"or a list of them, got Parameter"):
        aggregator.setup(make_federation(), make_state())
    aggregator = FedAvg(server_optimizer=torch.optim.LBFGS)
    with pytest.raises(ValueError, match=r"server_optimizer returns LBFGS"):
        aggregator.setup(make_federation(), make_state())
