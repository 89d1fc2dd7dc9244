"""Every argument of a public method, with every wrong value: an error that names both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from data_partitioners import IidPartitioner
from fedlight import FederatedDataModule, compare
from fedlight.aggregators import FedAvg
from fedlight.arrivals import UniformArrivals
from fedlight.studies import StudyTable
from tests.boring import Point, points, trainer
from tests.project.test_wrong_values import EXAMPLES as function_examples
from tests.project.test_wrong_values import (
    EXAMPLES_IN_A_LIST,
    HALVES,
    NEGATIVE,
    NOTHING,
    PUBLIC,
    RUN,
    STUDY,
    TABLE,
    example,
    exempt,
    is_right,
    places,
    use,
)
from tests.wrong_values import WRONG, Method, arguments, is_hook, methods, outcome

PARTITIONERS = [name for name in PUBLIC if name.endswith("Partitioner") and name != "Partitioner"]
DATA = points([1.0], [2.0])

# Made by the library, but scripts call their methods.
USED = ("Study", "arrivals.ScheduleTable", "comparison.Comparison", "studies.StudyTable")

# Of hooks by the rule of `is_hook`, those that scripts call as well.
CALLED = ("partition",)

# Methods that are not tried, each with the reason: most are hooks that the rule does not know.
NOT_TRIED = {
    "callbacks.ProgressBar.print": "takes anything, as print does",
    "*.find": "of windows, asked at each wake-up",
    "*.nbytes": "of channels, asked for each update",
    "executors.*.team": "of executors, asked at each fit",
    "aggregators.ServerStep.*": "for authors of strategies, called at each step",
}


class Predicting(Point):
    def predict_step(self, batch, batch_idx):
        return self.w


def fitted():
    made = trainer(**RUN, max_rounds=1)
    made.fit(Predicting(), DATA)
    return made


def loaded():
    made = FederatedDataModule(**function_examples["FederatedDataModule"])
    made.setup()
    return made


def compared():
    both = {"a": FedAvg(), "b": FedAvg(server_lr=0.5)}
    return compare(both, **STUDY, seeds=[0, 1])


# How an object of each class is made; the others are made by their examples.
MAKERS: dict[str, Callable[[], Any]] = {
    "FederatedDataModule": loaded,
    "FedTrainer": fitted,
    "Study": lambda: compared().study,
    "studies.StudyTable": lambda: compared().study.table(),
    "comparison.Comparison": compared,
    "arrivals.ScheduleTable": lambda: UniformArrivals(2).simulate(2, max_rounds=2),
    "Partition": lambda: HALVES,
}

# The valid call of a method; the others are called without arguments.
EXAMPLES: dict[str, dict[str, Any]] = {
    "FedTrainer.client_memory": {"client_id": 0},
    "FedTrainer.client_state": {"client_id": 0},
    "FedTrainer.fit": {"module": Predicting(), "datamodule": DATA},
    "FedTrainer.log_metrics": {"metrics": {"a": 1.0}},
    "FedTrainer.save_checkpoint": {"path": "run.ckpt"},
    "FedTrainer.steps_of_fit": {"module": Predicting(), "datamodule": DATA},
    "FederatedDataModule.evaluation_data": {"stage": "test"},
    "FederatedDataModule.repartition": {"partitioner": IidPartitioner(2)},
    "Study.at": {"places": [1.0]},
    "Study.best": {"axis": "aggregator"},
    "Study.histories_by": {"axes": ["aggregator"]},
    "Study.only": {"aggregator": "a"},
    "Study.report": {"path": "report.html"},
    "Study.time_to": {"target": 1.0},
    "arrivals.Availability.simulate": {"num_clients": 2, "max_rounds": 2, "buffer_size": 1},
    "arrivals.ScheduleTable.save": {"path": "schedule.parquet"},
    "comparison.Comparison.curve": {"name": "a", "seed": 0},
    "local_optimizers.ByStep.at": {"step": 1},
    "local_optimizers.WarmupCosine.at": {"step": 1},
    "studies.StudyTable.beside": {"numbers": {("a", "best"): 1.0}},
    "studies.StudyTable.names_of": {"row": ("a",), "column": "best"},
    "Partition.label_counts": {"labels": [0, 1, 0, 1]},
    **{f"{each}.partition": {"dataset": TABLE} for each in PARTITIONERS},
}

# Values that are right for an argument, beside those of functions and constructors.
RIGHT: list[tuple[str, list[str], str]] = [
    ("client_id step digits target zoom", ["0"], "0 is in the range"),
    ("target", NEGATIVE, "metrics may be negative"),
    ("reference numbers FedTrainer.log_metrics.metrics", ["None", "{}"], "nothing to add"),
    ("title label caption", ["''"], "text"),
    ("dataloaders", [*NOTHING, *EXAMPLES_IN_A_LIST, "None", "set", "generator"], "any batches"),
    ("FedTrainer.predict.dataset", ["None", *EXAMPLES_IN_A_LIST], "a list is a data set"),
]
OWN = {
    (argument, label)
    for listed, labels, _ in RIGHT
    for argument in listed.split()
    for label in labels
}

# What only a run makes: an argument that is one of these is not written by a user.
OF_RUNS = {
    name.split(".")[-1]
    for name, it in PUBLIC.items()
    if inspect.isclass(it) and exempt(name) and name not in USED
} | {"Action", "Federation", "Generator", "PendingRuns", "Tensor"}


def is_tried(method: Method) -> bool:
    if exempt(method.owner) and method.owner not in USED:
        return False
    if getattr(method.function, "__isabstractmethod__", False):
        return False
    hook = is_hook(PUBLIC[method.owner], method, OF_RUNS) and method.name not in CALLED
    place = f"{method.owner}.{method.name}"
    return not hook and not any(fnmatchcase(place, each) for each in NOT_TRIED)


# Their right values write files and draw pictures.
SLOW = ("Study.report",)

EVERY = methods(PUBLIC)
TRIED = {name: method for name, method in EVERY.items() if is_tried(method)}


def parts(name: str) -> dict[str, str]:
    """The arguments of a method with their annotations, also those without a name of their own."""
    parameters = [*inspect.signature(TRIED[name].function).parameters.values()]
    found = arguments(TRIED[name].function)
    found.pop(parameters[0].name)
    for each in parameters:
        if each.kind is each.VAR_POSITIONAL:
            found[each.name] = str(each.annotation)
        if each.kind is each.VAR_KEYWORD:
            found |= {n: str(each.annotation) for n in valid(name) if n not in found}
    return found


def valid(name: str) -> dict[str, Any]:
    return EXAMPLES.get(name, {})


def by_name(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose further positional arguments are given by the name that stands for them."""
    parameters = [*inspect.signature(method).parameters.values()]
    several = [n for n, each in enumerate(parameters) if each.kind is each.VAR_POSITIONAL]
    if not several:
        return method
    before, further = parameters[: several[0]], parameters[several[0]].name

    def call(**given: Any) -> Any:
        more = [given.pop(further)] if further in given else []
        first = [given.pop(each.name) for each in before if each.name in given]
        return method(*first, *more, **given)

    return call


@pytest.fixture(scope="module")
def made():
    """An object of each class, made once."""
    return {}


def target(owner: str, made: dict[str, Any]) -> Any:
    if owner not in made:
        maker = MAKERS.get(owner)
        made[owner] = PUBLIC[owner](**example(owner)) if maker is None else maker()
    return made[owner]


def cases(name: str) -> Iterator[tuple[str, str, str]]:
    for argument, annotation in parts(name).items():
        for label in WRONG:
            yield argument, annotation, label


def right(name: str, argument: str, annotation: str, label: str) -> bool:
    return is_right(name, argument, annotation, label) or any(
        (place, label) in OWN for place in places(name, argument)
    )


def look(found: object) -> None:
    """Use what a method has returned, where arguments are checked with its data."""
    if isinstance(found, StudyTable):
        found.to_markdown()
    elif isinstance(found, Figure):
        pyplot.close(found)
    elif inspect.isgenerator(found):
        for _ in found:
            break
    else:
        use(found)


@pytest.mark.parametrize("name", TRIED)
def test_each_wrong_value_gets_a_sentence(name, made, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    method = TRIED[name]
    call = by_name(getattr(target(method.owner, made), method.name))
    call(**valid(name))  # the example itself is right
    faults = []
    for argument, annotation, label in cases(name):
        may = right(name, argument, annotation, label)
        if may and name in SLOW:
            continue
        found, words = outcome(call, valid(name), argument, WRONG[label](), look)
        if found != "clear" and not (may and found == "taken"):
            faults.append(f"{argument} at {label}: {found} {words}")
    assert not faults, "\n".join(faults)


def test_there_are_enough_of_them() -> None:
    tried = [(name, *case) for name in TRIED for case in cases(name)]
    assert len(tried) > 5_000
    assert sum(not right(*case) for case in tried) > 4_500


def test_what_the_lists_name_is_there() -> None:
    known = {place for name in TRIED for each in parts(name) for place in places(name, each)}
    assert {argument for argument, _ in OWN} <= known
    assert {label for _, label in OWN} <= WRONG.keys()
    assert all(reason for *_, reason in RIGHT)
    assert all(any(fnmatchcase(name, each) for name in EVERY) for each in NOT_TRIED)
    assert EXAMPLES.keys() <= TRIED.keys()
    assert MAKERS.keys() <= {method.owner for method in TRIED.values()}
    assert set(USED) <= PUBLIC.keys()


def test_hooks_are_told_by_the_guide_by_lightning_and_by_what_a_run_makes() -> None:
    def hook(name):
        return is_hook(PUBLIC[EVERY[name].owner], EVERY[name], OF_RUNS)

    assert hook("Callback.on_update")  # in a table of the guide
    assert hook("models.CNN.forward")  # of torch
    assert hook("channel.Clip.send")  # gets what a run makes
    assert not hook("FedTrainer.fit")
    assert not hook("Study.table")
