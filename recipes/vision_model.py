"""Any model of timm, by its name, on an image data set divided among clients.

python recipes/vision_model.py --model vit_tiny_patch16_224 --side 224 --dataset ylecun/mnist
"""

from fedlight import cli

cli.help_first(__name__, __file__)

from jsonargparse.typing import PositiveInt
from lightning import seed_everything
from torch import Tensor, nn
from torch.nn.functional import interpolate

from data_partitioners import DirichletPartitioner
from fedlight import FederatedDataModule, FedTrainer
from fedlight.aggregators import FedBuff
from fedlight.arrivals import ContinuousArrivals, ExponentialDurations
from fedlight.local_optimizers import LocalSGD
from fedlight.models import Classifier


class ImageClassifier(Classifier):
    def __init__(self, network: nn.Module, num_classes: int) -> None:
        super().__init__(num_classes, lr=0.05)
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def main(
    model: str = "test_resnet",
    pretrained: bool = False,
    dataset: str = "mnist-mini",
    side: PositiveInt | None = None,
    num_clients: PositiveInt = 10,
    max_rounds: PositiveInt = 30,
    lr: cli.PositiveNumber = 0.05,
) -> None:
    """Train a model of timm on images.

    Args:
        model: Its name in timm.
        pretrained: Whether to start from timm's weights, which are downloaded.
        dataset: A hub id, a folder with the same files, or "mnist-mini".
        side: Pixels to which both sides of the images are resized; null leaves them as they are.
        num_clients: Clients, among whom the images are divided by Dir(1) over the labels.
        max_rounds: Server updates.
        lr: Local learning rate.
    """
    import timm

    def resized(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return interpolate(batch[0], (side, side), mode="bilinear"), batch[1]

    if not timm.is_model(model):
        raise ValueError(f"model must be one of timm.list_models(), got {model!r}")
    seed_everything(0, verbose=False)
    split, change = DirichletPartitioner(num_clients, 1.0, "label"), resized if side else None
    sizes = {"batch_size": 32, "eval_batch_size": 100}
    data = FederatedDataModule(dataset, split, transform=change, **sizes)
    data.setup()
    shape = {"in_chans": data.train_data[0][0].shape[0]}
    shape["num_classes"] = num_classes = data.train_dataset.features["label"].num_classes
    module = ImageClassifier(timm.create_model(model, pretrained, **shape), num_classes)
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
