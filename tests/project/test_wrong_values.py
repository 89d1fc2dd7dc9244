"""Every public argument, with every wrong value: an error that names the argument and the value."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import chdir
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from lightning import LightningDataModule
from torch.utils.data import TensorDataset

import fedlight
from data_partitioners import IidPartitioner, Partition, Partitioner
from fedlight import FedTrainer, sweep
from fedlight.aggregators import Aggregator, FedAvg
from fedlight.arrivals import (
    ArrivalProcess,
    Availability,
    CommunicationPattern,
    ContinuousArrivals,
    DurationModel,
    FixedDurations,
    LocalSteps,
    TickPattern,
    UniformArrivals,
    Windows,
)
from fedlight.arrivals.traces import SAMPLE
from fedlight.callbacks import Callback, EventLog
from fedlight.channel import Channel
from fedlight.local_optimizers import LocalOptimizer, LocalSGD
from fedlight.types import RoundRecord
from tests.boring import Boring, Point, classes, points, trainer
from tests.methods.test_methods import CALLS
from tests.support.test_strategy import VALUES

TABLE = datasets.Dataset.from_dict({"x": [0.0, 1.0, 2.0, 3.0], "y": [0, 1, 0, 1]})
BOTH = TensorDataset(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
CLOCK = ContinuousArrivals(FixedDurations([1.0, 2.0]), local_steps=1)
HALVES = Partition.from_owners(np.array([0, 1, 0, 1]), 2)
RUN = {"arrivals": UniformArrivals(1, local_steps=1), "local_optimizer": LocalSGD(0.1)}
QUIET = {"enable_progress_bar": False}
STUDY = {**RUN, **QUIET, "module": Point, "datamodule": points([1.0], [2.0]), "max_rounds": 1}


class Flower:
    """As much of a partitioner of Flower as is read."""

    dataset, num_partitions = None, 2

    def load_partition(self, number):
        return self.dataset.select([2 * number, 2 * number + 1])


HISTORY = [RoundRecord(version, float(version), {"loss": 1.0}, []) for version in (1, 2)]
LIGHTNING = LightningDataModule.from_datasets(BOTH, val_dataset=BOTH, batch_size=2)

# Classes and functions that are not tried, each with the reason.
MADE = "made by a run and passed on, thousands of times: nobody is asked to write it"
TENSORS = "for authors of strategies, called with tensors at each step"
NOT_TRIED = {
    **dict.fromkeys(("ClientUpdate", "Study", "FederatedDataModule.of_examples"), MADE),
    **dict.fromkeys((f"arrivals.{each}" for each in ("Cancel", "Cut", "Dispatch")), MADE),
    **dict.fromkeys((f"arrivals.{each}" for each in ("EndRound", "Wake", "Window")), MADE),
    **dict.fromkeys(("arrivals.ScheduleTable", "channel.Message", "channel.Senders"), MADE),
    **dict.fromkeys(("checkpoint.*", "clients.*", "comparison.*", "conformance.*"), MADE),
    **dict.fromkeys(("data.Column", "data.Example*", "executors.ClientError*"), MADE),
    **dict.fromkeys(("executors.Job", "executors.Workplace", "local_optimizers.LocalRun"), MADE),
    **dict.fromkeys(("studies.Cell", "studies.Entry*", "studies.Interval"), MADE),
    **dict.fromkeys(("studies.StudyRun*", "studies.StudyTable", "methods.Method"), MADE),
    **dict.fromkeys(("aggregators.ServerParams", "aggregators.next_version"), TENSORS),
    **dict.fromkeys(("aggregators.weighted_sum", "channel.as_channel"), TENSORS),
    **dict.fromkeys(("local_optimizers.client_norms", "local_optimizers.per_client"), TENSORS),
    "cli.*": "what a script's command line calls, with the words of its parser",
    "data.django_texts": "needs Django, which is not among the packages of the tests",
}

# One valid call of each public class and function; strategies and methods have theirs elsewhere.
EXAMPLES: dict[str, dict[str, Any]] = {
    "FedTrainer": {**RUN, **QUIET, "aggregator": FedAvg(), "max_rounds": 1, "logger": False},
    "FederatedDataModule": {"dataset": TABLE, "partitioner": IidPartitioner(2)},
    "FederatedDataModule.from_client_datasets": {"datasets": [BOTH, BOTH]},
    "check_independence": {"module": Boring(), "datamodule": classes()},
    "compare": {"aggregators": {"a": FedAvg()}, **STUDY, "seeds": [0], "metric": "train_loss"},
    "sweep": {"aggregator": FedAvg(), **STUDY, "seeds": [0], "workers": 1},
    "cite": {"used": fedlight.methods.fedbuff(concurrency=2, lr=0.1)},
    "participation_report": {
        "run": UniformArrivals(1), "aggregator": FedAvg(), "num_clients": 2, "max_rounds": 2,
    },
    "aggregators.BufferedAggregator": {},
    "aggregators.Lattice": {},
    "aggregators.ServerStep": {},
    "arrivals.ReplayEvent": {"client": 0, "pulled_version": 0, "time": 1.0},
    "arrivals.read_traces": {"path": SAMPLE},
    "arrivals.simulate": {"arrivals": UniformArrivals(1), "num_clients": 2, "max_rounds": 2},
    "callbacks.CSVMetrics": {"path": "metrics.csv"},
    "callbacks.ClientEvaluation": {},
    "callbacks.EarlyStopping": {"monitor": "val_loss"},
    "callbacks.EventLog": {"path": "events.parquet"},
    "callbacks.FedCheckpoint": {"dirpath": "checkpoints"},
    "callbacks.ProgressBar": {},
    "callbacks.TensorBoardMetrics": {},
    "data.python_texts": {"names": ["json"]},
    "data.shakespeare_texts": {"source": "nowhere/at/all"},
    "data.text_data": {"texts": {"a": b"abc" * 60, "b": b"def" * 60}, "context": 8},
    "executors.ProcessExecutor": {},
    "executors.RayExecutor": {},
    "executors.VectorizedExecutor": {},
    "models.CNN": {},
    "models.CharLSTM": {},
    "models.Classifier": {"num_classes": 2, "lr": 0.1},
    "models.LanguageModel": {"lr": 0.1},
    "models.LogisticRegression": {"in_features": 2, "num_classes": 2},
    "models.TinyGPT": {"vocab_size": 4, "context": 4, "num_layers": 1, "num_heads": 1, "width": 4},
    "plot.curve": {"history": HISTORY, "metric": "val_loss"},
    "plot.curves": {"runs": HISTORY, "metric": "loss"},
    "plot.partition": {"data": HALVES, "labels": [0, 1, 0, 1]},
    "plot.timeline": {"events": "events.parquet"},
    "settings.anarchic": {},
    "settings.area": {},
    "settings.fadas": {},
    "settings.fedbuff": {},
    "settings.fedfix": {"percent": 20.0},
    "settings.linear_random": {"num_clients": 2},
    "settings.quafl": {},
    "settings.sqrt_fixed": {"num_clients": 2},
    "settings.sqrt_random": {"num_clients": 2},
    "studies.RayWorkers": {},
    "studies.bootstrap": {"values": [1.0, 2.0]},
    "theory.ClosedNetwork": {"durations": [1.0, 2.0]},
    "theory.search": {
        "durations": [1.0, 2.0], "concurrencies": [1], "objective": lambda network: 1.0,
    },
    "DirichletPartitioner": {"num_partitions": 2, "alpha": 1.0, "partition_by": "y"},
    "FlowerPartitioner": {"partitioner": Flower()},
    "IidPartitioner": {"num_partitions": 2},
    "MixingPartitioner": {"num_partitions": 2, "ratio": 0.5, "partition_by": "y"},
    "NaturalIdPartitioner": {"partition_by": "y"},
    "Partition": {"rows": np.arange(4), "offsets": np.array([0, 2, 4])},
    "Partition.from_owners": {"owners": np.array([0, 1]), "num_partitions": 2},
    "PathologicalPartitioner": {
        "num_partitions": 2, "num_classes_per_partition": 1, "partition_by": "y",
    },
    "QuantityPartitioner": {"num_partitions": 2, "exponent": 1.0},
    "FederatedDataModule.from_lightning": {
        "datamodule": LIGHTNING, "partitioner": IidPartitioner(2),
    },
    "Study.load": {"path": "study"},
    "arrivals.CommunicationPattern.periodic": {"period": 3},
    "arrivals.CommunicationPattern.random": {"probability": 0.5},
    "arrivals.CommunicationPattern.imbalanced": {"rare_share": 0.5, "often": 0.9, "rarely": 0.1},
    "arrivals.CommunicationPattern.from_table": {"communicates": [[0], [1]]},
    "arrivals.IntervalWindows.from_file": {"path": "windows.csv"},
    "arrivals.Regions.from_matrix": {
        "processes": {"a": CLOCK}, "clients": {"a": [0, 1]}, "arrivals_per_send": 2,
        "times": [[0.0]], "home": "a",
    },
    "arrivals.ReplayArrivals.from_csv": {
        "path": "trips.csv", "client": "who", "start": "from", "duration": "took",
    },
    "arrivals.ScheduleTable.load": {"path": "schedule.parquet"},
}  # fmt: skip


def exempt(name: str) -> bool:
    return any(fnmatchcase(name, each) for each in NOT_TRIED)


def example(name: str) -> dict[str, Any] | None:
    short = name.split(".")[-1]
    if name in EXAMPLES:
        return EXAMPLES[name]
    if name.startswith("methods.") and short in CALLS:
        return CALLS[short][0]
    if short in VALUES:
        return {argument: values[0] for argument, values in VALUES[short].items()}
    return None


def fit(**more: Any) -> None:
    trainer(**{**RUN, "max_rounds": 1, **more}).fit(Point(), points([1.0], [2.0]))


def simulate(process: ArrivalProcess) -> None:
    alone = process.by_rounds or process.arrivals_per_send is not None
    more = {"max_rounds": 2} if alone else {"buffer_size": 1, "max_updates": 3}
    clients = process.num_clients if process.shares_data else None
    process.simulate(clients or 2, **more)


THEN: dict[type, Callable[[Any], object]] = {
    DurationModel: lambda it: simulate(ContinuousArrivals(it, local_steps=1)),
    LocalSteps: lambda it: simulate(UniformArrivals(2, local_steps=it)),
    TickPattern: lambda it: simulate(CommunicationPattern(it)),
    Windows: lambda it: simulate(Availability(CLOCK, it)),
    ArrivalProcess: simulate,
    Aggregator: lambda it: fit(aggregator=it, arrivals=UniformArrivals(1, local_steps=1)),
    LocalOptimizer: lambda it: fit(local_optimizer=it),
    Channel: lambda it: fit(channel=it),
    Callback: lambda it: fit(callbacks=it),
    Partitioner: lambda it: it.partition(TABLE),
    fedlight.FederatedDataModule: lambda it: it.setup(),
    FedTrainer: lambda it: it.fit(Point(), points([1.0], [2.0])),
}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """The files that examples name, in the working folder."""
    with chdir(tmp_path_factory.mktemp("files")):
        write_files()
        yield


def write_files() -> None:
    Path("windows.csv").write_text("client,start,end\n0,0,5\n1,0,5\n")
    Path("trips.csv").write_text("who,from,took\na,0,1\nb,0,2\n")
    UniformArrivals(2).simulate(2, max_rounds=2).save("schedule.parquet")
    trainer(**RUN, max_rounds=1, callbacks=EventLog("events.parquet")).fit(
        Point(), points([1.0], [2.0])
    )
    sweep(**EXAMPLES["sweep"], path="study")
