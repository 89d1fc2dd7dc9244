"""Two local actors: the same weights as one process, and a killed actor costs nothing but time."""

import pickle
import sys
import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from lightning import LightningModule
from lightning.fabric.plugins.precision.amp import MixedPrecision
from torch.utils.data import TensorDataset

from fedlight import Callback, FederatedDataModule, FedTrainer, Study
from fedlight.aggregators import AFACD, FedBuff
from fedlight.arrivals import UniformArrivals, UniformSteps
from fedlight.callbacks import FedCheckpoint
from fedlight.executors import RayExecutor, VectorizedExecutor, Workplace
from fedlight.executors._remote.actor import (
    Actor,
    Answer,
    SentExamples,
    SentJob,
    SentJobs,
    SentWorkplace,
    autocast_on,
)
from fedlight.executors._remote.actor_worker import SentFit
from fedlight.executors._remote.cluster import Cluster
from fedlight.executors._remote.tensor_block import Packed
from fedlight.local_optimizers import LocalSGD, ModuleOptimizer, Scaffold
from fedlight.parameters import ModuleState
from fedlight.studies import RayWorkers
from fedlight.types import Task
from tests.boring import Boring, fitted, points, trainer
from tests.executors import test_changed_settings as changed
from tests.pretended_ray import PretendedRay
from tests.studies import test_feedback as feedback
from tests.studies import test_shared_workers as studies
from tests.studies.grid_of_boring import prints, swept

SIZES = (7, 4, 12, 9, 5, 6)


class Net(LightningModule):
    """A layer and a BatchNorm; a strict one raises for a client whose data are too large."""

    def __init__(self, strict: bool = False) -> None:
        super().__init__()
        self.strict = strict
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))

    def training_step(self, batch, batch_idx):
        x, y = batch
        if self.strict and x.max() > 1e6:
            raise ArithmeticError("too large")
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss


def clients(bad: int | None = None) -> FederatedDataModule:
    generator = torch.Generator().manual_seed(0)
    data = []
    for client, size in enumerate(SIZES):
        x = torch.randn(size, 3, generator=generator)
        y = torch.randint(4, (size,), generator=generator)
        data.append(TensorDataset(x * 1e9 if client == bad else x, y))
    return FederatedDataModule.from_client_datasets(data, batch_size=3)


class Drops(Net):
    def __init__(self, strict: bool = False) -> None:
        super().__init__(strict)
        self.net.append(torch.nn.Dropout(0.3))


def fit(
    executor,
    *,
    optimizer=None,
    bad=None,
    callback=None,
    module=None,
    net=Net,
    ckpt_path=None,
    **more,
) -> FedTrainer:
    torch.manual_seed(0)
    given = {
        "arrivals": UniformArrivals(4, max_staleness=2, local_steps=UniformSteps(1, 4)),
        "aggregator": AFACD(),
        "local_optimizer": optimizer or LocalSGD(0.1, momentum=0.5),
        "max_rounds": 5,
        "executor": executor,
        "callbacks": callback,
        "logger": False,
        "enable_progress_bar": False,
    }
    trainer = FedTrainer(**given | more)
    own = module() if module else net(strict=bad is not None)
    trainer.fit(own, clients(bad), ckpt_path=ckpt_path)
    return trainer


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One small cluster for the tests of this file; executors join it."""
    ray = pytest.importorskip("ray")
    started = Cluster(ray, None, num_cpus=2)
    yield ray
    started.close()
    assert not ray.is_initialized()


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """On a busy machine actors may take minutes to start, which is no error of theirs."""
    monkeypatch.setattr("fedlight.executors.ray._PATIENCE", 3600.0)
    # and so may those of the test before until they are gone
    monkeypatch.setattr("fedlight.executors._remote.cluster._SETTLE", 3600.0)


class Notes(Callback):
    """Kills an actor after round 2, if that is wanted, and notes what the executor says."""

    def __init__(self, kill=None) -> None:
        self.kill = kill

    def on_round_end(self, trainer, module):
        self.independent = trainer.executor.independent
        if self.kill is not None and trainer.version == 2:
            self.kill(trainer.executor.crew.workers[0].actor)


@pytest.mark.parametrize("given", [{"num_actors": 3}, {"num_actors": 2, "num_cpus": 1.5}])
def test_more_actors_than_the_cluster_has_cores_for_are_refused(cluster, given) -> None:
    with pytest.raises(ValueError, match=r"CPU cores? each, but the nodes have room for [12]: "):
        fit(RayExecutor(executor="sequential", **given))


def test_more_actors_than_the_cluster_has_gpus_for_are_refused(cluster, monkeypatch) -> None:
    resources = {"CPU": 8.0, "GPU": 2.0}
    node = {"NodeID": "a", "Alive": True, "NodeManagerAddress": "host", "Resources": resources}
    monkeypatch.setattr(cluster, "cluster_resources", lambda: resources)
    monkeypatch.setattr(cluster, "nodes", lambda: [node])
    for num_gpus in (1, 0.667):  # two thirds of a GPU are left over twice, and make no whole
        executor = RayExecutor(3, executor="sequential", num_gpus=num_gpus)
        words = rf"3 actors of 1 CPU core and {num_gpus} GPUs? each, .* room for 2: .*num_gpus"
        with pytest.raises(ValueError, match=words):
            fit(executor)
    for wrong in (-1, 1.5):
        with pytest.raises(ValueError, match=r"num_gpus must be"):
            RayExecutor(num_gpus=wrong)


class Asks(Drops):
    """A step whose loss and logged values depend on what the trainer answers."""

    names = ("world_size", "limit_val_batches", "precision", "seed", "logger", "training")

    def training_step(self, batch, batch_idx):
        rounds = self.trainer.current_epoch + self.trainer.global_step
        self.log("steps", self.trainer.estimated_stepping_batches)
        self.log("rounds", rounds)
        self.log("answers", len(repr([getattr(self.trainer, name) for name in self.names])))
        self.log("mode", torch.get_deterministic_debug_mode())
        self.log("here", self.trainer.strategy.world_size + self.trainer.max_epochs)
        assert self.trainer.state.fn == "fit"
        return super().training_step(batch, batch_idx) * (1 + rounds)


def test_one_by_one_two_actors_have_the_bits_of_one_process(cluster, monkeypatch) -> None:
    """Though they draw, ask the trainer, start late, have a bad client, and one is killed."""
    monkeypatch.setattr("fedlight.executors.ray._PATIENCE", 0.0)
    given = {"net": Asks, "seed": 3, "bad": 2, "on_client_failure": "drop", "deterministic": "warn"}
    alone = fit("sequential", **given)
    # on one core, since each needs half of one
    executor, notes = RayExecutor(2, executor="sequential", num_cpus=0.5), Notes(cluster.kill)
    assert executor.independent
    waits = r"\d of 2 actors have started in 0 s; each of the others waits for a node with 0.5 CPU"
    with pytest.warns(UserWarning, match=waits):
        shared = fit(executor, **given, callback=notes)
    assert notes.independent
    assert executor.num_replaced == 1
    assert shared.fingerprint() == alone.fingerprint()
    assert shared.history == alone.history
    assert shared.num_failures == alone.num_failures > 0
    assert alone.history[-1].metrics["mode"] == 1
    names = ("steps", "rounds", "answers", "here", "loss")
    assert set(names) <= alone.history[-1].metrics.keys()


class Hungry(LocalSGD):
    """Finds no memory for more than three clients."""

    def begin(self, run, module):
        if len(run.num_steps) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")


def test_an_actor_for_which_memory_runs_out_keeps_to_smaller_stacks(tmp_path) -> None:
    """With the stand-in for Ray, whose actors start at once."""
    ray = PretendedRay()

    class Killer(Callback):
        def on_round_end(self, trainer, module):
            if trainer.version == 1:
                ray.kill(trainer.executor.crew.workers[0].actor)

    def made(*callbacks, **more) -> tuple[FedTrainer, list[str]]:
        with ray.installed(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = fit(
                RayExecutor(1, executor="vectorized"),
                optimizer=Hungry(0.1),
                callback=callbacks,
                arrivals=UniformArrivals(5, local_steps=2),
                **more,
            )
        return run, [str(w.message) for w in caught if "RayExecutor: memory" in str(w.message)]

    checkpoints = FedCheckpoint(tmp_path, every_n_rounds=1, save_top_k=-1)
    replaced, said = made(Killer(), checkpoints)
    assert len(said) == 1  # the new actor was told
    assert "in actor 0; the stacks of all actors hold at most 3 clients" in said[0]
    assert replaced.run.executor.state_dict() == {"max_batch": 3}
    assert replaced.executor.num_replaced == 1
    resumed, said = made(ckpt_path=tmp_path / "round=2.ckpt")
    assert said == []
    assert resumed.fingerprint() == replaced.fingerprint()
    with pytest.warns(UserWarning, match="VectorizedExecutor: the memory of cpu ran out"):
        alone = fit("vectorized", optimizer=Hungry(0.1), arrivals=UniformArrivals(5, local_steps=2))
    assert alone.fingerprint() == replaced.fingerprint()


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda t: t.callback_metrics, "self.trainer.callback_metrics lies in the main process"),
        (lambda t: t.datamodule, "self.trainer.datamodule lies in the main process"),
        (lambda t: t.history, "self.trainer.history lies in the main process"),
        (lambda t: setattr(t, "should_stop", True), "should_stop lies in the main process"),
        (lambda t: t.fit_loop, "has no 'fit_loop': a federation has no epochs"),
        (lambda t: t.nonsense, "has no 'nonsense'"),
    ],
)
def test_what_lies_in_the_main_process_is_refused_in_an_actor(ask, said) -> None:
    """Without Ray: an actor is a plain class, and what is sent to it goes through pickle."""
    seen = []

    class Refused(Net):
        def on_train_start(self):
            there = pickle.loads(pickle.dumps(self.trainer.for_actor()))
            there.tasks = (Task(0, 0, 0.0, 1.0, num_steps=1, serial=0, visit=0),)
            with pytest.raises(AttributeError) as caught:
                ask(there)
            seen.append(str(caught.value))

    fit("sequential", module=Refused)
    assert said in seen[0]


KINDS = ["number", "private", "hparams", "list", "tensor", "criterion", "forward hook"]


class MovesByAll(changed.Moves):
    """Moves by the mean of the numbers that lie at several places."""

    def training_step(self, batch, batch_idx):
        numbers = [changed.READ[kind](self) for kind in self.kind]
        return -(self.w * sum(numbers) / len(numbers)).sum() + 0 * batch[0].sum()


class SetsAll(changed.Sets):
    def on_round_end(self, trainer, module):
        for kind in module.kind:
            changed.write(module, kind, float(trainer.version))


def arguments(arrivals, executor, early=False):
    return {**changed.arguments(arrivals, executor), "callbacks": SetsAll(early)}


@pytest.fixture(scope="class")
def actors(cluster):
    """Two actors, for one fit after another."""
    crew = RayExecutor(2).team(1)
    yield crew
    crew.close()


class TestOnTheSameActors:
    """One fit after another on two actors, which take as long to start as all of these to run."""

    @pytest.fixture
    def on_actors(self, actors):
        """Makes executors that have these actors."""

        def made(executor="auto") -> RayExecutor:
            found = RayExecutor(2, executor=executor)
            found.shared = actors
            return found

        return made

    def test_stacks_of_two_actors_have_the_weights_of_one_process(self, on_actors) -> None:
        given = {"optimizer": Scaffold(0.1), "precision": "64-true", "net": Drops}
        alone = fit("vectorized", **given)
        executor, notes = on_actors(VectorizedExecutor()), Notes()
        assert not executor.independent
        shared = fit(executor, **given, callback=notes)
        assert notes.independent  # so the actors' shares do not matter
        assert shared.fingerprint() == alone.fingerprint()
        for one, other in zip(alone.history, shared.history, strict=True):
            assert one.metrics["loss"] == pytest.approx(other.metrics["loss"], rel=1e-6)

    def test_an_actor_chooses_for_itself(self, on_actors) -> None:
        alone = fit("sequential", net=Asks, seed=3)
        executor, notes = on_actors(), Notes()
        assert not executor.independent
        shared = fit(executor, net=Asks, seed=3, callback=notes)
        assert notes.independent  # it has found that clients would share the trainer's answers
        assert shared.fingerprint() == alone.fingerprint()
        assert shared.history == alone.history

    @pytest.mark.parametrize(
        ("executor", "before", "after"),
        [("sequential", True, True), ("auto", False, True), (VectorizedExecutor(), False, True)],
    )
    def test_it_is_independent_exactly_if_its_actors_executors_are(
        self, on_actors, executor, before, after
    ) -> None:
        module, data = Net(), clients()
        if executor == "auto":
            module.layer = torch.nn.Conv1d(1, 1, 1)  # so that the actor chooses the sequential one
        ray = on_actors(executor)
        assert ray.independent is before
        work = Workplace(
            module, ModuleState(module), LocalSGD(0.1), data.partition, data.train_data, 3, seed=0
        )
        ray.setup(work)
        try:
            assert ray.independent is after
        finally:
            ray.teardown()

    @pytest.mark.parametrize(
        ("arrivals", "inner", "early"),
        [("by rounds", "auto", True), ("by the clock", "sequential", False)],
    )
    def test_a_client_has_the_settings_of_the_version_that_it_pulled(
        self, on_actors, arrivals, inner, early
    ) -> None:
        given = arguments(arrivals, on_actors(inner), early)
        run = fitted(MovesByAll(KINDS), changed.clients(), **given)
        moved = run.state.params.item()
        assert moved == pytest.approx(changed.expected(run, KINDS), rel=1e-5)
        assert arrivals == "by the clock" or moved == pytest.approx(7.5)

    def test_a_resumed_run_has_them_too(self, on_actors, tmp_path) -> None:
        kinds = KINDS[:5]  # layers and hooks are in no checkpoint
        half = {**arguments("by rounds", "sequential"), "max_rounds": 3}
        fitted(MovesByAll(kinds), changed.clients(), **half).save_checkpoint(tmp_path / "a.ckpt")
        resumed = trainer(**arguments("by rounds", on_actors("sequential")))
        resumed.fit(MovesByAll(kinds), changed.clients(), ckpt_path=tmp_path / "a.ckpt")
        assert resumed.state.params.item() == pytest.approx(7.5)

    @pytest.mark.parametrize(
        ("kind", "arrivals", "inner"),
        [
            ("rate", "by rounds", "auto"),
            ("nested twice", "by the clock", "sequential"),
            ("rate by version", "by rounds", "sequential"),
        ],
    )
    def test_a_client_has_the_numbers_of_the_optimizer_of_its_pull(
        self, on_actors, kind, arrivals, inner
    ) -> None:
        given = changed.with_optimizer(kind, arrivals, on_actors(inner))
        run = fitted(changed.steady(kind), changed.clients(), **given)
        moved = run.state.params.item()
        assert moved == pytest.approx(changed.expected_move(run), rel=1e-5)
        assert arrivals == "by the clock" or moved == pytest.approx(6 + 7.5)

    def test_a_resumed_run_has_the_numbers_of_the_optimizer(self, on_actors, tmp_path) -> None:
        half = {**changed.with_optimizer("nested", "by rounds", "sequential"), "max_rounds": 3}
        fitted(changed.Steady(), changed.clients(), **half).save_checkpoint(tmp_path / "a.ckpt")
        executor = on_actors("sequential")
        resumed = trainer(**changed.with_optimizer("nested", "by rounds", executor))
        resumed.fit(changed.Steady(), changed.clients(), ckpt_path=tmp_path / "a.ckpt")
        assert resumed.state.params.item() == pytest.approx(6 + 7.5)

    def test_a_step_that_reads_what_it_has_kept_is_refused(self, on_actors) -> None:
        data = points(*[[float(i)] for i in range(6)])
        with pytest.raises(ValueError, match=r"Keeps keeps self\.\w+ from one .*register_buffer"):
            fitted(changed.Keeps("remembers"), data, executor=on_actors())


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")
def test_runs_of_a_study_share_actors(cluster, monkeypatch) -> None:
    examples = []
    made = SentFit.__init__
    monkeypatch.setattr(
        SentFit, "__init__", lambda fit, *given: (examples.append(given[3]), made(fit, *given))[1]
    )
    killed = []

    class KillsActor(Callback):
        def on_round_end(self, trainer, module):
            if trainer.version == 2 and not killed:
                killed.append(cluster.kill(trainer.executor.crew.workers[0].actor))

    kinds = {
        "plain": Boring,
        "dropping": studies.Dropping,
        "fails": studies.Failing,
        "convolves": studies.Convolves,
    }
    given = {"over": {"module": kinds}, "aggregator": FedBuff(2), "seeds": [0]}
    alone = swept(**given, executor="vectorized")
    workers = RayExecutor(2, executor="vectorized")
    shared = swept(**given, workers=workers, callbacks=lambda: [KillsActor()])
    assert len(killed) == 1
    assert prints(shared)[:3] == prints(alone)[:3]
    assert [run.error is None for run in shared.runs] == [True, True, False, False]
    assert "no such step" in shared.runs[2].error
    assert alone.runs[3].error is None  # its stacks are not independent
    assert "cannot share the actors" in shared.runs[3].error
    assert "write workers=RayWorkers" in shared.runs[3].error
    assert len({each.number for each in examples}) == 1  # the data are sent once


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")
def test_whole_runs_are_tasks_of_the_cluster(cluster, tmp_path) -> None:
    # one at a time, on all cores, as each worker imports torch before its first run
    kinds = {"good": Boring, "bad": studies.Failing}
    given = {"over": {"module": kinds}, "aggregator": FedBuff(2)}
    here = swept(**given)
    there = swept(**given, workers=RayWorkers(num_cpus=2), path=tmp_path)
    assert prints(there) == prints(here)
    assert there.runs[0].history == here.runs[0].history
    assert "no such step" in there.runs[2].error
    assert len(list((tmp_path / "runs").glob("*.failed.json"))) == 2
    assert cluster.is_initialized()  # it stays in the cluster in which it was before


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")
def test_whole_runs_with_feedback_are_tasks_of_the_cluster(cluster, tmp_path) -> None:
    """One of them is killed in the middle, and goes on from its checkpoint."""
    here = feedback.study(1, "sequential")
    there = feedback.study(
        RayWorkers(num_cpus=2, shared_folder=True),
        "sequential",
        path=tmp_path / "study",
        callbacks=lambda: [feedback.KillsItself(tmp_path)],
        checkpoint_seconds=1e-6,
    )
    assert [run.error for run in there.runs] == [None] * 3
    assert (tmp_path / "killed").exists()
    assert prints(there) == prints(here)
    assert prints(Study.load(tmp_path / "study")) == prints(here)
    rounds = (tmp_path / "log").read_text().splitlines()
    first = [line for line in rounds if line.endswith(" 1")]
    assert len(first) == len(set(first)) == 3  # no run has begun twice


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")
def test_others_replay_what_was_decided_in_a_task(cluster) -> None:
    there = feedback.recorded(RayWorkers(num_cpus=2))
    assert feedback.outcome(there) == feedback.outcome(feedback.recorded(1))


def actor(executor: str, bad: int | None = None) -> tuple[Actor, Any, list[SentJob], dict]:
    """An actor in this process, its answer, a job for each client, and their version."""
    module, data = Net(strict=bad is not None), clients(bad)
    state = ModuleState(module)
    optimizer = ModuleOptimizer() if executor == "vectorized" else LocalSGD(0.1)
    work = Workplace(module, state, optimizer, data.partition, data.train_data, 3, seed=0)
    tasks = [Task(client, 0, 0.0, 1.0, 2, client, 0) for client in range(len(SIZES))]
    made, start = Actor(get=lambda each: each), state.read()
    answer = made.add(5, SentWorkplace.of(work, executor), examples_of(data))
    packed = Packed.of([start.params, start.buffers, start.counters, None])
    return made, answer, [SentJob(task, 7, None, False) for task in tasks], {7: packed}


def examples_of(data: FederatedDataModule) -> SentExamples:
    return SentExamples(0, lambda: data.train_data)


def computed(made: Actor, jobs: list[SentJob], versions: dict[int, Any]) -> tuple[Any, int, Any]:
    """What an actor answers, how much it had to fetch, and the blocks of the results."""
    places = {number: (0, place) for place, number in enumerate(versions)}
    message = pickle.dumps(SentJobs(jobs, {}, places))
    answer, blocks = made.run(5, message, [[*versions.values()]], [])
    sent = pickle.loads(answer)
    assert sent.state == {}
    assert sent.seconds > 0
    return sent.outcomes, sent.fetched, blocks


def test_what_an_actor_cannot_run_is_refused() -> None:
    _, answer, *_ = actor("vectorized")
    assert "one client at a time" in answer.refusal


def test_an_actor_that_could_not_take_up_a_fit_says_so_with_each_job() -> None:
    """Nobody waits for the first answer of an actor in the place of one that has died."""
    made, _, jobs, versions = actor("vectorized")
    with pytest.raises(ValueError, match="one client at a time"):
        computed(made, jobs, versions)

    def fetch():
        raise OSError("the examples are lost")

    data, module = clients(), Net()
    work = Workplace(
        module, ModuleState(module), LocalSGD(0.1), data.partition, data.train_data, 3, seed=0
    )
    with pytest.raises(OSError, match="are lost"):
        made.add(5, SentWorkplace.of(work, "sequential"), SentExamples(1, fetch))
    with pytest.raises(OSError, match="are lost"):
        computed(made, jobs, versions)
    made.forget(5)
    assert made.add(5, SentWorkplace.of(work, "sequential"), examples_of(data)).refusal == ""
    assert len(computed(made, jobs, versions)[0]) == len(jobs)


def test_each_fit_has_the_settings_of_pytorch_that_it_was_sent_with() -> None:
    made, _, jobs, versions = actor("sequential")
    data, module = clients(), Net()
    work = Workplace(
        module, ModuleState(module), LocalSGD(0.1), data.partition, data.train_data, 3, seed=0
    )
    sent = SentWorkplace.of(work, "sequential")
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        other = SentWorkplace.of(work, "sequential")
        torch.use_deterministic_algorithms(False)
        made.add(6, other, examples_of(data))
        assert torch.get_deterministic_debug_mode() == 1
        computed(made, jobs, versions)  # of the first fit
        assert torch.get_deterministic_debug_mode() == sent.flags.debug_mode == 0
    finally:
        torch.use_deterministic_algorithms(False)


def test_mixed_precision_is_that_of_the_actors_device() -> None:
    precision = MixedPrecision("bf16-mixed", "cpu")
    made = autocast_on(torch.device("cuda"), precision.forward_context)
    assert (made.__self__.device, precision.device) == ("cuda", "cpu")
    assert autocast_on(torch.device("cuda"), nullcontext) is nullcontext


def test_a_failure_travels_with_its_reason_and_traceback() -> None:
    made, answer, jobs, versions = actor("sequential", bad=2)
    assert answer == Answer("", independent=True, stacks=False)
    results, fetched, blocks = computed(made, jobs, versions)
    assert fetched == versions[7].shape.nbytes
    assert [type(result).__name__ for result in results].count("SentResult") == len(SIZES) - 1
    failure = pickle.loads(pickle.dumps(results[2]))
    assert failure.reason == "ArithmeticError: too large"
    assert "in training_step" in str(failure.__cause__)
    again, fetched, more = computed(made, jobs[:1], {7: None})  # it has the version
    assert fetched == 0
    cpu = torch.device("cpu")
    first, second = results[0].result(blocks[0], cpu), again[0].result(more[0], cpu)
    assert torch.equal(first.delta, second.delta)
    assert first.update_norm == second.update_norm


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"num_actors": 0}, ValueError, "num_actors must be at least 1"),
        ({"num_actors": 1.5}, TypeError, "num_actors must be an integer"),
        ({"executor": "fast"}, ValueError, "executor must be one of"),
        ({"max_batch": 0}, ValueError, "max_batch must be at least 1"),
        ({"share": 0}, ValueError, "share must be at least 1"),
        ({"max_bytes": 0.5}, TypeError, "max_bytes must be an integer"),
        ({"num_cpus": 0}, ValueError, "num_cpus must be larger than 0"),
    ],
)
def test_bad_arguments(arguments, kind, message) -> None:
    pytest.importorskip("ray")
    with pytest.raises(kind, match=message):
        RayExecutor(**arguments)


def test_without_ray_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match="pip install ray"):
        RayExecutor()
