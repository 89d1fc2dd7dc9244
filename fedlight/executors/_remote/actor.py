"""An actor of a Ray cluster that computes local runs, and the messages it gets and sends."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fedlight._module.current_stage import Moment, moment_of
from fedlight._module.settings import LiveSettings, Settings
from fedlight.executors._choice.choose_executor import resolve_executor
from fedlight.executors._remote.cluster import import_ray
from fedlight.executors._remote.sent_settings import from_bytes
from fedlight.executors._remote.tensor_block import Packed, PackedShape
from fedlight.executors.base import ClientError, Executor, Job, Workplace
from fedlight.parameters import ModuleState
from fedlight.types import LocalResult, Measured, ServerState

if TYPE_CHECKING:
    import numpy as np
    from lightning import LightningModule
    from numpy.typing import NDArray

    from fedlight.types import LoggedValue, Task

_SETTINGS = 16
"""Earlier settings of the module that an actor keeps."""

_VERSION_BYTES = 2**28
"""Bytes of versions that an actor keeps for jobs that pull them later."""


class SentJob(NamedTuple):
    """A job without its tensors.

    Attributes:
        task: The task.
        version: The number of the version that was pulled.
        settings: The number of the module's settings; None for those of the start.
        has_own: Whether the client has a state of its own.
    """

    task: Task
    version: int
    settings: int | None
    has_own: bool


class SentJobs(NamedTuple):
    """A parcel of jobs as it is sent, pickled: Ray's own pickle is slow over many objects.

    Attributes:
        jobs: The jobs.
        settings: The settings of the module by number.
        versions: The numbers of the versions that the jobs have pulled.
    """

    jobs: Sequence[SentJob]
    settings: Mapping[int, bytes]
    versions: Sequence[int]


class SentResult(NamedTuple):
    """A result without its tensors, which lie in a block.

    Attributes:
        shape: Where delta, buffers, counters and the client's new state lie in the block.
        metrics: What the steps logged.
        norm: The norm of the delta, if it is known.
    """

    shape: PackedShape
    metrics: Mapping[str, LoggedValue]
    norm: float | None

    @classmethod
    def of(cls, result: LocalResult) -> tuple[SentResult, NDArray[np.uint8]]:
        """A result without its tensors, and the block of those."""
        tensors = (result.delta, result.buffers, result.counters, result.client_state)
        norm = None if result.measured is None else result.measured.norm
        packed = Packed.of(tensors)
        return cls(packed.shape, dict(result.metrics), norm), packed.block

    def result(self, block: NDArray[np.uint8], device: torch.device) -> LocalResult:
        """The result, on a device."""
        packed = Packed(block, self.shape)
        tensors = [None if each is None else each.to(device) for each in packed.tensors()]
        delta, buffers, counters, own = tensors
        assert delta is not None
        assert buffers is not None
        assert counters is not None
        measured = None if self.norm is None else Measured(delta, delta._version, self.norm)
        return LocalResult(delta, buffers, counters, self.metrics, own, measured=measured)


class SentOutcomes(NamedTuple):
    """The outcomes of a parcel as they are sent, pickled.

    Attributes:
        outcomes: The results without their tensors, or the errors.
        state: The state of the executor.
        fetched: How many bytes of versions had to come.
    """

    outcomes: Sequence[SentResult | ClientError]
    state: dict[str, Any]
    fetched: int


@dataclass(frozen=True, slots=True, eq=False)
class SentWorkplace:
    """A workplace in the form in which it is sent to an actor.

    Attributes:
        parts: The arguments of `Workplace` without the module's state, which an actor makes itself.
        executor: The executor that the actor asks for.
        num_threads: The torch threads of the actor.
        trainer: The object that is ``self.trainer`` in the actor, or None.
    """

    parts: dict[str, Any]
    executor: Executor | str
    num_threads: int
    trainer: Moment | None

    @classmethod
    def of(cls, work: Workplace, executor: Executor | str, num_threads: int) -> SentWorkplace:
        """The form of a workplace.

        Raises:
            ValueError: Something in the module cannot be copied.
        """
        parts = {each.name: getattr(work, each.name) for each in fields(work)}
        del parts["state"], parts["settings"]
        parts["module"] = _copy(work.module)
        parts["examples"] = work.examples.to("cpu", work.state.param_layout.dtype)
        return cls(parts, executor, max(1, num_threads), moment_of(work.module).for_actor())


def _copy(module: LightningModule) -> LightningModule:
    """Copy the module to the CPU, without the attributes that belong to this process.

    Raises:
        ValueError: Something in it cannot be copied; the error names it.
    """
    fabric, trainer = module._fabric, module._trainer
    # Both belong to this process: devices, loggers, locks.
    module.fabric = module.trainer = None
    try:
        copied = deepcopy(module).cpu()
        for name in ("log", "log_dict"):  # those of the fit: an actor records by itself
            vars(copied).pop(name, None)
        return copied
    except Exception as error:
        raise unsent(module, error) from error
    finally:
        module.trainer, module.fabric = trainer, fabric


def unsent(module: LightningModule, error: Exception) -> ValueError:
    """The error that names the attributes of a module that cannot be sent."""
    names = []
    for path, child in module.named_modules():
        for name, value in vars(child).items():
            if name in ("_modules", "_fabric"):
                continue
            try:
                deepcopy(value)
            except Exception:  # a copy may raise anything: this is the one that cannot be sent
                names.append(f"{path}.{name}".lstrip("."))
    where = f"; look at {', '.join(map(repr, names))}" if names else ""
    return ValueError(
        f"{type(module).__name__} cannot be sent to a Ray actor ({error}){where}: make locks, open "
        "files and the like in the step, or leave them out in the module's __getstate__"
    )


class Actor:
    """Holds the module and the data, and computes the jobs that it is sent.

    Args:
        sent: The module, the data and the settings.
        on_gpu: Whether it computes on a GPU.
        get: Fetches a version by its reference; None for Ray's own function.
    """

    def __init__(
        self,
        sent: SentWorkplace,
        on_gpu: bool = False,
        get: Callable[[Any], Packed] | None = None,
    ) -> None:
        self._get = import_ray("RayExecutor").get if get is None else get
        torch.set_num_threads(sent.num_threads)
        self._device, self._refusal = torch.device("cuda" if on_gpu else "cpu"), ""
        # A copy, since arrays lie read-only in the object store.
        module = deepcopy(sent.parts["module"]).to(self._device)
        module.trainer = sent.trainer  # a copy of a module has none
        state = ModuleState(module)
        examples = sent.parts["examples"].to(self._device, state.param_layout.dtype)
        self._live = LiveSettings(module)
        self._settings: dict[int, Settings] = {}
        self._versions: OrderedDict[int, tuple[list[Any], int]] = OrderedDict()
        own = {"module": module, "state": state, "examples": examples, "settings": self._live}
        try:
            choice = resolve_executor(sent.executor, Workplace(**{**sent.parts, **own}))
        except ValueError as error:
            self._refusal = str(error)
        else:
            self._executor = choice.executor
            self._live.begin(choice.kept)

    def refusal(self) -> str:
        """Why the actor cannot run the module, the data or the local optimizer; "" if it can."""
        return self._refusal

    def independent(self) -> bool:
        """Whether its executor is `independent`."""
        return self._executor.independent

    def stacks(self) -> bool:
        """Whether its executor computes several jobs at once."""
        return self._executor.max_batch > 1

    def place(self) -> tuple[int, str]:
        """The process that it is, and the node."""
        return os.getpid(), os.uname().nodename

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Pass the state of an earlier executor to this one."""
        self._executor.load_state_dict(state)

    def run(
        self,
        message: bytes,
        versions: Sequence[Any],
        own: Sequence[NDArray[np.uint8]],
    ) -> tuple[bytes, list[NDArray[np.uint8]]]:
        """Compute jobs.

        Args:
            message: The `SentJobs`, pickled.
            versions: For each of its versions the reference by which it is fetched.
            own: The states of the clients that have one.

        Returns:
            The `SentOutcomes`, pickled, and the blocks of the results.
        """
        jobs, settings, numbers = pickle.loads(message)
        # In the order of their last use, and the same objects, so that traces are kept.
        known = {number: self._settings.pop(number, None) for number in settings}
        for number, sent in settings.items():
            self._settings[number] = known[number] or from_bytes(self._live, sent)
        self._settings = dict([*self._settings.items()][-_SETTINGS - len(settings) :])
        fetched = sum(map(self._fetch, numbers, versions))
        states = iter(own)
        computed = self._executor.run([self._here(job, states) for job in jobs])
        self._forget(len(numbers))
        outcomes: list[SentResult | ClientError] = []
        blocks = []
        for each in computed:
            if isinstance(each, ClientError):
                outcomes.append(each)
            else:
                result, block = SentResult.of(each)
                outcomes.append(result)
                blocks.append(block)
        answer = SentOutcomes(outcomes, self._executor.state_dict(), fetched)
        return pickle.dumps(answer), blocks

    def _fetch(self, number: int, reference: Any) -> int:
        """Have a version here; return how many bytes of it had to come."""
        if number in self._versions:
            self._versions.move_to_end(number)
            return 0
        packed = self._get(reference)
        tensors = [None if each is None else each.to(self._device) for each in packed.tensors()]
        self._versions[number] = tensors, packed.shape.nbytes
        return packed.shape.nbytes

    def _forget(self, used: int) -> None:
        """Forget versions that were not used for long, but keep those of the last jobs."""
        size = sum(nbytes for _, nbytes in self._versions.values())
        while size > _VERSION_BYTES and len(self._versions) > used:
            _, (_, nbytes) = self._versions.popitem(last=False)
            size -= nbytes

    def _here(self, job: SentJob, states: Iterator[NDArray[np.uint8]]) -> Job:
        """A job as the executor takes it."""
        settings = self._live.start if job.settings is None else self._settings[job.settings]
        (params, buffers, counters, shared), _ = self._versions[job.version]
        version = job.task.pulled_version
        state = ServerState(version, params, buffers, counters, shared, settings=settings)
        if not job.has_own:
            return Job(job.task, state)
        own = torch.frombuffer(next(states).copy(), dtype=params.dtype)
        return Job(job.task, state, own.to(self._device))
