"""Speed and memory, with the raw PyTorch floors timed in the same run.

    python benchmarks/run.py [--device cuda] [--quick] [--only A B CNN LSTM large resnet …]

Contenders take turns, several times; a rate is the median over the turns and a ratio is the
median of the ratios within each turn, so that a machine that is busy for a while does no harm.
Threads are those of torch: set ``OMP_NUM_THREADS`` for all contenders alike.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

from benchmarks import clock
from benchmarks.federations import Timing, asynchronous, timed
from benchmarks.floors import Floor
from benchmarks.peak import peak_table
from benchmarks.scale import growth_tables, memory_table
from benchmarks.workloads import DROPOUT, LARGE, LSTM, RESNET, SMALL_CNN, A, B, Workload
from fedlight.arrivals import UniformArrivals, UniformSteps
from fedlight.executors import RayExecutor, VectorizedExecutor

T = TypeVar("T")
PARTS = (
    *("A", "B", "CNN", "LSTM", "large", "resnet"),
    *("unequal", "dropout", "growth", "memory", "peak"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--quick", action="store_true", help="few and short turns")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--turns", type=int, help="turns of each contender")
    parser.add_argument(
        "--clock",
        default="wall",
        choices=tuple(clock.CLOCKS),
        help='"cpu" counts the seconds of our own threads, for a machine that is shared',
    )
    chosen = parser.parse_args()
    clock.chosen = chosen.clock
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    print(f"{machine(chosen.device)}; {chosen.clock} clock", flush=True)
    turns = chosen.turns or (2 if chosen.quick else 7)
    size = 0.3 if chosen.quick else 1.0
    for name, workload in (("A", A), ("B", B), ("CNN", SMALL_CNN), ("LSTM", LSTM)):
        if name in chosen.only:
            compare(workload, chosen.device, turns, size)
    if "large" in chosen.only:
        # A vectorised step is traced after some fifty steps: that is within the warm-up.
        large(LARGE, chosen.device, turns, {"sequential": 60, "vectorized": 200}, size)
    if "resnet" in chosen.only:
        large(RESNET, chosen.device, turns, {"sequential": 6}, size)
    if "unequal" in chosen.only:
        unequal(chosen.device, turns, size)
    if "dropout" in chosen.only:
        for workload in DROPOUT:
            dropout(workload, chosen.device, turns, size)
    if "growth" in chosen.only:
        for title, rows in growth_tables(chosen.quick):
            show(title, rows)
    if "memory" in chosen.only:
        show("Whole runs", memory_table(chosen.quick))
    if "peak" in chosen.only:
        show("Peak memory of ten million parameters", peak_table(chosen.quick))


def machine(device: str) -> str:
    """The machine in words."""
    name = torch.cuda.get_device_name() if device == "cuda" else processor()
    return (
        f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s), "
        f"torch {torch.__version__}, Python {platform.python_version()}"
    )


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    names = {key.strip(): value.strip() for key, value in found.items()}
    family, model = names.get("cpu family", "?"), names.get("model", "?")
    return f"{names.get('model name', platform.machine())} (family {family}, model {model})"


def compare(workload: Workload, device: str, turns: int, size: float) -> None:
    """The table of one workload: floors, synchronous, asynchronous."""
    data = workload.data()
    floor = Floor(workload, device)
    linear = workload in (A, B)
    rounds = max(2, int(size * (200 if linear else 40) / workload.per_round))
    one = max(4, int(size * 12)) * workload.per_round if linear else 4 * workload.per_round
    many = int(size * 60) * workload.per_round if linear else one
    run = partial(timed, workload, data, device)
    contenders: dict[str, Callable[[], float | Timing]] = {
        "raw loop over a module": lambda: floor.module_loop(rounds)
    }
    if linear:
        tens = Floor(replace(workload, per_round=10), device)
        contenders["closed form, batched"] = lambda: floor.closed_form(4 * rounds)
        many_tens = 4 * rounds * workload.per_round // 10
        contenders["closed form, ten at a time"] = lambda: tens.closed_form(many_tens)
    contenders["FedAvg, sequential"] = lambda: run(one, executor="sequential")
    contenders["FedAvg, vectorized"] = lambda: run(many)
    if linear:
        # so many that nearly all shapes of batches have been traced within the warm-up
        late = int(size * 12_000)
        for name, given in asynchronous(workload).items():
            contenders[f"{name}, vectorized"] = partial(run, late, **given)
        given = asynchronous(workload)["FedAsync"]
        contenders["FedAsync, sequential"] = partial(run, one, executor="sequential", **given)
        contenders["FedAsync, stacks of one"] = partial(
            run, one, executor=VectorizedExecutor(max_batch=1), **given
        )
    else:
        contenders["FedAvg, auto"] = lambda: run(one, executor="auto")
        if find_spec("ray"):
            actors = 2
            contenders[f"FedAvg, Ray, {actors} actors"] = lambda: run(
                one, executor=RayExecutor(num_actors=actors, executor="sequential")
            )
        for name, given in asynchronous(workload).items():
            for executor in ("sequential", "auto"):
                contenders[f"{name}, {executor}"] = partial(run, one, executor=executor, **given)
    against = {"raw loop": "raw loop over a module"}
    if linear:
        against["FedAvg, vectorized"] = "FedAvg, vectorized"
        against["FedAsync, sequential"] = "FedAsync, sequential"
    else:
        against["FedAvg, sequential"] = "FedAvg, sequential"
    show(workload.name, table(taking_turns(contenders, turns), against))


def large(
    workload: Workload, device: str, turns: int, updates: Mapping[str, int], size: float
) -> None:
    """The table of a large model: the floor and FedAvg with each executor."""
    data, floor = workload.data(), Floor(workload, device)
    rounds = max(2, int(size * min(updates.values()) / workload.per_round))
    floor.module_loop(2)  # its memory is asked for once, as ours is in the warm-up
    raw = "raw loop over a module"
    contenders: dict[str, Callable[[], float | Timing]] = {raw: lambda: floor.module_loop(rounds)}
    for executor, number in updates.items():
        contenders[f"FedAvg, {executor}"] = partial(
            timed, workload, data, device, number, executor=executor
        )
    show(workload.name, table(taking_turns(contenders, turns), {"raw loop": raw}))


def unequal(device: str, turns: int, size: float) -> None:
    """Unequal numbers of local steps against equal ones, by local steps a second."""
    data = A.data()
    # so many that nearly all widths of a stack have been traced within the warm-up
    updates = int(size * 150) * A.per_round
    uneven = UniformArrivals(A.per_round, local_steps=UniformSteps(1, 10))
    found = taking_turns(
        {
            "5 steps each": lambda: timed(A, data, device, updates),
            "1 to 10 steps": lambda: timed(A, data, device, 3 * updates, arrivals=uneven),
        },
        turns,
    )
    steps = {
        name: [timing.steps for timing in each if isinstance(timing, Timing)]
        for name, each in found.items()
    }
    show("A, vectorized: local steps a second", table(steps, {"5 steps each": "5 steps each"}))


def dropout(workload: Workload, device: str, turns: int, size: float) -> None:
    """The same network with dropout in front of its last layer against the one without."""
    data = workload.data()
    updates = int(size * 40) * workload.per_round  # some 30 rounds go by before a step is traced

    def with_dropout(p: float) -> nn.Module:
        *before, last = workload.net()
        return nn.Sequential(*before, nn.Dropout(p), last)

    contenders = {"without": partial(timed, workload, data, device, updates)}
    for p in (0.5, 0.1):
        dropped = replace(workload, net=partial(with_dropout, p))
        contenders[f"Dropout({p})"] = partial(timed, dropped, data, device, updates)
    show(
        f"{workload.name}, FedAvg, vectorized",
        table(taking_turns(contenders, turns), {"without": "without"}),
    )


def taking_turns(contenders: Mapping[str, Callable[[], T]], turns: int) -> dict[str, list[T]]:
    """What each contender measures, turn by turn."""
    found: dict[str, list[T]] = {name: [] for name in contenders}
    for turn in range(turns):
        for name, contender in contenders.items():
            found[name].append(contender())
            print(f"\rturn {turn + 1} of {turns}: {name:40}", end="", file=sys.stderr, flush=True)
    print("\r" + " " * 70 + "\r", end="", file=sys.stderr)
    return found


def table(
    found: Mapping[str, Iterable[float | Timing]], against: Mapping[str, str]
) -> list[list[str]]:
    """Medians, ranges, ratios to some of the contenders, and the mean batch where there is one."""
    rates = {
        name: [each.updates if isinstance(each, Timing) else each for each in values]
        for name, values in found.items()
    }
    rows = [["", "a second", "from … to", *(f"/ {head}" for head in against), "mean batch"]]
    for name, values in found.items():
        own = rates[name]
        ratios = [
            statistics.median(a / b for a, b in zip(own, rates[other], strict=True))
            for other in against.values()
        ]
        batches = [each.batch for each in values if isinstance(each, Timing)]
        rows.append(
            [
                name,
                _rate(statistics.median(own)),
                f"{_rate(min(own))} … {_rate(max(own))}",
                *(f"{ratio:.2f}" for ratio in ratios),
                f"{statistics.median(batches):.1f}" if batches else "",
            ]
        )
    return rows


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def show(title: str, rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n### {title}\n")
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows[1:]:
        print("| " + " | ".join(row) + " |")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
