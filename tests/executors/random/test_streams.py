"""The random numbers of a local step are those of its client: alone, in any stack, at any time."""

import random
from copy import deepcopy
from typing import ClassVar

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.func import vmap
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fedlight.arrivals import UniformArrivals, UniformSteps
from fedlight.executors import SequentialExecutor, VectorizedExecutor
from fedlight.executors._choice.choose_executor import resolve_executor
from fedlight.executors._random.streams import FULL_GRADIENT, StackKeys, Streams, again, step_keys
from fedlight.executors._tracing import TracedStep
from fedlight.executors.base import Job
from fedlight.local_optimizers import LocalSGD, Scaffold
from fedlight.types import Task
from tests.boring import Boring, classes, fitted, workplace

ARRIVALS = UniformArrivals(per_round=3, max_staleness=2, local_steps=UniformSteps(1, 4))


class Noisy(LightningModule):
    """Draws in several ways, and has a buffer that follows a random number."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7), nn.Dropout(0.4))
        self.head = nn.Linear(7, 3)
        self.register_buffer("level", torch.zeros(()))

    def training_step(self, batch, batch_idx):
        x, y = batch
        mixed = x[torch.randperm(len(x), device=x.device)]
        x = x + 0.1 * torch.randn_like(x) + 0.1 * mixed * torch.rand((), device=x.device)
        hidden = functional.dropout(self.net(x), 0.1)
        noise = torch.distributions.Normal(0.0, hidden.new_ones(7), validate_args=False)
        self.level = 0.5 * self.level + torch.rand((), dtype=hidden.dtype, device=hidden.device)
        self.log("level", self.level)
        return functional.cross_entropy(self.head(hidden + 0.1 * noise.rsample()), y)


class Dropping(Boring):
    def __init__(self, p=0.5):
        super().__init__(nn.Sequential(nn.Linear(4, 6), nn.Dropout(p), nn.Linear(6, 3)))


def runs(module, *executors, sizes=(6, 10, 3, 8), **given):
    """Runs that begin alike, in double precision."""
    module = module.double()
    given = {"arrivals": ARRIVALS, "max_rounds": 4, **given}
    found = []
    for executor in executors:
        torch.manual_seed(len(found))  # and with another state of the global generators
        np.random.seed(len(found))  # noqa: NPY002
        found.append(fitted(deepcopy(module), classes(sizes), executor=executor, **given))
    return found


def assert_close(one, other):
    for name in ("params", "buffers"):
        torch.testing.assert_close(
            getattr(one.state, name), getattr(other.state, name), rtol=1e-11, atol=1e-12
        )


class Extra(LocalSGD):
    """The mean of the gradient and of two more on the same batch, with other random numbers."""

    different: ClassVar = []

    def step(self, run, grads):
        first, second = run.gradient(), run.gradient(at=[p + 0.1 for p in run.params])
        self.different.append(not all(map(torch.equal, first, grads)))
        run.descend([(a + b + c) / 3 for a, b, c in zip(grads, first, second, strict=True)])


OPTIMIZERS = {
    "sgd": lambda: LocalSGD(0.1, momentum=0.5),
    "full gradients": lambda: Scaffold(0.1, option=1),
    "extra gradients": lambda: Extra(0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", [Noisy, Dropping])
def test_one_by_one_and_in_stacks_of_any_size(kind, optimizer):
    torch.manual_seed(0)
    one, *others = runs(
        kind(),
        "sequential",
        VectorizedExecutor(max_batch=2),
        "auto",
        max_rounds=3,
        local_optimizer=OPTIMIZERS[optimizer](),
    )
    for other in others:
        assert_close(one, other)
    assert optimizer != "extra gradients" or Extra.different.count(True) > 20
    assert isinstance(others[-1].run.executor, VectorizedExecutor)


@pytest.mark.parametrize("executor", ["sequential", VectorizedExecutor(max_batch=3)], ids=repr)
def test_the_global_generators_play_no_part(executor):
    one, two = runs(Noisy(), executor, executor)
    assert one.fingerprint() == two.fingerprint()


@pytest.mark.parametrize("kind", [Noisy, Dropping])
def test_a_traced_step_draws_the_same(kind, monkeypatch):
    made = []

    class Early(TracedStep):
        def __init__(self, step):
            super().__init__(step, after=after)
            made.append(self)

    monkeypatch.setattr("fedlight.executors.vectorized.TracedStep", Early)
    torch.manual_seed(0)
    module, prints = kind(), []
    for waits in (4, 10**9):
        after = waits
        run = runs(module, VectorizedExecutor(max_batch=3), sizes=(8, 4, 8, 4))[0]
        prints.append(run.fingerprint())
    assert prints[0] == prints[1]
    traces = [trace for trace in made[0].traces.values() if trace is not None]
    assert traces
    assert all(trace.drew for trace in traces)
    if kind is Dropping:
        assert all(isinstance(trace.function, torch.jit.ScriptFunction) for trace in traces)


def test_a_step_that_draws_nothing_gets_no_keys():
    work = workplace(Boring(), classes())
    step = VectorizedExecutor()
    step.setup(work)
    jobs = [Job(task(0, 0), work.state.read())]
    for _ in range(60):
        step.run(jobs)
    assert [trace.drew for trace in step._step.traces.values() if trace] == [False]


# --- the names of the numbers ---------------------------------------------------------------------


def task(client, visit, num_steps=3):
    return Task(client, 0, 0.0, 1.0, num_steps=num_steps, serial=0, visit=visit)


def test_each_step_of_each_task_has_a_key_of_its_own():
    numbers = [0, 1, 2, again(0, 1), again(0, 2), again(1, 1), FULL_GRADIENT, FULL_GRADIENT + 1]
    tasks = [task(client, visit) for client in range(20) for visit in range(20)]
    keys = np.stack([step_keys(seed, tasks, numbers) for seed in (0, 1, -1, 1 << 70)])
    assert len(np.unique(keys)) == keys.size == 4 * 8 * 400
    assert (keys[2, :, 7] == step_keys(-1, tasks[7:8], numbers)[:, 0]).all()


def test_keys_of_a_stack():
    tasks = [task(client, 1) for client in (4, 2, 9)]
    keys = StackKeys(5, tasks, 3, torch.device("cpu"))
    expected = step_keys(5, tasks, range(3))
    for k in range(3):
        assert keys.step(k, 2).tolist() == expected[k, :2].tolist()
    assert keys.one(FULL_GRADIENT, [2]).tolist() == step_keys(5, tasks[2:], [FULL_GRADIENT])[0]


# --- one by one -----------------------------------------------------------------------------------


class Late(Dropping):
    """Drops only once the server has come to its third version."""

    def training_step(self, batch, batch_idx):
        self.net[1].p = 0.5 if self.trainer.current_epoch > 2 else 0.0
        return super().training_step(batch, batch_idx)


def test_a_module_may_begin_to_draw_in_the_middle_of_a_run():
    one, two = runs(Late(), "sequential", VectorizedExecutor(max_batch=1))
    assert_close(one, two)
    never = runs(Dropping(0.0), "sequential")[0]
    assert not torch.allclose(one.state.params, never.state.params)


class Counting(Dropping):
    def __init__(self):
        super().__init__()
        self.steps, self.last = 0, None

    def training_step(self, batch, batch_idx):
        self.steps += 1
        self.starts = self.starts + (self.last is None) if hasattr(self, "starts") else 1
        self.last = super().training_step(batch, batch_idx)
        return self.last


def test_the_first_run_that_draws_is_counted_once():
    module = Counting()
    executor, work = SequentialExecutor(), workplace(module, classes())
    executor.setup(work)
    executor.run([Job(task(client, 0), work.state.read()) for client in (0, 1)])
    assert (module.steps, module.starts) == (6, 1)


class Plain(Dropping):
    def part(self, x):
        return functional.dropout(self.net[0](x), 0.5).tanh()

    def forward(self, x):
        return self.net[2](functional.dropout(self.part(x), 0.5))


class Checkpointed(Plain):
    """Forgets activations and computes them again in the backward pass."""

    def forward(self, x):
        return self.net[2](functional.dropout(checkpoint(self.part, x, use_reentrant=False), 0.5))


def test_activation_checkpointing_draws_the_same_again():
    torch.manual_seed(0)
    one = Checkpointed()
    other = Plain()
    other.load_state_dict(one.state_dict())
    assert runs(one, "sequential")[0].fingerprint() == runs(other, "sequential")[0].fingerprint()


class VmapsItself(Dropping):
    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = vmap(self.net, randomness="different")(x)
        assert (scores[0] != scores[1]).any()
        same = vmap(lambda x: functional.dropout(x.new_ones(50), 0.5) * x.sum(), randomness="same")
        shown = same(x) != 0
        assert (shown[0] == shown[1]).all()
        return functional.cross_entropy(scores, y)


def test_a_vmap_in_the_step_keeps_its_own_rule():
    module = VmapsItself()
    choice = resolve_executor("auto", workplace(module, classes((6, 8))))
    executor, reason = choice.executor, choice.reason
    assert isinstance(executor, SequentialExecutor)
    assert "vmap with randomness=" in reason
    fitted(
        module, classes((6, 8)), executor="sequential", arrivals=UniformArrivals(2), max_rounds=2
    )


# --- what is not covered --------------------------------------------------------------------------


class Draws(Boring):
    """Multiplies its loss by a random number from somewhere."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw
        self.own = np.random.default_rng(0)
        self.dice = random.Random(0)
        self.generator = torch.Generator()

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + self.draw(self))


def seeded(module):
    torch.manual_seed(3)
    return torch.rand(())


UNCOVERED = {
    "Python": (lambda module: random.random(), "draws from Python's random"),
    "NumPy": (lambda module: np.random.rand(), "draws from numpy.random"),  # noqa: NPY002
    "both": (
        lambda module: random.random() + np.random.rand(),  # noqa: NPY002
        "draws from Python's random and numpy.random",
    ),
    "own NumPy": (lambda module: module.own.random(), "draws from own"),
    "own Python": (lambda module: module.dice.random(), "draws from dice"),
    "generator=": (
        lambda module: torch.rand((), generator=module.generator),
        "torch.rand draws random numbers with a generator= of its own",
    ),
    "poisson": (lambda module: torch.poisson(torch.ones(())), "torch.poisson draws random numbers"),
    "seeded": (seeded, "torch.rand draws random numbers after torch.manual_seed"),
    "fills": (
        lambda module: torch.zeros(()).uniform_(),
        "torch.Tensor.uniform_ draws random numbers into a tensor that the step did not make",
    ),
}


@pytest.mark.parametrize("name", UNCOVERED)
def test_what_is_not_covered_runs_one_by_one_or_is_refused(name):
    draw, words = UNCOVERED[name]
    choice = resolve_executor("auto", workplace(Draws(draw), classes()))
    executor, reason = choice.executor, choice.reason
    assert isinstance(executor, SequentialExecutor)
    assert words in reason
    assert "which stacked clients would share" in reason
    with pytest.raises(ValueError, match="which stacked clients would share") as error:
        resolve_executor("vectorized", workplace(Draws(draw), classes()))
    assert words in str(error.value)
    given = {"arrivals": ARRIVALS, "max_rounds": 3, "executor": "sequential"}
    one = fitted(Draws(draw), classes(), **given)
    assert one.num_updates > 0


@pytest.mark.parametrize("name", [each for each in UNCOVERED if each != "seeded"])
def test_what_is_not_covered_is_seeded_for_each_task(name):
    """Alone, a task draws what it draws after others, also from a generator of the module's own."""
    module = Draws(UNCOVERED[name][0])
    work = workplace(module, classes())
    executor = SequentialExecutor()
    executor.setup(work)
    jobs = [Job(task(client, 2), work.state.read()) for client in range(4)]
    together = executor.run(jobs)
    alone = [executor.run([job])[0] for job in reversed(jobs)][::-1]
    assert all(torch.equal(a.delta, b.delta) for a, b in zip(together, alone, strict=True))


def test_a_function_that_is_not_known_is_refused_in_torchs_words():
    with (
        pytest.raises(RuntimeError, match="random operation"),
        Streams(stacked=True).at(1) as stream,
    ):
        vmap(lambda key: torch.native_dropout(key.double(), 0.5, True), randomness="error")(
            torch.arange(3)
        )
    assert not stream.drew
