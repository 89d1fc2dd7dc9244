"""Records the logged values of each client of a stack."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedlight.executors._stack.metric_objects import FedMetrics
from fedlight.executors._stack.step_log import LOSS, StackedLog
from fedlight.types import LoggedValue

if TYPE_CHECKING:
    from lightning import LightningModule
    from numpy.typing import NDArray


class StackedRecorder:
    """Sums what a stack of clients logs, separately for each client.

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
        """Add what the first `active` clients logged in the next step."""
        self._logs.append(log)
        self._active.append(active)

    def collect(self) -> tuple[list[float], list[dict[str, LoggedValue]]]:
        """Each client's losses summed over its steps, and its logged values over its examples."""
        if not self._logs:  # nobody had time for a step
            return [0.0] * len(self._steps), [{} for _ in self._steps]
        names = self._logs[0].values.keys()
        # Nearly always all clients make the same steps and log the same names, as means.
        if self._active[-1] == len(self._steps) and not any(
            log.options or log.weights or log.metrics or log.values.keys() != names
            for log in self._logs
        ):
            return self._usual(list(names))
        sums, series = self._sums()
        losses, _ = sums.pop(LOSS)
        collected: list[dict[str, LoggedValue]] = [{} for _ in self._steps]
        how = {key: value for log in self._logs for key, value in log.options.items()}
        for name, (totals, weights) in sums.items():
            for values, total, weight in zip(collected, totals, weights, strict=True):
                if weight:
                    if name in how:
                        values.update(how[name].values(name, None, (total, weight)))
                    else:
                        values[name] = LoggedValue(total, weight)
        for name, steps in series.items():
            for client, values in enumerate(collected):
                own = [(row[client], size) for row, size in steps if client < len(row)]
                if own:
                    numbers, sizes = zip(*own, strict=True)
                    values.update(how[name].reduced(name, numbers, sizes))
        if any(log.metrics for log in self._logs):
            fed = FedMetrics(self._module, self._logs, self._steps, self._batch_size, how)
            for client, values in enumerate(collected):
                fed.add_to(values, client)
        return losses, collected

    def _usual(self, names: list[str]) -> tuple[list[float], list[dict[str, LoggedValue]]]:
        """What `collect` returns if all steps of all clients log these names, as means."""
        n = len(self._steps)
        rows = [value for log in self._logs for value in log.values.values()]
        if len(rows[0]) != n:  # the stack is padded
            rows = [row[:n] for row in rows]
        flat = torch.cat(rows).cpu().numpy()  # one transfer from the device
        totals = flat.reshape(len(self._logs), len(names), n).sum(axis=0, dtype=np.float64)
        losses: list[float] = totals[names.index(LOSS)].tolist()
        totals *= self._batch_size
        weight = float(len(self._logs) * self._batch_size)
        collected: list[dict[str, LoggedValue]] = [{} for _ in range(n)]
        for name, row in zip(names, totals.tolist(), strict=True):
            if name != LOSS:
                for values, total in zip(collected, row, strict=True):
                    values[name] = LoggedValue(total, weight)
        return losses, collected

    def _sums(
        self,
    ) -> tuple[dict[str, list[list[float]]], dict[str, list[tuple[list[float], float]]]]:
        """The sums of the logged values and of their weights, by name, one for each client.

        In place of a sum, a name with another reduction has its values in each step, with their
        weight.
        """
        steps = list(zip(self._logs, self._active, strict=True))
        rows = [
            value if value.shape[0] == active else value[:active]
            for log, active in steps
            for value in log.values.values()
        ]
        flat = torch.cat(rows).cpu().numpy().astype(np.float64)  # one transfer from the device
        other = {
            name for log in self._logs for name, how in log.options.items() if not how.averaged
        }
        sums: dict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros((2, len(self._steps))))
        series: dict[str, list[tuple[list[float], float]]] = defaultdict(list)
        at = 0
        for log, active in steps:
            for name in log.values:
                size, row = log.weight(name, self._batch_size), flat[at : at + active]
                at += active
                if name in other:
                    series[name].append((row.tolist(), size))
                else:
                    total, weight = sums[name]
                    total[:active] += size * row
                    weight[:active] += size
        return {name: both.tolist() for name, both in sums.items()}, series
