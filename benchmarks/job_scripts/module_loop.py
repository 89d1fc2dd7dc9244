"""The job by hand, client after client: the module's steps, torch's SGD and a metric.

FEDLIGHT_DATA=FOLDER python -m benchmarks.job_scripts.module_loop
"""

from __future__ import annotations

import torch
from lightning import LightningModule, seed_everything
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy

from benchmarks.job_scripts.marks import BATCH, CLIENTS, LR, PER_ROUND, ROUNDS, STEPS, Marks
from benchmarks.job_scripts.mnist import mnist

marks = Marks()


class LogisticRegression(LightningModule):
    """One dense layer, and its accuracy on the test images."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(28 * 28, 10)
        self.val_acc = MulticlassAccuracy(10, average="micro")

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.dense(x.flatten(1))
        return scores

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return functional.cross_entropy(self(x), y)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        scores = self(x)
        self.val_acc.update(scores, y)
        return functional.cross_entropy(scores, y)


def main() -> None:
    marks.end_of("imports")
    seed_everything(0, verbose=False)
    x, y, x_test, y_test = mnist()
    shards = torch.randperm(len(x)).view(CLIENTS, -1)
    marks.end_of("data")
    module = LogisticRegression()
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    params = list(module.parameters())
    server = [param.detach().clone() for param in params]
    updates, accuracy = 0, 0.0
    for round_ in range(ROUNDS):
        module.train()
        total = [torch.zeros_like(param) for param in server]
        for client in torch.randperm(CLIENTS)[:PER_ROUND].tolist():
            with torch.no_grad():
                for param, value in zip(params, server, strict=True):
                    param.copy_(value)
            rows = shards[client][torch.randperm(shards.shape[1])]
            for i, batch in enumerate(rows[: STEPS * BATCH].split(BATCH)):
                optimizer.zero_grad()
                module.training_step((x[batch], y[batch]), i).backward()
                optimizer.step()
            with torch.no_grad():
                for sum_, param in zip(total, params, strict=True):
                    sum_ += param
            updates += 1
        server = [sum_ / PER_ROUND for sum_ in total]
        with torch.no_grad():
            for param, value in zip(params, server, strict=True):
                param.copy_(value)
        marks.end_of("training" if round_ else "first round")
        module.eval()
        module.val_acc.reset()
        loss = 0.0
        with torch.no_grad():
            tests = zip(x_test.split(1000), y_test.split(1000), strict=True)
            for i, test in enumerate(tests):
                loss += module.validation_step(test, i).item() * len(test[1])
        accuracy = module.val_acc.compute().item()
        marks.end_of("evaluation")
    marks.report(updates, accuracy)


if __name__ == "__main__":
    main()
