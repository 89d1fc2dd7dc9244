"""FedCompass by hand, and what it is when all clients are equally fast."""

import pytest
import torch

from fedlight import Callback
from fedlight.aggregators import FedAvg, FedCompass
from fedlight.arrivals import CompassArrivals, Recording, ReplayArrivals, StepDurations
from fedlight.executors import ProcessExecutor, SequentialExecutor
from fedlight.local_optimizers import LocalSGD
from tests.arrivals.test_compass import THREE, compass
from tests.boring import Boring, classes, fitted, trainer


def boring():
    torch.manual_seed(0)
    return Boring()


def tagged(update, tag):
    return update._replace(task=update.task._replace(tag=tag))


def test_late_updates_wait_for_the_next_group(make_update, make_state, make_federation):
    server = FedCompass(staleness=None, client_weights="uniform")
    state = make_state([0.0])
    server.setup(make_federation(), state)

    def arrive(client, tag, delta):
        assert not server.receive(tagged(make_update(client, [delta], start=state), tag))

    arrive(0, "first 0", 4.0)
    arrive(1, "1", 8.0)
    assert server.end_round_of("first 0")
    state = server.step(state)
    assert state.params.item() == 1.0  # a quarter of 4, as there are four clients
    assert not server.end_round_of("0")  # nobody of the group has arrived
    arrive(2, "0", 40.0)  # late
    assert server.end_round_of("first 3") is False
    assert server.end_round_of("1")
    state = server.step(state)
    assert state.params.item() == 1.0 + (8.0 + 40.0) / 4
    assert server.held == []


def test_a_first_task_takes_nothing_that_is_late(make_update, make_state, make_federation):
    server, state = FedCompass(None, None), make_state([0.0])
    server.setup(make_federation(), state)
    server.end_round_of("0")
    server.receive(tagged(make_update(2, [40.0], start=state), "0"))
    server.receive(tagged(make_update(1, [4.0], start=state), "first 1"))
    assert server.end_round_of("first 1")
    assert [used.update.client_id for used in server.step(state).used] == [1]
    assert [update.client_id for update in server.held] == [2]


def test_groups_that_have_ended_are_kept_in_few_numbers(make_state, make_federation):
    server = FedCompass()
    server.setup(make_federation(), make_state())
    for number in (1, 0, 3, 2, 6, 4):
        server.end_round_of(str(number))
    assert (server.open, server.ended) == (5, {6})
    assert [server._late(tag) for tag in ("4", "5", "6", "7", "first 2", None)] == [
        *(True, False, True, False, False, False)
    ]


def test_models_are_averaged_about_the_server(make_update, make_state, make_federation):
    """x + p s (y - x) with y = 10 + 2, from x = 20: the client pulled another model."""
    server = FedCompass(staleness=None, client_weights="uniform", average="models")
    state = make_state([20.0], version=1)
    server.setup(make_federation(), state)
    server.receive(tagged(make_update(0, [2.0], start=make_state([10.0])), "0"))
    assert server.end_round_of("0")
    assert server.step(state).params.item() == pytest.approx(20 + (12 - 20) / 4)


def test_failed_updates_of_a_group(make_update, make_state, make_federation):
    server, state = FedCompass(), make_state()
    server.setup(make_federation(), state)
    one, two = (tagged(make_update(c, [1.0], start=state), "0") for c in (0, 1))
    server.receive(one)
    server.receive(two)
    assert server.end_round_of("0")
    assert server.discard([one])
    assert not server.discard([two])


def test_weights_of_the_ten_events():
    """The worked example of the page: who is used in which version, and how stale."""
    run = trainer(
        arrivals=compass(THREE),
        aggregator=FedCompass(client_weights="uniform"),
        local_optimizer=LocalSGD(0.1),
        max_time=52.0,
    )
    run.fit(boring(), classes((6, 10, 3)))
    found = [[(u.client_id, u.staleness, u.weight) for u in r.updates] for r in run.history]
    third = 1 / 3
    assert found == [
        [(0, 0, pytest.approx(third))],
        [(0, 0, pytest.approx(third))],
        [(1, 2, pytest.approx(third / 3**0.5))],
        [(0, 1, pytest.approx(third / 2**0.5)), (1, 0, pytest.approx(third))],
        [(2, 4, pytest.approx(third / 5**0.5))],
        [(0, 1, pytest.approx(third / 2**0.5))],
        [
            (1, 2, pytest.approx(third / 3**0.5)),  # late
            (1, 0, pytest.approx(third)),
            (0, 0, pytest.approx(third)),
            (2, 1, pytest.approx(third / 2**0.5)),
        ],
    ]


def test_equal_speeds_are_rounds_of_fedavg():
    """After the first tasks each version is a round of everyone with Q_max steps."""

    def run(aggregator):
        return fitted(
            boring(),
            classes(),
            arrivals=CompassArrivals(StepDurations(0.1), 2, 5),
            aggregator=aggregator,
            local_optimizer=LocalSGD(0.1),
            precision="64-true",
            max_rounds=9,
        )

    ours, theirs = run(FedCompass(staleness=None)), run(FedAvg())
    assert [len(record.updates) for record in ours.history] == [1] * 4 + [4] * 5
    assert all(u.num_steps == 5 for record in ours.history for u in record.updates)
    weights = [[u.weight for u in record.updates] for record in ours.history[4:]]
    assert weights == [[u.weight for u in record.updates] for record in theirs.history[4:]]


class Kept(Callback):
    """A checkpoint after some of the events."""

    def __init__(self, path, every=7):
        self.path, self.every, self.events = path, every, 0

    def on_event_end(self, trainer, module):
        self.events += 1
        if self.events % self.every == 0:
            trainer.save_checkpoint(self.path / f"{self.events}.ckpt")


def run(executor="vectorized", arrivals=None, ckpt_path=None, **more):
    made = trainer(
        arrivals=arrivals or compass(THREE, momentum=0.9),
        aggregator=FedCompass(average="models"),
        local_optimizer=LocalSGD(0.1),
        executor=executor,
        max_rounds=14,
        **more,
    )
    made.fit(boring(), classes((6, 10, 3)), ckpt_path=ckpt_path)
    return made


def test_a_run_is_recorded_replayed_and_resumed_to_the_same_bits(tmp_path):
    whole = run(callbacks=Kept(tmp_path))
    recording = Recording(compass(THREE, momentum=0.9), tmp_path / "plan.parquet")
    assert torch.equal(run(arrivals=recording).state.params, whole.state.params)
    replayed = run(arrivals=ReplayArrivals(tmp_path / "plan.parquet"))
    assert torch.equal(replayed.state.params, whole.state.params)
    places = sorted(tmp_path.glob("*.ckpt"))
    assert len(places) > 3
    for place in places[::2]:
        resumed = run(ckpt_path=place)
        assert resumed.fingerprint() == whole.fingerprint()
        assert resumed.history == whole.history


def test_other_executors_agree():
    alone = run(SequentialExecutor())
    stacked, others = run(), run(ProcessExecutor(workers=2))
    torch.testing.assert_close(stacked.state.params, alone.state.params)
    assert torch.equal(others.state.params, alone.state.params)
