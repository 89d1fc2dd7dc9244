"""The operators of a run on a device, and the places where the host waits for the device.

    python benchmarks/operators.py [--device cuda] [--only A B metric]

Each operator on a GPU is one launch or more, which costs the host some microseconds however small
the tensors are. When the host reads a value of the device (``.item()``, ``.tolist()``, ``.cpu()``,
``bool(tensor)``, a mask as an index) or copies a pageable tensor there without ``non_blocking``, it
waits until the device has done all that it was told. Both are counted here, after the steps were
traced: per local step, per stack of clients and per step of the server.

Without a GPU, ``python tests/on_device.py --operators`` makes the same table on a pretended device.
On a CPU (the default) the operators are those of the CPU, and only reads count as waits.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the script's folder comes first on the path
    sys.path[0] = str(Path(__file__).parents[1])

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics.classification import MulticlassAccuracy

from benchmarks.workloads import A, B, Plain, Workload
from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight.aggregators import Aggregator, FedAvg
from fedlight.arrivals import UniformArrivals
from fedlight.executors import Executor, Job, SequentialExecutor, VectorizedExecutor
from fedlight.executors.base import Outcome
from fedlight.local_optimizers import LocalOptimizer, LocalRun, LocalSGD

LOCAL_RUN, STACK, SERVER = "within a local run", "stack", "server step"

_READS = {
    "item", "tolist", "cpu", "__bool__", "__float__", "__int__", "__index__", "nonzero",
    "argwhere", "equal", "allclose", "is_nonzero", "masked_select", "unique", "unique_consecutive",
    "bincount", "histc",
}  # fmt: skip
_NO_LAUNCH = ("empty", "lift", "detach", "alias", "_unsafe_view", "record_stream")


@dataclass
class Counts:
    """What was counted.

    Attributes:
        stacks: Stacks of clients.
        versions: Steps of the server.
        steps: The operators of each local step but the first of its stack.
        operators: Operators by place: `STACK` (without those of local steps) and `SERVER`.
        waits: How often the host waited, by place, and within it by function and call.
    """

    stacks: int = 0
    versions: int = 0
    steps: list[int] = field(default_factory=list)
    operators: Counter[str] = field(default_factory=Counter)
    waits: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @property
    def per_step(self) -> int:
        """Operators of the last local step."""
        return self.steps[-1] if self.steps else 0

    def waits_per_stack(self) -> float:
        """Waits of a stack, those within its local runs included."""
        return (self.waits[STACK].total() + self.waits[LOCAL_RUN].total()) / self.stacks

    def waits_per_version(self) -> float:
        """Waits of a server step."""
        return self.waits[SERVER].total() / self.versions


class Watch(Callback):
    """Counts from one version of the server to another one.

    Args:
        first: The version after which it begins.
        last: The version after which it stops.
    """

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.counts = Counts()
        self.place = SERVER
        self.active = False
        self._modes: tuple[Any, ...] = ()
        self._since = 0  # operators since the last local step
        self._early: list[str] = []  # waits since then: within a local run if another step comes

    def on_event_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Start or stop."""
        due = self.first <= trainer.version < self.last
        if due and not self.active:
            self._begun = trainer.version
            device = trainer.run.module_state.device
            self._modes = (_Reads(self._waited, device), _Launches(self._launched))
            for mode in self._modes:
                mode.__enter__()
        elif self.active and not due:
            for mode in reversed(self._modes):
                mode.__exit__(None, None, None)
            self.counts.versions = trainer.version - self._begun
        self.active = due

    @contextmanager
    def stacks(self) -> Iterator[None]:
        """While an executor works."""
        self.place = STACK
        try:
            yield
        finally:
            self._ended()
            self.place = SERVER

    def begins(self) -> None:
        """A stack has begun."""
        if self.active:
            self.counts.stacks += 1
            self._ended()
            self._stepped = False

    def stepped(self) -> None:
        """A stack has made a local step."""
        if not self.active:
            return
        if self._stepped:
            self.counts.steps.append(self._since)
            self.counts.waits[LOCAL_RUN].update(self._early)
        else:
            self.counts.operators[STACK] += self._since
            self.counts.waits[STACK].update(self._early)
        self._stepped, self._since, self._early = True, 0, []

    _stepped = False

    def _ended(self) -> None:
        self.counts.operators[STACK] += self._since
        self.counts.waits[STACK].update(self._early)
        self._since, self._early = 0, []

    def _launched(self, number: int) -> None:
        if self.place == STACK:
            self._since += number
        else:
            self.counts.operators[SERVER] += number

    def _waited(self, call: str) -> None:
        if self.place == STACK:
            self._early.append(call)
        else:
            self.counts.waits[SERVER][call] += 1


class _Launches(TorchDispatchMode):
    """Counts operators that compute or copy something on the device, as a GPU launches them."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        super().__init__()
        self._tell = tell

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operator and count it."""
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        returned = func._schema.returns
        view = returned and returned[0].alias_info and not returned[0].alias_info.is_write
        if not view and not name.startswith(_NO_LAUNCH):
            self._tell(_launches(name, args))
        return result


def _launches(name: str, args: Any) -> int:
    """One for an operator; for one over a list of tensors one for all, or one for each.

    torch's fused kernels take lists whose tensors have no gaps and are laid out in the same way.
    """
    if not name.startswith("_foreach"):
        return 1
    lists = [arg for arg in args if isinstance(arg, list | tuple) and isinstance(arg[0], Tensor)]
    fused = all(
        _dense(tensor) and tensor.stride() == row[0].stride()
        for row in zip(*lists, strict=True)
        for tensor in row
    )
    return 1 if fused else len(lists[0])


def _dense(tensor: Tensor) -> bool:
    """Whether a tensor takes a piece of memory without gaps."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


class _Reads(TorchFunctionMode):
    """Tells of calls for which the host waits for the device."""

    def __init__(self, tell: Callable[[str], None], device: torch.device) -> None:
        super().__init__()
        self._tell, self._device = tell, device.type

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, and tell if it waits."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if _waits(self._device, name, args, kwargs, result):
            self._tell(f"{_line()} {name.strip('_')}")
        return result


def _waits(
    device: str, name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any
) -> bool:
    """Whether the host has waited in a call."""
    given = args[0] if args and isinstance(args[0], Tensor) else None
    if name in _READS:
        return given is not None and given.device.type == device
    if name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        masks = [each for each in index if isinstance(each, Tensor) and each.dtype == torch.bool]
        return any(mask.device.type == device for mask in masks)
    if name in ("tensor", "as_tensor", "new_tensor"):
        return isinstance(result, Tensor) and result.device.type != "cpu"
    if name in ("to", "copy_", "cuda") and given is not None:
        source = args[1] if name == "copy_" else result
        moved = isinstance(source, Tensor) and source.device.type != given.device.type
        return moved and not (kwargs.get("non_blocking") or args[2:] == (True,))
    return False


def _line() -> str:
    """The function of the framework that has led to a call."""
    frame = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if "fedlight" in path.parts[:-1] and path.name != "_in_words.py":
            at = path.parts[len(path.parts) - path.parts[::-1].index("fedlight") :]
            return f"{'/'.join(at)}, {frame.f_code.co_name}:"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


def watched(executor: Executor, watch: Watch) -> Executor:
    """The executor; the watch learns when it works."""
    run = executor.run

    def told(jobs: Sequence[Job]) -> list[Outcome]:
        with watch.stacks():
            return run(jobs)

    executor.run = told  # type: ignore[method-assign]
    return executor


def told_of(optimizer: LocalOptimizer, watch: Watch) -> LocalOptimizer:
    """The local optimizer; the watch learns of its steps."""
    begin, step = optimizer.begin, optimizer.step

    def begins(run: LocalRun, module: LightningModule) -> None:
        watch.begins()
        begin(run, module)

    def stepped(run: LocalRun, grads: Sequence[Tensor]) -> None:
        step(run, grads)
        watch.stepped()

    optimizer.begin, optimizer.step = begins, stepped  # type: ignore[method-assign]
    return optimizer


def counted(
    module: LightningModule,
    data: FederatedDataModule,
    device: str = "cpu",
    executor: Executor | None = None,
    aggregator: Aggregator | None = None,
    optimizer: LocalOptimizer | None = None,
    per_round: int = 10,
    steps: int = 5,
    rounds: tuple[int, int] = (20, 25),
) -> Counts:
    """Train, and count in the rounds given (by default after the steps were traced)."""
    watch = Watch(*rounds)
    trainer = FedTrainer(
        arrivals=UniformArrivals(per_round, local_steps=steps),
        aggregator=FedAvg() if aggregator is None else aggregator,
        local_optimizer=told_of(LocalSGD(0.1) if optimizer is None else optimizer, watch),
        executor=watched(VectorizedExecutor() if executor is None else executor, watch),
        max_rounds=rounds[1] + 1,
        callbacks=[watch],
        logger=False,
        accelerator=device,
        enable_progress_bar=False,
        check_val_every_n_rounds=None,
    )
    trainer.fit(module, data)
    return watch.counts


class Scored(Plain):
    """A module with a metric object in its step."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.accuracy = MulticlassAccuracy(10)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        scores = self.net(x)
        self.accuracy.update(scores, y)
        self.log("train_acc", self.accuracy)
        return functional.cross_entropy(scores, y)


@dataclass(frozen=True)
class WithMetric(Workload):
    """A workload whose module is `Scored`."""

    def module(self) -> Plain:
        """The module, with the same initial weights each time."""
        return Scored(super().module().net)


METRIC = WithMetric(**{**vars(A), "name": "A with torchmetrics: an accuracy in the step"})
WORKLOADS = {"A": A, "B": B, "metric": METRIC}


def table(workloads: Sequence[Workload], device: str) -> str:
    """The table of all workloads and both executors, in Markdown."""
    lines = [
        "| | operators a local step | a stack besides | a server step | waits in a local run | "
        "a stack | a server step |",
        "|---|---|---|---|---|---|---|",
    ]
    places: list[str] = []
    for workload in workloads:
        for executor in (VectorizedExecutor(), SequentialExecutor()):
            counts = counted(
                workload.module(),
                workload.data(),
                device,
                executor,
                per_round=workload.per_round,
                steps=workload.steps,
            )
            name = f"{workload.name.partition(':')[0]}, {type(executor).__name__}"
            stack = counts.operators[STACK] / counts.stacks - counts.per_step  # its first step
            server = counts.operators[SERVER] / counts.versions
            lines.append(
                f"| {name} | {counts.per_step} | {stack:.0f} | {server:.0f} | "
                f"{counts.waits[LOCAL_RUN].total() / counts.stacks:g} | "
                f"{counts.waits_per_stack():g} | {counts.waits_per_version():g} |"
            )
            for place, calls in counts.waits.items():
                every = counts.versions if place == SERVER else counts.stacks
                places += [f"- {name}, {place}: {c}, {n / every:g}" for c, n in calls.items()]
    return "\n".join([*lines, "", "Where the host waits, and how often:", "", *places])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", nargs="+", default=[*WORKLOADS], choices=WORKLOADS)
    args = parser.parse_args()
    print(table([WORKLOADS[name] for name in args.only], args.device))


if __name__ == "__main__":
    main()
