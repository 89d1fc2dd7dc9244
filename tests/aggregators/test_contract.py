"""What holds for every aggregator; a new one is a row."""

import copy
import io

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


def adam(params):
    return torch.optim.Adam(params, lr=0.1)


# name: (how it is made, updates in one step)
REGISTRY = {
    "FedAvg": (lambda **more: FedAvg(2, **more), 2),
    "AFACD": (lambda **more: AFACD(2, **more), 2),
    "AFACS": (lambda **more: AFACS(2, **more), 2),
    "AFACS-cpu": (lambda **more: AFACS(2, memory_device="cpu", **more), 2),
    "AsyncFedAvg": (lambda **more: AsyncFedAvg(**more), 1),
    "AsyncFedAvg-identical": (lambda **more: AsyncFedAvg("identical", **more), 1),
    "FedFix": (lambda **more: FedFix(1.0, **more), 2),
    "FedBuff": (lambda **more: FedBuff(2, **more), 2),
    "AsyncCommSGD": (lambda **more: AsyncCommSGD(**more), 2),
}
PSEUDO_GRADIENT = pytest.mark.parametrize("name", REGISTRY)
ALL = {**REGISTRY, "FedAsync": (lambda: FedAsync(0.5), 1)}
EVERY = pytest.mark.parametrize("name", ALL)


def feed(aggregator, make_update, state, numbers, count, **more):
    for client, number in zip(range(count), numbers, strict=False):
        update = make_update(
            client, [number], pulled=state.version, start=state, duration=1.0 + client, **more
        )
        aggregator.receive(update)
    return aggregator.step(state)


@EVERY
@pytest.mark.parametrize("optimizer", [False, True])
def test_state_round_trips(name, optimizer, make_update, make_state, make_federation):
    make, count = ALL[name]
    more = {"server_optimizer": adam} if optimizer and name != "FedAsync" else {}
    first, federation, state = make(**more), make_federation(), make_state([1.0])
    first.setup(federation, state)
    for number in range(3):
        state = feed(first, make_update, state, [number, -7.0], count)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = make(**more)
    second.setup(federation, make_state([1.0]))
    second.load_state_dict(torch.load(file, weights_only=True))
    for number in range(3):
        expected = feed(first, make_update, state, [0.3, number], count)
        actual = feed(second, make_update, state, [0.3, number], count)
        assert torch.equal(actual.params, expected.params)
        assert [u.weight for u in actual.used] == [u.weight for u in expected.used]
        state = expected


@EVERY
def test_setup_forgets_the_run_before(name, make_update, make_state, make_federation):
    make, count = ALL[name]
    aggregator, state = make(), make_state([1.0])
    results = []
    for _ in range(2):
        aggregator.setup(make_federation(), state)
        results.append(feed(aggregator, make_update, state, [3.0, -2.0], count).params)
        aggregator.receive(make_update(0, [9.0], start=state))
        assert len(aggregator.held) == 1
    assert torch.equal(*results)


@EVERY
def test_versions_are_never_changed(name, make_update, make_state, make_federation):
    make, count = ALL[name]
    aggregator, state = make(), make_state([1.0], buffers=[2.0], counters=[3])
    before = copy.deepcopy(state)
    aggregator.setup(make_federation(), state)
    after = feed(aggregator, make_update, state, [3.0, -2.0], count, buffers=[7.0], counters=[9])
    kept = copy.deepcopy(after)
    feed(aggregator, make_update, after, [5.0, 5.0], count, buffers=[8.0], counters=[9])
    for old, new in [(before, state), (kept, after)]:
        assert torch.equal(old.params, new.params)
        assert torch.equal(old.buffers, new.buffers)
        assert torch.equal(old.counters, new.counters)


@PSEUDO_GRADIENT
@pytest.mark.parametrize("more", [{"server_lr": 100.0}, {"server_optimizer": adam}])
def test_no_server_rate_touches_buffers(name, more, make_update, make_state, make_federation):
    make, count = REGISTRY[name]
    aggregator, state = make(**more), make_state([0.0], buffers=[2.0], counters=[5])
    aggregator.setup(make_federation(), state)
    for client in range(count):
        aggregator.receive(
            make_update(
                client, [1.0], duration=1.0, buffers=[4.0 + 4 * client], counters=[7 - client]
            )
        )
    after = aggregator.step(state)
    assert after.buffers.tolist() == [4.0 if count == 1 else 6.0]
    assert after.counters.tolist() == [7]


def test_buffers_follow_the_weights(make_update, make_state, make_federation):
    aggregator, state = FedAvg(2), make_state([0.0], buffers=[100.0], counters=[50])
    aggregator.setup(make_federation(), state)
    aggregator.receive(make_update(0, [1.0], examples=30, buffers=[4.0], counters=[7]))
    aggregator.receive(make_update(1, [1.0], examples=10, buffers=[8.0], counters=[9]))
    after = aggregator.step(state)
    assert after.buffers.tolist() == [5.0]
    assert after.counters.tolist() == [50]


def test_fedasync_mixes_buffers_with_the_same_share(make_update, make_state, make_federation):
    aggregator, state = FedAsync(0.25), make_state([0.0], buffers=[2.0], counters=[5])
    aggregator.setup(make_federation(), state)
    aggregator.receive(make_update(0, [4.0], start=state, buffers=[10.0], counters=[6]))
    after = aggregator.step(state)
    assert after.params.tolist() == [1.0]
    assert after.buffers.tolist() == [0.75 * 2 + 0.25 * 10]
    assert after.counters.tolist() == [6]


@pytest.mark.parametrize(
    "make",
    [FedAvg, AFACD, AFACS, lambda **more: FedFix(1.0, **more), AsyncCommSGD],
)
def test_an_empty_round_makes_a_version_of_the_same_model(
    make, make_update, make_state, make_federation
):
    aggregator, state = make(server_optimizer=adam), make_state([0.0], buffers=[1.0])
    aggregator.setup(make_federation(), state)
    aggregator.receive(make_update(0, [1.0], buffers=[3.0]))
    state = aggregator.step(state)
    after = aggregator.step(state)
    assert after.version == state.version + 1
    assert torch.equal(after.params, state.params)
    assert torch.equal(after.buffers, state.buffers)
    assert after.used == ()


@EVERY
def test_when_it_steps(name, make_update, make_state, make_federation):
    make, count = ALL[name]
    aggregator, state = make(), make_state()
    aggregator.setup(make_federation(), state)
    due = [aggregator.receive(make_update(c, [1.0], start=state)) for c in range(count)]
    if aggregator.interval is None:
        assert due == [False] * (count - 1) + [True]
    else:
        assert due == [False] * count
    assert not aggregator.end_round()


@pytest.mark.parametrize("make", [FedAvg, AFACD, AFACS])
def test_without_a_buffer_size_the_round_decides(make, make_update, make_state, make_federation):
    aggregator = make()
    aggregator.setup(make_federation(), make_state())
    assert aggregator.needs_rounds
    assert not any(aggregator.receive(make_update(c, [1.0])) for c in range(4))
    assert aggregator.end_round()


@PSEUDO_GRADIENT
def test_rate_and_optimizer_exclude_each_other(name):
    make, _ = REGISTRY[name]
    with pytest.raises(ValueError, match=r"give server_lr \(0.5\) or server_optimizer, not both"):
        make(server_lr=0.5, server_optimizer=adam)
    with pytest.raises(ValueError, match="server_lr must be larger than 0, got -1"):
        make(server_lr=-1)
    with pytest.raises(TypeError, match="server_lr must be a number or a function of the version"):
        make(server_lr="big")
    with pytest.raises(TypeError, match="server_optimizer must be a function of the parameters"):
        make(server_optimizer="adam")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: FedAvg(0), ValueError, "buffer_size must be at least 1, got 0"),
        (lambda: AFACD(2.5), TypeError, "buffer_size must be an integer, got 2.5"),
        (lambda: FedAvg(client_weights="size"), ValueError, "client_weights must be one of"),
        (lambda: AFACS(memory_device="gpu"), ValueError, "memory_device must be one of"),
        (lambda: FedAsync(0), ValueError, "alpha must be larger than 0, got 0"),
        (lambda: FedAsync(1.5), ValueError, "alpha must lie between 0 and 1, got 1.5"),
        (lambda: FedAsync("big"), TypeError, "alpha must be a number or a function"),
        (lambda: FedAsync(0.5, max_staleness=-1), ValueError, "max_staleness must be 0 or larger"),
        (lambda: FedAsync(0.5, max_staleness=1.5), TypeError, "max_staleness must be an integer"),
        (lambda: AsyncFedAvg("equal"), ValueError, "weights must be one of 'time_based', 'identic"),
        (lambda: AsyncFedAvg(client_weights="n"), ValueError, "client_weights must be one of"),
        (lambda: FedFix(0), ValueError, "interval must be larger than 0, got 0"),
        (lambda: FedFix(1e-12), ValueError, "interval must be at least 1e-9"),
        (lambda: FedFix("1"), TypeError, "interval must be a number, got '1'"),
        (lambda: FedFix(1.0, "size"), ValueError, "client_weights must be one of"),
        (lambda: FedBuff(0), ValueError, "buffer_size must be at least 1, got 0"),
        (lambda: FedBuff(None), TypeError, "buffer_size must be an integer, got None"),
        (lambda: FedBuff(2, normalize="sum"), ValueError, "normalize must be one of 'buffer', 'w"),
        (lambda: AsyncCommSGD(-1.0), ValueError, "interval must be larger than 0, got -1.0"),
    ],
    ids=range(19),
)
def test_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_names():
    assert repr(FedAvg(3)) == "FedAvg(buffer_size=3, client_weights='examples')"
    assert repr(AsyncCommSGD(0.5)) == "AsyncCommSGD(interval=0.5)"
    assert repr(FedFix(0.5)) == "FedFix(interval=0.5, client_weights='uniform')"


@EVERY
def test_constant_buffers_stay_to_the_bit(name, make_update, make_state, make_federation):
    """A causal mask holds -inf, and 0.1 is no sum of thirds of itself."""
    make, count = ALL[name]
    constants = [float("-inf"), 0.1]
    aggregator, state = make(), make_state([1.0], buffers=constants)
    aggregator.setup(make_federation(), state)
    after = feed(aggregator, make_update, state, [3.0], count, buffers=constants)
    assert after.buffers.tolist() == constants


def test_an_update_of_no_weight_leaves_the_buffers_alone(make_update, make_state, make_federation):
    aggregator, state = AFACS(2), make_state([0.0], buffers=[1.0])
    aggregator.setup(make_federation(), state)
    aggregator.receive(make_update(0, [1.0], buffers=[float("inf")]))
    aggregator.receive(make_update(0, [1.0], buffers=[3.0]))  # it takes the place of the first
    assert aggregator.step(state).buffers.tolist() == [3.0]
