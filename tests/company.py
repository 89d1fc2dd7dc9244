"""Run many small federations with stacks of several sizes, and compare their fingerprints.

Who is in a client's stack, and at which place, must not change a bit. A case is a module, its
input width, its classes, the examples of a batch, a local optimizer and a precision. It is run with
stacks of up to 1, 2, 3, 7, 16 and 256 clients, and once more with another order of the clients in a
stack; all fingerprints must be equal.

    python -m tests.company --cases 200     # a random part of the product, by --seed
    python -m tests.company --all           # all 40,000: days

The exit status is 0 if all are equal, and 1 if not. ``MKL_CBWR``, ``ATEN_CPU_CAPABILITY`` and
``OMP_NUM_THREADS`` are taken from the environment.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from typing import NamedTuple

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule, FedTrainer
from fedlight.aggregators import FedBuff
from fedlight.arrivals import UniformArrivals, UniformSteps
from fedlight.executors import VectorizedExecutor
from fedlight.local_optimizers import (
    SAM,
    FedDyn,
    FedProx,
    LocalAdam,
    LocalAdamW,
    LocalOptimizer,
    LocalSGD,
    Scaffold,
    WarmupCosine,
)

CLIENTS, PER_ROUND, ROUNDS = 20, 8, 4
MAX_BATCH = (1, 2, 3, 7, 16, 256)


class Attention(nn.Module):
    """Self-attention over the inputs as a sequence of numbers, with a position of their own."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.length = min(inputs, 20)
        self.position = nn.Embedding(self.length, width)
        self.qkv, self.out = nn.Linear(1, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x[:, : self.length, None]).chunk(3, -1)
        q = q + self.position.weight
        return self.out(torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v).mean(1)


def _frozen(inputs: int, classes: int) -> nn.Module:
    backbone = nn.Linear(inputs, 19).requires_grad_(False)
    return nn.Sequential(backbone, nn.Tanh(), nn.Linear(19, classes))


def _net(hidden: int, *layers: nn.Module) -> Callable[[int, int], nn.Module]:
    return lambda i, c: nn.Sequential(nn.Linear(i, hidden), *deepcopy(layers), nn.Linear(hidden, c))


MODULES: dict[str, Callable[[int, int], nn.Module]] = {
    "linear": nn.Linear,
    "mlp-16": _net(16, nn.ReLU()),
    "mlp-37": _net(37, nn.Tanh()),
    "gelu": _net(37, nn.GELU(), nn.Linear(37, 37), nn.SiLU()),
    "elu": _net(19, nn.ELU(), nn.Linear(19, 19), nn.Softplus(), nn.Linear(19, 19), nn.Sigmoid()),
    "layer-norm": _net(37, nn.LayerNorm(37), nn.Dropout(0.3), nn.ReLU()),
    "batch-norm": _net(16, nn.BatchNorm1d(16), nn.ReLU()),
    "attention": lambda i, c: nn.Sequential(Attention(i, 6), nn.Linear(6, c)),
    "frozen": _frozen,
}
OPTIMIZERS: dict[str, Callable[[], LocalOptimizer]] = {
    "sgd": lambda: LocalSGD(lr=0.1),
    "momentum": lambda: LocalSGD(lr=0.1, momentum=0.9, weight_decay=0.01, max_grad_norm=1.0),
    "prox": lambda: FedProx(lr=0.1, mu=0.1),
    "scaffold": lambda: Scaffold(lr=0.1),
    "adam": lambda: LocalAdam(lr=0.01),
    "adamw": lambda: LocalAdamW(lr=WarmupCosine(0.01, 2, 9), keep="client"),
    "dyn": lambda: FedDyn(lr=0.1, alpha=0.1),
    "sam": lambda: SAM(lr=0.1, rho=0.05),
}


class Case(NamedTuple):
    """One small federation."""

    module: str
    inputs: int
    classes: int
    batch: int
    optimizer: str
    precision: str

    @property
    def possible(self) -> bool:
        """Whether torch runs it: batch normalisation needs two examples."""
        return not (self.module == "batch-norm" and self.batch == 1)


class Net(LightningModule):
    """A classifier."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss


class Turned(VectorizedExecutor):
    """Computes its jobs in the opposite order."""

    def run(self, jobs):
        return super().run(jobs[::-1])[::-1]


@cache
def cases() -> list[Case]:
    """All cases."""
    axes: tuple[Sequence, ...] = (
        tuple(MODULES),
        (5, 20, 64, 784),
        (2, 3, 5, 10),
        (1, 4, 7, 30, 33, 64),
        tuple(OPTIMIZERS),
        ("32-true", "64-true"),
    )
    return [case for each in itertools.product(*axes) if (case := Case(*each)).possible]


def data_of(case: Case) -> FederatedDataModule:
    """Clients of which a third has a few examples more than a batch."""
    generator = torch.Generator().manual_seed(1)
    tables = []
    for client in range(CLIENTS):
        number = case.batch + client % 3
        x = torch.randn(number, case.inputs, generator=generator)
        tables.append(TensorDataset(x, torch.randint(case.classes, (number,), generator=generator)))
    return FederatedDataModule.from_client_datasets(tables, batch_size=case.batch)


def fingerprint(case: Case, executor: VectorizedExecutor) -> str:
    """The fingerprint of a run, after checking that it claims to be independent."""
    torch.manual_seed(0)
    trainer = FedTrainer(
        arrivals=UniformArrivals(PER_ROUND, max_staleness=2, local_steps=UniformSteps(1, 4)),
        aggregator=FedBuff(5),
        local_optimizer=OPTIMIZERS[case.optimizer](),
        executor=executor,
        max_rounds=ROUNDS,
        precision=case.precision,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Net(MODULES[case.module](case.inputs, case.classes)), data_of(case))
    assert executor.independent, (case, executor.dependence)
    return trainer.fingerprint()


def fingerprints(case: Case, max_batch: Sequence[int] = MAX_BATCH) -> list[str]:
    """The fingerprints of a case: by the size of the stacks, and with another order in them."""
    executors = [*map(VectorizedExecutor, max_batch), Turned(max_batch[-1])]
    return [fingerprint(case, executor) for executor in executors]


def main() -> int:
    """Compare cases and print those that differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", default="", help="names of modules, separated by commas")
    parser.add_argument("--max-batch", type=int, nargs="+", default=MAX_BATCH, metavar="N")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    chosen = [case for case in cases() if not given.only or case.module in given.only.split(",")]
    if not given.all:
        chosen = random.Random(given.seed).sample(chosen, min(given.cases, len(chosen)))
    differing = 0
    for case in chosen:
        found = fingerprints(case, given.max_batch)
        if len(set(found)) > 1:
            differing += 1
            print(*case, [sorted(set(found)).index(each) for each in found], flush=True)
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"{differing} of {len(chosen)} cases depend on company ({capability})")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
