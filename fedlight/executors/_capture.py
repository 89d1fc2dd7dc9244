"""Records what a module logs while one of its steps runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Number
from operator import mul
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from fedlight.types import LoggedValue

if TYPE_CHECKING:
    from lightning import LightningModule


class LogRecorder:
    """Replaces ``self.log`` of a module and sums the logged values.

    Numbers are averaged over examples. A torchmetrics object is kept; `collect` computes its value
    and resets it.

    Args:
        module: The module whose ``log`` and ``log_dict`` are replaced within `recording`.

    Attributes:
        batch_size: The weight of the next logged values, in examples.
        suffix: Added to the next names, unless ``add_dataloader_idx=False`` is passed.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._metric_objects = [m for m in module.modules() if isinstance(m, Metric)]
        self.batch_size = 1
        self.suffix = ""
        self.clear()

    def clear(self) -> None:
        """Discard the logged values, and reset the metric objects."""
        for metric in self._metric_objects:
            if metric.update_called:
                metric.reset()
        self._values: dict[str, list[Tensor]] = {}
        self._weights: dict[str, list[float]] = {}
        self._metrics: dict[str, Metric | MetricCollection] = {}

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Replacement for ``LightningModule.log``.

        Raises:
            TypeError: The value is not a number, a tensor of one number or a metric.
        """
        if self.suffix and kwargs.get("add_dataloader_idx", True):
            name += self.suffix
        if isinstance(value, Metric | MetricCollection):
            self._metrics[name] = value
            return
        if isinstance(value, Number):
            value = torch.tensor(float(value), device=self._module.device)  # type: ignore[arg-type]  # complex fails here
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise TypeError(
                f"self.log({name!r}, …) takes a number, a tensor of one number or a metric, "
                f"got {value!r}"
            )
        self._values.setdefault(name, []).append(value.detach().clone())
        self._weights.setdefault(name, []).append(kwargs.get("batch_size") or self.batch_size)

    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """Replacement for ``LightningModule.log_dict``."""
        if isinstance(dictionary, MetricCollection):
            dictionary = dict(dictionary.items(keep_base=False, copy_state=False))
        for name, value in dictionary.items():
            self.log(name, value, **kwargs)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Replace the module's ``log`` and ``log_dict`` within the context."""
        with replaced_log(self._module, self.log, self.log_dict):
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing within, and leave metric objects as they were before."""
        logged = self._values, self._weights, self._metrics
        self._values, self._weights, self._metrics = {}, {}, {}
        kept = [(each, dict(vars(each))) for each in self._metric_objects]
        for metric in self._metric_objects:
            # An update may change a state in place, so it gets a copy to change.
            for name, state in metric.metric_state.items():
                own = list(state) if isinstance(state, list) else state.clone()
                setattr(metric, name, own)
        try:
            yield
        finally:
            self._values, self._weights, self._metrics = logged
            for each, attributes in kept:
                vars(each).clear()
                vars(each).update(attributes)

    def collect(self, examples: float, reset: bool = True) -> dict[str, LoggedValue]:
        """Return what was logged since the last call, and reset the module's metric objects.

        Args:
            examples: The weight of the values of metric objects, in examples.
            reset: Whether metric objects are reset.
        """
        values = {}
        for name, logged in self._values.items():
            numbers = torch.stack([value.reshape(()) for value in logged]).tolist()
            weights = self._weights[name]
            values[name] = LoggedValue(float(sum(map(mul, numbers, weights))), sum(weights))
        for name, metric in self._metrics.items():
            computed = metric.compute()
            named = computed if isinstance(computed, dict) else {name: computed}
            for key, value in named.items():
                values[key] = LoggedValue(float(value) * examples, examples)
        if reset:
            self.clear()
        else:
            self._values, self._weights, self._metrics = {}, {}, {}
        return values


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
