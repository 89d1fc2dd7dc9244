"""The driver for server rules, on numbers worked out by hand."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedlight.conformance import (
    Case,
    Client,
    Clients,
    Event,
    NotImplementedHere,
    Outcome,
    OutOfStepError,
    Update,
    check,
    load_cases,
    play_events,
)

(BASE,) = load_cases(["async_fedavg_identical"])
# Two clients with optima 4 and -4, a = 1, lr = 1/2: a step goes half of the way.
CASE = replace(
    BASE,
    x0=[0.0],
    clients=(Client([1.0], [4.0], 3), Client([1.0], [-4.0], 5)),
    local={"rule": "sgd", "lr": 0.5},
    events=(Event(1, 0, 2.0, 1), Event(0, 0, 1.0, 2), Event(0, 1, 2.0, 1)),
)


class Whole:
    """Adds each delta to its model."""

    def __init__(self) -> None:
        self.x = np.zeros(1)
        self.seen: list[Update] = []

    def receive(self, update: Update) -> np.ndarray:
        self.seen.append(update)
        self.x += update.delta
        return self.x


def test_local_runs() -> None:
    assert Clients(CASE).local_run(0, np.array([0.0]), 2) == [3.0]
    # From 2: -0.5 * (2 - 4) = 1; then -0.5 * ((3 - 4) + 1 * (3 - 2)) = 0.
    prox = replace(CASE, local={"rule": "fedprox", "lr": 0.5, "mu": 1.0})
    assert Clients(prox).local_run(0, np.array([2.0]), 2) == [3.0]
    # FedDyn's first run is FedProx's; then c_0 = -1 * (3 - 2), which adds 1 to each gradient.
    dyn = Clients(replace(CASE, local={"rule": "feddyn", "lr": 0.5, "alpha": 1.0}))
    assert dyn.local_run(0, np.array([2.0]), 2) == [3.0]
    assert dyn.local_run(0, np.array([2.0]), 1) == [2.5]
    assert dyn.local_run(1, np.array([-2.0]), 1) == [-3.0]
    for rule in ("scaffold", "adamw"):
        with pytest.raises(NotImplementedHere, match=f"no local rule '{rule}'"):
            Clients(replace(CASE, local={"rule": rule, "lr": 0.5}))
    by_steps = {"kind": "warmup_cosine", "peak": 0.5, "warmup": 0, "total": 4, "floor": 0.0}
    with pytest.raises(NotImplementedHere, match="no local rate by steps"):
        Clients(replace(CASE, local={"rule": "sgd", "lr": by_steps}))


def test_events_come_by_time_and_client() -> None:
    server = Whole()
    outcome = play_events(CASE, server)
    # 0 + 3 = 3; client 0 from 3: + 0.5; client 1 from 0: - 2.
    assert outcome.models == [[3.0], [3.5], [1.5]]
    assert [(u.client, u.time, u.staleness) for u in server.seen] == [
        (0, 1.0, 0),
        (0, 2.0, 0),
        (1, 2.0, 2),
    ]
    assert [(u.num_examples, u.num_steps, u.start.tolist()) for u in server.seen] == [
        (3, 2, [0.0]),
        (3, 1, [3.0]),
        (5, 1, [0.0]),
    ]


def test_a_server_without_a_version_in_time_is_out_of_step() -> None:
    class Never:
        def receive(self, update: Update) -> None:
            pass

    with pytest.raises(OutOfStepError, match=r"client 0 at 2\.0 starts from version 1; the newest"):
        play_events(CASE, Never())


def test_clients_start_from_what_is_sent() -> None:
    class Ahead(Whole):
        def outgoing(self) -> np.ndarray:
            return self.x + 1.0

    server = Ahead()
    # Client 0 from 0: 3. From 4, which is its optimum: 0. Client 1 from version 0: - 2.
    assert play_events(CASE, server).models == [[3.0], [3.0], [1.0]]
    assert [update.start.tolist() for update in server.seen] == [[0.0], [4.0], [0.0]]


class MomentumLookAhead:
    """x += eta * (g * v + delta), by hand; `send` is not looked at."""

    name, version, precision = "look-ahead", "1", "float64"

    def play(self, case: Case) -> Outcome:
        self.eta, self.g = case.method["server_lr"], case.method["momentum"]
        self.x, self.v = np.array(case.x0), np.zeros(len(case.x0))
        return play_events(case, self)

    def receive(self, update: Update) -> np.ndarray:
        self.v = self.g * self.v + (1 - self.g) * update.delta
        self.x = self.x + self.eta * (self.g * self.v + update.delta)
        return self.x


class SentAhead(MomentumLookAhead):
    def outgoing(self) -> np.ndarray:
        return self.x + self.eta * self.g * self.v


def test_what_is_sent_is_a_reading() -> None:
    ahead, model = load_cases(["look_ahead_0", "look_ahead_model"])
    assert [check(SentAhead(), case).verdict for case in (ahead, model)] == [
        "agrees",
        "another reading",
    ]
    assert [check(MomentumLookAhead(), case).verdict for case in (ahead, model)] == [
        "another reading",
        "agrees",
    ]


@pytest.mark.parametrize("name", ["fedfix_by_examples", "async_fedavg_timed"])
def test_the_driver_has_no_clock(name: str) -> None:
    (case,) = load_cases([name])
    with pytest.raises(NotImplementedHere, match="clock"):
        play_events(case, Whole())


def test_the_adapter_of_the_guide_agrees() -> None:
    text = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict[str, type] = {}
    exec(block, names)
    found = [check(names["MyAdapter"](), case).verdict for case in load_cases(["fedbuff"])]
    assert found.count("agrees") == 2
    assert set(found) == {"agrees", "not implemented"}
