"""What clients keep between their tasks, and rates by the steps that they have made."""

import copy
import math

import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.nn import functional

from fedlight.aggregators import FedAsync, FedAvg, FedBuff
from fedlight.arrivals import (
    ContinuousArrivals,
    Recording,
    ReplayArrivals,
    UniformArrivals,
    UniformDurations,
)
from fedlight.executors import ProcessExecutor, SequentialExecutor, VectorizedExecutor
from fedlight.local_optimizers import (
    ByStep,
    FedProx,
    LocalAdam,
    LocalAdamW,
    LocalOptimizer,
    LocalSGD,
    ModuleOptimizer,
    OwnModel,
    Scaffold,
    WarmupCosine,
)
from tests.boring import Boring, classes, fitted, points, replay, trainer


class Line(LightningModule):
    """The loss is -w, so a step of SGD adds its rate to w."""

    def __init__(self, fails_at: float = math.inf) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.fails_at = fails_at

    def training_step(self, batch, batch_idx):
        loss = -self.w.sum() + 0.0 * batch[0].sum()
        return loss * torch.where(batch[0].max() == self.fails_at, torch.nan, 1.0)


class Whole(LightningModule):
    """A regression whose batch is all that its client has, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1)).double()

    def loss(self, x):
        return functional.mse_loss(self.net(x), x.sin())

    def training_step(self, batch, batch_idx):
        return self.loss(batch[0].double())


def boring() -> Boring:
    torch.manual_seed(0)
    return Boring()


EXAMPLES = [0.5, -1.0, 2.0, 0.25]
BOTH = pytest.mark.parametrize(
    "executor", [SequentialExecutor, VectorizedExecutor], ids=["sequential", "vectorized"]
)
MAKERS = {
    "AdamW": (
        lambda keep: LocalAdamW(0.01, weight_decay=0.3, keep=keep),
        lambda params: torch.optim.AdamW(params, 0.01, weight_decay=0.3),
    ),
    "Adam": (
        lambda keep: LocalAdam(0.01, betas=(0.8, 0.95), weight_decay=0.3, keep=keep),
        lambda params: torch.optim.Adam(params, 0.01, betas=(0.8, 0.95), weight_decay=0.3),
    ),
    "momentum": (
        lambda keep: LocalSGD(0.1, momentum=0.9, nesterov=True, keep=keep),
        lambda params: torch.optim.SGD(params, 0.1, momentum=0.9, nesterov=True),
    ),
}


@BOTH
@pytest.mark.parametrize("keep", ["task", "client"])
@pytest.mark.parametrize("name", MAKERS)
def test_one_client_alone_is_torchs_optimizer(name, keep, executor):
    """Three tasks of 4, 1 and 3 steps; kept, they are 8 steps in a row."""
    ours, torchs = MAKERS[name]
    module, plain = Whole(), Whole()
    schedule = [(0, 0, 1.0, 4), (0, 1, 2.0, 1), (0, 2, 3.0, 3)]
    fitted(
        module,
        points(EXAMPLES),
        arrivals=replay(*schedule),
        aggregator=FedBuff(1, staleness=None),
        local_optimizer=ours(keep),
        executor=executor(),
    )
    optimizer = torchs(plain.parameters())
    for *_, steps in schedule:
        if keep == "task":
            optimizer = torchs(plain.parameters())
        for _ in range(steps):
            optimizer.zero_grad()
            plain.loss(torch.tensor(EXAMPLES).double()[:, None]).backward()
            optimizer.step()
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@BOTH
def test_each_client_keeps_its_own(executor):
    """Two clients in turn, each with a momentum and a count of its own, against torch."""
    data = [[1.0, 2.0], [-0.5, 0.3]]
    events = [(0, 0, 1.0, 2), (1, 0, 2.0, 3), (0, 1, 3.0, 1), (1, 2, 4.0, 2)]
    module, plain = Whole(), Whole()
    fitted(
        module,
        points(*data),
        arrivals=replay(*events),
        aggregator=FedBuff(1, staleness=None),
        local_optimizer=LocalAdamW(0.02, keep="client"),
        executor=executor(),
    )
    nets = [copy.deepcopy(plain) for _ in data]
    optimizers = [torch.optim.AdamW(net.parameters(), 0.02) for net in nets]
    versions = [[p.detach().clone() for p in plain.parameters()]]
    for client, pulled, _, steps in events:
        for param, value in zip(nets[client].parameters(), versions[pulled], strict=True):
            param.data.copy_(value)
        for _ in range(steps):
            optimizers[client].zero_grad()
            nets[client].loss(torch.tensor(data[client]).double()[:, None]).backward()
            optimizers[client].step()
        moved = zip(versions[-1], nets[client].parameters(), versions[pulled], strict=True)
        versions.append([now + after.detach() - before for now, after, before in moved])
    for param, value in zip(module.parameters(), versions[-1], strict=True):
        torch.testing.assert_close(param.detach(), value, rtol=1e-12, atol=1e-12)


def asynchronous(**kwargs):
    return {
        "arrivals": ContinuousArrivals(UniformDurations(0.2, 1.7), concurrency=3, local_steps=3),
        "aggregator": FedBuff(2),
        "max_rounds": 7,
        **kwargs,
    }


OPTIMIZERS = {
    "AdamW": lambda: LocalAdamW(WarmupCosine(0.05, 4, 40), keep="client"),
    "Adam": lambda: LocalAdam(0.02, max_grad_norm=0.5, keep="client"),
    "momentum": lambda: LocalSGD(ByStep(lambda s: 0.3 / (1 + s)), momentum=0.9, keep="client"),
    "rates alone": lambda: FedProx(WarmupCosine(0.3, 3, 12, floor=0.01), mu=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stacks_give_the_weights_of_one_after_another(name):
    runs = []
    for executor in (SequentialExecutor(), VectorizedExecutor(), VectorizedExecutor(max_batch=2)):
        module = boring().double()
        chosen = OPTIMIZERS[name]()
        fitted(module, classes(), local_optimizer=chosen, executor=executor, **asynchronous())
        runs.append(nn.utils.parameters_to_vector(module.parameters()))
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-12, atol=1e-12)
    assert torch.equal(runs[1], runs[2])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_processes_give_the_bits_of_one(name):
    bits = {
        fitted(
            boring(),
            classes(),
            local_optimizer=OPTIMIZERS[name](),
            executor=executor,
            **asynchronous(),
        ).fingerprint()
        for executor in (SequentialExecutor(), ProcessExecutor(workers=2))
    }
    assert len(bits) == 1


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("rounds", [1, 4])
def test_a_run_resumes_in_the_middle_of_what_is_kept(name, rounds, tmp_path):
    def run(rounds):
        options = asynchronous(max_rounds=rounds)
        return trainer(local_optimizer=OPTIMIZERS[name](), **options)

    whole, first, second = run(7), run(rounds), run(7)
    whole.fit(boring(), classes())
    first.fit(boring(), classes())
    first.save_checkpoint(tmp_path / "run.ckpt")
    second.fit(boring(), classes(), ckpt_path=tmp_path / "run.ckpt")
    assert second.fingerprint() == whole.fingerprint()


def test_a_local_run_that_fails_leaves_what_was_kept():
    """Client 0 fails in its second task; its third goes on from the first one."""
    events = [(0, 0, 1.0, 2), (0, 1, 2.0, 3), (0, 1, 3.0, 1)]

    class Fails(LocalAdamW):
        def step(self, run, grads):
            super().step(run, grads)
            if run.tasks[0].visit == 1:
                run.params[0].fill_(torch.nan)

    seen = []

    class Counts(Fails):
        def begin(self, run, module):
            if run.tasks[0].arrives_at > 0:
                seen.append((run.tasks[0].visit, run.kept_steps[0], run.tasks[0].steps_before))

    run = fitted(
        Whole(),
        points(EXAMPLES),
        arrivals=replay(*events),
        aggregator=FedBuff(1, staleness=None),
        local_optimizer=Counts(0.01, keep="client"),
        executor=SequentialExecutor(),
        on_client_failure="drop",
    )
    assert run.version == 2
    assert [each for each in dict.fromkeys(seen) if each[0]] == [(1, 2, 2), (2, 2, 5)]


def test_rates_follow_the_steps_of_each_client():
    """By hand: eta(s) = s + 1. Client 0: 2 steps, 1 + 2; then 3, 3 + 4 + 5. Client 1: 1."""
    events = [(0, 0, 1.0, 2), (1, 0, 1.5, 1), (0, 1, 3.0, 3)]
    for executor in (SequentialExecutor(), VectorizedExecutor()):
        module = Line()
        fitted(
            module,
            points([1.0], [2.0]),
            arrivals=replay(*events),
            aggregator=FedBuff(1, staleness=None),
            local_optimizer=LocalSGD(ByStep(lambda step: float(step + 1))),
            executor=executor,
        )
        assert module.w.item() == 3.0 + 1.0 + 12.0


def test_steps_count_when_they_arrive():
    """The second task of client 0 is dispatched at 0.5, before its first arrives at 1."""
    events = [(0, 0, 1.0, 2, 0.0), (0, 0, 2.0, 3, 0.5), (0, 2, 4.0, 1, 3.0)]
    seen = []

    class Seen(LocalSGD):
        def begin(self, run, module):
            seen.append((run.tasks[0].visit, run.tasks[0].steps_before))

    fitted(
        Line(),
        points([1.0]),
        arrivals=replay(*events),
        aggregator=FedBuff(1, staleness=None),
        local_optimizer=Seen(0.1),
        executor=SequentialExecutor(),
    )
    assert sorted(set(seen)) == [(0, 0), (1, 0), (2, 5)]


def test_a_recorded_schedule_gives_the_same_rates(tmp_path):
    optimizer, path = LocalSGD(WarmupCosine(0.5, 3, 30)), tmp_path / "schedule.parquet"
    options = asynchronous()
    options["arrivals"] = Recording(options["arrivals"], path)
    first = fitted(boring(), classes(), local_optimizer=optimizer, **options)
    again = fitted(
        boring(),
        classes(),
        local_optimizer=optimizer,
        arrivals=ReplayArrivals(path),
        aggregator=FedBuff(2),
    )
    assert again.fingerprint() == first.fingerprint()


class Scheduled(Line):
    """Its own optimizer, with a scheduler that `make` gives."""

    def __init__(self, make) -> None:
        super().__init__()
        self.make = make

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        return {"optimizer": optimizer, "lr_scheduler": self.make(optimizer)}


def test_the_modules_own_scheduler_may_count_the_steps_of_each_client():
    """As `test_rates_follow_the_steps_of_each_client`, by a LambdaLR of s + 1."""
    module = Scheduled(
        lambda own: {
            "scheduler": torch.optim.lr_scheduler.LambdaLR(own, lambda step: step + 1.0),
            "interval": "step",
        }
    )
    fitted(
        module,
        points([1.0], [2.0]),
        arrivals=replay((0, 0, 1.0, 2), (1, 0, 1.5, 1), (0, 1, 3.0, 3)),
        aggregator=FedBuff(1, staleness=None),
        local_optimizer=ModuleOptimizer(schedule="client"),
    )
    assert module.w.item() == 3.0 + 1.0 + 12.0


def warm_then_cosine(optimizer):
    schedulers = torch.optim.lr_scheduler
    warm = schedulers.LinearLR(optimizer, 0.25, total_iters=3)
    cosine = schedulers.CosineAnnealingLR(optimizer, 6)
    both = schedulers.SequentialLR(optimizer, [warm, cosine], milestones=[3])
    return {"scheduler": both, "interval": "step"}


@pytest.mark.parametrize("executor", [SequentialExecutor, lambda: ProcessExecutor(workers=2)])
def test_a_scheduler_of_schedulers_goes_on_from_task_to_task(executor):
    """One client, three tasks: as eight steps in a row of torch's own."""
    plain = Scheduled(warm_then_cosine)
    configured = plain.configure_optimizers()
    optimizer, scheduler = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    for _ in range(8):
        optimizer.zero_grad()
        (-plain.w.sum()).backward()
        optimizer.step()
        scheduler.step()
    module = Scheduled(warm_then_cosine)
    fitted(
        module,
        points([1.0]),
        arrivals=replay((0, 0, 1.0, 4), (0, 1, 2.0, 1), (0, 2, 3.0, 3)),
        aggregator=FedBuff(1, staleness=None),
        local_optimizer=ModuleOptimizer(schedule="client"),
        executor=executor(),
    )
    assert module.w.item() == pytest.approx(plain.w.item(), rel=1e-12)


def test_warmup_and_cosine_by_hand():
    rate = WarmupCosine(peak=0.4, warmup=4, total=12, floor=0.1)
    cosine = [0.1 + 0.3 * (1 + math.cos(math.pi * q / 8)) / 2 for q in range(8)]
    expected = [0.1, 0.2, 0.3, 0.4, *cosine, 0.1, 0.1]
    assert [rate.at(s) for s in range(14)] == pytest.approx(expected, abs=1e-15)
    assert repr(rate) == "WarmupCosine(0.4, warmup=4, total=12, floor=0.1)"
    assert WarmupCosine(1.0, 0, 2).at(0) == 1.0


class SkipsTwo(Boring):
    """Skips the second and the fourth step of each task."""

    def training_step(self, batch, batch_idx):
        return None if batch_idx in (1, 3) else super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:fedlight. training_step of SkipsTwo returned None")
def test_a_step_that_is_skipped_counts_for_nobody():
    """Tasks of 2, 5 and 3 steps make 1, 3 and 2; the stack is shorter when the fourth comes."""
    events = [(0, 0, 1.0, 2), (1, 0, 1.5, 5), (2, 0, 1.7, 3)]
    events += [(0, 1, 3.0, 3), (1, 1, 3.5, 2), (2, 1, 3.7, 2)]
    weights = []
    for executor in (SequentialExecutor(), VectorizedExecutor()):
        seen = {}

        class Seen(LocalAdamW):
            def begin(self, run, module, seen=seen):
                seen.update(
                    (task.client_id, kept)
                    for task, kept in zip(run.tasks, run.kept_steps, strict=True)
                    if task.visit
                )

        torch.manual_seed(0)
        module = SkipsTwo().double()
        fitted(
            module,
            classes((8, 8, 8)),
            arrivals=replay(*events),
            aggregator=FedBuff(3, staleness=None),
            local_optimizer=Seen(0.05, keep="client"),
            executor=executor,
        )
        assert seen == {0: 1, 1: 3, 2: 2}
        weights.append(nn.utils.parameters_to_vector(module.parameters()))
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-12, atol=1e-12)


class Author(LocalOptimizer):
    """One of a user's own: the mean of all gradients that the client has ever seen."""

    lr = 0.1
    kept = ("total",)

    def step(self, run, grads):
        total = run.remembered("total")
        torch._foreach_add_(total, list(grads))
        counts = [before + run.step + 1 for before in run.kept_steps]
        for param, each in zip(run.params, total, strict=True):
            for client, count in enumerate(counts):
                param[client].sub_(self.lr * each[client] / count)


@BOTH
def test_an_authors_own_keeps_by_naming_it(executor):
    """Line has the gradient -1, so each step adds 0.1, whoever counts."""
    module = Line()
    fitted(
        module,
        points([1.0], [2.0]),
        arrivals=replay((0, 0, 1.0, 2), (1, 0, 1.5, 1), (0, 1, 3.0, 3)),
        aggregator=FedBuff(1, staleness=None),
        local_optimizer=Author(),
        executor=executor(),
    )
    assert module.w.item() == pytest.approx(0.6, rel=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalAdamW(0.1, keep="run"), "keep must be one of 'task', 'client', got 'run'"),
        (lambda: LocalSGD(0.1, keep="client"), 'keep="client" needs a momentum above 0'),
        (lambda: LocalAdamW(0.1, weight_decay=-1), "weight_decay must be 0 or larger"),
        (lambda: WarmupCosine(0.1, 5, 5), "total must be larger than warmup=5, got 5"),
        (lambda: WarmupCosine(0.1, 0, 5, floor=0.2), "floor must be at most peak=0.1, got 0.2"),
        (lambda: OwnModel(LocalAdamW(0.1, keep="client")), "must keep no state between tasks"),
        (
            lambda: OwnModel(LocalSGD(ByStep(math.sqrt)), per_poll=2, lr_correction=True),
            "lr_correction=True needs a rate that is a number or a function of the version",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ByStep(0.1), "rate must be a function of the number of steps, got 0.1"),
        (lambda: Scaffold(ByStep(math.sqrt)), "lr must be a number or a function of the version"),
        (lambda: FedAsync(alpha=ByStep(math.sqrt)), "alpha must be a number"),
        (lambda: FedAvg(server_lr=ByStep(math.sqrt)), "server_lr must be a number or a function"),
    ],
)
def test_rates_by_step_are_for_local_steps(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_sixteen_bits_cannot_count_the_steps():
    with pytest.raises(ValueError, match=r"does not fit into torch.bfloat16.*keep=\"task\""):
        fitted(
            Boring().to(torch.bfloat16),
            classes(),
            local_optimizer=LocalAdamW(0.1, keep="client"),
            precision="bf16-true",
        )


@pytest.mark.parametrize("kept", ["total", {"total"}, (1,), None, True], ids=str)
def test_what_is_no_list_of_names_is_refused(kept):
    class Wrong(Author):
        stackable = False

    Wrong.kept = kept
    with pytest.raises(TypeError, match=r"Wrong.kept must be a tuple of names of run.remembered"):
        fitted(Boring(), classes(), local_optimizer=Wrong())


def test_a_name_that_is_kept_twice_is_refused():
    class Twice(Author):
        kept = ("total", "total")

    with pytest.raises(ValueError, match=r"Twice.kept must name each tensor once"):
        fitted(Boring(), classes(), local_optimizer=Twice())


def test_a_name_that_no_step_asks_for_is_told():
    class Typo(Author):
        kept = ("total", "totel")

    with pytest.warns(UserWarning, match=r"kept names 'totel', .* it asks for total"):
        fitted(Boring(), classes(), local_optimizer=Typo())


@pytest.mark.parametrize("stackable", [True, False])
def test_a_state_besides_what_is_kept_is_refused(stackable):
    class Two(Author):
        client_state = True

    Two.stackable = stackable
    with pytest.raises(ValueError, match=r"Two keeps total and has client_state = True"):
        fitted(boring(), classes(), local_optimizer=Two())


def test_rounds_keep_too():
    options = {"arrivals": UniformArrivals(2, local_steps=3), "max_rounds": 4}
    kept, fresh = (
        fitted(boring(), classes(), local_optimizer=LocalAdamW(0.05, keep=keep), **options)
        for keep in ("client", "task")
    )
    assert kept.fingerprint() != fresh.fingerprint()
