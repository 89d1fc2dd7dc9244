"""The arguments of `lightning.Trainer`: how each is treated, and the values of those that work."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, NamedTuple, TypedDict

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.profilers import (
    AdvancedProfiler,
    PassThroughProfiler,
    Profiler,
    SimpleProfiler,
)

from fedlight._support.checks import non_negative_int


class LightningArguments(TypedDict, total=False):
    """Arguments of `lightning.Trainer` that `FedTrainer` takes by name, in addition to its own.

    Attributes:
        limit_test_batches: Maximum number of batches in `test` (int), or the share of them
            (float); 0 for none.
        limit_predict_batches: The same for `predict`.
        num_sanity_val_steps: Number of batches to validate before round 1, -1 for all; the metrics
            are discarded. The default is 0 (2 in Lightning): the executors try a step before
            round 1, and round 1 is validated by default.
        log_every_n_steps: Loggers get the metrics of every n-th round, and those of each round
            that was validated. The default is 1 (50 in Lightning); `FedTrainer.history` has all.
        enable_checkpointing: True adds a `FedCheckpoint` in ``default_root_dir/checkpoints`` if
            none is given; False refuses one. By default (True in Lightning) none is added.
        enable_model_summary: Print a summary of the model before round 1. The default is False
            (True in Lightning).
        enable_autolog_hparams: Send the hyper-parameters to the loggers; True by default.
        deterministic: True makes PyTorch use deterministic algorithms within `fit`, `validate`,
            `test` and `predict`, and raise an error for operations that have none. "warn" warns
            about them, False allows all operations, and None (the default) leaves PyTorch's
            setting unchanged. The setting is restored afterwards. It does not apply to other
            processes (Ray).
        benchmark: ``torch.backends.cudnn.benchmark`` within the same methods; None leaves it
            unchanged, or turns it off if `deterministic` is set.
        inference_mode: Run `validate`, `test` and `predict` under ``torch.inference_mode`` (True,
            the default) or ``torch.no_grad``. Within `fit` it is ``torch.no_grad``, as in
            Lightning.
        max_wall_time: End the run between two events once this much real time has passed, in the
            format of Lightning's ``max_time``: "DD:HH:MM:SS", a `timedelta` or a dict of its
            arguments. The length of such a run depends on the machine. A resumed run counts the
            time before its checkpoint.
        profiler: "simple", "advanced" or a profiler of Lightning. Its actions are ``local_runs``,
            ``validation``, ``fit`` and ``events``, which is the time between local runs: schedule,
            server steps, validation, callbacks.
    """

    limit_test_batches: int | float | None
    limit_predict_batches: int | float | None
    num_sanity_val_steps: int | None
    log_every_n_steps: int | None
    enable_checkpointing: bool | None
    enable_model_summary: bool | None
    enable_autolog_hparams: bool
    deterministic: bool | Literal["warn"] | None
    benchmark: bool | None
    inference_mode: bool
    max_wall_time: str | timedelta | dict[str, int] | None
    profiler: Profiler | str | None


class Argument(NamedTuple):
    """How `FedTrainer` treats an argument of `lightning.Trainer`.

    Attributes:
        status: "works", "differs" or "refused".
        text: Its meaning here, or what to write instead.
        neutral: Values of a refused argument that ask for nothing, and are accepted.
    """

    status: str
    text: str
    neutral: tuple[Any, ...] = ()


def _works(text: str) -> Argument:
    return Argument("works", text)


def _differs(text: str) -> Argument:
    return Argument("differs", text)


def _refused(text: str, *neutral: Any) -> Argument:
    return Argument("refused", text, neutral)


ARGUMENTS: Mapping[str, Argument] = {
    "accelerator": _works("as in Lightning"),
    "strategy": _refused(
        "all clients share one device; write executor=RayExecutor(…) for several", "auto"
    ),
    "devices": _differs(
        'one device: 1, "auto" (one) or [k] for the k-th; executor=RayExecutor(…) for several'
    ),
    "num_nodes": _refused(
        "a run has one process; write executor=RayExecutor(…) for several machines", 1
    ),
    "precision": _differs('as in Lightning, except "16-mixed" on a GPU: write "bf16-mixed"'),
    "logger": _works("as in Lightning; the default is TensorBoard"),
    "callbacks": _works("fedlight's and Lightning's; see the table of callbacks"),
    "fast_dev_run": _differs("the number of rounds and of validation batches"),
    "max_epochs": _refused("write max_rounds, the number of server updates", None),
    "min_epochs": _refused("only EarlyStopping ends a run early: give it a larger patience", None),
    "max_steps": _refused(
        "write max_updates, the number of client updates; an update is local_steps batches",
        -1,
        None,
    ),
    "min_steps": _refused("only EarlyStopping ends a run early: give it a larger patience", None),
    "max_time": _differs("a virtual time; max_wall_time is the limit in real time"),
    "limit_train_batches": _refused(
        "write local_steps of the arrival process, the number of batches per client update",
        None,
        1.0,
    ),
    "limit_val_batches": _works("as in Lightning; 0 for no validation"),
    "limit_test_batches": _works("as in Lightning"),
    "limit_predict_batches": _works("as in Lightning"),
    "overfit_batches": _refused(
        "give a FederatedDataModule of few examples, with the same examples as val_dataset", 0.0
    ),
    "val_check_interval": _refused(
        "write check_val_every_n_rounds or check_val_every_n_updates", None, 1.0
    ),
    "check_val_every_n_epoch": _refused(
        "write check_val_every_n_rounds or check_val_every_n_updates"
    ),
    "num_sanity_val_steps": _works("as in Lightning; 0 by default"),
    "log_every_n_steps": _differs("counts rounds; 1 by default"),
    "enable_checkpointing": _works("True adds a FedCheckpoint; by default none is added"),
    "enable_progress_bar": _works("as in Lightning"),
    "enable_model_summary": _works("as in Lightning; False by default"),
    "accumulate_grad_batches": _refused("write a larger batch_size for the FederatedDataModule", 1),
    "gradient_clip_val": _refused(
        "write local_optimizer=ModuleOptimizer(max_grad_norm={value!r}), which clips for the "
        "module's own optimizer; LocalSGD and LocalAdam take max_grad_norm, too",
        None,
    ),
    "gradient_clip_algorithm": _refused(
        "write local_optimizer=ModuleOptimizer(max_grad_norm=…), which clips by the norm",
        None,
        "norm",
    ),
    "deterministic": _works("within fit, validate, test and predict"),
    "benchmark": _works("within fit, validate, test and predict"),
    "inference_mode": _works("as in Lightning: for validate, test and predict"),
    "use_distributed_sampler": _refused(
        "leave it out: a run has one process and no distributed sampler", True, False
    ),
    "profiler": _differs(
        '"simple", "advanced" or an object; the actions are those of a federation'
    ),
    "detect_anomaly": _refused(
        'call fit inside "with torch.autograd.detect_anomaly():" and write executor="sequential"',
        False,
    ),
    "barebones": _refused(
        "write logger=False, enable_progress_bar=False, check_val_every_n_rounds=None", False
    ),
    "plugins": _refused(
        "write precision=… for a precision; other plugins are not supported", None, []
    ),
    "sync_batchnorm": _refused(
        "leave it out: the aggregator averages the buffers of the clients", False
    ),
    "reload_dataloaders_every_n_epochs": _refused(
        "leave it out: clients hold the same examples for the whole run", 0
    ),
    "default_root_dir": _works("as in Lightning"),
    "enable_autolog_hparams": _works("as in Lightning"),
    "model_registry": _refused("upload the file of a FedCheckpoint yourself after fit", None),
}
"""Each argument of `lightning.Trainer` 2.6, in its order."""


_PLAIN = "leave it out: checkpoints hold tensors and plain data only"

METHODS = {
    ("fit", "train_dataloaders"): "give a FederatedDataModule as the second argument",
    ("fit", "val_dataloaders"): "give FederatedDataModule(…, val_dataset=…)",
    ("validate", "dataloaders"): "give FederatedDataModule(…, val_dataset=…)",
    ("test", "dataloaders"): "give FederatedDataModule(…, test_dataset=…)",
    **{(method, "weights_only"): _PLAIN for method in ("fit", "validate", "test", "predict")},
}
"""Arguments of the methods of `lightning.Trainer` that those of `FedTrainer` refuse."""

_FORMER = {
    "resume_from_checkpoint": "write trainer.fit(module, datamodule, ckpt_path=…)",
    "checkpoint_callback": "write enable_checkpointing=…",
    "progress_bar_refresh_rate": "write enable_progress_bar=…",
    "weights_summary": "write enable_model_summary=…",
    "weights_save_path": "write default_root_dir=…",
    "gpus": 'write accelerator="gpu" and devices=1, or devices=[k] for the card k',
    "auto_lr_find": "compare several rates of the local optimizer with compare or Grid",
    "auto_scale_batch_size": "write batch_size=… of the FederatedDataModule",
}


@dataclass(frozen=True)
class LightningSettings:
    """The values of `LightningArguments`, checked."""

    limit_val_batches: int | float | None = None
    limit_test_batches: int | float | None = None
    limit_predict_batches: int | float | None = None
    num_sanity_val_steps: int = 0
    log_every_n_steps: int = 1
    enable_checkpointing: bool | None = None
    enable_model_summary: bool = False
    enable_autolog_hparams: bool = True
    deterministic: bool | str | None = None
    benchmark: bool | None = None
    inference_mode: bool = True
    max_wall_time: Timer | None = None
    profiler: Profiler = field(default_factory=PassThroughProfiler)


def lightning_settings(
    given: Mapping[str, Any], own: Mapping[str, Any], trial: int = 0
) -> LightningSettings:
    """The settings from the keywords of Lightning's, and from ``limit_val_batches``.

    Args:
        given: The keywords that are not `FedTrainer`'s own, and their values.
        own: `FedTrainer`'s own, whose names an unknown keyword may have meant.
        trial: Batches of a trial run, or 0.

    Raises:
        TypeError: An argument has no meaning here or is unknown, or a value is of the wrong kind.
        ValueError: A value is outside its range.
    """
    taken = LightningArguments.__annotations__
    others = {name: value for name, value in given.items() if name not in taken}
    known = [*own, *taken]
    _refuse([_objection(name, value, known) for name, value in others.items()])
    settings = {
        name: _CHECKS[name](name, value)
        for name, value in given.items()
        if name in taken and value is not None
    }
    settings["limit_val_batches"] = limit_batches("limit_val_batches", own["limit_val_batches"])
    if trial:
        settings |= {f"limit_{stage}_batches": trial for stage in ("val", "test", "predict")}
        settings |= {"num_sanity_val_steps": 0, "max_wall_time": None}
    return LightningSettings(**settings)


def _objection(name: str, value: Any, known: Iterable[str]) -> str:
    """Why an argument is refused; "" if it is Lightning's, with a value that asks for nothing."""
    if name in ARGUMENTS or name in _FORMER:
        return lightning_objection(name, value) or ""
    unknown = f"FedTrainer.__init__() got an unexpected keyword argument {name!r}"
    near = difflib.get_close_matches(name, [*known, *ARGUMENTS], n=1)
    if not near:
        return unknown
    if near[0] in known:
        return f"{unknown}; did you mean {near[0]!r}?"
    return f"{unknown}; Lightning's {near[0]} is not taken: {_remedy(near[0], value)}"


def lightning_objection(name: str, value: Any) -> str | None:
    """Why an argument of Lightning's trainer is refused; None if it is not one that is.

    Args:
        name: The argument.
        value: Its value.

    Returns:
        The reason and what to write instead, or "" for a value that asks for nothing.
    """
    if name in _FORMER:
        return f"{name}={value!r} is an argument of Lightning 1: {_FORMER[name]}"
    argument = ARGUMENTS.get(name)
    if argument is None or argument.status != "refused":
        return None
    # By type as well, since 1 == True and 0 == False.
    if any(type(value) is type(each) and value == each for each in argument.neutral):
        return ""
    return f"FedTrainer does not take {name}={value!r}: {_remedy(name, value)}"


def _remedy(name: str, value: Any) -> str:
    return ARGUMENTS[name].text.format(value=value)


def _refuse(objections: Iterable[str]) -> None:
    """Raise one error with all objections.

    Raises:
        TypeError: There are some.
    """
    found = [each for each in objections if each]
    if len(found) > 1:
        found = [f"{len(found)} arguments are refused:", *found]
    if found:
        raise TypeError("\n  ".join(found))


def refuse_arguments(method: str, given: Mapping[str, Any]) -> None:
    """Refuse arguments of a method that only Lightning's trainer has.

    Args:
        method: "fit", "validate", "test" or "predict".
        given: The arguments that no parameter takes.

    Raises:
        TypeError: One of them asks for something; the error names all that do.
    """
    objections = []
    for name, value in given.items():
        text = METHODS.get((method, name))
        if text is None:
            objections.append(f"FedTrainer.{method}() got an unexpected keyword argument {name!r}")
        elif value is not None:
            objections.append(f"{method} takes no {name}: {text}")
    _refuse(objections)


def limit_batches(name: str, value: object) -> int | float | None:
    """A number of batches, a share of them, or None for all; 0 for none.

    Raises:
        TypeError: It is no number.
        ValueError: It is outside its range.
    """
    if value is None or (isinstance(value, float) and 0 < value <= 1):
        return value
    if isinstance(value, int | float) and value == 0 and not isinstance(value, bool):
        return 0
    if isinstance(value, float):
        raise ValueError(f"{name} must be a share in [0, 1] or a number of batches, got {value!r}")
    return non_negative_int(name, value)


def virtual_time(value: object) -> None:
    """Refuse a wall-clock time as ``max_time``.

    Raises:
        TypeError: It is a string, a dict or a `timedelta`.
    """
    if isinstance(value, str | dict | timedelta):
        raise TypeError(
            f"max_time must be a number, got {value!r}: it is a virtual time; for a limit in real "
            f"time write max_wall_time={value!r}"
        )


def _true_or_false(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError(f"{name} must be True or False, got {value!r}")


def _timer(name: str, value: Any) -> Timer:
    if not isinstance(value, str | dict | timedelta):
        raise TypeError(
            f'{name} must be "DD:HH:MM:SS", a timedelta or a dict such as '
            f'{{"minutes": 5}}, got {value!r}'
        )
    try:
        return Timer(value)
    except (MisconfigurationException, TypeError) as error:
        raise ValueError(
            f'{name} must be "DD:HH:MM:SS" or the arguments of a timedelta, got {value!r}'
        ) from error


def _sanity_steps(name: str, value: object) -> int:
    return -1 if value == -1 else non_negative_int(name, value)


def _deterministic(name: str, value: object) -> bool | str | None:
    if isinstance(value, bool) or value == "warn":
        return value
    raise ValueError(f'{name} must be True, False, "warn" or None, got {value!r}')


def _profiler(name: str, value: object) -> Profiler:
    known: dict[str, type[Profiler]] = {"simple": SimpleProfiler, "advanced": AdvancedProfiler}
    if isinstance(value, Profiler):
        return value
    if isinstance(value, str) and value in known:
        return known[value]()
    raise TypeError(
        f'{name} must be "simple", "advanced" or a profiler of lightning.pytorch.profilers, '
        f"got {value!r}"
    )


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "limit_test_batches": limit_batches,
    "limit_predict_batches": limit_batches,
    "num_sanity_val_steps": _sanity_steps,
    "log_every_n_steps": non_negative_int,
    "enable_checkpointing": _true_or_false,
    "enable_model_summary": _true_or_false,
    "enable_autolog_hparams": _true_or_false,
    "deterministic": _deterministic,
    "benchmark": _true_or_false,
    "inference_mode": _true_or_false,
    "max_wall_time": _timer,
    "profiler": _profiler,
}
"""How the value of each of `LightningArguments` is checked and converted."""
