import gc
import multiprocessing
import os
import warnings
import weakref
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedlight.studies.workers_choice
from fedlight import Callback, FederatedDataModule, FedTrainer, Study, compare, sweep
from fedlight.aggregators import AFACD, FedAsync, FedAvg, FedBuff
from fedlight.arrivals import (
    ContinuousArrivals,
    ExponentialDurations,
    FixedDurations,
    StepsBySpeed,
    SynchronousArrivals,
    UniformArrivals,
)
from fedlight.local_optimizers import FedProx, LocalSGD, Scaffold
from fedlight.studies._shared_executors import SharedExecutors
from fedlight.studies.forked_runs import Processes
from fedlight.studies.together import FirstStacks, first_stacks
from fedlight.studies.workers_choice import choose
from tests.boring import Boring, Measured, classes
from tests.studies.grid_of_boring import CLOCK, RULES, prints, swept

pytestmark = pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")


class Dropping(Boring):
    """With a layer that draws random numbers, and one with buffers."""

    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return super().training_step((nn.functional.dropout(x, 0.2), y), batch_idx)


class Failing(Boring):
    def training_step(self, batch, batch_idx):
        raise ValueError("no such step")


def alone(aggregator, seed, module=Boring, data=None, optimizer=None):
    """The fingerprint of a run without a study."""
    torch.manual_seed(seed)
    run = FedTrainer(
        arrivals=deepcopy(CLOCK),  # what was fitted before is another object for a folder
        aggregator=deepcopy(aggregator),
        local_optimizer=optimizer or LocalSGD(lr=0.1),
        max_updates=12,
        seed=seed,
        logger=False,
        enable_progress_bar=False,
        accelerator="cpu",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        start = module()
    run.fit(start, data or classes())
    return run.fingerprint()


@pytest.fixture(scope="module")
def runs_alone() -> list[str]:
    """The fingerprints of the runs of the small study, each without a study."""
    return [alone(rule, seed) for rule in RULES.values() for seed in (0, 1)]


@pytest.mark.parametrize("workers", [1, "together", 2, "auto"])
def test_a_run_in_a_study_is_the_run_alone(workers, runs_alone) -> None:
    study = swept(workers=workers)
    assert [(run.cell["aggregator"], run.seed) for run in study.runs] == [
        ("FedAsync", 0),
        ("FedAsync", 1),
        ("FedBuff", 0),
        ("FedBuff", 1),
    ]
    assert prints(study) == runs_alone
    assert len(set(runs_alone)) == 4
    assert all(run.error is None and run.history for run in study.runs)


AXES = {
    "learning rates": {"local_optimizer": [LocalSGD(lr=0.1), LocalSGD(lr=0.05)]},
    "mu": {"local_optimizer": [FedProx(lr=0.1, mu=0.0), FedProx(lr=0.1, mu=1.0)]},
    "client states": {"local_optimizer": [Scaffold(lr=0.1, option=2)]},
    "full gradients": {"local_optimizer": [Scaffold(lr=0.1, option=1)]},
    "data": {"data": {n: {"datamodule": classes(seed=n)} for n in (1, 2)}},
    "partitions": {"x": {"one": {"datamodule": lambda seed: classes(seed=seed)}}},
    "modules": {"module": {"plain": Boring, "more": Dropping, "measured": Measured}},
    "executors": {"executor": ["vectorized", "sequential"]},
}


@pytest.mark.parametrize("axis", AXES)
def test_what_runs_do_not_share_is_theirs_in_a_stack(axis) -> None:
    given = {"over": AXES[axis], "aggregator": FedBuff(buffer_size=2)}
    apart, together = swept(**given), swept(**given, workers="together")
    for one, other in zip(apart.runs, together.runs, strict=True):
        assert (one.error, other.error) == (None, None)
        assert [r.updates[0].client_id for r in one.history] == [
            r.updates[0].client_id for r in other.history
        ]
        for record, same in zip(one.history, other.history, strict=True):
            assert record.metrics == pytest.approx(same.metrics, rel=1e-4, nan_ok=True)
    # A product with several rates rounds differently, and so may one with more rows.
    if axis not in ("learning rates", "modules"):
        assert prints(apart) == prints(together)


class Turning(Callback):
    """Changes something of the module that a traced stack holds as a constant."""

    def on_round_end(self, trainer, module):
        if trainer.version == 4 and trainer.seed == 0:
            module.factor = 5.0


class Scaled(Boring):
    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def training_step(self, batch, batch_idx):
        return self.factor * super().training_step(batch, batch_idx)


@pytest.mark.parametrize("seeds", [(0, 1, 2), (1, 0, 2)])
def test_a_module_that_a_callback_changes_is_computed_by_itself(seeds) -> None:
    given = {"module": Scaled, "seeds": seeds, "callbacks": lambda: [Turning()]}
    apart = swept(**given)
    assert prints(apart) == prints(swept(**given, workers="together"))
    assert prints(apart) != prints(swept(module=Scaled, seeds=seeds))


@pytest.mark.parametrize("workers", [1, "together", 2])
def test_a_failure_is_that_of_its_cell(workers) -> None:
    given = {"over": {"module": {"good": Boring, "bad": Failing}}, "aggregator": FedBuff(2)}
    study = swept(**given, workers=workers)
    assert [run.error is None for run in study.runs] == [True, True, False, False]
    assert "no such step" in study.runs[2].error
    assert "failed: ClientError" in str(study)


def test_a_process_that_dies_is_the_failure_of_its_run() -> None:
    class Dies(Callback):
        def on_round_end(self, trainer, module):
            if multiprocessing.parent_process() and trainer.seed == 1 and trainer.version == 2:
                os.kill(os.getpid(), 9)

    study = swept(workers=2, callbacks=lambda: [Dies()])
    assert ["SIGKILL" in (run.error or "") for run in study.runs] == [False, True, False, True]


def test_a_recorded_schedule_is_that_of_compare() -> None:
    study = swept(schedule="recorded", module=(start := Boring()), workers="together")
    result = compare(
        RULES,
        arrivals=CLOCK,
        module=start,
        datamodule=classes(),
        local_optimizer=LocalSGD(lr=0.1),
        seeds=(0, 1),
        max_updates=12,
        metric="val_loss",
        accelerator="cpu",
        enable_progress_bar=False,
    )
    ours = {(run.cell["aggregator"], run.seed): run.fingerprint for run in study.runs}
    assert ours == {(run.name, run.seed): run.fingerprint for run in result.runs}


def test_data_are_prepared_before_they_are_set_up() -> None:
    asked = []

    class Noted(type(classes())):
        def prepare_data(self):
            asked.append("prepare")
            super().prepare_data()

        def setup(self, stage=None):
            asked.append("setup")
            super().setup(stage)

    data = classes()
    data.__class__ = Noted
    swept(datamodule=data, seeds=[0])
    assert asked[:2] == ["prepare", "setup"]


def test_cells_of_a_seed_have_the_same_arrivals_and_start() -> None:
    study = swept(over={"aggregator": {"a": FedAsync(0.5), "b": FedAsync(0.1)}})
    one, _, other, _ = study.runs
    assert [u[:3] for r in one.history for u in r.updates] == [
        u[:3] for r in other.history for u in r.updates
    ]


def test_auto_looks_at_the_stacks_of_a_run(monkeypatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(fedlight.studies.workers_choice, "rank_zero_info", said.append)
    monkeypatch.setattr(fedlight.studies.workers_choice, "cores_to_use", lambda: 2)
    swept()  # given a number: nothing is said
    assert said == []
    swept(workers="auto")
    assert "4 runs together, as one stack" in said[-1]
    swept(workers="auto", executor="sequential", seeds=[0])
    assert "2 runs in 2 processes: their clients are not stacked" in said[-1]
    monkeypatch.setattr(fedlight.studies.workers_choice, "cores_to_use", lambda: 1)
    swept(workers="auto", executor="sequential", seeds=[0])
    assert "one after another" in said[-1]


@pytest.mark.parametrize(
    ("width", "most", "cores", "how", "why"),
    [
        (5.0, 256, 1, "Together", "stacks 5 clients by itself"),
        (5.0, 256, 2, "Together", "stacks 5 clients by itself"),
        (5.0, 256, 4, "Processes", "the cores gain more than wider stacks"),
        (20.0, 256, 2, "Together", "stacks 20 clients by itself"),
        (20.0, 256, 3, "Processes", "the cores gain more"),
        (13.0, 20, 2, "Together", "stacks 13 clients by itself"),  # large models: stacks up to 20
        (20.0, 20, 2, "Processes", "each of them stacks 20 clients by itself"),
        (20.0, 20, 1, "InTurn", "and there is one core"),
        (None, 1, 2, "Processes", "their clients are not stacked"),
    ],
)
def test_auto_weighs_wider_stacks_against_cores(width, most, cores, how, why, monkeypatch) -> None:
    here = fedlight.studies.workers_choice
    monkeypatch.setattr(here, "cores_to_use", lambda: cores)
    first = FirstStacks("cpu", width, most, SharedExecutors())
    monkeypatch.setattr(here, "first_stacks", lambda *_: first)
    workers, reason = choose([None] * 10, None)
    assert type(workers).__name__ == how
    assert why in reason


def test_errors_come_before_the_first_run(tmp_path) -> None:
    for match, given in {
        "seeds must be": {"seeds": 3},
        "different integers": {"seeds": [1, 1]},
        "needs aggregator=": {"over": None},
        "no argument of FedTrainer": {"over": {"a": {"x": {"agregator": FedAvg()}}}},
        r"cannot tell which argument it is: .*LocalSGD\(lr=0.3\)": {"over": {"p": [0.3]}},
        r"write an object, FedAvg\(…\)": {"over": {"rule": {"FedAvg": FedAvg}}},
        r"such as FedAsync\(0.6\)": {"over": {"rule": ["FedAvg"]}},
        r"ContinuousArrivals\(FixedDurations": {"over": {"d": {"x": FixedDurations([1.0])}}},
        r"by the name of its argument": {"over": {"d": {"x": object}}},
        r"local_optimizer=LocalSGD\(lr=…\)": {"over": {"lr": {0.1: {"lr": 0.1}}}},
        "max_rounds": {"max_epochs": 5},
        "both give aggregator": {"over": {"aggregator": RULES, "b": {"x": AFACD()}}},
        "write logger_dir=": {"logger": True},
        "write seeds=": {"over": {"seed": [1, 2]}},
        "workers must be": {"workers": "some"},
        "workers": {"workers": 0},
        "schedule must be": {"schedule": "alive"},
        "two values called 1": {"over": {"max_rounds": {1: 1, "1": 2}}, "aggregator": AFACD()},
        "FedAvg": {"over": {"aggregator": [FedAvg()]}},
        "path=": {"path": __file__},
    }.items():
        with pytest.raises((TypeError, ValueError, OSError), match=match):
            swept(**given)


@pytest.mark.parametrize(
    ("metric", "mode", "best", "said"),
    [
        ("val_loss", None, "min", False),
        ("val_nll", None, "min", False),
        ("val_acc", None, "max", False),
        ("val_thing", None, "max", True),
        ("val_thing", "min", "min", False),
    ],
)
def test_what_is_best_of_a_metric_is_said_if_its_name_does_not_say_it(
    metric, mode, best, said, monkeypatch
) -> None:
    words = []
    monkeypatch.setattr("fedlight.studies._modes.rank_zero_info", words.append)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fedlight: metric=")  # the module does not log it
        study = swept(metric=metric, mode=mode, seeds=[0], max_updates=2)
    assert study.mode == best
    assert [f"of metric={metric!r} more is taken to be better" in each for each in words] == (
        [True] if said else []
    )


def test_dependent_arguments_go_together() -> None:
    waits = ContinuousArrivals(FixedDurations([1.0, 0.5, 0.25, 2.0]), local_steps=1)
    study = swept(
        over={
            "setting": {
                "rounds": {"arrivals": UniformArrivals(per_round=2), "aggregator": FedAvg()},
                "clock": {"arrivals": waits, "aggregator": FedBuff(2), "max_rounds": 3},
            }
        },
        seeds=[0],
        max_updates=9,
    )
    assert [len(run.history) for run in study.runs] == [4, 3]


def test_the_look_leaves_nothing_behind(tmp_path) -> None:
    assert Processes(2).workers == 2
    assert first_stacks.__name__ in fedlight.studies.workers_choice.__dict__
    study = swept(workers="auto", path=tmp_path)
    assert isinstance(study, Study)
    assert len(list((tmp_path / "runs").iterdir())) == 4


def test_a_metric_of_validation_needs_a_validation_set() -> None:
    x, y = torch.zeros(6, 4), torch.tensor([0, 1, 2] * 2)
    clients = [TensorDataset(x, y), TensorDataset(x, y)]
    alone = FederatedDataModule.from_client_datasets(clients)
    given = {"seeds": [0], "datamodule": alone, "max_updates": 4}
    with (
        pytest.warns(UserWarning, match="have no validation set: .* val_dataset="),
        pytest.warns(UserWarning, match="of the first run .* need a validation set"),
    ):
        study = swept(**given)
    with pytest.raises(ValueError, match=r"is in no round; .* need a validation set"):
        study.table()
    assert len(swept(**given, metric="train_loss").table().rows) == 2


@pytest.mark.parametrize("workers", [1, "together"])
def test_a_study_over_ends_of_rounds_has_the_runs_of_each_alone(workers):
    clock = ExponentialDurations(1.0)
    ends = {
        "grace": SynchronousArrivals(None, clock, 2, quorum=2, grace=0.3),
        "continue": SynchronousArrivals(None, clock, 2, late="continue", grace=0.3),
        "by speed": ContinuousArrivals(
            FixedDurations([1.0, 2.0, 3.0, 4.0]), local_steps=StepsBySpeed(8, [4, 3, 2, 1], least=1)
        ),
    }
    common = {
        "aggregator": FedAvg(2),
        "local_optimizer": LocalSGD(lr=0.1),
        "max_rounds": 6,
        "enable_progress_bar": False,
        "accelerator": "cpu",
    }
    study = sweep(
        over={"arrivals": ends},
        seeds=(0, 1),
        module=Boring,
        datamodule=classes(),
        metric="val_loss",
        workers=workers,
        **deepcopy(common),
    )
    expected = []
    for arrivals in ends.values():
        for seed in (0, 1):
            run = FedTrainer(arrivals=deepcopy(arrivals), seed=seed, logger=False, **common)
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                start = Boring()
            run.fit(start, classes())
            expected.append(run.fingerprint())
    assert prints(study) == expected
    assert len(set(expected)) == 6


class Trained(Callback):
    """It notes the pool of each run, with all local runs in flight, but does not hold it."""

    def __init__(self, pools, fails):
        self.pools, self.fails = pools, fails

    def on_round_end(self, trainer, module):
        if trainer.version == 3:
            self.pools.append(weakref.ref(trainer.run.pool))
            if self.fails:
                raise ValueError("no third round")


@pytest.mark.filterwarnings("ignore:fedlight. 4 of 4 runs have failed")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("workers", [1, "together"])
def test_a_run_that_is_over_leaves_no_models_behind(workers, fails):
    pools = []
    gc.collect()
    gc.disable()  # as it may be long until it finds what is in circles
    try:
        study = swept(callbacks=lambda: [Trained(pools, fails)], workers=workers)
        assert [each() for each in pools] == [None] * 4
    finally:
        gc.enable()
    assert [run.error is not None for run in study.runs] == [fails] * 4
