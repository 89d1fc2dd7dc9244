"""HALoS by hand, against aggregators that it becomes, and through checkpoints and executors."""

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from lightning import LightningModule
from torch import nn

from fedlight import Callback
from fedlight.aggregators import DelayedNesterov, FedAvg, HALoS
from fedlight.arrivals import (
    Availability,
    ContinuousArrivals,
    DiurnalWindows,
    ExponentialDurations,
    FixedDurations,
    Recording,
    Regions,
    ReplayArrivals,
    UniformSteps,
)
from fedlight.channel import ErrorFeedback, TopK
from fedlight.executors import ProcessExecutor, SequentialExecutor, VectorizedExecutor
from fedlight.local_optimizers import LocalAdamW, LocalSGD
from tests.boring import Boring, classes, fitted, points, trainer


class Halfway(LightningModule):
    """The loss is (w - x)^2 / 2, so a step of SGD with rate 1/2 goes half the way to x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def training_step(self, batch, batch_idx):
        return ((self.w - batch[0].double()) ** 2).mean() / 2

    def validation_step(self, batch, batch_idx):
        self.log("w", self.w.sum())


class Sent(Callback):
    """What the clients of the region pull of each version."""

    def __init__(self) -> None:
        self.models = []

    def on_round_end(self, trainer, module):
        self.models += trainer.aggregator.outgoing(trainer.state).tolist()


def clock(*durations, **more):
    return ContinuousArrivals(FixedDurations(durations), local_steps=1, **more)


def halfway(arrivals, aggregator, targets, module=None, more_callbacks=(), **more):
    """The global models, and the models of the regions whose events have made them."""
    sent = Sent()
    run = fitted(
        module or Halfway(),
        points(*([target] for target in targets)),
        arrivals=arrivals,
        aggregator=aggregator,
        local_optimizer=LocalSGD(0.5),
        callbacks=[*more_callbacks, sent],
        **{"executor": SequentialExecutor(), **more},
    )
    return [record.metrics["w"] for record in run.history], sent.models, run


WEST_AND_EAST = {"west": [0], "east": [1]}


def two(**more):
    """Client 0 in the west arrives at 1, 2, …, client 1 in the east at 1.5, 3, …; K = 2."""
    processes = {"west": clock(1.0), "east": clock(1.5)}
    return Regions(processes, WEST_AND_EAST, arrivals_per_send=2, **more)


@pytest.mark.parametrize("executor", [SequentialExecutor, VectorizedExecutor])
def test_two_regions_by_hand(executor):
    """Targets 8 and -4; regions X += delta; global v = v/2 + s, x += v/2 + s; a = 1/2.

    1     west: delta 4, X = 4              1.5   east: delta -2, Y = -2
    2     west: delta 2, X = 6, sends 6     2.25  v = 6, x = 3 + 6 = 9
    2.75  X = 6/2 + 9/2 = 7.5
    3     west, which pulled 6: delta 1, X = 8.5; east: delta -1, Y = -3, sends -3
    4     west: delta -1/4, X = 8.25, sends 1 - 1/4 = 0.75
          then v = 3 - 3 = 0, x = 9 + 0 - 3 = 6; and at once Y = -3/2 + 6/2 = 1.5
    4.25  v = 0.75, x = 6 + 0.375 + 0.75 = 7.125
    4.5   east, which pulled -3: delta -1/2, Y = 1
    4.75  X = 8.25/2 + 7.125/2 = 7.6875
    5     west, which pulled 8.25: delta -1/8, X = 7.5625
    """
    arrivals = two(up={"west": 0.25, "east": 1.0}, down={"west": 0.5, "east": 0.0})
    aggregator = HALoS(1, 0.5, 1.0, 1, 0.0, 1.0, 0.5)
    models, sent, run = halfway(arrivals, aggregator, [8, -4], max_time=5.2, executor=executor())
    assert models == [0, 0, 0, 9, 9, 9, 9, 9, 6, 6, 7.125, 7.125, 7.125, 7.125]
    assert sent == [4, -2, 6, 6, 7.5, 8.5, -3, 8.25, -3, 1.5, 8.25, 1, 7.6875, 7.5625]
    assert run.state.params.item() == run.module.w.item() == 7.125
    assert [len(record.updates) for record in run.history] == [
        1,
        1,
        1,
        0,
        0,
        1,
        1,
        1,
        *[0] * 3,
        1,
        0,
        1,
    ]


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        # The target is 8: X = 4, 6, 7, 7.5, 7.75 at 1, …, 5, as a = 0 changes nothing.
        ({}, [4.0, 4.5]),
        ({"summed": "since_send"}, [4.0, 7.5]),  # everything is sent once
        ({"send": "deltas", "region_lr": 1.0}, [4.0, 4.5]),
    ],
)
def test_what_arrives_during_the_transfers(reading, expected):
    """K = 1; the sum is sent at 1 and 4, and handled at 2 and 5."""
    arrivals = Regions({"a": clock(1.0)}, {"a": [0]}, 1, up=1.0, down=1.0)
    given = {"momentum": 0.0, "region_momentum": 0.0, "alpha": 0.0} | reading
    models, _, run = halfway(arrivals, HALoS(**given), [8.0], max_time=5.0)
    assert [models[record.version - 1] for record in run.history if record.now == 2.0][-1] == 4.0
    assert sorted({model for model in models if model}) == expected


def test_the_sum_of_the_deltas_is_not_the_change_of_the_model():
    """eta_r = 1/2, K = 2: deltas 4 and (8 - 2)/2 = 3, so X = 2, 3.5; sent is 3.5 or 7."""
    given = {"momentum": 0.0, "region_momentum": 0.0, "region_lr": 0.5}
    arrivals = Regions({"a": clock(1.0)}, {"a": [0]}, 2)
    for send, x in (("change", 3.5), ("deltas", 7.0)):
        models, sent, _ = halfway(arrivals, HALoS(**given, send=send), [8.0], max_time=2.0)
        assert models == [0.0, 0.0, x, x]
        assert sent[-1] == 0.75 * 3.5 + 0.25 * x


def test_the_momentum_of_a_region_may_be_reset():
    """b = 1/2, N = 1, K = 1, a = 0; v = v/2 + delta, X += v/2 + delta.

    delta 4: v = 4, X = 6. delta 1 (to 8): v = 3, X = 8.5; or anew v = 1, X = 7.5.
    """
    given = {"momentum": 0.0, "region_momentum": 0.5, "alpha": 0.0}
    arrivals = Regions({"a": clock(1.0)}, {"a": [0]}, 1)
    for at_return, x in (("keep", 8.5), ("reset", 7.5)):
        _, sent, _ = halfway(arrivals, HALoS(**given, at_return=at_return), [8.0], max_time=2.0)
        assert sent == [6.0, 6.0, 6.0, x, x, x]


def boring() -> Boring:
    torch.manual_seed(0)
    return Boring()


def test_one_region_at_home_is_delayed_nesterov():
    """K = 1, no transfer times, a = 1 and X += delta: the global server steps on each delta."""
    times = FixedDurations([1.0, 0.75, 0.5, 1.25])

    def inner():  # clients that rest pull after the transfers of the same time
        return ContinuousArrivals(times, idle=0.1, local_steps=UniformSteps(1, 3))

    everyone = Regions({"all": inner()}, {"all": [0, 1, 2, 3]}, 1)
    aggregator = HALoS(3, 0.8, 0.7, region_momentum=0.0, alpha=1.0)
    halos = fitted(boring(), classes(), arrivals=everyone, aggregator=aggregator, max_rounds=36)
    nesterov = DelayedNesterov(3, 0.8, 0.7)
    plain = fitted(boring(), classes(), arrivals=inner(), aggregator=nesterov, max_rounds=12)
    assert torch.equal(halos.state.params, plain.state.params)
    assert [u[6:] for r in halos.history for u in r.updates] == [
        (u.weight * 3, *u[7:]) for r in plain.history for u in r.updates
    ]


def test_without_the_global_model_each_region_is_delayed_nesterov():
    """a = 0: the regions do not know of each other, whatever the transfers take."""
    aggregator = HALoS(1, 0.5, 1.0, 2, 0.8, 0.7, 0.0)
    arrivals = Regions(
        {"west": clock(1.0, 0.6), "east": clock(0.7, 1.1)},
        {"west": [0, 1], "east": [2, 3]},
        3,
        up=0.3,
        down=0.9,
    )
    targets = [8.0, -4.0, 2.0, 6.0]
    _, sent, run = halfway(arrivals, aggregator, targets, max_time=9.0)
    for members, durations in (([0, 1], (1.0, 0.6)), ([2, 3], (0.7, 1.1))):
        models = alone(members, durations, targets)
        arrived = [
            sent[record.version - 1]
            for record in run.history
            if record.updates and record.updates[0].client_id in members
        ]
        assert arrived == pytest.approx(models, rel=1e-12)
        assert len(arrived) >= 20


def alone(members, durations, targets):
    """The models of asynchronous clients of one server."""
    run = fitted(
        Halfway(),
        points(*([targets[client]] for client in members)),
        arrivals=clock(*durations),
        aggregator=DelayedNesterov(2, 0.8, 0.7),
        local_optimizer=LocalSGD(0.5),
        executor=SequentialExecutor(),
        max_time=9.0,
    )
    return [record.metrics["w"] for record in run.history]


MEMBERS = {"west": [3, 0], "east": [1, 2]}


def options(rounds=18, **more):
    processes = {
        name: ContinuousArrivals(ExponentialDurations(1.0), local_steps=UniformSteps(1, 3))
        for name in MEMBERS
    }
    return {
        "arrivals": Regions(
            processes,
            MEMBERS,
            2,
            up={"west": 0.3, "east": 1.5},
            down={"west": 0.0, "east": 0.9},
            within=0.1,
        ),
        "aggregator": HALoS(2, 0.5, 0.8, 2, 0.8, lambda version: 1 / (1 + 0.01 * version), 0.5),
        "local_optimizer": LocalAdamW(0.01, keep="client"),
        "check_val_every_n_rounds": 7,
        "max_rounds": rounds,
    } | more


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"aggregator": HALoS(summed="since_send", send="deltas", at_return="reset")},
        {"channel": ErrorFeedback(TopK(0.5))},
        {"executor": VectorizedExecutor()},
    ],
    ids=["code", "readings", "channel", "stacked"],
)
def test_a_run_goes_on_in_the_middle_of_transfers(more, tmp_path):
    """Killed while sums, models, or nothing is on the way between servers."""

    class Saves(Callback):
        """Keeps the first checkpoint with sums, models, both, or nothing on the way."""

        def __init__(self):
            self.found = {}

        def on_event_end(self, trainer, module):
            aggregator = trainer.aggregator
            on_the_way = "sum" * len(aggregator.sent) + "model" * len(aggregator.returned)
            if trainer.version > 3 and on_the_way not in self.found:
                self.found[on_the_way] = tmp_path / f"{trainer.version}.ckpt"
                trainer.save_checkpoint(self.found[on_the_way])

    saves = Saves()
    whole = fitted(boring(), classes(), **options(**more), callbacks=saves)
    assert saves.found.keys() >= {"", "sum", "model"}
    for path in saves.found.values():
        again = trainer(**options(**more))
        again.fit(boring(), classes(), ckpt_path=path)
        assert again.fingerprint() == whole.fingerprint(), path
        assert again.history == whole.history


def test_a_replay_has_the_same_bits(tmp_path):
    recorded = options(arrivals=Recording(options()["arrivals"], tmp_path / "run.parquet"))
    first = fitted(boring(), classes(), **recorded)
    again = ReplayArrivals(tmp_path / "run.parquet")
    second = fitted(boring(), classes(), **options(arrivals=again))
    assert second.fingerprint() == first.fingerprint()
    assert [(r.now, len(r.updates)) for r in second.history] == [
        (r.now, len(r.updates)) for r in first.history
    ]
    planned = options()["arrivals"].simulate(
        num_clients=4, max_rounds=40, num_examples=[6, 10, 3, 8], batch_size=4
    )
    third = fitted(boring(), classes(), **options(arrivals=ReplayArrivals(planned)))
    assert third.fingerprint() == first.fingerprint()  # the schedule knows nothing of the model


def test_workers_and_stacks_compute_the_same():
    one = fitted(boring(), classes(), **options(executor=SequentialExecutor()))
    others = fitted(boring(), classes(), **options(executor=ProcessExecutor(workers=2)))
    assert others.fingerprint() == one.fingerprint()
    double = {"precision": "64-true"}
    stacked = fitted(boring(), classes(), **options(executor=VectorizedExecutor(), **double))
    alone = fitted(boring(), classes(), **options(executor=SequentialExecutor(), **double))
    torch.testing.assert_close(stacked.state.params, alone.state.params, rtol=1e-10, atol=1e-12)


def test_one_version_is_kept_for_each_region():
    class Counts(Callback):
        most = 0

        def on_event_end(self, trainer, module):
            self.most = max(self.most, len(trainer.run.server.versions))

    counts = Counts()
    fitted(boring(), classes(), **options(), callbacks=counts)
    assert counts.most == 3  # and the one before the newest, until the next step


def test_clients_by_day_pull_the_model_of_their_region():
    arrivals = Availability(options()["arrivals"], DiurnalWindows(3.0, 0.6))
    run = fitted(boring(), classes(), **options(80, arrivals=arrivals))
    made_by = {}  # versions that an arrival has made
    late = 0
    for record in run.history:
        for update in record.updates:
            region = next(name for name, own in MEMBERS.items() if update.client_id in own)
            pulled = update.pulled_version
            assert made_by.get(pulled, region) == region
            late += any(
                made_by.get(v) not in (None, region) for v in range(pulled + 1, record.version)
            )
            made_by[record.version] = region
    assert late > 20  # the other region has made versions in the meantime


class Sometimes(Halfway):
    """Local runs from 4 raise, as `left` says in reverse."""

    left: ClassVar = []  # of the class, since a local run leaves the module as it was

    def training_step(self, batch, batch_idx):
        if float(self.w.detach()) == 4.0 and self.left.pop():
            raise RuntimeError("out of luck")
        return super().training_step(batch, batch_idx)


def unlucky(how, failures, **more):
    """K = 2, target 8: X = 4 at 1; the run from 4 fails at 2, and the sum that is sent is 4."""
    Sometimes.left = failures
    run = fitted(
        Sometimes(),
        points([8.0]),
        arrivals=Regions({"a": clock(1.0)}, {"a": [0]}, 2, up=0.25, down=0.25),
        aggregator=HALoS(momentum=0.0, region_momentum=0.0, **more),
        local_optimizer=LocalSGD(0.5),
        executor=SequentialExecutor(),
        on_client_failure=how,
        max_time=5.25,
    )
    return [(record.now, record.metrics["w"]) for record in run.history]


def test_a_failed_update_counts_as_an_arrival():
    found = unlucky("drop", [True] * 9, alpha=1.0, server_lr=0.5)
    assert found[:3] == [(1.0, 0.0), (2.25, 2.0), (2.5, 2.0)]


def test_an_update_that_is_tried_again_counts_once():
    """a = 0. The second try is at 3: X = 6; then 7 and 7.5, which is sent: 4 + 2 + 1 + 0.5."""
    assert unlucky("retry", [False, True], alpha=0.0) == [
        (1.0, 0.0),
        *((2.25, 4.0), (2.5, 4.0)),
        *((3.0, 4.0), (4.0, 4.0), (5.0, 4.0)),
        (5.25, 7.5),
    ]


class Setting(Callback):
    """From the third version on, the module's rate is 0."""

    def on_round_end(self, trainer, module):
        if trainer.version == 3:
            module.rate = 0.0


class Rated(Halfway):
    def __init__(self) -> None:
        super().__init__()
        self.rate = 1.0

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.rate


def test_what_a_hook_has_set_reaches_the_clients_of_all_regions():
    """Version 3 is made in the west at 2. The east's client pulls version 2 at 2.5, with rate 0."""
    processes = {"west": clock(1.0), "east": clock(1.5, idle=1.0)}
    _, sent, run = halfway(
        Regions(processes, WEST_AND_EAST, 100),
        HALoS(region_momentum=0.0),
        [8.0, -4.0],
        module=Rated(),
        more_callbacks=[Setting()],
        max_time=4.0,
    )
    assert sent == [4.0, -2.0, 6.0, 6.0, 6.0, -2.0]
    assert run.history[-1].updates[0].pulled_version == 2


def test_both_sides_need_regions(make_update, make_state, make_federation):
    with pytest.raises(ValueError, match="HALoS has a server for each region, but Continuous"):
        fitted(Boring(), classes(), arrivals=clock(1, 1, 1, 1), aggregator=HALoS(), max_rounds=2)
    with pytest.raises(ValueError, match="Regions has regions with a server each, but FedAvg has"):
        fitted(Boring(), classes(), **options(aggregator=FedAvg(1)))
    with pytest.raises(ValueError, match=r"HALoS needs regions with a server each: arrivals=Reg"):
        HALoS().setup(make_federation(), make_state())


def test_an_update_without_a_region_is_refused(make_update, make_state, make_federation):
    federation = replace(make_federation(), groups=("a", "b"), arrivals_per_send=2)
    aggregator = HALoS()
    aggregator.setup(federation, make_state())
    with pytest.raises(ValueError, match="HALoS has the regions a, b, but client 3 has the tag No"):
        aggregator.receive(make_update(3, [1.0]))


@pytest.mark.parametrize(
    ("up", "down", "transfers"), [(0.0, 0.0, [0, 0, 1, 2, 2]), (0.75, 0.5, [0, 0, 1, 1, 2])]
)
def test_transfers_between_servers_are_bytes(up, down, transfers) -> None:
    """One number of eight bytes, with each pull, each arrival and each transfer.

    The second arrival, at 2, is sent and returned at once; or it is at the global server at 2.75,
    there is an arrival at 3, and the model is back at 3.25.
    """
    arrivals = Regions({"r": clock(1.0)}, {"r": [0]}, arrivals_per_send=2, up=up, down=down)
    run = fitted(Halfway(), points([4.0]), arrivals=arrivals, aggregator=HALoS(), max_rounds=5)
    found = [each.metrics["fed/bytes"] / 8 - each.metrics["fed/models"] for each in run.history]
    assert found == transfers
