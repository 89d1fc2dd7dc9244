"""The arguments of `lightning.Trainer`: which work here, and what to write for the others."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
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

from fedlight._support.checks import non_negative_int, positive_int


class LightningArguments(TypedDict, total=False):
    """Arguments of `lightning.Trainer` that `FedTrainer` takes by name, beside its own.

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
        status: "works", "works differently" or "refused".
        text: What it means here, or what to write instead.
        neutral: Values of a refused argument that ask for nothing, and are accepted.
    """

    status: str
    text: str
    neutral: tuple[Any, ...] = ()


_WORKS, _DIFFERS, _REFUSED = "works", "works differently", "refused"

ARGUMENTS: Mapping[str, Argument] = {
    "accelerator": Argument(_WORKS, "as in Lightning"),
    "strategy": Argument(
        _REFUSED,
        "all clients share one device; write executor=RayExecutor(…) for several",
        ("auto",),
    ),
    "devices": Argument(_DIFFERS, 'one device: 1, "auto" (one) or [k] for the k-th'),
    "num_nodes": Argument(
        _REFUSED, "a run has one process; write executor=RayExecutor(…) for several machines", (1,)
    ),
    "precision": Argument(
        _DIFFERS, 'as in Lightning, except "16-mixed" on a GPU: write "bf16-mixed"'
    ),
    "logger": Argument(_WORKS, "as in Lightning; the default is TensorBoard"),
    "callbacks": Argument(_WORKS, "fedlight's and Lightning's; see the table of callbacks"),
    "fast_dev_run": Argument(_DIFFERS, "the number of rounds and of validation batches"),
    "max_epochs": Argument(_REFUSED, "write max_rounds, the number of server updates", (None,)),
    "min_epochs": Argument(
        _REFUSED, "only EarlyStopping ends a run early: give it a larger patience", (None,)
    ),
    "max_steps": Argument(_REFUSED, "write max_updates, the number of client updates", (-1, None)),
    "min_steps": Argument(
        _REFUSED, "only EarlyStopping ends a run early: give it a larger patience", (None,)
    ),
    "max_time": Argument(_DIFFERS, "a virtual time; max_wall_time is the limit in real time"),
    "limit_train_batches": Argument(
        _REFUSED,
        "write local_steps of the arrival process, the number of batches per client update",
        (None, 1.0),
    ),
    "limit_val_batches": Argument(_WORKS, "as in Lightning; 0 for no validation"),
    "limit_test_batches": Argument(_WORKS, "as in Lightning"),
    "limit_predict_batches": Argument(_WORKS, "as in Lightning"),
    "overfit_batches": Argument(
        _REFUSED,
        "give a FederatedDataModule of few examples, with the same examples as val_dataset",
        (0.0,),
    ),
    "val_check_interval": Argument(
        _REFUSED, "write check_val_every_n_rounds or check_val_every_n_updates", (None, 1.0)
    ),
    "check_val_every_n_epoch": Argument(
        _REFUSED, "write check_val_every_n_rounds or check_val_every_n_updates", ()
    ),
    "num_sanity_val_steps": Argument(_WORKS, "as in Lightning; 0 by default"),
    "log_every_n_steps": Argument(_DIFFERS, "counts rounds; 1 by default"),
    "enable_checkpointing": Argument(_WORKS, "True adds a FedCheckpoint; by default none is added"),
    "enable_progress_bar": Argument(_WORKS, "as in Lightning"),
    "enable_model_summary": Argument(_WORKS, "as in Lightning; False by default"),
    "accumulate_grad_batches": Argument(
        _REFUSED, "write a larger batch_size for the FederatedDataModule", (1,)
    ),
    "gradient_clip_val": Argument(
        _REFUSED, "write local_optimizer=LocalSGD(lr=…, max_grad_norm={value!r})", (None,)
    ),
    "gradient_clip_algorithm": Argument(
        _REFUSED,
        "write local_optimizer=LocalSGD(lr=…, max_grad_norm=…), which clips by the norm",
        (None, "norm"),
    ),
    "deterministic": Argument(_WORKS, "within fit, validate, test and predict"),
    "benchmark": Argument(_WORKS, "within fit, validate, test and predict"),
    "inference_mode": Argument(_WORKS, "as in Lightning: for validate, test and predict"),
    "use_distributed_sampler": Argument(
        _REFUSED, "leave it out: a run has one process and no distributed sampler", (True, False)
    ),
    "profiler": Argument(
        _DIFFERS, '"simple", "advanced" or an object; the actions are those of a federation'
    ),
    "detect_anomaly": Argument(
        _REFUSED,
        'call fit inside "with torch.autograd.detect_anomaly():" and write executor="sequential"',
        (False,),
    ),
    "barebones": Argument(
        _REFUSED,
        "write logger=False, enable_progress_bar=False, check_val_every_n_rounds=None",
        (False,),
    ),
    "plugins": Argument(
        _REFUSED, "write precision=… for a precision; other plugins are not supported", (None, [])
    ),
    "sync_batchnorm": Argument(
        _REFUSED, "leave it out: the aggregator averages the buffers of the clients", (False,)
    ),
    "reload_dataloaders_every_n_epochs": Argument(
        _REFUSED, "leave it out: clients hold the same examples for the whole run", (0,)
    ),
    "default_root_dir": Argument(_WORKS, "as in Lightning"),
    "enable_autolog_hparams": Argument(_WORKS, "as in Lightning"),
    "model_registry": Argument(
        _REFUSED, "upload the file of a FedCheckpoint yourself after fit", (None,)
    ),
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
}


@dataclass(frozen=True)
class LightningSettings:
    """The values of `LightningArguments`, checked."""

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
    timer: Timer | None = None
    profiler: Profiler = field(default_factory=PassThroughProfiler)


def lightning_settings(
    given: Mapping[str, Any], own: Iterable[str], trial: int = 0
) -> LightningSettings:
    """The settings that keywords ask for which are not `FedTrainer`'s own.

    Args:
        given: The keywords and their values.
        own: Names of `FedTrainer`'s own arguments, which an unknown name may have meant.
        trial: Batches of a trial run, or 0.

    Raises:
        TypeError: An argument has no meaning here or is unknown, or a value is of the wrong kind.
        ValueError: A value is outside its range.
    """
    for name, value in given.items():
        if name not in LightningArguments.__annotations__:
            _refuse(name, value, [*own, *LightningArguments.__annotations__])
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or name not in LightningArguments.__annotations__:
            continue
        if name == "max_wall_time":
            settings["timer"] = wall_clock(value)
        elif name in _CHECKS:
            settings[name] = _CHECKS[name](name, value)
        elif isinstance(value, bool):
            settings[name] = value
        else:
            raise TypeError(f"{name} must be True or False, got {value!r}")
    if trial:
        settings |= {"limit_test_batches": trial, "limit_predict_batches": trial}
        settings["num_sanity_val_steps"] = 0
        settings.pop("timer", None)
    return LightningSettings(**settings)


def _refuse(name: str, value: Any, known: Iterable[str]) -> None:
    """Raise unless `name` is an argument of Lightning's with a value that asks for nothing."""
    argument = ARGUMENTS.get(name)
    if name in _FORMER:
        raise TypeError(f"{name}={value!r} is an argument of Lightning 1: {_FORMER[name]}")
    if argument is None:
        near = difflib.get_close_matches(name, [*known, *ARGUMENTS], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"FedTrainer.__init__() got an unexpected keyword argument {name!r}{hint}")
    # By type as well, since 1 == True and 0 == False.
    if any(type(value) is type(each) and value == each for each in argument.neutral):
        return
    text = argument.text.format(value=value)
    raise TypeError(f"{name}={value!r} has no meaning in a federation: {text}")


def refuse_arguments(method: str, given: Mapping[str, Any]) -> None:
    """Refuse arguments of a method that only Lightning's trainer has.

    Args:
        method: "fit", "validate", "test" or "predict".
        given: The arguments that no parameter takes.

    Raises:
        TypeError: One of them asks for something.
    """
    for name, value in given.items():
        text = METHODS.get((method, name))
        if text is None:
            raise TypeError(f"FedTrainer.{method}() got an unexpected keyword argument {name!r}")
        if value is not None:
            raise TypeError(f"{method} takes no {name}: {text}")


def limit_batches(name: str, value: object) -> int | float | None:
    """A number of batches, a share of them, or None for all; 0 for none.

    Raises:
        TypeError: It is no number.
        ValueError: It is outside its range.
    """
    if value is None or (isinstance(value, float) and 0 < value <= 1):
        return value
    if value == 0 and not isinstance(value, bool):
        return 0
    if isinstance(value, float):
        raise ValueError(f"{name} must be a share in [0, 1] or a number of batches, got {value!r}")
    return non_negative_int(name, value)


def one_device(value: object) -> int | list[int]:
    """`devices` for Fabric, if that is one device.

    Raises:
        TypeError: It is neither a number, nor "auto", nor a list of one number.
        ValueError: It asks for another number of devices.
    """
    if value == "auto":
        return 1
    if isinstance(value, str):
        numbers = [part for part in value.split(",") if part.strip()]
        if numbers and all(part.strip().isdecimal() for part in numbers):
            # As in Lightning, "1" is a number of devices and "1," the device with that index.
            indices = [int(part) for part in numbers]
            value = indices if "," in value else indices[0]
    if isinstance(value, list | tuple) and len(value) == 1:
        return [non_negative_int("devices[0]", value[0])]
    several = len(value) if isinstance(value, list | tuple) else positive_int("devices", value)
    if several != 1:
        raise ValueError(
            f"devices must be 1, got {value}: all clients share one device; "
            "to use several, give a distributed executor"
        )
    return 1


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


def wall_clock(value: Any) -> Timer:
    """Lightning's timer of ``max_wall_time``.

    Raises:
        TypeError: It is neither a string, nor a dict, nor a `timedelta`.
        ValueError: The string or the dict cannot be read.
    """
    if not isinstance(value, str | dict | timedelta):
        raise TypeError(
            f'max_wall_time must be "DD:HH:MM:SS", a timedelta or a dict such as '
            f'{{"minutes": 5}}, got {value!r}'
        )
    try:
        return Timer(value)
    except (MisconfigurationException, TypeError) as error:
        raise ValueError(
            f'max_wall_time must be "DD:HH:MM:SS" or the arguments of a timedelta, got {value!r}'
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


_CHECKS = {
    "limit_test_batches": limit_batches,
    "limit_predict_batches": limit_batches,
    "num_sanity_val_steps": _sanity_steps,
    "log_every_n_steps": non_negative_int,
    "deterministic": _deterministic,
    "profiler": _profiler,
}
