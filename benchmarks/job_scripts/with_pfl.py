"""The job with pfl-research; needs the package `pfl`.

FEDLIGHT_DATA=FOLDER python -m benchmarks.job_scripts.with_pfl
"""

from __future__ import annotations

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.job_scripts.marks import BATCH, CLIENTS, LR, PER_ROUND, ROUNDS, STEPS, Marks
from benchmarks.job_scripts.mnist import evaluated, mnist

marks = Marks()


class Scored(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.net(x)
        return scores

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, object]:
        return {}


class Watch(TrainingProcessCallback):
    """Evaluates after each round, and tells the parts of the job apart."""

    def __init__(self, module: nn.Module, test: list[Tensor]) -> None:
        self.module, self.test = module, test
        self.part, self.rounds, self.accuracy = "first round", 0, 0.0

    def after_central_iteration(self, *args: object, **kwargs: object) -> tuple[bool, Metrics]:
        marks.end_of(self.part)
        self.part = "training"
        self.rounds += 1
        self.accuracy = evaluated(self.module, *self.test)
        marks.end_of("evaluation")
        return False, Metrics()


def main() -> None:
    marks.end_of("imports")
    torch.manual_seed(0)
    x, y, *test = mnist()
    shards = torch.randperm(len(x)).view(CLIENTS, -1)
    clients = [Dataset(raw_data=(x[rows], y[rows])) for rows in shards]
    marks.end_of("data")
    module = Scored()
    watch = Watch(module, test)
    data = FederatedDataset(clients.__getitem__, get_user_sampler("random", range(CLIENTS)))
    FederatedAveraging().run(
        NNAlgorithmParams(ROUNDS, ROUNDS + 1, train_cohort_size=PER_ROUND, val_cohort_size=None),
        SimulatedBackend(training_data=data, val_data=data),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(
            local_batch_size=BATCH,
            local_num_epochs=None,
            local_learning_rate=LR,
            local_num_steps=STEPS,
        ),
        callbacks=[watch],
        send_metrics_to_platform=False,
    )
    marks.end_of("training")
    marks.report(watch.rounds * PER_ROUND, watch.accuracy)


if __name__ == "__main__":
    main()
