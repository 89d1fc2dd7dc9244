"""The module's own optimizer on the client."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities import rank_zero_info

from fedlight._support.checks import positive_int
from fedlight.local_optimizers.base import LocalOptimizer, LocalRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning import LightningModule
from torch import Tensor, nn


class ModuleOptimizer(LocalOptimizer):
    """The optimizer that the module's ``configure_optimizers`` returns, created for each task.

    A learning-rate scheduler starts with the task and steps after each local step, or after every
    `frequency` local steps if its dictionary says so. An ``interval`` of "epoch" is refused, since
    a local run has no epochs, and so is a scheduler that waits for a metric. For a rate that
    depends on the round, use a function of the version instead
    (``LocalSGD(lr=lambda version: …)``). This optimizer works on one client at a time.

    Raises:
        TypeError: (at the start of ``fit``) the scheduler has no ``step``, or its `frequency` is
            not an integer.
        ValueError: (at the start of ``fit``) the module returns no optimizer, several, one that
            needs a closure, or one with parameters that are not the module's; a scheduler that does
            not count local steps; or a dictionary with an unknown key.

    Example:
        >>> ModuleOptimizer()
        ModuleOptimizer()
    """

    stackable = False

    def begin(self, run: LocalRun, module: LightningModule) -> None:
        """Ask the module for a new optimizer."""
        given = f"configure_optimizers of {type(module).__name__} returns"
        optimizers, schedulers = _unpack(given, module.configure_optimizers())
        if len(optimizers) != 1:
            raise ValueError(
                f"{given} {len(optimizers)} optimizers, but a local run needs exactly one; return "
                "one, or pass local_optimizer=LocalSGD(lr=…)"
            )
        if isinstance(optimizers[0], torch.optim.LBFGS):
            raise ValueError(
                f"{given} LBFGS, which evaluates the loss several times per step; use an optimizer "
                "that needs one gradient per step"
            )
        params = list(module.parameters())
        own = set(map(id, params))
        trained = [param for group in optimizers[0].param_groups for param in group["params"]]
        foreign = sum(id(param) not in own for param in trained)
        if foreign:
            raise ValueError(
                f"{given} an optimizer in which {foreign} of {len(trained)} parameters are not the "
                "module's and would not be trained; give it self.parameters(), and keep layers as "
                "attributes of the module (in an nn.ModuleList, not in a list)"
            )
        run.native = _Native(
            optimizer=optimizers[0],
            schedulers=[_scheduler(module, given, each) for each in schedulers],
            params=[param for param in params if param.requires_grad],
        )

    def step(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        """Make one step of the module's optimizer, then of its schedulers."""
        native: _Native = run.native
        for param, grad in zip(native.params, grads, strict=True):
            param.grad = grad[0]
        for index in run.unused:
            native.params[index].grad = None
        native.optimizer.step()
        for param in native.params:
            param.grad = None
        native.steps += 1
        for scheduler, frequency in native.schedulers:
            if native.steps % frequency == 0:
                scheduler.step()


def configured_rates(module: LightningModule) -> list[float]:
    """Return the initial learning rates of the module's optimizer, one per group."""
    given = f"configure_optimizers of {type(module).__name__} returns"
    optimizers, _ = _unpack(given, module.configure_optimizers())
    return [float(group["lr"]) for each in optimizers for group in each.param_groups]


@dataclass(slots=True)
class _Native:
    """The module's optimizer during a run: its parameters, and schedulers with frequencies."""

    optimizer: torch.optim.Optimizer
    schedulers: list[tuple[Any, int]]
    params: list[nn.Parameter]
    steps: int = 0


def _unpack(given: str, configured: Any) -> tuple[list[Any], list[Any]]:
    if isinstance(configured, torch.optim.Optimizer):
        return [configured], []
    if isinstance(configured, dict) and "optimizer" in configured:
        _known_keys(given, "a dictionary", configured, _OF_OPTIMIZER)
        scheduler = configured.get("lr_scheduler")
        return [configured["optimizer"]], [] if scheduler is None else [scheduler]
    if (
        isinstance(configured, list | tuple)
        and len(configured) == 2
        and all(isinstance(part, list | tuple) for part in configured)
    ):
        return list(configured[0]), list(configured[1])
    if isinstance(configured, list | tuple):
        parts = [_unpack(given, part) for part in configured]
        return [o for part, _ in parts for o in part], [s for _, part in parts for s in part]
    if configured is None:
        return [], []
    raise ValueError(
        f"{given} {type(configured).__name__}; return a torch.optim.Optimizer, or a dict with "
        "'optimizer' and 'lr_scheduler'"
    )


# The keys of Lightning's dictionaries. A scheduler that counts steps needs no metric, so `monitor`
# and `strict` have no effect on it, as in Lightning; `name` is the name of its curve.
_OF_OPTIMIZER = ("optimizer", "lr_scheduler", "monitor")
_OF_SCHEDULER = ("scheduler", "interval", "frequency", "monitor", "strict", "name")


def _scheduler(module: LightningModule, given: str, scheduler: Any) -> tuple[Any, int]:
    """A scheduler and the number of local steps after which it steps.

    Raises:
        TypeError: `frequency` is not an integer, or the scheduler has no ``step``.
        ValueError: It waits for a metric or counts epochs, or a key is unknown.
    """
    frequency, plateau, named = 1, False, False
    if isinstance(scheduler, dict):
        options = dict(scheduler)
        plateau = bool(options.pop("reduce_on_plateau", False))
        _known_keys(given, "the lr_scheduler", options, _OF_SCHEDULER)
        if "scheduler" not in options:
            raise ValueError(f"{given} an lr_scheduler without the key 'scheduler'; add it")
        if options.get("interval", "step") != "step":
            raise ValueError(
                f"{given} a scheduler with interval={options['interval']!r}, but a local run has "
                "no epochs; write interval='step', which steps it after every `frequency` local "
                f"steps, or {_BY_ROUNDS}"
            )
        frequency = positive_int("frequency", options.get("frequency", 1))
        named = "interval" in options
        scheduler = options["scheduler"]
    if not named:
        _say_of_interval(type(module).__name__)
    if plateau or isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ValueError(
            f"{given} a {type(scheduler).__name__}, which waits for a metric that a local run does "
            "not have; use a scheduler that counts local steps, such as "
            f"torch.optim.lr_scheduler.StepLR, or {_BY_ROUNDS}"
        )
    if not callable(getattr(scheduler, "step", None)):
        raise TypeError(
            f"{given} the lr_scheduler {scheduler!r}, which has no step(); use one from "
            "torch.optim.lr_scheduler"
        )
    return scheduler, frequency


_BY_ROUNDS = (
    "FedTrainer(local_optimizer=LocalSGD(lr=lambda version: 0.1 * 0.99**version)) for a rate that "
    "depends on the round"
)


def _known_keys(given: str, which: str, keys: Iterable[str], known: tuple[str, ...]) -> None:
    for name in keys:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(known)}"
            raise ValueError(f"{given} {which} with the unknown key {name!r}; {hint}")


@cache
def _say_of_interval(module: str) -> None:
    rank_zero_info(
        f"fedlight: the scheduler of {module} is stepped after each local step, since a local run "
        "has no epochs (Lightning steps it after each epoch); write interval='step' in its "
        "dictionary to say so"
    )
