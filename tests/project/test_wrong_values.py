"""Every public argument, with every wrong value: an error that names the argument and the value."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
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
from fedlight._support.checks import positive_int
from fedlight.aggregators import Aggregator, FedAvg, PrivateSum
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
from tests.wrong_values import WRONG, arguments, outcome, public

TABLE = datasets.Dataset.from_dict({"x": [0.0, 1.0, 2.0, 3.0], "y": [0, 1, 0, 1]})
BOTH = TensorDataset(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
CLOCK = ContinuousArrivals(FixedDurations([1.0, 2.0]), local_steps=1)
HALVES = Partition.from_owners(np.array([0, 1, 0, 1]), 2)
RUN = {"arrivals": UniformArrivals(1, local_steps=1), "local_optimizer": LocalSGD(0.1)}
QUIET = {"enable_progress_bar": False}
STUDY = {
    **RUN,
    **QUIET,
    "module": Point,
    "datamodule": points([1.0], [2.0]),
    "max_rounds": 1,
    "metric": "train_loss",
}


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
    "data.shakespeare_texts": "asks the hub at once; checks as those of FederatedDataModule",
    "data.django_texts": "needs Django, which is not among the packages of the tests",
}

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
    "privacy_report": {
        "run": UniformArrivals(1), "num_clients": 2, "max_rounds": 2, "delta": 0.01,
        "aggregator": PrivateSum(FedAvg(client_weights="uniform"), 1.0, 1.0),
    },
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


# Values that are right for an argument, by the words of its annotation: any number of the kind that
# it takes, within its range, which is checked apart; a string is a name.
BY_KIND = {
    "None": ["None"],
    "bool": ["True", "np.bool_"],
    "int": ["np.int64"],
    "float": ["np.int64", "0.5", "tiny", "large", "Fraction"],
    "Rate": ["np.int64", "0.5", "tiny", "large", "Fraction"],
    "LocalRate": ["np.int64", "0.5", "tiny", "large", "Fraction"],
    "str": ["'3'", "unicode"],
    "Path": ["'3'", "unicode"],
    "Cohorts": ["np.int64", "[[1]]"],
    "Sequence": ["[1]", "tensor"],
    "Iterable": ["[1]", "tensor"],
}
NOTHING = ["[]", "spent iterator"]
NEGATIVE = ["0", "-1", "-0.5"]
NAMES = ["'3'", "unicode", "''"]
EXAMPLES_IN_A_LIST = ["[1]", "[nan]", "['a']", "[None]", "[[]]", "[[1]]", "[[[1]]]", "(-1, 'a')"]
EXAMPLES_IN_A_LIST += ["{0: 1}", "np.array", "np.array of objects", "tensor"]
# Further ones, by the name of the argument or of class and argument, with the reason.
RIGHT: list[tuple[str, list[str], str]] = [
    (
        "alpha beta c c_ok decay dropout floor grace idle lam latency least momentum mu nbytes "
        "num_gpus overhead percent probability rare_share ratio region_momentum rho shift sigma "
        "slow_share spread stragglers turn val_share weight_decay down up within exponent "
        "dispatched_at client pulled_version chunk_start visit iota lam_rate sigma_rate iota_rate "
        "gamma upsilon gamma_rate upsilon_rate rate",
        ["0"],
        "0 is in the range: nothing is added, mixed, lost or kept",
    ),
    ("max_staleness tau tau_c warmup sweeps limit_val_batches fast_dev_run", ["0"], "0 for none"),
    ("min_delta stopping_threshold divergence_threshold", NEGATIVE, "metrics may be negative"),
    ("phases start origin", NEGATIVE, "a time before the start"),
    ("mindflayer.probabilities", ["0"], "a probability for all clients; those of 0 never fail"),
    ("oort.over_select", ["0"], "0 for none"),
    ("seed", ["0", "-1", "huge"], "a seed is any integer"),
    ("partition_seed", ["0", "huge"], "any integer from 0 on"),
    ("save_top_k", ["0", "-1", "huge"], "0 for none, -1 for all, more than there are for all"),
    (
        "Classifier.num_classes",
        ["huge"],
        "makes no layer",
    ),
    ("axes metrics lower_is_better names", [*NOTHING, "['a']"], "a list of names may be empty"),
    ("callbacks logger channel channels factors round_ends unused", NOTHING, "none of them"),
    ("history", NOTHING, "a run before its first round has no points"),
    ("ScheduleTable.load.path Study.load.path unused_reason tag", ["''"], "text"),
    ("default_root_dir", ["''"], "the working folder, as in Lightning"),
    ("over", ["{}"], "a study of one cell"),
    ("callbacks", ["a class"], "a class is a function without arguments; list returns none"),
    ("precision enable_progress_bar per_round logger sep clients", ["None"], "the default"),
    ("sep", ["'3'"], "a character, which the file of the example does not have"),
    ("values", ["[nan]", "np.array"], "a run without the metric has nan"),
    ("labels", ["None"], "those that the data set has"),
    ("val_dataset test_dataset", ["None"], "none"),
    ("val_dataset test_dataset datasets", EXAMPLES_IN_A_LIST, "a list of examples is a data set"),
    ("buffer_size per_poll per_round candidates anarchic.per_round", ["[[1]]"], "lists of clients"),
    ("communicates times", ["[[1]]"], "one row"),
    ("max_steps scale favas.durations quafl.durations num_examples", ["[1]", "tensor"], "a list"),
]


LISTED = {
    (argument, label)
    for listed, labels, _ in RIGHT
    for argument in listed.split()
    for label in labels
}


def is_right(name: str, argument: str, annotation: str, label: str) -> bool:
    """Whether a list says that a value is right for an argument."""
    if any(label in BY_KIND.get(word, ()) for word in re.findall(r"\w+", annotation)):
        return True
    return any((place, label) in LISTED for place in places(name, argument))


def places(name: str, argument: str) -> list[str]:
    """The names of an argument, from "argument" to "package.Class.argument"."""
    parts = [*name.split("."), argument]
    return [".".join(parts[start:]) for start in range(len(parts))]


def exempt(name: str) -> bool:
    """Whether a class or function is not tried."""
    return any(fnmatchcase(name, each) for each in NOT_TRIED)


def use(made: object) -> None:
    """Use what a call has made, where arguments are checked with data."""
    for kind, how in THEN.items():
        if isinstance(made, kind):
            how(made)
            return


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that examples name."""
    made = tmp_path_factory.mktemp("files")
    with chdir(made):
        write_files()
    return made


def write_files() -> None:
    Path("windows.csv").write_text("client,start,end\n0,0,5\n1,0,5\n")
    Path("trips.csv").write_text("who,from,took\na,0,1\nb,0,2\n")
    UniformArrivals(2).simulate(2, max_rounds=2).save("schedule.parquet")
    trainer(**RUN, max_rounds=1, callbacks=EventLog("events.parquet")).fit(
        Point(), points([1.0], [2.0])
    )
    sweep(**EXAMPLES["sweep"], path="study")


PUBLIC = public()
EVERYTHING = {
    name: it
    for name, it in PUBLIC.items()
    if arguments(it) and not exempt(name) and not (inspect.isclass(it) and inspect.isabstract(it))
}
ARGUMENTS = {name: arguments(it) for name, it in EVERYTHING.items()}
SLOW = ("sweep", "compare", "check_independence")


def cases(name: str) -> Iterator[tuple[str, str, str]]:
    """The argument, its annotation and the label of the value, for each case."""
    for argument, annotation in ARGUMENTS[name].items():
        for label in WRONG:
            yield argument, annotation, label


@pytest.mark.parametrize("name", EVERYTHING)
def test_each_wrong_value_gets_a_sentence(name, folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    given = example(name)
    assert given is not None, (
        f"{name} has no example: write a valid call of it into EXAMPLES above; of a strategy, two "
        "values of each argument into VALUES of tests/support/test_strategy.py; of a method, a row "
        "into CALLS of tests/methods/test_methods.py"
    )
    it = EVERYTHING[name]
    it(**given)  # the example itself is right
    faults = []
    for argument, annotation, label in cases(name):
        right = is_right(name, argument, annotation, label)
        if right and name in SLOW:
            continue
        then = None if right else use
        found, words = outcome(it, given, argument, WRONG[label](), then)
        if found != "clear" and not (right and found == "taken"):
            faults.append(f"{argument} at {label}: {found} {words}")
    assert not faults, "\n".join(faults)


def test_there_are_enough_of_them() -> None:
    tried = [(name, *case) for name in EVERYTHING for case in cases(name)]
    assert len(tried) > 30_000
    assert sum(not is_right(*case) for case in tried) > 25_000


def test_what_the_lists_name_is_there() -> None:
    known = {
        place for name, own in ARGUMENTS.items() for each in own for place in places(name, each)
    }
    assert {argument for argument, _ in LISTED} <= known
    assert {label for _, label in LISTED} <= WRONG.keys()
    assert all(reason for *_, reason in RIGHT)
    assert all(any(fnmatchcase(name, each) for name in PUBLIC) for each in NOT_TRIED)
    assert EXAMPLES.keys() <= EVERYTHING.keys()


def test_the_outcomes_are_told_apart() -> None:
    def call(count):
        if count is None:
            raise TypeError("unsupported operand")
        return positive_int("count", count)

    given = {"count": 1}
    assert outcome(call, given, "count", None, None)[0] == "obscure"
    assert outcome(call, given, "count", "3", None)[0] == "clear"
    assert outcome(call, given, "count", 3, None)[0] == "taken"
    assert outcome(call, given, "count", 3, lambda it: positive_int("count", -it))[0] == "obscure"
    assert outcome(lambda width: positive_int("count", width), {}, "width", "3", None) == (
        "obscure",
        "TypeError: count must be an integer, got '3' (str)",
    )
