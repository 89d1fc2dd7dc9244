"""The module's own optimizer on the client."""

from __future__ import annotations

import difflib
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor, nn

from fedlight._support.checks import one_of, optional, positive, positive_int
from fedlight.local_optimizers.base import LocalOptimizer, LocalRun, NativeOptimizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning import LightningModule


class ModuleOptimizer(LocalOptimizer):
    """The optimizer that the module's ``configure_optimizers`` returns, created for each task.

    Its moments start anew in each task, and so does a learning-rate scheduler, unless `schedule`
    says otherwise. A scheduler that waits for a metric is refused. This optimizer works on one
    client at a time.

    Args:
        schedule: The time of the module's scheduler. "task": it starts with the task and steps
            after each local step, or after every `frequency` local steps if its dictionary says
            so; an ``interval`` of "epoch" is refused, since a local run has no epochs. "version": a
            client that pulled version v has in its whole task the rates of the scheduler after v
            steps (v // `frequency`), whatever its ``interval``. The rates of all versions follow
            from what ``configure_optimizers`` returns; the number of versions is
            ``self.trainer.max_epochs``. "client": it counts the local steps of the client over all
            its tasks, like `ByStep`, so that a warm-up or a cosine goes on from task to task.
        max_grad_norm: A gradient with a larger Euclidean norm, over all parameters of the
            optimizer, is scaled down to this norm, as by Lightning's ``gradient_clip_val``.

    Raises:
        TypeError: `max_grad_norm` is not a number; (at the start of ``fit``) the scheduler has no
            ``step``, or its `frequency` is not an integer.
        ValueError: An argument is outside its range; (at the start of ``fit``) the module returns
            no optimizer, several, one that needs a closure, or one with parameters that are not the
            module's; a scheduler that does not count steps; or a dictionary with an unknown key.

    Example:
        >>> ModuleOptimizer(schedule="version", max_grad_norm=1.0)
        ModuleOptimizer(schedule='version', max_grad_norm=1.0)
    """

    stackable = False
    _repr_optional = ("schedule", "max_grad_norm")

    def __init__(self, schedule: str = "task", max_grad_norm: float | None = None) -> None:
        self.schedule = one_of("schedule", schedule, ("task", "version", "client"))
        self.max_grad_norm = optional(positive, "max_grad_norm", max_grad_norm)

    def begin(self, run: LocalRun, module: LightningModule) -> None:
        """Ask the module for a new optimizer."""
        given, optimizers, configured = optimizers_of(module)
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
        trained = _params(optimizers[0])
        foreign = sum(id(param) not in own for param in trained)
        if foreign:
            raise ValueError(
                f"{given} an optimizer in which {foreign} of {len(trained)} parameters are not the "
                "module's and would not be trained; give it self.parameters(), and keep layers as "
                "attributes of the module (in an nn.ModuleList, not in a list)"
            )
        by_version = self.schedule == "version"
        schedulers = [_scheduler(given, each, by_version) for each in configured]
        (optimizer,) = optimizers
        trainable = [param for param in params if param.requires_grad]
        run.native = native = NativeOptimizer(optimizers, schedulers, trainable)
        (task,) = run.tasks
        if by_version and schedulers:
            version = task.pulled_version
            # The first task of a fit is at version 0: it forgets the rates of an earlier fit.
            after = _groups_after(module, optimizer, schedulers, version, fresh=version == 0)
            _set_groups(optimizer, schedulers, after[version], version)
        elif self.schedule == "client" and schedulers:
            last = task.steps_before + max(0, task.num_steps - 1)
            after = _groups_after(module, optimizer, schedulers, last, fresh=task.serial == 0)
            native.groups = after[task.steps_before : last + 1]
            _set_groups(optimizer, schedulers, native.groups[0], task.steps_before)
        elif schedulers:
            _say_of_schedule(type(module).__name__)

    def step(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        """Make one step of the module's optimizer, then of its schedulers."""
        native = run.native
        assert native is not None, "begin comes first"
        (optimizer,) = native.optimizers
        clips = self.max_grad_norm is not None
        for param, grad in zip(native.params, grads, strict=True):
            # Two parameters may share a gradient, and clipping changes it in place.
            param.grad = grad[0].clone() if clips else grad[0]
        for index in run.unused:
            native.params[index].grad = None
        if self.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(_params(optimizer), self.max_grad_norm)
        if native.groups:
            steps = run.tasks[0].steps_before + native.steps
            configs = native.lr_scheduler_configs
            _set_groups(optimizer, configs, native.groups[native.steps], steps)
        optimizer.step()
        for param in native.params:
            param.grad = None
        native.steps += 1
        if self.schedule != "task":
            return
        for config in native.lr_scheduler_configs:
            if native.steps % config.frequency == 0:
                config.scheduler.step()  # type: ignore[call-arg]  # it waits for no metric

    def rates(self, module: LightningModule, version: int) -> list[float]:
        """Return the learning rates at the start of a task, one per group of parameters.

        Args:
            module: The module.
            version: The version that the client pulled.
        """
        given, optimizers, configured = optimizers_of(module)
        if self.schedule == "version" and configured:
            schedulers = [_scheduler(given, each, True) for each in configured]
            after = _groups_after(module, optimizers[0], schedulers, version, fresh=version == 0)
            _set_groups(optimizers[0], schedulers, after[version], version)
        return [float(group["lr"]) for each in optimizers for group in each.param_groups]


def left_to_local_optimizer(module: LightningModule) -> tuple[int, list[str]]:
    """How another local optimizer differs from the module's ``configure_optimizers``.

    Returns:
        The number of optimizers that the module returns, and the names of the trainable parameters
        that are in none of them.
    """
    _, optimizers, _ = optimizers_of(module)
    trained = {id(param) for each in optimizers for param in _params(each)}
    named = module.named_parameters()
    left = [name for name, each in named if each.requires_grad and id(each) not in trained]
    return len(optimizers), left


def optimizers_of(module: LightningModule) -> tuple[str, list[Any], list[Any]]:
    """The beginning of an error, and what ``configure_optimizers`` returns as two lists."""
    given = f"configure_optimizers of {type(module).__name__} returns"
    return given, *_unpack(given, module.configure_optimizers())


def _params(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [param for group in optimizer.param_groups for param in group["params"]]


class _Rates(NamedTuple):
    """The hyper-parameters of an optimizer's groups under its schedulers.

    Attributes:
        start: The state of optimizer and schedulers before the first step, in words.
        after: After each number of steps, those of each group.
    """

    start: str
    after: list[list[dict[str, Any]]]


_RATES: WeakKeyDictionary[LightningModule, _Rates] = WeakKeyDictionary()
"""Schedulers can only be stepped, so what they have led to is kept for the next tasks."""


def _groups_after(
    module: LightningModule,
    optimizer: torch.optim.Optimizer,
    schedulers: Sequence[LRSchedulerConfig],
    most: int,
    fresh: bool,
) -> list[list[dict[str, Any]]]:
    """The hyper-parameters of each group after 0, 1, ..., `most` steps of the schedulers, or more.

    Args:
        module: The module.
        optimizer: The optimizer, as the module has made it.
        schedulers: Its schedulers.
        most: The largest number of steps.
        fresh: Whether those of an earlier fit are forgotten.
    """
    start = repr((_groups(optimizer), [each.scheduler.state_dict() for each in schedulers]))
    rates = _RATES.get(module)
    if rates is None or rates.start != start or fresh:
        rates = _Rates(start, [])
    if most >= len(rates.after):
        # Twice as many as needed, so that the cost of all steps grows as their number.
        rates = _Rates(start, _stepped(module, most, 2 * most + 1))
        _RATES[module] = rates
    return rates.after


def _set_groups(
    optimizer: torch.optim.Optimizer,
    schedulers: Sequence[LRSchedulerConfig],
    groups: Sequence[dict[str, Any]],
    steps: int,
) -> None:
    """Give an optimizer the hyper-parameters that its schedulers have led to in so many steps."""
    for group, found in zip(optimizer.param_groups, groups, strict=True):
        group.update(found)
    for each in schedulers:
        each.scheduler.last_epoch = steps // each.frequency
        each.scheduler._last_lr = [group["lr"] for group in optimizer.param_groups]


def _stepped(module: LightningModule, least: int, most: int) -> list[list[dict[str, Any]]]:
    given, (optimizer,), configured = optimizers_of(module)
    # Its interval was looked at before.
    schedulers = [_scheduler(given, each, True) for each in configured]
    optimizer.zero_grad()
    optimizer.step()  # changes nothing; torch warns of a scheduler that steps before its optimizer
    found = [_groups(optimizer)]
    for version in range(1, most):
        try:
            for each in schedulers:
                if version % each.frequency == 0:
                    each.scheduler.step()  # type: ignore[call-arg]  # no metric
        except ValueError:  # OneCycleLR ends after its total_steps
            if version <= least:
                raise
            break
        found.append(_groups(optimizer))
    return found


def _groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The hyper-parameters of each group; tensors are copied, since schedulers change them."""
    return [
        {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in group.items()
            if name != "params"
        }
        for group in optimizer.param_groups
    ]


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


def _scheduler(given: str, scheduler: Any, by_version: bool) -> LRSchedulerConfig:
    """A scheduler and the number of steps after which it steps.

    Args:
        given: The beginning of an error.
        scheduler: A scheduler, or a dictionary with one.
        by_version: Whether it counts versions in place of local steps.

    Raises:
        TypeError: `frequency` is not an integer, or the scheduler has no ``step``.
        ValueError: It waits for a metric or counts epochs, or a key is unknown.
    """
    frequency, plateau = 1, False
    if isinstance(scheduler, dict):
        options = dict(scheduler)
        plateau = bool(options.pop("reduce_on_plateau", False))
        _known_keys(given, "the lr_scheduler", options, _OF_SCHEDULER)
        if "scheduler" not in options:
            raise ValueError(f"{given} an lr_scheduler without the key 'scheduler'; add it")
        if options.get("interval", "step") != "step" and not by_version:
            raise ValueError(
                f"{given} a scheduler with interval={options['interval']!r}, but a local run has "
                "no epochs; write interval='step', which steps it after every `frequency` local "
                f"steps, or {_BY_ROUNDS}; `frequency` says how many versions make an epoch"
            )
        frequency = positive_int("frequency", options.get("frequency", 1))
        scheduler = options["scheduler"]
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
    interval = "epoch" if by_version else "step"
    return LRSchedulerConfig(scheduler, interval=interval, frequency=frequency)


_BY_ROUNDS = (
    'local_optimizer=ModuleOptimizer(schedule="version") for a scheduler that counts the server\'s '
    "versions, or local_optimizer=LocalSGD(lr=lambda version: 0.1 * 0.99**version)"
)


def _known_keys(given: str, which: str, keys: Iterable[str], known: tuple[str, ...]) -> None:
    for name in keys:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(known)}"
            raise ValueError(f"{given} {which} with the unknown key {name!r}; {hint}")


@cache
def _say_of_schedule(module: str) -> None:
    rank_zero_info(
        f"fedlight: the scheduler of {module} starts anew in each task and counts its local steps "
        "(Lightning steps it after each epoch, unless interval='step'); for one that goes on over "
        'the training write local_optimizer=ModuleOptimizer(schedule="version")'
    )
