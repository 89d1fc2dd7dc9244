"""Timed schedules with known answers: servers that stop, poll or group their clients.

Each file of `scenarios/timed` is played through the public API: models, times, every task that has
ended with its outcome, and what is at work at the end.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from lightning import LightningModule
from torch.utils.data import TensorDataset

from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight.aggregators import AFACD, FAVAS, FedAT, FedAvg, QuAFL, Rennala, Ringmaster
from fedlight.arrivals import (
    ArrivalProcess,
    ContinuousArrivals,
    FixedDurations,
    PerClientSteps,
    PolledArrivals,
    Recording,
    ReplayArrivals,
    SynchronousArrivals,
    Tiers,
)
from fedlight.local_optimizers import LocalSGD, OwnModel

FOLDER = Path(__file__).parent / "scenarios" / "timed"
SCENARIOS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
pytestmark = pytest.mark.filterwarnings("ignore:fedlight. ")
MOST_ROUNDS = 200  # of what is listed for a run that its horizon ends


class Quadratic(LightningModule):
    """f_i(x) = mean over the examples of 1/2 * sum of a * (x - c)^2."""

    def __init__(self, start: list[float], dtype: torch.dtype) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor(start, dtype=dtype))

    def training_step(self, batch, batch_idx):
        a, c = batch
        return (a * (self.x - c) ** 2).sum(dim=-1).mean() / 2


class Case(NamedTuple):
    """A scenario in the words of the public API."""

    process: ArrivalProcess
    aggregator: Any
    optimizer: Any
    limits: dict[str, Any]


def durations_of(scenario) -> FixedDurations:
    times = []
    for client in scenario["clients"]:
        whole = client.get("compute_time")
        times.append(client["step_time"] * client["steps"] if whole is None else whole)
    return FixedDurations(times)


def steps_of(scenario) -> PerClientSteps:
    return PerClientSteps([client["steps"] for client in scenario["clients"]])


def always_on(scenario, restart_after) -> ContinuousArrivals:
    return ContinuousArrivals(
        durations_of(scenario),
        resume="on_arrival",
        local_steps=steps_of(scenario),
        restart_after=restart_after,
    )


def rounds(scenario, cohorts, **more) -> SynchronousArrivals:
    return SynchronousArrivals(cohorts, durations_of(scenario), steps_of(scenario), **more)


def polled(scenario, polls, interval, max_steps) -> PolledArrivals:
    times = [client["step_time"] for client in scenario["clients"]]
    return PolledArrivals(polls, interval, times, max_steps)


def tiers(scenario, members) -> Tiers:
    return Tiers(
        {f"tier {k}": rounds(scenario, [each] * MOST_ROUNDS) for k, each in enumerate(members)}
    )


def case_of(scenario: dict[str, Any]) -> Case:
    rule, process = scenario["aggregator"], scenario.get("process", {})
    lr, server_lr = scenario["local"]["lr"], rule.get("server_lr", 1.0)
    limits = {"max_time": scenario.get("horizon"), "max_rounds": scenario.get("versions")}
    polls = process.get("polls", scenario.get("polls"))
    if polls and isinstance(polls[0], dict):  # each with its time
        times = [poll["time"] for poll in polls]
        assert times == pytest.approx([0.7 * k for k in range(1, len(polls) + 1)])
        polls, process = [poll["clients"] for poll in polls], {"interval": 0.7}
    sgd, name = LocalSGD(lr), rule["name"]
    if name == "ringmaster":
        arrivals = always_on(scenario, process.get("restart_after", rule["R"]))
        return Case(arrivals, Ringmaster(rule["R"] - 1, server_lr), sgd, limits)
    if name == "rennala":
        size = rule.get("batch", rule.get("m"))
        arrivals = always_on(scenario, process.get("restart_after", rule.get("R")))
        return Case(arrivals, Rennala(size, server_lr), sgd, limits)
    if name in ("over_selection", "fedavg"):
        cohorts = process.get("cohorts", scenario.get("cohorts"))
        extra = len(cohorts[0]) - process.get("first", rule.get("m"))
        arrivals = rounds(scenario, cohorts, over_select=extra)
        aggregator = FedAvg(client_weights="uniform", server_lr=server_lr)
        return Case(arrivals, aggregator, sgd, limits)
    if name == "afa_cd":
        late = {"timeout": process["deadline"], "late": "cut"}
        arrivals = rounds(scenario, process["cohorts"], **late)
        return Case(arrivals, AFACD(server_lr=server_lr), sgd, limits)
    if name == "fedat":
        members = rule.get("tiers", process.get("tiers"))
        return Case(
            tiers(scenario, members), FedAT(None, rule.get("within", "examples")), sgd, limits
        )
    interval = process.get("interval", rule.get("interval"))
    each = [client.get("steps") for client in scenario["clients"]]
    arrivals = polled(
        scenario, polls, interval, process.get("max_steps", rule.get("max_steps", each))
    )
    if name == "favas":
        return Case(arrivals, FAVAS(), sgd, limits)
    assert name == "quafl"
    corrected = rule.get("lr_correction", False)
    return Case(arrivals, QuAFL(), OwnModel(sgd, polls, lr_correction=corrected), limits)


class Watch(Callback):
    """Keeps the model and the time of each version, and what happens to each task."""

    def __init__(self) -> None:
        self.models: list[torch.Tensor] = []
        self.times: list[float] = []
        self.working: dict[int, Any] = {}
        self.ended: list[dict[str, Any]] = []

    def on_dispatch(self, trainer, module, task):
        self.working[task.serial] = task

    def on_update(self, trainer, module, update):
        self._end(trainer, update.task, "arrived")

    def on_cancel(self, trainer, module, task):
        self._end(trainer, task, "stopped")

    def _end(self, trainer, task, how):
        del self.working[task.serial]
        self.ended.append({"task": task, "how": how, "at": trainer.now, "version": trainer.version})

    def on_round_end(self, trainer, module):
        self.models.append(trainer.state.params.clone())
        self.times.append(trainer.now)


def play(scenario, case: Case, executor: str, precision: str = "64-true"):
    dtype = torch.float64 if precision == "64-true" else torch.float32
    data = []
    for client in scenario["clients"]:
        rows = [torch.tensor(client[name], dtype=dtype) for name in ("a", "c")]
        data.append(TensorDataset(*(row.expand(client["num_examples"], -1) for row in rows)))
    watch = Watch()
    trainer = FedTrainer(
        arrivals=case.process,
        aggregator=case.aggregator,
        local_optimizer=case.optimizer,
        executor=executor,
        precision=precision,
        accelerator="cpu",
        callbacks=watch,
        logger=False,
        enable_progress_bar=False,
        **case.limits,
    )
    module = Quadratic(scenario["x0"], dtype)
    trainer.fit(module, FederatedDataModule.from_client_datasets(data, batch_size=4))
    return trainer, watch


def outcomes(scenario, trainer, watch) -> list[dict[str, Any]]:
    """What happened to each task that has ended, in the words of the files."""
    used = {u.serial: (u, record) for record in trainer.history for u in record.updates}
    dropped = {u.serial for record in trainer.history for u in record.dropped}
    held = {update.task.serial for update in trainer.aggregator.held}
    found = []
    for end in watch.ended:
        task, how = end["task"], end["how"]
        planned = scenario["clients"][task.client_id].get("steps", task.num_steps)
        row = {
            "client": task.client_id,
            "pulled_version": task.pulled_version,
            "dispatched_at": task.dispatched_at,
            "ended_at": end["at"],
            "steps": task.num_steps,
            "staleness": end["version"] - task.pulled_version,
            "made_version": None,
            "weight": 0,
        }
        if how == "stopped":
            row["outcome"] = "stopped"
        elif task.serial in used:
            update, record = used[task.serial]
            cut = task.num_steps < planned and scenario["aggregator"]["name"] == "afa_cd"
            row["outcome"] = "cut" if cut else "used"
            row |= {"made_version": record.version, "weight": update.weight}
            row |= {"staleness": update.staleness, "aggregated_at": record.now}
        elif task.serial in held:
            row["outcome"] = "left"
        else:
            assert task.serial in dropped or trainer.history[-1].now <= end["at"]
            row["outcome"] = "dropped"
        found.append(row)
    return found


def check(scenario, case: Case, trainer, watch, tolerance: float = 1e-10) -> None:
    expected = scenario["expected"]
    models = torch.stack(watch.models)
    wanted = torch.tensor(expected["models"], dtype=models.dtype)
    torch.testing.assert_close(models, wanted, rtol=tolerance, atol=tolerance)
    times = expected.get("model_times", expected.get("times"))
    if times is not None:
        assert watch.times == times
    if "log" in expected:
        check_log(expected["log"], trainer, watch)
    if "tasks" in expected:
        check_tasks(scenario, outcomes(scenario, trainer, watch))
    if "in_flight" in expected and scenario["process"]["name"] != "polled":
        names = ("client", "pulled_version", "dispatched_at")
        working = [(t.client_id, t.pulled_version, t.dispatched_at) for t in watch.working.values()]
        assert sorted(working) == sorted(tuple(t[n] for n in names) for t in expected["in_flight"])
    if "client_models" in expected and isinstance(case.optimizer, OwnModel):
        check_own_models(scenario, case.process.per_poll, trainer, models, tolerance)
    if "tier_weights" in expected:
        assert list(trainer.aggregator.counts) == expected["tier_counts"][-1]
        for record, weights in zip(trainer.history, expected["tier_weights"], strict=True):
            clients = {update.client_id for update in record.updates}
            (tier,) = [k for k, t in enumerate(scenario["process"]["tiers"]) if set(t) == clients]
            assert sum(u.weight for u in record.updates) == pytest.approx(weights[tier], rel=1e-12)


def check_own_models(scenario, polls, trainer, models, tolerance) -> None:
    """What each client goes on from: its model at its last poll, mixed with the server's."""
    start = torch.tensor([scenario["x0"]], dtype=models.dtype)
    before = torch.cat([start, models])
    for client, wanted in enumerate(scenario["expected"]["client_models"]):
        last = max(k for k, clients in enumerate(polls) if client in clients)
        s, own = len(polls[last]), trainer.client_state(client)
        mixed = (before[last] + s * own) / (s + 1)
        wanted = torch.tensor(wanted, dtype=models.dtype)
        torch.testing.assert_close(mixed, wanted, rtol=tolerance, atol=tolerance)


def check_tasks(scenario, found) -> None:
    wanted = scenario["expected"]["tasks"]
    if scenario["aggregator"]["name"] == "afa_cd":
        # A run without a step ends at the deadline with the others: here as one that was stopped.
        planned = [client["steps"] for client in scenario["clients"]]
        wanted = [
            task
            | (
                {"outcome": "stopped", "steps": planned[task["client"]]}
                if not task["steps"]
                else {}
            )
            for task in wanted
        ]
        key = lambda task: (task["ended_at"], task["client"])  # noqa: E731
        wanted, found = sorted(wanted, key=key), sorted(found, key=key)
    elif scenario["aggregator"]["name"] == "fedat":
        # In the order of the rounds' ends, not of the arrivals.
        key = lambda task: (task["made_version"], task["ended_at"], task["client"])  # noqa: E731
        wanted, found = sorted(wanted, key=key), sorted(found, key=key)
    assert len(found) == len(wanted)
    names = {"left": ("left", "buffered")}
    for task, row in zip(wanted, found, strict=True):
        for name, value in task.items():
            if name == "outcome":
                assert value in names.get(row["outcome"], (row["outcome"],)), task
            elif name == "staleness":
                # A round that is over stops the others before it makes its version.
                told = row["outcome"] in ("left", "stopped") or value is None
                assert told or row[name] == value, task
            elif name == "weight":
                assert row[name] == pytest.approx(value, rel=1e-12, abs=1e-12), task
            elif name in row:
                assert row[name] == value, (name, task, row)


def check_log(log, trainer, watch) -> None:
    """The events of a file that has a log in place of a list of tasks."""
    versions = [row for row in log if row["what"] in ("tier", "version")]
    assert [row["version"] for row in versions] == list(range(1, trainer.version + 1))
    assert watch.times == [row["time"] for row in versions]
    for row, record in zip(versions, trainer.history, strict=True):
        for update in record.updates:
            assert update.pulled_version == row.get("pull_version", update.pulled_version)
            assert update.staleness == row.get("staleness", update.staleness)
    polls = [
        (row["client"], row["time"], row["steps_done"]) for row in log if row["what"] == "poll"
    ]
    if polls:
        arrived = [(e["task"].client_id, e["at"], e["task"].num_steps) for e in watch.ended]
        assert arrived == polls


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_process_makes_the_known_models(name, executor):
    scenario = SCENARIOS[name]
    case = case_of(scenario)
    trainer, watch = play(scenario, case, executor)
    check(scenario, case, trainer, watch)


@pytest.mark.parametrize("name", SCENARIOS)
def test_in_single_precision(name):
    scenario = SCENARIOS[name]
    _, watch = play(scenario, case_of(scenario), "vectorized", "32-true")
    wanted = torch.tensor(scenario["expected"]["models"], dtype=torch.float32)
    torch.testing.assert_close(torch.stack(watch.models), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_record_gives_the_known_models(name, tmp_path):
    scenario = SCENARIOS[name]
    case = case_of(scenario)
    path = tmp_path / "schedule.parquet"
    _, first = play(scenario, case._replace(process=Recording(case.process, path)), "sequential")
    again = case_of(scenario)._replace(process=ReplayArrivals(path))
    _, watch = play(scenario, again, "sequential")
    assert torch.equal(torch.stack(watch.models), torch.stack(first.models))
    assert watch.times == first.times
    ends = [
        sorted((e["at"], e["how"], e["task"].client_id, e["task"].num_steps) for e in each.ended)
        for each in (first, watch)
    ]
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("name", "other"),
    [(n, o) for n, s in SCENARIOS.items() for o in s.get("expected_alternatives", {})],
)
def test_the_other_readings_would_be_noticed(name, other):
    scenario = SCENARIOS[name]
    alternative = scenario["expected_alternatives"][other]
    _, watch = play(scenario, case_of(scenario), "sequential")
    ours, theirs = torch.stack(watch.models), torch.tensor(alternative["models"]).double()
    same = theirs.shape == ours.shape and torch.allclose(theirs, ours, atol=1e-6)
    assert not (same and alternative["model_times"] == watch.times)


def test_every_timed_scenario_is_there():
    assert len(SCENARIOS) == 21
