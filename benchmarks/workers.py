"""What several workers buy: with tasks that only wait, with networks on two cores, and its price.

    OMP_NUM_THREADS=1 python benchmarks/workers.py [--only waits cores traffic] [--turns N]
        [--workers K …] [--executors processes ray] [--picture FILE]

- waits: tasks that sleep for 0.1 s, with 1 to 16 workers; the efficiency, which is the time of all
  tasks over the number of workers and the wall clock, and the wall clock over that of an ideal
  scheduler; `--picture` draws the efficiency. The floor: the rounds of FedAvg by hand, in plain
  PyTorch on `multiprocessing.Pool` and on bare Ray actors (`workers_floor.py`)
- cores: a CNN and an LSTM on two cores, by the wall clock, against one task after another. The most
  that these cores give: two such runs side by side, each in its own process
- traffic: the bytes that cross to and from workers, and the CPU time of this process, per task

Medians over the turns, and of the ratios within a turn. All runs of one schedule must give the same
bits, or the script ends with an error.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from lightning import LightningModule
from torch import Tensor, nn

from benchmarks.federations import asynchronous
from benchmarks.run import machine, show, taking_turns
from benchmarks.workers_floor import by_hand, side_by_side
from benchmarks.workloads import LSTM, SMALL_CNN, Workload
from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight.aggregators import FedAsync, FedAvg, FedBuff
from fedlight.arrivals import ContinuousArrivals, UniformArrivals, UniformDurations
from fedlight.executors import (
    Executor,
    Job,
    ProcessExecutor,
    RayExecutor,
    SequentialExecutor,
    Workplace,
)
from fedlight.executors.base import Outcome
from fedlight.local_optimizers import LocalSGD
from fedlight.types import LocalResult, RoundRecord, Task

NAP = 0.1  # seconds
SECONDS = 4.0  # of each case of `waits`, for an ideal scheduler
ROUND, BUFFER, FLIGHT = 16, 8, 32


class Nap(nn.Module):
    """Sleeps when it is trained."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            time.sleep(NAP)
        return x


def cheap(name: str, net: Callable[[], nn.Module], inputs: int, classes: int) -> Workload:
    """One step on one example of so many numbers."""
    return Workload(name, net, (inputs,), classes, 200, 1, 1, per_round=ROUND, steps=1)


def napping() -> nn.Module:
    return nn.Sequential(Nap(), nn.Linear(4, 2))


WAITS = cheap("naps", napping, 4, 2)  # by a name, since it is sent to other processes
WIDE = cheap("100,000 parameters", lambda: nn.Linear(1000, 100, bias=False), 1000, 100)


class Traffic(NamedTuple):
    """What an executor counts, if it does: bytes to and from its workers, and tasks."""

    sent: int
    received: int
    tasks: int

    @classmethod
    def of(cls, executor: Executor) -> Traffic | None:
        found = getattr(executor, "traffic", None)
        return None if found is None else cls(found.sent, found.received, found.tasks)


class Watch(Callback):
    """Reads the clocks and the executor's counter at the first pull and at the end.

    The start of the workers is left out, but no warm-up: workers are ahead of the server, so the
    first tasks of any later part would be computed before its first update arrives.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.begun = 0.0

    def on_dispatch(self, trainer: FedTrainer, module: LightningModule, task: Task) -> None:
        if not self.begun:
            self._traffic, self._cpu = Traffic.of(self._executor), time.process_time()
            self.begun = time.perf_counter()

    def on_event_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        self.ended = time.perf_counter()

    def on_train_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        # Not at each event, as this clock may take 0.2 ms to read.
        self.cpu = time.process_time() - self._cpu
        late = Traffic.of(self._executor)
        self.traffic = None
        if late is not None and self._traffic is not None:
            self.traffic = Traffic(*(b - a for a, b in zip(self._traffic, late, strict=True)))


class Measured(NamedTuple):
    """A run.

    Attributes:
        wall: Seconds from the first pull to the end of the last event.
        cpu: CPU seconds of this process meanwhile.
        traffic: What the executor counted, or None.
        fingerprint: That of the model.
        history: The server updates.
    """

    wall: float
    cpu: float
    traffic: Traffic | None
    fingerprint: str
    history: Sequence[RoundRecord]


def measured(
    workload: Workload,
    data: FederatedDataModule,
    make: Callable[[], Executor],
    method: Mapping[str, Any],
) -> Measured:
    """A run with the aggregator, the arrivals and the limit of `method`."""
    executor = make()
    watch = Watch(executor)
    trainer = FedTrainer(
        **method,
        local_optimizer=LocalSGD(lr=0.1),
        executor=executor,
        callbacks=[watch],
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
        check_val_every_n_rounds=None,
    )
    trainer.fit(workload.module(), data)
    wall = watch.ended - watch.begun
    return Measured(wall, watch.cpu, watch.traffic, trainer.fingerprint(), trainer.history)


def executors(kinds: Iterable[str], workers: int) -> dict[str, Callable[[], Executor]]:
    """Make executors with so many workers, also if there are fewer cores."""
    # Ray starts no actor that asks for more cores than are free.
    share = min(1.0, math.floor(2000 / workers) / 1000)
    makers: dict[str, Callable[[], Executor]] = {
        "processes": lambda: ProcessExecutor(workers=workers),
        "ray": lambda: RayExecutor(workers, executor="sequential", num_cpus=share),
    }
    return {kind: makers[kind] for kind in kinds}


def in_turns(
    workload: Workload,
    data: FederatedDataModule,
    makers: Mapping[str, Callable[[], Executor]],
    method: Mapping[str, Any],
    turns: int,
) -> dict[str, list[Measured]]:
    """The runs with each executor.

    Raises:
        SystemExit: They have not all given the same bits.
    """
    run = partial(measured, workload, data)
    found = taking_turns({kind: partial(run, make, method) for kind, make in makers.items()}, turns)
    bits = {kind: sorted({each.fingerprint for each in own}) for kind, own in found.items()}
    if len(set(map(tuple, bits.values()))) > 1 or any(len(own) > 1 for own in bits.values()):
        raise SystemExit(f"{workload.name}, {method}: the bits are not all the same: {bits}")
    return found


def methods(in_flight: int, tasks: int) -> dict[str, dict[str, Any]]:
    """Rounds, a buffer, and a server step per update, with so many tasks.

    A client works for 0.5 to 1.5. With exponential durations a client that has just pulled may be
    the next one to arrive, and then all that keeps the workers busy is what else is in flight.
    """

    def clock(resume: str) -> ContinuousArrivals:
        return ContinuousArrivals(
            UniformDurations(0.5, 1.5), concurrency=in_flight, resume=resume, local_steps=1
        )

    return {
        f"FedAvg({ROUND})": {
            "aggregator": FedAvg(),
            "arrivals": UniformArrivals(ROUND, local_steps=1),
            "max_rounds": tasks // ROUND,
        },
        f"FedBuff({BUFFER})": {
            "aggregator": FedBuff(buffer_size=BUFFER),
            "arrivals": clock("on_arrival"),
            "max_rounds": tasks // BUFFER,
        },
        "FedAsync": {
            "aggregator": FedAsync(alpha=0.6),
            "arrivals": clock("on_aggregation"),
            "max_rounds": tasks,
        },
    }


def ideal(history: Iterable[RoundRecord], workers: int) -> int:
    """Turns that a list scheduler without any overhead takes for tasks that all take one turn.

    A task may start when the version that it pulls exists, and a version exists when all tasks
    whose updates are in it, or in an earlier one, are done. Of the tasks that may start, those that
    the server uses first are first.

    Args:
        history: The server updates.
        workers: Number of workers; as many as there are tasks for the longest chain of tasks, each
            of which needs the one before.
    """
    waiting = [
        (record.version, update.pulled_version) for record in history for update in record.updates
    ]
    turns = 0
    while waiting:
        newest, free, later = waiting[0][0] - 1, workers, []
        for version, pulled in waiting:
            if free and pulled <= newest:
                free -= 1
            else:
                later.append((version, pulled))
        waiting, turns = later, turns + 1
    return turns


def waits(chosen: argparse.Namespace) -> None:
    """Tasks that sleep, for each number of workers."""
    data = WAITS.data()
    efficiency: dict[str, list[str]] = {}
    beyond: dict[str, list[str]] = {}
    schedules: dict[str, list[str]] = {}
    curves: dict[tuple[str, str], list[float]] = {}
    floors: dict[str, list[str]] = {}
    for workers in chosen.workers:
        tasks = ROUND * math.ceil(SECONDS / NAP * workers / ROUND)  # whole rounds
        for name, method in methods(max(4 * workers, FLIGHT), tasks).items():
            found = in_turns(
                WAITS, data, executors(chosen.executors, workers), method, chosen.turns
            )
            history = found[chosen.executors[0]][0].history
            least = ideal(history, workers)
            chain = ideal(history, tasks)
            cell = f"{tasks} tasks, {least} turns, chain of {chain}"
            schedules.setdefault(name, []).append(cell)
            for kind, own in found.items():
                wall = statistics.median(each.wall for each in own)
                curves.setdefault((name, kind), []).append(tasks * NAP / (workers * wall))
                beyond.setdefault(f"{name}, {kind}", []).append(f"{wall / (least * NAP):.2f}")
            curves.setdefault((name, "ideal"), []).append(tasks / (workers * least))
            if name.startswith("FedAvg"):
                for kind in found:
                    hand = (by_hand(kind, WAITS, workers, tasks) for _ in range(chosen.turns))
                    reached = tasks * NAP / (workers * statistics.median(hand))
                    floors.setdefault(f"{name}, {kind} by hand", []).append(f"{reached:.2f}")
            shown = ", ".join(f"{kind} {curves[name, kind][-1]:.2f}" for kind in found)
            print(f"{workers} workers, {name}: {shown}", file=sys.stderr, flush=True)
    for (name, kind), values in curves.items():
        efficiency[f"{name}, {kind}"] = [f"{value:.2f}" for value in values]
    head = ["workers", *map(str, chosen.workers)]
    for title, cells in (
        ("Tasks that wait: efficiency", {**efficiency, **floors}),
        ("Tasks that wait: wall clock / ideal", beyond),
        (f"Their schedules: tasks, turns of {NAP:g} s of the ideal scheduler, chain", schedules),
    ):
        show(title, [head, *([name, *values] for name, values in cells.items())])
    if chosen.picture:
        draw(chosen.picture, chosen.workers, curves)


def draw(file: Path, workers: Sequence[int], curves: Mapping[tuple[str, str], list[float]]) -> None:
    """The efficiency over the number of workers: a colour for each method, dashes by executor."""
    from matplotlib import pyplot

    from fedlight.plot import COLOURS, DASHES

    names = dict(zip(dict.fromkeys(name for name, _ in curves), COLOURS, strict=False))
    kinds = dict(zip(("processes", "ray", "ideal"), ("-", "--", DASHES[3]), strict=True))
    figure, ax = pyplot.subplots(figsize=(6.0, 4.0), layout="constrained")
    for (name, kind), values in curves.items():
        style = {"linewidth": 1.0} if kind == "ideal" else {"marker": "o", "markersize": 4}
        ax.plot(workers, values, kinds[kind], color=names[name], label=f"{name}, {kind}", **style)
    ax.set_xscale("log", base=2)
    ax.set_xticks(workers, map(str, workers))
    ax.set(xlabel="workers", ylabel=f"efficiency, tasks of {NAP:g} s", ylim=(0, 1.05))
    ax.grid(color="#e9ecef", linewidth=0.8)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize="small", ncols=len(names))
    figure.savefig(file, dpi=80, bbox_inches="tight")


def cores(chosen: argparse.Namespace) -> None:
    """Networks that do not stack on a CPU, on two cores."""
    workers = 2
    for workload in (SMALL_CNN, LSTM):
        data, per_round = workload.data(), workload.per_round
        tasks, rounds = 12 * per_round, UniformArrivals(per_round, local_steps=workload.steps)
        clocks = asynchronous(workload, in_flight=20)  # exponential durations, as in `run.py`
        by_name = {
            f"FedAvg({per_round})": {
                "aggregator": FedAvg(),
                "arrivals": rounds,
                "max_rounds": tasks // per_round,
            },
            "FedBuff(10)": {**clocks["FedBuff(10)"], "max_rounds": tasks // 10},
            "FedAsync": {**clocks["FedAsync"], "max_rounds": tasks},
        }
        rows = [["", "updates a second", "/ sequential", "ideal"]]
        for name, method in by_name.items():
            makers = {"sequential": SequentialExecutor, **executors(chosen.executors, workers)}
            found = in_turns(workload, data, makers, method, chosen.turns)
            first = found["sequential"]
            copies = side_by_side(partial(_alone, workload, method), workers, chosen.turns)
            for kind, own in found.items():
                rate = tasks / statistics.median(each.wall for each in own)
                ratio = statistics.median(a.wall / b.wall for a, b in zip(first, own, strict=True))
                number = 1 if kind == "sequential" else workers
                best = tasks / ideal(own[0].history, number)
                rows.append([f"{name}, {kind}", f"{rate:.1f}", f"{ratio:.2f}", f"{best:.2f}"])
            rows.append([f"{name}, {workers} runs side by side", "", f"{copies:.2f}", ""])
        show(f"{workload.name}; {workers} workers", rows)


def _alone(workload: Workload, method: Mapping[str, Any]) -> float:
    """The seconds of a run of which one task is computed after another."""
    return measured(workload, workload.data(), SequentialExecutor, method).wall


class AtHand(Executor):
    """Has all results already, so that only the server works."""

    max_batch, independent = 256, True

    def setup(self, workplace: Workplace) -> None:
        state = workplace.state.read()
        self._tensors = state.params * 0, state.buffers, state.counters

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        return [LocalResult(*self._tensors) for _ in jobs]


def traffic(chosen: argparse.Namespace) -> None:
    """Bytes and the CPU time of this process per task, with four workers and cheap tasks."""
    workers, tasks, data = 4, 20 * ROUND, WIDE.data()
    rows = [["", "sent, bytes a task", "received, bytes a task", "this process, CPU ms a task"]]
    for name, method in methods(FLIGHT, tasks).items():
        there = in_turns(WIDE, data, executors(chosen.executors, workers), method, chosen.turns)
        found = in_turns(WIDE, data, {"results at hand": AtHand}, method, chosen.turns)
        for kind, own in (found | there).items():
            counted, sizes = own[-1].traffic, ["", ""]
            if counted is not None:
                per_task = (counted.sent / counted.tasks, counted.received / counted.tasks)
                sizes = [f"{size:,.0f}" for size in per_task]
            cpu = statistics.median(each.cpu for each in own) / tasks * 1e3
            rows.append([f"{name}, {kind}", *sizes, f"{cpu:.2f}"])
    show(f"{WIDE.name}, {workers} workers", rows)


PARTS = {"waits": waits, "cores": cores, "traffic": traffic}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    there = ("processes", "ray") if find_spec("ray") else ("processes",)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=tuple(PARTS))
    parser.add_argument("--workers", nargs="+", type=int, default=(1, 2, 4, 8, 16))
    parser.add_argument("--executors", nargs="+", choices=("processes", "ray"), default=there)
    parser.add_argument("--picture", type=Path, help="where the figure of `waits` goes")
    chosen = parser.parse_args()
    if chosen.picture and not ("waits" in chosen.only and find_spec("matplotlib")):
        parser.error("--picture needs the part waits, and matplotlib")
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)  # as in the workers: the bits depend on it
    # Else whatever runs beside goes first, before Ray's workers but not before ours.
    os.environ.setdefault("RAY_worker_niceness", "0")
    print(machine("cpu"), flush=True)
    for name in chosen.only:
        PARTS[name](chosen)


if __name__ == "__main__":
    main()
