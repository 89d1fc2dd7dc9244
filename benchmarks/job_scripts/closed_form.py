"""The job by hand, without autograd: the clients of a round as one batched product.

    FEDLIGHT_DATA=FOLDER python -m benchmarks.job_scripts.closed_form

Only for logistic regression: `W <- W - lr (softmax(x W + b) - y)' x / batch`.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from benchmarks.job_scripts.marks import BATCH, CLIENTS, LR, PER_ROUND, ROUNDS, STEPS, Marks
from benchmarks.job_scripts.mnist import mnist

marks = Marks()


def main() -> None:
    marks.end_of("imports")
    torch.manual_seed(0)
    x, y, x_test, y_test = mnist()
    x, x_test = x.flatten(1), x_test.flatten(1)
    shards = torch.randperm(len(x)).view(CLIENTS, -1)
    marks.end_of("data")
    layer = torch.nn.Linear(28 * 28, 10)  # for its initial weights
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    updates, accuracy, n = 0, 0.0, PER_ROUND
    for round_ in range(ROUNDS):
        rows = shards[torch.randperm(CLIENTS)[:n]]
        rows = rows.gather(1, torch.rand(n, rows.shape[1]).argsort(dim=1))
        w = weight.expand(n, -1, -1).clone()  # [n, 10, 784]
        b = bias[None, :, None].expand(n, -1, 1).clone()
        for batch in rows[:, : STEPS * BATCH].split(BATCH, dim=1):
            images = x.index_select(0, batch.reshape(-1)).view(n, BATCH, -1)
            labels = y.index_select(0, batch.reshape(-1)).view(n, 1, BATCH)
            p = torch.baddbmm(b, w, images.transpose(1, 2)).softmax(dim=1)  # [n, 10, b]
            p.scatter_add_(1, labels, torch.full_like(labels, -1, dtype=p.dtype))
            p.mul_(LR / BATCH)
            w.baddbmm_(p, images, alpha=-1)
            b.sub_(p.sum(dim=2, keepdim=True))
        weight, bias = w.mean(dim=0), b.mean(dim=0)[:, 0]
        updates += n
        marks.end_of("training" if round_ else "first round")
        scores = functional.linear(x_test, weight, bias)
        functional.cross_entropy(scores, y_test).item()
        accuracy = (scores.argmax(1) == y_test).float().mean().item()
        marks.end_of("evaluation")
    marks.report(updates, accuracy)


if __name__ == "__main__":
    main()
