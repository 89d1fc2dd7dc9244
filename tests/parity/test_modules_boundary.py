"""What a module does to its parameters, its batches and its modes, judged by Lightning."""

import random
import threading

import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from fedlight import Callback, FederatedDataModule
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


def test_a_layer_in_eval_mode_trains_so_as_under_lightning(both, executor):
    def part():
        net = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
        net[0].eval()
        net[1].eval()
        return Boring(net)

    with pytest.warns(UserWarning, match="in eval mode") as seen:
        runs = both(part, executor=executor)
    assert any("fedlight: parts of Boring are in eval" in str(each.message) for each in seen)
    runs.same_weights()
    assert runs.fed_module.training
    assert [child.training for child in runs.fed_module.net] == [False, False, True]


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


class AddsOnce(Point):
    """Adds it in the first step that is tried; those after it find it there."""

    def training_step(self, batch, batch_idx):
        if not hasattr(self, "extra"):
            self.extra = nn.Parameter(torch.ones(1))
        return (self.w * self.extra - batch[0]).square().mean()


def test_a_parameter_that_an_earlier_step_has_added_is_refused(executor):
    error = ClientError if executor == "sequential" else ValueError
    with pytest.raises(error, match="AddsOnce replaces, adds or removes the parameters extra, wh"):
        fitted(AddsOnce(), points([1.0], [2.0]), executor=executor)


class Assigns(Point):
    def training_step(self, batch, batch_idx):
        self.w.data = torch.tensor([3.0], dtype=self.w.dtype)
        return super().training_step(batch, batch_idx)


class Copies(Point):
    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            self.w.copy_(torch.tensor([3.0]))
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("factory", [Assigns, Copies])
def test_a_step_that_sets_the_weights_has_those_of_lightning(both, factory):
    data = TensorDataset(torch.tensor([[1.0], [1.0]]))
    done = both(factory, data, steps=2, rounds=1, val=data)  # 3 - 0.5 (3 - 1) = 2, in each step
    done.same_weights()
    assert done.fed_module.w.item() == 2.0


def test_weights_that_a_local_optimizer_cannot_reach_are_refused(executor):
    given = {"executor": executor, "local_optimizer": LocalSGD(lr=0.5)}
    run = fitted(Copies(), points([1.0], [1.0]), **given)
    assert run.module.w.item() == 2.0
    words = (
        r"Assigns gives the parameters w another place in memory \(param.data = …\)"
        if executor == "sequential"
        else "Assigns cannot be vectorised"
    )
    with pytest.raises((ClientError, ValueError), match=words):
        fitted(Assigns(), points([1.0], [1.0]), **given)


class Thaws(Point):
    def __init__(self, start: float = 0.0) -> None:
        super().__init__(start)
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)

    def training_step(self, batch, batch_idx):
        self.frozen.requires_grad_(True)
        return (self.w * self.frozen - batch[0]).square().mean()


class Freezes(Point):
    def training_step(self, batch, batch_idx):
        self.w.requires_grad_(False)
        return (self.w - batch[0]).square().mean()


class Unfreezing(Callback):
    """Trains the bias from round 2 on."""

    def setup(self, trainer, module, stage):
        module.net.bias.requires_grad_(False)

    def on_round_end(self, trainer, module):
        module.net.bias.requires_grad_(trainer.version >= 2)


@pytest.mark.parametrize(("factory", "name"), [(Thaws, "frozen"), (Freezes, "w")])
@pytest.mark.parametrize("optimizer", [None, LocalSGD(lr=0.5)], ids=["own", "local"])
def test_what_is_trained_does_not_change_within_a_step(factory, name, optimizer):
    words = f"requires_grad of the parameters {name} of {factory.__name__} has changed during the"
    with pytest.raises(ClientError, match=words):
        fitted(factory(), points([1.0], [2.0]), executor="sequential", local_optimizer=optimizer)


def test_what_is_trained_does_not_change_between_rounds(executor):
    error = ClientError if executor == "sequential" else ValueError
    with pytest.raises(error, match=r"of the parameters net\.bias of Boring has changed during th"):
        fitted(Boring(), classes(), executor=executor, callbacks=[Unfreezing()])


class Grows(Point):
    def __init__(self, start: float = 0.0) -> None:
        super().__init__(start)
        self.register_buffer("queue", torch.zeros(1))

    def training_step(self, batch, batch_idx):
        self.queue = torch.cat([self.queue, self.queue[:1]])
        return super().training_step(batch, batch_idx)


def test_a_buffer_that_grows_is_named():
    words = (
        r"the buffer 'queue' of Grows has got the shape \(\d,\) in training_step, and had \(1,\)"
    )
    with pytest.raises(ClientError, match=words):
        fitted(Grows(), points([1.0], [2.0]), executor="sequential")


@pytest.mark.parametrize("within", [torch.no_grad, torch.inference_mode, None])
def test_a_loss_without_a_gradient_is_named(executor, within):
    class Cut(Point):
        def training_step(self, batch, batch_idx):
            if within is None:
                return super().training_step(batch, batch_idx).detach()
            with within():
                return super().training_step(batch, batch_idx)

    error = ClientError if executor == "sequential" else ValueError
    with pytest.raises(error, match=r"the loss of Cut has no gradient \(element 0 of tensors"):
        fitted(Cut(), points([1.0], [2.0]), executor=executor)


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
        with pytest.raises(
            ValueError, match=rf"an optimizer in which {words} are not the module's"
        ):
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


def test_sparse_gradients_in_a_stack_are_refused_in_a_sentence():
    data = FederatedDataModule.from_client_datasets([words_data()] * 2)
    with pytest.raises(ValueError, match="Words cannot be vectorised") as caught:
        fitted(Words(), data, executor="vectorized")
    assert len(str(caught.value)) < 300


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
