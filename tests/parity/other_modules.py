"""Modules of other packages, unchanged, and the table of what they do here.

``python -m tests.parity.other_modules`` prints ``docs/other-modules.md``; packages that are not
installed keep a row that says so.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from typing import Any
from unittest.mock import patch

import lightning
import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule
from fedlight._module.rng import seed_all
from fedlight.arrivals import SynchronousArrivals
from fedlight.executors._random.streams import Streams, step_keys
from fedlight.local_optimizers import LocalAdam, LocalOptimizer, LocalSGD
from fedlight.randomness import Concern, derived_seed
from fedlight.types import Task
from tests.boring import trainer
from tests.parity.conftest import Both, run_both

SIZE = 16  # examples, four batches


@dataclass(frozen=True)
class Case:
    """A module of another package, and data for it.

    Attributes:
        package: The distribution that the module comes from.
        what: The module, for the table.
        make: Returns a factory of the module, its data and perhaps a collate function.
        needs: What has to be importable, beside nothing for Lightning itself.
        local: The local optimizer with the numbers of the module's own.
        own: Whether a local run with the module's own optimizer equals an epoch of Lightning.
        stacks: Whether "vectorized" must take it; if not, a refusal has to give a reason.
        precision: "64-true", or "32-true" for batches whose tensors nobody converts.
        around: A context in which the module is trained.
        note: A remark for the table.
    """

    package: str
    what: str
    make: Callable[[], tuple[Any, ...]]
    needs: tuple[str, ...] = ()
    local: LocalOptimizer | None = None
    own: bool = True
    stacks: bool = False
    precision: str = "64-true"
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    note: str = ""

    @property
    def id(self) -> str:
        """Package and module."""
        return f"{self.package}: {self.what}"

    def missing(self) -> str:
        """The reason why the case cannot run here, or an empty string."""
        for name in self.needs:
            try:
                importlib.import_module(name)
            except Exception as error:  # a package that is there may still fail to import
                return f"{name} cannot be imported ({type(error).__name__}: {error})"
        return ""


class Plain(LightningModule):
    """A network and a loss, as every user writes it."""

    def __init__(self, net: nn.Module, loss: Any = functional.cross_entropy) -> None:
        super().__init__()
        self.net, self.loss = net, loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        *inputs, y = batch
        loss: Tensor = self.loss(self.net(*inputs), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.05)


class Text(LightningModule):
    """A text classifier of transformers, which returns the loss itself."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if not isinstance(batch, dict):
            tokens, *mask, labels = batch
            batch = {"input_ids": tokens, "labels": labels}
            batch |= {"attention_mask": mask[0]} if mask else {}
        loss: Tensor = self.net(**batch).loss
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.05)


SGD = LocalSGD(lr=0.05)


def random() -> torch.Generator:
    """The same draws at each call."""
    return torch.Generator().manual_seed(0)


def pictures(channels: int = 3, side: int = 32) -> TensorDataset:
    """Noise, of one of three classes."""
    x = torch.randn(SIZE, channels, side, side, generator=random())
    return TensorDataset(x, torch.arange(SIZE) % 3)


def vectors() -> Any:
    """Lightning's random data for its demos."""
    from lightning.pytorch.demos.boring_classes import RandomDataset

    torch.manual_seed(0)
    return RandomDataset(32, SIZE)


def words(length: int = 6, words: int = 30) -> tuple[Tensor, Tensor]:
    """Token numbers and a class that depends on them."""
    tokens = torch.randint(1, words, (SIZE, length), generator=random())
    return tokens, (tokens.sum(1) % 2)


def boring() -> tuple[Any, ...]:
    from lightning.pytorch.demos.boring_classes import BoringModel

    return BoringModel, vectors()


def demo() -> tuple[Any, ...]:
    from lightning.pytorch.demos.boring_classes import DemoModel

    return DemoModel, vectors()


def demo_net() -> tuple[Any, ...]:
    from lightning.pytorch.demos.boring_classes import Net

    return lambda: Plain(Net(), functional.nll_loss), pictures(1, 28)


def demo_transformer() -> tuple[Any, ...]:
    from lightning.pytorch.demos.transformer import LightningTransformer

    tokens, _ = words()
    return lambda: LightningTransformer(30), TensorDataset(tokens, tokens.roll(-1, 1))


@contextmanager
def offline() -> Iterator[None]:
    """The demos' ``prepare_data`` fetches a text that nobody reads here."""
    with ExitStack() as stack:
        for part in ("lstm", "transformer"):
            stack.enter_context(patch(f"lightning.pytorch.demos.{part}.WikiText2"))
        yield


def timm_model(name: str, **options: Any) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[Any, ...]:
        import timm

        return lambda: Plain(timm.create_model(name, num_classes=3, **options)), pictures()

    return make


def torchvision_resnet() -> tuple[Any, ...]:
    from torchvision.models.resnet import BasicBlock, ResNet

    return lambda: Plain(ResNet(BasicBlock, [1, 1, 1, 1], num_classes=3)), pictures()


def vit() -> tuple[Any, ...]:
    from vit_pytorch import SimpleViT

    options = {"image_size": 32, "patch_size": 8, "dim": 16, "depth": 2, "heads": 2, "mlp_dim": 32}
    return lambda: Plain(SimpleViT(num_classes=3, **options)), pictures()


def tiny_bert(**options: Any) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    room = {"vocab_size": 30, "intermediate_size": 32, "max_position_embeddings": 16}
    net: nn.Module = BertForSequenceClassification(BertConfig(**sizes, **room, **options))
    return net


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert_on_dicts() -> tuple[Any, ...]:
    tokens, labels = words()
    lengths = (torch.arange(SIZE) % 4 + 3).tolist()
    texts = [
        {"input_ids": row[:length], "labels": label}
        for row, length, label in zip(tokens, lengths, labels, strict=True)
    ]

    def padded(examples: list[Any]) -> dict[str, Tensor]:
        rows = nn.utils.rnn.pad_sequence([e["input_ids"] for e in examples], batch_first=True)
        labels = torch.stack([e["labels"] for e in examples])
        return {"input_ids": rows, "attention_mask": (rows > 0).long(), "labels": labels}

    return lambda: Text(tiny_bert()), texts, padded


def bert_on_tuples(mask: bool = True) -> tuple[Any, ...]:
    tokens, labels = words()
    masks = [torch.ones_like(tokens)] if mask else []
    return lambda: Text(tiny_bert(**NO_DROPOUT)), TensorDataset(tokens, *masks, labels)


def lora() -> tuple[Any, ...]:
    from peft import LoraConfig, get_peft_model

    def factory() -> LightningModule:
        adapters = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
        return Text(get_peft_model(tiny_bert(**NO_DROPOUT), adapters))

    return factory, bert_on_tuples(mask=False)[1]


def forecasting(model: str, **options: Any) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[Any, ...]:
        import pandas
        import pytorch_forecasting as pf

        steps = torch.arange(SIZE + 11)
        frame = pandas.DataFrame(
            {"time": steps.numpy(), "y": torch.sin(steps / 3).numpy(), "series": "a"}
        )
        data = pf.TimeSeriesDataSet(
            frame,
            time_idx="time",
            target="y",
            group_ids=["series"],
            max_encoder_length=8,
            min_encoder_length=8,
            max_prediction_length=4,
            time_varying_unknown_reals=["y"],
            target_normalizer=pf.EncoderNormalizer(),
        )
        kind = getattr(pf, model)
        given = {"learning_rate": 0.01, "log_interval": -1, "optimizer": "adam", **options}
        return lambda: kind.from_dataset(data, **given), data, data._collate_fn

    return make


def graphs() -> tuple[Any, ...]:
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GCNConv, global_mean_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = GCNConv(4, 8), nn.Linear(8, 3)

        def forward(self, batch: Any) -> Tensor:
            x = self.conv(batch.x, batch.edge_index).relu()
            scores: Tensor = self.head(global_mean_pool(x, batch.batch))
            return scores

    class Graphs(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return functional.cross_entropy(self.net(batch), batch.y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    draws = random()
    data = [
        Data(x=torch.randn(4, 4, generator=draws), edge_index=ring, y=torch.tensor([i % 3]))
        for i in range(SIZE)
    ]
    return Graphs, data, Batch.from_data_list


def triplets() -> tuple[Any, ...]:
    from pytorch_metric_learning.losses import TripletMarginLoss

    x, _ = pictures(1, 4).tensors
    data = TensorDataset(x.flatten(1), torch.arange(SIZE) // 3 % 2)  # both classes in each share
    return lambda: Plain(nn.Linear(16, 4), TripletMarginLoss()), data


def gluonts_network() -> tuple[Any, ...]:
    from gluonts.torch.model.simple_feedforward.lightning_module import (
        SimpleFeedForwardLightningModule,
    )

    draws = random()
    data = [
        {
            "past_target": torch.randn(8, generator=draws),
            "past_observed_values": torch.ones(8),
            "future_target": torch.randn(4, generator=draws),
            "future_observed_values": torch.ones(4),
        }
        for _ in range(SIZE)
    ]
    sizes = {"prediction_length": 4, "context_length": 8, "hidden_dimensions": [8]}
    return lambda: SimpleFeedForwardLightningModule(sizes), data


def geo_task() -> tuple[Any, ...]:
    from torchgeo.trainers import ClassificationTask

    x, y = pictures().tensors
    data = [{"image": picture, "label": label} for picture, label in zip(x, y, strict=True)]
    options = {"model": "resnet10t", "weights": None, "in_channels": 3, "num_classes": 3}

    def factory() -> LightningModule:
        module: LightningModule = ClassificationTask(**options)
        vars(module)["configure_optimizers"] = lambda: torch.optim.SGD(module.parameters(), lr=0.05)
        return module

    return factory, data


def segmentation() -> tuple[Any, ...]:
    import segmentation_models_pytorch as smp

    x, _ = pictures().tensors
    masks = (x[:, 0] > 0).long()
    options = {"encoder_weights": None, "classes": 2, "encoder_depth": 3}
    options["decoder_channels"] = (16, 8, 8)
    return lambda: Plain(smp.Unet("resnet18", **options)), TensorDataset(x, masks)


class TwoHeads(nn.Module):
    """A shared layer with a head that classifies and a head that regresses."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.kind, self.size = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.shared(x).relu()
        return self.kind(x), self.size(x)


def both_losses(outputs: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    """The class is the whole part of the target, the size its rest."""
    kind, size = outputs
    return functional.cross_entropy(kind, y.long()) + functional.mse_loss(size[:, 0], y.frac())


def targets() -> TensorDataset:
    x = torch.randn(SIZE, 8, generator=random())
    return TensorDataset(x, x[:, 0].abs().clamp(max=2.9))


def regression() -> tuple[Any, ...]:
    x, y = targets().tensors
    return lambda: Plain(nn.Linear(8, 1), functional.mse_loss), TensorDataset(x, y[:, None])


def autoencoder() -> tuple[Any, ...]:
    x, _ = targets().tensors
    narrow = nn.Linear(8, 2), nn.Tanh(), nn.Linear(2, 8)
    weights = nn.Sequential(*narrow).state_dict()

    def factory() -> LightningModule:
        net = nn.Sequential(nn.Linear(8, 2), nn.Tanh(), nn.Linear(2, 8))
        net.load_state_dict(weights)
        return Plain(net, functional.mse_loss)

    return factory, TensorDataset(x, x)


def two_heads() -> tuple[Any, ...]:
    return lambda: Plain(TwoHeads(), both_losses), targets()


STEPLR = "its own `StepLR` steps with local steps here, with epochs in Lightning"
PLATEAU = "with `LocalAdam`: its `ReduceLROnPlateau` is refused, a local run has no `val_loss`"

CASES = [
    Case("lightning", "BoringModel", boring, local=LocalSGD(lr=0.1), own=False, note=STEPLR),
    Case("lightning", "DemoModel (Adam)", demo, local=LocalAdam(lr=0.02)),
    Case("lightning", "Net, convolutions and dropout", demo_net, local=SGD),
    Case(
        "lightning",
        "LightningTransformer",
        demo_transformer,
        local=LocalSGD(lr=0.1),
        around=offline,
    ),
    Case("torch", "regression", regression, local=SGD, stacks=True),
    Case("torch", "autoencoder", autoencoder, local=SGD, stacks=True),
    Case("torch", "two heads, two losses", two_heads, local=SGD, stacks=True),
    Case(
        "timm",
        "test_resnet (BatchNorm)",
        timm_model("test_resnet"),
        ("timm",),
        local=SGD,
        stacks=True,
    ),
    Case(
        "timm", "test_vit", timm_model("test_vit", img_size=32), ("timm",), local=SGD, stacks=True
    ),
    Case("timm", "test_efficientnet", timm_model("test_efficientnet"), ("timm",), local=SGD),
    Case("timm", "test_convnext", timm_model("test_convnext"), ("timm",), local=SGD),
    Case(
        "torchvision",
        "ResNet of four blocks",
        torchvision_resnet,
        ("torchvision",),
        local=SGD,
        stacks=True,
    ),
    Case("vit-pytorch", "SimpleViT", vit, ("vit_pytorch",), local=SGD),
    Case(
        "transformers",
        "BERT of two layers, dict batches padded by a collate function",
        bert_on_dicts,
        ("transformers",),
        local=SGD,
    ),
    Case(
        "transformers",
        "BERT of two layers, tuples with an attention mask",
        bert_on_tuples,
        ("transformers",),
        local=SGD,
        note="transformers asks whether a mask hides anything, which a stack cannot answer",
    ),
    Case(
        "transformers",
        "BERT of two layers, tuples without a mask",
        lambda: bert_on_tuples(mask=False),
        ("transformers",),
        local=SGD,
        stacks=True,
    ),
    Case(
        "peft",
        "LoRA on a frozen BERT, tuples without a mask",
        lora,
        ("peft", "transformers"),
        local=SGD,
        stacks=True,
    ),
    Case(
        "pytorch-forecasting",
        "NBeats",
        forecasting("NBeats", widths=[8, 8]),
        ("pytorch_forecasting",),
        local=LocalAdam(lr=0.01, weight_decay=0.001),
        own=False,
        note=PLATEAU,
    ),
    Case(
        "pytorch-forecasting",
        "TemporalFusionTransformer",
        forecasting("TemporalFusionTransformer", hidden_size=4),
        ("pytorch_forecasting",),
        local=LocalAdam(lr=0.01),
        own=False,
        note=PLATEAU,
    ),
    Case(
        "torch-geometric",
        "GCNConv on batches of graphs",
        graphs,
        ("torch_geometric",),
        local=SGD,
        precision="32-true",
    ),
    Case(
        "pytorch-metric-learning",
        "TripletMarginLoss",
        triplets,
        ("pytorch_metric_learning",),
        local=SGD,
    ),
    Case(
        "gluonts",
        "SimpleFeedForwardLightningModule",
        gluonts_network,
        ("gluonts.torch",),
        local=LocalAdam(lr=1e-3, weight_decay=1e-8),
    ),
    Case(
        "torchgeo",
        "ClassificationTask",
        geo_task,
        ("torchgeo.trainers",),
        local=SGD,
        note=PLATEAU.replace("LocalAdam", "SGD"),
    ),
    Case(
        "segmentation-models-pytorch",
        "Unet",
        segmentation,
        ("segmentation_models_pytorch",),
        local=SGD,
    ),
]


class SameDraws(lightning.Callback):
    """Gives a step of Lightning the random numbers of the first local run of `FedTrainer`."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            seed_all(derived_seed(0, Concern.TRAINING, 0, 0))
        task = Task(0, 0, 0.0, 1.0, num_steps=1, serial=0, visit=0)
        self._streams = Streams(stacked=False).at(step_keys(0, [task], [batch_idx]).item())
        self._streams.__enter__()

    def on_train_batch_end(self, *args: Any) -> None:
        self._streams.__exit__(None, None, None)


def compare(case: Case, executor: str, own: bool) -> Both:
    """One client with all data beside `lightning.Trainer`, an epoch of three batches.

    Args:
        case: The module.
        executor: The executor.
        own: Whether the client uses the module's own optimizer.
    """
    with case.around():
        factory, data, *collate = case.make()
        return run_both(
            factory,
            data,
            steps=3,
            rounds=1,
            executor=executor,
            local_optimizer=None if own else case.local,
            collate_fn=collate[0] if collate else None,
            precision=case.precision,
            lightning_callbacks=[SameDraws()],
        )


def federated(case: Case, executor: str, rounds: int = 3) -> Any:
    """The trainer after a fit of three clients that share the data."""
    with case.around():
        factory, data, *collate = case.make()
        torch.manual_seed(0)
        module = factory()
        shares = [torch.utils.data.Subset(data, range(i, SIZE, 3)) for i in range(3)]
        if type(data) is TensorDataset:
            shares = [TensorDataset(*(t[i::3] for t in data.tensors)) for i in range(3)]
        run = trainer(
            arrivals=SynchronousArrivals(local_steps=2),
            local_optimizer=case.local,
            executor=executor,
            max_rounds=rounds,
            precision=case.precision,
        )
        run.fit(
            module,
            FederatedDataModule.from_client_datasets(
                shares, batch_size=4, collate_fn=collate[0] if collate else None
            ),
        )
        return run


def tolerance(case: Case) -> float:
    """How far weights may differ."""
    return 1e-10 if case.precision == "64-true" else 1e-5


def version(package: str) -> str:
    """The installed version of a distribution, without the build."""
    try:
        return metadata.version(package).split("+")[0]
    except metadata.PackageNotFoundError:
        return "-"


def verdict(case: Case, executor: str) -> str:
    """A cell of the table: "equal", or why not."""
    cells = []
    for own in (
        (True, False)
        if executor == "sequential" and case.own and case.local
        else (case.own and executor == "sequential",)
    ):
        try:
            runs = compare(case, executor, own)
        except Exception as error:
            return f"no: {shortened(error)}"
        try:
            runs.same_weights(tolerance(case))
        except AssertionError:
            judged, ours = runs.module.state_dict(), runs.fed_module.state_dict()
            gap = max(float((judged[k] - ours[k]).abs().max()) for k in judged if judged[k].numel())
            cells.append(f"differs by {gap:.1g}")
        else:
            cells.append("equal")
    return " / ".join(dict.fromkeys(cells))


def shortened(error: Exception) -> str:
    """The first line of a message, at most 120 characters of it."""
    line = str(error).splitlines()[0].replace("|", "\\|")
    return line if len(line) <= 120 else f"{line[:117]}…"


def row(case: Case) -> str:
    """A line of the table."""
    reason = case.missing()
    if reason:
        return f"| {case.package} | - | {case.what} | not tried | | | {reason} |"
    try:
        auto = type(federated(case, "auto").run.executor).__name__.removesuffix("Executor").lower()
    except Exception as error:
        auto = f"fails: {shortened(error)}"
    cells = [verdict(case, executor) for executor in ("sequential", "vectorized")]
    where = f"{case.package} | {version(case.package)} | {case.what}"
    return f"| {where} | {auto} | {cells[0]} | {cells[1]} | {case.note} |"


HEAD = """# Modules of other packages

Each of these trains here unchanged. "Equal" means that one client with all data has the weights of
`lightning.Trainer` after the same batches in the same order, to 1e-10 in double precision (1e-5
where batches stay in single precision), with the module's own optimizer or, where the remark says
so or many clients are stacked, with the local optimizer of the same numbers. The column of "auto"
names the executor that three clients got. Where "vectorized" does not take a module, the cell gives
its refusal; "auto" and "sequential" take it.

`python -m tests.parity.other_modules` prints this page; `tests/parity/test_other_modules.py` tests
it wherever the packages are installed.

| package | version | module | "auto" takes | "sequential" | "vectorized" | remark |
|---|---|---|---|---|---|---|"""


def main() -> None:
    """Print the page."""
    warnings.simplefilter("ignore")
    print(HEAD)
    for case in CASES:
        print(row(case), flush=True)


if __name__ == "__main__":
    main()
