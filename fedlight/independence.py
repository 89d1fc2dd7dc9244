"""Whether the bits of a client's result depend on who is computed with it: `check_independence`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedlight._fit.argument_checks import as_module, check_data
from fedlight._support.messages import Voice, speaking
from fedlight.aggregators import FedAvg
from fedlight.arrivals import SynchronousArrivals
from fedlight.executors import Executor, SequentialExecutor, VectorizedExecutor
from fedlight.executors._choice.choose_executor import (
    check_executor,
    describe_device,
    resolve_executor,
)
from fedlight.executors.base import ClientError, Job, Outcome, Workplace
from fedlight.local_optimizers import LocalSGD
from fedlight.trainer import FedTrainer
from fedlight.types import Task

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.data import FederatedDataModule
    from fedlight.local_optimizers import LocalOptimizer

_WIDTHS = (2, 3, 7)
_STEPS = 2


@dataclass(frozen=True, slots=True)
class Independence:
    """The answer of `check_independence`; true if the bits are independent, and printed as words.

    Attributes:
        module: The name of the module's class.
        executor: The executor that a run would have, and why, in words.
        device: The device, in words.
        causes: What stands in the way: the names of operators, a device, a setting. Empty if
            nothing does.
        num_stacks: How many stacks were compared with the clients alone.
        differing: In how many of them a client's result had other bits.
    """

    module: str
    executor: str
    device: str
    causes: tuple[str, ...]
    num_stacks: int
    differing: int

    def __bool__(self) -> bool:
        return not (self.causes or self.differing)

    def __str__(self) -> str:
        start = f"{self.module}, {self.executor} on {self.device}: "
        if not self.num_stacks:
            return f"{start}clients are not stacked, so no client's bits depend on another one"
        stacks = f"{self.num_stacks} stacks of {', '.join(map(str, _WIDTHS))} clients"
        found = f"in {self.differing} of {stacks} they did"
        if self:
            return f"{start}a client's bits do not depend on its stack (compared in {stacks})"
        if self.causes:
            causes = ", ".join(self.causes)
            return f"{start}a client's bits may depend on its stack, because of {causes}; {found}"
        return (
            f"{start}a client's bits depend on its stack, though all operators are listed as "
            f"independent; {found}; please report this, with the processor"
        )


def check_independence(
    module: LightningModule,
    datamodule: FederatedDataModule,
    local_optimizer: LocalOptimizer | None = None,
    *,
    executor: Executor | str = "auto",
    accelerator: str = "cpu",
    precision: Any = "32-true",
) -> Independence:
    """Examine on this machine whether a client's bits depend on who is computed with it.

    The operators of a local step are looked up in the table of those known to be independent. Then
    two clients are computed alone, and as members of stacks of 2, 3 and 7 clients at several
    places, and the results are compared bit by bit. The module is copied and does not change.

    Args:
        module: The module.
        datamodule: Its data.
        local_optimizer: The local optimizer; by default SGD. (With the module's own optimizer,
            clients are computed one after another.)
        executor: As for `FedTrainer`.
        accelerator: As for `FedTrainer`.
        precision: As for `FedTrainer`.

    Returns:
        The answer, which names what stands in the way.

    Raises:
        ValueError: A run with these arguments would be refused.
        ClientError: A client fails.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from fedlight import FederatedDataModule
        >>> from fedlight.models import LogisticRegression
        >>> tables = [TensorDataset(torch.randn(6, 4), torch.arange(6) % 3) for _ in range(5)]
        >>> data = FederatedDataModule.from_client_datasets(tables, batch_size=3)
        >>> bool(check_independence(LogisticRegression(4, 3), data))
        True
    """
    examined = _Examined(check_executor(executor))
    trainer = FedTrainer(
        arrivals=SynchronousArrivals(),
        aggregator=FedAvg(),
        local_optimizer=LocalSGD(lr=0.01) if local_optimizer is None else local_optimizer,
        executor=examined,
        max_rounds=1,
        accelerator=accelerator,
        precision=precision,
        logger=False,
        enable_progress_bar=False,
        limit_val_batches=0,
    )
    with speaking(_Silent()):
        trainer.fit(deepcopy(as_module(module)), check_data(datamodule))
    assert examined.answer is not None
    return examined.answer


class _Silent(Voice):
    def executor(self, executor: object, device: str, reason: str) -> None:
        return


class _Examined(Executor):
    """The executor that a run would have, examined when it is set up."""

    def __init__(self, asked: Executor | str) -> None:
        self._asked = asked
        self._executor: Executor = SequentialExecutor()
        self.answer: Independence | None = None

    def setup(self, workplace: Workplace) -> None:
        choice = resolve_executor(self._asked, workplace)
        self._executor, stacks, differing = choice.executor, 0, 0
        causes: tuple[str, ...] = ()
        if isinstance(choice.executor, VectorizedExecutor):
            causes = choice.executor.dependence
            for equal in _comparisons(choice.executor, workplace):
                stacks += 1
                differing += not equal
        self.answer = Independence(
            module=type(workplace.module).__name__,
            executor=repr(choice.executor),
            device=describe_device(workplace.state.device),
            causes=causes,
            num_stacks=stacks,
            differing=differing,
        )

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        return self._executor.run(jobs)

    def teardown(self) -> None:
        self._executor.teardown()


def _comparisons(executor: Executor, workplace: Workplace) -> Iterator[bool]:
    """For each stack, whether one of its clients has the bits that it has alone."""
    sizes = np.minimum(workplace.partition.sizes, workplace.batch_size)
    pulled = workplace.state.read()

    def job(client: int, visit: int) -> Job:
        return Job(Task(client, 0, 0.0, 1.0, num_steps=_STEPS, serial=visit, visit=visit), pulled)

    holders = np.flatnonzero(sizes).tolist()
    for subject in (holders[0], holders[-1]):
        # Only clients with batches of one size are stacked. If they are few, they come repeatedly.
        others = [client for client in holders if sizes[client] == sizes[subject]]
        company = [job(others[i % len(others)], visit=1 + i) for i in range(max(_WIDTHS))]
        (alone,) = executor.run([job(subject, visit=0)])
        for width in _WIDTHS:
            for place in sorted({0, width // 2, width - 1}):
                jobs = company[: width - 1]
                jobs.insert(place, job(subject, visit=0))
                yield _equal(alone, executor.run(jobs)[place])


def _equal(one: Outcome, other: Outcome) -> bool:
    """Whether two results of a client have the same bits.

    Raises:
        ClientError: The client has failed.
    """
    for each in (one, other):
        if isinstance(each, ClientError):
            raise each
    pairs = zip(_tensors(one), _tensors(other), strict=True)
    return all(torch.equal(mine, yours) for mine, yours in pairs)


def _tensors(result: Any) -> list[Tensor]:
    state = [] if result.client_state is None else [result.client_state]
    return [result.delta, result.buffers, result.counters, *state]
