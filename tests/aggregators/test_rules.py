"""Each server rule on numbers worked by hand."""

import math

import pytest
import torch

from fedlight.aggregators import (
    AFACD,
    AFACS,
    AsyncCommSGD,
    AsyncFedAvg,
    FedAsync,
    FedAvg,
    FedBuff,
    FedFix,
)
from fedlight.aggregators.staleness import Constant, Hinge, Polynomial


def weights(after):
    return [used.weight for used in after.used]


def test_fedavg_weighs_by_examples_of_the_participants(run, make_update):
    updates = [make_update(0, [4.0], examples=30), make_update(1, [8.0], examples=10)]
    after = run(FedAvg(2), updates)
    assert weights(after) == [0.75, 0.25]
    assert after.params.tolist() == [5.0]
    after = run(FedAvg(2, client_weights="uniform", server_lr=0.5), updates)
    assert weights(after) == [0.5, 0.5]
    assert after.params.tolist() == [3.0]


def test_afacd_takes_the_mean_of_the_steps_and_no_examples(run, make_update):
    updates = [
        make_update(0, [6.0], steps=3, examples=1000),
        make_update(1, [8.0], steps=1, examples=1),
    ]
    after = run(AFACD(2, server_lr=2.0), updates)
    assert weights(after) == [0.5, 0.5]
    assert after.params.tolist() == [2.0 * (6 / 3 + 8) / 2]


@pytest.mark.parametrize("device", ["model", "cpu"])
def test_afacs_divides_by_all_clients_and_remembers(run, make_update, make_state, device):
    aggregator = AFACS(2, memory_device=device)
    first = run(aggregator, [make_update(0, [6.0], steps=3), make_update(2, [4.0])])
    assert weights(first) == [0.25, 0.25]
    assert first.params.tolist() == [(2 + 4) / 4]
    second = run(
        aggregator, [make_update(2, [8.0]), make_update(3, [2.0])], state=first, setup=False
    )
    assert second.params.tolist() == [1.5 + (2 + 8 + 2) / 4]


def test_afacs_keeps_the_later_of_two_updates_of_one_client(run, make_update):
    after = run(AFACS(2), [make_update(1, [4.0]), make_update(1, [8.0])])
    assert weights(after) == [0.0, 0.25]
    assert after.params.tolist() == [2.0]


def test_fedasync_mixes_models(run, make_update, make_state):
    start, now = make_state([10.0], version=1), make_state([2.0], version=4)
    update = make_update(0, [-4.0], pulled=1, start=start)
    after = run(FedAsync(0.5), [update], state=now)
    assert after.params.tolist() == [0.5 * 2 + 0.5 * (10 - 4)]
    after = run(FedAsync(0.5, Polynomial(0.5)), [update], state=now)
    assert weights(after) == [0.5 * 4**-0.5]
    assert after.params.tolist() == [0.75 * 2 + 0.25 * 6]


def test_fedasync_has_no_factor_of_examples(run, make_update, make_state):
    start = make_state([1.0])
    few, many = (make_update(0, [1.0], start=start, examples=n) for n in (1, 1000))
    ones = [run(FedAsync(0.3), [update], state=start) for update in (few, many)]
    assert torch.equal(ones[0].params, ones[1].params)
    assert weights(ones[0]) == [0.3]


def test_fedasync_never_overwrites_alpha(run, make_update, make_state):
    aggregator, state = FedAsync(0.9, Polynomial(0.5)), make_state([0.0])
    for version in range(10):
        pulled = max(0, version - 1)
        update = make_update(0, [1.0], pulled=pulled, start=make_state([0.0], pulled))
        state = run(aggregator, [update], state=state, setup=version == 0)
    assert weights(state) == [pytest.approx(0.9 / math.sqrt(2))]
    assert aggregator.alpha == 0.9


def test_fedasync_decays_alpha_from_the_update_that_makes_the_epoch(run, make_update, make_state):
    aggregator = FedAsync(lambda version: 0.3 if version + 1 >= 3 else 0.6)
    seen = []
    for version in range(4):
        state = make_state([0.0], version)
        update = make_update(0, [1.0], pulled=version, start=state)
        seen += weights(run(aggregator, [update], state=state))
    assert seen == [0.6, 0.6, 0.3, 0.3]


def test_fedasync_drops_what_is_too_stale(make_update):
    update = make_update(0, [1.0], pulled=3)
    assert FedAsync(0.5, max_staleness=2).accepts(update, 5)
    assert not FedAsync(0.5, max_staleness=2).accepts(update, 6)
    assert FedAsync(0.5).accepts(update, 10**6)
    fresh = FedAsync(0.5, max_staleness=0)
    assert fresh.accepts(update, 3)
    assert not fresh.accepts(update, 4)


def test_fedasync_refuses_to_mix_more_than_all(run, make_update, make_state):
    update = make_update(0, [1.0], start=make_state([0.0]))
    with pytest.raises(ValueError, match=r"alpha\(version=0\) must lie between 0 and 1, got 1.5"):
        run(FedAsync(lambda version: 1.5), [update])
    with pytest.raises(ValueError, match=r"alpha \* staleness\(0\) must lie between 0 and 1"):
        run(FedAsync(0.9, lambda tau: 2.0), [update])


def test_fedasync_says_what_it_needs(run, make_update):
    with pytest.raises(ValueError, match=r"needs the version that the client pulled"):
        run(FedAsync(0.5), [make_update(0, [1.0])])


def test_async_fedavg_identical(run, make_update, make_federation):
    federation = make_federation([90, 10], [1.0, 0.1])
    after = run(
        AsyncFedAvg("identical", "examples", server_lr=0.5),
        [make_update(1, [3.0])],
        federation=federation,
    )
    assert weights(after) == [1.0]
    assert after.params.tolist() == [1.5]


def test_async_fedavg_time_based_with_known_durations(run, make_update, make_federation):
    federation = make_federation([30, 10], [2.0, 0.5])
    # sum of 1/T = 0.5 + 2 = 2.5
    for client, client_weights, wanted in [
        (0, "uniform", 2.5 * 2.0 / 2),
        (1, "uniform", 2.5 * 0.5 / 2),
        (0, "examples", 2.5 * 2.0 * 0.75),
        (1, "examples", 2.5 * 0.5 * 0.25),
    ]:
        # The duration of the task itself does not matter then.
        update = make_update(client, [2.0], duration=77.0)
        after = run(AsyncFedAvg("time_based", client_weights), [update], federation=federation)
        assert weights(after) == [pytest.approx(wanted)]
        assert after.params.tolist() == [pytest.approx(2 * wanted)]


def test_async_fedavg_time_based_learns_durations(run, make_update, make_federation):
    aggregator, federation = AsyncFedAvg(), make_federation([10, 10, 10, 10])
    after = run(aggregator, [make_update(0, [1.0], duration=2.0)], federation=federation)
    assert weights(after) == [1.0]  # all are taken to be like client 0: 4/2 * 2 * 1/4
    after = run(aggregator, [make_update(1, [1.0], duration=0.5)], state=after, setup=False)
    # two seen with 1/T = 0.5 and 2, so the sum over four is 5
    assert weights(after) == [pytest.approx(5 * 0.5 / 4)]
    after = run(aggregator, [make_update(0, [1.0], duration=4.0)], state=after, setup=False)
    # client 0 now takes 3 on average
    assert weights(after) == [pytest.approx((1 / 3 + 2) * 2 * 3 / 4)]


def test_fedfix_counts_windows_and_does_not_renormalise(run, make_update, make_federation):
    federation = make_federation([30, 10], [0.3, 0.9])
    updates = [make_update(0, [1.0]), make_update(1, [1.0])]
    after = run(FedFix(0.3), updates, federation=federation)
    assert weights(after) == [0.5, 1.5]  # 0.9 / 0.3 is 3, not 4
    assert after.params.tolist() == [2.0]
    after = run(FedFix(0.5, "examples", server_lr=2.0), updates, federation=federation)
    assert weights(after) == [0.75, 0.5]
    assert after.params.tolist() == [2.5]


def test_fedfix_weighs_a_client_as_if_all_came(run, make_update, make_federation):
    federation = make_federation([30, 10], [0.3, 0.9])
    after = run(FedFix(0.3), [make_update(1, [1.0])], federation=federation)
    assert weights(after) == [1.5]


def test_fedfix_learns_durations(run, make_update, make_federation):
    aggregator, federation = FedFix(0.1), make_federation([10, 10])
    after = run(aggregator, [make_update(0, [1.0], duration=0.3)], federation=federation)
    assert weights(after) == [1.5]  # 3 windows, p = 1/2
    second = make_update(0, [1.0], duration=0.4, arrives=0.7)
    after = run(aggregator, [second], state=after, setup=False)
    assert weights(after) == [2.0]  # 0.35 on average: 4 windows


def test_fedbuff_divides_by_the_buffer_whatever_the_staleness(run, make_update, make_state):
    updates = [make_update(0, [8.0], pulled=3), make_update(1, [8.0], pulled=0)]
    now = make_state([1.0], version=3)
    after = run(FedBuff(2), updates, state=now)
    assert weights(after) == [0.5, 0.25]
    assert after.params.tolist() == [1 + (8 + 8 / 2) / 2]
    after = run(FedBuff(2, normalize="weights"), updates, state=now)
    assert weights(after) == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    after = run(FedBuff(2, normalize="none", server_lr=0.5), updates, state=now)
    assert weights(after) == [1.0, 0.5]
    assert after.params.tolist() == [1 + 0.5 * (8 + 4)]
    after = run(FedBuff(2, staleness=None), updates, state=now)
    assert weights(after) == [0.5, 0.5]


def test_fedbuff_moves_nothing_where_nothing_counts(run, make_update, make_state):
    after = run(
        FedBuff(1, staleness=lambda tau: 0.0, normalize="weights"),
        [make_update(0, [1.0], buffers=[5.0])],
        state=make_state([3.0], buffers=[2.0]),
    )
    assert weights(after) == [0.0]
    assert after.params.tolist() == [3.0]
    assert after.buffers.tolist() == [2.0]


def test_fedbuff_hinge(run, make_update, make_state):
    update = make_update(0, [3.0], pulled=0)
    after = run(FedBuff(1, Hinge(0.5, 4)), [update], state=make_state(version=5))
    assert weights(after) == [pytest.approx(0.667, abs=4e-4)]


def test_async_comm_sgd_divides_by_all_clients(run, make_update):
    after = run(AsyncCommSGD(), [make_update(1, [4.0], pulled=0, steps=9)])
    assert weights(after) == [0.25]
    assert after.params.tolist() == [1.0]


@pytest.mark.parametrize(
    ("make", "at"),
    [
        (lambda lr: FedAvg(1, server_lr=lr), 1.0),
        (lambda lr: AFACD(1, server_lr=lr), 1.0),
        (lambda lr: AFACS(1, server_lr=lr), 0.25),
        (lambda lr: AsyncFedAvg("identical", server_lr=lr), 1.0),
        (lambda lr: FedFix(1.0, server_lr=lr), 0.25),
        (lambda lr: FedBuff(1, Constant(), server_lr=lr), 1.0),
        (lambda lr: AsyncCommSGD(server_lr=lr), 0.25),
    ],
    ids=range(7),
)
def test_the_server_rate_may_follow_the_version_that_is_stepped_from(
    run, make_update, make_state, make, at
):
    aggregator = make(lambda version: 10.0 if version >= 5 else 1.0)
    for version, rate in [(4, 1.0), (5, 10.0)]:
        after = run(aggregator, [make_update(0, [4.0])], state=make_state([0.0], version))
        assert after.params.tolist() == [4 * at * rate]
        assert weights(after) == [at]  # the rate is no part of the weight
