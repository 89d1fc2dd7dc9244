"""FedASMU by hand, as FedAsync, and its tasks in two halves."""

import math

import pytest
import torch
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule
from fedlight.aggregators import FedASMU, FedAsync
from fedlight.arrivals import (
    ContinuousArrivals,
    ExponentialDurations,
    Recording,
    RefreshedTasks,
    ReplayArrivals,
    UniformSteps,
)
from fedlight.executors import ProcessExecutor, SequentialExecutor
from fedlight.local_optimizers import FreshModel, LocalSGD
from tests import by_hand
from tests.aggregators.test_fedcompass import Kept, boring
from tests.arrivals.test_refreshed import clock
from tests.boring import Point, classes, fitted, trainer


def test_ten_events_by_hand():
    """The worked example of the page.

    Client 0 is drawn to 8 and client 1 to -8, and each local step goes half the way.
    """

    def ends(y, centre, steps):
        return centre + (y - centre) / 2**steps

    def mixed(y, x, o, g):
        phi = (1 - 1 / math.sqrt(g - o + 1)) / math.sqrt(g)
        b = phi / (1 + phi)
        return (1 - b) * y + b * x

    def share(t, tau, lam):
        xi = lam / (math.sqrt(t) * tau)
        return xi / (1 + xi), 1 / (1 + xi) ** 2 / (math.sqrt(t) * tau)

    # 1: refresh of 0, nothing is new. 2: client 0 arrives with 6.
    a, by_lam = share(1, 1, 1.0)
    x1 = a * 6.0
    moved = 6.0
    # 2: refresh of 1, after client 0: -6 is mixed with version 1. 3: refresh of 0, nothing new.
    late = ends(mixed(-6.0, x1, 0, 1), -8.0, 2)
    # 4: client 0 arrives with 6.75 and learns: G = -(6.75 - 3) / (0.5 * 1).
    lam = 1.0 - 0.02 * -7.5 * moved * by_lam
    a, by_lam = share(2, 1, lam)
    moved = 6.75 - x1
    x2 = x1 + a * moved
    # 4: client 1 arrives, tau = 3.
    x3 = x2 + share(3, 3, 1.0)[0] * (late - x2)
    # 5: refresh of 0, which had pulled version 2: version 3 is new. 6: it arrives, tau = 2.
    y = ends(mixed(ends(x2, 8.0, 1), x3, 2, 3), 8.0, 1)
    lam -= 0.02 * -(y - x3) / 0.5 * moved * by_lam
    x4 = x3 + share(4, 2, lam)[0] * (y - x3)

    run = fitted(
        Point(),
        pair(),
        arrivals=RefreshedTasks(clock()),
        aggregator=FedASMU(sigma=1.0, lam_rate=0.02, local_lr=0.5),
        local_optimizer=FreshModel(LocalSGD(0.5)),
        precision="64-true",
        max_time=7.0,
        callbacks=(seen := Models()),
    )
    assert seen.models == pytest.approx([x1, x2, x3, x4], rel=1e-12)
    page = by_hand.versions("FedASMU")
    assert [*page] == [1, 2, 3, 4]
    assert [*page.values()] == pytest.approx(seen.models, abs=5.1e-5)
    assert len(by_hand.rows("FedASMU")) == 10
    assert run.aggregator.controls[0][0] == pytest.approx(lam, rel=1e-12)
    assert [record.now for record in run.history] == [2.0, 4.0, 4.0, 6.0]
    # Halves are listed as dropped; the fresh model counts as the one pulled.
    dropped = [u.client_id for record in run.history for u in record.dropped]
    assert dropped == [0, 1, 0, 0]
    assert [u.pulled_version for record in run.history for u in record.updates] == [0, 1, 1, 3]


class Models(Kept):
    """The model of each version."""

    def __init__(self):
        self.models = []

    def on_event_end(self, trainer, module):
        return

    def on_round_end(self, trainer, module):
        self.models.append(trainer.state.params.item())


def pair():
    """Client 0 has the example 8, client 1 has -8."""
    data = [TensorDataset(torch.tensor([centre], dtype=torch.float64)) for centre in (8.0, -8.0)]
    return FederatedDataModule.from_client_datasets(data, batch_size=1)


def test_what_is_learned_by_hand(make_update, make_state, make_federation):
    """One client: a by (lam, sigma, iota) = (2, 1, 0.5) at t = 4, tau = 2 is 1 / 2."""
    server = FedASMU(
        lam=2.0,
        sigma=1.0,
        iota=0.5,
        lam_rate=0.1,
        sigma_rate=0.2,
        iota_rate=0.3,
        local_lr=0.25,
    )
    server.setup(make_federation(), make_state())
    state, pulled = make_state([1.0, 1.0], version=3), make_state([0.0, 2.0], version=2)
    server.receive(make_update(0, [3.0, 3.0], pulled=2, start=pulled))
    after = server.step(state)
    assert [used.weight for used in after.used] == [0.5]  # xi = 2 / (2 * 2) + 0.5 = 1
    assert after.params.tolist() == [2.0, 3.0]
    # y' - x' = (2, 4); G = -(1, 0.5) / (0.25 * 2) = (-2, -1): D = -8. da/dxi = 1 / 4.
    server.receive(make_update(0, [1.0, 0.5], pulled=4, start=after, steps=2))
    server.step(after)
    lam = 2.0 + 0.1 * 8 / 4 / 4
    sigma = 1.0 - 0.2 * 8 / 4 * 2 * math.log(2) / 4
    assert server.controls[0] == pytest.approx([lam, sigma, 0.5 + 0.3 * 8 / 4], rel=1e-12)


def test_nothing_falls_below_0(make_update, make_state, make_federation):
    server = FedASMU(lam_rate=99.0, sigma_rate=99.0, iota_rate=99.0, iota=0.1)
    state = make_state([0.0])
    server.setup(make_federation(), state)
    for delta in (1.0, -1.0):
        server.receive(make_update(0, [delta], pulled=state.version, start=state))
        state = server.step(state)
    assert server.controls[0][0] == server.controls[0][2] == 0.0


@pytest.mark.parametrize(("own", "learned"), [(False, True), (True, False)])
def test_versions_of_ones_own(own, learned, make_update, make_state, make_federation):
    """Client 1 makes version 2, and client 0 pulls it after it has made version 1."""
    server = FedASMU(lam_rate=0.1, own_versions=own)
    state = make_state([0.0])
    server.setup(make_federation(), state)
    for client in (0, 1, 0):
        server.receive(make_update(client, [1.0], pulled=state.version, start=state))
        state = server.step(state)
    assert (0 in server.controls) is learned
    server.receive(make_update(0, [1.0], pulled=state.version, start=state))
    server.step(state)
    assert 0 in server.controls  # it has pulled the version that it made


def test_a_fresh_update_counts_from_1_or_2(make_update, make_state, make_federation):
    for fresh, xi in ((1, 1.0), (2, 0.25)):
        server = FedASMU(sigma=2.0, fresh=fresh)
        server.setup(make_federation(), make_state())
        assert server.weights([make_update(0, [1.0])], 0) == [pytest.approx(xi / (1 + xi))]


def test_constant_weights_are_fedasync():
    """a = 0.5 * 1.5 / 1.75 = 3 / 7 with lam = 0, mu = 0.5, iota = 1.5."""

    def run(aggregator):
        process = ContinuousArrivals(
            ExponentialDurations(1.0), resume="on_arrival", local_steps=UniformSteps(1, 4)
        )
        return fitted(
            boring(),
            classes(),
            arrivals=process,
            aggregator=aggregator,
            local_optimizer=LocalSGD(0.1),
            precision="64-true",
            max_rounds=25,
        )

    ours = run(FedASMU(mu=0.5, lam=0.0, iota=1.5, max_staleness=3))
    theirs = run(FedAsync(3 / 7, max_staleness=3))
    torch.testing.assert_close(ours.state.params, theirs.state.params, rtol=1e-12, atol=1e-13)
    assert [len(record.dropped) for record in ours.history] == [
        len(record.dropped) for record in theirs.history
    ]


def test_staleness_is_that_of_the_first_half(make_update, make_state, make_federation):
    server = FedASMU(sigma=1.0, max_staleness=3)
    server.setup(make_federation(), make_state())
    second = make_update(0, [1.0], pulled=5)
    second = second._replace(task=second.task._replace(tag="from 3"))
    assert server.accepts(second, 6)
    assert not server.accepts(second, 7)
    xi = 1 / (math.sqrt(7) * 4)
    assert server.weights([second], 6) == [pytest.approx(xi / (1 + xi))]


def process():
    clock = ContinuousArrivals(
        ExponentialDurations(1.0), resume="on_arrival", local_steps=UniformSteps(1, 5)
    )
    return RefreshedTasks(clock)


def run(executor="vectorized", arrivals=None, ckpt_path=None, **more):
    made = trainer(
        arrivals=arrivals or process(),
        aggregator=FedASMU(lam_rate=0.1, sigma_rate=0.1, iota_rate=0.1, local_lr=0.1),
        local_optimizer=FreshModel(
            LocalSGD(0.1, momentum=0.5), upsilon=0.9, gamma_rate=0.1, upsilon_rate=0.1
        ),
        executor=executor,
        max_rounds=25,
        **more,
    )
    made.fit(boring(), classes((6, 10, 3, 8, 5)), ckpt_path=ckpt_path)
    return made


def test_a_run_is_recorded_replayed_and_resumed_to_the_same_bits(tmp_path):
    whole = run(callbacks=Kept(tmp_path))
    recording = Recording(process(), tmp_path / "plan.parquet")
    assert torch.equal(run(arrivals=recording).state.params, whole.state.params)
    replayed = run(arrivals=ReplayArrivals(tmp_path / "plan.parquet"))
    assert torch.equal(replayed.state.params, whole.state.params)
    places = sorted(tmp_path.glob("*.ckpt"))
    assert len(places) > 5
    for place in places[::2]:
        resumed = run(ckpt_path=place)
        assert resumed.fingerprint() == whole.fingerprint()
        assert resumed.history == whole.history


def test_other_executors_agree():
    alone = run(SequentialExecutor())
    stacked, others = run(), run(ProcessExecutor(workers=2))
    torch.testing.assert_close(stacked.state.params, alone.state.params)
    assert torch.equal(others.state.params, alone.state.params)


def test_halves_need_a_local_optimizer_that_mixes():
    with pytest.warns(UserWarning, match=r"local_optimizer=FreshModel\(LocalSGD\(lr=…\)\)"):
        fitted(boring(), classes(), arrivals=process(), aggregator=FedASMU(), max_rounds=1)
