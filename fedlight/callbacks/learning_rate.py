"""The learning rates, round by round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedlight._support.checks import rate_at
from fedlight.callbacks.base import Callback
from fedlight.local_optimizers.module_optimizer import ModuleOptimizer
from fedlight.local_optimizers.rates import ByStep

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.trainer import FedTrainer
    from fedlight.types import ClientUpdate


class LearningRateMonitor(Callback):
    """Logs the clients' and the server's learning rates at each round.

    - ``lr/local``: eta_L of a client that pulls the version just made. Of a rate that depends on
      the steps of each client (`ByStep`, `WarmupCosine`) it is the rate of the last local step of
      the newest update, the one that arrived last; clients that have made other numbers of steps
      have other rates. Of the module's own optimizer it is the rate at the start of a local run
      (``lr/local_1`` … if it has several groups of parameters), which
      ``ModuleOptimizer(schedule="version")`` keeps for all of it.
    - ``lr/server``: eta of the step that made the version; of a `server_optimizer` the rate that
      this has after the step.
    - ``lr/alpha``: alpha of that step, before any factor for staleness, of an aggregator that
      mixes models (`FedAsync`).
    - ``lr/<name>``: any other rate that the aggregator's `rates` names.

    They are also in the record of the round, ``trainer.history[-1].metrics``.

    Example:
        >>> LearningRateMonitor()
        LearningRateMonitor()
    """

    def __init__(self) -> None:
        self._step = 0  # the last one of the newest update, among all steps of its client

    def on_fit_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Ask the module for its rates."""
        self._ask(trainer, module)

    def on_update(self, trainer: FedTrainer, module: LightningModule, update: ClientUpdate) -> None:
        """Note which step of its client was the last one."""
        self._step = update.task.steps_before + max(0, update.num_steps - 1)

    def on_round_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Log the rates."""
        own = trainer.local_optimizer
        if isinstance(own, ModuleOptimizer) and own.schedule == "version":
            self._ask(trainer, module)
        rates = dict(self._own)
        if isinstance(own.lr, ByStep):
            rates["lr/local"] = own.lr.at(self._step)
        elif own.lr is not None:
            rates["lr/local"] = rate_at("lr", own.lr, trainer.version)
        used = trainer.aggregator.rates(trainer.version - 1)
        rates |= {f"lr/{name}": value for name, value in used.items()}
        trainer.log_metrics(rates)

    def state_dict(self) -> dict[str, Any]:
        """The step of the newest update, which the next version may log."""
        return {"step": self._step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""
        self._step = state_dict.get("step", 0)

    def _ask(self, trainer: FedTrainer, module: LightningModule) -> None:
        own = trainer.local_optimizer
        rates = own.rates(module, trainer.version) if isinstance(own, ModuleOptimizer) else []
        names = ["lr/local", *(f"lr/local_{k}" for k in range(1, len(rates)))]
        self._own = dict(zip(names, rates, strict=False))

    def __repr__(self) -> str:
        return "LearningRateMonitor()"
