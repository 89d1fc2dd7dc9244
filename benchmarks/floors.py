"""Code that one would write by hand in plain PyTorch, timed next to ours."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.clock import now
from benchmarks.workloads import Workload

LR = 0.1


class Floor:
    """The workload's rounds of FedAvg by hand, on data that are floats and normalised already.

    Args:
        workload: What to run.
        device: Where.
    """

    def __init__(self, workload: Workload, device: str) -> None:
        self.workload = workload
        self.net = workload.module().net.to(device)
        data = workload.data()
        everything = torch.arange(len(data.train_data))
        self.x, self.y = (part.to(device) for part in data.train_data.gather(everything))
        self.rows = torch.from_numpy(data.partition.rows).reshape(workload.clients, -1).to(device)
        self.start = [param.detach().clone() for param in self.net.parameters()]
        self.device = device

    def module_loop(self, rounds: int) -> float:
        """Client after client: a module, its loss, ``backward``, ``SGD.step``; updates a second."""
        load, net = self.workload, self.net
        optimizer = torch.optim.SGD(net.parameters(), lr=LR)
        begun = now(self.device)
        for _ in range(rounds):
            total = [torch.zeros_like(param) for param in self.start]
            for client in torch.randperm(load.clients)[: load.per_round].tolist():
                with torch.no_grad():
                    for param, value in zip(net.parameters(), self.start, strict=True):
                        param.copy_(value)
                for rows in self._batches(self.rows[client]):
                    optimizer.zero_grad()
                    loss = functional.cross_entropy(net(self.x[rows]), self.y[rows])
                    loss.backward()
                    optimizer.step()
                with torch.no_grad():
                    for sum_, param, value in zip(total, net.parameters(), self.start, strict=True):
                        sum_ += param - value
        return rounds * load.per_round / (now(self.device) - begun)

    def closed_form(self, rounds: int) -> float:
        """All clients of a round as one batched product, the gradient by hand; updates a second.

        Only for logistic regression: ``W <- W - lr * x' (softmax(x W + b) - y) / batch``, with
        the weights in the layout that is the fastest one here.
        """
        load = self.workload
        weight, bias = self.start  # [10, 784], [10]
        x, n = self.x.flatten(1), load.per_round
        begun = now(self.device)
        for _ in range(rounds):
            clients = torch.randperm(load.clients)[:n].to(self.device)
            order = torch.rand(n, load.examples, device=self.device).argsort(dim=1)
            rows = self.rows[clients].gather(1, order)
            w = weight.expand(n, -1, -1).clone()  # [n, 10, 784]
            b = bias[None, :, None].expand(n, -1, 1).clone()
            for batch in self._batches(rows):
                images = x.index_select(0, batch.reshape(-1)).view(n, -1, x.shape[1])
                labels = self.y.index_select(0, batch.reshape(-1)).view(n, 1, -1)
                p = torch.baddbmm(b, w, images.transpose(1, 2)).softmax(dim=1)  # [n, 10, b]
                p.scatter_add_(1, labels, torch.full_like(labels, -1, dtype=p.dtype))
                p.mul_(LR / batch.shape[-1])
                w.baddbmm_(p, images, alpha=-1)
                b.sub_(p.sum(dim=2, keepdim=True))
            (w - weight).mean(dim=0), (b[..., 0] - bias).mean(dim=0)
        return rounds * n / (now(self.device) - begun)

    def _batches(self, rows: Tensor) -> list[Tensor]:
        """K batches of rows ``[…, n_i]``, over and over again, in a random order."""
        load, size = self.workload, rows.shape[-1]
        batch = min(load.batch_size, size)
        order = torch.randperm(size, device=rows.device)
        place = torch.arange(load.steps * batch, device=rows.device) % size
        return list(rows[..., order[place]].split(batch, dim=-1))
