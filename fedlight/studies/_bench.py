"""Executors that several runs share, so that their local runs are computed as one stack.

A stack may hold local runs of several runs of a study: each job brings the model that its client
pulled, and names the seed, the data and the learning rates of its own run (`Job.work`). What is
left must be equal, or the runs do not share an executor:

- the executor stacks clients (`VectorizedExecutor`), and nothing in ``training_step`` is shared by
  the clients of a stack;
- the module: its class, its attributes and hyper-parameters, the shapes of its parameters, and the
  values of those that are not trained. The weights at the start may differ;
- the examples and the batch size. Who holds which examples may differ;
- the local optimizer; only the learning rates of SGD, FedProx and Adam may differ;
- device and precision.

**Which bits.** A run chooses by itself which of its local runs are computed together; that is not
changed by the other runs. Those of several runs are then rows of one stack. A row depends on no
other row, except that a batched product may choose another kernel for another number of rows, and
that rows with several learning rates are multiplied with a tensor in place of a number. So:

- a run whose executor does not stack clients, or is `independent`, has the bits of the run alone;
- a run whose clients are stacked has them to float tolerance. On a CPU, logistic regressions of all
  sizes tried, and small networks, had the same bits; a hidden layer of 64 units did not. The last
  bits may then also depend on which runs are under way at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from lightning import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torchmetrics import Metric, MetricCollection

from fedlight._module.attributes import plain_attributes
from fedlight._module.moment import moment_of
from fedlight._runs.identity import content
from fedlight.data.examples import ExampleTable
from fedlight.executors import Executor, VectorizedExecutor
from fedlight.executors._choice.choose import resolve_executor
from fedlight.executors.base import Job, Outcome, Workplace
from fedlight.local_optimizers import FedProx, LocalAdam, LocalOptimizer, LocalSGD

if TYPE_CHECKING:
    from torch import Tensor, nn

_INDEPENDENT = ("as given", "the module can be stacked")  # reasons that name nothing shared
_OF_LIGHTNING = set(vars(LightningModule())) - {"training"} | {"log", "log_dict"}


class Group:
    """An executor, and what it was set up with.

    Args:
        asked: The executor that the run asked for.
        work: The workplace of the first run.
    """

    def __init__(self, asked: Executor | str, work: Workplace) -> None:
        self.asked, self.work = asked, work
        self.executor, self.reason = resolve_executor(asked, work)
        self.open = (
            isinstance(self.executor, VectorizedExecutor)
            and self.reason in _INDEPENDENT
            and not moment_of(work.module).asked
            and isinstance(work.examples, ExampleTable)
        )
        self._content = _described(work) if self.open else ""

    def takes(self, asked: Executor | str, work: Workplace) -> bool:
        """Whether the local runs of another run can be rows of this one's stacks."""
        return (
            self.open
            and repr(asked) == repr(self.asked)
            and work.batch_size == self.work.batch_size
            and _same_examples(self.work.examples, work.examples)
            and _described(work) == self._content
        )


class Bench:
    """The groups of a study in one process."""

    def __init__(self) -> None:
        self.groups: list[Group] = []

    def join(self, asked: Executor | str, work: Workplace) -> Group:
        """A group that takes the run, or a new one."""
        for group in self.groups:
            if group.takes(asked, work):
                return group
        return self.own(asked, work)

    def own(self, asked: Executor | str, work: Workplace) -> Group:
        """A new group."""
        group = Group(asked, work)
        self.groups.append(group)
        return group

    def close(self) -> None:
        """Let go of all executors."""
        for group in self.groups:
            group.executor.teardown()
        self.groups.clear()


class Member(Executor):
    """The executor of one run of a study: its part of a shared one.

    Args:
        bench: The shared executors.
        asked: The executor that the run asked for.
    """

    def __init__(self, bench: Bench, asked: Executor | str) -> None:
        self._bench, self._asked = bench, asked
        self._group: Group | None = None
        self._work: Workplace | None = None
        self._before: Any = None

    @property
    def group(self) -> Group:
        """The group that computes the next jobs; another one than before if that was closed."""
        assert self._group is not None
        assert self._work is not None
        if not self._group.open and self._group.work is not self._work:
            self.setup(self._work)
        return self._group

    def look(self) -> None:
        """See whether the module has changed in something that the stack shares.

        From then on the run is computed by itself. If it is the run on whose module the executor
        works, its group is closed, and the others leave it.
        """
        assert self._group is not None
        assert self._work is not None
        watched = _watched(self._work.module) if self._group.open else self._before
        if watched != self._before:
            self._before = watched
            if self._group.work is not self._work:
                self._group = self._bench.own(self._asked, self._work)
            self._group.open = False

    @property
    def max_batch(self) -> int:  # type: ignore[override]
        """That of the shared executor."""
        return 1 if self._group is None else self._group.executor.max_batch

    @property
    def independent(self) -> bool:  # type: ignore[override]
        """That of the shared executor."""
        return self._group is not None and self._group.executor.independent

    def setup(self, workplace: Workplace) -> None:
        """Join a group."""
        self._work = workplace
        self._group = self._bench.join(self._asked, workplace)
        self._before = _watched(workplace.module)

    def teardown(self) -> None:
        """Leave the group; close it if the module goes with this run."""
        group, work = self._group, self._work
        if group is not None and work is not None and group.work is work:
            moves = work.state.device.type != "cpu"
            if moves or is_overridden("teardown", work.module, LightningModule):
                group.open = False
        self._group = self._work = self._before = None

    def job(self, job: Job) -> Job:
        """A job that says of which run it is."""
        return Job(job.task, job.pulled, job.client_state, self._work)

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Compute jobs of this run alone."""
        self.look()
        return self.group.executor.run([self.job(job) for job in jobs])

    def state_dict(self) -> dict[str, Any]:
        """That of the shared executor."""
        return {} if self._group is None else self._group.executor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hand it on to the shared executor."""
        if self._group is not None:
            self._group.executor.load_state_dict(state)

    def __repr__(self) -> str:
        return repr(self._asked if self._group is None else self._group.executor)


def _described(work: Workplace) -> str:
    """Hash of what the runs of a stack must have in common, beside the examples."""
    module, state = work.module, work.state
    federated = {id(param) for param in state.params}
    layouts = []
    for layout in (state.param_layout, state.buffer_layout, state.counter_layout):
        layouts.append([list(layout.names), [tuple(s) for s in layout.shapes], str(layout.dtype)])
    for name in (*state.buffer_layout.names, *state.counter_layout.names):
        federated.add(id(module.get_buffer(name)))
    parts: list[Any] = [layouts, str(state.device), dict(module.hparams), work.autocast]
    for path, child in module.named_modules():
        parts.append([path, type(child)])
        if isinstance(child, Metric | MetricCollection):
            continue
        parts.append(_own(child, federated))
    return content([*parts, _without_rate(work.optimizer)])


def _own(child: nn.Module, federated: set[int]) -> dict[str, Any]:
    """The attributes of a layer, without tensors of the federation, and without its children."""
    held = {name: value for name, value in vars(child).items() if name not in _OF_LIGHTNING}
    tensors: Mapping[str, Tensor | None] = {
        **dict(child.named_parameters(recurse=False)),
        **dict(child.named_buffers(recurse=False)),
    }
    frozen = {k: v for k, v in tensors.items() if v is not None and id(v) not in federated}
    return {**held, "frozen tensors": frozen}


def _without_rate(optimizer: LocalOptimizer) -> Any:
    """A local optimizer without its rate, if the rate is all that its steps take from the run."""
    if type(optimizer) in (LocalSGD, FedProx, LocalAdam):
        parts = dict(vars(optimizer))
        inner = {k: v for k, v in parts.items() if isinstance(v, LocalOptimizer)}
        kept = {k: v for k, v in parts.items() if k not in inner and k != "lr"}
        return [type(optimizer), kept, [_without_rate(each) for each in inner.values()]]
    return optimizer


def _same_examples(one: ExampleTable, other: object) -> bool:
    """Whether two tables hold the same examples."""
    if not isinstance(other, ExampleTable) or one.keys != other.keys:
        return False
    return (
        one.transform is other.transform
        and len(one.columns) == len(other.columns)
        and all(
            a.dtype == b.dtype
            and _equal(a.values, b.values)
            and _equal(a.scale, b.scale)
            and _equal(a.shift, b.shift)
            for a, b in zip(one.columns, other.columns, strict=True)
        )
    )


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return one.data_ptr() == other.data_ptr() or torch.equal(one, other)


def _watched(module: LightningModule) -> dict[Any, object]:
    """What hooks and callbacks may change in a module that the stack would not see."""
    frozen = {
        name: (id(param), param._version)
        for name, param in module.named_parameters()
        if not param.requires_grad
    }
    return {**plain_attributes(module), **frozen}
