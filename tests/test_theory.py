"""The papers' theory seen in numbers, on quadratics whose optimum is known.

f_i(x) = (x - c_i)²/2, so the federated problem with importances p has its optimum at
``sum of p_i * c_i``, and one local step moves by ``lr * (c_i - x)``.
"""

from functools import cache

import pytest
import torch
from lightning import LightningModule
from torch.utils.data import TensorDataset

from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight.aggregators import (
    AFACD,
    AFACS,
    AREA,
    CA2FL,
    MIFA,
    AsyncFedAvg,
    FedAsync,
    FedAvg,
    FedBuff,
    FedDynServer,
    FedFix,
    FedVARP,
    GeneralizedAsyncSGD,
    Malenia,
    Ringmaster,
)
from fedlight.aggregators.staleness import Constant
from fedlight.arrivals import (
    BiasedArrivals,
    ContinuousArrivals,
    FixedDurations,
    PerClientSteps,
    ReplayArrivals,
    ReplayEvent,
    UniformArrivals,
)
from fedlight.local_optimizers import FedDyn, LocalSGD

pytestmark = pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")

TIMES = [1.0, 0.8, 0.6, 0.4, 0.2]
CENTRES = [2.0, 1.0, 0.0, -1.0, -2.0]
OPTIMUM = 0.0
RATES = [1 / time for time in TIMES]
PULLED = sum(rate * c for rate, c in zip(RATES, CENTRES, strict=True)) / sum(RATES)


class Parabola(LightningModule):
    def __init__(self, scale: float = 0.5) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(()))
        self.scale = scale

    def training_step(self, batch, batch_idx):
        return self.scale * ((self.x - batch[0]) ** 2).mean()


class Path(Callback):
    """The model after each round."""

    def __init__(self) -> None:
        self.models: list[float] = []

    def on_round_end(self, trainer, module):
        self.models.append(float(trainer.state.params))


def path(arrivals, aggregator, lr: float, centres, scale: float = 0.5, **limits) -> list[float]:
    clients = [TensorDataset(torch.tensor([centre])) for centre in centres]
    watch = Path()
    trainer = FedTrainer(
        arrivals=arrivals,
        aggregator=aggregator,
        local_optimizer=LocalSGD(lr=lr),
        callbacks=watch,
        executor="vectorized",
        precision="64-true",
        logger=False,
        enable_progress_bar=False,
        **limits,
    )
    trainer.fit(Parabola(scale), FederatedDataModule.from_client_datasets(clients, batch_size=1))
    return watch.models


def long_run_mean(aggregator, lr: float = 0.02, resume: str = "on_aggregation") -> float:
    """The mean over the last ten units of virtual time, a multiple of every client's cycle."""
    arrivals = ContinuousArrivals(FixedDurations(TIMES), resume=resume, local_steps=1)
    models = path(arrivals, aggregator, lr, CENTRES, max_time=50.0)
    last = models[-len(models) // 5 :]
    return sum(last) / len(last)


@cache
def plain_buffer() -> float:
    return long_run_mean(FedBuff(2, Constant()), resume="on_arrival")


def test_time_based_weights_reach_the_optimum_that_identical_weights_miss() -> None:
    assert pytest.approx(-9.25 / 11.41667, abs=1e-5) == PULLED  # where fast clients pull to
    identical = long_run_mean(AsyncFedAvg("identical"))
    time_based = long_run_mean(AsyncFedAvg("time_based"))
    assert identical == pytest.approx(PULLED, abs=0.05)
    assert abs(time_based - OPTIMUM) < 0.05
    # What is left is of the order of the local rate: Theorem 4's last terms.
    smaller = long_run_mean(AsyncFedAvg("time_based"), lr=0.0025)
    assert abs(smaller - OPTIMUM) < abs(time_based - OPTIMUM)


def test_fedfix_reaches_the_optimum_and_a_plain_buffer_does_not() -> None:
    assert abs(long_run_mean(FedFix(interval=0.5), lr=0.05) - OPTIMUM) < 0.02
    buffered = long_run_mean(FedBuff(2, Constant()), lr=0.02, resume="on_arrival")
    assert buffered == pytest.approx(PULLED, abs=0.1)


@pytest.mark.parametrize(
    "aggregator",
    [AFACD(buffer_size=1), AFACS(buffer_size=1), FedAsync(0.5), AsyncFedAvg(), FedBuff(1)],
    ids=lambda aggregator: type(aggregator).__name__,
)
def test_theorem_1_of_anarchic_fl(aggregator) -> None:
    """f_1 = (x + G)², f_2 = (x - G)²: where only client 1 ever comes, x goes to -G."""
    scale, rounds = 3.0, 200
    events = [ReplayEvent(0, v, v + 1.0, num_steps=2) for v in range(rounds)]
    arrivals = ReplayArrivals(events, durations=[1.0, 1.0])
    final = path(arrivals, aggregator, 0.1, [-scale, scale], scale=1.0)[-1]
    assert final == pytest.approx(-scale, abs=1e-3)
    gradient = 2 * final  # of f = (f_1 + f_2) / 2
    assert gradient**2 == pytest.approx(4 * scale**2, rel=1e-3)


def test_afa_cs_removes_the_floor_that_afa_cd_keeps_under_biased_arrivals() -> None:
    centres = [3.0, 3.0, 0.0, 0.0, 0.0, -1.0, -1.0, -1.0, -1.0, -2.0]
    optimum = sum(centres) / 10
    weights = [0.19, 0.19, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01]
    mean = {}
    for aggregator in (AFACD(), AFACS(), MIFA(None), FedVARP()):
        arrivals = BiasedArrivals(5, weights, max_staleness=4, local_steps=3)
        models = path(arrivals, aggregator, 0.02, centres, max_rounds=300)
        mean[type(aggregator).__name__] = sum(models[-150:]) / 150
    # Clients 0 and 1 take part in more rounds than the last two, by far.
    assert mean["AFACD"] - optimum > 0.3
    for memory in ("AFACS", "MIFA", "FedVARP"):
        assert abs(mean[memory] - optimum) < 0.06


@pytest.mark.parametrize(
    "aggregator",
    [MIFA(2), CA2FL(2), AREA(2), Malenia()],
    ids=lambda aggregator: type(aggregator).__name__,
)
def test_slow_clients_are_not_forgotten(aggregator) -> None:
    """A plain buffer goes where fast clients pull to; these do not, though nobody waits."""
    assert plain_buffer() == pytest.approx(PULLED, abs=0.1)
    assert abs(long_run_mean(aggregator, resume="on_arrival") - OPTIMUM) < 0.06


def test_importance_makes_up_for_the_share_of_arrivals() -> None:
    shares = [rate / sum(RATES) for rate in RATES]
    corrected = long_run_mean(GeneralizedAsyncSGD(shares), resume="on_arrival")
    assert abs(corrected - OPTIMUM) < 0.05
    plain = long_run_mean(GeneralizedAsyncSGD([0.2] * 5), resume="on_arrival")
    assert plain == pytest.approx(PULLED, abs=0.1)


class Bowl(Parabola):
    """f_i(x) = a_i/2 * (x - c_i)^2, with a_i in the data."""

    def training_step(self, batch, batch_idx):
        centre, steepness = batch[0].T
        return (steepness * (self.x - centre) ** 2).mean() / 2


@pytest.mark.parametrize(("per_round", "executor"), [(5, "sequential"), (3, "vectorized")])
def test_feddyn_goes_to_the_optimum_of_the_mean_loss(per_round, executor) -> None:
    """Clients of unequal steepness make unequal numbers of steps, which moves FedAvg elsewhere."""
    steep = [0.4, 1.0, 2.0, 1.5, 0.7]
    optimum = sum(a * c for a, c in zip(steep, CENTRES, strict=True)) / sum(steep)
    rows = [torch.tensor([pair]) for pair in zip(CENTRES, steep, strict=True)]
    data = FederatedDataModule.from_client_datasets(map(TensorDataset, rows), batch_size=1)
    ends = []
    for aggregator, optimizer in [
        (FedDynServer(2.0), FedDyn(0.2, 2.0)),
        (FedAvg(client_weights="uniform"), LocalSGD(0.2)),
    ]:
        trainer = FedTrainer(
            arrivals=UniformArrivals(per_round, local_steps=PerClientSteps([1, 6, 2, 4, 8])),
            aggregator=aggregator,
            local_optimizer=optimizer,
            executor=executor,
            precision="64-true",
            max_rounds=60,
            logger=False,
            enable_progress_bar=False,
        )
        trainer.fit(Bowl(), data)
        ends.append(float(trainer.state.params))
    assert ends[0] == pytest.approx(optimum, abs=1e-6)
    assert abs(ends[1] - optimum) > 0.05


@pytest.mark.parametrize("largest", [0, 2])
def test_no_delay_of_ringmaster_reaches_its_threshold(largest) -> None:
    clients = [TensorDataset(torch.tensor([centre])) for centre in CENTRES]
    trainer = FedTrainer(
        arrivals=ContinuousArrivals(FixedDurations(TIMES), resume="on_arrival", local_steps=1),
        aggregator=Ringmaster(largest),
        local_optimizer=LocalSGD(0.01),
        max_time=20.0,
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Parabola(), FederatedDataModule.from_client_datasets(clients, batch_size=1))
    used = [update.staleness for record in trainer.history for update in record.updates]
    late = [update.staleness for record in trainer.history for update in record.dropped]
    assert max(used) == largest < min(late)
