"""Where methods that papers compare with coincide: pairs of runs with the same models."""

import pytest
import torch

from fedlight.aggregators import (
    AFACS,
    AREA,
    CA2FL,
    DCASGD,
    FADAS,
    MIFA,
    AsyncFedAvg,
    FedAvg,
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
from fedlight.arrivals import (
    ContinuousArrivals,
    ExponentialDurations,
    FixedDurations,
    SynchronousArrivals,
    UniformArrivals,
    UniformSteps,
)
from fedlight.local_optimizers import SAM, FedDyn, FedProx, LocalSGD
from tests.aggregators.pairs import EXECUTORS, Net, fit, same

STEPS = UniformSteps(1, 4)
EVERYBODY = UniformArrivals(per_round=4, max_staleness=2, local_steps=STEPS)
SOME = UniformArrivals(per_round=2, max_staleness=2, local_steps=STEPS)
CLOCK = ContinuousArrivals(ExponentialDurations(1.0), resume="on_arrival", local_steps=STEPS)
LOCKSTEP = ContinuousArrivals(FixedDurations([1.0] * 4), local_steps=2)


def different(ours, theirs):
    assert not torch.allclose(ours[-1].params, theirs[-1].params, atol=1e-6)


@EXECUTORS
@pytest.mark.parametrize(
    "aggregator",
    [MIFA(None), FedVARP(), FedVARP(beta=0.4), FedVARP(beta=0.0), AREA(4)],
    ids=repr,
)
def test_with_everybody_present_they_are_fedavg(executor, aggregator):
    """AREA adds up models, so it is FedAvg only if nobody is stale."""
    stale = 0 if isinstance(aggregator, AREA) else 2
    arrivals = UniformArrivals(per_round=4, max_staleness=stale, local_steps=STEPS)
    same(
        fit(arrivals, aggregator, executor=executor),
        fit(arrivals, FedAvg(client_weights="uniform"), executor=executor),
    )


@EXECUTORS
def test_ace_is_afacs_of_one_step(executor):
    arrivals = ContinuousArrivals(ExponentialDurations(1.0), resume="on_arrival", local_steps=1)
    same(
        fit(arrivals, MIFA(), executor=executor, max_rounds=8),
        fit(arrivals, AFACS(1), executor=executor, max_rounds=8),
    )


def test_the_first_step_of_mifa_is_a_share_of_fedvarps():
    """m of M clients: the others count as 0 for MIFA, and not at all for FedVARP."""
    mifa, varp = (fit(SOME, make, max_rounds=1)[0].params for make in (MIFA(None), FedVARP()))
    start = torch.nn.utils.parameters_to_vector(Net().parameters()).detach().to(mifa.device)
    torch.testing.assert_close(mifa - start, 2 / 4 * (varp - start))


@EXECUTORS
def test_without_memory_there_is_no_correction(executor):
    plain = fit(CLOCK, FedBuff(3, None), executor=executor)
    for ours, theirs in zip(fit(CLOCK, FedVARP(3, 0.0), executor=executor), plain, strict=True):
        assert torch.equal(ours.params, theirs.params)
    calibrated = fit(CLOCK, CA2FL(3), executor=executor)
    torch.testing.assert_close(calibrated[0].params, plain[0].params)  # the cache is empty
    different(calibrated, plain)


@EXECUTORS
def test_ca2fl_is_fedvarp_of_a_buffer(executor):
    ours = fit(CLOCK, CA2FL(3, server_lr=0.7), executor=executor)
    for one, other in zip(ours, fit(CLOCK, FedVARP(3, 1.0, 0.7), executor=executor), strict=True):
        assert torch.equal(one.params, other.params)


def test_fadas_without_delay_is_fedavg_with_amsgrad():
    arrivals = UniformArrivals(per_round=3, local_steps=STEPS)

    def amsgrad(params):
        return torch.optim.Adam(params, lr=0.05, betas=(0.9, 0.99), eps=1e-8, amsgrad=True)

    average = {"client_weights": "uniform", "server_optimizer": amsgrad}
    for delay in ("reciprocal", "divided"):
        corrected = FADAS(3, 0.05, delay=delay, bias_correction=True)
        same(fit(arrivals, corrected), fit(arrivals, FedAvg(3, **average)))


def test_fadas_adapts_to_large_delays_only():
    rounds = {"max_rounds": 6}
    plain = fit(CLOCK, FADAS(2, 0.5, delay="none"), **rounds)
    for within in (
        FADAS(2, 0.5, tau_c=100),
        FADAS(2, 0.5, tau_c=100, delay="divided"),
    ):
        same(fit(CLOCK, within, **rounds), plain)
    different(fit(CLOCK, FADAS(2, 0.5, tau_c=0), **rounds), plain)
    small = fit(CLOCK, FADAS(2, 0.01, tau_c=0), **rounds)
    same(small, fit(CLOCK, FADAS(2, 0.01, delay="none"), **rounds))  # eta <= 1/T
    different(fit(CLOCK, FADAS(2, 0.01, tau_c=0, delay="divided"), **rounds), small)


@EXECUTORS
@pytest.mark.parametrize(
    "aggregator",
    [
        DCASGD(0.0),
        DCASGD(0.0, local_lr=0.05, decay=0.9),
        FedBuff(1, DelayAdaptive(10**6)),
        FedBuff(1, None),
        Ringmaster(None),
        GeneralizedAsyncSGD([0.25] * 4),
    ],
    ids=range(6),
)
def test_they_are_asynchronous_sgd(executor, aggregator):
    same(
        fit(CLOCK, aggregator, executor=executor, max_rounds=8),
        fit(CLOCK, AsyncFedAvg("identical"), executor=executor, max_rounds=8),
    )


def test_these_are_not():
    plain = fit(CLOCK, AsyncFedAvg("identical"), max_rounds=8)
    for other in (DCASGD(30.0), FedBuff(1, DelayAdaptive(0.5)), Ringmaster(1)):
        different(fit(CLOCK, other, max_rounds=8), plain)


def test_delays_up_to_the_number_in_flight_count_in_full():
    """Equal durations with four in flight: every update is three versions old from then on."""
    arrivals = ContinuousArrivals(FixedDurations([1.0] * 4), resume="on_arrival", local_steps=2)
    given = {"max_rounds": 12}
    plain = fit(arrivals, FedBuff(1, None), **given)
    same(fit(arrivals, FedBuff(1, DelayAdaptive(3)), **given), plain)
    different(fit(arrivals, FedBuff(1, DelayAdaptive(2)), **given), plain)


@EXECUTORS
def test_dc_asgd_of_fresh_updates_is_asynchronous_sgd(executor):
    arrivals = ContinuousArrivals(FixedDurations([1.0] * 4), concurrency=1, local_steps=2)
    same(
        fit(arrivals, DCASGD(5.0), executor=executor),
        fit(arrivals, AsyncFedAvg("identical"), executor=executor),
    )


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")
@EXECUTORS
def test_ringmaster_of_delay_1_is_rennala_of_batch_1(executor):
    same(
        fit(CLOCK, Ringmaster(0), executor=executor),
        fit(CLOCK, Rennala(1), executor=executor),
    )


@EXECUTORS
@pytest.mark.parametrize("aggregator", [Rennala(4), Malenia(), AREA(4)], ids=repr)
def test_in_lockstep_they_are_synchronous_fedavg(executor, aggregator):
    barrier = SynchronousArrivals(durations=FixedDurations([1.0] * 4), local_steps=2)
    same(
        fit(LOCKSTEP, aggregator, executor=executor),
        fit(barrier, FedAvg(client_weights="uniform"), executor=executor),
    )


def test_malenia_of_equal_counts_is_rennala():
    arrivals = ContinuousArrivals(FixedDurations([1.0] * 4), resume="on_arrival", local_steps=2)
    same(fit(arrivals, Malenia(8), max_rounds=2), fit(arrivals, Rennala(8), max_rounds=2))


@EXECUTORS
@pytest.mark.parametrize("client_weights", ["examples", "uniform"])
def test_fednova_of_equal_steps_is_fedavg(executor, client_weights):
    arrivals = UniformArrivals(per_round=2, max_staleness=2, local_steps=3)
    plain = fit(arrivals, FedAvg(None, client_weights), executor=executor)
    same(fit(arrivals, FedNova(client_weights=client_weights), executor=executor), plain)
    heavy, told = LocalSGD(0.05, momentum=0.5), FedNova(None, 1.0, client_weights, momentum=0.5)
    plain = fit(arrivals, FedAvg(None, client_weights), heavy, executor=executor)
    same(fit(arrivals, told, heavy, executor=executor), plain)
    unequal = fit(SOME, FedNova(client_weights=client_weights), executor=executor)
    different(unequal, fit(SOME, FedAvg(None, client_weights), executor=executor))


@EXECUTORS
def test_the_first_round_of_feddyn(executor):
    """Clients do what FedProx does, and the server goes twice as far if all take part."""
    arrivals = UniformArrivals(per_round=4, local_steps=STEPS)
    given = {"executor": executor, "max_rounds": 2}
    ours = fit(arrivals, FedDynServer(0.3), FedDyn(0.05, 0.3), **given)
    twice = FedAvg(client_weights="uniform", server_lr=2.0)
    theirs = fit(arrivals, twice, FedProx(0.05, 0.3), **given)
    torch.testing.assert_close(ours[0].params, theirs[0].params)
    different(ours, theirs)


@EXECUTORS
def test_sam_without_rho_is_sgd(executor):
    options = {"momentum": 0.9, "weight_decay": 0.01, "max_grad_norm": 0.5}
    plain = fit(SOME, FedAvg(), LocalSGD(0.05, **options), executor)
    for one, other in zip(
        fit(SOME, FedAvg(), SAM(0.05, 0.0, **options), executor), plain, strict=True
    ):
        assert torch.equal(one.params, other.params)
    different(fit(SOME, FedAvg(), SAM(0.05, 0.5, **options), executor), plain)
