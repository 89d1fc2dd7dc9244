"""Our own runs, timed after a warm-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lightning import LightningModule

from benchmarks.clock import now
from benchmarks.workloads import Workload
from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight.aggregators import FedAsync, FedAvg, FedBuff
from fedlight.arrivals import ArrivalProcess, ContinuousArrivals, ExponentialDurations
from fedlight.arrivals import UniformArrivals as Synchronous
from fedlight.executors import Executor
from fedlight.local_optimizers import LocalSGD


class Timing(NamedTuple):
    """What a run has measured.

    Attributes:
        updates: Client updates a second.
        steps: Local steps a second.
        batch: Clients per call of the executor.
        computed: Local runs that were computed.
        most: The largest number of updates that a version was made of.
    """

    updates: float
    steps: float
    batch: float
    computed: int
    most: int


class Stopwatch(Callback):
    """Reads the clock twice: after so many updates, and at the end of the training.

    The CPU clock of a process that is at work takes up to 0.2 ms to read on some systems, which is
    as long as all that a version of FedAsync costs beside its local steps.

    Args:
        warm: Client updates before the first reading.
    """

    def __init__(self, warm: float) -> None:
        self.warm = warm
        self.times: list[float] = []
        self.version = 0

    def on_round_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        if not self.times and trainer.num_updates >= self.warm:
            self.version = trainer.version
            self.times.append(now(trainer.fabric.device.type))

    def on_train_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        self.times.append(now(trainer.fabric.device.type))


def timed(
    workload: Workload,
    data: FederatedDataModule,
    device: str,
    updates: int,
    *,
    aggregator: Any = None,
    arrivals: ArrivalProcess | None = None,
    executor: Executor | str = "vectorized",
    callbacks: Sequence[Callback] = (),
) -> Timing:
    """A run of so many client updates; the first third is a warm-up.

    Args:
        workload: What to run.
        data: Its data.
        device: "cpu" or "cuda".
        updates: Client updates to make.
        aggregator: FedAvg at the end of each round by default.
        arrivals: Synchronous rounds by default.
        executor: As for the trainer.
        callbacks: More callbacks.
    """
    watch = Stopwatch(updates / 3)
    trainer = FedTrainer(
        arrivals=arrivals or Synchronous(workload.per_round, local_steps=workload.steps),
        aggregator=aggregator or FedAvg(),
        local_optimizer=LocalSGD(lr=0.1),
        executor=executor,
        max_updates=updates,
        callbacks=[watch, *callbacks],
        logger=False,
        accelerator=device,
        enable_progress_bar=False,
        check_val_every_n_rounds=None,
    )
    trainer.fit(workload.module(), data)
    begun, ended = watch.times
    elapsed = ended - begun
    counted = [update for record in trainer.history[watch.version :] for update in record.updates]
    pool = trainer.run.pool
    return Timing(
        len(counted) / elapsed,
        sum(update.num_steps for update in counted) / elapsed,
        pool.num_computed / pool.num_batches,
        pool.num_computed,
        max(len(record.updates) for record in trainer.history),
    )


def asynchronous(workload: Workload, in_flight: int = 20) -> dict[str, dict[str, Any]]:
    """FedAsync and FedBuff over clients that work for exponential times."""
    return {
        "FedAsync": {
            "aggregator": FedAsync(alpha=0.6),
            "arrivals": _clock(workload, in_flight, "on_aggregation"),
        },
        "FedBuff(10)": {
            "aggregator": FedBuff(buffer_size=10),
            "arrivals": _clock(workload, in_flight, "on_arrival"),
        },
    }


def _clock(workload: Workload, in_flight: int, resume: str) -> ArrivalProcess:
    return ContinuousArrivals(
        ExponentialDurations(mean=1.0),
        concurrency=in_flight,
        resume=resume,
        local_steps=workload.steps,
    )
