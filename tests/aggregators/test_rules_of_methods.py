"""The rules that papers compare with, on numbers worked by hand; exact runs are in scenarios."""

import math

import pytest
import torch

from fedlight.aggregators import (
    AREA,
    CA2FL,
    DCASGD,
    FADAS,
    MIFA,
    FedBuff,
    FedDynServer,
    FedNova,
    FedVARP,
    GeneralizedAsyncSGD,
    Malenia,
    Rennala,
    Ringmaster,
)
from fedlight.aggregators.staleness import DelayAdaptive


def weights(after):
    return [used.weight for used in after.used]


@pytest.mark.parametrize("device", ["model", "cpu"])
def test_mifa_remembers_whole_deltas(run, make_update, device):
    aggregator = MIFA(2, server_lr=0.5, memory_device=device)
    first = run(aggregator, [make_update(0, [6.0], steps=3), make_update(2, [4.0])])
    assert weights(first) == [0.25, 0.25]
    assert first.params.tolist() == [0.5 * (6 + 4) / 4]
    second = run(
        aggregator, [make_update(2, [8.0]), make_update(2, [3.0])], state=first, setup=False
    )
    assert weights(second) == [0.0, 0.25]
    assert second.params.tolist() == [1.25 + 0.5 * (6 + 3) / 4]


@pytest.mark.parametrize(
    ("make", "beta"), [(CA2FL, 1.0), (FedVARP, 1.0), (lambda size: FedVARP(size, 0.5), 0.5)]
)
def test_memory_corrects_the_mean(run, make_update, make, beta):
    aggregator = make(2)
    first = run(aggregator, [make_update(0, [8.0]), make_update(1, [4.0])])
    assert weights(first) == [0.5, 0.5]
    assert first.params.tolist() == [6.0]
    second = run(
        aggregator, [make_update(1, [10.0]), make_update(3, [2.0])], state=first, setup=False
    )
    assert second.params.tolist() == [6 + beta * 12 / 4 + ((10 - beta * 4) + 2) / 2]
    third = run(
        aggregator, [make_update(0, [0.0]), make_update(0, [0.0])], state=second, setup=False
    )
    assert third.params.tolist() == [second.params.item() + beta * (8 + 10 + 2) / 4 - beta * 8]


def fadas_by_hand(means, lr, b1, b2, eps):
    x = u = w = top = 0.0
    for mean, rate in zip(means, lr, strict=True):
        u, w = b1 * u + (1 - b1) * mean, b2 * w + (1 - b2) * mean**2
        top = max(top, w)
        x += rate * u / (math.sqrt(top) + eps)
    return x


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({}, [0.7, 0.7, 1 / 3]),
        ({"delay": "divided"}, [0.7, 0.7, 0.7 / 3]),
        ({"delay": "none"}, [0.7, 0.7, 0.7]),
        ({"tau_c": 3}, [0.7, 0.7, 0.7]),
        ({"server_lr": 0.2}, [0.2, 0.2, 0.2]),  # 1/3 is larger
        ({"server_lr": 0.2, "delay": "divided", "tau_c": 2}, [0.2, 0.2, 0.2 / 3]),
        ({"server_lr": lambda version: 0.7 if version == 9 else 2.0}, [2.0, 2.0, 1 / 3]),
        ({"betas": (0.5, 0.6), "eps": 0.1}, [0.7, 0.7, 1 / 3]),
    ],
    ids=range(8),
)
def test_fadas_and_its_delays(run, make_update, make_state, options, rates):
    given = {"server_lr": 0.7, **options}
    aggregator, state = FADAS(2, **given), make_state([0.0], version=5)
    for number, (one, other, delay) in enumerate([(3, 5, 0), (-1, -3, 1), (0.5, 1.5, 3)]):
        updates = [
            make_update(0, [float(one)], pulled=state.version - delay),
            make_update(1, [float(other)], pulled=state.version),
        ]
        state = run(aggregator, updates, state=state, setup=number == 0)
        assert weights(state) == [0.5, 0.5]
    (b1, b2), eps = given.get("betas", (0.9, 0.99)), given.get("eps", 1e-8)
    wanted = fadas_by_hand([4.0, -2.0, 1.0], rates, b1, b2, eps)
    assert state.params.item() == pytest.approx(wanted, rel=1e-12)


def test_fadas_without_memory_is_the_sign(run, make_update):
    aggregator = FADAS(1, server_lr=0.5, betas=(0, 0), eps=1e-300)
    after = run(aggregator, [make_update(0, [-3.0])])
    assert after.params.tolist() == [-0.5]


def test_fadas_corrected_is_amsgrad_of_torch(run, make_update, make_state):
    deltas = [[1.0, -2.0], [0.5, 3.0], [-4.0, 0.1], [0.0, 0.0]]
    aggregator, state = FADAS(1, 0.05, bias_correction=True), make_state([0.3, -0.7])
    parameter = torch.nn.Parameter(state.params.clone())
    adam = torch.optim.Adam([parameter], lr=0.05, betas=(0.9, 0.99), eps=1e-8, amsgrad=True)
    for number, delta in enumerate(deltas):
        update = make_update(0, delta, pulled=state.version)
        state = run(aggregator, [update], state=state, setup=number == 0)
        parameter.grad = -torch.tensor(delta, dtype=torch.float64)
        adam.step()
        torch.testing.assert_close(state.params, parameter.detach(), rtol=1e-12, atol=1e-14)


def test_delay_adaptive_rate(run, make_update, make_state):
    for delay, factor in [(0, 1.0), (1, 1.0), (2, 1.0), (3, 2 / 3), (8, 0.25)]:
        update = make_update(0, [4.0], pulled=8 - delay)
        after = run(FedBuff(1, DelayAdaptive(2)), [update], state=make_state(version=8))
        assert weights(after) == [factor]
        assert after.params.tolist() == [4 * factor]
    assert DelayAdaptive(0.5)(0) == 0.5
    assert repr(DelayAdaptive(2)) == "DelayAdaptive(c=2.0)"


def test_dc_asgd_acts_on_delta_or_on_the_gradient(run, make_update, make_state):
    start, now = make_state([1.0], version=2), make_state([4.0], version=5)
    update = make_update(0, [-2.0], pulled=2, start=start, steps=5)
    after = run(DCASGD(0.1, server_lr=0.5), [update], state=now)
    assert weights(after) == [1.0]
    assert after.params.tolist() == [pytest.approx(4 + 0.5 * (-2 - 0.1 * 4 * 3))]
    # lr * K = 0.1 * 5 and g = 4: x - eta * lr * K * (g + lam * g^2 * (x - x_p))
    for lr in (0.1, lambda version: 0.1 if version == 2 else 7.0):
        after = run(DCASGD(0.1, server_lr=0.5, local_lr=lr), [update], state=now)
        assert after.params.tolist() == [pytest.approx(4 - 0.5 * 0.5 * (4 + 0.1 * 16 * 3))]


def test_dc_asgd_adapts_lam(run, make_update, make_state):
    aggregator, state = DCASGD(2.0, local_lr=0.5, decay=0.75, eps=0.5), make_state([4.0], version=3)
    start, square, x = make_state([1.0]), 0.0, 4.0
    for number, gradient in enumerate([3.0, -1.0]):
        update = make_update(0, [-0.5 * gradient], start=start)
        state = run(aggregator, [update], state=state, setup=number == 0)
        square = 0.75 * square + 0.25 * gradient**2
        lam = 2.0 / math.sqrt(square + 0.5)
        x -= 0.5 * (gradient + lam * gradient**2 * (x - 1.0))
        assert state.params.tolist() == [pytest.approx(x, rel=1e-12)]


def test_dc_asgd_refuses_a_rate_of_0(run, make_update, make_state):
    update = make_update(0, [1.0], start=make_state())
    with pytest.raises(ValueError, match=r"local_lr\(version=0\) must be larger than 0, got 0"):
        run(DCASGD(0.1, local_lr=lambda version: 0.0), [update])


@pytest.mark.parametrize("make", [lambda: AREA(1), lambda: DCASGD(0.1)], ids=["AREA", "DCASGD"])
def test_what_needs_the_pulled_version_says_so(run, make_update, make):
    with pytest.raises(ValueError, match="needs the version that the client pulled"):
        run(make(), [make_update(0, [1.0])])


@pytest.mark.parametrize("device", ["model", "cpu"])
def test_area_keeps_the_mean_of_what_clients_sent(run, make_update, make_state, device):
    first = make_state([1.0])
    aggregator, sent = AREA(2, memory_device=device), [1.0] * 4
    updates = [make_update(0, [4.0], start=first), make_update(1, [8.0], start=first)]
    state = run(aggregator, updates, state=first)
    sent[:2] = 5.0, 9.0
    assert state.params.tolist() == [sum(sent) / 4]
    # Client 1 comes twice: from version 1, then stale from version 0.
    updates = [
        make_update(1, [2.0], pulled=1, start=state),
        make_update(1, [-1.0], pulled=0, start=first),
    ]
    state = run(aggregator, updates, state=state, setup=False)
    assert weights(state) == [0.25, 0.25]
    sent[1] = 1.0 - 1.0
    assert state.params.tolist() == [sum(sent) / 4]


def test_ringmaster_and_rennala_accept_what_is_new_enough(make_update):
    update = make_update(0, [1.0], pulled=3)
    assert Ringmaster(2).accepts(update, 5)
    assert not Ringmaster(2).accepts(update, 6)
    assert Ringmaster(None).accepts(update, 10**6)
    for aggregator in (Rennala(2), Malenia(), Ringmaster(0)):
        assert aggregator.accepts(update, 3)
        assert not aggregator.accepts(update, 4)


def test_rennala_is_a_mean_and_one_client_may_fill_it(run, make_update):
    updates = [make_update(1, [2.0]), make_update(1, [4.0]), make_update(0, [3.0])]
    after = run(Rennala(3, server_lr=2.0), updates)
    assert weights(after) == [1 / 3] * 3
    assert after.params.item() == pytest.approx(2 * 3.0)


def test_malenia_waits_for_every_client_and_weighs_them_equally(
    run, make_update, make_state, make_federation
):
    aggregator = Malenia()
    aggregator.setup(make_federation([1, 1, 1]), make_state())
    updates = [make_update(client, [float(d)]) for client, d in [(0, 2), (0, 4), (1, 9), (0, 6)]]
    assert not any(aggregator.receive(update) for update in updates)
    assert aggregator.receive(make_update(2, [1.0]))
    after = aggregator.step(make_state())
    assert weights(after) == [pytest.approx(w) for w in (1 / 9, 1 / 9, 1 / 3, 1 / 9, 1 / 3)]
    assert after.params.item() == pytest.approx(((2 + 4 + 6) / 3 + 9 + 1) / 3)
    # The next batch starts from nothing.
    assert [aggregator.receive(make_update(c, [1.0])) for c in (1, 0, 2)] == [False, False, True]


def test_malenia_with_a_larger_batch(make_update, make_state, make_federation):
    """Two clients: the harmonic mean of (B_0, B_1) has to reach S / M = 1.5."""
    aggregator = Malenia(batch_size=3)
    aggregator.setup(make_federation([1, 1]), make_state())
    due = [aggregator.receive(make_update(c, [1.0])) for c in (0, 1, 0, 0, 1)]
    # (1, 1): 1; (2, 1): 4/3; (3, 1): 3/2
    assert due == [False, False, False, True, True]


def test_malenia_forgets_failed_updates(make_update, make_state, make_federation):
    aggregator = Malenia()
    aggregator.setup(make_federation([1, 1]), make_state())
    updates = [make_update(client, [1.0]) for client in (0, 0, 1)]
    assert [aggregator.receive(update) for update in updates] == [False, False, True]
    assert aggregator.discard(updates[:1])
    assert not aggregator.discard(updates[2:])
    assert aggregator.receive(make_update(1, [5.0]))


def test_importance_of_sampled_clients(run, make_update):
    aggregator = GeneralizedAsyncSGD([0.5, 0.25, 0.125, 0.125], server_lr=0.5)
    for client, weight in [(0, 0.5), (1, 1.0), (2, 2.0)]:
        after = run(aggregator, [make_update(client, [4.0])])
        assert weights(after) == [weight]
        assert after.params.tolist() == [2 * weight]


def test_probabilities_for_other_clients_are_refused(make_federation, make_state):
    with pytest.raises(ValueError, match=r"probabilities has 2 numbers, but there are 4 clients"):
        GeneralizedAsyncSGD([0.5, 0.5]).setup(make_federation(), make_state())
    array = torch.full((3,), 1 / 3).numpy()
    assert len(GeneralizedAsyncSGD(array).probabilities) == 3


def test_fednova_normalises_by_the_steps(run, make_update):
    updates = [
        make_update(0, [6.0], steps=3, examples=30),
        make_update(1, [8.0], steps=1, examples=10),
    ]
    after = run(FedNova(2, server_lr=0.5), updates)
    assert weights(after) == [0.75, 0.25]
    assert after.params.tolist() == [0.5 * (0.75 * 3 + 0.25) * (0.75 * 2 + 0.25 * 8)]
    after = run(FedNova(2, client_weights="uniform"), updates)
    assert after.params.tolist() == [2 * (0.5 * 2 + 0.5 * 8)]


def test_fednova_knows_momentum_and_prox(run, make_update):
    """a_i counted step by step, as the authors' code does."""
    steps, deltas = (4, 1), (6.0, 8.0)
    updates = [make_update(i, [deltas[i]], steps=k) for i, k in enumerate(steps)]
    shrink, counts = 0.1 * 0.5, {"momentum": [], "prox": []}
    for k in steps:
        momentum = velocity = prox = 0.0
        for _ in range(k):
            velocity = 0.9 * velocity + 1
            momentum += velocity
            prox = (1 - shrink) * prox + 1
        counts["momentum"].append(momentum)
        counts["prox"].append(prox)
    mean = sum(d / a for d, a in zip(deltas, counts["momentum"], strict=True)) / 2
    after = run(FedNova(2, momentum=0.9), updates)
    assert after.params.item() == pytest.approx(sum(counts["momentum"]) / 2 * mean)
    mean = sum(d / a for d, a in zip(deltas, counts["prox"], strict=True)) / 2
    for lr in (0.5, lambda version: 0.5 + version):
        after = run(FedNova(2, mu=0.1, local_lr=lr), updates)
        assert after.params.item() == pytest.approx(sum(steps) / 2 * mean)
    after = run(FedNova(2, mu=0.1, local_lr=lambda version: 0.0), updates)
    assert after.params.item() == pytest.approx(2.5 * (6 / 4 + 8) / 2)
    with pytest.raises(ValueError, match=r"local_lr\(version=0\) \* mu must lie between 0 and 1"):
        run(FedNova(2, mu=10, local_lr=0.5), updates)


def test_feddyn_server_by_hand(run, make_update):
    aggregator = FedDynServer(alpha=0.5, buffer_size=2)
    updates = [make_update(0, [4.0], examples=90), make_update(1, [8.0])]
    first = run(aggregator, updates)
    assert weights(first) == [0.5, 0.5]
    h = -(0.5 / 4) * 12
    assert first.params.tolist() == [6 - h / 0.5]
    second = run(
        aggregator, [make_update(3, [2.0]), make_update(3, [2.0])], state=first, setup=False
    )
    h -= (0.5 / 4) * 4
    assert second.params.tolist() == [9 + 2 - h / 0.5]
