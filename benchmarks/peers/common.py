"""What the scripts of this folder share: the data, the turns and the table."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version

from torch import Tensor

from benchmarks.federations import timed
from benchmarks.floors import Floor
from benchmarks.run import machine, show, taking_turns
from benchmarks.workloads import A

RAW = "raw loop over a module"
Shard = tuple[Tensor, Tensor]


def client_data(floor: Floor | None = None) -> list[Shard]:
    """Each client's images, floats that are normalised already, and labels."""
    floor = floor or Floor(A, "cpu")
    return [(floor.x[rows], floor.y[rows]) for rows in floor.rows]


def rate(times: Sequence[float]) -> float:
    """Updates a second from the times at which rounds ended; the first third is a warm-up."""
    warm = len(times) // 3
    return (len(times) - 1 - warm) * A.per_round / (times[-1] - times[warm])


def compare(package: str, make: Callable[[list[Shard]], Callable[[], float]]) -> None:
    """Print the updates a second of the peer, of the raw loop and of ours, all of the same run.

    Args:
        package: The peer's name in the package index.
        make: Takes the clients' data and returns what runs the peer once, for its rate.
    """
    parser = argparse.ArgumentParser(description=f"{package} on workload {A.name}")
    parser.add_argument("--turns", type=int, default=5, help="turns that count, of each contender")
    turns = parser.parse_args().turns
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    floor, data = Floor(A, "cpu"), A.data()
    peer = f"{package} {version(package)}"
    contenders: dict[str, Callable[[], float]] = {
        RAW: lambda: floor.module_loop(10),
        "fedlight, vectorized": lambda: timed(A, data, "cpu", 60 * A.per_round).updates,
        peer: make(client_data(floor)),
    }
    counted = {
        name: [each for each in rates[1:] if isinstance(each, float)]  # the first is a warm-up
        for name, rates in taking_turns(contenders, turns + 1).items()
    }
    print(machine("cpu"))
    rows = [["", "updates a second", "/ raw loop"]]
    for name, rates in counted.items():
        ratios = [own / raw for own, raw in zip(rates, counted[RAW], strict=True)]
        rows.append([name, f"{statistics.median(rates):,.0f}", f"{statistics.median(ratios):.2f}"])
    show(A.name, rows)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Send what a peer prints, its child processes' lines included, to nowhere."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for copy, place in zip(kept, (1, 2), strict=True):
                os.dup2(copy, place)
                os.close(copy)
