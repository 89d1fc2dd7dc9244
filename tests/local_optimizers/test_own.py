"""Local optimizers that one writes oneself: a second gradient, states, random numbers.

OwnFedDyn, OwnSAM and NoisySGD are the classes that docs/extending.md shows. The library's FedDyn
and SAM have more options, and have to do the same without them.
"""

import ast
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryPrecision, BinaryRecall

import fedlight.executors.vectorized
from fedlight import Callback, FederatedDataModule, FedTrainer, local_optimizers
from fedlight.aggregators import FedAvg, FedBuff
from fedlight.arrivals import (
    ContinuousArrivals,
    ExponentialDurations,
    ReplayArrivals,
    ReplayEvent,
    SynchronousArrivals,
    UniformArrivals,
    UniformSteps,
)
from fedlight.executors._tracing import TracedStep
from fedlight.local_optimizers import LocalOptimizer, LocalRun, LocalSGD, client_norms, per_client

GUIDE = Path(__file__).parents[2] / "docs" / "extending.md"
EXECUTORS = pytest.mark.parametrize("executor", ["sequential", "vectorized"])


def shown() -> tuple[dict[str, type[LocalOptimizer]], dict[str, int]]:
    """The guide's local optimizers by name, and how many lines of code each has."""
    names: dict[str, object] = {}
    lines = {}
    for block in re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL):
        if "(LocalOptimizer)" not in block:
            continue
        exec(compile(block, str(GUIDE), "exec"), names)
        for node in ast.parse(block).body:
            if isinstance(node, ast.ClassDef):
                code = ast.get_source_segment(block, node)
                text = ast.get_source_segment(block, node.body[0])
                lines[node.name] = len(
                    [x for x in code.replace(text, "").splitlines() if x.strip()]
                )
    return {name: names[name] for name in lines}, lines


SHOWN, LINES = shown()
FedDyn, SAM, NoisySGD = (SHOWN[name] for name in ("OwnFedDyn", "OwnSAM", "NoisySGD"))
BOTH = ["guide", "library"]
SAMS = pytest.mark.parametrize("sam", [SAM, local_optimizers.SAM], ids=BOTH)
FEDDYNS = pytest.mark.parametrize("feddyn", [FedDyn, local_optimizers.FedDyn], ids=BOTH)


def test_the_guide_keeps_them_short():
    assert {"SignSGD", "MeanOfAll", "OwnFedDyn", "OwnSAM", "NoisySGD"} == LINES.keys()
    assert max(LINES.values()) <= 15


class Quadratic(LightningModule):
    """f_i(a, b) = the mean over the examples of |(a, b) - example|^2 / 2: g = (a, b) - mean."""

    def __init__(self, a: float = 0.0, b: float = 0.0) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[a]], dtype=torch.float64))
        self.b = nn.Parameter(torch.tensor(b, dtype=torch.float64))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = ((self.a.squeeze() - x[:, 0]) ** 2 + (self.b - x[:, 1]) ** 2).mean() / 2
        self.log("loss", loss)
        return loss


def quadratics(*means):
    return [TensorDataset(torch.tensor([mean], dtype=torch.float64)) for mean in means]


def fit(module, data, optimizer, executor, *, arrivals, aggregator=None, **options):
    trainer = FedTrainer(
        arrivals=arrivals,
        aggregator=aggregator or FedAvg(1, server_lr=1.0),
        local_optimizer=optimizer,
        executor=executor,
        precision="64-true",
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        **options,
    )
    path = options.pop("ckpt_path", None)
    data = FederatedDataModule.from_client_datasets(data, batch_size=8)
    trainer.fit(module, data, ckpt_path=path)
    return trainer


def replay(*events):
    return ReplayArrivals([ReplayEvent(*event) for event in events])


class Deltas(Callback):
    """Each client's delta, as the server gets it."""

    def __init__(self) -> None:
        self.of: dict[int, list[float]] = {}

    def on_update(self, trainer, module, update):
        self.of[update.client_id] = update.delta.tolist()


def close(actual, expected):
    torch.testing.assert_close(
        torch.as_tensor(actual, dtype=torch.float64),
        torch.as_tensor(expected, dtype=torch.float64),
        rtol=1e-12,
        atol=1e-12,
    )


# --- SAM: a second gradient ---


@SAMS
@EXECUTORS
def test_sam_by_hand(executor, sam):
    # Client 0: g = (3, 4), |g| = 5, y + 0.5 g/|g| = y + (0.3, 0.4), gradient there (3.3, 4.4);
    # then g = (2.67, 3.56), the same direction, gradient (2.97, 3.96). Client 1 starts where its
    # gradient is 0. Client 2: g = (0, -2), gradient (0, -2.5).
    deltas = Deltas()
    fit(
        Quadratic(),
        quadratics([-3.0, -4.0], [0.0, 0.0], [0.0, 2.0]),
        sam(lr=0.1, rho=0.5),
        executor,
        arrivals=replay((0, 0, 1.0, 2), (1, 0, 1.1, 1), (2, 0, 1.2, 1)),
        aggregator=FedAvg(3),
        callbacks=deltas,
    )
    close(deltas.of[0], [-0.33 - 0.297, -0.44 - 0.396])
    close(deltas.of[1], [0.0, 0.0])
    close(deltas.of[2], [0.0, 0.25])


@SAMS
@EXECUTORS
def test_sam_with_different_rates_in_one_stack(executor, sam):
    # Versions 0 and 1 have rates 0.1 and 0.05; both tasks are computed together.
    deltas = Deltas()
    optimizer = sam(lr=lambda version: 0.1 / (1 + version), rho=0.5)
    fit(
        Quadratic(),
        quadratics([0.0, 0.0], [0.0, 2.0], [-2.0, 0.0]),
        optimizer,
        executor,
        arrivals=replay((0, 0, 1.0, 1), (1, 0, 3.0, 1), (2, 1, 3.1, 1, 1.0)),
        callbacks=deltas,
        max_rounds=3,
    )
    close(deltas.of[1], [0.0, 0.25])
    close(deltas.of[2], [-0.125, 0.0])


class Net(LightningModule):
    """Two layers with BatchNorm between them and, if wanted, metric objects of every kind."""

    def __init__(self, metrics: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(
            nn.Linear(3, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 2)
        ).double()
        self.metrics = metrics
        if metrics:
            self.accuracy = BinaryAccuracy()
            self.ranking = BinaryAUROC()  # its state is a list
            self.both = MetricCollection([BinaryPrecision(), BinaryRecall()])  # they share a state

    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self.net(x)
        loss = functional.cross_entropy(out, y)
        self.log("loss", loss)
        if self.metrics:
            self.log("accuracy", self.accuracy(out[:, 1], y))
            self.ranking(out[:, 1], y)
            self.log("ranking", self.ranking)
            self.both(out[:, 1], y)
            self.log_dict(self.both)
        return loss


def client_data(*sizes):
    generator = torch.Generator().manual_seed(0)
    return [
        TensorDataset(
            torch.randn(size, 3, generator=generator, dtype=torch.float64) + client / 10,
            torch.arange(size) % 2,
        )
        for client, size in enumerate(sizes)
    ]


def sam_by_torch(data, steps, lr, rho, **options):
    """SAM on all of a client's examples, with an optimizer of torch: the module and its losses."""
    module = Net()
    x, y = data.tensors
    params, losses = list(module.net.parameters()), []
    optimizer = torch.optim.SGD(params, lr, **options)
    for _ in range(steps):
        loss = functional.cross_entropy(module.net(x), y)
        losses.append(loss.item())
        grads = torch.autograd.grad(loss, params)
        norm = torch.sqrt(sum(grad.square().sum() for grad in grads))
        start = [param.detach().clone() for param in params]
        statistics = [buffer.clone() for buffer in module.net.buffers()]
        with torch.no_grad():
            for param, grad in zip(params, grads, strict=True):
                param.add_(rho * grad / norm)
        optimizer.zero_grad()
        functional.cross_entropy(module.net(x), y).backward()
        with torch.no_grad():
            for tensor, before in zip(
                [*params, *module.net.buffers()], [*start, *statistics], strict=True
            ):
                tensor.copy_(before)
        optimizer.step()
    return module, losses


@EXECUTORS
@pytest.mark.parametrize(
    ("sam", "options"),
    [
        (SAM, {}),
        (local_optimizers.SAM, {}),
        (local_optimizers.SAM, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.3}),
    ],
    ids=[*BOTH, "options"],
)
def test_sam_with_batchnorm_is_what_torch_gives(executor, sam, options):
    """Weight decay and momentum see the second gradient only."""
    (data,) = client_data(7)
    optimizer = sam(0.2, 0.3, **options)
    trainer = fit(Net(), [data], optimizer, executor, arrivals=replay((0, 0, 1.0, 4)))
    module, losses = sam_by_torch(data, 4, 0.2, 0.3, **options)
    mean, variance, count = module.net[1].buffers()
    close(trainer.state.params, torch.cat([p.detach().flatten() for p in module.net.parameters()]))
    close(trainer.state.buffers, torch.cat([mean, variance]))
    assert trainer.state.counters.tolist() == [count.item()] == [4]
    assert trainer.history[0].metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-6)


class Wasteful(LocalSGD):
    """SGD that asks for gradients elsewhere and does not look at them."""

    def step(self, run, grads):
        before = [param.clone() for param in run.params]
        elsewhere = run.gradient(at=[param + 1 for param in run.params])
        again = run.gradient()
        assert all(map(torch.equal, run.params, before))
        for one, other, given in zip(elsewhere, again, grads, strict=True):
            torch.testing.assert_close(other, given, rtol=1e-9, atol=1e-12)
            assert one.shape == given.shape
        super().step(run, grads)


@EXECUTORS
@pytest.mark.parametrize("clients", [3, 37])  # 37 are padded to 38, and then to fewer
def test_an_extra_gradient_leaves_no_trace(executor, clients):
    runs = [
        fit(
            Net(metrics=True),
            client_data(*[9 + client % 3 for client in range(clients)]),
            optimizer,
            executor,
            arrivals=SynchronousArrivals(
                clients, ExponentialDurations(1.0), local_steps=UniformSteps(1, 5)
            ),
            aggregator=FedAvg(),
            max_rounds=1,
        )
        for optimizer in (LocalSGD(0.1), Wasteful(0.1))
    ]
    assert runs[0].fingerprint() == runs[1].fingerprint()
    assert runs[0].history == runs[1].history
    assert {"loss", "accuracy", "ranking", "BinaryRecall"} <= {
        name.removeprefix("train_") for name in runs[0].history[0].metrics
    }
    assert torch.equal(runs[0].state.buffers, runs[1].state.buffers)
    assert torch.equal(runs[0].state.counters, runs[1].state.counters)


def test_extra_gradients_are_traced_and_replayed(monkeypatch):
    made: list[TracedStep] = []

    def run(after):
        def traced(step):
            made.append(TracedStep(step, after=after))
            return made[-1]

        monkeypatch.setattr(fedlight.executors.vectorized, "TracedStep", traced)
        return fit(
            Net(metrics=True),
            client_data(*[9] * 5),
            SAM(0.1),
            "vectorized",
            arrivals=SynchronousArrivals(5, ExponentialDurations(1.0), local_steps=4),
            aggregator=FedAvg(),
            max_rounds=3,
        )

    assert run(2).fingerprint() == run(10**9).fingerprint()
    assert any(trace is not None for trace in made[0].traces.values())
    assert not made[1].traces


@pytest.mark.parametrize("hook", ["begin", "finish"])
def test_there_is_no_gradient_outside_of_a_step(hook):
    class Early(LocalSGD):
        def begin(self, run, module):
            if hook == "begin":
                run.gradient()

        def finish(self, run):
            if hook == "finish":
                run.gradient()
            return []

    with pytest.raises(RuntimeError, match=r"call it in LocalOptimizer.step, not in begin"):
        fit(
            Quadratic(),
            quadratics([1.0, 0.0]),
            Early(0.1),
            "sequential",
            arrivals=replay((0, 0, 1.0, 1)),
        )


def test_a_gradient_that_fails_leaves_the_parameters():
    def fail():
        raise ZeroDivisionError

    run = LocalRun([torch.ones(1, 2)], [torch.ones(1, 2)], 0.1, torch.ones(1), evaluate=fail)
    with pytest.raises(ZeroDivisionError):
        run.gradient(at=[torch.zeros(1, 2)])
    assert run.params[0].tolist() == [[1.0, 1.0]]


def test_norms_are_each_clients_own():
    tensors = [torch.tensor([[[3.0, 0.0]], [[1.0, 2.0]]]), torch.tensor([4.0, 2.0])]
    assert client_norms(tensors).tolist() == [5.0, 3.0]
    assert per_client(torch.ones(2), tensors[0]).shape == (2, 1, 1)
    assert per_client(torch.ones(2), tensors[1]).shape == (2,)


# --- FedDyn: a client state alone ---


@FEDDYNS
@EXECUTORS
def test_feddyn_by_hand(executor, feddyn):
    # g = y, alpha = 0.5, lr = 0.1, from y = 1. Task 1, h = 0: y = 1 - 0.1 * 1 = 0.9, then
    # 0.9 - 0.1 * (0.9 - 0.5 * 0.1) = 0.815; h = 0.5 * 0.185 = 0.0925.
    # Task 2 from 0.815: y = 0.815 - 0.1 * (0.815 - 0.0925) = 0.74275; h += 0.5 * 0.07225.
    trainer = fit(
        Quadratic(1.0, 0.0),
        quadratics([0.0, 0.0], [0.0, 0.0]),
        feddyn(lr=0.1, alpha=0.5),
        executor,
        arrivals=replay((0, 0, 1.0, 2), (0, 1, 2.0, 1)),
    )
    close(trainer.state.params, [0.74275, 0.0])
    close(trainer.client_state(0), [0.0925 + 0.036125, 0.0])
    assert trainer.client_state(1) is None
    assert trainer.state.shared is None, "the server's vector belongs to others"


@FEDDYNS
@EXECUTORS
def test_overlapping_tasks_start_from_the_state_at_their_dispatch(executor, feddyn):
    # Both tasks start from h = 0 and the model (1, 0); the second arrival overwrites the first.
    trainer = fit(
        Quadratic(1.0, 0.0),
        quadratics([0.0, 0.0]),
        feddyn(lr=0.1, alpha=0.5),
        executor,
        arrivals=replay((0, 0, 1.0, 2, 0.0), (0, 0, 2.0, 1, 0.5)),
    )
    close(trainer.client_state(0), [0.05, 0.0])


@EXECUTORS
def test_a_state_that_finish_does_not_change_stays(executor):
    class Declares(LocalSGD):
        client_state = True

    trainer = fit(
        Quadratic(1.0),
        quadratics([0.0, 0.0]),
        Declares(0.1),
        executor,
        arrivals=replay((0, 0, 1.0, 1), (0, 1, 2.0, 1)),
    )
    assert trainer.client_state(0).tolist() == [0.0, 0.0]


class Momentum(LocalOptimizer):
    """y <- y - lr * (g - c), with c the sum of the deltas that made the version, over M."""

    shared_state = True
    lr = 0.1

    def step(self, run, grads):
        assert run.client == []
        run.descend([g - c for g, c in zip(grads, run.shared, strict=True)])

    def absorb(self, state, num_clients):
        total = sum(update.delta for update, _ in state.used)
        return replace(state, shared=total / num_clients)


@EXECUTORS
def test_a_servers_vector_alone(executor):
    # g = y from 1: y = 0.9, c = -0.1 / 2. Then y = 0.9 - 0.1 * (0.9 + 0.05) = 0.805.
    trainer = fit(
        Quadratic(1.0, 0.0),
        quadratics([0.0, 0.0], [0.0, 0.0]),
        Momentum(),
        executor,
        arrivals=replay((0, 0, 1.0, 1), (1, 1, 2.0, 1)),
    )
    close(trainer.state.params, [0.805, 0.0])
    close(trainer.state.shared, [-0.095 / 2, 0.0])
    assert trainer.client_state(0) is None


@pytest.mark.parametrize(
    ("declared", "given"),
    [(True, lambda run: []), (False, lambda run: run.params), (True, lambda run: run.params[:1])],
    ids=["none", "undeclared", "too few"],
)
def test_what_finish_returns_has_to_fit_what_is_declared(declared, given):
    class Wrong(LocalSGD):
        client_state = declared

        def finish(self, run):
            return given(run)

    with pytest.raises(ValueError, match=r"Wrong.finish must give one tensor .* client_state = "):
        fit(
            Quadratic(),
            quadratics([1.0, 0.0]),
            Wrong(0.1),
            "sequential",
            arrivals=replay((0, 0, 1.0, 1)),
        )


# --- random numbers, memory: what a client gets does not depend on its stack ---


class Late(LocalOptimizer):
    """Momentum that begins with the second step, when the stack is smaller already."""

    lr = 0.1

    def step(self, run, grads):
        if run.step:
            velocity = run.remembered("velocity")
            torch._foreach_add_(velocity, list(grads))
            grads = velocity
        run.descend(grads)


class Drops(LocalOptimizer):
    """Draws under two names in one step, and before the first one."""

    lr = 0.1

    def begin(self, run, module):
        run.remembered("start")
        drawn = torch.tensor([each.random() for each in run.generators("mask")])
        for start in run.memory["start"]:
            start += per_client(drawn.to(start), start)

    def step(self, run, grads):
        mask = torch.tensor([each.random() for each in run.generators("mask")])
        scale = torch.tensor([each.random() for each in run.generators("scale")])
        run.descend(
            [
                per_client(mask + scale, g).to(g) * g + start
                for g, start in zip(grads, run.memory["start"], strict=True)
            ]
        )


OWN = {
    "SignSGD": lambda: SHOWN["SignSGD"](0.01),
    "FedDyn": lambda: FedDyn(0.1, 0.3),
    "SAM": lambda: SAM(0.1, 0.3),
    "NoisySGD": lambda: NoisySGD(0.1, 0.5),
    "Late": Late,
    "Drops": Drops,
    "Momentum": Momentum,
}
STEPS = UniformSteps(1, 4)
ARRIVALS = {
    "continuous": lambda: ContinuousArrivals(
        ExponentialDurations(1.0), concurrency=2, resume="on_arrival", local_steps=STEPS
    ),
    "synchronous": lambda: SynchronousArrivals(5, ExponentialDurations(1.0), local_steps=STEPS),
    "uniform": lambda: UniformArrivals(4, max_staleness=2, local_steps=STEPS),
}


class Saves(Callback):
    def __init__(self, path: Path) -> None:
        self.path, self.events = path, 0

    def on_event_end(self, trainer, module):
        self.events += 1
        if self.events == 6:
            trainer.save_checkpoint(self.path)


@pytest.mark.filterwarnings("ignore:fedlight. ")
@pytest.mark.parametrize(
    ("name", "arrivals"),
    [(name, list(ARRIVALS)[number % len(ARRIVALS)]) for number, name in enumerate(OWN)],
)
def test_both_executors_agree_and_a_resumed_run_goes_on(name, arrivals, tmp_path):
    def run(executor, **options):
        process = ARRIVALS[arrivals]()
        trainer = FedTrainer(
            arrivals=process,
            aggregator=FedAvg() if process.by_rounds else FedBuff(3),
            local_optimizer=OWN[name](),
            executor=executor,
            precision="64-true",
            accelerator="cpu",
            max_rounds=5,
            logger=False,
            enable_progress_bar=False,
            callbacks=options.get("callback"),
        )
        data = FederatedDataModule.from_client_datasets(
            client_data(9, 11, 8, 12, 10, 3, 4), batch_size=8
        )
        trainer.fit(Net(), data, ckpt_path=options.get("path"))
        return trainer

    for executor in ("sequential", "vectorized"):
        path = tmp_path / f"{executor}.ckpt"
        whole = run(executor, callback=Saves(path))
        resumed = run(executor, path=path)
        assert resumed.fingerprint() == whole.fingerprint()
        assert resumed.history == whole.history
        if executor == "sequential":
            expected = whole
    torch.testing.assert_close(whole.state.params, expected.state.params, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(whole.state.buffers, expected.state.buffers, rtol=1e-9, atol=1e-11)
    assert torch.equal(whole.state.counters, expected.state.counters)
    for client in range(7):
        ours, theirs = whole.client_state(client), expected.client_state(client)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_each_client_visit_step_and_name_has_numbers_of_its_own():
    drawn: list[tuple[tuple[int, int, int], float]] = []

    class Looks(LocalSGD):
        def step(self, run, grads):
            for task, one, two in zip(
                run.tasks, run.generators("a"), run.generators("b"), strict=True
            ):
                key = task.client_id, task.visit, run.step
                drawn.extend([(key, one.random()), (key, two.random())])
            super().step(run, grads)

    def run(executor, **options):
        drawn.clear()
        fit(
            Quadratic(),
            quadratics(*[[float(client), 0.0] for client in range(4)]),
            Looks(0.1),
            executor,
            arrivals=SynchronousArrivals(4, ExponentialDurations(1.0), local_steps=3),
            aggregator=FedAvg(),
            max_rounds=2,
            **options,
        )
        numbers = set(drawn)
        assert len({number for _, number in numbers}) == len(numbers)
        return {pair for pair in numbers if pair[0][1] < 2}

    one = run("sequential")
    assert len(one) >= 4 * 2 * 3 * 2
    assert run("vectorized") == one
    assert not {number for _, number in run("vectorized", seed=1)} & {n for _, n in one}


def test_the_trial_step_has_all_that_a_step_has():
    class Asks(LocalSGD):
        client_state = shared_state = True

        def step(self, run, grads):
            assert run.step >= 0
            assert len(run.tasks) == len(run.generators("x")) == len(run.params[0])
            super().step(run, [g + c + s + e for g, c, s, e in self.all(run, grads)])

        def all(self, run, grads):
            return zip(grads, run.client, run.shared, run.gradient(), strict=True)

    arrivals = partial(replay, (0, 0, 1.0, 1))
    for executor in ("sequential", "vectorized", "auto"):
        fit(Quadratic(1.0), quadratics([0.0, 0.0]), Asks(0.1), executor, arrivals=arrivals())
