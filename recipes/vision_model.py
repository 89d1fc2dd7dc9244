"""Any model of timm, by its name, on an image data set divided among clients.

python recipes/vision_model.py
python recipes/vision_model.py --model resnet18 --dataset ylecun/mnist
python recipes/vision_model.py --model vit_tiny_patch16_224 --side 224
"""

import timm
from jsonargparse.typing import PositiveFloat, PositiveInt
from lightning import LightningModule, seed_everything
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate
from torchmetrics.classification import MulticlassAccuracy

from data_partitioners import DirichletPartitioner
from fedlight import FederatedDataModule, FedTrainer, cli
from fedlight.aggregators import FedBuff
from fedlight.arrivals import ContinuousArrivals, ExponentialDurations
from fedlight.local_optimizers import LocalSGD


class ImageClassifier(LightningModule):
    def __init__(self, network: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.network = network
        self.val_acc = MulticlassAccuracy(num_classes, average="micro")

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return cross_entropy(self.network(x), y)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        x, y = batch
        self.val_acc(self.network(x), y)
        self.log("val_acc", self.val_acc)


def main(
    model: str = "test_resnet",
    pretrained: bool = False,
    dataset: str = "mnist-mini",
    side: PositiveInt | None = None,
    num_clients: PositiveInt = 10,
    max_rounds: PositiveInt = 30,
    lr: PositiveFloat = 0.05,
) -> None:
    """Train a model of timm on images, which are resized if a side is given."""

    def resized(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return interpolate(batch[0], (side, side), mode="bilinear"), batch[1]

    seed_everything(0, verbose=False)
    data = FederatedDataModule(
        dataset,
        DirichletPartitioner(num_clients, 1.0, "label"),
        batch_size=32,
        transform=resized if side else None,
        eval_batch_size=100,
    )
    data.setup()
    sizes = {"in_chans": data.train_data[0][0].shape[0]}
    sizes["num_classes"] = num_classes = data.train_dataset.features["label"].num_classes
    module = ImageClassifier(timm.create_model(model, pretrained, **sizes), num_classes)
    trainer = FedTrainer(
        arrivals=ContinuousArrivals(ExponentialDurations(1.0)),
        aggregator=FedBuff(buffer_size=4),
        local_optimizer=LocalSGD(lr=lr),
        max_rounds=max_rounds,
        check_val_every_n_rounds=10,
        logger=False,
    )
    trainer.fit(module, data)
    print(f"{model}: val_acc {float(trainer.validate()[0]['val_acc']):.4f}")


if __name__ == "__main__":
    cli.run(main)
