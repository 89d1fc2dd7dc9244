"""A small GPT on eight islands: in a stack, one after another, and a plain loop of one island.

    OMP_NUM_THREADS=1 python -m benchmarks.tiny_gpt [--width 64] [--layers 4] [--turns 5] [--cpu]

The islands share blocks of the source of Python's standard library, and train K local steps of Adam
between two rounds of FedAvg. The plain loop is what one would write in PyTorch for one island:
zero_grad, backward and the step of `torch.optim.Adam`. Rates are tokens a second; the rounds of
warm-up are not counted, since the stack's step is traced after some fifty steps. The contenders
take turns, and a ratio is the median of those within each turn. `--cpu` counts CPU time in place of
time. At the end, the weights of the stacked islands are compared with those of one after another in
float64.
"""

from __future__ import annotations

import argparse
import logging
import warnings

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import clock
from benchmarks.clock import now
from benchmarks.federations import Stopwatch
from benchmarks.run import machine, show, table, taking_turns
from data_partitioners import IidPartitioner
from fedlight import FederatedDataModule, FedTrainer
from fedlight.aggregators import FedAvg
from fedlight.arrivals import SynchronousArrivals
from fedlight.data import python_texts, text_data
from fedlight.local_optimizers import LocalAdam
from fedlight.models import TinyGPT

LR = 0.001
TEXTS = ["asyncio", "email", "json", "unittest"]


class Islands:
    """The model, the data, and the contenders.

    Args:
        given: The options of the command line.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.data: FederatedDataModule = text_data(
            python_texts(TEXTS),
            given.context,
            given.batch_size,
            partitioner=IidPartitioner(given.islands),
            val_share=0,
        )
        self.tokens = given.batch_size * given.context  # of a local step

    def module(self) -> TinyGPT:
        """The model, with the same initial weights each time."""
        torch.manual_seed(0)
        given = self.given
        return TinyGPT(256, given.context, given.layers, given.heads, given.width)

    def plain(self) -> float:
        """One island in plain PyTorch; tokens a second."""
        given, net = self.given, self.module()
        optimizer = torch.optim.Adam(net.parameters(), lr=LR)
        rows = torch.from_numpy(self.data.partition[0])
        examples = self.data.train_data
        steps, begun = given.islands * given.steps * given.rounds, 0.0
        for step in range(given.warm * given.steps + steps):
            if step == given.warm * given.steps:
                begun = now()
            batch = rows[torch.randperm(len(rows))[: given.batch_size]]
            x, y = examples.gather(batch)
            optimizer.zero_grad()
            functional.cross_entropy(net(x).flatten(0, 1), y.flatten()).backward()
            optimizer.step()
        return steps * self.tokens / (now() - begun)

    def federated(self, executor: str) -> float:
        """All islands with an executor; tokens a second."""
        given = self.given
        watch = Stopwatch(given.warm * given.islands)
        trainer = self._trainer(executor, given.warm + given.rounds, callbacks=[watch])
        trainer.fit(self.module(), self.data)
        begun, ended = watch.times
        return given.rounds * given.islands * given.steps * self.tokens / (ended - begun)

    def distance(self) -> float:
        """The largest difference of weights between stacked and not, in float64."""
        found: list[Tensor] = []
        for executor in ("vectorized", "sequential"):
            trainer = self._trainer(executor, 2, precision="64-true")
            trainer.fit(self.module(), self.data)
            found.append(trainer.state.params)
        return float((found[0] - found[1]).abs().max())

    def _trainer(self, executor: str, rounds: int, **more: object) -> FedTrainer:
        return FedTrainer(
            arrivals=SynchronousArrivals(local_steps=self.given.steps),
            aggregator=FedAvg(),
            local_optimizer=LocalAdam(lr=LR),
            executor=executor,
            max_rounds=rounds,
            logger=False,
            accelerator="cpu",
            enable_progress_bar=False,
            **more,  # type: ignore[arg-type]
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--islands", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10, help="local steps between two rounds")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that are timed")
    parser.add_argument("--warm", type=int, default=4, help="rounds before, not timed")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="count CPU time")
    given = parser.parse_args()
    clock.chosen = "cpu" if given.cpu else "wall"
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    islands = Islands(given)
    size = sum(each.numel() for each in islands.module().parameters())
    print(machine("cpu"))
    found = taking_turns(
        {
            "plain loop, one island": islands.plain,
            "one after another": lambda: islands.federated("sequential"),
            "in a stack": lambda: islands.federated("vectorized"),
        },
        given.turns,
    )
    show(
        f"Tokens a second{' of CPU time' if given.cpu else ''}: {size:,} parameters, "
        f"{given.islands} islands, context {given.context}, batch {given.batch_size}",
        table(found, {"plain": "plain loop, one island", "one by one": "one after another"}),
    )
    print(f"\nlargest difference of weights after two rounds, float64: {islands.distance():.1e}")


if __name__ == "__main__":
    main()
