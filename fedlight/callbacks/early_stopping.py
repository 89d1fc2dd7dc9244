"""Stop a run when a metric no longer improves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_info

from fedlight._support.checks import (
    flag,
    number,
    one_of,
    optional,
    positive_int,
    word,
)
from fedlight._support.messages import Note, voice
from fedlight.callbacks._monitoring import check_logged, no_validation
from fedlight.callbacks.base import Callback

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.trainer import FedTrainer

_KEPT = ("best_score", "wait_count", "stopped_round", "reason")  # in checkpoints


class EarlyStopping(Callback):
    """Stops the run when a metric has not improved for `patience` checks.

    The metric is checked in each round that has it: after a validation, or in every round for a
    training metric. A value is an improvement if ``value < best - min_delta``, or with mode "max"
    if ``value > best + min_delta``.

    Args:
        monitor: Name of the metric.
        min_delta: Smallest change that counts as an improvement; below 0, the largest change for
            the worse that still does, as in Lightning.
        patience: Number of checks in a row without improvement after which the run stops.
        verbose: Print a line for each improvement.
        mode: "min" if smaller values are better, "max" if larger ones are.
        strict: Raise an error if the metric is missing after the first validation, or after the
            first round of a run without validation.
        check_finite: Stop when the metric is nan or infinite.
        stopping_threshold: Stop as soon as the metric is better than this.
        divergence_threshold: Stop as soon as the metric is worse than this.

    Attributes:
        best_score: The best value so far.
        wait_count: Number of checks since then.
        stopped_round: The round after which the run was stopped; 0 if it was not.
        reason: Why the run was stopped.

    Raises:
        ValueError: An argument is outside its range; (during the run) the metric is missing.

    Example:
        >>> stopping = EarlyStopping("val_acc", patience=5, mode="max")
        >>> stopping.best_score
        -inf
    """

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool = False,
        mode: str = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
    ) -> None:
        self.monitor = word("monitor", monitor)
        self.min_delta = number("min_delta", min_delta)
        self.patience = positive_int("patience", patience)
        self.verbose = flag("verbose", verbose)
        self.mode = one_of("mode", mode, ("min", "max"))
        self.strict = flag("strict", strict)
        self.check_finite = flag("check_finite", check_finite)
        self.stopping_threshold = optional(number, "stopping_threshold", stopping_threshold)
        self.divergence_threshold = optional(number, "divergence_threshold", divergence_threshold)
        self._forget()

    @property
    def stopped_epoch(self) -> int:
        """`stopped_round`, counted from 0 as Lightning's epochs are; 0 if it was not stopped."""
        return max(self.stopped_round - 1, 0)

    def on_fit_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Reset the state, unless the run was resumed from a checkpoint."""
        self._seen = self._first = len(trainer.history)
        if not trainer.history:
            self._forget()
        elif self.stopped_round == trainer.version:
            # The checkpoint is that of a run that was stopped here. The run continues only if the
            # present thresholds and patience would not have stopped it.
            value = trainer.history[-1].metrics.get(self.monitor)
            spent = self.wait_count >= self.patience
            if spent or (value is not None and self._limit_passed(value)):
                trainer.should_stop = True

    def on_validation_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Note that a validation has taken place."""
        self._validated = True

    def on_event_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Check the metric of a new round, after other callbacks have added theirs."""
        if len(trainer.history) == self._seen:
            return
        self._seen = len(trainer.history)
        record = trainer.history[-1]
        if self.monitor in record.metrics:
            self._look(trainer, record.metrics[self.monitor])
        elif self.strict:
            check_logged("EarlyStopping", self.monitor, trainer, self._validated)

    def on_fit_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Warn if no round had the metric."""
        rounds = trainer.history
        if self.strict and rounds and not any(self.monitor in each.metrics for each in rounds):
            words = f"EarlyStopping monitors {self.monitor!r}, which no round had: "
            if self._validated:
                words += f"it stopped nothing. There are {sorted(trainer.callback_metrics)}"
            else:
                words += no_validation(trainer, self._first)
            voice().note(trainer.run, Note("nothing monitored", words, warns=True))

    def _look(self, trainer: FedTrainer, value: float) -> None:
        sign = self._sign
        if reason := self._limit_passed(value):
            if "stopping_threshold" in reason:
                self.best_score, self.wait_count = value, 0
            self._stop(trainer, reason)
        elif sign * value < sign * self.best_score - self.min_delta:
            if self.verbose:
                rank_zero_info(
                    f"fedlight: {self.monitor} = {value:.6g} after round {trainer.version} is "
                    f"better than {self.best_score:.6g}"
                )
            self.best_score, self.wait_count = value, 0
        else:
            self.wait_count += 1
            if self.wait_count >= self.patience:
                # Says the direction, which is the wrong one if mode= was forgotten.
                than = "smaller" if self.mode == "min" else "larger"
                by = f" by min_delta={self.min_delta:g}" if self.min_delta else ""
                self._stop(
                    trainer,
                    f"{self.monitor} was not {than} than {self.best_score:.6g}{by} "
                    f"{self.patience} times in a row (mode={self.mode!r})",
                )

    @property
    def _sign(self) -> float:
        return 1.0 if self.mode == "min" else -1.0

    def _limit_passed(self, value: float) -> str:
        """Why a value stops the run whatever came before it; an empty string if it does not."""
        if self.check_finite and not math.isfinite(value):
            return f"{self.monitor} is {value}"
        for name, limit, sign in (
            ("better than stopping_threshold", self.stopping_threshold, self._sign),
            ("worse than divergence_threshold", self.divergence_threshold, -self._sign),
        ):
            if limit is not None and sign * value < sign * limit:
                return f"{self.monitor} = {value:.6g} is {name}"
        return ""

    def _stop(self, trainer: FedTrainer, reason: str) -> None:
        trainer.should_stop = True
        self.stopped_round, self.reason = trainer.version, reason
        words = f"fedlight: stopped early after round {trainer.version}: {reason}"
        voice().note(trainer.run, Note("stopped early", words))

    def _forget(self) -> None:
        self.best_score = math.inf if self.mode == "min" else -math.inf
        self.wait_count = 0
        self.stopped_round = 0
        self.reason = ""
        self._seen = self._first = 0
        self._validated = False

    def state_dict(self) -> dict[str, Any]:
        """The best value, the number of checks since then, and whether the run was stopped."""
        return {name: vars(self)[name] for name in _KEPT}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in _KEPT:
            setattr(self, name, state[name])
