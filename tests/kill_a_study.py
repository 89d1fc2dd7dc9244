"""Kill a study with SIGKILL again and again, continue it, and compare it with one never killed.

Four aggregators with five seeds are 20 runs in one folder. The study is killed at random instants
(at any time, or while a file is being written), either its process alone or all of its processes at
once, and the same call continues it. At the end the table, all fingerprints and all histories have
to be those of the study that nobody killed, and no run may have been done twice: its file is
written once, and none of its rounds is computed after that.

    python tests/kill_a_study.py --kills 20
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from lightning import LightningModule
from torch.utils.data import TensorDataset

from fedlight import Callback, FederatedDataModule, FedTrainer, Study, sweep
from fedlight.aggregators import CA2FL, MIFA, FedAsync, FedBuff
from fedlight.arrivals import ContinuousArrivals, ExponentialDurations
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression

RULES = [FedAsync(alpha=0.5), FedBuff(buffer_size=2), MIFA(2), CA2FL(2)]
INSTANTS = ("any time", "writing")


class Log(Callback):
    """Writes down each round, with the time at which it was made."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_round_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        line = f"{type(trainer.aggregator).__name__} {trainer.seed} {time.time_ns()}\n"
        descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line.encode())  # one call: a kill does not tear it
        os.close(descriptor)


def study(folder: Path, workers: str | int, updates: int) -> None:
    """Compute the runs of a folder that are not finished."""
    parts = (0, 9), (9, 30), (30, 60)
    random_ = torch.Generator().manual_seed(0)
    x = torch.randn(80, 5, generator=random_)
    y = x[:, 0].round().long().remainder(3)
    clients = [TensorDataset(x[start:end], y[start:end]) for start, end in parts]
    sweep(
        over={  # of different lengths, so that runs that go together do not all end at once
            "rule": {
                type(rule).__name__: {
                    "aggregator": rule,
                    "max_updates": updates * part // len(RULES),
                }
                for part, rule in enumerate(RULES, start=1)
            }
        },
        seeds=range(5),
        module=lambda: LogisticRegression(5, 3),
        datamodule=FederatedDataModule.from_client_datasets(
            clients, batch_size=4, val_dataset=TensorDataset(x[60:], y[60:])
        ),
        arrivals=ContinuousArrivals(ExponentialDurations(1.0), resume="on_arrival", local_steps=2),
        local_optimizer=LocalSGD(lr=0.1, momentum=0.9),
        metric="val_loss",
        workers=workers,
        path=folder / "study",
        callbacks=lambda: [Log(folder / "log")],
        checkpoint_seconds=0.1,
        enable_progress_bar=False,
        accelerator="cpu",
    )


def child(run: Callable[[], None]) -> int:
    """Run a function in a fork of this process, which leads a group of processes of its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        shown = os.dup(2)
        if "-v" not in sys.argv:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        run()
    except BaseException:
        os.write(shown, traceback.format_exc().encode())
        os._exit(1)
    os._exit(0)


def finished(folder: Path, workers: str | int, updates: int) -> float:
    """Leave a study alone until it ends; the seconds that it took."""
    start = time.monotonic()
    _, status = os.waitpid(child(lambda: study(folder, workers, updates)), 0)
    if status:
        raise RuntimeError("a study that was continued has failed")
    return time.monotonic() - start


def kill(pid: int, everything: bool) -> None:
    """Kill the process of a study; its workers then end by themselves, or are killed with it."""
    (os.killpg if everything else os.kill)(pid, signal.SIGKILL)


def arm(delay: float, number: int, everything: bool) -> None:
    """Let this study be killed when it writes its `number`-th file after a delay in seconds."""
    sync, pid, armed = os.fsync, os.getpid(), time.monotonic() + delay
    left = multiprocessing.RawValue("i", number)  # all processes count; a lock could stay locked

    def fatal(descriptor: int) -> None:
        left.value -= time.monotonic() > armed
        if left.value <= 0:
            kill(pid, everything)
        sync(descriptor)

    os.fsync = fatal


def kill_once(
    folder: Path, workers: str | int, updates: int, seconds: float, dice: random.Random
) -> str:
    """Begin or continue a study and kill it; says when, or "" if it ended before."""
    instant, everything = dice.choice(INSTANTS), dice.random() < 0.5
    number, delay = dice.randint(1, 8), dice.uniform(0, seconds)

    def run() -> None:
        if instant == "writing":
            arm(delay, number, everything)
        study(folder, workers, updates)

    pid = child(run)
    if instant == "any time":
        time.sleep(delay)
        kill(pid, everything)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return f"{instant}, {'all processes' if everything else 'its process'}"
    if status:
        raise RuntimeError("a study that was continued has failed")
    return ""


@dataclass(frozen=True)
class File:
    """The file of a finished run; another writing of it would be another file.

    Attributes:
        run: Aggregator and seed.
        written: When it was written (nanoseconds), and its number in the file system.
    """

    run: tuple[str, str]
    written: tuple[int, int]


def files(folder: Path) -> Iterator[File]:
    """The files of finished runs."""
    for path in (folder / "study" / "runs").glob("*.json"):
        run, stat = json.loads(path.read_text())["run"], path.stat()
        yield File((run["cell"]["rule"], str(run["seed"])), (stat.st_mtime_ns, stat.st_ino))


def outcome(folder: Path) -> str:
    """All that has to be the same, in words."""
    loaded = Study.load(folder / "study")
    runs = sorted(loaded.runs, key=lambda run: (str(run.cell), run.seed))
    return "\n".join(
        [
            str(loaded.table()),
            *(f"{run.cell} {run.seed} {run.fingerprint}" for run in runs),
            *(repr(run.history) for run in runs),
        ]
    )


def done_twice(folder: Path, seen: dict[tuple[str, str], set[tuple[int, int]]]) -> list[str]:
    """Runs whose file was written again, or of which a round was computed after it was."""
    found = [f"{run} has {len(times)} files" for run, times in seen.items() if len(times) > 1]
    for line in (folder / "log").read_text().splitlines():
        rule, seed, moment = line.split()
        if int(moment) > min(written for written, _ in seen[rule, seed]):
            found.append(f"a round of {rule}, seed {seed}, after its file was written")
    return found


def rounds_of(folder: Path) -> int:
    """How many rounds were computed."""
    return len((folder / "log").read_text().splitlines())


def killed_study(
    folder: Path, workers: str | int, updates: int, kills: int, seconds: float, dice: random.Random
) -> tuple[list[str], list[int], list[str]]:
    """Kill a study so many times, if it lasts, and let it end.

    Returns:
        When it was killed, how many runs were finished then, and what was done twice.
    """
    folder.mkdir()
    seen: dict[tuple[str, str], set[tuple[int, int]]] = {}
    instants: list[str] = []
    finished_runs: list[int] = []

    def look() -> None:
        for file in files(folder):
            seen.setdefault(file.run, set()).add(file.written)

    while len(instants) < kills:
        instant = kill_once(folder, workers, updates, seconds, dice)
        look()
        if not instant:
            break
        instants.append(instant)
        finished_runs.append(len(seen))
    finished(folder, workers, updates)
    look()
    return instants, finished_runs, done_twice(folder, seen)


def main(arguments: list[str] | None = None) -> int:
    """Kill, continue, compare; the exit status is the number of studies that differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="for each way to compute the runs")
    parser.add_argument("--workers", nargs="+", default=["together", "2"], help="the ways")
    parser.add_argument("--updates", type=int, default=400, help="arrivals in the longest runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-v", action="store_true", help="show what the studies print")
    options = parser.parse_args(arguments)
    different = 0
    for name in options.workers:
        workers: Any = int(name) if name.isdigit() else name
        dice, kills, when, studies = random.Random(options.seed), 0, Counter[str](), 0
        with tempfile.TemporaryDirectory() as root:
            whole = Path(root) / "whole"
            whole.mkdir()
            seconds = finished(whole, workers, options.updates)
            expected, rounds = outcome(whole), rounds_of(whole)
            print(f"workers={name}: undisturbed {rounds} rounds in {seconds:.1f} s", flush=True)
            while kills < options.kills:
                folder, left = Path(root) / f"{studies}", options.kills - kills
                longest = 0.5 + 3 * seconds / options.kills  # it takes a moment to begin
                given = (workers, options.updates, left, longest, dice)
                instants, runs, twice = killed_study(folder, *given)
                same = outcome(folder) == expected
                studies, kills = studies + 1, kills + len(instants)
                when.update(instants)
                different += not same or bool(twice)
                print(
                    f"  killed {len(instants)} times, when {runs} runs were finished: table, 20 "
                    f"fingerprints and histories {'identical' if same else 'DIFFERENT'}; "
                    f"runs done twice: "
                    f"{'; '.join(twice) or 'none'}; {rounds_of(folder)} rounds in all",
                    flush=True,
                )
        print(f"workers={name}: {kills} kills {dict(when)} in {studies} studies", flush=True)
    print(f"studies that differ: {different}")
    return different


if __name__ == "__main__":
    sys.exit(main())
