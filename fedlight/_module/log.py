"""Replaces ``self.log`` and ``self.log_dict`` of a module while one of its steps or hooks runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from torchmetrics import Metric, MetricCollection

from fedlight._module.log_arguments import Options, options
from fedlight._module.metric_objects import metrics_of, no_attribute

if TYPE_CHECKING:
    from lightning import LightningModule


class Log(ABC):
    """Replaces ``log`` and ``log_dict`` of a module: checks the arguments and passes values on.

    Attributes:
        training: Whether it is ``training_step`` that logs.
        dataloader_idx: Number of the data loader if there are several, else None.
    """

    training: bool = False
    dataloader_idx: int | None = None

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._known = set(map(id, metrics_of(module).values()))

    @property
    def logger(self) -> Any:
        """The loggers, which a process that only computes local runs does not have.

        Raises:
            RuntimeError: Always; where there are loggers, the module asks Fabric for them.
        """
        raise RuntimeError(
            f"a step of {type(self._module).__name__} uses self.logger, which only the main "
            "process has: use self.log, or executor='sequential'"
        )

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
        given = (prog_bar, logger, on_step, on_epoch, reduce_fx, enable_graph)
        how = options(name, self.training, suffix, *given)
        if isinstance(value, Metric):
            self._check_known(name, value)
            self._take_metric(name + suffix, value, how)
        elif isinstance(value, MetricCollection):
            self.log_dict(value, *given, add_dataloader_idx=add_dataloader_idx)
        else:
            if isinstance(batch_size, str):
                raise TypeError(
                    f"self.log({name!r}, …, batch_size={batch_size!r}): the number of examples "
                    "must be a number"
                )
            self._take(name + suffix, value, how, batch_size)

    def log_dict(
        self, dictionary: Mapping[str, Any] | MetricCollection, *args: Any, **kwargs: Any
    ) -> None:
        """Replacement for ``LightningModule.log_dict``."""
        if isinstance(dictionary, MetricCollection):
            dictionary = dict(dictionary.items(keep_base=False, copy_state=False))
        for name, value in dictionary.items():
            self.log(name, value, *args, **kwargs)

    def recording(self) -> AbstractContextManager[None]:
        """Replace the module's ``log`` and ``log_dict`` within the context."""
        return replaced_log(self._module, self.log, self.log_dict)

    def _check_known(self, name: str, metric: Metric) -> None:
        """Refuse a metric that is no part of the module: it would not be reset between clients."""
        if id(metric) not in self._known:
            self._known = set(map(id, metrics_of(self._module).values()))
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
