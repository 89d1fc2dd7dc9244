"""What a module does to its parameters, its batches and its modes, judged by Lightning."""

import random
import threading

import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.nn import functional

from fedlight.executors import RayExecutor
from fedlight.executors.base import ClientError
from fedlight.local_optimizers import LocalAdam, LocalSGD
from fedlight.parameters import ModuleState
from tests.boring import Boring, Point, classes, fitted, points, trainer

CAREFUL = {"lr": 0.1, "weight_decay": 0.5, "momentum": 0.9}


class Unused(Boring):
    """A layer that no loss ever uses."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(4, 2)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), **CAREFUL)


class NowAndThen(Unused):
    """The other layer is used in every second step only."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss + self.spare(batch[0]).square().mean() if batch_idx % 2 else loss


class Skips(Boring):
    """Every second batch is skipped."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) if batch_idx % 2 else None

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), **CAREFUL)


class SkipsWithAdam(Skips):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


SKIPPED = pytest.mark.filterwarnings("ignore:.*returned .?None:UserWarning")


@pytest.mark.parametrize("factory", [Unused, NowAndThen])
def test_nothing_moves_a_parameter_that_the_loss_does_not_use(both, executor, factory):
    torch.manual_seed(0)
    start = factory().double()
    runs = both(factory, steps=6, rounds=1, executor=executor)
    runs.same_weights()
    untouched = torch.equal(runs.fed_module.spare.weight, start.spare.weight.float().double())
    assert untouched == (factory is Unused)


@SKIPPED
def test_a_batch_for_which_the_step_returns_none_is_skipped(both, executor):
    both(Skips, steps=5, rounds=1, executor=executor).same_weights()


@SKIPPED
@pytest.mark.parametrize("optimizer", [None, LocalAdam(lr=0.1)], ids=["own", "local"])
def test_adam_does_not_count_a_skipped_batch(both, optimizer):
    both(SkipsWithAdam, steps=5, rounds=1, local_optimizer=optimizer).same_weights()


@SKIPPED
def test_adam_does_not_count_a_skipped_batch_in_a_stack(both):
    options = {"local_optimizer": LocalAdam(lr=0.1), "executor": "vectorized"}
    both(SkipsWithAdam, steps=5, rounds=1, **options).same_weights()


def test_a_client_that_skips_all_its_batches_changes_nothing(executor):
    class Never(Point):
        def training_step(self, batch, batch_idx):
            return None

    Never.__name__ = name = f"Never_{executor}"  # it is said once of each module
    module = Never(3.0)
    with pytest.warns(UserWarning, match=f"training_step of {name} returned None; as in Lightning"):
        fitted(
            module,
            points([1.0], [2.0]),
            executor=executor,
            local_optimizer=LocalSGD(0.1, weight_decay=0.5),
            max_rounds=1,
        )
    assert module.w.item() == 3


class Augments(Boring):
    """Changes its batches in the hooks for that."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        return x * 2, y

    def on_after_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        return x.flip(-1) + 0.25, y


class Transfers(Boring):
    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        x, y = super().transfer_batch_to_device(batch, device, dataloader_idx)
        return x - 1, y


@pytest.mark.parametrize("factory", [Augments, Transfers])
def test_hooks_of_a_batch_are_called_in_training_and_validation(both, executor, factory):
    runs = both(factory, executor=executor)
    runs.same_weights()
    runs.same_metrics("val_loss")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x: x + random.random(), "draws from Python's random"),
        (lambda x: x if x.sum() > 0 else -x, "cannot be vectorised"),
    ],
    ids=["random", "branch"],
)
def test_a_hook_of_a_batch_that_no_stack_can_share_goes_one_by_one(change, reason):
    class Jitters(Boring):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            return change(batch[0]), batch[1]

    run = fitted(Jitters(), classes(), executor="auto", max_rounds=1)
    assert repr(run.run.executor) == "SequentialExecutor()"
    assert reason in run.run.executor_reason


def halves(x):
    return x.mul_(0.5)


class Writes(Point):
    """Its validation step writes into its batch; with a learning rate of zero nothing moves."""

    def __init__(self, change=halves, hook=False):
        super().__init__()
        self.change, self.hook = change, hook

    def on_validation_batch_start(self, batch, batch_idx, dataloader_idx=0):
        if self.hook:
            self.change(batch[0])

    def validation_step(self, batch, batch_idx):
        x = batch[0] if self.hook else self.change(batch[0])
        self.log("seen", x.mean())


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (halves, 0.5),
        (lambda x: nn.Dropout(1.0, inplace=True)(x), 0.0),
        (lambda x: functional.relu_(x.sub_(3)), 0.0),
    ],
    ids=["mul_", "dropout", "relu"],
)
@pytest.mark.parametrize("hook", [False, True])
def test_a_validation_step_may_write_into_its_batch(change, value, hook):
    run = fitted(
        Writes(change, hook),
        points([1.0], [2.0], val=[1.0] * 7, eval_batch_size=3),
        local_optimizer=LocalSGD(1e-9),
        max_rounds=4,
    )
    assert [record.metrics["seen"] for record in run.history] == [value] * 4


def test_a_module_in_eval_mode_trains_so_as_under_lightning(both, executor):
    def resting():
        return Boring(nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))).eval()

    with pytest.warns(UserWarning, match="in eval mode") as seen:
        runs = both(resting, executor=executor)
    runs.same_weights()
    assert not runs.fed_module.training
    assert any("in eval mode at the start of training" in str(each.message) for each in seen)
    assert any(
        "fedlight: parts of Boring are in eval mode at the start of the training and stay in it: "
        "the module itself, net, net.0, …" in str(each.message)
        for each in seen
    )


# --- what cannot be trained gets a sentence ---


class Replaces(Point):
    def training_step(self, batch, batch_idx):
        self.w = nn.Parameter(self.w.detach().clone())
        return (self.w - batch[0]).square().mean()


class Adds(Point):
    def training_step(self, batch, batch_idx):
        self.extra = nn.Parameter(torch.ones(1))
        return (self.w * self.extra - batch[0]).square().mean()


@pytest.mark.parametrize(("module", "name"), [(Replaces, "w"), (Adds, "extra")])
def test_a_step_that_changes_the_parameters_of_the_module_is_refused(module, name):
    words = rf"{module.__name__} replaces, adds or removes the parameters {name}, which no optim"
    with pytest.raises(ClientError, match=words):
        fitted(module(), points([1.0], [2.0]), executor="sequential")
    with pytest.raises(ValueError, match=words):
        fitted(module(), points([1.0], [2.0]), executor="vectorized")


def test_an_optimizer_over_parameters_of_something_else_is_refused():
    class Foreign(Point):
        def configure_optimizers(self):
            return torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)

    class InAList(Point):
        def __init__(self):
            super().__init__()
            self.hidden = [nn.Linear(1, 1)]

        def configure_optimizers(self):
            return torch.optim.SGD([*self.parameters(), *self.hidden[0].parameters()], lr=0.1)

    for module, words in ((Foreign(), "2 of 2 parameters"), (InAList(), "2 of 3 parameters")):
        with pytest.raises(ValueError, match=rf"an optimizer over {words} that are none of the"):
            fitted(module, points([1.0], [2.0]), local_optimizer=None)


def test_inference_mode_is_refused_and_no_grad_is_not():
    with torch.inference_mode():
        made = Point()
        with pytest.raises(RuntimeError, match=r"fit cannot train within torch.inference_mode"):
            trainer().fit(Point(), points([1.0], [2.0]))
    with pytest.raises(ValueError, match=r"parameter 'w' of Point was made in torch.inference_m"):
        trainer().fit(made, points([1.0], [2.0]))
    outside, inside = Point(), Point()
    fitted(outside, points([1.0], [2.0]))
    with torch.no_grad():
        fitted(inside, points([1.0], [2.0]))
        assert not torch.is_grad_enabled()
    assert outside.w.item() == inside.w.item() != 0


def test_an_expanded_parameter_is_refused_and_an_expanded_buffer_is_not(executor):
    class Expanded(Point):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1).expand(3))

    with pytest.raises(ValueError, match=r"'w' of Expanded is an expanded tensor: .*clone\(\)\)"):
        fitted(Expanded(), points([1.0], [2.0]), executor=executor)

    class Masked(Boring):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.ones(1).expand(4))

        def forward(self, x):
            return self.net(x * self.mask)

    module = Masked()
    fitted(module, classes(), executor=executor)
    assert module.mask.tolist() == [1, 1, 1, 1]


class Words(LightningModule):
    def __init__(self, optimizer=torch.optim.SGD, sparse=True):
        super().__init__()
        self.words = nn.Embedding(5, 3, sparse=sparse)
        self.optimizer = optimizer

    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self.words(batch[0]), batch[1])

    def configure_optimizers(self):
        return self.optimizer(self.parameters(), lr=0.1)


def words_data():
    dice = torch.Generator().manual_seed(0)
    draw = torch.randint(5, (24,), generator=dice), torch.randint(3, (24,), generator=dice)
    return torch.utils.data.TensorDataset(*draw)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
def test_sparse_gradients_with_the_modules_own_optimizer(both, optimizer):
    both(lambda: Words(optimizer), words_data(), rounds=1).same_weights()


def test_sparse_gradients_with_a_local_optimizer(both):
    both(Words, words_data(), local_optimizer=LocalSGD(0.1)).same_weights()


def test_sparse_gradients_under_auto(both):
    both(Words, words_data(), local_optimizer=LocalSGD(0.1), executor="auto").same_weights()


def test_a_module_that_no_process_can_receive_is_refused_by_name():
    pytest.importorskip("ray")

    class Locked(Point):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

    with pytest.raises(
        ValueError, match=r"Locked cannot be sent to a Ray actor \(.*lock.*look at 'lock'"
    ):
        fitted(Locked(), points([1.0], [2.0]), executor=RayExecutor(num_actors=1))


def test_a_module_state_knows_its_parameters():
    module = Point()
    state = ModuleState(module)
    state.check_kept()
    module.w = nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match="the parameters w, which"):
        state.check_kept()
