"""Every public argument, with every wrong value: an error that names the argument and the value."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import TensorDataset

import fedlight
from data_partitioners import IidPartitioner, Partition, Partitioner
from fedlight import FedTrainer
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
from fedlight.callbacks import Callback
from fedlight.channel import Channel, TopK
from fedlight.local_optimizers import LocalOptimizer, LocalSGD
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

# What a run makes and passes on, read many times for each event: nobody is asked to write it.
MADE_BY_THE_LIBRARY = tuple(
    """
    ClientUpdate Study arrivals.Cancel arrivals.Cut arrivals.Dispatch arrivals.EndRound
    arrivals.ScheduleTable arrivals.Wake arrivals.Window channel.Message channel.Senders
    checkpoint.* clients.Clients comparison.* conformance.* data.Column data.Example*
    executors.ClientError* executors.Job executors.Workplace local_optimizers.LocalRun
    studies.Cell studies.Entry* studies.Interval studies.StudyRun* studies.StudyTable
    FederatedDataModule.of_examples
""".split()
)
# Functions for authors of strategies, called with tensors at each step.
FOR_AUTHORS = tuple(
    """
    aggregators.ServerParams aggregators.next_version aggregators.weighted_sum
    local_optimizers.client_norms local_optimizers.per_client
""".split()
)
# What a script's command line calls; argparse and its types have words of their own.
COMMAND_LINE = ("cli.*",)

# One valid call of each public class and function; strategies and methods have theirs elsewhere.
EXAMPLES: dict[str, dict[str, Any]] = {
    "FedTrainer": {**RUN, **QUIET, "aggregator": FedAvg(), "max_rounds": 1, "logger": False},
    "FederatedDataModule": {"dataset": TABLE, "partitioner": IidPartitioner(2)},
    "FederatedDataModule.from_client_datasets": {"datasets": [BOTH, BOTH]},
    "check_independence": {"module": Boring(), "datamodule": classes()},
    "compare": {"aggregators": {"a": FedAvg()}, **STUDY, "seeds": [0]},
    "sweep": {"aggregator": FedAvg(), **STUDY, "seeds": [0], "workers": 1},
    "cite": {"used": fedlight.methods.fedbuff(concurrency=2, lr=0.1)},
    "participation_report": {
        "run": UniformArrivals(1), "aggregator": FedAvg(), "num_clients": 2, "max_rounds": 2,
    },
    "aggregators.BufferedAggregator": {},
    "aggregators.ServerStep": {},
    "arrivals.ReplayEvent": {"client": 0, "pulled_version": 0, "time": 1.0},
    "arrivals.read_traces": {"path": "traces.jsonl"},
    "arrivals.simulate": {"arrivals": UniformArrivals(1), "num_clients": 2, "max_rounds": 2},
    "callbacks.CSVMetrics": {"path": "metrics.csv"},
    "callbacks.ClientEvaluation": {},
    "callbacks.EarlyStopping": {"monitor": "val_loss"},
    "callbacks.EventLog": {"path": "events.parquet"},
    "callbacks.FedCheckpoint": {"dirpath": "checkpoints"},
    "callbacks.ProgressBar": {},
    "callbacks.TensorBoardMetrics": {},
    "channel.as_channel": {"name": "value", "value": TopK(0.5)},
    "data.django_texts": {"languages": ["de"]},
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
    "plot.curve": {"history": [], "metric": "val_loss"},
    "plot.curves": {"runs": []},
    "plot.partition": {"data": HALVES},
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
    "FlowerPartitioner": {"partitioner": object()},
    "IidPartitioner": {"num_partitions": 2},
    "MixingPartitioner": {"num_partitions": 2, "ratio": 0.5, "partition_by": "y"},
    "NaturalIdPartitioner": {"partition_by": "y"},
    "Partition": {"rows": np.arange(4), "offsets": np.array([0, 2, 4])},
    "Partition.from_owners": {"owners": np.array([0, 1]), "num_partitions": 2},
    "PathologicalPartitioner": {
        "num_partitions": 2, "num_classes_per_partition": 1, "partition_by": "y",
    },
    "QuantityPartitioner": {"num_partitions": 2, "exponent": 1.0},
    "FederatedDataModule.from_lightning": {"datamodule": None, "partitioner": IidPartitioner(2)},
    "Study.load": {"path": "study"},
    "arrivals.CommunicationPattern.periodic": {"period": 3},
    "arrivals.CommunicationPattern.random": {"probability": 0.5},
    "arrivals.CommunicationPattern.imbalanced": {"rare_share": 0.5, "often": 0.9, "rarely": 0.1},
    "arrivals.CommunicationPattern.from_table": {"communicates": [[0], [1]]},
    "arrivals.IntervalWindows.from_file": {"path": "windows.json"},
    "arrivals.Regions.from_matrix": {
        "processes": {"a": CLOCK}, "clients": {"a": [0, 1]}, "arrivals_per_send": 2,
        "times": [[0.0]], "home": "a",
    },
    "arrivals.ReplayArrivals.from_csv": {"path": "trips.csv", "client": "who", "start": "from"},
    "arrivals.ScheduleTable.load": {"path": "schedule.json"},
}  # fmt: skip


def exempt(name: str) -> bool:
    return any(fnmatchcase(name, each) for each in MADE_BY_THE_LIBRARY + FOR_AUTHORS + COMMAND_LINE)


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
