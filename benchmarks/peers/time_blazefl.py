"""BlazeFL (package ``blazefl[contrib,reproducibility]``, run with 2.0.3).

    pip install . "blazefl[contrib,reproducibility]==2.0.3"        # in an environment of its own
    OMP_NUM_THREADS=1 python benchmarks/peers/time_blazefl.py [--turns N]

BlazeFL declares Python 3.12 or later. It was run on 3.11, where ``--ignore-requires-python`` is
needed; 3.0.0, which needs Python 3.14, was not run. Timed are its ``FedAvgBaseServerHandler`` and
``FedAvgBaseClientTrainer``, which trains one client after another, in the loop of its quick start.
Threads, which it recommends, speed it up on several cores without the interpreter's lock. The
batches come from tensors, not from a ``DataLoader``. The progress bar is off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["TQDM_DISABLE"] = "1"  # read on import

try:
    from blazefl.contrib import FedAvgBaseClientTrainer, FedAvgBaseServerHandler

    from benchmarks.peers.common import Shard, compare, rate
except ImportError as error:
    wanted = 'pip install . "blazefl[contrib,reproducibility]==2.0.3"'
    sys.exit(f"{error}. Install it in an environment of its own: {wanted}")

import torch
from torch import nn

from benchmarks.clock import now
from benchmarks.floors import LR
from benchmarks.workloads import A

ROUNDS = 30


class Models:
    """What makes the network of the server and that of the clients."""

    def select_model(self, model_name: str) -> nn.Module:
        return A.module().net


class Batches:
    """The clients' data: the batches of so many local steps, in a random order."""

    def __init__(self, shards: list[Shard]) -> None:
        self.shards = shards

    def get_dataloader(
        self, type_: str, cid: int, batch_size: int, generator: torch.Generator
    ) -> list[Shard]:
        x, y = self.shards[cid]
        order = torch.randperm(len(y), generator=generator)[: A.steps * batch_size]
        return [(x[rows], y[rows]) for rows in order.split(batch_size)]


def make(shards: list[Shard]) -> Callable[[], float]:
    shared = {
        "model_selector": Models(),
        "model_name": "linear",
        "dataset": Batches(shards),
        "num_clients": A.clients,
        "device": "cpu",
        "batch_size": A.batch_size,
        "seed": 0,
    }
    trainer = FedAvgBaseClientTrainer(**shared, epochs=1, lr=LR)

    def run() -> float:
        ratio = A.per_round / A.clients
        server = FedAvgBaseServerHandler(**shared, global_round=ROUNDS, sample_ratio=ratio)
        times = []
        while not server.if_stop():
            trainer.local_process(server.downlink_package(), server.sample_clients())
            for package in trainer.uplink_package():
                server.load(package)
            times.append(now())
        return rate(times)

    return run


if __name__ == "__main__":
    compare("blazefl", make)
