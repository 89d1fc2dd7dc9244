"""The job with BlazeFL; needs the package `blazefl[contrib,reproducibility]`.

    FEDLIGHT_DATA=FOLDER python -m benchmarks.job_scripts.with_blazefl

Its trainer for one client after another, with batches that are cut from tensors.
"""

from __future__ import annotations

import os

os.environ["TQDM_DISABLE"] = "1"  # read on import

import torch
from blazefl.contrib import FedAvgBaseClientTrainer, FedAvgBaseServerHandler
from torch import Tensor, nn

from benchmarks.job_scripts.marks import BATCH, CLIENTS, LR, PER_ROUND, ROUNDS, STEPS, Marks
from benchmarks.job_scripts.mnist import evaluated, mnist

marks = Marks()


class Models:
    """Makes the network of the server and that of the clients."""

    def select_model(self, model_name: str) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))


class Batches:
    """The clients' data: the batches of so many local steps, in a random order."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self.shards = torch.randperm(len(x)).view(CLIENTS, -1)

    def get_dataloader(
        self, type_: str, cid: int, batch_size: int, generator: torch.Generator
    ) -> list[tuple[Tensor, Tensor]]:
        rows = self.shards[cid][torch.randperm(self.shards.shape[1], generator=generator)]
        return [(self.x[r], self.y[r]) for r in rows[: STEPS * batch_size].split(batch_size)]


def main() -> None:
    marks.end_of("imports")
    torch.manual_seed(0)
    x, y, *test = mnist()
    marks.end_of("data")
    shared = {
        "model_selector": Models(),
        "model_name": "linear",
        "dataset": Batches(x, y),
        "num_clients": CLIENTS,
        "device": "cpu",
        "batch_size": BATCH,
        "seed": 0,
    }
    trainer = FedAvgBaseClientTrainer(**shared, epochs=1, lr=LR)
    share = PER_ROUND / CLIENTS
    server = FedAvgBaseServerHandler(**shared, global_round=ROUNDS, sample_ratio=share)
    updates, accuracy, part = 0, 0.0, "first round"
    while not server.if_stop():
        trainer.local_process(server.downlink_package(), server.sample_clients())
        for package in trainer.uplink_package():
            server.load(package)
            updates += 1
        marks.end_of(part)
        part = "training"
        accuracy = evaluated(server.model, *test)
        marks.end_of("evaluation")
    marks.report(updates, accuracy)


if __name__ == "__main__":
    main()
