"""Records the logged values of each client of a stack."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from fedlight._module.log_arguments import USUAL
from fedlight._module.metric_objects import metric_values, number_of
from fedlight.executors._stack.metric_objects import MetricValues, values_of_metrics
from fedlight.executors._stack.step_log import LOSS, StackedLog
from fedlight.types import LoggedValue

if TYPE_CHECKING:
    from lightning import LightningModule
    from numpy.typing import NDArray

Series: TypeAlias = dict[str, dict[int, list[tuple[float, float]]]]
"""The values in each step and their weights, by name and client."""


class StackedRecorder:
    """Sums the logged values of a stack, separately for each client.

    Args:
        module: The module, for its metric objects.
        steps: Number of local steps of each client, the largest first.
        batch_size: Examples per client and step.
    """

    def __init__(self, module: LightningModule, steps: Sequence[int], batch_size: int) -> None:
        self._module = module
        self._batch_size = batch_size
        self._steps = steps
        self._logs: list[StackedLog] = []
        self._active: list[int] = []

    def add(self, log: StackedLog, active: int) -> None:
        """Add the values that the first `active` clients logged in the next step."""
        self._logs.append(log)
        self._active.append(active)

    def collect(self) -> tuple[list[float], list[dict[str, LoggedValue]]]:
        """Each client's losses summed over its steps, and its logged values over its examples."""
        if not self._logs:  # no client has made a step
            return [0.0] * len(self._steps), [{} for _ in self._steps]
        names = self._logs[0].values.keys()
        # Nearly always all clients make the same steps and log the same names, as means.
        if self._active[-1] == len(self._steps) and not any(
            log.options or log.weights or log.metrics or log.values.keys() != names
            for log in self._logs
        ):
            return self._usual(list(names))
        found: list[MetricValues] = []
        if any(log.metrics for log in self._logs):
            found = values_of_metrics(self._module, self._logs, self._steps)
        sums, series = self._sums(found)
        losses, _ = sums.pop(LOSS)
        collected: list[dict[str, LoggedValue]] = [{} for _ in self._steps]
        how = {key: value for log in self._logs for key, value in log.options.items()}
        for name, (totals, weights) in sums.items():
            for values, total, weight in zip(collected, totals, weights, strict=True):
                if weight:
                    values.update(how.get(name, USUAL).values(name, None, (total, weight)))
        for name, of_clients in series.items():
            for client, own in of_clients.items():
                numbers, sizes = zip(*own, strict=True)
                collected[client].update(how.get(name, USUAL).reduced(name, numbers, sizes))
        for values, one, steps in zip(collected, found, self._steps, strict=False):
            for name, value in one.computed.items():
                options = how.get(name, USUAL)
                if name in one.newest:
                    number, step = one.newest[name]
                    last = number_of(name, number), self._logs[step].weight(name, self._batch_size)
                    values.update(options._replace(reduce="mean").values(name, last, None))
                values.update(metric_values(name, value, options, steps * self._batch_size))
        return losses, collected

    def _usual(self, names: list[str]) -> tuple[list[float], list[dict[str, LoggedValue]]]:
        """Return what `collect` does if all steps of all clients log these names, as means."""
        n = len(self._steps)
        rows = [value for log in self._logs for value in log.values.values()]
        if len(rows[0]) != n:  # the stack is padded
            rows = [row[:n] for row in rows]
        flat = torch.cat(rows).cpu().numpy()  # one transfer from the device
        numbers = flat.reshape(len(self._logs), len(names), n).astype(np.float64)
        numbers[:, [name != LOSS for name in names]] *= self._batch_size
        # Products are added step by step, as in `_sums`: which of the two methods is called depends
        # on the others in the stack, which must not show in the last bits. `sum` may add in pairs.
        totals = np.add.accumulate(numbers, axis=0)[-1]
        losses: list[float] = totals[names.index(LOSS)].tolist()
        weight = float(len(self._logs) * self._batch_size)
        collected: list[dict[str, LoggedValue]] = [{} for _ in range(n)]
        for name, row in zip(names, totals.tolist(), strict=True):
            if name != LOSS:
                for values, total in zip(collected, row, strict=True):
                    values[name] = LoggedValue(total, weight)
        return losses, collected

    def _sums(self, found: Sequence[MetricValues]) -> tuple[dict[str, list[list[float]]], Series]:
        """The sums of the logged values and of their weights, by name, one for each client.

        A name has its values in each step, and no sum, if it has another reduction or if metric
        objects gave its values.

        Args:
            found: The values of metric objects for each client.
        """
        steps = list(zip(self._logs, self._active, strict=True))
        rows = [
            value if value.shape[0] == active else value[:active]
            for log, active in steps
            for value in log.values.values()
        ]
        flat = torch.cat(rows).cpu().numpy().astype(np.float64)  # one transfer from the device
        single = {
            name for log in self._logs for name, how in log.options.items() if not how.averaged
        }
        single.update(name for one in found for logged in one.logged for name in logged)
        sums: dict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros((2, len(self._steps))))
        series: Series = defaultdict(lambda: defaultdict(list))
        at = 0
        for k, (log, active) in enumerate(steps):
            for name in log.values:
                size, row = log.weight(name, self._batch_size), flat[at : at + active]
                at += active
                if name in single:
                    for client, number in enumerate(row.tolist()):
                        series[name][client].append((number, size))
                else:
                    total, weight = sums[name]
                    total[:active] += size * row
                    weight[:active] += size
            for client, one in enumerate(found[:active]):
                for name, number in one.logged[k].items():
                    size = log.weight(name, self._batch_size)
                    series[name][client].append((number_of(name, number), size))
        return {name: both.tolist() for name, both in sums.items()}, series
