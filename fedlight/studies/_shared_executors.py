"""Executors that several runs share, so that their local runs are computed as one stack.

A stack may hold local runs of several runs of a study: each job brings the model that its client
pulled, and names the seed, the data and the learning rates of its own run (`Job.work`). All else
must be equal, or the runs do not share an executor:

- the executor stacks clients (`VectorizedExecutor`) and is `independent`, and nothing in
  ``training_step`` is shared by the clients of a stack;
- the module: its class, its attributes and hyper-parameters, the shapes of its parameters, and the
  values of those that are not trained. The weights at the start may differ;
- the examples and the batch size. Who holds which examples may differ;
- the local optimizer; only the learning rates of SGD, FedProx and Adam may differ;
- device and precision.

**Which bits.** A run in a study has the bits of the run alone, whichever runs are computed with it.
Only runs whose executor is `independent` share it: then a row of a stack depends on no other row,
nor on how many there are. Learning rates of several runs are multiplied as a tensor in place of a
number, which rounds the same. A run whose stacks are not independent (convolutions, a GPU) is
computed by itself: it chooses who is stacked together, as it does alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from lightning import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlight._module.attributes import own_attributes, own_layers
from fedlight._module.current_stage import moment_of
from fedlight._runs.content import content
from fedlight.data.examples import ExampleTable, same_examples
from fedlight.executors import Executor, VectorizedExecutor
from fedlight.executors._choice.choose_executor import resolve_executor
from fedlight.executors.base import Job, Outcome, Workplace
from fedlight.local_optimizers import FedProx, LocalAdam, LocalOptimizer, LocalSGD

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedlight._module.settings import Settings


class SharedExecutor:
    """An executor, and the workplace with which it was set up.

    Args:
        asked: The executor that the run asked for.
        work: The workplace of the first run.

    Attributes:
        executor: The executor.
        reason: Why it was chosen, in words.
        kept: What steps change on the module and no later step reads.
        open: Whether runs may share it.
    """

    def __init__(self, asked: Executor | str, work: Workplace) -> None:
        self.work = work
        self._asked, self._arguments = asked, _arguments(asked)
        choice = resolve_executor(asked, work)
        self.executor, self.reason, self.kept = choice.executor, choice.reason, choice.kept
        self.open = (
            isinstance(choice.executor, VectorizedExecutor)
            and choice.executor.independent
            and not choice.shares
            and not moment_of(work.module).asked
            and isinstance(work.examples, ExampleTable)
        )
        self._content = _content(work) if self.open else ""

    def takes(self, asked: Executor | str, work: Workplace) -> bool:
        """Whether the local runs of another run can be rows of this one's stacks."""
        return (
            self.open
            and (asked is self._asked or _arguments(asked) == self._arguments)
            and work.batch_size == self.work.batch_size
            and same_examples(self.work.examples, work.examples)
            and _content(work) == self._content
        )


class SharedExecutors:
    """The executors of a study in one process."""

    def __init__(self) -> None:
        self._all: list[SharedExecutor] = []

    def join(self, asked: Executor | str, work: Workplace) -> SharedExecutor:
        """An executor that takes the run, or a new one."""
        takers = (shared for shared in self._all if shared.takes(asked, work))
        return next(takers, None) or self.add(asked, work)

    def add(self, asked: Executor | str, work: Workplace) -> SharedExecutor:
        """A new executor."""
        shared = SharedExecutor(asked, work)
        self._all.append(shared)
        return shared

    def close(self) -> None:
        """Tear down all executors."""
        for shared in self._all:
            shared.executor.teardown()
        self._all.clear()


class StudyExecutor(Executor):
    """The executor of one run of a study, which passes its jobs to a shared one.

    Args:
        executors: The shared executors.
        asked: The executor that the run asked for.
    """

    tries_itself = True

    def __init__(self, executors: SharedExecutors, asked: Executor | str) -> None:
        self._executors, self._asked = executors, asked
        self._shared: SharedExecutor | None = None
        self._work: Workplace | None = None
        self._before: Settings | None = None  # None for those of the start

    @property
    def shared(self) -> SharedExecutor:
        """The executor that computes the next jobs; a new one if the one before was closed."""
        assert self._shared is not None
        assert self._work is not None
        if not self._shared.open and self._shared.work is not self._work:
            self.setup(self._work)
        return self._shared

    def check_module(self) -> None:
        """Leave the stack if the module has changed in something that its rows share.

        From then on the run is computed by itself. If it is the run on whose module the executor
        works, the executor is closed, and the other runs leave it.
        """
        assert self._shared is not None
        assert self._work is not None
        settings = self._work.settings
        if settings is None or not self._shared.open:
            return
        now = settings.look()
        if now is not (self._before or settings.start):
            self._before = now
            if self._shared.work is not self._work:
                self._shared = self._executors.add(self._asked, self._work)
            self._shared.open = False

    @property
    def kept(self) -> frozenset[tuple[str, str]]:  # type: ignore[override]
        """What the steps of the module change and none reads."""
        return frozenset() if self._shared is None else self._shared.kept

    @property
    def max_batch(self) -> int:  # type: ignore[override]
        """That of the shared executor."""
        return 1 if self._shared is None else self._shared.executor.max_batch

    @property
    def independent(self) -> bool:  # type: ignore[override]
        """That of the shared executor."""
        return self._shared is not None and self._shared.executor.independent

    def setup(self, workplace: Workplace) -> None:
        """Join the runs that share an executor."""
        self._work = workplace
        self._shared = self._executors.join(self._asked, workplace)
        self._before = None

    def teardown(self) -> None:
        """Leave the shared executor; close it if this run takes the module that it works on."""
        shared, work = self._shared, self._work
        if shared is not None and work is not None and shared.work is work:
            moves = work.state.device.type != "cpu"
            if moves or is_overridden("teardown", work.module, LightningModule):
                shared.open = False
        self._shared = self._work = self._before = None

    def job(self, job: Job) -> Job:
        """A job with the workplace of its run."""
        return Job(job.task, job.pulled, job.client_state, self._work)

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Compute jobs of this run alone."""
        self.check_module()
        return self.shared.executor.run([self.job(job) for job in jobs])

    def state_dict(self) -> dict[str, Any]:
        """That of the shared executor."""
        return {} if self._shared is None else self._shared.executor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore that of the shared executor."""
        if self._shared is not None:
            self._shared.executor.load_state_dict(state)

    def __repr__(self) -> str:
        return repr(self._asked if self._shared is None else self._shared.executor)


def _arguments(asked: Executor | str) -> object:
    """The part of an executor that was asked for by which it is compared with another.

    Of other classes than `VectorizedExecutor`, only the object itself is the same.
    """
    if isinstance(asked, str):
        return asked
    return repr(asked) if type(asked) is VectorizedExecutor else id(asked)


def _content(work: Workplace) -> str:
    """Hash of all that the runs of a stack must have in common, except for the examples."""
    module, state = work.module, work.state
    layouts = [
        [list(layout.names), [tuple(s) for s in layout.shapes], str(layout.dtype)]
        for layout in (state.param_layout, state.buffer_layout, state.counter_layout)
    ]
    buffers = (*state.buffer_layout.names, *state.counter_layout.names)
    federated = {id(tensor) for tensor in (*state.params, *map(module.get_buffer, buffers))}
    kinds = [[path, type(layer)] for path, layer in module.named_modules()]
    layers = [
        [path, own_attributes(layer), _frozen(layer, federated)]
        for path, layer in own_layers(module)
    ]
    place = [str(state.device), dict(module.hparams), work.autocast]
    return content([layouts, place, kinds, layers, _without_rate(work.optimizer)])


def _frozen(layer: nn.Module, federated: set[int]) -> dict[str, Tensor]:
    """The tensors of a layer that the server does not update."""
    tensors = chain(layer.named_parameters(recurse=False), layer.named_buffers(recurse=False))
    return {name: tensor for name, tensor in tensors if id(tensor) not in federated}


def _without_rate(optimizer: LocalOptimizer) -> Any:
    """A local optimizer without its rate, if the rate is all that its steps take from the run."""
    if type(optimizer) in (LocalSGD, FedProx, LocalAdam):
        parts = dict(vars(optimizer))
        inner = {k: v for k, v in parts.items() if isinstance(v, LocalOptimizer)}
        kept = {k: v for k, v in parts.items() if k not in inner and k != "lr"}
        return [type(optimizer), kept, [_without_rate(each) for each in inner.values()]]
    return optimizer
