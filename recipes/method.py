"""One method against FedBuff on the bundled digits: its curve, and how stale its updates are.

Fifty clients hold two digits each; ten work at a time, for log-normal durations.

    python recipes/method.py --aggregator MIFA --aggregator.buffer_size 5 --figure MIFA.png
"""

from fedlight import cli

cli.help_first(__name__, __file__)

from statistics import fmean

from lightning import seed_everything

from data_partitioners import PathologicalPartitioner
from fedlight import FederatedDataModule, FedTrainer
from fedlight.aggregators import Aggregator, FedBuff
from fedlight.arrivals import ArrivalProcess, ContinuousArrivals, LogNormalDurations
from fedlight.local_optimizers import LocalOptimizer, LocalSGD
from fedlight.models import LogisticRegression
from fedlight.types import RoundRecord
from parts.two_runs import draw


def clock() -> ArrivalProcess:
    return ContinuousArrivals(LogNormalDurations(1.0, 0.7), 10, resume="on_arrival", local_steps=5)


def main(
    aggregator: Aggregator | None = None,
    local_optimizer: LocalOptimizer | None = None,
    arrivals: ArrivalProcess | None = None,
    max_time: cli.PositiveNumber = 40.0,
    figure: cli.Figure | None = None,
) -> None:
    """Train one run with the parts given and one with FedBuff; print accuracy and staleness.

    Args:
        aggregator: The server's rule; None for FedBuff(5).
        local_optimizer: The clients' local step; None for SGD with rate 0.05.
        arrivals: Who arrives when; None for ten of the fifty clients at work at a time.
        max_time: Virtual time of both runs.
        figure: File for the accuracy over virtual time and the share of each staleness.
    """
    given = [type(each).__name__ for each in (aggregator, local_optimizer, arrivals) if each]
    runs: dict[str, list[RoundRecord]] = {}
    for name, chosen in {
        " + ".join(given): (aggregator, local_optimizer, arrivals),
        "reference (FedBuff)": (None, None, None),
    }.items():
        trainer = FedTrainer(
            aggregator=chosen[0] or FedBuff(buffer_size=5),
            local_optimizer=chosen[1] or LocalSGD(lr=0.05),
            arrivals=chosen[2] or clock(),
            max_time=max_time,
            check_val_every_n_updates=20,
            logger=False,
            enable_progress_bar=False,
        )
        data = FederatedDataModule("mnist-mini", PathologicalPartitioner(50, 2), batch_size=32)
        seed_everything(0, verbose=False)  # both begin with the same weights
        trainer.fit(LogisticRegression(28 * 28, 10), data)
        runs[name] = trainer.history
        used = [each.staleness for record in trainer.history for each in record.updates]
        end = trainer.validate(verbose=False)[0]["val_acc"]
        print(f"{name}: accuracy {end:.3f}, mean staleness {fmean(used or [0]):.1f}")
    if figure:
        draw(figure, runs)


if __name__ == "__main__":
    cli.run(main)
