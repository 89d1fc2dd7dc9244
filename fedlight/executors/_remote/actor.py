"""An actor of a Ray cluster that computes local runs, and the messages it gets and sends."""

from __future__ import annotations

import os
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning.fabric.plugins.precision.amp import MixedPrecision

from fedlight._module.current_stage import Moment, moment_of
from fedlight._module.settings import LiveSettings, Settings
from fedlight.executors._choice.choose_executor import resolve_executor
from fedlight.executors._remote.cluster import import_ray
from fedlight.executors._remote.sent_settings import from_bytes
from fedlight.executors._remote.tensor_block import Packed, PackedShape
from fedlight.executors._remote.torch_flags import TorchFlags
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
        versions: Where the versions that the jobs have pulled are, by number: in which bundle,
            and at which place in it.
    """

    jobs: Sequence[SentJob]
    settings: Mapping[int, bytes]
    versions: Mapping[int, tuple[int, int]]


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
        seconds: How long the computation took.
    """

    outcomes: Sequence[SentResult | ClientError]
    state: dict[str, Any]
    fetched: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class SentWorkplace:
    """A workplace in the form in which it is sent to an actor.

    Attributes:
        parts: The arguments of `Workplace` without the module's state, which an actor makes itself,
            and without the examples.
        dtype: The type of floating-point batches.
        executor: The executor that the actor asks for.
        trainer: The object that is ``self.trainer`` in the actor, or None.
        flags: PyTorch's settings.
    """

    parts: dict[str, Any]
    dtype: torch.dtype
    executor: Executor | str
    trainer: Moment | None
    flags: TorchFlags

    @classmethod
    def of(cls, work: Workplace, executor: Executor | str) -> SentWorkplace:
        """The form of a workplace.

        Raises:
            ValueError: Something in the module cannot be copied.
        """
        parts = {each.name: getattr(work, each.name) for each in fields(work)}
        del parts["state"], parts["settings"], parts["examples"]
        parts["module"] = _copy(work.module)
        dtype = work.state.param_layout.dtype
        trainer = moment_of(work.module).for_actor()
        return cls(parts, dtype, executor, trainer, TorchFlags.here())


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


class SentExamples(NamedTuple):
    """The examples of one or several fits, which an actor gets once.

    Attributes:
        number: Names them.
        fetch: Returns them.
    """

    number: int
    fetch: Callable[[], Any]


class Answer(NamedTuple):
    """What an actor says of a fit.

    Attributes:
        refusal: Why it cannot run the module, the data or the local optimizer; "" if it can.
        independent: Whether its executor is `independent`.
        stacks: Whether its executor computes several jobs at once.
    """

    refusal: str
    independent: bool = True
    stacks: bool = False


class Actor:
    """Holds the modules and the data of one or several fits, and computes their jobs.

    Args:
        device: Where it computes, such as "cpu", or "cuda" for the GPU that Ray has given it.
        num_threads: The torch threads.
        get: Fetches a bundle of versions by its reference; None for Ray's own function.
    """

    def __init__(
        self,
        device: str = "cpu",
        num_threads: int = 1,
        get: Callable[[Any], Sequence[Packed]] | None = None,
    ) -> None:
        self._get = import_ray("RayExecutor").get if get is None else get
        torch.set_num_threads(num_threads)
        self._device = torch.device(device)
        self._fits: dict[int, _Fit] = {}
        self._failed: dict[int, Exception] = {}
        self._latest: int | None = None  # the fit whose settings PyTorch has
        self._examples: dict[int, Any] = {}
        self._versions: OrderedDict[tuple[int, int], tuple[list[Any], int]] = OrderedDict()

    def place(self) -> tuple[int, str]:
        """The process that it is, and the node."""
        return os.getpid(), os.uname().nodename

    def add(self, number: int, sent: SentWorkplace, examples: SentExamples) -> Answer:
        """Take up a fit, whose jobs come with its number."""
        which = examples.number
        used = {each.examples for each in self._fits.values()} | {which}
        for each in self._examples.keys() - used:
            del self._examples[each]
        self._latest = number
        try:
            sent.flags.apply()
            if which not in self._examples:
                self._examples[which] = examples.fetch().to(self._device, sent.dtype)
            fit = _Fit(sent, which, self._examples[which], self._device)
        except _RefusedError as error:
            self._failed[number] = error
            return Answer(str(error))
        except Exception as error:
            # Nobody waits for the answer of an actor in the place of another: its jobs tell.
            self._failed[number] = error
            raise
        self._fits[number] = fit
        return Answer("", fit.executor.independent, fit.executor.max_batch > 1)

    def forget(self, number: int) -> None:
        """Release a fit; its examples stay until the next fit, which may have the same."""
        self._fits.pop(number, None)
        self._failed.pop(number, None)
        for key in [key for key in self._versions if key[0] == number]:
            del self._versions[key]

    def load_state_dict(self, number: int, state: dict[str, Any]) -> None:
        """Pass the state of an earlier executor to that of a fit."""
        if number in self._fits:
            self._fits[number].executor.load_state_dict(state)

    def run(
        self,
        number: int,
        message: bytes,
        bundles: Sequence[Any],
        own: Sequence[NDArray[np.uint8]],
    ) -> tuple[bytes, list[NDArray[np.uint8]]]:
        """Compute jobs of a fit.

        Args:
            number: That of the fit.
            message: The `SentJobs`, pickled.
            bundles: References by which versions are fetched, several at once.
            own: The states of the clients that have one.

        Returns:
            The `SentOutcomes`, pickled, and the blocks of the results.

        Raises:
            Exception: That for which it could not take up the fit.
        """
        if number in self._failed:
            raise self._failed[number]
        jobs, settings, versions = pickle.loads(message)
        fit = self._fits[number]
        if self._latest != number:
            self._latest = number
            fit.flags.apply()
        fit.take(settings)
        fetched = 0
        for each, (which, place) in versions.items():
            fetched += self._fetch((number, each), bundles[which], place)
        states = iter(own)
        here = [fit.job(job, self._versions[number, job.version][0], states) for job in jobs]
        begun = time.perf_counter()
        computed = fit.executor.run(here)
        seconds = time.perf_counter() - begun
        self._forget(len(versions))
        outcomes: list[SentResult | ClientError] = []
        blocks = []
        for each in computed:
            if isinstance(each, ClientError):
                outcomes.append(each)
            else:
                result, block = SentResult.of(each)
                outcomes.append(result)
                blocks.append(block)
        answer = SentOutcomes(outcomes, fit.executor.state_dict(), fetched, seconds)
        return pickle.dumps(answer), blocks

    def _fetch(self, key: tuple[int, int], bundle: Any, place: int) -> int:
        """Have a version here; return how many bytes of it had to come."""
        if key in self._versions:
            self._versions.move_to_end(key)
            return 0
        packed = self._get(bundle)[place]
        tensors = [None if each is None else each.to(self._device) for each in packed.tensors()]
        self._versions[key] = tensors, packed.shape.nbytes
        return packed.shape.nbytes

    def _forget(self, used: int) -> None:
        """Forget versions that were not used for long, but keep those of the last jobs."""
        size = sum(nbytes for _, nbytes in self._versions.values())
        while size > _VERSION_BYTES and len(self._versions) > used:
            _, (_, nbytes) = self._versions.popitem(last=False)
            size -= nbytes


class _RefusedError(ValueError):
    """The module, the data or the local optimizer of a fit cannot be run."""


class _Fit:
    """A fit in an actor.

    Args:
        sent: The module and the settings.
        which: The number of the examples.
        examples: The examples, on the device.
        device: The device.

    Attributes:
        examples: The number of the examples.
        executor: Computes the jobs.
        flags: PyTorch's settings.

    Raises:
        _RefusedError: The executor cannot run it.
    """

    def __init__(
        self, sent: SentWorkplace, which: int, examples: Any, device: torch.device
    ) -> None:
        self.examples, self.flags = which, sent.flags
        self._device = device
        # A copy, since arrays lie read-only in the object store.
        module = deepcopy(sent.parts["module"]).to(device)
        module.trainer = sent.trainer  # a copy of a module has none
        state = ModuleState(module)
        self._live = LiveSettings(module)
        self._settings: dict[int, Settings] = {}
        own = {"module": module, "state": state, "examples": examples, "settings": self._live}
        own["autocast"] = autocast_on(device, sent.parts["autocast"])
        try:
            choice = resolve_executor(sent.executor, Workplace(**{**sent.parts, **own}))
        except ValueError as error:
            raise _RefusedError(str(error)) from error
        self.executor = choice.executor
        self._live.begin(choice.kept)

    def take(self, settings: Mapping[int, bytes]) -> None:
        """Take up settings of the module by number."""
        # In the order of their last use, and the same objects, so that traces are kept.
        known = {number: self._settings.pop(number, None) for number in settings}
        for number, sent in settings.items():
            self._settings[number] = known[number] or from_bytes(self._live, sent)
        self._settings = dict([*self._settings.items()][-_SETTINGS - len(settings) :])

    def job(self, job: SentJob, version: Sequence[Any], states: Iterator[NDArray[np.uint8]]) -> Job:
        """A job as the executor takes it.

        Args:
            job: The job as it was sent.
            version: The tensors of the version that was pulled.
            states: The clients' own states; the next one is taken if the client has one.
        """
        settings = self._live.start if job.settings is None else self._settings[job.settings]
        params, buffers, counters, shared = version
        number = job.task.pulled_version
        state = ServerState(number, params, buffers, counters, shared, settings=settings)
        if not job.has_own:
            return Job(job.task, state)
        own = torch.frombuffer(next(states).copy(), dtype=params.dtype)
        return Job(job.task, state, own.to(self._device))


def autocast_on(device: torch.device, autocast: Callable[[], Any]) -> Callable[[], Any]:
    """The context of mixed precision; it names the kind of device, which may be the driver's."""
    precision = getattr(autocast, "__self__", None)
    if not isinstance(precision, MixedPrecision):
        return autocast
    own = copy(precision)
    own.device = device.type
    return own.forward_context
