"""Different names for one thing: pairs of runs that have to give the same models."""

import itertools

import pytest
import torch
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule, FedTrainer
from fedlight.aggregators import (
    AFACD,
    AFACS,
    AREA,
    CA2FL,
    DCASGD,
    MIFA,
    AsyncCommSGD,
    AsyncFedAvg,
    FedAsync,
    FedAvg,
    FedBuff,
    FedFix,
    FedNova,
    FedVARP,
    GeneralizedAsyncSGD,
    Malenia,
    Rennala,
    Ringmaster,
)
from fedlight.aggregators.staleness import Constant
from fedlight.arrivals import (
    ContinuousArrivals,
    FixedDurations,
    ReplayArrivals,
    ReplayEvent,
    SynchronousArrivals,
    UniformArrivals,
    UniformSteps,
)
from fedlight.local_optimizers import SAM, FedDyn, FedProx, LocalAdam, LocalSGD, Scaffold
from tests.aggregators.pairs import DURATIONS, EXECUTORS, Net, fit, same


@EXECUTORS
@pytest.mark.parametrize("client_weights", ["uniform", "examples"])
def test_fedfix_with_a_long_interval_is_synchronous_fedavg(executor, client_weights):
    steps = {"local_steps": 3}
    same(
        fit(
            ContinuousArrivals(DURATIONS, **steps),
            FedFix(1.0, client_weights),
            executor=executor,
        ),
        fit(
            SynchronousArrivals(durations=DURATIONS, **steps),
            FedAvg(client_weights=client_weights),
            executor=executor,
        ),
    )


@EXECUTORS
def test_fedbuff_of_one_without_discount_is_identical_async_fedavg(executor):
    arrivals = ContinuousArrivals(DURATIONS, local_steps=2)
    same(
        fit(arrivals, FedBuff(1, Constant()), executor=executor),
        fit(arrivals, AsyncFedAvg("identical"), executor=executor),
    )


@EXECUTORS
def test_time_based_with_equal_clients_is_identical(executor):
    arrivals = ContinuousArrivals(FixedDurations([0.7] * 4), local_steps=2)
    same(
        fit(arrivals, AsyncFedAvg("time_based"), executor=executor),
        fit(arrivals, AsyncFedAvg("identical"), executor=executor),
    )


@EXECUTORS
def test_fedasync_with_alpha_1_takes_the_clients_model(executor):
    """Then the server's model is the last client's: the same as a chain of local runs."""
    events = [ReplayEvent(0, 0, 1.0, 2), ReplayEvent(1, 0, 2.0, 3), ReplayEvent(2, 1, 3.0, 2)]
    ours = fit(ReplayArrivals(events), FedAsync(1.0), executor=executor)
    alone = fit(
        ReplayArrivals([ReplayEvent(1, 0, 1.0, 3)]), FedAvg(1), executor=executor, max_rounds=1
    )
    torch.testing.assert_close(ours[1].params, alone[0].params)
    torch.testing.assert_close(ours[1].buffers, alone[0].buffers)


@EXECUTORS
def test_fedasync_of_fresh_updates_is_async_fedavg_at_that_rate(executor):
    events = [ReplayEvent(number % 4, number, 1.0 + number, 2) for number in range(6)]
    ours = fit(ReplayArrivals(events), FedAsync(0.3), executor=executor)
    theirs = fit(ReplayArrivals(events), AsyncFedAvg("identical", server_lr=0.3), executor=executor)
    for one, other in zip(ours[:1], theirs[:1], strict=True):
        torch.testing.assert_close(one.params, other.params)
    # The buffers are mixed by FedAsync and taken over by AsyncFedAvg.
    assert not torch.allclose(ours[0].buffers, theirs[0].buffers)


@EXECUTORS
def test_afacs_with_everybody_present_is_afacd(executor):
    arrivals = UniformArrivals(per_round=4, max_staleness=2, local_steps=UniformSteps(1, 4))
    same(
        fit(arrivals, AFACS(), executor=executor),
        fit(arrivals, AFACD(), executor=executor),
    )


@EXECUTORS
def test_afacd_of_equal_steps_is_fedavg_at_a_rate(executor):
    arrivals = UniformArrivals(per_round=2, max_staleness=2, local_steps=5)
    same(
        fit(arrivals, AFACD(server_lr=2.5), executor=executor),
        fit(arrivals, FedAvg(client_weights="uniform", server_lr=0.5), executor=executor),
    )


@EXECUTORS
def test_async_comm_sgd_with_everybody_at_every_tick_is_fedavg(executor):
    arrivals = ContinuousArrivals(FixedDurations([1.0] * 4), local_steps=1)
    same(
        fit(arrivals, AsyncCommSGD(), executor=executor),
        fit(arrivals, FedAvg(4, "uniform"), executor=executor),
    )


@EXECUTORS
def test_fedprox_without_mu_is_sgd(executor):
    arrivals = UniformArrivals(per_round=2, max_staleness=2, local_steps=UniformSteps(1, 4))
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
    same(
        fit(arrivals, AFACD(), FedProx(mu=0.0, **options), executor),
        fit(arrivals, AFACD(), LocalSGD(**options), executor),
    )


@EXECUTORS
@pytest.mark.parametrize(
    "aggregator",
    [
        FedAvg(1),
        AFACD(1),
        FedAsync(1.0),
        AsyncFedAvg("identical"),
        FedBuff(1),
        FedFix(1.0, "examples"),
        AsyncCommSGD(),
        AFACS(1),
        MIFA(1),
        FedVARP(1, 0.5),
        CA2FL(1),
        AREA(1),
        Ringmaster(0),
        Rennala(1),
        Malenia(),
        DCASGD(0.3),
        GeneralizedAsyncSGD([1.0]),
        FedNova(1),
    ],
    ids=repr,
)
def test_one_client_and_one_step_is_central_sgd(executor, aggregator):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(2, (8,), generator=generator)
    module = Net()
    trainer = FedTrainer(
        arrivals=ContinuousArrivals(FixedDurations([1.0]), local_steps=1),
        aggregator=aggregator,
        local_optimizer=LocalSGD(0.05),
        executor=executor,
        precision="64-true",
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        max_rounds=5,
    )
    whole = FederatedDataModule.from_client_datasets([TensorDataset(x, y)], batch_size=8)
    trainer.fit(module, whole)
    central = Net()
    sgd = torch.optim.SGD(central.parameters(), lr=0.05)
    for _ in range(5):
        sgd.zero_grad()
        central.training_step((x, y), 0).backward()
        sgd.step()
    for ours, theirs in zip(module.state_dict().items(), central.state_dict().items(), strict=True):
        assert ours[0] == theirs[0]
        torch.testing.assert_close(ours[1], theirs[1])


@pytest.mark.parametrize(
    "optimizer",
    [
        FedProx(0.05, 0.5),
        Scaffold(0.05),
        Scaffold(0.05, option=1),
        LocalAdam(0.05),
        FedDyn(0.05, 0.5),
        SAM(0.05, 0.5),
        LocalSGD(0.05, momentum=0.9),
        LocalSGD(0.05, weight_decay=0.1),
        LocalSGD(0.05, max_grad_norm=0.01),
        LocalSGD(lambda version: 0.05 / (1 + version)),
    ],
    ids=range(10),
)
def test_executors_agree_and_no_rule_is_silently_sgd(optimizer):
    arrivals = UniformArrivals(per_round=3, max_staleness=2, local_steps=UniformSteps(1, 4))
    one, other, plain = (
        fit(arrivals, AFACD(), rule, executor)
        for rule, executor in [
            (optimizer, "sequential"),
            (optimizer, "vectorized"),
            (LocalSGD(0.05), "vectorized"),
        ]
    )
    same(one, other)
    assert not torch.allclose(one[-1].params, plain[-1].params, atol=1e-4)


def test_local_rates_follow_the_version_that_was_pulled():
    """Versions 0 and 1 train at rates 0.1 and 0; the stale update from 0 still moves."""
    events = [ReplayEvent(0, 0, 1.0, 1), ReplayEvent(1, 1, 2.0, 1), ReplayEvent(2, 0, 3.0, 1)]
    states = fit(
        ReplayArrivals(events), FedAvg(1), LocalSGD(lambda version: 0.1 if version == 0 else 0.0)
    )
    moved = [not torch.equal(one.params, other.params) for one, other in itertools.pairwise(states)]
    assert moved == [False, True]
