"""What a hook changes on module and optimizer travels with the version; a step keeps nothing."""

import itertools
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import nn

from fedlight import Callback
from fedlight._module import settings as settings_module
from fedlight._module.settings import LiveSettings
from fedlight.aggregators import FedAvg, FedBuff
from fedlight.arrivals import (
    ConstantSteps,
    ContinuousArrivals,
    FixedDurations,
    UniformArrivals,
)
from fedlight.executors import ProcessExecutor
from fedlight.local_optimizers import (
    FedProx,
    LocalAdam,
    LocalOptimizer,
    LocalSGD,
    ModuleOptimizer,
    client_norms,
)
from fedlight.studies import sweep
from tests.boring import fitted, points, trainer


class Scale(nn.Module):
    """Multiplies by a number."""

    def __init__(self, factor=0.0):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


class Schedule:
    """A plain object, one of whose methods a module has."""

    def __init__(self):
        self.beta = 0.0

    def value(self):
        return self.beta


def reads(numbers):
    return lambda: numbers[0]


class Moves(LightningModule):
    """Each local step moves w by a number that lies somewhere on the module."""

    def __init__(self, kind, beta=0.0):
        super().__init__()
        self.save_hyperparameters("beta")
        self.kind, self.w = kind, nn.Parameter(torch.zeros(1))
        self.beta = self._beta = 0.0
        self.name, self.tensor, self.list = "0", torch.zeros(1), [0.0]
        self.box, self.array = SimpleNamespace(deep={"k": [0.0]}), np.zeros(1)
        self.drop, self.norm = nn.Dropout(0.0), nn.LayerNorm(1, 0.0, elementwise_affine=False)
        self.criterion, self.hooked = Scale(), Scale(1.0)
        self.frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.teachers, self.method = [nn.Linear(1, 1, bias=False)], Schedule().value
        nn.init.zeros_(self.teachers[0].weight)
        self.long, self.bytes, self.records = [0.0] * 1500, bytearray(1), []
        self.partial, self.closure = partial(float, 0.0), reads([0.0])

    def training_step(self, batch, batch_idx):
        return -(self.w * READ[self.kind](self)).sum() + 0 * batch[0].sum()


READ = {
    "number": lambda m: m.beta,
    "private": lambda m: m._beta,
    "string": lambda m: float(m.name),
    "tensor": lambda m: m.tensor,
    "in place": lambda m: m.tensor,
    "list": lambda m: m.list[0],
    "nested": lambda m: m.box.deep["k"][0],
    "array": lambda m: float(m.array[0]),
    "hparams": lambda m: m.hparams.beta,
    "dropout.p": lambda m: m.drop.p * 16,
    "eps": lambda m: m.norm.eps,
    "eval()": lambda m: float(not m.drop.training),
    "criterion": lambda m: m.criterion(1.0),
    "layer": lambda m: m.criterion(1.0),
    "forward hook": lambda m: m.hooked(torch.zeros(1)),
    "frozen": lambda m: m.frozen.detach(),
    "hidden layer": lambda m: m.teachers[0](torch.ones(1)).detach(),
    "method": lambda m: m.method(),
    "long list": lambda m: m.long[0],
    "bytes": lambda m: float(m.bytes[0]),
    "records": lambda m: float(len(m.records)),
    "partial": lambda m: m.partial(),
    "closure": lambda m: m.closure(),
}


def write(m, kind, value):
    if kind == "eval()":
        m.drop.train(value < 2)
    elif kind == "forward hook":
        m.hooked._forward_hooks.clear()
        m.hooked.register_forward_hook(lambda layer, args, out: out + value)
    else:
        {
            "number": lambda: setattr(m, "beta", value),
            "private": lambda: setattr(m, "_beta", value),
            "string": lambda: setattr(m, "name", str(value)),
            "tensor": lambda: setattr(m, "tensor", torch.full((1,), value)),
            "in place": lambda: m.tensor.fill_(value),
            "list": lambda: m.list.__setitem__(0, value),
            "nested": lambda: m.box.deep["k"].__setitem__(0, value),
            "array": lambda: m.array.fill(value),
            "hparams": lambda: setattr(m.hparams, "beta", value),
            "dropout.p": lambda: setattr(m.drop, "p", value / 16),
            "eps": lambda: setattr(m.norm, "eps", value),
            "criterion": lambda: setattr(m, "criterion", Scale(value)),
            "layer": lambda: setattr(m.criterion, "factor", value),
            "frozen": lambda: m.frozen.data.fill_(value),
            "hidden layer": lambda: m.teachers[0].weight.data.fill_(value),
            "method": lambda: setattr(m.method.__self__, "beta", value),
            "long list": lambda: m.long.__setitem__(0, value),
            "bytes": lambda: m.bytes.__setitem__(0, int(value)),
            "records": lambda: m.records.append(value),
            "partial": lambda: setattr(m, "partial", partial(float, value)),
            "closure": lambda: m.closure.__closure__[0].cell_contents.__setitem__(0, value),
        }[kind]()


class Sets(Callback):
    """Sets the number to the version when a round ends."""

    def __init__(self, early=False):
        self.early = early

    def on_round_end(self, trainer, module):
        write(module, module.kind, float(trainer.version))

    def on_update(self, trainer, module, update):
        if self.early:
            assert torch.isfinite(update.delta).all()


def arguments(arrivals, executor, early=False):
    if arrivals == "by rounds":
        given = {
            "arrivals": UniformArrivals(2, max_staleness=3, local_steps=ConstantSteps(1)),
            "max_rounds": 6,
        }
    else:
        durations = FixedDurations([1.0, 1.5, 2.25, 3.5])
        given = {
            "arrivals": ContinuousArrivals(durations, local_steps=ConstantSteps(1)),
            "aggregator": FedBuff(1),
            "max_rounds": 12,
        }
    made = ProcessExecutor(2) if executor == "processes" else executor
    return {**given, "executor": made, "local_optimizer": LocalSGD(1.0), "callbacks": Sets(early)}


def clients():
    return points([0.0], [1.0], [2.0], [3.0])


def expected(run, kind):
    """Each update that was used moves w by its weight times the number at its pull."""
    total = 0.0
    for record in run.history:
        for update in record.updates:
            pulled = float(update.pulled_version)
            total += update.weight * (float(pulled >= 2) if kind == "eval()" else pulled)
    return total


CASES = [
    *[(kind, ("by rounds", "by the clock")[i % 2], "sequential") for i, kind in enumerate(READ)],
    *[(kind, ("by the clock", "by rounds")[i % 2], "vectorized") for i, kind in enumerate(READ)],
    ("number", "by rounds", "auto"),
    ("hparams", "by rounds", "processes"),
    ("forward hook", "by the clock", "processes"),
]


@pytest.mark.parametrize(
    ("kind", "arrivals", "executor", "early"),
    [
        # of two neighbours one has its results early; the last three come both ways
        *((*case, number // 2 % 2 == 1) for number, case in enumerate(CASES[:-3])),
        *((*case, early) for case in CASES[-3:] for early in (False, True)),
    ],
)
def test_a_client_has_the_settings_of_the_version_that_it_pulled(kind, arrivals, executor, early):
    run = fitted(Moves(kind), clients(), **arguments(arrivals, executor, early))
    assert run.state.params.item() == pytest.approx(expected(run, kind), rel=1e-5)
    if arrivals == "by rounds" and kind != "eval()":
        assert run.state.params.item() == pytest.approx(7.5)


NO_DATA = ("criterion", "forward hook", "method", "partial", "closure")


@pytest.mark.parametrize(
    ("kind", "arrivals", "executor"),
    [*CASES[:-3:4], *CASES[-3:-1]],
)
def test_a_resumed_run_has_them_too(kind, arrivals, executor, tmp_path):
    whole = fitted(Moves(kind), clients(), **arguments(arrivals, executor))
    given = arguments(arrivals, executor)
    half = fitted(Moves(kind), clients(), **{**given, "max_rounds": given["max_rounds"] // 2})
    if kind in NO_DATA:
        with pytest.warns(UserWarning, match="is no plain data and not in the checkpoint"):
            half.save_checkpoint(tmp_path / "a.ckpt")
        with pytest.warns(UserWarning, match="does not go on to the same bits"):
            trainer(**arguments(arrivals, executor)).fit(
                Moves(kind), clients(), ckpt_path=tmp_path / "a.ckpt"
            )
        return
    half.save_checkpoint(tmp_path / "a.ckpt")
    resumed = trainer(**arguments(arrivals, executor))
    resumed.fit(Moves(kind), clients(), ckpt_path=tmp_path / "a.ckpt")
    assert resumed.fingerprint() == whole.fingerprint()


def test_a_change_while_updates_arrive_reaches_those_that_pull_later():
    class OnUpdate(Callback):
        def on_update(self, trainer, module, update):
            module.beta = float(trainer.num_updates + 1)

    # One client at a time: each pulls after the update of the one before.
    arrivals = ContinuousArrivals(FixedDurations([1.0]), local_steps=ConstantSteps(1))
    run = fitted(
        Moves("number"),
        points([0.0]),
        arrivals=arrivals,
        aggregator=FedBuff(1),
        local_optimizer=LocalSGD(1.0),
        max_rounds=4,
        executor="sequential",
        callbacks=OnUpdate(),
    )
    assert run.state.params.item() == 0 + 1 + 2 + 3


def test_a_resumed_module_shares_its_objects_with_callbacks_as_before(tmp_path):
    class Shares(Callback):
        def __init__(self, config):
            self.config = config

        def on_round_end(self, trainer, module):
            self.config["k"][0] = float(trainer.version)

    def run(rounds, **more):
        module = Moves("nested")
        given = {**arguments("by rounds", "sequential"), "max_rounds": rounds}
        made = trainer(**{**given, "callbacks": Shares(module.box.deep)})
        made.fit(module, clients(), **more)
        return made

    run(3).save_checkpoint(tmp_path / "a.ckpt")
    resumed = run(12, ckpt_path=tmp_path / "a.ckpt")
    assert resumed.fingerprint() == run(12).fingerprint()


def test_a_hook_may_not_replace_the_step():
    class Replaces(Callback):
        def on_round_end(self, trainer, module):
            module.training_step = lambda batch, batch_idx: module.w.sum()

    given = {**arguments("by rounds", "sequential"), "callbacks": Replaces()}
    with pytest.raises(ValueError, match="a hook has replaced training_step of Moves"):
        fitted(Moves("number"), clients(), **given)


# --- state that a step keeps ----------------------------------------------------------------------


class Remembers(nn.Module):
    """Adds the number of its calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.calls


def counter():
    calls = [0]

    def count():
        calls[0] += 1
        return calls[0]

    return count


class Keeps(LightningModule):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.w = kind, nn.Parameter(torch.zeros(1))
        self.h, self.calls, self.seen, self.first = torch.zeros(1), 0, [], None
        self.hidden, self.counts = {"net": Remembers()}, counter()
        self.deep, self.generators = {"a": {"b": {"c": {"d": [0]}}}}, [np.random.default_rng(0)]

    def training_step(self, batch, batch_idx):
        return STEPS[self.kind](self, batch[0].mean(), batch_idx)

    def loss(self, x):
        return ((self.w - x) ** 2).sum() / 2


def remembers(module, x, number):
    loss = module.loss(x + module.h)
    module.h = x.detach()
    return loss


def remembers_the_first(module, x, number):
    if module.first is None:
        module.first = x.detach()
    return module.loss(x + module.first)


def within_a_run(module, x, number):
    loss = module.loss(x + module.h if number else x)
    module.h = x.detach()
    return loss


def counts(module, x, number):
    module.calls += 1
    return module.loss(x * module.calls)


def warms_up(module, x, number):
    module.calls += 1
    return module.loss(x * (2 if module.calls > 500 else 1))


def collects(module, x, number):
    module.seen.append(x.detach())
    return module.loss(sum(module.seen) / len(module.seen))


def writes_data(module, x, number):
    loss = module.loss(x + module.h.clone())
    module.h.data.copy_(x.detach() + 1)
    return loss


def in_a_hidden_layer(module, x, number):
    return module.loss(module.hidden["net"](x))


def in_a_closure(module, x, number):
    return module.loss(x * module.counts())


def deep(module, x, number):
    module.deep["a"]["b"]["c"]["d"][0] += 1
    return module.loss(x * module.deep["a"]["b"]["c"]["d"][0])


def from_the_third_step(module, x, number):
    loss = module.loss(x + module.h if number > 1 else x)
    module.h = x.detach()
    return loss


def each_hundredth(module, x, number):
    module.calls += 1
    return module.loss(x * (1 if module.calls % 100 else 2))


def draws(module, x, number):
    return module.loss(x + module.generators[0].random())


def only_counts(module, x, number):
    module.calls += 1
    return module.loss(x)


def shows(module, x, number):
    module.h = x.detach()
    return module.loss(x)


REFUSED = [
    *(remembers, remembers_the_first, within_a_run, counts, warms_up, collects, writes_data),
    *(in_a_hidden_layer, in_a_closure, deep, from_the_third_step, each_hundredth),
]
STEPS = {step.__name__: step for step in [*REFUSED, only_counts, shows, draws]}


@pytest.mark.parametrize(
    ("step", "executor"),
    [
        *itertools.product(REFUSED, ["sequential", "vectorized", "auto"]),
        # a worker tries the module in the same way
        *itertools.product([remembers, in_a_closure], ["processes"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_step_that_reads_what_it_has_kept_is_refused(step, executor):
    made = ProcessExecutor(1) if executor == "processes" else executor
    with pytest.raises(ValueError, match=r"Keeps keeps self\.[\w.]+ from one .*register_buffer"):
        fitted(Keeps(step.__name__), points(*[[float(i)] for i in range(6)]), executor=made)


@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto", "processes"])
def test_what_no_step_reads_may_be_kept(executor):
    made = ProcessExecutor(1) if executor == "processes" else executor
    data = points(*[[float(i)] for i in range(6)])
    found = [
        fitted(Keeps(name), data, executor=each, max_rounds=3).state.params.item()
        for name in ("only_counts", "shows")
        for each in (made, "sequential")
    ]
    assert found == pytest.approx([found[1]] * 4)


def test_generators_in_containers_are_seeded_for_each_local_run():
    data = points(*[[float(i)] for i in range(6)])
    found = {
        fitted(Keeps("draws"), data, executor=each, max_rounds=3).fingerprint()
        for each in ("sequential", "auto", ProcessExecutor(1))
    }
    assert len(found) == 1


# --- the local optimizer --------------------------------------------------------------------------


class Steady(LightningModule):
    """The gradient is a number everywhere, so that a local step moves w by what the rule makes."""

    def __init__(self, gradient=-1.0):
        super().__init__()
        self.gradient, self.w = gradient, nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        return self.gradient * self.w.sum() + 0 * batch[0].sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Scaled(LocalOptimizer):
    """Multiplies the step by numbers that lie at several places."""

    lr = 1.0
    factor = 1.0

    def __init__(self):
        self.box = {"deep": [1.0]}

    def step(self, run, grads):
        run.descend(torch._foreach_mul(list(grads), self.factor * self.box["deep"][0]))


@dataclass(slots=True)
class Slotted(LocalOptimizer):
    """It has no hash, and keeps its number in a slot."""

    factor: float = 1.0
    lr: float = 1.0

    def step(self, run, grads):
        run.descend(torch._foreach_mul(list(grads), self.factor))


class Within(LocalOptimizer):
    """Has a rule that has a rule, and a rate that is a method of its own."""

    def __init__(self):
        self.rule, self.rate = FedProx(lambda version: 1.0, mu=0.5), 1.0
        self.lr = self.rate_of

    def rate_of(self, version):
        return self.rate

    def step(self, run, grads):
        self.rule.step(run, grads)


def nesterov(rule, value):
    """The first step of a rule with momentum b goes 1 + b times as far."""
    rule.nesterov, rule.momentum = True, value


def replaced(rule, value):
    rule._sgd = LocalSGD(1.0)
    nesterov(rule._sgd, value)


# Each writes a number with which a local step moves w by 1 + value; at the start it moves it by 1.
OPTIMIZERS = {
    "rate": (lambda: LocalSGD(1.0), lambda o, x: setattr(o, "lr", 1 + x)),
    "rate of Adam": (lambda: LocalAdam(1.0), lambda o, x: setattr(o, "lr", 1 + x)),
    "rate by version": (
        lambda: LocalSGD(lambda version: 1.0),
        lambda o, x: setattr(o, "lr", lambda version: 1 + x),
    ),
    "momentum": (lambda: LocalSGD(1.0), nesterov),
    "nested": (lambda: FedProx(1.0), lambda o, x: nesterov(o._sgd, x)),
    "nested twice": (Within, lambda o, x: nesterov(o.rule._sgd, x)),
    "number of its method": (Within, lambda o, x: setattr(o, "rate", 1 + x)),
    "another rule": (
        lambda: FedProx(1.0),
        replaced,
    ),
    "of its class": (Scaled, lambda o, x: setattr(o, "factor", 1 + x)),
    "container": (Scaled, lambda o, x: o.box["deep"].__setitem__(0, 1 + x)),
    "slot": (Slotted, lambda o, x: setattr(o, "factor", 1 + x)),
    "clipping": (
        lambda: ModuleOptimizer(max_grad_norm=1.0),
        lambda o, x: setattr(o, "max_grad_norm", 1 + x),
    ),
}


class SetsOptimizer(Callback):
    """Sets the number to the version when a round ends."""

    def __init__(self, kind):
        self.kind = kind

    def on_round_end(self, trainer, module):
        OPTIMIZERS[self.kind][1](trainer.local_optimizer, float(trainer.version))


def with_optimizer(kind, arrivals, executor):
    given = arguments(arrivals, executor)
    return {**given, "local_optimizer": OPTIMIZERS[kind][0](), "callbacks": SetsOptimizer(kind)}


def steady(kind):
    return Steady(-100.0 if kind == "clipping" else -1.0)


def expected_move(run):
    return sum(
        update.weight * (1 + update.pulled_version) for r in run.history for update in r.updates
    )


BOTH = ("by rounds", "by the clock")
OPTIMIZER_CASES = [
    *[(kind, BOTH[i % 2], "sequential") for i, kind in enumerate(OPTIMIZERS)],
    *[(kind, BOTH[1 - i % 2], "vectorized") for i, kind in enumerate(OPTIMIZERS)][:-1],
    ("clipping", "by rounds", "auto"),
    ("rate", "by the clock", "processes"),
    ("nested twice", "by rounds", "processes"),
    ("rate by version", "by rounds", "processes"),
]


@pytest.mark.parametrize(("kind", "arrivals", "executor"), OPTIMIZER_CASES)
def test_a_client_has_the_numbers_of_the_optimizer_of_its_pull(kind, arrivals, executor):
    run = fitted(steady(kind), clients(), **with_optimizer(kind, arrivals, executor))
    assert run.state.params.item() == pytest.approx(expected_move(run), rel=1e-5)
    if arrivals == "by rounds":
        assert run.state.params.item() == pytest.approx(6 + 7.5, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "arrivals", "executor"),
    [
        *[(kind, BOTH[i % 2], "sequential") for i, kind in enumerate(OPTIMIZERS)],
        ("rate", "by the clock", "vectorized"),
        ("nested", "by rounds", "vectorized"),
        ("nested twice", "by the clock", "processes"),
    ],
)
def test_a_resumed_run_has_the_numbers_of_the_optimizer(kind, arrivals, executor, tmp_path):
    def run(rounds, **more):
        given = with_optimizer(kind, arrivals, executor)
        made = trainer(**{**given, "max_rounds": given["max_rounds"] // rounds})
        made.fit(steady(kind), clients(), **more)
        return made

    half = run(2)
    if kind == "rate by version":
        with pytest.warns(UserWarning, match=r"trainer.local_optimizer.lr .* no plain data"):
            half.save_checkpoint(tmp_path / "a.ckpt")
        with pytest.warns(UserWarning, match="does not go on to the same bits"):
            run(1, ckpt_path=tmp_path / "a.ckpt")
        return
    half.save_checkpoint(tmp_path / "a.ckpt")
    resumed, whole = run(1, ckpt_path=tmp_path / "a.ckpt"), run(1)
    assert resumed.fingerprint() == whole.fingerprint()
    assert repr(resumed.local_optimizer) == repr(whole.local_optimizer)


def test_numbers_that_change_once_last_after_a_resume(tmp_path):
    class Once(Callback):
        def on_round_end(self, trainer, module):
            if trainer.version == 1:
                trainer.local_optimizer.lr = 3.0

    def run(rounds, **more):
        arrivals = UniformArrivals(2, max_staleness=0, local_steps=ConstantSteps(1))
        made = trainer(
            arrivals=arrivals, local_optimizer=LocalSGD(1.0), callbacks=Once(), max_rounds=rounds
        )
        made.fit(Steady(), clients(), **more)
        return made

    run(3).save_checkpoint(tmp_path / "a.ckpt")
    resumed = run(5, ckpt_path=tmp_path / "a.ckpt")
    assert resumed.state.params.item() == 1 + 4 * 3.0
    assert resumed.local_optimizer.lr == 3.0


def test_a_number_that_is_changed_while_updates_arrive_reaches_those_that_pull_later():
    class OnUpdate(Callback):
        def on_update(self, trainer, module, update):
            trainer.local_optimizer.lr = float(trainer.num_updates + 1)

    arrivals = ContinuousArrivals(FixedDurations([1.0]), local_steps=ConstantSteps(1))
    run = fitted(
        Steady(),
        points([0.0]),
        arrivals=arrivals,
        aggregator=FedBuff(1),
        local_optimizer=LocalSGD(10.0),
        max_rounds=4,
        executor="sequential",
        callbacks=OnUpdate(),
    )
    assert run.state.params.item() == 10 + 1 + 2 + 3


class Shown(Steady):
    def validation_step(self, batch, batch_idx):
        self.log("val_w", self.w.sum())


@pytest.mark.parametrize("workers", [1, "together"])
def test_a_run_of_a_study_has_the_numbers_of_its_own_optimizer(workers):
    class OfSeedZero(SetsOptimizer):
        def on_round_end(self, trainer, module):
            if trainer.seed == 0:
                super().on_round_end(trainer, module)

    study = sweep(
        {"aggregator": {"FedAvg": FedAvg()}},
        arrivals=UniformArrivals(2, max_staleness=3, local_steps=ConstantSteps(1)),
        module=Shown,
        datamodule=clients(),
        local_optimizer=LocalSGD(1.0),
        seeds=(0, 1, 2),
        callbacks=lambda: [OfSeedZero("rate")],
        max_rounds=6,
        metric="val_w",
        workers=workers,
        accelerator="cpu",
        enable_progress_bar=False,
    )
    moved = [run.history[-1].metrics["val_w"] for run in study.runs]
    assert moved == pytest.approx([6 + 7.5, 6, 6])


class Notes(LocalSGD):
    """Notes on itself how far it went, which no step reads."""

    def __init__(self, lr):
        super().__init__(lr)
        self.norms, self.calls = [], 0

    def step(self, run, grads):
        self.norms.extend(client_norms(grads).tolist())
        self.calls += len(run.tasks)
        super().step(run, grads)


@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_what_a_step_notes_on_the_optimizer_is_no_setting(executor):
    seen = []

    class Looks(Callback):
        def on_update(self, trainer, module, update):
            seen.append(trainer.run.server.state.settings)

    notes = Notes(1.0)
    given = {**arguments("by rounds", executor), "local_optimizer": notes, "callbacks": Looks()}
    fitted(Steady(), clients(), **given)
    assert all(each is seen[0] for each in seen)
    assert notes.calls == len(notes.norms) >= len(seen) == 12


def test_without_hooks_the_optimizer_is_not_looked_at(monkeypatch):
    looks, seen = [], settings_module.fields_of
    monkeypatch.setattr(settings_module, "fields_of", lambda each: looks.append(0) or seen(each))
    counts = []
    for rounds in (2, 20):
        looks.clear()
        given = {**arguments("by rounds", "sequential"), "callbacks": [], "max_rounds": rounds}
        fitted(Steady(), clients(), **given)
        counts.append(len(looks))
    assert counts[0] == counts[1] > 0


def test_a_step_is_the_same_function_under_other_numbers_of_the_optimizer():
    module, optimizer = Steady(), FedProx(1.0)
    live = LiveSettings(module, optimizer)
    start = live.begin()
    nesterov(optimizer._sgd, 0.5)
    other = live.now()
    assert other is not start
    assert other.of_step is start.of_step
    module.gradient = -2.0
    assert live.now().of_step is not start.of_step


def test_a_method_that_was_replaced_on_the_optimizer_is_not_copied():
    """What it counts in local runs of older versions would be lost with the copy."""
    optimizer, calls = LocalSGD(0.1), []
    begin = optimizer.begin
    optimizer.begin = lambda run, module: (calls.append(1), begin(run, module))
    given = arguments("by the clock", "sequential")
    run = fitted(Moves("number"), clients(), **{**given, "local_optimizer": optimizer})
    assert len(calls) >= run.num_updates > 0
