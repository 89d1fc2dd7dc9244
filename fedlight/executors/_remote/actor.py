"""An actor of a Ray cluster that computes local runs, and the messages it gets and sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedlight._module.current_stage import Moment, moment_of
from fedlight._module.settings import LiveSettings, Settings
from fedlight.executors._choice.choose_executor import resolve_executor
from fedlight.executors._remote.sent_settings import from_bytes
from fedlight.executors.base import ClientError, Executor, Job, Outcome, Workplace
from fedlight.parameters import ModuleState

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.types import LocalResult

_SETTINGS = 16
"""Earlier settings of the module that an actor keeps."""


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

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Pass the state of an earlier executor to this one."""
        self._executor.load_state_dict(state)

    def run(
        self, jobs: Sequence[Job], settings: Mapping[int, bytes] = MappingProxyType({})
    ) -> tuple[list[Outcome], dict[str, Any]]:
        """Compute jobs; their results, and the state of the executor.

        Args:
            jobs: The jobs, with a number in place of the settings of the module.
            settings: The settings by number.
        """
        # In the order of their last use, and the same objects, so that traces are kept.
        known = {number: self._settings.pop(number, None) for number in settings}
        for number, sent in settings.items():
            self._settings[number] = known[number] or from_bytes(self._live, sent)
        self._settings = dict([*self._settings.items()][-_SETTINGS - len(settings) :])
        outcomes = self._executor.run([self._here(job) for job in jobs])
        return [_to_send(outcome) for outcome in outcomes], self._executor.state_dict()

    def _here(self, job: Job) -> Job:
        """A job as it was sent, on the device and with its settings."""
        number = job.pulled.settings
        settings = self._live.start if number is None else self._settings[number]
        moved = job_on(job, self._device)
        return moved._replace(pulled=replace(moved.pulled, settings=settings))


def job_on(job: Job, device: torch.device | str) -> Job:
    """A job with its tensors on a device, without its workplace."""
    state, own = job.pulled, job.client_state
    moved = _moved({each.name: getattr(state, each.name) for each in fields(state)}, device)
    return Job(job.task, replace(state, **moved), None if own is None else own.to(device))


def result_on(result: LocalResult, device: torch.device | str, copy: bool = False) -> LocalResult:
    """A result with its tensors on a device; `copy` copies those that are there already."""
    moved = _moved(result._asdict(), device, copy)
    return result._replace(**moved, measured=None)  # it refers to the tensor before the move


def _moved(
    values: Mapping[str, Any], device: torch.device | str, copy: bool = False
) -> dict[str, Any]:
    """The tensors among named values, on a device."""
    return {
        name: value.to(device, copy=copy)
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def _to_send(outcome: Outcome) -> Outcome:
    """An outcome on the CPU. Rows are copied: a view would send the whole block of its stack."""
    if isinstance(outcome, ClientError):
        return outcome
    return result_on(outcome, "cpu", copy=True)._replace(metrics=dict(outcome.metrics))
