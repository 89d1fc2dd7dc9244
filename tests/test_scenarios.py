"""Schedules with known answers: each file of `scenarios` is played through the public API."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule
from torch.utils.data import TensorDataset

from fedlight import Callback, FederatedDataModule, FedTrainer, arrivals
from fedlight._history import update_record
from fedlight.aggregators import (
    AFACD,
    AFACS,
    AREA,
    CA2FL,
    DCASGD,
    FADAS,
    MIFA,
    AsyncCommSGD,
    AsyncFedAvg,
    FedAsync,
    FedAvg,
    FedBuff,
    FedDynServer,
    FedFix,
    FedNova,
    FedVARP,
    GeneralizedAsyncSGD,
    Rennala,
    Ringmaster,
)
from fedlight.aggregators.staleness import Constant, DelayAdaptive, Hinge, Polynomial
from fedlight.arrivals import ReplayArrivals, ReplayEvent
from fedlight.local_optimizers import FedDyn, FedProx, LocalSGD, Scaffold
from fedlight.types import ClientUpdate

FOLDER = Path(__file__).parent / "scenarios"
SCENARIOS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
# Some ten roundings of a model on any processor; the scenarios have models of 0.1 to 100.
PRECISIONS = {"32-true": (torch.float32, 1e-5), "64-true": (torch.float64, 1e-10)}


class Quadratic(LightningModule):
    """f_i(x) = mean over the examples of 1/2 * sum of a * (x - c)^2."""

    def __init__(self, start: list[float], dtype: torch.dtype) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor(start, dtype=dtype))

    def training_step(self, batch, batch_idx):
        a, c = batch
        return (a * (self.x - c) ** 2).sum(dim=-1).mean() / 2


class Watch(Callback):
    """Keeps the model, SCAFFOLD's c and the time of each version, and what was dropped last."""

    def __init__(self) -> None:
        self.models: list[torch.Tensor] = []
        self.shared: list[torch.Tensor | None] = []
        self.times: list[float] = []
        self.dropped: list[ClientUpdate] = []

    def on_round_end(self, trainer, module):
        self.models.append(trainer.state.params.clone())
        self.shared.append(trainer.state.shared)
        self.times.append(trainer.now)
        self.dropped = []

    def on_drop(self, trainer, module, update):
        self.dropped.append(update)


def local_optimizer(local: dict[str, Any], aggregator: dict[str, Any]):
    if aggregator["name"] == "feddyn":  # its clients have a rule of their own
        return FedDyn(local["lr"], aggregator["alpha"])
    rules = {
        "sgd": lambda: LocalSGD(lr=local["lr"]),
        "fedprox": lambda: FedProx(lr=local["lr"], mu=local["mu"]),
        "scaffold": lambda: Scaffold(lr=local["lr"]),
    }
    return rules[local["rule"]]()


def staleness(spec: dict[str, Any]):
    kinds = {
        "constant": lambda: Constant(),
        "polynomial": lambda: Polynomial(spec["a"]),
        "hinge": lambda: Hinge(spec["a"], spec["b"]),
    }
    return kinds[spec["kind"]]()


def fedasync(spec: dict[str, Any]):
    alpha = spec["alpha"]
    if "alpha_decay" in spec:
        epoch, factor = spec["alpha_decay"]["epoch"], spec["alpha_decay"]["factor"]
        alpha = lambda version: spec["alpha"] * (factor if version + 1 >= epoch else 1.0)  # noqa: E731
    return FedAsync(alpha, staleness(spec["staleness"]), spec.get("max_staleness"))


def aggregator(spec: dict[str, Any]):
    names = {
        "fedavg": lambda: FedAvg(spec["cohort"], spec["weighting"], spec["server_lr"]),
        "afa_cd": lambda: AFACD(spec["m"], spec["server_lr"]),
        "afa_cs": lambda: AFACS(spec["m"], spec["server_lr"]),
        "fedasync": lambda: fedasync(spec),
        "async_fedavg": lambda: AsyncFedAvg(spec["weights"], spec["p"], spec["server_lr"]),
        "fedfix": lambda: FedFix(spec["dt"], spec["p"], spec["server_lr"]),
        "fedbuff": lambda: FedBuff(
            spec["m"],
            {"sqrt": Polynomial(0.5), "none": None}[spec["staleness_scaling"]],
            spec["server_lr"],
        ),
        "async_comm_sgd": lambda: AsyncCommSGD(),
        "mifa": lambda: MIFA(spec["m"], spec["server_lr"]),
        "fedvarp": lambda: FedVARP(spec["m"], spec["beta"], spec["server_lr"]),
        "ca2fl": lambda: CA2FL(spec["m"], spec["server_lr"]),
        "fadas": lambda: FADAS(
            spec["m"],
            spec["server_lr"],
            (spec["beta1"], spec["beta2"]),
            spec["eps"],
            spec["tau_c"],
            spec["delay"],
        ),
        "delay_adaptive": lambda: FedBuff(1, DelayAdaptive(spec["c"]), spec["server_lr"]),
        "dc_asgd": lambda: DCASGD(spec["lam"], spec["server_lr"]),
        "area": lambda: AREA(spec["m"]),
        "ringmaster": lambda: Ringmaster(spec["R"] - 1, spec["server_lr"]),
        "rennala": lambda: Rennala(spec["m"], spec["server_lr"]),
        "fednova": lambda: FedNova(spec["m"], spec["server_lr"]),
        "generalized_async": lambda: GeneralizedAsyncSGD(spec["p"], spec["server_lr"]),
        "feddyn": lambda: FedDynServer(spec["alpha"], spec["m"]),
    }
    return names[spec["name"]]()


def replayed(scenario: dict[str, Any]):
    """The scenario's events, or the records of a timed one with their times of dispatch."""
    source = scenario.get("events") or scenario["expected"]["records"]
    events = [
        ReplayEvent(
            client=event["client"],
            pulled_version=event["pull_version"],
            time=event["time"],
            num_steps=event["steps"],
            dispatched_at=event.get("start_time"),
        )
        for event in source
    ]
    durations = [client.get("compute_time") for client in scenario["clients"]]
    return ReplayArrivals(events, durations=None if None in durations else durations)


def by_the_clock(scenario: dict[str, Any]):
    """The process that makes a timed scenario's events itself."""
    clients = scenario["clients"]
    return arrivals.ContinuousArrivals(
        arrivals.FixedDurations([client["compute_time"] for client in clients]),
        local_steps=arrivals.PerClientSteps([client["steps"] for client in clients]),
    )


def by_pattern(scenario: dict[str, Any]):
    """The communication pattern of a scenario in ticks."""
    return arrivals.CommunicationPattern.from_table(scenario["communicates"])


def play(scenario: dict[str, Any], process, executor: str, precision: str):
    dtype, _ = PRECISIONS[precision]
    data = []
    for client in scenario["clients"]:
        rows = [torch.tensor(client[name], dtype=dtype) for name in ("a", "c")]
        data.append(TensorDataset(*(row.expand(client["num_examples"], -1) for row in rows)))
    watch = Watch()
    trainer = FedTrainer(
        arrivals=process,
        aggregator=aggregator(scenario["aggregator"]),
        local_optimizer=local_optimizer(scenario["local"], scenario["aggregator"]),
        executor=executor,
        precision=precision,
        max_time=scenario.get("horizon"),
        accelerator="cpu",
        callbacks=watch,
        logger=False,
        enable_progress_bar=False,
    )
    module = Quadratic(scenario["x0"], dtype)
    trainer.fit(module, FederatedDataModule.from_client_datasets(data, batch_size=4))
    return trainer, watch


def check(scenario: dict[str, Any], trainer: FedTrainer, watch: Watch, precision: str) -> None:
    dtype, tolerance = PRECISIONS[precision]
    if scenario["name"].startswith("m_"):  # models of 0.1 to 10
        tolerance = min(tolerance, 1e-6)
    expected = scenario["expected"]

    def close(actual, wanted):
        wanted = torch.tensor(wanted, dtype=dtype)
        torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance)

    close(torch.stack(watch.models), expected["models"])
    if "model_times" in expected:
        assert watch.times == expected["model_times"]
    used = [(u, record.version) for record in trainer.history for u in record.updates]
    dropped = [(u, None) for record in trainer.history for u in record.dropped]
    for late in watch.dropped:  # after the last version
        update = update_record(late, trainer.version, 0.0, math.nan)
        dropped.append((update, None))
    actual = {(u.client_id, u.arrived_at): (u, made) for u, made in used + dropped}
    assert len(actual) == len(expected["records"])
    for wanted in expected["records"]:
        update, made = actual[wanted["client"], wanted["time"]]
        assert update.pulled_version == wanted["pull_version"]
        assert update.num_steps == wanted["steps"]
        assert update.staleness == wanted["staleness"]
        assert update.weight == pytest.approx(wanted["weight"], rel=1e-12)
        assert made == wanted["made_version"]
        if "aggregated_at" in wanted:
            assert trainer.history[made - 1].now == wanted["aggregated_at"]
    if "c_server" in expected:
        close(torch.stack(watch.shared), expected["c_server"])
        states = [trainer.client_state(i) for i in range(len(scenario["clients"]))]
        close(torch.stack(states), expected["c_clients_final"])
    held = [
        {"client": update.client_id, "time": update.task.arrives_at}
        for update in trainer.aggregator.held
    ]
    if "left" in expected:
        assert len(held) == expected["left"]
    else:
        assert held == expected.get("still_buffered", [])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_replayed_events_give_the_known_models(name, executor, precision):
    scenario = SCENARIOS[name]
    trainer, watch = play(scenario, replayed(scenario), executor, precision)
    check(scenario, trainer, watch, precision)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", [name for name, s in SCENARIOS.items() if s["kind"] == "timed"])
def test_the_clock_makes_the_known_events(name, executor):
    scenario = SCENARIOS[name]
    trainer, watch = play(scenario, by_the_clock(scenario), executor, "64-true")
    check(scenario, trainer, watch, "64-true")


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", [name for name, s in SCENARIOS.items() if s["kind"] == "ticks"])
def test_the_pattern_makes_the_known_events(name, executor):
    scenario = SCENARIOS[name]
    trainer, watch = play(scenario, by_pattern(scenario), executor, "64-true")
    check(scenario, trainer, watch, "64-true")


def test_every_scenario_is_there():
    assert len(SCENARIOS) == 14 + 28
    assert {scenario["kind"] for scenario in SCENARIOS.values()} == {"events", "timed", "ticks"}


@pytest.mark.parametrize(
    "name", [name for name, s in SCENARIOS.items() if s.get("expected_alternatives")]
)
def test_the_other_readings_would_be_noticed(name):
    scenario = SCENARIOS[name]
    _, watch = play(scenario, replayed(scenario), "vectorized", "64-true")
    ours = torch.stack(watch.models)
    for other in scenario["expected_alternatives"].values():
        theirs = torch.tensor(other["models"], dtype=torch.float64)
        same = theirs.shape == ours.shape and torch.allclose(theirs, ours, atol=1e-3)
        assert not same, other["reading"]
