"""Kill a run with SIGKILL again and again, resume it, and compare it with one never killed.

For each aggregator with a local optimizer that is hard to resume: a child process trains and saves
a checkpoint after every arrival; it is killed at a random instant (at any time, in a training step,
in an aggregation, while a checkpoint is being written); a new child goes on with
``ckpt_path="last"``; and so on. At the end fingerprint, history and TensorBoard's points have to be
those of the run that nobody killed.

    python tests/kill_and_resume.py --kills 100

With ``--workers 4`` the runs have four worker processes, and are compared with one that has none.
``--lost`` then kills workers in place of the runs: a run goes on without them.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import signal
import stat
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from lightning import LightningModule
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule, FedTrainer
from fedlight._fit.callback_hooks import Hooks
from fedlight.aggregators import (
    AFACD,
    AFACS,
    AREA,
    CA2FL,
    DCASGD,
    FADAS,
    MIFA,
    AsyncCommSGD,
    AsyncFedAvg,
    BufferedAggregator,
    DelayedNesterov,
    FedAsync,
    FedAT,
    FedAvg,
    FedBuff,
    FedDynServer,
    FedFix,
    FedVARP,
    HALoS,
    Malenia,
    QuAFL,
)
from fedlight.aggregators.staleness import Hinge
from fedlight.arrivals import (
    CommunicationPattern,
    ContinuousArrivals,
    DropOut,
    ExponentialDurations,
    Oort,
    PartialWork,
    Pisces,
    PoissonArrivals,
    PolledArrivals,
    PowerOfChoice,
    RandomTicks,
    Regions,
    StepsBySpeed,
    SynchronousArrivals,
    Tiers,
    UniformArrivals,
    UniformSteps,
)
from fedlight.callbacks import CSVMetrics, EventLog, FedCheckpoint, TensorBoardMetrics
from fedlight.channel import QSGD, Clip, ErrorFeedback, TopK
from fedlight.executors import ProcessExecutor
from fedlight.local_optimizers import (
    SAM,
    FedDyn,
    FedProx,
    LocalAdam,
    LocalAdamW,
    LocalSGD,
    ModuleOptimizer,
    OwnModel,
    Scaffold,
    WarmupCosine,
)

STEPS = UniformSteps(1, 4)
CLOCK = ExponentialDurations(1.0)
Factory = Callable[[], dict[str, Any]]


class Net(LightningModule):
    """Batch norm has floating and integer buffers, dropout draws random numbers."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
        )

    def training_step(self, batch, batch_idx):
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]


CASES: dict[str, Factory] = {
    "AFACS": lambda: {
        "arrivals": UniformArrivals(3, max_staleness=2, local_steps=STEPS),
        "aggregator": AFACS(),
        "local_optimizer": Scaffold(0.1),
    },
    "AFACD": lambda: {
        "arrivals": PartialWork(UniformArrivals(3, max_staleness=3, local_steps=STEPS), 0.5),
        "aggregator": AFACD(server_lr=lambda version: 1 / (1 + version)),
        "local_optimizer": LocalSGD(0.1, momentum=0.9, nesterov=True),
        "executor": "vectorized",
    },
    "FedAvg": lambda: {
        "arrivals": ContinuousArrivals(CLOCK, concurrency=3, idle=0.2, local_steps=STEPS),
        "aggregator": FedAvg(2, server_optimizer=lambda params: torch.optim.Adam(params, 0.05)),
        "local_optimizer": Scaffold(0.1, option=1),
    },
    "FedAsync": lambda: {
        "arrivals": ContinuousArrivals(CLOCK, resume="on_arrival", local_steps=STEPS),
        "aggregator": FedAsync(lambda version: 0.5, Hinge(2, 1), max_staleness=5),
        "local_optimizer": LocalAdam(0.02),
        "executor": "vectorized",
    },
    "AsyncFedAvg": lambda: {
        "arrivals": PoissonArrivals(4.0, CLOCK, local_steps=STEPS),
        "aggregator": AsyncFedAvg(server_optimizer=lambda p: torch.optim.SGD(p, 0.5, 0.9)),
        "local_optimizer": Scaffold(0.1),
    },
    "FedFix": lambda: {
        "arrivals": DropOut(ContinuousArrivals(CLOCK, local_steps=STEPS), 0.3),
        "aggregator": FedFix(0.5),
        "local_optimizer": None,
        "on_client_failure": "drop",
        "broken": True,
    },
    "FedBuff": lambda: {
        "arrivals": ContinuousArrivals(CLOCK, resume="on_arrival", local_steps=STEPS),
        "aggregator": FedBuff(3, server_optimizer=lambda p: torch.optim.Adam(p, 0.05)),
        "local_optimizer": FedProx(0.1, mu=0.1, momentum=0.9),
        "executor": "vectorized",
        "on_client_failure": "retry",
        "max_update_norm": 1.0,
        "broken": True,
    },
    "AsyncCommSGD": lambda: {
        "arrivals": CommunicationPattern(RandomTicks(0.6, max_gap=3)),
        "aggregator": AsyncCommSGD(1.0),
        "local_optimizer": Scaffold(0.1),
    },
    "channel": lambda: {
        "arrivals": PoissonArrivals(4.0, CLOCK, local_steps=STEPS),
        "aggregator": FedAsync(0.5, max_staleness=3),
        "local_optimizer": LocalSGD(0.1),
        "channel": [Clip(1.0), ErrorFeedback([TopK(0.2), QSGD(4)])],
    },
    "restarts": lambda: {
        "arrivals": DropOut(
            ContinuousArrivals(
                CLOCK, resume="on_arrival", local_steps=STEPS, restart_after=1, concurrency=4
            ),
            0.2,
        ),
        "aggregator": FedBuff(2),
        "local_optimizer": Scaffold(0.1),
        "executor": "vectorized",
        "on_client_failure": "retry",
        "broken": True,
    },
    "cut": lambda: {
        "arrivals": SynchronousArrivals(3, CLOCK, STEPS, 1, timeout=0.8, late="cut"),
        "aggregator": FedAvg(),
        "local_optimizer": LocalSGD(0.1, momentum=0.9),
        "executor": "vectorized",
    },
    "grace": lambda: {
        "arrivals": SynchronousArrivals(
            None,
            CLOCK,
            StepsBySpeed(6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], least=2),
            late="continue",
            quorum=2,
            grace=0.2,
        ),
        "aggregator": FedAvg(),
        "local_optimizer": LocalSGD(0.1),
        "channel": ErrorFeedback(TopK(0.2), decay=0.5),
        "executor": "vectorized",
    },
    # The clients make 2 to 14 steps: the rates of some still rise, those of others fall.
    "kept": lambda: {
        "arrivals": ContinuousArrivals(CLOCK, resume="on_arrival", local_steps=STEPS),
        "aggregator": DelayedNesterov(3, c=0.2),
        "local_optimizer": LocalAdamW(WarmupCosine(0.05, 3, 20, floor=0.001), keep="client"),
        "executor": "vectorized",
    },
    "QuAFL": lambda: {
        "arrivals": PolledArrivals(3, 0.7, ExponentialDurations(0.4), 4),
        "aggregator": QuAFL(),
        "local_optimizer": OwnModel(LocalSGD(0.1), 3),
        "executor": "vectorized",
    },
    "FedAT": lambda: {
        "arrivals": Tiers(
            {
                "fast": SynchronousArrivals(2, ExponentialDurations(0.4), STEPS, 1),
                "slow": SynchronousArrivals(1, CLOCK, STEPS),
            },
            clients={"fast": [0, 2, 3], "slow": [1]},
        ),
        "aggregator": FedAT(),
        "local_optimizer": LocalAdam(0.02),
    },
    "HALoS": lambda: {
        "arrivals": Regions(
            {name: ContinuousArrivals(CLOCK, local_steps=STEPS) for name in ("near", "far")},
            {"near": [0, 2], "far": [1, 3]},
            arrivals_per_send=2,
            up={"near": 0.0, "far": 0.9},
            down=0.4,
        ),
        "aggregator": HALoS(2, 0.5, 0.8, region_period=2, region_lr=0.9),
        "local_optimizer": LocalSGD(0.1, momentum=0.5, keep="client"),
    },
    "MIFA": lambda: {
        "arrivals": ContinuousArrivals(CLOCK, resume="on_arrival", local_steps=STEPS),
        "aggregator": MIFA(2, server_lr=lambda version: 1 / (1 + version)),
        "local_optimizer": LocalSGD(0.1),
        "executor": "vectorized",
        "on_client_failure": "drop",
        "broken": True,
    },
    "CA2FL": lambda: {
        "arrivals": PoissonArrivals(4.0, CLOCK, local_steps=STEPS),
        "aggregator": CA2FL(2, server_optimizer=lambda p: torch.optim.SGD(p, 0.5, 0.9)),
        "local_optimizer": SAM(0.1, 0.1, momentum=0.9),
        "executor": "vectorized",
    },
    "FedVARP": lambda: {
        "arrivals": UniformArrivals(3, max_staleness=2, local_steps=STEPS),
        "aggregator": FedVARP(beta=0.5),
        "local_optimizer": Scaffold(0.1),
    },
    "FADAS": lambda: {
        "arrivals": ContinuousArrivals(CLOCK, resume="on_arrival", local_steps=STEPS),
        "aggregator": FADAS(2, 0.1, delay="divided", bias_correction=True),
        "local_optimizer": LocalSGD(0.1),
        "executor": "vectorized",
    },
    "AREA": lambda: {
        "arrivals": ContinuousArrivals(CLOCK, concurrency=3, local_steps=STEPS),
        "aggregator": AREA(2),
        "local_optimizer": LocalSGD(0.05),
    },
    "DCASGD": lambda: {
        "arrivals": ContinuousArrivals(CLOCK, resume="on_arrival", local_steps=STEPS),
        "aggregator": DCASGD(0.1, 0.5, local_lr=0.1, decay=0.95),
        "local_optimizer": LocalSGD(0.1),
        "executor": "vectorized",
    },
    "Malenia": lambda: {
        "arrivals": ContinuousArrivals(CLOCK, resume="on_arrival", local_steps=STEPS),
        "aggregator": Malenia(8),
        "local_optimizer": FedProx(0.1, mu=0.1),
        "on_client_failure": "retry",
        "max_update_norm": 1.0,
    },
    "FedDyn": lambda: {
        "arrivals": UniformArrivals(3, max_staleness=2, local_steps=STEPS),
        "aggregator": FedDynServer(0.5),
        "local_optimizer": FedDyn(0.05, 0.5),
        "executor": "vectorized",
    },
    "Oort": lambda: {
        "arrivals": Oort(
            SynchronousArrivals(3, CLOCK, STEPS, 1), exploration=0.5, pacer_window=2, preferred=50
        ),
        "aggregator": FedAvg(),
        "local_optimizer": LocalSGD(0.1, momentum=0.9),
        "executor": "vectorized",
    },
    "Pisces": lambda: {
        "arrivals": DropOut(
            Pisces(
                ContinuousArrivals(CLOCK, concurrency=3, resume="on_arrival", local_steps=STEPS),
                staleness_bound=2,
            ),
            0.2,
        ),
        "aggregator": FedAvg(),
        "local_optimizer": Scaffold(0.1),
        "executor": "vectorized",
        "channel": ErrorFeedback(TopK(0.2)),
    },
    "PowerOfChoice": lambda: {
        "arrivals": PowerOfChoice(
            ContinuousArrivals(CLOCK, concurrency=3, local_steps=STEPS), candidates=4
        ),
        "aggregator": FedBuff(2),
        "local_optimizer": LocalSGD(0.1),
        "executor": "vectorized",
        "on_client_failure": "retry",
        "broken": True,
    },
}
INSTANTS = ("any time", "training", "aggregation", "writing")


def clients(broken: bool) -> FederatedDataModule:
    """Six clients of unequal sizes; where wanted one that has NaN among its numbers."""
    random_ = torch.Generator().manual_seed(0)

    def table(size: int) -> TensorDataset:
        x = torch.randn(size, 5, generator=random_)
        return TensorDataset(x, x[:, 0].round().long().remainder(3))

    tables = [table(size) for size in (4, 9, 12, 7, 30, 6)]
    if broken:
        tables[1].tensors[0][:] = math.nan
    return FederatedDataModule.from_client_datasets(tables, batch_size=4, val_dataset=table(20))


def train(case: str, folder: Path, rounds: int, executor: Any = None) -> FedTrainer:
    """A run in `folder`, from its last checkpoint where there is one."""
    given = {"executor": "sequential", **CASES[case]()}
    if executor is not None:
        given["executor"] = executor
    data = clients(given.pop("broken", False))
    trainer = FedTrainer(
        **given,
        max_rounds=rounds,
        accelerator="cpu",
        logger=TensorBoardLogger(folder, name="logs"),
        enable_progress_bar=False,
        callbacks=[
            TensorBoardMetrics(histogram_every_n_rounds=4, picture_every_n_rounds=None),
            CSVMetrics(folder / "metrics.csv", flush_every_n_rounds=3),
            EventLog(folder / "events.parquet"),
            FedCheckpoint(folder / "checkpoints", every_n_updates=1, save_top_k=2),
        ],
    )
    trainer.fit(Net(), data, ckpt_path="last")
    return trainer


def outcome(trainer: FedTrainer, folder: Path) -> str:
    """All that has to be the same, in words."""
    return "\n".join(
        [
            trainer.fingerprint(),
            *map(repr, trainer.history),
            *map(repr, sorted(points(newest_log(folder)).items())),
            (folder / "metrics.csv").read_text(),
            repr(trainer.callbacks[2].table().to_pydict()),
        ]
    )


def newest_log(folder: Path) -> Path:
    """A run that was killed before its first checkpoint starts anew, in a folder of its own."""
    return max((folder / "logs").iterdir(), key=lambda path: int(path.name.split("_")[-1]))


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every curve in TensorBoard, but for the real time of the run: its steps and values."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    reader.Reload()
    curves = {
        tag: [(event.step, event.value) for event in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
        if tag != "run/seconds"
    }
    for tag in reader.Tags()["histograms"]:
        found = reader.Histograms(tag)
        curves[tag] = [(event.step, event.histogram_value.sum) for event in found]
    return curves


def arm(instant: str, number: int, dice: random.Random) -> None:
    """Let this process kill itself in the `number`-th training step, aggregation or writing."""
    left = [number]

    def strike() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if instant == "training":
        for kind in (FedProx, LocalAdam, LocalSGD, ModuleOptimizer, Scaffold):
            strike_before(kind, "step", strike)
    elif instant == "aggregation":
        if dice.random() < 0.5:  # before the step, or once the version is made
            strike_before(BufferedAggregator, "step", strike)
            strike_before(FedAsync, "step", strike)
        else:
            strike_before(Hooks, "on_version", strike)
    elif instant == "writing":
        sync = os.fsync

        def torn(descriptor: int) -> None:
            found = os.fstat(descriptor)
            if left[0] == 1 and stat.S_ISREG(found.st_mode) and dice.random() < 0.5:
                os.ftruncate(descriptor, dice.randrange(found.st_size))
            strike()
            sync(descriptor)

        os.fsync = torn


def strike_before(kind: type[Any], name: str, strike: Callable[[], None]) -> None:
    """Call `strike` before each call of a method."""
    method = getattr(kind, name)

    def striking(self: Any, *args: Any) -> Any:
        strike()
        return method(self, *args)

    setattr(kind, name, striking)


def child(run: Callable[[], None]) -> int:
    """Run a function in a fork of this process, which has imported everything already."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        sys.stderr = open(os.devnull, "w") if "-v" not in sys.argv else sys.stderr  # noqa: SIM115
        run()
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        os._exit(1)
    os._exit(0)


def finished(
    case: str, folder: Path, rounds: int, executor: Any = None, lost: int = 0, within: float = 1.0
) -> str:
    """The outcome of a run that is left alone, from where it is.

    Args:
        case: Its name.
        folder: Where it is.
        rounds: Where it ends.
        executor: The executor; None for that of the case.
        lost: How many of its workers are killed at random instants.
        within: About how many seconds it takes.
    """

    def run() -> None:
        killing = threading.Thread(target=kill_workers, args=(lost, within, folder), daemon=True)
        if lost:
            killing.start()
        (folder / "outcome").write_text(outcome(train(case, folder, rounds, executor), folder))

    pid = child(run)
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"{case}: a run that went on from a checkpoint failed")
    return (folder / "outcome").read_text()


def kill_workers(number: int, within: float, folder: Path) -> None:
    """Kill workers of this process, one after another; write down how many."""
    dice, killed = random.Random(number), 0
    while not (folder / "checkpoints" / "last.ckpt").exists():  # one lost at the start is an error
        time.sleep(0.01)
    while killed < number:
        time.sleep(dice.uniform(0.2, 1) * within / number)
        workers = multiprocessing.active_children()
        if workers:
            os.kill(dice.choice(workers).pid, signal.SIGKILL)
            killed += 1
            (folder / "lost").write_text(str(killed))


def kill_once(
    case: str,
    folder: Path,
    rounds: int,
    seconds: float,
    dice: random.Random,
    executor: Any = None,
) -> str:
    """Start (or go on with) a run and kill it; says when, or "" where it was done before."""
    # In a step it would be a worker that is killed, and its successor, and the next one.
    instants = [each for each in INSTANTS if executor is None or each != "training"]
    instant = dice.choice(instants)
    number = dice.randint(1, 12)
    wait_for_the_next_second()

    def run() -> None:
        arm(instant, number, dice)
        train(case, folder, rounds, executor)

    pid = child(run)
    if instant == "any time":
        time.sleep(dice.uniform(0, seconds))
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return instant
    if status:
        raise RuntimeError(f"{case}: a run that went on from a checkpoint failed")
    return ""


def wait_for_the_next_second() -> None:
    """TensorBoard orders its files by the second at which they were begun."""
    time.sleep(1 - time.time() % 1)


def main(arguments: list[str] | None = None) -> int:
    """Kill, resume, compare; the exit status is the number of runs that differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="over all cases")
    parser.add_argument("--kills-per-run", type=int, default=4)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, help="worker processes of a run; none by default")
    parser.add_argument("--lost", action="store_true", help="kill workers in place of runs")
    parser.add_argument("-v", action="store_true", help="show what the runs print")
    options = parser.parse_args(arguments)
    dice = random.Random(options.seed)
    given: dict[str, Any] = {}
    if options.workers:
        given["executor"] = ProcessExecutor(options.workers)
    expected: dict[str, tuple[str, float]] = {}
    kills, when, runs, different = 0, Counter[str](), 0, 0
    with tempfile.TemporaryDirectory() as root:
        while kills < options.kills:
            case = options.cases[runs % len(options.cases)]
            if case not in expected:
                folder = Path(root) / case
                folder.mkdir()
                start = time.monotonic()
                alone = finished(case, folder, options.rounds, "sequential" if given else None)
                expected[case] = alone, time.monotonic() - start
            folder = Path(root) / f"{case}-{runs}"
            folder.mkdir()
            killed = []
            left, seconds = min(options.kills_per_run, options.kills - kills), expected[case][1]
            for _ in range(0 if options.lost else left):
                instant = kill_once(case, folder, options.rounds, seconds, dice, **given)
                if not instant:
                    break
                killed.append(instant)
            wait_for_the_next_second()
            lost = left if options.lost else 0
            found = finished(case, folder, options.rounds, **given, lost=lost, within=seconds)
            same = found == expected[case][0]
            if (folder / "lost").exists():
                killed += ["a worker"] * int((folder / "lost").read_text())
            kills, runs, different = kills + len(killed), runs + 1, different + (not same)
            when.update(killed)
            print(f"{case:13} killed {killed}: {'identical' if same else 'DIFFERENT'}", flush=True)
            if not same:
                print(f"  see {folder / 'outcome'} and {Path(root) / case / 'outcome'}")
                keep = Path(tempfile.mkdtemp())
                (keep / "got").write_text((folder / "outcome").read_text())
                (keep / "expected").write_text(expected[case][0])
                print(f"  kept in {keep}", flush=True)
    print(f"{kills} kills {dict(when)} in {runs} runs: {runs - different} identical")
    return different


if __name__ == "__main__":
    sys.exit(main())
