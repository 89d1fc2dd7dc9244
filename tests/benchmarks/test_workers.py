"""The schedules of `benchmarks/workers.py`, and its check of the bits."""

from dataclasses import replace

import pytest

from benchmarks.workers import AtHand, ideal, in_turns, methods
from benchmarks.workloads import A
from fedlight.executors import SequentialExecutor
from fedlight.types import RoundRecord, UpdateRecord


def history(*pulls):
    """A history of which version `n + 1` is made of updates that pulled `pulls[n]`."""
    return [
        RoundRecord(
            version,
            float(version),
            {},
            [UpdateRecord(0, 0, pulled, 0, 1, 1, 1.0, 0.0, 1.0, 1.0) for pulled in pulled_versions],
        )
        for version, pulled_versions in enumerate(pulls, start=1)
    ]


@pytest.mark.parametrize(
    ("pulls", "workers", "turns"),
    [
        ([[0, 0, 0]], 1, 3),
        ([[0, 0, 0]], 2, 2),
        ([[0, 0, 0]], 3, 1),
        ([[0, 0, 0], [1, 1, 1]], 2, 4),  # a round begins when the one before is over
        ([[0, 0, 0], [0, 0, 1]], 2, 3),  # the second version's tasks fill the gap
        ([[0], [1], [2]], 3, 3),  # each task needs the one before
        ([[0], [0], [0], [1]], 2, 2),  # version 1 is there after a turn
        ([[0], [0], [0], [3]], 2, 3),  # version 3 is not
    ],
)
def test_turns_of_an_ideal_scheduler(pulls, workers, turns):
    assert ideal(history(*pulls), workers) == turns


def test_runs_that_differ_in_bits_are_an_error():
    method = methods(in_flight=32, tasks=16)["FedAvg(16)"]
    few = replace(A, examples=64)
    data = few.data()
    makers = {"at hand": AtHand, "sequential": SequentialExecutor}
    with pytest.raises(SystemExit, match="the bits are not all the same"):
        in_turns(few, data, makers, method, turns=1)
    found = in_turns(few, data, {"sequential": SequentialExecutor}, method, turns=2)
    assert len({run.fingerprint for run in found["sequential"]}) == 1
