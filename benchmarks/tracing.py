"""What each part of the tracer buys, as a multiple of the raw PyTorch loop.

    OMP_NUM_THREADS=1 python benchmarks/tracing.py [--turns N] [--clock wall]

Executors that differ in one part of the tracer compute the same stacks in one process. They take
turns stack by stack, so that a busy machine slows all of them alike. A figure is the median over
the turns of the ratio to the raw loop, or to the executor with all parts, in the same turn. The
last table has the first stacks of a run, with the cost of tracing, each in a forked process. By
default the clock counts the CPU seconds of the process, for a machine that is shared.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks import clock
from benchmarks.clock import now
from benchmarks.floors import Floor
from benchmarks.run import machine, show
from benchmarks.workloads import A, B, Workload
from fedlight.executors import Job, VectorizedExecutor, Workplace
from fedlight.executors._stack.step import StackedStep
from fedlight.executors._tracing import TracedStep
from fedlight.local_optimizers import LocalSGD
from fedlight.parameters import ModuleState
from fedlight.types import Task

NEVER = 10**9
VARIANTS: dict[str, dict[str, Any]] = {
    "untraced": {"after": NEVER},
    "traced with make_fx alone": {"without": ("simplify", "sizes", "interpreter")},
    "+ simplified graph": {"without": ("sizes", "interpreter")},
    "+ programs for other sizes": {"without": ("interpreter",)},
    "+ TorchScript's interpreter: all": {},
    "all but the simplified graph": {"without": ("simplify",)},
    "all but programs for other sizes": {"without": ("sizes",)},
    "all but narrow layers along the batch": {"narrow": False},
    "untraced, without narrow layers": {"narrow": False, "after": NEVER},
}
ALL = "+ TorchScript's interpreter: all"
FIRST = ["untraced", "+ programs for other sizes", ALL, "all but programs for other sizes"]


@dataclass(frozen=True)
class Stacks:
    """Which stacks are computed.

    Attributes:
        workload: The module and the data.
        clients: Smallest and largest number of clients in a stack.
        steps: Smallest and largest number of local steps of a client.
    """

    workload: Workload
    clients: tuple[int, int]
    steps: tuple[int, int] = (5, 5)


SETTINGS = {
    "A": Stacks(A, (20, 20)),
    "B": Stacks(B, (100, 100)),
    "A, 1 to 10 steps": Stacks(A, (20, 20), (1, 10)),
    "B, 1 to 10 steps": Stacks(B, (100, 100), (1, 10)),
    "A, 1 to 10 clients": Stacks(A, (1, 10)),
    "B, 1 to 10 clients": Stacks(B, (1, 10)),
}


class Variant(VectorizedExecutor):
    """The vectorized executor with some parts of its tracer left out."""

    def __init__(self, narrow: bool = True, **tracer: Any) -> None:
        super().__init__()
        self._narrow, self._tracer = narrow, tracer

    def setup(self, workplace: Workplace) -> None:
        super().setup(workplace)
        self._step = TracedStep(StackedStep(workplace, self._narrow), **self._tracer)


def workplace(workload: Workload) -> Workplace:
    """All that the executors of a workload share."""
    data, module = workload.data(), workload.module()
    return Workplace(
        module=module,
        state=ModuleState(module),
        optimizer=LocalSGD(lr=0.1),
        partition=data.partition,
        examples=data.train_data,
        batch_size=workload.batch_size,
        seed=0,
    )


def stacks(chosen: Stacks, work: Workplace) -> Iterator[list[Job]]:
    """Stacks of random clients, always the same ones."""
    rng, pulled, visit = np.random.default_rng(0), work.state.read(), 0
    while True:
        n = int(rng.integers(chosen.clients[0], chosen.clients[1] + 1))
        clients = rng.choice(chosen.workload.clients, n, replace=False).tolist()
        steps = rng.integers(chosen.steps[0], chosen.steps[1] + 1, n).tolist()
        visit += 1
        yield [
            Job(Task(client, 0, 0.0, 1.0, num_steps, serial=0, visit=visit), pulled)
            for client, num_steps in zip(clients, steps, strict=True)
        ]


def ready(work: Workplace, variant: str) -> Variant:
    """An executor that is set up."""
    executor = Variant(**VARIANTS[variant])
    executor.setup(work)
    return executor


def seconds(executor: Variant, jobs: Sequence[Job]) -> float:
    """Seconds that a stack takes."""
    begun = now()
    executor.run(jobs)
    return now() - begun


def in_turns(
    chosen: Stacks, variants: Sequence[str], turns: int, warm: int
) -> dict[str, list[float]]:
    """Seconds of each stack after the warm-up, for each variant and for the raw loop."""
    work = workplace(chosen.workload)
    floor = Floor(chosen.workload, "cpu")
    source = stacks(chosen, work)
    executors = {variant: ready(work, variant) for variant in variants}
    for jobs in (next(source) for _ in range(warm)):
        for executor in executors.values():
            executor.run(jobs)
    found: dict[str, list[float]] = {variant: [] for variant in ("raw", *variants)}
    order = list(variants)
    for turn in range(turns):
        jobs = next(source)
        # the raw loop makes 5 local steps a client; this counts its time by steps
        share = sum(job.task.num_steps for job in jobs) / 5
        found["raw"].append(share / floor.module_loop(1))
        order.append(order.pop(0))  # whoever comes first finds another cache
        for variant in order:
            found[variant].append(seconds(executors[variant], jobs))
        print(f"\rturn {turn + 1} of {turns}", end="", file=sys.stderr, flush=True)
    print("\r" + " " * 30 + "\r", end="", file=sys.stderr)
    return found


def from_the_start(chosen: Stacks, number: int, variant: str) -> float:
    """Seconds of the first stacks of a run."""
    work = workplace(chosen.workload)
    executor, source = ready(work, variant), stacks(chosen, work)
    return sum(seconds(executor, next(source)) for _ in range(number))


def apart(function: Callable[[], Any]) -> Any:
    """Call a function in a process forked from this one: nothing is traced there yet."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=lambda: there.send(function()))
    process.start()
    there.close()
    try:
        return here.recv()
    finally:
        process.join()


def ratios(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the ratios."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=60, help="stacks of each executor")
    parser.add_argument("--warm", type=int, default=60, help="stacks before those")
    parser.add_argument("--clock", default="cpu", choices=tuple(clock.CLOCKS))
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--no-first", action="store_true", help="without the last table")
    chosen = parser.parse_args()
    clock.chosen = chosen.clock
    warnings.filterwarnings("ignore")
    print(f"{machine('cpu')}; {chosen.clock} clock", flush=True)
    names, variants = chosen.only, list(VARIANTS)
    raw: dict[str, Mapping[str, float]] = {}
    best: dict[str, Mapping[str, float]] = {}
    for name in names:
        found = apart(partial(in_turns, SETTINGS[name], variants, chosen.turns, chosen.warm))
        raw[name] = {key: ratios(found["raw"], found[key]) for key in variants}
        best[name] = {key: ratios(found[ALL], found[key]) for key in variants}
        print(f"{name} done", file=sys.stderr)
    show("Client updates a second, / raw loop", table(names, variants, raw))
    show("The same, / the executor with all parts", table(names, variants, best, digits=3))
    if not chosen.no_first:
        first: dict[str, Mapping[str, float]] = {}
        for name in names:
            number, turns = chosen.warm, 5
            found = {key: [] for key in FIRST}
            for _ in range(turns):
                for key in FIRST:
                    found[key].append(apart(partial(from_the_start, SETTINGS[name], number, key)))
            first[name] = {key: statistics.median(found[key]) for key in FIRST}
        show(f"Seconds of the first {chosen.warm} stacks", table(names, FIRST, first))


def table(
    columns: Sequence[str],
    rows: Sequence[str],
    found: Mapping[str, Mapping[str, float]],
    digits: int = 2,
) -> list[list[str]]:
    """The lines of a table of numbers."""
    lines = [[row, *(f"{found[name][row]:.{digits}f}" for name in columns)] for row in rows]
    return [["", *columns], *lines]


if __name__ == "__main__":
    main()
