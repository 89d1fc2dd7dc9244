"""Run the same table of small runs on two source trees and compare what they computed.

A change that only moves code must not change a bit of any run. This script runs 220 short runs
on each of two source trees, one subprocess a tree, and compares the models' fingerprints and the
histories: weights, staleness, norms, virtual times, metrics, dropped updates, failures.

    git worktree add ../old main
    python tests/same_bits.py ../old .
    python tests/same_bits.py ../old . --quick --only "aggregator=FedBuff module=batchnorm"
    python tests/same_bits.py ../old . --meant "module=batchnorm executor=vectorized"

The runs vary the arrival process, the aggregator, the local optimizer, the executor, the module,
the mode (plain, resumed, with failing clients, with bounded updates) and the limit of the run. The
table covers each pair of values that may stand together. The name of a run lists its values, so
that differences can be told apart; ``--only`` and ``--meant`` select runs by words of the name.

A difference that a change intends is listed in `MEANT`, with its reason, or given as ``--meant``.
The exit status is 0 if nothing else differs, 1 if something does, and 2 if a tree could not be run.
A resumed run goes on from a checkpoint of its own tree. The words that describe a failure are not
compared. The script may use only what both trees have, so it keeps to the public interface.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
# fedlight sets it when it is imported. Trees before 0.3 do not, and their products have other bits.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# Words of the names of the runs that may differ, and why. Empty unless a change is under way.
MEANT = {
    f"executor={executor} module=batchnorm": "stacked batch normalisation is computed by var_mean"
    for executor in ("auto", "vectorized", "vectorized-3")
}

QUICK = 40  # runs of the table under --quick

AXES: dict[str, tuple[str, ...]] = {
    "arrivals": (
        "uniform",
        "biased",
        "synchronous",
        "continuous",  # on_aggregation
        "continuous-4",  # on_aggregation, four at a time, with idle time
        "on-arrival",
        "on-arrival-3",
        "poisson",
        "random-ticks",
        "periodic-ticks",
        "replay",
        "available",
        "drop-out",
        "partial",
        "wrapped",  # the three wrappers around one another
    ),
    "aggregator": (
        "FedAvg",
        "FedAvg-Adam",
        "AFACD",
        "AFACD-momentum",
        "AFACS",
        "AFACS-3",
        "FedAsync",
        "FedAsync-stale",
        "AsyncFedAvg",
        "AsyncFedAvg-identical",
        "FedFix",
        "FedBuff",
        "FedBuff-momentum",
        "AsyncCommSGD",
    ),
    "optimizer": ("sgd", "sgd-rate", "fedprox", "scaffold-1", "scaffold-2", "adam", "module"),
    "executor": ("sequential", "vectorized", "vectorized-3", "auto"),
    "module": ("linear", "batchnorm", "dropout"),
    "mode": (
        "plain",
        "resumed",
        "resumed-last",
        "failing-drop",
        "failing-retry",
        "failing-resumed",
        "norm-clip",
        "norm-drop",
    ),
    "limit": ("rounds", "updates", "time"),
}
Run = dict[str, str]


def legal(run: Run) -> bool:
    """Whether the values may stand together; `run` may lack axes."""
    stacked = run.get("executor", "").startswith("vectorized")
    return not (stacked and run.get("optimizer") == "module")


def table() -> list[Run]:
    """The runs: all legal pairs of values are covered, and a few runs are long enough to trace."""
    dice = random.Random(0)
    pairs = {
        ((one, a), (two, b))
        for one, two in itertools.combinations(AXES, 2)
        for a in AXES[one]
        for b in AXES[two]
        if legal({one: a, two: b})
    }
    runs = []
    while pairs:
        # A greedy cover: of some runs with one uncovered pair, the one that covers most others.
        start = dict(min(pairs))
        best: Run = {}
        most = 0
        for _ in range(60):
            run = {axis: start.get(axis) or dice.choice(AXES[axis]) for axis in AXES}
            covered = len(pairs.intersection(itertools.combinations(run.items(), 2)))
            if legal(run) and covered > most:
                best, most = run, covered
        runs.append(best)
        pairs.difference_update(itertools.combinations(best.items(), 2))
    dice.shuffle(runs)  # so that --quick takes some of each kind
    for module, optimizer in itertools.product(AXES["module"], ("sgd", "scaffold-2")):
        runs.append(
            {
                "arrivals": "uniform",
                "aggregator": "AFACD",
                "optimizer": optimizer,
                "executor": "vectorized",
                "module": module,
                "mode": "resumed",
                "limit": "long",
            }
        )
    return runs


def name_of(run: Run) -> str:
    """The values of a run, with their axes."""
    return " ".join(f"{axis}={value}" for axis, value in run.items())


def chosen(name: str, words: str) -> bool:
    """Whether a name has all the words, each of which may be a part of one of its own."""
    return all(word in name for word in words.split())


# ------------------------------------------------------------------ one tree


def work(names: set[str]) -> None:
    """Run the named runs on the tree that is on the path, and print a line of JSON for each."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a run that prints must not write between the lines
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for number, run in enumerate(table()):
            if name_of(run) in names:
                try:
                    result = outcome(run, Path(folder, str(number)))
                except Exception as error:
                    result = {"error": f"{type(error).__name__}: {error}"}
                print(json.dumps({"name": name_of(run), **result}), file=lines, flush=True)


def outcome(run: Run, folder: Path) -> dict[str, Any]:
    """Fit, and go on from the middle where the mode says so; what came of each."""
    import torch

    from fedlight import Callback
    from fedlight.callbacks import FedCheckpoint

    class Save(Callback):
        """Saves a checkpoint after the sixth event, which may be in the middle of a round."""

        events = 0

        def on_event_end(self, trainer, module):
            self.events += 1
            if self.events == 6:
                trainer.save_checkpoint(folder / "middle.ckpt")

    mode, bad = run["mode"], run["mode"].startswith("failing")
    folder.mkdir()
    torch.manual_seed(0)
    if mode == "resumed-last":
        fit(run, bad, [FedCheckpoint(folder, every_n_updates=2)], limit={"max_updates": 5})
        trainer = fit(run, bad, [FedCheckpoint(folder, every_n_updates=2)], ckpt_path="last")
        return {"end": summary(trainer)}
    if mode in ("resumed", "failing-resumed"):
        whole = fit(run, bad, [Save()])
        parts = {"end": summary(whole)}
        if (folder / "middle.ckpt").exists():
            parts["resumed"] = summary(fit(run, bad, [], ckpt_path=folder / "middle.ckpt"))
        return parts
    return {"end": summary(fit(run, bad, []))}


def fit(run: Run, bad: bool, callbacks: list[Any], limit: Any = None, ckpt_path: Any = None) -> Any:
    """One `FedTrainer` that has fitted."""
    from fedlight import FedTrainer

    rounds = run["arrivals"] in ("uniform", "biased", "synchronous", "partial", "wrapped")
    limits = {
        "rounds": {"max_rounds": 7},
        "updates": {"max_updates": 28},
        "time": {"max_time": 4.5},
        "long": {"max_rounds": 60},
    }
    modes = {
        "failing-drop": {"on_client_failure": "drop"},
        "failing-retry": {"on_client_failure": "retry"},
        "failing-resumed": {"on_client_failure": "retry"},
        "norm-clip": {"max_update_norm": 0.2},
        "norm-drop": {"max_update_norm": 0.3, "on_large_update": "drop"},
    }
    trainer = FedTrainer(
        arrivals=arrivals(run["arrivals"]),
        aggregator=aggregator(run["aggregator"], None if rounds else 2),
        local_optimizer=local_optimizer(run["optimizer"]),
        executor=executor(run["executor"]),
        callbacks=callbacks,
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
        check_val_every_n_rounds=2,
        **(limit or limits[run["limit"]]),
        **modes.get(run["mode"], {}),
    )
    trainer.fit(module(run["module"]), clients(bad), ckpt_path=ckpt_path)
    return trainer


def summary(trainer: Any) -> dict[str, Any]:
    """What a run computed, every number by its `repr`, which tells all floats apart."""

    def fields(record: Any, names: str) -> dict[str, str]:
        return {name: repr(getattr(record, name)) for name in names.split()}

    update = (
        "client_id serial pulled_version staleness num_steps num_examples weight dispatched_at "
        "arrived_at norm clipped_from"
    )
    failure = "client_id serial pulled_version now retried"
    return {
        "fingerprint": trainer.fingerprint(),
        "version": repr(trainer.version),
        "now": repr(trainer.now),
        "rounds": [
            {
                **fields(record, "version now"),
                "metrics": {key: repr(value) for key, value in sorted(record.metrics.items())},
                "updates": [fields(each, update) for each in record.updates],
                "dropped": [fields(each, update) for each in record.dropped],
                "failures": [
                    {**fields(each, failure), "lost": each.reason == "lost"}
                    for each in record.failures
                ],
            }
            for record in trainer.history
        ],
    }


def arrivals(name: str) -> Any:
    """The arrival process of that name, for seven clients."""
    from fedlight.arrivals import (
        Availability,
        BiasedArrivals,
        CommunicationPattern,
        ContinuousArrivals,
        DiurnalWindows,
        DropOut,
        ExponentialDurations,
        FixedDurations,
        LogNormalDurations,
        PartialWork,
        PoissonArrivals,
        ReplayArrivals,
        ReplayEvent,
        SynchronousArrivals,
        UniformArrivals,
        UniformSpeeds,
        UniformSteps,
    )

    steps = UniformSteps(1, 4)
    # Client 0 has two tasks in flight at once; events 4 and 5 are at one time.
    events = [
        (0, 0, 1.5, 2, 0.0),
        (1, 0, 0.5, 3, 0.0),
        (0, 0, 1.0, 1, 0.25),
        (2, 0, 1.25, 4, 1.0),
        (3, 0, 1.75, 2, 0.0),
        (4, 0, 1.75, 1, 0.0),
    ]
    events += [(n % 7, 0, 2 + n / 8, 1 + n % 3, 1.9) for n in range(7)]
    events += [(n, 1, 3 + n / 8, 1 + n % 4) for n in range(5)]
    make: dict[str, Callable[[], Any]] = {
        "uniform": lambda: UniformArrivals(3, max_staleness=2, local_steps=steps),
        "biased": lambda: BiasedArrivals(3, [0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1], 3),
        "synchronous": lambda: SynchronousArrivals(3, ExponentialDurations(0.6), steps),
        "continuous": lambda: ContinuousArrivals(
            FixedDurations([1, 0.8, 0.7, 0.5, 0.4, 0.9, 0.3]), local_steps=steps
        ),
        "continuous-4": lambda: ContinuousArrivals(
            LogNormalDurations(0.5, 0.8), concurrency=4, idle=0.1, local_steps=2
        ),
        "on-arrival": lambda: ContinuousArrivals(
            ExponentialDurations(0.8), resume="on_arrival", local_steps=steps
        ),
        "on-arrival-3": lambda: ContinuousArrivals(
            UniformSpeeds(0.8), concurrency=3, resume="on_arrival", local_steps=steps
        ),
        "poisson": lambda: PoissonArrivals(5.0, ExponentialDurations(1.0), steps),
        "random-ticks": lambda: CommunicationPattern.random(0.5, max_gap=3),
        "periodic-ticks": lambda: CommunicationPattern.periodic([1, 2, 3, 1, 2, 4, 1]),
        "replay": lambda: ReplayArrivals(
            [ReplayEvent(*event) for event in events], durations=[1.0] * 7
        ),
        "available": lambda: Availability(
            ContinuousArrivals(ExponentialDurations(0.5), local_steps=steps, resume="on_arrival"),
            DiurnalWindows(2.0, 0.6),
            unfinished="lose",
        ),
        "drop-out": lambda: DropOut(ContinuousArrivals(UniformSpeeds(0.7), local_steps=steps), 0.3),
        "partial": lambda: PartialWork(UniformArrivals(3, 2, local_steps=4), 0.5),
        "wrapped": lambda: PartialWork(
            DropOut(
                Availability(
                    SynchronousArrivals(4, UniformSpeeds(0.5), steps), DiurnalWindows(3.0, 0.8)
                ),
                0.2,
            ),
            0.7,
        ),
    }
    return make[name]()


def aggregator(name: str, size: int | None) -> Any:
    """The aggregator of that name; `size` is the buffer of those that may step by rounds."""
    from torch.optim import SGD, Adam

    from fedlight.aggregators import (
        AFACD,
        AFACS,
        AsyncCommSGD,
        AsyncFedAvg,
        FedAsync,
        FedAvg,
        FedBuff,
        FedFix,
    )
    from fedlight.aggregators.staleness import Exponential, Hinge, Polynomial

    def momentum(params: Any) -> Any:
        return SGD(params, 0.5, momentum=0.9)

    make: dict[str, Callable[[], Any]] = {
        "FedAvg": lambda: FedAvg(size),
        "FedAvg-Adam": lambda: FedAvg(
            size, "uniform", server_optimizer=lambda params: Adam(params, 0.05)
        ),
        "AFACD": lambda: AFACD(size, server_lr=lambda version: 1 / (1 + version)),
        "AFACD-momentum": lambda: AFACD(3, server_optimizer=momentum),
        "AFACS": lambda: AFACS(size, server_lr=0.7),
        "AFACS-3": lambda: AFACS(3, server_optimizer=momentum),
        "FedAsync": lambda: FedAsync(lambda version: 0.9 / (1 + version), Polynomial(0.5)),
        "FedAsync-stale": lambda: FedAsync(0.6, Hinge(1, 1), max_staleness=1),
        "AsyncFedAvg": lambda: AsyncFedAvg(server_optimizer=momentum),
        "AsyncFedAvg-identical": lambda: AsyncFedAvg("identical", "examples", server_lr=0.5),
        "FedFix": lambda: FedFix(0.5, server_lr=0.9),
        "FedBuff": lambda: FedBuff(3),
        "FedBuff-momentum": lambda: FedBuff(
            2, Exponential(0.3), normalize="weights", server_optimizer=momentum
        ),
        "AsyncCommSGD": lambda: AsyncCommSGD(1.0),
    }
    return make[name]()


def local_optimizer(name: str) -> Any:
    """The local optimizer of that name."""
    from fedlight.local_optimizers import FedProx, LocalAdam, LocalSGD, ModuleOptimizer, Scaffold

    def falling(version: int) -> float:
        return 0.1 / (1 + version)

    make: dict[str, Callable[[], Any]] = {
        "sgd": lambda: LocalSGD(0.1, momentum=0.9, nesterov=True),
        "sgd-rate": lambda: LocalSGD(falling, 0.5, weight_decay=0.01, max_grad_norm=0.5),
        "fedprox": lambda: FedProx(falling, mu=0.5, momentum=0.5),
        "scaffold-1": lambda: Scaffold(0.1, option=1),
        "scaffold-2": lambda: Scaffold(falling, option=2),
        "adam": lambda: LocalAdam(0.02, weight_decay=0.01),
        "module": lambda: ModuleOptimizer(),
    }
    return make[name]()


def executor(name: str) -> Any:
    """The executor of that name."""
    from fedlight.executors import VectorizedExecutor

    return VectorizedExecutor(max_batch=3) if name == "vectorized-3" else name


def module(name: str) -> Any:
    """The module of that name, always with the same weights."""
    import torch
    from lightning import LightningModule
    from torch import nn
    from torch.nn import functional

    class Net(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            if name == "linear":
                self.net: nn.Module = nn.Linear(5, 3)
            else:
                layer = nn.BatchNorm1d(8) if name == "batchnorm" else nn.Dropout(0.3)
                self.net = nn.Sequential(nn.Linear(5, 8), layer, nn.ReLU(), nn.Linear(8, 3))

        def training_step(self, batch, batch_idx):
            scores = self.net(batch[0])
            loss = functional.cross_entropy(scores, batch[1])
            self.log("train_loss", loss)
            self.log("train_acc", (scores.argmax(-1) == batch[1]).float().mean())
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", functional.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]

    return Net()


def clients(bad: bool) -> Any:
    """Seven clients of unequal sizes; perhaps one fails with NaN and one with a wrong label."""
    import torch
    from torch.utils.data import TensorDataset

    from fedlight import FederatedDataModule

    generator = torch.Generator().manual_seed(0)

    def data(size: int) -> TensorDataset:
        x = torch.randn(size, 5, generator=generator)
        return TensorDataset(x, x[:, 0].round().long().remainder(3))

    tables = [data(size) for size in (7, 4, 12, 9, 5, 6, 8)]
    if bad:
        tables[2].tensors[0][:] = math.nan
        tables[4].tensors[1][:] = 9
    return FederatedDataModule.from_client_datasets(tables, batch_size=4, val_dataset=data(20))


# ------------------------------------------------------------------ both trees


def results(tree: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """What the runs gave on a tree, by name."""
    for package in ("fedlight", "data_partitioners"):
        if not (tree / package / "__init__.py").exists():
            print(f"{tree} is no source tree of fedlight: it has no {package}/", file=sys.stderr)
            raise SystemExit(2)
    # The tree is on the path before the folder of this script, which holds packages of its own.
    code = (
        "import runpy, sys, fedlight\n"
        "script, tree, *names = sys.stdin.read().splitlines()\n"
        "assert fedlight.__file__.startswith(tree), fedlight.__file__\n"
        "runpy.run_path(script, run_name='same_bits')['work'](set(names))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="\n".join([str(Path(__file__).resolve()), str(tree), *names]),
        capture_output=True,
        text=True,
        check=False,
        cwd=tempfile.gettempdir(),
        env={**os.environ, "PYTHONPATH": str(tree)},
    )
    if done.returncode:
        print(done.stderr[-4000:], file=sys.stderr)
        print(f"{tree}: the runs ended with exit status {done.returncode}", file=sys.stderr)
        raise SystemExit(2)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {result.pop("name"): result for result in found}


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """The leaves that differ between two results, with their paths."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            path = f"{where}.{key}" if where else key
            yield from differences(old.get(key, "missing"), new.get(key, "missing"), path)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{where}: {len(old)} -> {len(new)} entries"
        for number, pair in enumerate(zip(old, new, strict=False)):
            yield from differences(*pair, f"{where}[{number}]")
    elif old != new:
        yield f"{where}: {old} -> {new}"


def main(arguments: list[str] | None = None) -> int:
    """Run both trees and print what differs; the exit status is 1 if it was not meant."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path, help="the source tree before the change")
    parser.add_argument("new", type=Path, help="the source tree after it")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} runs of the table only")
    parser.add_argument("--only", default="", help="runs whose name has these words")
    parser.add_argument("--meant", action="append", default=[], help="words of what may differ")
    parser.add_argument("--most", type=int, default=4, help="differences shown of each run")
    options = parser.parse_args(arguments)
    runs = table()
    names = [name_of(run) for run in (runs[:QUICK] if options.quick else runs)]
    names = [name for name in names if chosen(name, options.only)]
    trees = [options.old.resolve(), options.new.resolve()]
    with ThreadPoolExecutor() as pool:
        old, new = pool.map(lambda tree: results(tree, names), trees)
    meant = [*MEANT, *options.meant]
    counts: Counter[str] = Counter()
    for name in names:
        found = list(differences(old[name], new[name]))
        counts["failed"] += "error" in old[name] and "error" in new[name]
        if found:
            allowed = any(chosen(name, words) for words in meant)
            counts["meant" if allowed else "differ"] += 1
            print(f"{'meant ' if allowed else 'DIFFER'} {name}")
            for line in found[: options.most]:
                print(f"         {line}")
            if len(found) > options.most:
                print(f"         and {len(found) - options.most} more")
        elif "error" in old[name]:
            print(f"failed {name}\n         {old[name]['error']}")
    print(
        f"{len(names)} runs: {counts['differ']} differ, {counts['meant']} differ as meant, "
        f"{counts['failed']} fail in both trees"
    )
    return int(counts["differ"] > 0)


if __name__ == "__main__":
    sys.exit(main())
