"""An actor of a Ray cluster that computes local runs, and the messages it gets and sends."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from fedlight._module.current_stage import Moment, moment_of
from fedlight._module.settings import LiveSettings, Settings
from fedlight.executors._choice.choose_executor import resolve_executor
from fedlight.executors._remote.sent_settings import from_bytes
from fedlight.executors._remote.tensor_block import Packed
from fedlight.executors.base import ClientError, Executor, Job, Workplace
from fedlight.parameters import ModuleState
from fedlight.types import LocalResult, Measured, ServerState

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.types import LoggedValue, Task

_SETTINGS = 16
"""Earlier settings of the module that an actor keeps."""

_VERSION_BYTES = 2**28
"""Bytes of versions that an actor keeps for jobs that pull them later."""


class SentJob(NamedTuple):
    """A job as it is sent.

    Attributes:
        task: The task.
        version: The number of the version that was pulled.
        settings: The number of the module's settings; None for those of the start.
        own: The client's own state, or None.
    """

    task: Task
    version: int
    settings: int | None
    own: Packed | None


class SentResult(NamedTuple):
    """A result as it is sent.

    Attributes:
        packed: Delta, buffers, counters and the client's new state.
        metrics: What the steps logged.
        norm: The norm of the delta, if it is known.
    """

    packed: Packed
    metrics: Mapping[str, LoggedValue]
    norm: float | None

    @classmethod
    def of(cls, result: LocalResult) -> SentResult:
        """Make a result ready to be sent."""
        tensors = (result.delta, result.buffers, result.counters, result.client_state)
        norm = None if result.measured is None else result.measured.norm
        return cls(Packed.of(tensors), dict(result.metrics), norm)

    def result(self, device: torch.device) -> LocalResult:
        """The result, on a device."""
        tensors = [None if each is None else each.to(device) for each in self.packed.tensors()]
        delta, buffers, counters, own = tensors
        assert delta is not None
        assert buffers is not None
        assert counters is not None
        measured = None if self.norm is None else Measured(delta, delta._version, self.norm)
        return LocalResult(delta, buffers, counters, self.metrics, own, measured=measured)


SentOutcome: TypeAlias = SentResult | ClientError


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
    """

    def __init__(self, sent: SentWorkplace, on_gpu: bool = False) -> None:
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
        jobs: Sequence[SentJob],
        settings: Mapping[int, bytes],
        versions: Mapping[int, Callable[[], Packed]],
    ) -> tuple[list[SentOutcome], dict[str, Any], int]:
        """Compute jobs.

        Args:
            jobs: The jobs.
            settings: The settings of the module by number.
            versions: The versions by number, each fetched if it is called.

        Returns:
            Their results, the state of the executor, and how many bytes of versions were fetched.
        """
        # In the order of their last use, and the same objects, so that traces are kept.
        known = {number: self._settings.pop(number, None) for number in settings}
        for number, sent in settings.items():
            self._settings[number] = known[number] or from_bytes(self._live, sent)
        self._settings = dict([*self._settings.items()][-_SETTINGS - len(settings) :])
        fetched = sum(self._fetch(number, fetch) for number, fetch in versions.items())
        outcomes = self._executor.run([self._here(job) for job in jobs])
        self._forget(len(versions))
        sent_outcomes: list[SentOutcome] = [
            each if isinstance(each, ClientError) else SentResult.of(each) for each in outcomes
        ]
        return sent_outcomes, self._executor.state_dict(), fetched

    def _fetch(self, number: int, fetch: Callable[[], Packed]) -> int:
        """Have a version here; return how many bytes of it had to come."""
        if number in self._versions:
            self._versions.move_to_end(number)
            return 0
        packed = fetch()
        tensors = [None if each is None else each.to(self._device) for each in packed.tensors()]
        self._versions[number] = tensors, packed.nbytes
        return packed.nbytes

    def _forget(self, used: int) -> None:
        """Forget versions that were not used for long, but keep those of the last jobs."""
        size = sum(nbytes for _, nbytes in self._versions.values())
        while size > _VERSION_BYTES and len(self._versions) > used:
            _, (_, nbytes) = self._versions.popitem(last=False)
            size -= nbytes

    def _here(self, job: SentJob) -> Job:
        """A job as the executor takes it."""
        settings = self._live.start if job.settings is None else self._settings[job.settings]
        (params, buffers, counters, shared), _ = self._versions[job.version]
        state = ServerState(
            job.task.pulled_version, params, buffers, counters, shared, settings=settings
        )
        own = None if job.own is None else job.own.tensors()[0]
        return Job(job.task, state, None if own is None else own.to(self._device))
