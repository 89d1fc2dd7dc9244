"""What holds for every arrival process x aggregator x local optimizer, on a tiny model.

A new strategy is a row in one of the tables.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning import LightningModule
from torch.utils.data import TensorDataset

import fedlight.aggregators
import fedlight.arrivals
import fedlight.channel
import fedlight.local_optimizers
from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight.aggregators import (
    AFACD,
    AFACS,
    AREA,
    CA2FL,
    DCASGD,
    FADAS,
    FAVAS,
    MIFA,
    Aggregator,
    AsyncCommSGD,
    AsyncFedAvg,
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
    HALoS,
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
from fedlight.aggregators.staleness import Hinge, Polynomial
from fedlight.arrivals import (
    ArrivalProcess,
    Availability,
    BiasedArrivals,
    CommunicationPattern,
    CompassArrivals,
    ConstantStaleness,
    ContinuousArrivals,
    DropOut,
    ExponentialDurations,
    Failures,
    FixedDurations,
    LeastVisitedShards,
    Oort,
    PartialWork,
    Pisces,
    PoissonArrivals,
    PolledArrivals,
    PowerOfChoice,
    RandomTicks,
    RefreshedTasks,
    Regions,
    ReplayArrivals,
    ReplayEvent,
    SharedStream,
    StepDurations,
    StepsBySpeed,
    SynchronousArrivals,
    Tiers,
    TrialRounds,
    UniformArrivals,
    UniformSteps,
)
from fedlight.channel import QSGD, Chain, Channel, Clip, ErrorFeedback, GaussianNoise, RandomK, TopK
from fedlight.local_optimizers import (
    SAM,
    FedDyn,
    FedProx,
    FreshModel,
    LocalAdam,
    LocalAdamW,
    LocalOptimizer,
    LocalSGD,
    ModuleOptimizer,
    OwnModel,
    Scaffold,
    WarmupCosine,
)

NUM_CLIENTS = 4
ROUNDS = 4
STEPS = UniformSteps(1, 3)


def _replayed() -> ReplayArrivals:
    process = ContinuousArrivals(ExponentialDurations(1.0), resume="on_arrival", local_steps=STEPS)
    table = process.simulate(NUM_CLIENTS, max_updates=24, buffer_size=1)
    events = [ReplayEvent(e.client, 0, e.time, e.num_steps, e.dispatched_at) for e in table.events]
    return ReplayArrivals(events, durations=[1.0] * NUM_CLIENTS)


ARRIVALS: dict[str, Callable[[], ArrivalProcess]] = {
    "uniform": lambda: UniformArrivals(2, max_staleness=2, local_steps=STEPS),
    "biased": lambda: BiasedArrivals(2, [0.5, 0.3, 0.1, 0.1], 1, local_steps=STEPS),
    "synchronous": lambda: SynchronousArrivals(3, ExponentialDurations(1.0), local_steps=STEPS),
    "continuous": lambda: ContinuousArrivals(FixedDurations([1, 0.7, 0.4, 0.3]), local_steps=STEPS),
    "continuous-2": lambda: ContinuousArrivals(
        ExponentialDurations(0.5), concurrency=2, idle=0.1, resume="on_arrival", local_steps=STEPS
    ),
    "continuous-restarts": lambda: ContinuousArrivals(
        ExponentialDurations(0.5), resume="on_arrival", local_steps=STEPS, restart_after=1
    ),
    "over-selection": lambda: SynchronousArrivals(2, ExponentialDurations(1.0), STEPS, 1),
    "timeout": lambda: SynchronousArrivals(
        [[0, 1, 2, 3], [1, 3]] * 4, ExponentialDurations(1.0), STEPS, timeout=1.0, late="cut"
    ),
    "grace": lambda: SynchronousArrivals(
        3, ExponentialDurations(1.0), StepsBySpeed(3, [1, 2, 4, 3], least=1), quorum=2, grace=0.1
    ),
    "late ones continue": lambda: SynchronousArrivals(
        None, ExponentialDurations(1.0), STEPS, late="continue", grace=0.2
    ),
    "polled": lambda: PolledArrivals(2, 0.7, ExponentialDurations(0.5), 3),
    "tiers": lambda: Tiers(
        {
            "fast": SynchronousArrivals(2, ExponentialDurations(0.4), STEPS),
            "slow": SynchronousArrivals(1, ExponentialDurations(1.0), STEPS),
        },
        clients={"fast": [3, 0, 1], "slow": [2]},
    ),
    "regions": lambda: Regions(
        {
            "near": ContinuousArrivals(ExponentialDurations(0.5), local_steps=STEPS),
            "far": ContinuousArrivals(ExponentialDurations(0.4), local_steps=STEPS),
        },
        {"near": [3, 0], "far": [2, 1]},
        arrivals_per_send=2,
        up={"near": 0.0, "far": 0.3},
        down=0.1,
        within=0.05,
    ),
    "poisson": lambda: PoissonArrivals(3.0, ExponentialDurations(1.0), local_steps=STEPS),
    "communication": lambda: CommunicationPattern(RandomTicks(0.6, max_gap=3)),
    "replay": _replayed,
    "constant": lambda: ConstantStaleness(1, 2, STEPS),
    "failures": lambda: Failures(ARRIVALS["continuous-2"](), 2.0, 0.5),
    "trials": lambda: TrialRounds(ExponentialDurations(1.0), 0.8, [2, 1, 1, 3], STEPS),
    "compass": lambda: CompassArrivals(StepDurations([0.1, 0.13, 0.2, 0.5]), 2, 6),
    "refreshed": lambda: RefreshedTasks(
        ContinuousArrivals(ExponentialDurations(0.5), resume="on_arrival", local_steps=STEPS)
    ),
    "drop-out": lambda: DropOut(ARRIVALS["continuous"](), 0.3),
    "oort": lambda: Oort(
        SynchronousArrivals(2, ExponentialDurations(1.0), STEPS), "loss", pacer_window=1
    ),
    "pisces": lambda: Pisces(
        ContinuousArrivals(ExponentialDurations(1.0), concurrency=2, local_steps=STEPS), "loss"
    ),
    "power of choice": lambda: PowerOfChoice(
        PoissonArrivals(3.0, ExponentialDurations(1.0), local_steps=STEPS), 2, "loss"
    ),
    "partial work": lambda: PartialWork(ARRIVALS["uniform"](), 0.5),
    "stream": lambda: SharedStream(ARRIVALS["continuous"](), 4),
    "shards": lambda: LeastVisitedShards(ARRIVALS["uniform"](), 4, "examples"),
    "available": lambda: Availability(ARRIVALS["continuous"](), [(0, 2.5), (4, 40)]),
}
AGGREGATORS: dict[str, Callable[[int | None], Aggregator]] = {
    "FedAvg": lambda size: FedAvg(size),
    "FedAvg-Adam": lambda size: FedAvg(
        size, "uniform", server_optimizer=lambda p: torch.optim.Adam(p, lr=0.05)
    ),
    "AFACD": lambda size: AFACD(size, server_lr=lambda version: 1 / (1 + version)),
    "AFACS": lambda size: AFACS(size),
    "FedAsync": lambda size: FedAsync(0.6, Hinge(10, 1), max_staleness=4),
    "AsyncFedAvg": lambda size: AsyncFedAvg("time_based"),
    "FedFix": lambda size: FedFix(0.5),
    "FedBuff": lambda size: FedBuff(3, Polynomial(0.5)),
    "AsyncCommSGD": lambda size: AsyncCommSGD(1.0),
    "MIFA": lambda size: MIFA(size, server_lr=0.7),
    "FedVARP": lambda size: FedVARP(size, 0.4),
    "CA2FL": lambda size: CA2FL(3),
    "FADAS": lambda size: FADAS(2, 0.05),
    "DelayedNesterov": lambda size: DelayedNesterov(3, 0.8, 0.7, c=0.2),
    "LookAhead": lambda size: LookAhead(0.8, 0.7),
    "HeLoCo": lambda size: HeLoCo(0.8, 0.7, c_ok=0.3),
    "HALoS": lambda size: HALoS(2, 0.5, 0.8, region_period=2, region_lr=0.9),
    "AREA": lambda size: AREA(2),
    "MindFlayer": lambda size: MindFlayer([2, 1, 1, 3], [0.5, 0.9, 0.1, 1.0], "clients"),
    "Ringleader": lambda size: Ringleader(0.7),
    "FedBuffMA": lambda size: FedBuffMA(3, 0.8, 0.7),
    "Ringmaster": lambda size: Ringmaster(2, server_lr=0.5),
    "Rennala": lambda size: Rennala(2),
    "Malenia": lambda size: Malenia(),
    "DCASGD": lambda size: DCASGD(0.04, 0.5, local_lr=0.05, decay=0.95),
    "GeneralizedAsyncSGD": lambda size: GeneralizedAsyncSGD([0.4, 0.3, 0.2, 0.1], 0.5),
    "FedNova": lambda size: FedNova(size),
    "FedDynServer": lambda size: FedDynServer(0.5, size),
    "QuAFL": lambda size: QuAFL(size, Lattice(1e-3, 16)),
    "FAVAS": lambda size: FAVAS(size),
    "FedAT": lambda size: FedAT(size),
    "PrivateSum": lambda size: PrivateSum(FedBuff(2, server_lr=0.5), 0.5, 0.1),
    "FedCompass": lambda size: FedCompass(size, average="models"),
    "FedASMU": lambda size: FedASMU(lam_rate=0.1, sigma_rate=0.1, iota_rate=0.1, local_lr=0.05),
}
OPTIMIZERS: dict[str, Callable[[], LocalOptimizer]] = {
    "LocalSGD": lambda: LocalSGD(0.05, momentum=0.5, weight_decay=0.01, max_grad_norm=5.0),
    "FedProx": lambda: FedProx(lambda version: 0.1 / (1 + version), mu=0.5),
    "Scaffold": lambda: Scaffold(0.05),
    "Scaffold-I": lambda: Scaffold(0.05, option=1),
    "FedDyn": lambda: FedDyn(0.05, alpha=0.5, momentum=0.5),
    "SAM": lambda: SAM(lambda version: 0.1 / (1 + version), rho=0.1, momentum=0.5),
    "LocalAdam": lambda: LocalAdam(0.05),
    "LocalAdamW": lambda: LocalAdamW(WarmupCosine(0.05, 2, 20), keep="client"),
    "LocalSGD-kept": lambda: LocalSGD(0.05, momentum=0.5, keep="client"),
    "ModuleOptimizer": lambda: ModuleOptimizer(),
    "OwnModel": lambda: OwnModel(LocalSGD(0.05, momentum=0.5), 2, lr_correction=True),
    "FreshModel": lambda: FreshModel(LocalSGD(0.05), gamma_rate=0.1, upsilon_rate=0.1),
}
CHANNELS: dict[str, Callable[[], Channel]] = {
    "Clip": lambda: Clip(0.5),
    "TopK": lambda: TopK(0.5),
    "RandomK": lambda: RandomK(0.5),
    "QSGD": lambda: QSGD(4),
    "GaussianNoise": lambda: GaussianNoise(0.5, 0.1),
    "Chain": lambda: Chain([Clip(0.5), QSGD(4)]),
    "ErrorFeedback": lambda: ErrorFeedback(TopK(0.5)),
    "ErrorFeedback-decay": lambda: ErrorFeedback(TopK(0.5), decay=0.5),
    "ErrorFeedback-QSGD": lambda: ErrorFeedback([RandomK(0.5), QSGD(3)]),
}


class Tiny(LightningModule):
    """Two numbers pulled towards the client's examples."""

    def __init__(self) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor([1.0, -1.0]))

    def training_step(self, batch, batch_idx):
        loss = ((self.x - batch[0]) ** 2).sum(dim=-1).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


CENTRES = [[3.0, 0.0], [0.0, 2.0], [-1.0, -1.0], [0.5, 4.0]]
CLIENTS = [
    TensorDataset(torch.tensor(centre) + torch.arange(2.0 * size).reshape(size, 2) / 10)
    for centre, size in zip(CENTRES, (2, 3, 5, 4), strict=True)
]


class Rules(Callback):
    """Checks each event as it happens, and keeps a checkpoint of the middle of the run."""

    def __init__(self, checkpoint: Path | None = None, one_at_a_time: bool = False) -> None:
        self.checkpoint, self.one_at_a_time = checkpoint, one_at_a_time
        self.now, self.events = 0.0, 0
        self.busy: dict[int, set[int]] = defaultdict(set)
        self.seen: set[int] = set()

    def on_dispatch(self, trainer, module, task):
        assert task.dispatched_at == trainer.now < task.arrives_at
        assert 0 <= task.pulled_version <= trainer.version
        assert task.num_steps >= 0
        assert task.serial not in self.seen
        self.seen.add(task.serial)
        if not task.lost:
            self.busy[task.client_id].add(task.serial)
            assert not self.one_at_a_time or len(self.busy[task.client_id]) == 1

    def on_cancel(self, trainer, module, task):
        assert task.dispatched_at <= trainer.now <= task.arrives_at
        if not task.lost:
            self.busy[task.client_id].remove(task.serial)

    def on_update(self, trainer, module, update):
        assert update.task.arrives_at == trainer.now
        self.busy[update.client_id].remove(update.task.serial)

    def on_event_end(self, trainer, module):
        assert trainer.now >= self.now
        self.now, self.events = trainer.now, self.events + 1
        if self.checkpoint is not None and self.events == 3:
            trainer.save_checkpoint(self.checkpoint)


def fit(
    arrivals: ArrivalProcess,
    aggregator: Aggregator,
    optimizer: LocalOptimizer,
    executor: str,
    callback: Callback | None = None,
    ckpt_path: Path | None = None,
    channel: Channel | None = None,
) -> FedTrainer:
    trainer = FedTrainer(
        arrivals=arrivals,
        aggregator=aggregator,
        local_optimizer=optimizer,
        max_rounds=ROUNDS,
        max_time=20.0,
        executor=executor,
        precision="64-true",  # executors add up in different orders
        callbacks=callback,
        channel=channel,
        logger=False,
        enable_progress_bar=False,
    )
    data = FederatedDataModule.from_client_datasets(CLIENTS, batch_size=2)
    trainer.fit(Tiny(), data, ckpt_path=ckpt_path)
    return trainer


def not_private(arrivals: ArrivalProcess) -> bool:
    return arrivals.needs_feedback or arrivals.shares_data


def second_run(row: int, column: int, optimizer: LocalOptimizer) -> tuple[bool, bool]:
    """Whether the run of a pair is resumed, and whether it is stacked; some pairs have neither.

    What all pairs of ``row + column = k`` have in common meets all three kinds, too.
    """
    kind = (row + 2 * column) % 3
    return kind == 0 or (kind == 1 and not optimizer.stackable), kind == 1 and optimizer.stackable


# Servers of regions are those of both or of none.
PAIRS = [
    (arrivals, aggregator)
    for arrivals in ARRIVALS
    for aggregator in AGGREGATORS
    if (arrivals == "regions") == (aggregator == "HALoS")
    # A schedule that depends on the updates, and data that all clients read, are refused.
    and not (aggregator == "PrivateSum" and not_private(ARRIVALS[arrivals]()))
]


@pytest.mark.filterwarnings("ignore:fedlight. ")
@pytest.mark.parametrize(("arrivals", "aggregator"), PAIRS)
def test_every_combination(arrivals: str, aggregator: str, tmp_path: Path) -> None:
    """Each pair with one of the optimizers, another one than its neighbours in the table.

    So each optimizer meets every process and every aggregator. A third of the pairs are resumed, a
    third stacked, and a third only run; each strategy has all three.
    """
    size = None if ARRIVALS[arrivals]().by_rounds else 2
    row, column = list(ARRIVALS).index(arrivals), list(AGGREGATORS).index(aggregator)
    optimizer = list(OPTIMIZERS.values())[(row + column) % len(OPTIMIZERS)]
    if aggregator == "PrivateSum" and optimizer().shared_state:
        optimizer = OPTIMIZERS["FedProx"]

    def run(executor: str, callback: Callback | None = None, path: Path | None = None):
        parts = ARRIVALS[arrivals](), AGGREGATORS[aggregator](size), optimizer()
        return fit(*parts, executor, callback, path)

    if size and AGGREGATORS[aggregator](size).needs_rounds:
        with pytest.raises(ValueError, match="steps at the end of rounds"):
            run("sequential")
        return
    is_resumed, is_stacked = second_run(row, column, optimizer())
    checkpoint = tmp_path / "middle.ckpt" if is_resumed else None
    rules = Rules(checkpoint, one_at_a_time=arrivals.startswith("continuous"))
    trainer = run("sequential", rules)
    assert torch.isfinite(trainer.state.params).all()
    assert trainer.history
    for version, record in enumerate(trainer.history, start=1):
        assert record.version == version
        for update in record.updates:
            assert update.staleness == version - 1 - update.pulled_version >= 0
            assert update.dispatched_at < update.arrived_at <= record.now
            assert update.weight >= 0
    moments = [record.now for record in trainer.history]
    assert moments == sorted(moments)

    if is_resumed:
        resumed = run("sequential", path=checkpoint)
        assert resumed.fingerprint() == trainer.fingerprint()
        assert resumed.history == trainer.history
    if is_stacked:
        stacked = run("vectorized").state.params
        torch.testing.assert_close(stacked, trainer.state.params, rtol=1e-10, atol=1e-11)


@pytest.mark.filterwarnings("ignore:fedlight. ")
@pytest.mark.parametrize(
    ("arrivals", "channel"),
    [
        (arrivals, channel)
        for channel in CHANNELS
        for arrivals in ARRIVALS
        if not (channel == "GaussianNoise" and not_private(ARRIVALS[arrivals]()))
    ],
)
def test_every_channel(arrivals: str, channel: str, tmp_path: Path) -> None:
    """With an aggregator that drops updates, one whose buffer holds some, or one with a memory.

    Each channel and each process meets all three, each resumed and, if it can be, stacked.
    """
    size = None if ARRIVALS[arrivals]().by_rounds else 2
    pairs = (("FedAsync", "LocalSGD"), ("FedBuff", "Scaffold"), ("AFACS", "ModuleOptimizer"))
    row, column = list(ARRIVALS).index(arrivals), list(CHANNELS).index(channel)
    aggregator, optimizer = pairs[(row + column) % len(pairs)]
    aggregator = "HALoS" if arrivals == "regions" else aggregator
    if channel == "GaussianNoise":
        optimizer = "LocalSGD"  # Scaffold's clients send a second vector, without noise

    def run(executor: str, callback: Callback | None = None, path: Path | None = None):
        parts = ARRIVALS[arrivals](), AGGREGATORS[aggregator](size), OPTIMIZERS[optimizer]()
        return fit(*parts, executor, callback, path, CHANNELS[channel]())

    is_resumed, is_stacked = second_run(row, column, OPTIMIZERS[optimizer]())
    checkpoint = tmp_path / "middle.ckpt" if is_resumed else None
    trainer = run("sequential", Rules(checkpoint))
    assert torch.isfinite(trainer.state.params).all()
    assert trainer.history
    if is_stacked:
        stacked = run("vectorized").state.params
        torch.testing.assert_close(stacked, trainer.state.params, rtol=1e-10, atol=1e-11)
    if not is_resumed:
        return
    resumed = run("sequential", path=checkpoint)
    assert resumed.fingerprint() == trainer.fingerprint()
    assert repr(resumed.history) == repr(trainer.history)
    for client in range(NUM_CLIENTS):
        kept, again = trainer.client_memory(client), resumed.client_memory(client)
        assert (kept is None) == (again is None)
        assert kept is None or torch.equal(kept, again)


@pytest.mark.parametrize(
    ("module", "table", "kind", "elsewhere"),
    [
        (fedlight.aggregators, AGGREGATORS, Aggregator, set()),
        (fedlight.local_optimizers, OPTIMIZERS, LocalOptimizer, set()),
        (fedlight.channel, CHANNELS, Channel, set()),
        # It only writes down what another process does: tests/arrivals.
        (fedlight.arrivals, ARRIVALS, ArrivalProcess, {"Recording"}),
    ],
)
def test_the_tables_hold_every_public_strategy(module, table, kind, elsewhere) -> None:
    public = {
        name
        for name in module.__all__
        if isinstance(getattr(module, name), type)
        and issubclass(getattr(module, name), kind)
        and not inspect.isabstract(getattr(module, name))
    }
    arguments = (2,) if kind is Aggregator else ()
    held = {type(make(*arguments)).__name__ for make in table.values()}
    assert public - elsewhere == held


records = st.lists(
    st.tuples(
        st.integers(0, NUM_CLIENTS - 1),
        st.integers(1, 40).map(lambda tenths: tenths / 10),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=15,
)


@pytest.mark.filterwarnings("ignore:fedlight. ")
@settings(max_examples=30)
@given(
    records=records,
    aggregator=st.sampled_from(sorted(AGGREGATORS.keys() - {"HALoS", "MindFlayer"})),
)
def test_no_order_of_events_breaks_an_invariant(records, aggregator) -> None:
    """Any schedule, ties included: every arrival is used once, dropped, or left in the buffer."""
    events = [ReplayEvent(client, 0, time, steps) for client, time, steps in records]
    events = [
        e for e in events if sum(e.client == o.client and e.time == o.time for o in events) == 1
    ]
    if not events:
        return
    trainer = fit(
        ReplayArrivals(events, durations=[1.0] * NUM_CLIENTS),
        AGGREGATORS[aggregator](2),
        FedProx(0.05, mu=0.5) if aggregator == "PrivateSum" else Scaffold(0.05),
        "vectorized",
        Rules(),
    )
    used = [u.serial for record in trainer.history for u in record.updates]
    dropped = [u.serial for record in trainer.history for u in record.dropped]
    held = [u.task.serial for u in trainer.aggregator.held]
    assert len(set(used + dropped + held)) == len(used + dropped + held)
    if trainer.version < ROUNDS:
        unseen = trainer.num_updates - len(used + dropped + held)
        assert 0 <= unseen <= trainer.num_updates  # dropped after the last round
    assert torch.isfinite(trainer.state.params).all()
    # c stays the mean of the c_i that were used, as long as none is left in a buffer or dropped.
    counted = not held and not dropped and trainer.num_updates == len(used)
    if counted and trainer.state.shared is not None:
        states = [trainer.client_state(client) for client in range(NUM_CLIENTS)]
        mean = sum(state for state in states if state is not None) / NUM_CLIENTS
        np.testing.assert_allclose(trainer.state.shared, mean, rtol=0, atol=1e-12)
