"""The arguments of ``self.log``: their meaning, and checks of them."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fedlight._support.reductions import REDUCTIONS
from fedlight.types import LoggedAs, LoggedValue


class Options(NamedTuple):
    """The arguments of ``self.log`` that decide how the values of a name are reduced and shown.

    Attributes:
        reduce: "mean", "sum", "max" or "min".
        on_step: Whether the value of the last step is kept.
        on_epoch: Whether the values of all steps are reduced to one.
        prog_bar: Whether the progress bar shows the value first.
        logger: Whether loggers get the value.
        suffix: Follows the name: the number of the data loader.
    """

    reduce: str = "mean"
    on_step: bool = False
    on_epoch: bool = True
    prog_bar: bool = False
    logger: bool = True
    suffix: str = ""

    @property
    def averaged(self) -> bool:
        """Whether the mean over all steps is all that is wanted."""
        return REDUCTIONS[self.reduce].weighted and not self.on_step

    def values(
        self, key: str, last: tuple[float, float] | None, whole: tuple[float, float] | None
    ) -> Iterator[tuple[str, LoggedValue]]:
        """The values to be kept, by Lightning's names.

        With both ``on_step`` and ``on_epoch``, ``name_step`` and ``name_epoch`` go to loggers and
        the progress bar; callbacks find the latter under the plain name too.

        Args:
            key: The name with its suffix.
            last: The value of the last step and its weight in examples, if there is one.
            whole: The total of all steps and its weight, if there is one.
        """
        name = key.removesuffix(self.suffix) if self.suffix else key
        both = self.on_step and self.on_epoch
        shown = LoggedAs(self.reduce, self.prog_bar, self.logger)
        if self.on_step and last is not None:
            number, weight = last
            total = number * weight if REDUCTIONS[self.reduce].weighted else number
            forked = f"{name}_step{self.suffix}" if both else key
            yield forked, LoggedValue(total, weight, shown)
        if self.on_epoch and whole is not None:
            if both:
                yield key, LoggedValue(*whole, LoggedAs(self.reduce, logger=False))
            usual = shown == LoggedAs()
            forked = f"{name}_epoch{self.suffix}" if both else key
            yield forked, LoggedValue(*whole, None if usual else shown)

    def reduced(
        self, key: str, numbers: Sequence[float], weights: Sequence[float]
    ) -> Iterator[tuple[str, LoggedValue]]:
        """The values to be kept of the numbers that several steps logged.

        Args:
            key: The name with its suffix.
            numbers: The numbers.
            weights: The weight of each, in examples.
        """
        total = float(REDUCTIONS[self.reduce].over_steps(numbers, weights))
        return self.values(key, (numbers[-1], weights[-1]), (total, sum(weights)))


USUAL = Options()
"""The meaning of ``self.log(name, value)``: the mean over examples."""

_FUNCTIONS: dict[Any, str] = {
    getattr(place, name): name
    for name in REDUCTIONS
    for place in (torch, builtins)
    if hasattr(place, name)
}
"""The functions that ``reduce_fx`` may be instead of a name; Python has none for the mean."""


@lru_cache(maxsize=1024)
def options(
    name: str,
    training: bool,
    suffix: str,
    prog_bar: bool,
    logger: bool | None,
    on_step: bool | None,
    on_epoch: bool | None,
    reduce_fx: Any,
    enable_graph: bool,
) -> Options:
    """Check the arguments of ``self.log`` and return their meaning.

    As in Lightning, ``training_step`` logs on the step unless told otherwise, and everything else
    logs on the epoch. One thing differs: with neither argument given, ``training_step`` logs the
    mean over all steps and examples of the local runs, since no step is the last one of a round.

    Raises:
        ValueError: The name is the trainer's, or an argument has no meaning.
    """
    call = f"self.log({name!r}, …"
    if not isinstance(name, str):
        raise TypeError(f"{call}): the name must be a string, got {type(name).__name__}")
    if name.startswith("fed/"):
        raise ValueError(
            f"{call}): names that begin with 'fed/' belong to FedTrainer; choose another name"
        )
    if "/dataloader_idx_" in name and suffix:
        raise ValueError(
            f"{call}): add_dataloader_idx=True adds the number of the data loader; leave it out of "
            "the name, or pass add_dataloader_idx=False"
        )
    # `on_step` first, as the default of `on_epoch` depends on it.
    if on_step is None:
        on_step = training and on_epoch is not None
    if on_epoch is None:
        on_epoch = not (training and on_step)
    if not (on_step or on_epoch):
        raise ValueError(f"{call}, on_step=False, on_epoch=False) logs nothing; set one of them")
    reduce = reduce_fx.lower() if isinstance(reduce_fx, str) else _FUNCTIONS.get(reduce_fx)
    reduce = "mean" if reduce == "avg" else reduce  # as Lightning spells it, too
    if reduce not in REDUCTIONS:
        raise ValueError(
            f"{call}, reduce_fx={reduce_fx!r}): reduce_fx must be 'mean', 'sum', 'max' or 'min', "
            "as in Lightning; for another reduction log a torchmetrics object"
        )
    if enable_graph:
        rank_zero_warn(
            f"fedlight: {call}, enable_graph=True): logged values are kept as numbers, without "
            "their graph; enable_graph has no effect"
        )
    found = Options(reduce, on_step, on_epoch, bool(prog_bar), logger is not False, suffix)
    return USUAL if found == USUAL else found


def same_options(key: str, before: Options, how: Options) -> None:
    """Refuse a name that is logged in two ways.

    Raises:
        ValueError: It is.
    """
    if before != how:
        raise ValueError(
            f"self.log({key!r}, …) is called with {_told(before)} and with {_told(how)}; a name "
            "takes the same arguments each time"
        )


def _told(how: Options) -> str:
    given = {name: value for name, value in how._asdict().items() if name != "suffix"}
    return ", ".join(f"{name}={value!r}" for name, value in given.items())


def not_one_number(name: str, value: Any) -> TypeError:
    """The error for a value that cannot be logged."""
    if isinstance(value, complex | np.complexfloating) or (
        isinstance(value, Tensor) and value.is_complex()
    ):
        return TypeError(
            f"self.log({name!r}, …) takes a real number, got the complex {value!r}; log "
            "value.abs(), or value.real and value.imag under names of their own"
        )
    if isinstance(value, Tensor):
        return TypeError(
            f"self.log({name!r}, …) takes one number, got a tensor of shape {tuple(value.shape)}; "
            "log value.mean(), or each number under a name of its own"
        )
    if isinstance(value, Mapping):
        return TypeError(f"self.log({name!r}, …) takes one number, got a dict; use self.log_dict")
    return TypeError(
        f"self.log({name!r}, …) takes a number, a tensor of one number or a metric, got {value!r}"
    )
