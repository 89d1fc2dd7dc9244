"""Each method is the one of its paper: its parts fit together, and it trains in one call."""

import inspect
import pickle
from dataclasses import FrozenInstanceError

import pyarrow.parquet
import pytest
import torch
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule, FedTrainer, cite, methods, settings
from fedlight.aggregators import FedAvg, FedBuff
from fedlight.aggregators.staleness import Exponential
from fedlight.arrivals import (
    ContinuousArrivals,
    DiurnalWindows,
    ExponentialDurations,
    FixedDurations,
    RandomTicks,
    StepDurations,
    UniformDurations,
)
from fedlight.callbacks import Callback, EventLog
from fedlight.channel import QSGD, Senders
from fedlight.local_optimizers import FedProx, LocalSGD, OwnModel, Scaffold, WarmupCosine
from tests.boring import Boring, Point, classes, fitted

CLOCK = ExponentialDurations(1.0)
SHARES = [0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05]
TIERS = {
    "tiers": {"fast": [0, 1, 2, 3], "slow": [4, 5, 6, 7]},
    "durations": {"fast": CLOCK, "slow": ExponentialDurations(3.0)},
}
# For each function its arguments, and the key of a paper that is cited.
CALLS = {
    "ace": ({"lr": 0.1}, "chang2025mitigating"),
    "afa_cd": ({}, "yang2022anarchic"),
    "afa_cs": ({"durations": CLOCK, "concurrency": 6}, "yang2022anarchic"),
    "area": ({}, "iakovidou2024asynchronous"),
    "async_comm_sgd": ({"lr": 0.1, "pattern": RandomTicks(0.3, 6)}, "avdiukhin2021federated"),
    "async_fedavg": ({"lr": 0.1}, "fraboni2023general"),
    "async_local_sgd": ({"lr": 0.01, "period": 4, "keep": "task"}, "liu2024asynchronous"),
    "ca2fl": ({"lr": 0.1, "concurrency": 4, "buffer_size": 3}, "wang2024tackling"),
    "cgad": ({"lr": 0.01, "gate": Exponential(0.5)}, "cgad2026"),
    "dc_asgd": ({"lr": 0.1}, "zheng2017asynchronous"),
    "delay_adaptive_sgd": ({"lr": 0.1, "concurrency": 4}, "koloskova2022sharper"),
    "delayed_sgd": ({"lr": 0.1, "tau": 2}, "arjevani2020tight"),
    "diloco": ({"lr": 0.01}, "douillard2023diloco"),
    "dp_fedbuff": (
        {"noise_multiplier": 1.0, "clipping_norm": 0.5, "lr": 0.1, "concurrency": 4},
        "mcmahan2018learning",
    ),
    "fadas": ({"concurrency": 4}, "wang2024fadas"),
    "favas": ({"lr": 0.1, "per_poll": 3, "interval": 5, "max_steps": 4}, "leconte2023favas"),
    "fedadam": ({"lr": 0.1, "server_lr": 0.01, "per_round": 4}, "reddi2021adaptive"),
    "fedasmu": ({"lr": 0.1, "concurrency": 6}, "liu2024fedasmu"),
    "fedasync": ({"lr": 0.1}, "xie2019asynchronous"),
    "fedat": ({"lr": 0.1, **TIERS}, "chai2021fedat"),
    "fedavg": ({"lr": 0.1, "per_round": 4, "timeout": 3.0}, "bonawitz2019towards"),
    "fedbuff": ({"lr": 0.1, "concurrency": 4, "buffer_size": 3}, "nguyen2022federated"),
    "fedcompass": (
        {"lr": 0.1, "durations": StepDurations(0.2), "min_steps": 2, "max_steps": 6},
        "li2024fedcompass",
    ),
    "feddyn": ({"lr": 0.1, "per_round": 4}, "acar2021federated"),
    "fedbuff_ma": ({"lr": 0.1, "concurrency": 4, "buffer_size": 3}, "yu2024momentum"),
    "fedfix": ({"lr": 0.1}, "fraboni2023general"),
    "fednova": ({"lr": 0.1, "momentum": 0.5}, "wang2020tackling"),
    "fedprox": ({"lr": 0.1, "mu": 0.1, "per_round": 4, "stragglers": 0.5}, "li2020federated"),
    "fedsam": ({"lr": 0.1, "per_round": 4}, "qu2022generalized"),
    "fedstale": ({"lr": 0.1, "beta": 0.5, "per_round": 4}, "rodio2024fedstale"),
    "fedvarp": ({"lr": 0.1, "per_round": 4}, "jhunjhunwala2022fedvarp"),
    "generalized_async_sgd": (
        {"lr": 0.1, "probabilities": SHARES, "concurrency": 4},
        "leconte2024queuing",
    ),
    "halos": (
        {"lr": 0.01, "regions": {"west": [0, 1, 2, 3], "east": [4, 5, 6, 7]}, "up": 0.5},
        "kim2025halos",
    ),
    "heloco": ({"lr": 0.01}, "heloco2026"),
    "look_ahead": ({"lr": WarmupCosine(0.01, 5, 50)}, "ajanthan2025momentum"),
    "malenia": ({"lr": 0.1, "durations": UniformDurations(0.5, 1.0)}, "tyurin2023optimal"),
    "mifa": ({"lr": 0.1, "windows": DiurnalWindows(6.0, 0.5)}, "gu2021fast"),
    "mindflayer": ({"lr": 0.1, "allotted": 1.0, "trials": 3}, "maranjyan2025mindflayer"),
    "oort": ({"lr": 0.1, "per_round": 4}, "lai2021oort"),
    "pisces": ({"lr": 0.1, "concurrency": 4, "staleness_bound": 2}, "jiang2022pisces"),
    "power_of_choice": ({"lr": 0.1, "per_round": 3, "candidates": 6}, "cho2020client"),
    "quafl": ({"lr": 0.1, "per_poll": 3}, "zakerinia2024communication"),
    "rennala": ({"lr": 0.1, "batch_size": 4, "stops": True}, "tyurin2023optimal"),
    "ringleader": ({"lr": 0.1, "durations": UniformDurations(0.5, 1.0)}, "maranjyan2026ringleader"),
    "ringmaster": ({"lr": 0.1, "max_delay": 3, "stops": True}, "maranjyan2025ringmaster"),
    "ringmaster_muon": ({"lr": 0.1, "max_delay": 3}, "ringmasterlmo2026"),
    "sparse_loco": ({"lr": 0.01, "quantizer": QSGD(4)}, "sarfi2025communication"),
    "scaffold": ({"lr": 0.1, "per_round": 4}, "karimireddy2020scaffold"),
}
EIGHT = (6, 10, 3, 8, 4, 5, 7, 9)


def made(name, **more):
    return getattr(methods, name)(**{**CALLS[name][0], **more})


def test_all_functions_are_tried():
    assert CALLS.keys() == set(methods.__all__) - {"Method"}


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")
@pytest.mark.parametrize("name", CALLS)
def test_a_method_trains_in_one_call(name):
    method = made(name)
    run = fitted(Boring(), classes(EIGHT), **method, max_rounds=2)
    assert run.version == 2
    assert all(torch.isfinite(each).all() for each in run.module.parameters())
    assert f"{{{CALLS[name][1]}," in cite(run)


@pytest.mark.parametrize("name", CALLS)
def test_a_method_has_what_a_sweep_needs(name):
    """Other durations, the module's own optimizer if the rule allows it, and a page's docstring."""
    function = getattr(methods, name)
    parameters = inspect.signature(function).parameters
    assert all(each.kind is each.KEYWORD_ONLY for each in parameters.values())
    assert "Source: " in inspect.getdoc(function)
    if "durations" in parameters and name != "fedat":
        times = UniformDurations(0.1, 0.2)
        process = made(name, durations=times)["arrivals"]
        assert "UniformDurations(0.1, 0.2)" in repr(process)
    if "None" in parameters["lr"].annotation:
        more = {"momentum": 0.0} if name == "fednova" else {}
        assert "local_optimizer" not in made(name, lr=None, **more)


def at_work(method, tmp_path, **limits):
    """How many clients are at work after each instant of a run."""
    log = EventLog(tmp_path / "events.parquet")
    fitted(Boring(), classes(EIGHT), **method, callbacks=log, **limits)
    counts, running = {}, 0
    for row in pyarrow.parquet.read_table(log.path).to_pylist():
        running += {"dispatch": 1, "arrival": -1}.get(row["event"], 0)
        counts[row["time"]] = running
    return [*counts.values()]


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")
def test_the_concurrency_of_fedbuff_is_constant(tmp_path):
    counts = at_work(made("fedbuff"), tmp_path, max_updates=30)
    assert set(counts[:-1]) == {4}
    everyone = made("fedbuff", concurrency=None)
    assert set(at_work(everyone, tmp_path, max_updates=30)[:-1]) == {8}
    waiting = {**everyone, "arrivals": ContinuousArrivals(settings.fedbuff())}
    assert min(at_work(waiting, tmp_path, max_updates=30)[:-1]) == 6  # two wait in the buffer


@pytest.mark.parametrize(
    ("name", "resume"),
    [
        *((name, "on_arrival") for name in ("ace", "area", "ca2fl", "dc_asgd", "fadas")),
        *((name, "on_arrival") for name in ("fedbuff", "malenia", "rennala", "ringmaster")),
        *((name, "on_aggregation") for name in ("async_fedavg", "fedfix")),
    ],
)
def test_clients_wait_if_they_do_in_the_paper(name, resume):
    assert made(name)["arrivals"].resume == resume


def test_drawn_staleness_becomes_a_clock_with_durations():
    for name in ("afa_cd", "afa_cs", "fedasync"):
        drawn = made(name, durations=None, concurrency=None)
        timed = made(name, durations=CLOCK, concurrency=4)
        assert drawn["arrivals"].max_staleness == 4
        assert (timed["arrivals"].concurrency, timed["arrivals"].resume) == (4, "on_arrival")
        assert timed["aggregator"].buffer_size == (1 if name == "fedasync" else 5)


def first_step(**arguments):
    run = fitted(Boring(), classes(EIGHT), **arguments, max_rounds=1)
    return torch.cat([each.detach().flatten() for each in run.module.parameters()])


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")
def test_afa_cd_is_on_the_scale_of_fedbuff_at_a_server_rate_of_k():
    """At equal rates it makes steps that are K times as short."""
    torch.manual_seed(0)
    start = torch.cat([each.detach().flatten() for each in Boring().parameters()])
    ends = {}
    for rate in (1.0, 5.0):
        torch.manual_seed(0)
        ends[rate] = first_step(**methods.afa_cd(server_lr=rate, local_steps=5))
    torch.manual_seed(0)
    buffered = methods.afa_cd(local_steps=5)
    plain = first_step(**{**buffered, "aggregator": FedBuff(5, staleness=None)})
    torch.testing.assert_close(ends[5.0], plain)
    torch.testing.assert_close(5 * (ends[1.0] - start), plain - start)


def test_the_parts_of_a_method_have_the_same_numbers():
    quafl = methods.quafl(lr=0.1, per_poll=3)
    own = quafl["local_optimizer"]
    assert isinstance(own, OwnModel)
    assert own.per_poll == quafl["arrivals"].per_poll == 3
    assert own.quantizer is quafl["aggregator"].quantizer is not None
    nova = methods.fednova(lr=0.1, mu=0.5)
    assert isinstance(nova["local_optimizer"], FedProx)
    assert nova["local_optimizer"].mu == nova["aggregator"].mu == 0.5
    assert nova["local_optimizer"].lr == nova["aggregator"].local_lr == 0.1
    dc = methods.dc_asgd(lr=0.2)
    assert dc["aggregator"].local_lr == dc["local_optimizer"].lr == 0.2
    ring = methods.ringmaster(lr=0.1, max_delay=6)
    assert (ring["aggregator"].max_staleness, ring["arrivals"].restart_after) == (5, None)
    adaptive = methods.delay_adaptive_sgd(lr=0.1, concurrency=7)
    assert adaptive["aggregator"].staleness.c == adaptive["arrivals"].concurrency == 7
    prox = methods.fedasync(lr=0.1, rho=0.01)["local_optimizer"]
    assert (type(prox), prox.mu) == (FedProx, 0.01)


def test_delayed_sgd_by_hand():
    """x_(t+1) = x_t + (8 - x_(t-1)) / 2 from 0; the first two gradients are those at x_0."""
    data = [TensorDataset(torch.tensor([8.0])) for _ in range(2)]
    models = []

    class Kept(Callback):
        def on_round_end(self, trainer, module):
            models.append(trainer.state.params.item())

    method = methods.delayed_sgd(lr=0.5, tau=1)
    federation = FederatedDataModule.from_client_datasets(data, batch_size=1)
    fitted(Point(), federation, **method, max_rounds=6, callbacks=Kept())
    assert models == [4.0, 8.0, 10.0, 10.0, 9.0, 8.0]


def test_generalized_async_sgd_has_the_shares_and_the_mean_delay_of_the_network():
    process = made("generalized_async_sgd")["arrivals"]
    events = process.simulate(num_clients=8, max_rounds=3000).events
    delays = [event.time - event.dispatched_at - 1 for event in events]
    assert sum(delays) / len(delays) == pytest.approx(3.0, abs=0.15)
    share = sum(event.client == 0 for event in events) / len(events)
    assert share == pytest.approx(0.3, abs=0.03)


MISTAKES = {
    "rho without lr": (lambda: methods.fedasync(lr=None, rho=0.1), ValueError, "rho=0.1 needs lr"),
    "mu without lr": (lambda: methods.fednova(lr=None, mu=0.1), ValueError, "mu=0.1 needs lr"),
    "momentum without lr": (
        lambda: methods.fednova(lr=None, momentum=0.9),
        ValueError,
        "momentum=0.9 needs lr",
    ),
    "both": (lambda: methods.fednova(lr=0.1, momentum=0.9, mu=1.0), ValueError, "not both"),
    "no clock": (
        lambda: methods.afa_cd(concurrency=4),
        ValueError,
        "concurrency=4 needs durations, such as ExponentialDurations",
    ),
    "own optimizer": (lambda: methods.quafl(lr=None), TypeError, "quafl needs lr"),
    "tiers": (
        lambda: methods.fedat(lr=0.1, tiers={"a": [0]}, durations={"b": CLOCK}),
        ValueError,
        r"durations must have one entry for each tier, \['a'\] in this order, got \['b'\]",
    ),
    "delay": (lambda: methods.ringmaster(lr=0.1, max_delay=0), ValueError, "max_delay must be"),
    "batch": (lambda: methods.rennala(lr=0.1, batch_size=0), ValueError, "batch_size must be"),
    "share": (
        lambda: methods.fedprox(lr=0.1, mu=1.0, stragglers=2),
        ValueError,
        "stragglers must",
    ),
    "tau": (
        lambda: methods.fedadam(lr=0.1, server_lr=0.1, per_round=2, tau=0),
        ValueError,
        "tau must be",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    call, error, words = MISTAKES[mistake]
    with pytest.raises(error, match=words):
        call()


def test_a_method_is_a_mapping_that_cannot_be_changed():
    method = made("fedbuff")
    assert list(method) == ["arrivals", "aggregator", "local_optimizer"]
    assert len(method) == 3
    assert method.name == "FedBuff"
    assert repr(method).startswith("<FedBuff: arrivals=ContinuousArrivals(HalfNormalDurations(")
    assert repr(pickle.loads(pickle.dumps(method))) == repr(method)
    with pytest.raises(FrozenInstanceError):
        method.name = "other"
    with pytest.raises(TypeError, match="item assignment"):
        method["aggregator"] = FedAvg()
    changed = {**method, "local_optimizer": Scaffold(lr=0.1)}
    assert isinstance(FedTrainer(**changed, max_rounds=1).local_optimizer, Scaffold)
    assert isinstance(method["local_optimizer"], LocalSGD)
    with pytest.raises(TypeError, match="multiple values for keyword argument 'aggregator'"):
        FedTrainer(**method, aggregator=FedAvg())


def test_sparse_loco_is_diloco_where_all_is_sent():
    """Without what is left out the memories stay 0."""
    ends = []
    for method in (
        methods.sparse_loco(lr=0.01, share=1.0, server_lr=0.7, momentum=0.9, local_steps=3),
        methods.diloco(lr=0.01, local_steps=3),
    ):
        torch.manual_seed(0)
        run = fitted(Boring(), classes(EIGHT), **method, max_rounds=3)
        ends.append(torch.cat([each.detach().flatten() for each in run.module.parameters()]))
    assert torch.equal(*ends)


def test_what_an_island_of_sparse_loco_sends():
    method = methods.sparse_loco(lr=0.01, share=0.5, decay=0.5)
    channel = method["channel"]
    first = Senders([], seed=0)
    assert channel.send(torch.tensor([[4.0, 2.0]]), first).tolist() == [[4.0, 0.0]]
    assert first.memory.tolist() == [[0.0, 2.0]]
    assert channel.send(torch.tensor([[1.0, 1.0]]), first).tolist() == [[0.0, 2.0]]
    assert repr(made("sparse_loco")["channel"].channel.channels[1]) == "QSGD(4, scaled=True)"


@pytest.mark.parametrize("name", ["fedavg", "diloco"])
def test_rounds_may_end_before_all_have_arrived(name):
    """By hand: 1, 2 and 3 units; the round ends half a unit after its second arrival."""
    whole = {"per_round": None, "timeout": None} if name == "fedavg" else {}
    options = {"durations": FixedDurations([1.0, 2.0, 3.0]), "local_steps": 1, **whole}
    method = made(name, **options)
    patient = method["arrivals"].simulate(num_clients=3, max_rounds=2)
    assert patient.round_ends == [3.0, 6.0]
    method = made(name, **options, quorum=2, grace=0.5, late="continue")
    table = method["arrivals"].simulate(num_clients=3, max_rounds=2)
    assert table.round_ends == [2.5, 4.0]  # client 2 arrives at 3.0, and client 0 at 3.5
    late = [event for event in table.events if event.client == 2]
    assert [(event.time, event.pulled_version) for event in late] == [(3.0, 0)]
    with pytest.raises(ValueError, match="late='continue' needs over_select, timeout, quorum"):
        made(name, **whole, late="continue")
