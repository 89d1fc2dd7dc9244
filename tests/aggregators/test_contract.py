"""What holds for every aggregator; a new one is a row."""

import copy
import io
import pickle

import pytest
import torch

import fedlight.aggregators
from fedlight.aggregators import (
    AFACD,
    AFACS,
    AREA,
    CA2FL,
    DCASGD,
    FADAS,
    FAVAS,
    MIFA,
    AsyncCommSGD,
    AsyncFedAvg,
    BufferedAggregator,
    DelayedNesterov,
    FedASMU,
    FedAsync,
    FedAT,
    FedAvg,
    FedBuff,
    FedBuffMA,
    FedCompass,
    FedDynServer,
    FedFix,
    FedNova,
    FedVARP,
    GeneralizedAsyncSGD,
    HeLoCo,
    Lattice,
    LookAhead,
    Malenia,
    MindFlayer,
    PrivateSum,
    QuAFL,
    Rennala,
    Ringleader,
    Ringmaster,
)
from fedlight.aggregators.staleness import DelayAdaptive, Polynomial
from fedlight.checkpoint import plain
from fedlight.types import ClientUpdate, LocalResult, ServerState


def adam(params):
    return torch.optim.Adam(params, lr=0.1)


class Momentum(BufferedAggregator):
    """One of a user's own, with a state and a direction that is no weighted sum."""

    def start(self, federation, state):
        self.velocity = torch.zeros_like(state.params)

    def weights(self, updates, version):
        return [1 / len(updates)] * len(updates)

    def direction(self, updates, weights, state):
        self.velocity = 0.9 * self.velocity + super().direction(updates, weights, state)
        return self.velocity


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
    "Momentum": (lambda **more: Momentum(2, **more), 2),
    "MIFA": (lambda **more: MIFA(2, **more), 2),
    "MIFA-cpu": (lambda **more: MIFA(2, memory_device="cpu", **more), 2),
    "FedVARP": (lambda **more: FedVARP(2, 0.5, **more), 2),
    "FedVARP-0": (lambda **more: FedVARP(2, 0.0, **more), 2),
    "CA2FL": (lambda **more: CA2FL(2, **more), 2),
    "DCASGD": (lambda **more: DCASGD(0.3, **more), 1),
    "DCASGD-adaptive": (lambda **more: DCASGD(2.0, local_lr=0.1, decay=0.9, **more), 1),
    "FedNova": (lambda **more: FedNova(2, **more), 2),
    "FedNova-prox": (lambda **more: FedNova(2, mu=0.1, local_lr=0.1, **more), 2),
    "GeneralizedAsyncSGD": (lambda **more: GeneralizedAsyncSGD([0.4, 0.3, 0.2, 0.1], **more), 1),
    "MindFlayer": (lambda **more: MindFlayer(2, 0.5, **more), 2),
    "MindFlayer-clients": (
        lambda **more: MindFlayer(3, 0.5, "clients", **more),
        2,
    ),
    "Malenia": (lambda **more: Malenia(**more), 4),
    "Rennala": (lambda **more: Rennala(2, **more), 2),
    "Ringmaster": (lambda **more: Ringmaster(3, **more), 1),
}
PSEUDO_GRADIENT = pytest.mark.parametrize("name", REGISTRY)
ALL = {
    **REGISTRY,
    "FedAsync": (lambda: FedAsync(0.5), 1),
    "FedAsync-stale": (lambda: FedAsync(0.5, Polynomial(0.5), max_staleness=3), 1),
    "AREA": (lambda: AREA(2), 2),
    "FADAS": (lambda: FADAS(2), 2),
    "FADAS-corrected": (lambda: FADAS(2, 0.1, delay="divided", bias_correction=True), 2),
    "Ringleader": (lambda: Ringleader(), 4),
    "FedBuffMA": (lambda: FedBuffMA(2, 0.5), 2),
    "DelayedNesterov": (lambda: DelayedNesterov(3, 0.9, c=0.2), 1),
    "LookAhead": (lambda: LookAhead(0.9), 1),
    "HeLoCo": (lambda: HeLoCo(0.9), 1),
    "FedDynServer": (lambda: FedDynServer(0.5, 2), 2),
    "QuAFL": (lambda: QuAFL(2), 2),
    "QuAFL-lattice": (lambda: QuAFL(2, Lattice(1e-3, 20)), 2),
    "FAVAS": (lambda: FAVAS(2), 2),
    "FAVAS-expected": (lambda: FAVAS(2, [1.0, 2.0, 0.5, 4.0]), 2),
    "FedAT": (lambda: FedAT(2), 2),
    "PrivateSum": (lambda: PrivateSum(FedBuff(2), 0.5, 1.0), 2),
    "FedCompass": (lambda: FedCompass(2), 2),
    "FedCompass-models": (lambda: FedCompass(2, average="models"), 2),
    "FedASMU": (lambda: FedASMU(iota=0.1, lam_rate=0.1, sigma_rate=0.1), 1),
}
# Their first step is no weighted sum of the deltas; that of the others is, if the memory is empty.
OTHER_DIRECTIONS = (
    *("FADAS", "FADAS-corrected", "FedDynServer", "FAVAS-expected"),
    *("LookAhead", "HeLoCo", "PrivateSum"),
    *("LookAhead", "HeLoCo", "FedBuffMA"),
)
EVERY = pytest.mark.parametrize("name", ALL)


def feed(aggregator, make_update, state, numbers, count, **more):
    for client, number in zip(range(count), numbers, strict=False):
        update = make_update(
            client, [number], pulled=state.version, start=state, duration=1.0 + client, **more
        )
        aggregator.receive(update)
    return aggregator.step(state)


def saved(aggregator):
    """Its state, as a checkpoint gives it back."""
    file = io.BytesIO()
    torch.save(plain(aggregator.state_dict()), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@EVERY
@pytest.mark.parametrize("optimizer", [False, True])
def test_state_round_trips_at_every_step(name, optimizer, make_update, make_state, make_federation):
    make, count = ALL[name]
    more = {"server_optimizer": adam} if optimizer and name in REGISTRY else {}
    first, federation, state = make(**more), make_federation(), make_state([1.0])
    first.setup(federation, state)
    for number in range(5):
        second = make(**more)
        second.setup(federation, make_state([1.0]))
        # A checkpoint between two arrivals: what is held is received again, then the state follows.
        left = make_update(3, [0.5 * number], start=state, pulled=state.version, duration=4.0)
        waiting = list(first.held)  # for the next table of Ringleader; no other keeps any
        assert not waiting or name == "Ringleader"
        first.receive(left)
        for update in first.held:
            second.receive(update)
        second.load_state_dict(saved(first))
        assert second.held == first.held == [*waiting, left]
        if count == 1:
            expected, actual = first.step(state), second.step(state)
        else:
            deltas = [number, -7.0][: count - 1]
            expected = feed(first, make_update, state, deltas, count)
            actual = feed(second, make_update, state, deltas, count)
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
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_of_one_that_has_run_runs_like_the_first(
    name, copied, make_update, make_state, make_federation
):
    make, count = ALL[name]
    first, state, results = make(), make_state([1.0]), []
    first.setup(make_federation(), state)
    feed(first, make_update, state, [1.0, 5.0], count)
    for aggregator in (make(), copied(first)):
        aggregator.setup(make_federation(), state)
        results.append(feed(aggregator, make_update, state, [3.0, -2.0], count).params)
    assert torch.equal(*results)


@EVERY
def test_versions_are_never_changed(name, make_update, make_state, make_federation):
    make, count = ALL[name]
    aggregator, state = make(), make_state([1.0], buffers=[2.0], counters=[3])
    before = copy.deepcopy(state)
    changed = name != "PrivateSum"  # which refuses buffers that clients have changed
    after_buffers = {"buffers": [7.0 if changed else 2.0], "counters": [9 if changed else 3]}
    aggregator.setup(make_federation(), state)
    after = feed(aggregator, make_update, state, [3.0, -2.0], count, **after_buffers)
    kept = copy.deepcopy(after)
    after_buffers["buffers"] = [8.0 if changed else 2.0]
    feed(aggregator, make_update, after, [5.0, 5.0], count, **after_buffers)
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
                client,
                [1.0],
                start=state,
                duration=1.0,
                buffers=[4.0 + 4 * client],
                counters=[7 - client],
            )
        )
    after = aggregator.step(state)
    assert after.buffers.tolist() == [2.0 + 2 * count]
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
    [
        *(FedAvg, AFACD, AFACS, lambda **more: FedFix(1.0, **more), AsyncCommSGD, Momentum),
        *(lambda **more: MIFA(None, **more), FedVARP, FedNova),
    ],
    ids=range(9),
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
    if aggregator.interval is None and not aggregator.needs_rounds:
        assert due == [False] * (count - 1) + [True]
    else:
        assert due == [False] * count
    assert aggregator.end_round() is aggregator.needs_rounds


@pytest.mark.parametrize(
    "make",
    [
        *(FedAvg, AFACD, AFACS, Momentum, FedNova, FedVARP),
        *(lambda: MIFA(None), lambda: FedDynServer(1.0), FedCompass),
    ],
    ids=range(9),
)
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
        (lambda: MIFA(0), ValueError, "buffer_size must be at least 1, got 0"),
        (lambda: MIFA(memory_device="disk"), ValueError, "memory_device must be one of"),
        (lambda: FedVARP(2, 1.5), ValueError, "beta must lie between 0 and 1, got 1.5"),
        (lambda: CA2FL(None), TypeError, "buffer_size must be an integer, got None"),
        (lambda: FADAS(2, betas=0.9), TypeError, r"betas must be two numbers such as \(0.9, 0.9"),
        (lambda: FADAS(2, betas=(0.9, 1)), ValueError, r"betas must be smaller than 1, got \(0.9"),
        (lambda: FADAS(2, eps=0), ValueError, "eps must be larger than 0, got 0"),
        (lambda: FADAS(2, tau_c=-1), ValueError, "tau_c must be 0 or larger, got -1"),
        (lambda: FADAS(2, delay="half"), ValueError, "delay must be one of 'reciprocal', 'divid"),
        (lambda: AREA(0), ValueError, "buffer_size must be at least 1, got 0"),
        (lambda: Ringmaster(-1), ValueError, "max_staleness must be 0 or larger, got -1"),
        (lambda: Ringmaster(1.5), TypeError, "max_staleness must be an integer, got 1.5"),
        (lambda: Rennala(None), TypeError, "buffer_size must be an integer, got None"),
        (lambda: Malenia(0), ValueError, "batch_size must be larger than 0, got 0"),
        (lambda: DCASGD(-0.1), ValueError, "lam must be 0 or larger, got -0.1"),
        (lambda: DCASGD(1, local_lr=0), ValueError, "local_lr must be larger than 0, got 0"),
        (lambda: DCASGD(1, decay=1), ValueError, "decay must be smaller than 1, got 1"),
        (lambda: GeneralizedAsyncSGD(0.5), TypeError, r"write probabilities=\[1 / num_cl"),
        (lambda: GeneralizedAsyncSGD({0: 1}), TypeError, "must be a list, got the mapping"),
        (lambda: GeneralizedAsyncSGD([1, 0]), ValueError, r"probabilities\[1\] must be larger"),
        (lambda: GeneralizedAsyncSGD([2, 3]), ValueError, "must sum to 1, got a sum of 5"),
        (lambda: FedNova(client_weights="n"), ValueError, "client_weights must be one of"),
        (lambda: FedNova(momentum=1), ValueError, "momentum must be smaller than 1, got 1"),
        (lambda: FedNova(mu=-1, local_lr=1), ValueError, "mu must be 0 or larger, got -1"),
        (lambda: FedNova(mu=0.1), ValueError, "mu=0.1 needs local_lr, the learning rate of the"),
        (lambda: FedNova(mu=0.1, momentum=0.9), ValueError, r"give momentum \(0.9\) or mu \(0.1\)"),
        (lambda: FedDynServer(0), ValueError, "alpha must be larger than 0, got 0"),
        (lambda: DelayAdaptive(0), ValueError, "c must be larger than 0, got 0"),
    ],
    ids=range(19 + 28),
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


@EVERY
def test_held_in_order_and_discarded(name, make_update, make_state, make_federation):
    make, count = ALL[name]
    aggregator, state = make(), make_state([1.0])
    aggregator.setup(make_federation(), state)
    assert aggregator.can_discard
    updates = [make_update(client, [1.0], start=state) for client in (2, 0, 3, 1)]
    for update in updates:
        aggregator.receive(update)
    assert aggregator.held == updates
    due = aggregator.interval is None and not aggregator.needs_rounds
    assert aggregator.discard([updates[1]]) is (due and count <= 3)
    assert aggregator.held == [updates[0], updates[2], updates[3]]
    assert aggregator.discard(updates[2:]) is (due and count == 1)
    assert aggregator.held == [updates[0]]
    assert [used.update for used in aggregator.step(state).used] == [updates[0]]
    assert aggregator.held == []


@pytest.mark.parametrize("name", [each for each in ALL if each not in OTHER_DIRECTIONS])
def test_the_weights_recorded_are_the_weights_used(name, make_update, make_state, make_federation):
    """The buffers are merged by what is recorded, and the deltas by the same numbers."""
    make, count = ALL[name]
    aggregator, state, said = make(), make_state([0.0]), []
    aggregator.setup(make_federation((30, 10, 10, 50), (1.0, 2.0, 1.5, 3.0)), state)
    weights = aggregator.weights
    aggregator.weights = lambda *given: said.append(weights(*given)) or said[-1]
    for client in range(count):
        aggregator.receive(make_update(client, [2.0**client], start=state, examples=7 + client))
    after = aggregator.step(state)
    assert [[used.weight for used in after.used]] == said
    moved = sum(used.weight * used.update.delta.item() for used in after.used)
    assert after.params.item() == pytest.approx(moved, rel=1e-12)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_and_device_are_kept(name, dtype, make_update, make_federation):
    make, count = ALL[name]
    params = torch.ones(3, dtype=dtype)
    state = ServerState(0, params, torch.ones(2), torch.ones(1, dtype=torch.int64))
    aggregator = make()
    aggregator.setup(make_federation(), state)
    for client in range(count):
        task = make_update(client, [1.0]).task
        same = name == "PrivateSum"  # which refuses buffers that clients have changed
        buffers = torch.ones(2) if same else torch.zeros(2)
        result = LocalResult(params / 3, buffers, torch.ones(1, dtype=torch.int64))
        aggregator.receive(ClientUpdate(task, 10, result, pulled=state))
    after = aggregator.step(state)
    for name in ("params", "buffers", "counters"):
        old, new = getattr(state, name), getattr(after, name)
        assert (new.dtype, new.device, new.shape) == (old.dtype, old.device, old.shape)


@EVERY
def test_the_repr_makes_the_same(name):
    make, _ = ALL[name]
    names = {**vars(fedlight.aggregators), "Polynomial": Polynomial, "Momentum": Momentum}
    names["Constant"] = fedlight.aggregators.staleness.Constant
    more = [{}, {"server_lr": 0.5}] if name in REGISTRY else [{}]
    for given in more:
        one = make(**given)
        other = eval(repr(one), names)
        assert type(other) is type(one)
        assert repr(other) == repr(one)
        assert ("server_lr=0.5" in repr(one)) is bool(given)


@EVERY
def test_declarations_are_of_the_kind_they_say(name, make_state, make_federation):
    aggregator = ALL[name][0]()
    assert aggregator.drops is (name in ("FedAsync-stale", "Malenia", "Rennala", "Ringmaster"))
    assert aggregator.remembers is name.startswith(("AFACS", "MIFA", "CA2FL", "Ringleader"))
    assert aggregator.client_weights in ("uniform", "examples")
    assert aggregator.needs_rounds is name.startswith("MindFlayer")
    no_size = aggregator.interval is not None or name in ("Malenia", "Ringleader")
    assert (aggregator.buffer_size is None) is (no_size or aggregator.needs_rounds)
    aggregator.setup(make_federation(), make_state())
    rate = {"alpha": 0.5} if name.startswith("FedAsync") else {"server": 1.0}
    others = {"FADAS": {"server": 0.01}, "FADAS-corrected": {"server": 0.1}, "FedASMU": {}}
    rate = others.get(name, rate)
    assert aggregator.rates(3) == rate
