import pytest
import torch
from lightning import Trainer
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, TensorDataset

from fedlight.models import CNN, CharLSTM, LogisticRegression


def images(*lead, channels=1, side=28):
    return torch.randn(*lead, channels, side, side, generator=torch.Generator().manual_seed(0))


CASES = {
    "logistic": (
        lambda: LogisticRegression(12, 10),
        lambda *lead: images(*lead, channels=3, side=2),
    ),
    "cnn": (lambda: CNN(image_size=16), lambda *lead: images(*lead, channels=3, side=16)),
    "lstm": (
        lambda: CharLSTM(num_classes=10, hidden_size=5),
        lambda *lead: torch.randint(10, (*lead, 7), generator=torch.Generator().manual_seed(0)),
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    torch.manual_seed(1)
    make, inputs = CASES[request.param]
    return make(), inputs


def labels(*lead):
    return torch.randint(10, lead, generator=torch.Generator().manual_seed(2))


def test_logistic_regression_worked_by_hand():
    model = LogisticRegression(2, 2)
    with torch.no_grad():
        model.dense.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        model.dense.bias.copy_(torch.tensor([0.0, 1.0]))
    logged = {}
    model.log = lambda name, value, **_: logged.update({name: value.item()})
    # scores (2, 2) and (0, 1): cross-entropies log 2 and log(1 + e^-1); argmax of a tie is class 0
    x, y = torch.tensor([[[2.0], [1.0]], [[0.0], [0.0]]]), torch.tensor([1, 1])
    loss = model.training_step((x, y), 0)
    assert loss.item() == pytest.approx((0.693147 + 0.313262) / 2, abs=1e-6)
    assert logged == {"train_loss": pytest.approx(loss.item()), "train_acc": 0.5}


def test_sizes():
    def count(model):
        return sum(p.numel() for p in model.parameters())

    assert count(LogisticRegression(784, 10)) == 784 * 10 + 10
    convolutions = (25 * 3 + 1) * 32 + (25 * 32 + 1) * 64
    dense = 513 * 128 + 129 * 10
    assert count(CNN()) == convolutions + 1601 * 512 + dense
    assert count(CNN(image_size=28)) == convolutions + 1025 * 512 + dense
    lstm = 4 * 100 * (8 + 100 + 2) + 4 * 100 * (100 + 100 + 2)
    assert count(CharLSTM()) == 80 * 8 + lstm + 101 * 80


@pytest.mark.parametrize("side", [16, 19, 28, 32])
def test_cnn_takes_images_of_its_size(side):
    model = CNN(num_classes=7, in_channels=2, image_size=side)
    assert model(images(3, channels=2, side=side)).shape == (3, 7)


def test_cnn_takes_the_largest_of_four_pixels():
    kinds = [type(layer).__name__ for layer in CNN().convolutions]
    assert kinds == ["Conv2d", "ReLU", "MaxPool2d"] * 2


def test_the_char_lstm_reads_from_left_to_right():
    model = CharLSTM()
    x = torch.arange(80).reshape(1, 80)
    first, last = x.clone(), x.clone()
    first[0, 0], last[0, -1] = 50, 50
    scores = model(x)
    assert (model(last) - scores).abs().max() > 100 * (model(first) - scores).abs().max()


# the CPU's fused LSTM has no rule for vmap: torch runs one client after another there
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_clients_run_as_one_batch(case):
    model, inputs = case
    model.double()
    x, y = inputs(4, 6), labels(4, 6)
    x = x.double() if x.is_floating_point() else x
    logged = {}

    def record(name, value, **_):
        logged[name] = value

    def loss_of(weights, batch):
        logged.clear()
        loss = functional_call(Step(model), weights, (batch,))
        return loss, dict(logged)

    class Step(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, batch):
            return self.module.training_step(batch, 0)

    model.log = record
    own = {f"module.{name}": p.detach() for name, p in model.named_parameters()}
    stacked = {name: torch.stack([p * (1 + k / 10) for k in range(4)]) for name, p in own.items()}
    grads, values = vmap(grad(loss_of, has_aux=True))(stacked, (x, y))
    assert values["train_loss"].shape == values["train_acc"].shape == (4,)
    for k in range(4):
        weights = {name: p[k] for name, p in stacked.items()}
        alone, value = grad(loss_of, has_aux=True)(weights, (x[k], y[k]))
        torch.testing.assert_close(
            value["train_loss"], values["train_loss"][k], rtol=1e-12, atol=1e-12
        )
        for name, gradient in alone.items():
            torch.testing.assert_close(gradient, grads[name][k], rtol=1e-11, atol=1e-12)


def test_lightning_trains_them(case, tmp_path):
    model, inputs = case
    loader = DataLoader(TensorDataset(inputs(8), labels(8)), batch_size=4)
    before = [p.detach().clone() for p in model.parameters()]
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(model, loader, loader)
    assert {"train_loss", "train_acc", "val_loss", "val_acc"} <= set(trainer.callback_metrics)
    assert all((p != q).any() for p, q in zip(model.parameters(), before, strict=True))
    (tested,) = trainer.test(model, loader, verbose=False)
    with torch.no_grad():
        right = (model(inputs(8)).argmax(1) == labels(8)).double().mean().item()
    assert tested["test_acc"] == pytest.approx(right)


def test_hyperparameters_are_saved():
    assert dict(LogisticRegression(3, 4, lr=0.5).hparams) == {
        "in_features": 3,
        "num_classes": 4,
        "lr": 0.5,
    }
    assert CNN(image_size=20).hparams.image_size == 20
    assert CharLSTM(hidden_size=3).hparams.hidden_size == 3


def test_the_learning_rate_reaches_the_optimizer():
    optimizer = LogisticRegression(3, 4, lr=0.25).configure_optimizers()
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert CharLSTM().lr == 0.8
    assert CNN().lr == 0.1


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: LogisticRegression(0, 10), "in_features"),
        (lambda: LogisticRegression(4, 1), "num_classes"),
        (lambda: LogisticRegression(4, 2, lr=0), "lr"),
        (lambda: CNN(image_size=15), "image_size"),
        (lambda: CNN(in_channels=0), "in_channels"),
        (lambda: CharLSTM(hidden_size=0), "hidden_size"),
        (lambda: CharLSTM(num_layers=0), "num_layers"),
        (lambda: CharLSTM(embedding_dim=-1), "embedding_dim"),
    ],
)
def test_sizes_out_of_range(make, argument):
    with pytest.raises(ValueError, match=f"{argument} must be"):
        make()
