"""pfl-research, Apple's simulator (package ``pfl``, run with 0.6.0).

    pip install . pfl==0.6.0        # in an environment of its own
    OMP_NUM_THREADS=1 python benchmarks/peers/time_pfl.py [--turns N]

Timed is ``FederatedAveraging.run`` over a ``SimulatedBackend`` and a ``PyTorchModel``, in one
process. Each client is one ``Dataset`` of tensors that is made once, so that pfl keeps its batches,
cut once. pfl always evaluates in the first round; that round is within the warm-up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

try:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    from benchmarks.peers.common import Shard, compare, rate
except ImportError as error:
    sys.exit(f"{error}. Install it in an environment of its own: pip install . pfl==0.6.0")

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.clock import now
from benchmarks.floors import LR
from benchmarks.workloads import A, Plain

ROUNDS = 60


class Scored(Plain):
    """The network with the two methods that pfl asks for."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(x, y).item() * len(x), len(x))}


class Stopwatch(TrainingProcessCallback):
    def __init__(self) -> None:
        self.times: list[float] = []

    def after_central_iteration(self, *args: object, **kwargs: object) -> tuple[bool, Metrics]:
        self.times.append(now())
        return False, Metrics()


def make(shards: list[Shard]) -> Callable[[], float]:
    clients = [Dataset(raw_data=shard) for shard in shards]
    sampler = get_user_sampler("random", range(len(clients)))
    data = FederatedDataset(clients.__getitem__, sampler)
    training = NNTrainHyperParams(
        local_batch_size=A.batch_size,
        local_num_epochs=None,
        local_learning_rate=LR,
        local_num_steps=A.steps,
    )
    rounds = NNAlgorithmParams(ROUNDS, ROUNDS, train_cohort_size=A.per_round, val_cohort_size=None)

    def run() -> float:
        module, watch = Scored(A.module().net), Stopwatch()
        server = torch.optim.SGD(module.parameters(), lr=1.0)
        FederatedAveraging().run(
            rounds,
            SimulatedBackend(training_data=data, val_data=data),
            PyTorchModel(module, torch.optim.SGD, server),
            training,
            callbacks=[watch],
            send_metrics_to_platform=False,
        )
        return rate(watch.times)

    return run


if __name__ == "__main__":
    compare("pfl", make)
