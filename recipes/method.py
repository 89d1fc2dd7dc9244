"""One method against FedBuff on the bundled digits: its curve, and how stale its updates are.

Fifty clients hold two digits each; ten are at work at a time, for log-normal durations. The
reference is FedBuff with SGD; the options say what differs in the other run.

    python recipes/method.py --aggregator MIFA --aggregator.buffer_size 5 --figure MIFA.png
"""

from collections import Counter
from statistics import fmean

from lightning import seed_everything

from data_partitioners import PathologicalPartitioner
from fedlight import FederatedDataModule, FedTrainer, cli
from fedlight.aggregators import Aggregator, FedBuff
from fedlight.arrivals import ArrivalProcess, ContinuousArrivals, LogNormalDurations
from fedlight.local_optimizers import LocalOptimizer, LocalSGD
from fedlight.models import LogisticRegression
from fedlight.plot import curves
from fedlight.types import RoundRecord


def clock() -> ArrivalProcess:
    return ContinuousArrivals(LogNormalDurations(1.0, 0.7), 10, resume="on_arrival", local_steps=5)


def draw(file: cli.Figure, runs: dict[str, list[RoundRecord]]) -> None:
    """The accuracy over virtual time, and the share of each staleness among the updates used."""
    from matplotlib import pyplot

    made, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3), layout="constrained")
    curves(runs, "val_acc", "virtual_time", ax=left).set_ylabel("validation accuracy")
    for place, (name, history) in enumerate(runs.items()):
        counts = Counter(each.staleness for record in history for each in record.updates)
        taus, total = range(max(counts, default=0) + 1), max(1, counts.total())
        shares = [counts[tau] / total for tau in taus]
        colour = left.get_lines()[place].get_color()
        right.bar([tau + 0.4 * place - 0.2 for tau in taus], shares, 0.4, label=name, color=colour)
    right.set(xlabel="staleness (versions)", ylabel="share of the updates used")
    made.savefig(file, dpi=70)


def main(
    aggregator: Aggregator | None = None,
    local_optimizer: LocalOptimizer | None = None,
    arrivals: ArrivalProcess | None = None,
    max_time: cli.PositiveNumber = 40.0,
    figure: cli.Figure | None = None,
) -> None:
    """Train both."""
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
