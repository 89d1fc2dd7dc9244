import gc
import logging
import math
import random
import weakref
from copy import deepcopy

import lightning
import numpy as np
import pytest
import torch
from lightning import LightningModule
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader

from fedlight import Callback, FedTrainer, participation_report
from fedlight.aggregators import AFACD, Aggregator, FedAvg
from fedlight.arrivals import UniformArrivals
from fedlight.executors.base import ClientError
from fedlight.local_optimizers import LocalSGD
from fedlight.parameters import ModuleState
from tests.boring import (
    Boring,
    Counting,
    Measured,
    Point,
    Recorder,
    classes,
    fitted,
    points,
    replay,
    trainer,
)

HALF = {"local_optimizer": LocalSGD(lr=0.5)}
EACH = {"aggregator": FedAvg(buffer_size=1), **HALF}


def three(**kwargs):
    """Three steps of which the second and the third use updates of staleness 1.

    Client 0 holds 4; client 1 holds -2 twice. From w = 0 client 0 reaches 2; client 1 reaches -1,
    then -1.5, from the same version 0; client 0 goes on from version 1 = 2 to 3.
    """
    events = replay((0, 0, 1.0, 1), (1, 0, 2.0, 2, 0.0), (0, 1, 3.5, 1))
    return {"arrivals": events, **EACH, **kwargs}


HELD = ([4.0], [-2.0, -2.0])


def own(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith("fed/")}


@pytest.fixture
def messages(monkeypatch):
    """What the run says, by Lightning's logger."""
    said = []
    for name in ("_fit.endings", "_fit.argument_checks", "_support.messages"):
        monkeypatch.setattr(f"fedlight.{name}.rank_zero_info", said.append, raising=False)
    return said


# --- what happened, by hand ---


def test_history_by_hand():
    run = fitted(Point(), points(*HELD, val=(1.0, 3.0)), **three())
    assert run.state.params.tolist() == [1.5]
    assert (run.version, run.now, run.num_updates) == (3, 3.5, 3)
    assert [record.version for record in run.history] == [1, 2, 3]
    assert [record.now for record in run.history] == [1.0, 2.0, 3.5]
    ((one,), (two,), (three_,)) = [record.updates for record in run.history]
    assert [u.client_id for u in (one, two, three_)] == [0, 1, 0]
    assert [u.pulled_version for u in (one, two, three_)] == [0, 0, 1]
    assert [u.staleness for u in (one, two, three_)] == [0, 1, 1]
    assert [u.num_steps for u in (one, two, three_)] == [1, 2, 1]
    assert [u.num_examples for u in (one, two, three_)] == [1, 2, 1]
    assert [u.weight for u in (one, two, three_)] == [1.0, 1.0, 1.0]
    assert [u.dispatched_at for u in (one, two, three_)] == [0.0, 0.0, 1.0]
    assert [u.arrived_at for u in (one, two, three_)] == [1.0, 2.0, 3.5]
    assert [u.norm for u in (one, two, three_)] == [2.0, 1.5, 1.0]
    assert len({u.serial for u in (one, two, three_)}) == 3
    # losses at the start of each step: (0-4)²/2; (0+2)²/2 and (-1+2)²/2; (2-4)²/2
    assert [r.metrics["train_loss"] for r in run.history] == [8.0, (2.0 + 0.5) / 2, 2.0]
    # |w - 1| and |w - 3| with w = 2, 0.5, 1.5
    assert [r.metrics["val_error"] for r in run.history] == [1.0, 1.5, 1.0]


def test_training_metrics_are_averaged_over_examples():
    pair = {"aggregator": FedAvg(buffer_size=2), "arrivals": replay((0, 0, 1.0, 1), (1, 0, 1.0, 2))}
    run = fitted(Point(), points(*HELD), **HALF | pair)
    (record,) = run.history
    # client 0 sees one example with loss 8, client 1 twice two examples with losses 2 and 0.5
    assert record.metrics["train_loss"] == pytest.approx((1 * 8 + 2 * 2 + 2 * 0.5) / 5)
    assert [used.weight for used in record.updates] == [pytest.approx(1 / 3), pytest.approx(2 / 3)]
    assert run.state.params.item() == pytest.approx(2 / 3 - 1.5 * 2 / 3)
    assert record.metrics["fed/participants"] == 2
    assert record.metrics["fed/update_norm"] == (2 + 1.5) / 2
    assert record.metrics["fed/local_steps"] == 1.5


def test_the_module_holds_the_server_model_wherever_a_hook_looks():
    class Looks(Callback):
        seen = ()

        def look(self, trainer, module, *rest):
            self.seen = (*self.seen, module.w.item() == trainer.state.params.item())

        on_dispatch = on_round_end = on_validation_end = on_fit_end = teardown = look

        def on_update(self, trainer, module, update):
            _ = update.delta
            self.look(trainer, module)

    for executor in ("sequential", "vectorized"):
        for every in (1, None):
            looks, module = Looks(), Point()
            run = fitted(
                module,
                points(*HELD),
                **three(callbacks=looks, check_val_every_n_rounds=every, executor=executor),
            )
            assert len(looks.seen) >= 11
            assert all(looks.seen)
            assert module.w.item() == 1.5
            assert run.module is module


def test_without_hooks_only_those_versions_are_copied_that_somebody_sees(monkeypatch):
    written = []
    write = ModuleState.write
    monkeypatch.setattr(
        ModuleState,
        "write",
        lambda self, state: (written.append(state.version), write(self, state)),
    )
    module = Point()

    def train(**kwargs):
        written.clear()
        fitted(module, points(*HELD), **three(executor="vectorized", **kwargs))
        return [version for version in written if version]

    assert 1 not in train(check_val_every_n_rounds=None)
    assert module.w.item() == 1.5
    assert {1, 2, 3} <= set(train(check_val_every_n_rounds=1))


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_an_evaluation_within_a_fit_leaves_the_module_up_to_date(executor):
    class Validates(Callback):
        seen = ()

        def on_round_end(self, trainer, module):
            self.seen = (*self.seen, module.w.item() == trainer.state.params.item())
            if trainer.version == 1:
                trainer.validate()
            if trainer.version == 2:
                with torch.no_grad():
                    module.w.add_(100.0)

    validates, module = Validates(), Point()
    kwargs = three(callbacks=validates, check_val_every_n_rounds=None, executor=executor)
    run = fitted(module, points(*HELD), **kwargs)
    assert validates.seen == (True, True, True)
    assert module.w.item() == run.state.params.item() == 101.5  # 0.5 + 100 + 1


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_loggers_and_whoever_has_the_trainer_see_the_newest_version(executor):
    module, logged, asked = Point(), [], []

    class Looks(CSVLogger):
        def log_metrics(self, metrics, step=None):
            logged.append(module.w.item())

    class Asks(FedAvg):
        def weights(self, updates, version):
            if version:
                asked.append(runs[0].module.w.item() == runs[0].state.params.item())
            return super().weights(updates, version)

    run = trainer(
        **three(
            aggregator=Asks(buffer_size=1),
            logger=Looks("logs"),
            log_every_n_steps=1,
            check_val_every_n_rounds=None,
            executor=executor,
        )
    )
    runs = [run]
    run.fit(module, points(*HELD))
    assert logged == [2.0, 0.5, 1.5]
    assert asked == [True, True]


def test_after_an_error_the_module_holds_the_newest_version():
    class Stops(FedAvg):
        def weights(self, updates, version):
            if version == 2:
                raise RuntimeError("stopped at version 2")
            return super().weights(updates, version)

    module = Point()
    run = trainer(**three(aggregator=Stops(buffer_size=1), check_val_every_n_rounds=None))
    with pytest.raises(RuntimeError, match="stopped at version 2"):
        run.fit(module, points(*HELD))
    assert module.w.item() == 0.5  # 2 - 1.5


def test_a_dropped_update_is_recorded_and_not_computed():
    class OnlyFresh(Aggregator):
        def setup(self, federation, state):
            self.inner = FedAvg(buffer_size=1)
            self.inner.setup(federation, state)

        def accepts(self, update, version):
            return update.staleness(version) == 0

        def receive(self, update):
            return self.inner.receive(update)

        def step(self, state):
            return self.inner.step(state)

    executor = Counting()
    events = replay((0, 0, 1.0, 1), (1, 0, 2.0, 2, 1.5), (0, 1, 3.5, 1, 1.5))
    run = fitted(
        Point(),
        points(*HELD),
        **HALF,
        arrivals=events,
        aggregator=OnlyFresh(),
        executor=executor,
    )
    assert run.state.params.tolist() == [3.0]
    assert [len(record.dropped) for record in run.history] == [0, 1]
    (dropped,) = run.history[1].dropped
    assert (dropped.client_id, dropped.staleness, dropped.weight) == (1, 1, 0.0)
    assert math.isnan(dropped.norm)
    computed = [serial for batch in executor.batches for serial in batch]
    assert dropped.serial not in computed
    assert len(computed) == 2
    assert run.num_updates == 3


# --- when it stops ---


def test_stops_by_rounds():
    assert fitted(Point(), points(*HELD), **three(max_rounds=2)).version == 2


def test_events_at_max_time_count():
    run = fitted(Point(), points(*HELD), **three(max_time=2.0))
    assert (run.version, run.now) == (2, 2.0)
    assert fitted(Point(), points(*HELD), **three(max_time=1.999)).version == 1


def test_stops_by_updates():
    run = fitted(Point(), points(*HELD), **three(max_updates=2))
    assert (run.num_updates, run.version) == (2, 2)


def test_the_first_limit_stops():
    assert fitted(Point(), points(*HELD), **three(max_rounds=3, max_updates=1)).version == 1


@pytest.mark.parametrize("hook", ["on_update", "on_round_end", "on_validation_end", "on_dispatch"])
def test_a_callback_may_stop_it(hook):
    def stop(self, trainer, module, *rest):
        if trainer.version == 1 or hook == "on_update":
            trainer.should_stop = True

    stops = type("Stops", (Callback,), {hook: stop})()
    run = fitted(Point(), points(*HELD), **three(callbacks=stops))
    assert run.version == 1
    assert run.should_stop
    run.fit(Point(), points(*HELD))
    assert run.version == 1


def test_updates_left_in_the_buffer_are_reported(messages):
    run = fitted(Point(), points(*HELD), **three(aggregator=FedAvg(buffer_size=2)))
    assert run.version == 1
    assert len(run.aggregator.held) == 1
    assert any("1 update was left in the aggregator's buffer" in said for said in messages)


def test_a_run_without_a_step_warns():
    run = trainer(arrivals=replay((0, 0, 1.0, 1)), aggregator=FedAvg(buffer_size=9), **HALF)
    with pytest.warns(UserWarning, match="ended before the server made its first update"):
        run.fit(Point(), points(*HELD))
    assert run.history == []
    assert run.module.w.item() == 0


# --- the same seed, the same bits ---


def model():
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 3))
    return Boring(net)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_the_same_seed_gives_the_same_bits(executor, tmp_path):
    class Peeks(Callback):
        def on_update(self, trainer, module, update):
            random.random()
            torch.rand(3)

    def bits(**kwargs):
        given = {"executor": executor, "seed": 11, "max_rounds": 3, **kwargs}
        return fitted(model(), classes(), **given).fingerprint()

    reference = bits()
    assert len(reference) == 16
    assert bits() == reference
    assert bits(check_val_every_n_rounds=None) == reference
    assert bits(check_val_every_n_rounds=2, limit_val_batches=1) == reference
    assert bits(logger=[CSVLogger(tmp_path), TensorBoardLogger(tmp_path)]) == reference
    assert bits(callbacks=[Peeks(), Recorder()]) == reference
    torch.manual_seed(99)
    assert bits() == reference
    assert bits(seed=12) != reference


def test_a_trainer_starts_anew_with_each_fit():
    run = trainer(arrivals=UniformArrivals(per_round=2, local_steps=2), max_rounds=4)
    prints = []
    for _ in range(2):
        run.fit(model(), classes())
        prints.append(run.fingerprint())
    assert prints[0] == prints[1]
    assert [record.version for record in run.history] == [1, 2, 3, 4]
    assert run.num_updates == 8


def test_the_fingerprint_sees_every_bit():
    run = fitted(model(), classes(), max_rounds=2)
    before = run.fingerprint()
    for tensor in (run.state.params, run.state.buffers, run.state.counters):
        value = tensor[-1].clone()
        tensor[-1] = torch.nextafter(value, value + 1) if tensor.is_floating_point() else value + 1
        assert run.fingerprint() != before
        tensor[-1] = value
    assert run.fingerprint() == before


def test_global_random_states_are_left_alone():
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    class Draws(Boring):
        drawn = ()

        def training_step(self, batch, batch_idx):
            draw = (random.random(), float(np.random.rand()), torch.rand(()).item())  # noqa: NPY002
            Draws.drawn = (*Draws.drawn, draw)
            return super().training_step(batch, batch_idx)

    seen = []
    for executor in ("sequential", Counting()):
        module, Draws.drawn = Draws(), ()
        before = states()
        run = fitted(module, classes(), executor=executor)
        assert states() == before
        run.validate()
        assert states() == before
        seen.append(sorted(Draws.drawn))
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == len(seen[0]) > 10


class Remembers(LocalSGD):
    """The client's state counts its steps; each step also adds it to the gradient."""

    client_state = True

    def step(self, run, grads):
        super().step(run, [g - c for g, c in zip(grads, run.client, strict=True)])

    def finish(self, run):
        return [c + 1 for c in run.client]


# --- late, and no more than is needed ---


def test_nothing_is_computed_before_it_is_needed():
    executor = Counting()

    class Watches(Callback):
        computed = ()

        def note(self, trainer, *rest):
            self.computed = (*self.computed, sum(map(len, executor.batches)))

        on_dispatch = on_update = on_round_end = note

    watches = Watches()
    events = replay((0, 0, 1.0, 1), (1, 0, 2.0, 1), (2, 0, 3.0, 1, 0.5), (0, 1, 4.0, 1))
    run = fitted(
        Point(),
        points([1.0], [2.0], [3.0]),
        arrivals=events,
        aggregator=FedAvg(buffer_size=2),
        executor=executor,
        callbacks=watches,
        **HALF,
    )
    # Two dispatches at 0 and one at 0.5; arrivals at 1 and 2; then a step, for which all three
    # are computed; the dispatch from version 1; two arrivals, and the step that needs the last.
    assert watches.computed == (0, 0, 0, 0, 0, 3, 3, 3, 3, 4)
    assert [sorted(batch) for batch in executor.batches] == [[0, 1, 2], [3]]
    assert run.version == 2


@pytest.mark.parametrize("independent", [True, False])
def test_what_arrives_after_max_time_is_computed_only_with_a_stack(independent):
    """Who is in a stack must not depend on the limits, if the results depend on the stack."""
    executor = Counting(independent=independent)
    events = replay((0, 0, 1.0, 1), (1, 0, 2.0, 1), (2, 0, 2.5, 1))
    fitted(
        Point(),
        points([1.0], [2.0], [3.0]),
        arrivals=events,
        max_time=2.0,
        executor=executor,
        **EACH,
    )
    together = [0, 1] if independent else [0, 1, 2]
    assert [sorted(batch) for batch in executor.batches] == [together]


@pytest.mark.parametrize("max_batch", [1, 2, 3])
def test_results_do_not_depend_on_how_many_are_computed_at_once(max_batch):
    from fedlight.executors import VectorizedExecutor

    torch.manual_seed(0)
    start = Boring()
    runs = [
        fitted(
            deepcopy(start),
            classes(),
            executor=VectorizedExecutor(max_batch=size),
            precision="64-true",
        )
        for size in (256, max_batch)
    ]
    torch.testing.assert_close(runs[0].state.params, runs[1].state.params, rtol=1e-11, atol=1e-12)


def alive(references):
    return sum(reference() is not None for reference in references)


@pytest.mark.parametrize("states", [False, True])
def test_old_versions_and_results_are_let_go(states):
    class Watches(Callback):
        versions = ()
        deltas = ()
        alive = ()

        def on_fit_start(self, trainer, module):
            self.on_round_end(trainer, module)

        def on_update(self, trainer, module, update):
            self.deltas = (*self.deltas, weakref.ref(update.delta))

        def on_round_end(self, trainer, module):
            self.versions = (*self.versions, weakref.ref(trainer.state.params))
            if len(self.versions) > 10:
                gc.collect()
                self.alive = (*self.alive, (alive(self.versions), alive(self.deltas)))

    watches = Watches()
    arrivals = UniformArrivals(per_round=2, max_staleness=2, local_steps=1)
    fitted(
        Boring(),
        classes(),
        arrivals=arrivals,
        max_rounds=12,
        callbacks=watches,
        executor="sequential",
        local_optimizer=Remembers(lr=0.1) if states else LocalSGD(lr=0.1),
    )
    assert len(watches.versions) == 13
    # the newest version and those pulled by what is in flight: two rounds back at most
    assert max(versions for versions, _ in watches.alive) <= 3
    # all that arrived was used by the end of its round
    assert [deltas for _, deltas in watches.alive] == [0] * 3


def test_a_version_that_a_record_still_names_is_kept():
    events = replay((0, 0, 1.0, 1), (0, 1, 2.0, 1), (1, 0, 3.0, 2, 2.5))
    run = fitted(Point(), points(*HELD), **three(arrivals=events))
    # 0 -> 2 -> 3, then client 1's -1.5 from version 0, pulled when version 2 was the newest
    assert run.history[-1].updates[0].staleness == 2
    assert run.state.params.tolist() == [1.5]


# --- a client's state ---


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_a_task_reads_the_state_as_it_was_at_its_dispatch(executor):
    # The second task is dispatched before the first arrives; the third after both.
    events = replay((0, 0, 1.0, 1, 0.0), (0, 0, 2.0, 1, 0.5), (0, 0, 3.0, 1, 2.5))
    run = fitted(
        Point(),
        points([0.0]),
        arrivals=events,
        aggregator=FedAvg(buffer_size=3, server_lr=1.0),
        local_optimizer=Remembers(lr=1.0),
        executor=executor,
    )
    # delta = c as it was read: 0, 0 and, after the second wrote 0 + 1, 1; mean 1/3
    assert run.state.params.item() == pytest.approx(1 / 3)
    assert run.client_state(0).tolist() == [2.0]


def test_states_are_computed_in_their_order():
    executor = Counting()
    events = replay((0, 0, 1.0, 1), (0, 0, 2.0, 1), (0, 0, 3.0, 1), (1, 0, 3.0, 1))
    run = fitted(
        Point(),
        points([0.0], [0.0]),
        arrivals=events,
        aggregator=FedAvg(buffer_size=4),
        local_optimizer=Remembers(lr=1.0),
        executor=executor,
    )
    assert [set(batch) for batch in executor.batches] == [{0, 1}, {2}, {3}]
    assert run.client_state(0).tolist() == [3.0]
    assert run.client_state(1).tolist() == [1.0]


def test_client_states_without_any():
    run = fitted(Point(), points(*HELD), **three())
    assert run.client_state(0) is None
    with pytest.raises(RuntimeError, match="call fit"):
        trainer(**three()).client_state(0)


# --- validation and test ---


def test_validation_every_few_rounds():
    recorder = Recorder()
    run = fitted(Point(), points(*HELD), **three(check_val_every_n_rounds=2, callbacks=recorder))
    assert ["val_error" in record.metrics for record in run.history] == [False, True, False]
    assert recorder.names.count("on_validation_end") == 1
    assert run.callback_metrics["val_error"] == 0.5
    assert run.callback_metrics["train_loss"] == 2.0
    never = fitted(Point(), points(*HELD), **three(check_val_every_n_rounds=None))
    assert not any("val_error" in record.metrics for record in never.history)


def test_no_validation_without_data_or_a_step():
    assert "val_error" not in fitted(Point(), points(*HELD, val=None), **three()).callback_metrics

    class Blind(Point):
        validation_step = LightningModule.validation_step

    assert "val_error" not in fitted(Blind(), points(*HELD), **three()).callback_metrics


def test_validate_and_test_before_and_after_fit():
    data = points(*HELD, val=(1.0, 2.0, 6.0), test=(10.0,))
    run, module = trainer(**three()), Point(2.0)
    assert run.validate(module, data) == [{"val_error": pytest.approx((1 + 0 + 4) / 3)}]
    assert run.test(module, data) == [{"test_error": 8.0}]
    assert run.callback_metrics["test_error"] == 8.0
    assert run.version == 0
    run.fit(Point(), data)
    assert run.validate() == [{"val_error": pytest.approx((0.5 + 0.5 + 4.5) / 3)}]
    assert run.validate()[0]["val_error"] == run.history[-1].metrics["val_error"]
    assert run.test() == [{"test_error": 8.5}]
    assert run.module.w.item() == 1.5
    assert run.validate(Point(6.0)) == [{"val_error": 3.0}]


@pytest.mark.parametrize(
    ("limit", "mean"), [(None, 2.5), (1, 0.5), (0.5, 0.5), (1.0, 2.5), (3, 2.5)]
)
def test_limit_val_batches(limit, mean):
    data = points([0.0], val=(0.0, 1.0, 2.0, 7.0), test=(0.0, 4.0, 8.0), eval_batch_size=2)
    run = trainer(**three(limit_val_batches=limit))
    assert run.validate(Point(), data) == [{"val_error": mean}]
    assert run.test(Point(), data) == [{"test_error": 4.0}]  # a limit of validation only


def test_fast_dev_run(tmp_path):
    data = points(*HELD, val=(0.0, 1.0, 2.0, 7.0), test=(0.0, 4.0), eval_batch_size=1)
    run = fitted(Point(), data, **three(fast_dev_run=True, logger=True, max_rounds=50))
    assert run.version == 1
    assert run.loggers == []
    assert run.history[0].metrics["val_error"] == 2.0
    assert run.test() == [{"test_error": 2.0}]
    assert fitted(Point(), data, **three(fast_dev_run=2)).version == 2
    assert trainer(**three(fast_dev_run=0, max_rounds=3)).max_rounds == 3


def test_a_callback_may_validate_in_between():
    class Tests(Callback):
        tested = ()

        def on_round_end(self, trainer, module):
            self.tested = (*self.tested, trainer.test()[0]["test_error"])
            assert module.trainer.is_global_zero

    tests = Tests()
    run = fitted(Point(), points(*HELD), **three(callbacks=tests))
    assert tests.tested == (2.0, 0.5, 1.5)
    assert run.fingerprint() == fitted(Point(), points(*HELD), **three()).fingerprint()


def test_errors_of_validate_and_test():
    run = trainer(**three())
    with pytest.raises(RuntimeError, match=r"no module yet; call fit\(module, datamodule\)"):
        run.validate()
    with pytest.raises(ValueError, match=r"trainer.validate\(module, datamodule\)"):
        run.validate(Point())
    with pytest.raises(TypeError, match=r"datamodule must be a FederatedDataModule, got .1."):
        run.test(Point(), [1])
    with pytest.raises(TypeError, match="module must be a LightningModule, got Linear"):
        run.test(nn.Linear(1, 1), points(*HELD))
    with pytest.raises(ValueError, match="has no test data"):
        run.test(Point(), points(*HELD, test=None))

    class Blind(Point):
        test_step = LightningModule.test_step

    with pytest.raises(ValueError, match="Blind has no test_step; define test_step"):
        run.test(Blind(), points(*HELD))


# --- hooks ---


def test_hooks_in_their_order():
    recorder = Recorder()
    run = fitted(Point(), points(*HELD), **three(callbacks=[recorder], check_val_every_n_rounds=2))
    assert [name for name in recorder.names if name != "on_event_end"] == [
        "setup",
        "on_fit_start",
        "on_train_start",
        "on_dispatch",  # client 1, client 0
        "on_dispatch",
        "on_update",
        "on_round_end",
        "on_dispatch",  # client 0 again, from version 1
        "on_update",
        "on_validation_start",
        "on_validation_end",
        "on_round_end",
        "on_update",
        "on_round_end",
        "on_train_end",
        "on_fit_end",
        "teardown",
    ]
    ends = [k for k, name in enumerate(recorder.names) if name == "on_event_end"]
    assert [recorder.names[k - 1] for k in ends] == ["on_dispatch", "on_round_end", "on_round_end"]
    assert recorder.calls[0] == ("setup", "fit")
    assert recorder.calls[-1] == ("teardown", "fit")
    tasks = [call[1] for call in recorder.calls if call[0] == "on_dispatch"]
    assert sorted((t.client_id, t.pulled_version, t.num_steps, t.visit) for t in tasks) == [
        (0, 0, 1, 0),
        (0, 1, 1, 1),
        (1, 0, 2, 0),
    ]
    updates = [call[1] for call in recorder.calls if call[0] == "on_update"]
    assert [update.task.serial for update in updates] == [
        used.serial for record in run.history for used in record.updates
    ]
    recorder.calls.clear()
    run.validate()
    run.test()
    assert recorder.calls == [
        ("setup", "validate"),
        ("on_validation_start",),
        ("on_validation_end",),
        ("teardown", "validate"),
        ("setup", "test"),
        ("on_test_start",),
        ("on_test_end",),
        ("teardown", "test"),
    ]


def test_the_modules_own_hooks_are_called_as_by_lightning():
    class Hooks(Point):
        def __init__(self):
            super().__init__()
            self.calls = []

        def setup(self, stage):
            self.calls.append(f"setup {stage}")

        def on_fit_start(self):
            self.calls.append("fit start")

        def on_train_start(self):
            self.calls.append("train start")

        def on_train_end(self):
            self.calls.append("train end")

        def on_fit_end(self):
            self.calls.append("fit end")

        def teardown(self, stage):
            self.calls.append(f"teardown {stage}")

    module = Hooks()
    run = fitted(module, points(*HELD), **three())
    run.validate()
    assert module.calls == [
        "setup fit",
        "fit start",
        "train start",
        "train end",
        "fit end",
        "teardown fit",
        "setup validate",
        "teardown validate",
    ]


class Breaks(Point):
    """Its training step fails for the client that holds 13."""

    def training_step(self, batch, batch_idx):
        if 13.0 in batch[0]:
            raise ZeroDivisionError("an unlucky batch")
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("optimizer", [LocalSGD(lr=0.5), Remembers(lr=0.5)])
def test_a_client_that_fails(optimizer):
    recorder, executor = Recorder(), Counting(max_batch=1)
    events = replay((0, 0, 1.0, 1), (1, 0, 2.0, 3))
    run = trainer(
        arrivals=events,
        aggregator=FedAvg(buffer_size=1),
        local_optimizer=optimizer,
        executor=executor,
        callbacks=recorder,
    )
    module = Breaks()
    with pytest.raises(
        ClientError,
        match=r"client 1 failed in its local run from version 0 \(dispatched at virtual time 0, "
        r"3 steps\): ZeroDivisionError: an unlucky batch",
    ) as caught:
        run.fit(module, points([1.0], [13.0]))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert recorder.names[-3:] == ["on_client_failure", "on_exception", "teardown"]
    assert recorder.calls[-3][1] == caught.value.task
    assert recorder.calls[-3][2] is recorder.calls[-2][1] is caught.value
    assert "on_fit_end" not in recorder.names
    assert module.w.item() == run.state.params.item() == 0.5
    assert module._fabric is None
    run.fit(module, points([1.0], [2.0]))  # it can be used again
    assert run.version == 2


def test_an_exception_in_a_callback_tears_down():
    class Interrupts(Callback):
        def on_round_end(self, trainer, module):
            raise KeyboardInterrupt

    class Logger(CSVLogger):
        status = None

        def finalize(self, status):
            self.status = status

    recorder, logger = Recorder(), Logger("csv")
    run = trainer(**three(callbacks=[Interrupts(), recorder], logger=logger))
    with pytest.raises(KeyboardInterrupt):
        run.fit(Point(), points(*HELD))
    assert recorder.names[-2:] == ["on_exception", "teardown"]
    assert isinstance(recorder.calls[-2][1], KeyboardInterrupt)
    assert logger.status == "failed"
    assert run.version == 1


def test_a_fit_that_cannot_begin_leaves_the_module_alone():
    module = Point()
    run = trainer(arrivals=UniformArrivals(per_round=3), max_rounds=1, callbacks=Recorder())
    with pytest.raises(ValueError, match="per_round=3 is more than the 2 clients"):
        run.fit(module, points(*HELD))
    assert module._fabric is None
    assert run.callbacks[0].calls == []
    assert lightning.LightningModule.trainer.fget  # the module may go to Lightning now
    with pytest.raises(RuntimeError, match="not attached to a `Trainer`"):
        _ = module.trainer


# --- the module ---


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_the_module_is_given_back_as_it_was(executor):
    module = Boring(nn.ModuleDict({"frozen": nn.Linear(4, 4), "norm": nn.BatchNorm1d(4)}))
    module.net["head"] = nn.Linear(4, 3)
    module.net["frozen"].requires_grad_(False)
    module.net["norm"].eval()
    module.forward = lambda x: module.net["head"](module.net["norm"](module.net["frozen"](x)))
    frozen = module.net["frozen"].weight.clone()
    statistics = module.net["norm"].running_mean.clone()
    identities = {name: id(t) for name, t in module.state_dict(keep_vars=True).items()}
    attributes = set(vars(module))
    with pytest.warns(UserWarning, match=r"parts of Boring are in eval mode .*: net.norm\."):
        run = fitted(module, classes(), executor=executor)
    run.test()
    assert module.training
    assert not module.net["norm"].training
    assert torch.equal(module.net["norm"].running_mean, statistics)
    assert torch.equal(module.net["frozen"].weight, frozen)
    assert [p.requires_grad for p in module.net["frozen"].parameters()] == [False, False]
    assert module.net["head"].weight.requires_grad
    assert {name: id(t) for name, t in module.state_dict(keep_vars=True).items()} == identities
    assert all(param.grad is None for param in module.parameters())
    assert set(vars(module)) == attributes
    assert module._fabric is None


def test_self_device_and_loggers_are_there_in_a_step(tmp_path):
    class Asks(Point):
        asked = None

        def training_step(self, batch, batch_idx):
            Asks.asked = (self.device, self.logger, self.trainer.fabric is not None, self.training)
            return super().training_step(batch, batch_idx)

    logger = CSVLogger(tmp_path)
    fitted(Asks(), points(*HELD), **three(logger=logger, executor="sequential"))
    assert Asks.asked == (torch.device("cpu"), logger, True, True)


def test_the_same_module_trains_under_lightning():
    module = Measured()
    data = classes()
    fitted(module, data, executor="vectorized")
    before = module.net.weight.detach().clone()
    other = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    other.fit(module, DataLoader(data.train_data, batch_size=4), DataLoader(data.val_data, 5))
    assert not torch.equal(module.net.weight, before)
    assert {"f1", "both_acc", "val_acc"} <= set(other.callback_metrics)
    fitted(module, data, executor="sequential")


def test_the_data_module_trains_under_lightning_too():
    other = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    other.fit(Boring(), datamodule=classes())
    assert {"train_loss", "val_loss"} <= set(other.callback_metrics)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("64-true", torch.float64), ("bf16-mixed", torch.float32)]
)
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_precision(precision, dtype, executor):
    run = fitted(Boring(), classes(), precision=precision, executor=executor)
    assert run.state.params.dtype == dtype
    assert run.module.net.weight.dtype == dtype
    assert run.history[-1].metrics["val_loss"] > 0


def test_examples_of_any_kind():
    class Words(LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def training_step(self, batch, batch_idx):
            lengths = torch.tensor([float(len(text)) for text in batch["text"]])
            loss = ((self.weight * lengths - batch["target"]) ** 2).mean()
            self.log("loss", loss)
            return {"loss": loss, "lengths": lengths}

        def validation_step(self, batch, batch_idx):
            self.log("val_words", float(len(batch["text"])))

    from fedlight import FederatedDataModule

    clients = [
        [{"text": "a", "target": 1.0}, {"text": "bb", "target": 2.0}],
        [{"text": "ccc", "target": 3.0}],
    ]
    data = FederatedDataModule.from_client_datasets(
        clients, batch_size=2, val_dataset=clients[0], eval_batch_size=2
    )
    run = fitted(
        Words(),
        data,
        arrivals=UniformArrivals(per_round=2, local_steps=5),
        local_optimizer=LocalSGD(lr=0.05),
        max_rounds=10,
    )
    assert run.state.params.item() == pytest.approx(1.0, abs=1e-3)
    assert run.callback_metrics["val_words"] == 2


# --- loggers ---


def scalars(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_holds_the_curves(tmp_path):
    run = trainer(
        **three(logger=True, default_root_dir=tmp_path, check_val_every_n_rounds=2),
        max_rounds=3,
    )
    run.fit(Point(), points(*HELD, val=(1.0, 3.0)))
    (folder,) = (tmp_path / "fedlight_logs").iterdir()
    curves = scalars(folder)
    assert curves["train_loss"] == [(1, 8.0), (2, 1.25), (3, 2.0)]
    assert curves["val_error"] == [(2, 1.5)]
    assert curves["fed/staleness"] == [(1, 0.0), (2, 1.0), (3, 1.0)]
    assert curves["fed/participants"] == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert curves["fed/update_norm"] == [(1, 2.0), (2, 1.5), (3, 1.0)]
    assert curves["fed/time"] == [(1, 1.0), (2, 2.0), (3, 3.5)]


def test_several_loggers_and_hyperparameters(tmp_path):
    class Saves(Point):
        def __init__(self, width=3):
            super().__init__()
            self.save_hyperparameters()

    class Quiet(Point):
        def __init__(self, width=3):
            super().__init__()
            self.save_hyperparameters(logger=False)

    class Notes(CSVLogger):
        params = ()

        def log_hyperparams(self, params=None):
            self.params = (*self.params, params)

    loggers = [Notes(tmp_path / "one"), Notes(tmp_path / "two")]
    run = fitted(Saves(), points(*HELD), **three(logger=loggers))
    assert run.loggers == loggers
    assert run.logger is loggers[0]
    strategies = {
        "fed/arrivals": repr(run.arrivals),
        "fed/aggregator": repr(run.aggregator),
        "fed/local_optimizer": repr(run.local_optimizer),
        "fed/clients": run.federation.num_clients,
        "fed/batch_size": run.federation.batch_size,
        "fed/seed": run.seed,
    }
    assert [logger.params for logger in loggers] == [({"width": 3} | strategies,)] * 2
    assert (tmp_path / "two" / "lightning_logs" / "version_0" / "metrics.csv").is_file()
    fitted(Quiet(), points(*HELD), **three(logger=loggers[0]))
    assert loggers[0].params[1] == strategies  # the module's own are kept out


def test_nothing_is_written_without_a_logger(tmp_path):
    run = fitted(Measured(), classes(), logger=False)
    run.validate()
    run.test()
    assert run.logger is None
    assert list(tmp_path.iterdir()) == []


def test_it_says_once_which_executor_works_and_why(caplog, messages):
    fitted(Point(), points(*HELD), **three(aggregator=AFACD(buffer_size=1), executor=Counting()))
    assert any("on cpu: as given" in said for said in messages)


def test_what_one_sees_before_fit():
    run = trainer(**three())
    assert (run.version, run.now, run.num_updates, run.history) == (0, 0.0, 0, [])
    with pytest.raises(RuntimeError, match=r"no model yet; call fit\(module, datamodule\)"):
        _ = run.state
    with pytest.raises(RuntimeError, match="no module yet"):
        _ = run.module
    with pytest.raises(RuntimeError, match=r"no model yet.* before the run, give its arrivals"):
        participation_report(run)
    assert isinstance(run, FedTrainer)
    logging.getLogger(__name__).debug("seen")


@pytest.mark.parametrize("hook", ["on_fit_start", "on_round_end", "on_event_end"])
def test_a_fit_within_a_fit_of_the_same_trainer_is_refused(hook):
    again = Callback()
    setattr(again, hook, lambda trainer, module: trainer.fit(module, classes()))
    run = trainer(callbacks=again)
    with pytest.raises(RuntimeError, match="in a fit already; make another FedTrainer"):
        run.fit(Boring(), classes())
    again.__dict__.clear()
    run.fit(Boring(), classes())
    assert run.version == 5


def test_the_data_can_be_exchanged_before_a_validation() -> None:
    run = trainer(max_rounds=1)
    assert run.sanity_checking is False
    run.fit(Boring(), classes())
    other = classes()
    run.datamodule = other
    run.validate()
    assert run.datamodule is other


def test_what_a_module_cannot_set_is_named() -> None:
    class Sets(Boring):
        def on_train_start(self):
            self.trainer.callbacks = []

    with pytest.raises(AttributeError, match="property 'callbacks' of 'ModuleTrainer' object"):
        trainer(max_rounds=1).fit(Sets(), classes())


class Looks(Point):
    """It notes the batches of its validation, but does not hold them."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def validation_step(self, batch, batch_idx):
        self.seen.append(weakref.ref(batch[0]))


def test_a_run_that_is_over_holds_no_validation_batches():
    fit, module = trainer(max_rounds=2, check_val_every_n_rounds=1, **EACH), Looks()
    gc.disable()  # as it may be long until it finds what is in circles
    try:
        fit.fit(module, points([1.0], [3.0]))
    finally:
        gc.enable()
    assert len(module.seen) == 2
    assert all(batch() is None for batch in module.seen)


@pytest.mark.parametrize("calls", [("fit",), ("fit", "validate", "test"), ("fit", "fit")])
def test_a_trainer_that_nobody_needs_is_gone_with_its_models(calls):
    module, data = Point(), points([1.0], [3.0])
    fit = trainer(max_rounds=2, check_val_every_n_rounds=1, **EACH)
    gc.collect()
    gc.disable()  # as it may be long until it finds what is in circles
    try:
        for call in calls:
            getattr(fit, call)(module, data)
        gone = weakref.ref(fit), weakref.ref(fit.run), weakref.ref(fit.run.server)
        del fit
        assert [each() for each in gone] == [None] * 3
    finally:
        gc.enable()
    assert module.w.item() != 0
