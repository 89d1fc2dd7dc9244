"""Records what a module logs while one of its steps or hooks runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from numbers import Number
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torchmetrics import Metric, MetricCollection

from fedlight._support.memory import sent
from fedlight.types import LoggedAs, LoggedValue, Metrics

if TYPE_CHECKING:
    from lightning import LightningModule


class Options(NamedTuple):
    """The arguments of ``self.log`` that say what becomes of the values of a name.

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
        return self.reduce == "mean" and not self.on_step

    def key(self, name: str) -> str:
        """The name with its suffix."""
        return name + self.suffix

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
            total = number * weight if self.reduce == "mean" else number
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
        total = float(REDUCE[self.reduce](numbers, weights))
        return self.values(key, (numbers[-1], weights[-1]), (total, sum(weights)))


USUAL = Options()
"""What ``self.log(name, value)`` means: the mean over examples."""

REDUCE: dict[str, Callable[[Sequence[float], Sequence[float]], Any]] = {
    "mean": lambda numbers, weights: sum(map(mul, numbers, weights)),
    "sum": lambda numbers, weights: sum(numbers),
    "max": lambda numbers, weights: np.max(numbers),  # unlike `max`, it passes on a nan
    "min": lambda numbers, weights: np.min(numbers),
}

_FUNCTIONS = {torch.mean: "mean", torch.sum: "sum", torch.max: "max", torch.min: "min"}
_BUILTINS = {sum: "sum", max: "max", min: "min"}


@lru_cache(maxsize=1024)
def options(
    name: str,
    training: bool,
    prog_bar: bool,
    logger: bool | None,
    on_step: bool | None,
    on_epoch: bool | None,
    reduce_fx: Any,
    enable_graph: bool,
    suffix: str,
) -> Options:
    """Check the arguments of ``self.log`` and return what they mean.

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
    if on_step is None and on_epoch is None:
        on_step, on_epoch = False, True
    elif training:
        on_step = bool(on_epoch is not None) if on_step is None else on_step
        on_epoch = not on_step if on_epoch is None else on_epoch
    else:
        on_step = bool(on_step)
        on_epoch = True if on_epoch is None else on_epoch
    if not (on_step or on_epoch):
        raise ValueError(f"{call}, on_step=False, on_epoch=False) logs nothing; set one of them")
    reduce = _FUNCTIONS.get(reduce_fx) or _BUILTINS.get(reduce_fx)
    if isinstance(reduce_fx, str):
        reduce = "mean" if reduce_fx.lower() == "avg" else reduce_fx.lower()
    if reduce not in REDUCE:
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


class Log(ABC):
    """Stands in for ``log`` and ``log_dict`` of a module: checks the arguments, passes values on.

    Attributes:
        training: Whether it is ``training_step`` that logs.
        dataloader_idx: Number of the data loader if there are several, else None.
    """

    training: bool = False
    dataloader_idx: int | None = None

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._known = {id(metric) for metric in metrics_of(module)}

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Replacement for ``LightningModule.log``, with its arguments.

        One process has nothing to synchronize, so ``sync_dist``, ``sync_dist_group`` and
        ``rank_zero_only`` do what they do in Lightning on one device: nothing. Metric objects are
        found by themselves, so ``metric_attribute`` is not needed.

        Raises:
            TypeError: The value is not a number, a tensor of one number or a metric of the module.
            ValueError: The name is the trainer's, or an argument has no meaning.
        """
        suffix = ""
        if self.dataloader_idx is not None and add_dataloader_idx:
            suffix = f"/dataloader_idx_{self.dataloader_idx}"
        how = options(
            name,
            self.training,
            prog_bar,
            logger,
            on_step,
            on_epoch,
            reduce_fx,
            enable_graph,
            suffix,
        )
        if isinstance(value, Metric):
            self._check_known(name, value)
            self._take_metric(how.key(name), value, how)
        elif isinstance(value, MetricCollection):
            given = (prog_bar, logger, on_step, on_epoch, reduce_fx, enable_graph)
            self.log_dict(value, *given, add_dataloader_idx=add_dataloader_idx)
        else:
            if isinstance(batch_size, str):
                raise TypeError(
                    f"self.log({name!r}, …, batch_size={batch_size!r}): the number of examples "
                    "must be a number"
                )
            self._take(how.key(name), value, how, batch_size)

    def log_dict(
        self, dictionary: Mapping[str, Any] | MetricCollection, *args: Any, **kwargs: Any
    ) -> None:
        """Replacement for ``LightningModule.log_dict``."""
        if isinstance(dictionary, MetricCollection):
            dictionary = dict(dictionary.items(keep_base=False, copy_state=False))
        for name, value in dictionary.items():
            self.log(name, value, *args, **kwargs)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Replace the module's ``log`` and ``log_dict`` within the context."""
        with replaced_log(self._module, self.log, self.log_dict):
            yield

    def _check_known(self, name: str, metric: Metric) -> None:
        """Refuse a metric that is no part of the module: it would not be reset between clients."""
        if id(metric) not in self._known:
            self._known = {id(each) for each in metrics_of(self._module)}
        if id(metric) not in self._known:
            raise TypeError(f"self.log({name!r}, …) got {no_attribute(metric, self._module)}")

    @abstractmethod
    def _take(self, key: str, value: Any, how: Options, batch_size: int | None) -> None:
        """Take a value that is no metric object."""

    @abstractmethod
    def _take_metric(self, key: str, metric: Metric, how: Options) -> None:
        """Take a metric object of the module."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Log:
        return self  # a copy of the module, made in one of its hooks, logs to the same place


class LogRecorder(Log):
    """Keeps what a module logs, and reduces it.

    Numbers are averaged over examples unless ``reduce_fx`` says otherwise. A torchmetrics object is
    kept; `collect` computes its value and resets it.

    Args:
        module: The module whose ``log`` and ``log_dict`` are replaced within `recording`.
        training: Whether ``training_step`` is recorded, which has other defaults.
    """

    def __init__(self, module: LightningModule, training: bool = False) -> None:
        super().__init__(module)
        self.training = training
        self._metric_objects = metrics_of(module)
        self.batch_size = 1
        self.clear()

    def clear(self) -> None:
        """Discard the logged values, and reset the metric objects."""
        for metric in self._metric_objects:
            if metric.update_called:
                metric.reset()
        self._start()

    def _start(self) -> None:
        self._values: dict[str, list[Tensor]] = {}
        self._weights: dict[str, list[float]] = {}
        self._metrics: dict[str, Metric] = {}
        self._options: dict[str, Options] = {}
        self._earlier: set[str] = set()

    def next_hook(self) -> None:
        """Say that another hook logs from now on.

        As in Lightning, its value of a name replaces the one that an earlier hook has logged.
        """
        self._earlier = {*self._values, *self._metrics}

    def _take(self, key: str, value: Any, how: Options, batch_size: int | None) -> None:
        if isinstance(value, Number):
            value = sent(float(value), self._module.device)  # type: ignore[arg-type]  # complex fails here
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise not_one_number(key, value)
        value = value.detach().clone()
        if value.device != self._module.device:  # all are read at once later
            # Only on the way to a device: the host must not read what has not arrived.
            to_device = value.device.type == "cpu"
            value = value.to(self._module.device, non_blocking=to_device)
        self._keep(key, how)
        self._values.setdefault(key, []).append(value)
        self._weights.setdefault(key, []).append(batch_size or self.batch_size)

    def _take_metric(self, key: str, metric: Metric, how: Options) -> None:
        self._keep(key, how)
        self._metrics[key] = metric
        if how.on_step and metric._forward_cache is not None:
            self._values[key] = [_one_number(key, metric._forward_cache)]
            self._weights[key] = [self.batch_size]

    def _keep(self, key: str, how: Options) -> None:
        if key in self._earlier:
            self._earlier.discard(key)
            for kept in (self._values, self._weights, self._metrics, self._options):
                kept.pop(key, None)
        if how is USUAL and key not in self._options:
            return
        known = key in self._values or key in self._metrics
        same_options(key, self._options.get(key, USUAL if known else how), how)
        self._options[key] = how

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing within, and leave metric objects as they were before."""
        logged = self._values, self._weights, self._metrics, self._options
        self._values, self._weights, self._metrics, self._options = {}, {}, {}, {}
        kept = [(each, dict(vars(each))) for each in self._metric_objects]
        for metric in self._metric_objects:
            # An update may change a state in place, so it gets a copy to change.
            for name, state in metric.metric_state.items():
                own = list(state) if isinstance(state, list) else state.clone()
                setattr(metric, name, own)
        try:
            yield
        finally:
            self._values, self._weights, self._metrics, self._options = logged
            for each, attributes in kept:
                vars(each).clear()
                vars(each).update(attributes)

    def collect(self, examples: float, reset: bool = True) -> dict[str, LoggedValue]:
        """Return what was logged since the last call, and reset the module's metric objects.

        Args:
            examples: The weight of the values of metric objects, in examples.
            reset: Whether metric objects are reset.
        """
        values: dict[str, LoggedValue] = {}
        every: list[Any] = [value for logged in self._values.values() for value in logged]
        if self._metrics:
            given = {key: each.compute() for key, each in self._metrics.items()}
            leaves, form = tree_flatten(given)
            read = iter(read_together([*every, *map(as_float, leaves)]))
        else:  # the usual case, without a look at each
            every = [value.reshape(()) for value in every]
            read = iter(torch.stack(every).tolist() if every else ())
        for name, logged in self._values.items():
            numbers = list(islice(read, len(logged)))
            weights = self._weights[name]
            how = self._options.get(name, USUAL)
            if name in self._metrics:
                values.update(how.values(name, (numbers[0], weights[0]), None))
            elif how is USUAL:
                values[name] = LoggedValue(float(sum(map(mul, numbers, weights))), sum(weights))
            else:
                values.update(how.reduced(name, numbers, weights))
        for name, computed in tree_unflatten(list(read), form).items() if self._metrics else ():
            how = self._options.get(name, USUAL)._replace(reduce="mean")
            for key, value in named_numbers(name, computed, how.suffix).items():
                values.update(how.values(key, None, (value * examples, examples)))
        if reset:
            self.clear()
        else:
            self._start()
        return values

    @property
    def names(self) -> list[str]:
        """The names of what was logged since the last call of `collect`."""
        return [*self._values, *self._metrics]

    def metrics(self) -> Metrics:
        """What was logged since the last call, by name; nothing in the usual case."""
        if not (self._values or self._metrics):
            return Metrics()
        return metrics_from(self.collect(1))


def metrics_from(logged: Mapping[str, LoggedValue]) -> Metrics:
    """The numbers by themselves."""
    metrics = Metrics()
    for name, value in logged.items():
        if value.weight:
            metrics.put(name, value.value, value.how)
    return metrics


def metrics_of(module: LightningModule) -> list[Metric]:
    """The metric objects that are part of a module."""
    return [child for child in module.modules() if isinstance(child, Metric)]


def no_attribute(metric: Metric, module: LightningModule) -> str:
    """What to do with a metric object that is kept outside of the module."""
    return (
        f"{type(metric).__name__}(), which is no attribute of {type(module).__name__}: assign it "
        "to self in __init__, and several in an nn.ModuleList or nn.ModuleDict, so that it moves "
        "with the module and starts anew for each client"
    )


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


def _one_number(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise not_one_number(name, value)
    return value.detach().clone()


def read_together(values: Sequence[Any]) -> list[Any]:
    """The values, with numbers in the place of tensors of one number.

    All are read at once, because each time the host waits for the device.
    """
    found = list(values)
    where = [i for i, one in enumerate(found) if isinstance(one, Tensor) and one.numel() == 1]
    places = {found[i].device for i in where}
    for place in places:
        own = [i for i in where if found[i].device == place] if len(places) > 1 else where
        read = torch.stack([found[i].reshape(()) for i in own]).tolist()
        for i, number in zip(own, read, strict=True):
            found[i] = number
    return found


def as_float(value: Any) -> Any:
    """A value of a metric object; a whole number as a float with all its digits."""
    if not isinstance(value, Tensor) or value.is_floating_point():
        return value
    return value.float() if value.device.type == "mps" else value.double()


def number_of(name: str, value: Any) -> float:
    """The number that a metric object gives.

    Raises:
        TypeError: It gives something else.
    """
    if isinstance(value, Tensor) and value.numel() != 1:
        raise not_one_number(name, value)
    if isinstance(value, Mapping):
        raise not_one_number(name, value)
    return float(value)


def named_numbers(name: str, computed: Any, suffix: str = "") -> dict[str, float]:
    """The numbers that a metric object gives, by name: its own names for a dictionary."""
    if isinstance(computed, dict):
        return {key + suffix: number_of(key, value) for key, value in computed.items()}
    return {name: number_of(name, computed)}


@contextmanager
def replaced_log(
    module: LightningModule, log: Callable[..., None], log_dict: Callable[..., None]
) -> Iterator[None]:
    """Replace a module's ``log`` and ``log_dict`` by functions within the context."""
    # Instance attributes shadow the methods; deleting them brings the methods back.
    attributes = vars(module)
    before: dict[str, Any] = {
        name: attributes[name] for name in ("log", "log_dict") if name in attributes
    }
    attributes.update(log=log, log_dict=log_dict)
    try:
        yield
    finally:
        del attributes["log"], attributes["log_dict"]
        attributes.update(before)


def step_function(module: LightningModule, name: str) -> Callable[[Any, int], Any]:
    """Return ``module.<name>`` as a function of (batch, batch_idx).

    As in Lightning, the step itself may leave out ``batch_idx``.
    """
    step = getattr(module, name)
    if is_param_in_hook_signature(step, "batch_idx", min_args=2):
        return step  # type: ignore[no-any-return]  # an attribute by name
    return lambda batch, batch_idx: step(batch)
