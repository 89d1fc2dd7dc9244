"""Messages about the beginning and the end of a run."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from fedlight._interrupts import ends_many
from fedlight.callbacks.checkpoint import keeper_of
from fedlight.executors._auto import describe_device
from fedlight.participation import warn_if_unfair

if TYPE_CHECKING:
    from fedlight.executors._capture import LogRecorder
    from fedlight.run import Run


def say_what_computes(run: Run) -> None:
    """Say, once a process, which executor computes the local runs, and why that one."""
    device = describe_device(run.module_state.device)
    say_once(f"fedlight: {run.executor!r} on {device}: {run.executor_reason}")


_said: set[str] = set()
_kept: list[str] | None = None  # what is left to the process that has started this one


def say_once(message: str) -> None:
    """Say something that is not said again by this process."""
    if message in _said:
        return
    _said.add(message)
    if _kept is None:
        rank_zero_info(message)
    else:
        _kept.append(message)


def keep_what_is_said_once() -> list[str]:
    """Collect what `say_once` is given, so that of several processes one can say it."""
    global _kept
    _kept = []
    return _kept


def say_if_over(run: Run) -> None:
    """Print that a resumed run is at its limit already."""
    if run.over:
        rank_zero_info(
            f"fedlight: the checkpoint is at its limit already ({run.server.version} rounds, "
            f"{run.server.num_updates} updates); to continue, raise max_rounds or max_updates"
        )


def say_if_lost(logs: LogRecorder) -> None:
    """Warn of values that the module has logged after the last round."""
    if logs.names:
        rank_zero_warn(
            f"fedlight: self.log of {', '.join(logs.names)} comes after the last round, so no "
            "logger gets it; log in a step, in on_train_epoch_end or in on_validation_epoch_end"
        )


def say_how_it_ended(run: Run, stopped: bool, stopped_by: signal.Signals | None) -> None:
    """Print why a run ended before its limit, and which updates were left unused.

    Args:
        run: The run.
        stopped: Whether a callback or a signal asked for the end.
        stopped_by: The signal that ended it, or None.
    """
    server = run.server
    where = f"round {server.version} at virtual time {run.schedule.now:g}"
    if stopped_by is not None and not ends_many():
        resumable = keeper_of(run.callbacks) is not None
        path = '"last"' if resumable else "…, with a FedCheckpoint among the callbacks"
        rank_zero_info(
            f"fedlight: stopped by {stopped_by.name} after {where}; to continue, fit again with "
            f"ckpt_path={path}"
        )
    held = len(run.server.held)
    if server.over:
        rank_zero_warn(
            f"fedlight: the last {server.failed_in_a_row} local runs have all failed; the run ends "
            f"after {where}"
        )
    elif run.schedule.exhausted and not (run.arrivals.finite or run.over or stopped):
        waits = (
            f"; {held} updates wait in a buffer that never fills: make it smaller, or let "
            'clients continue at once (resume="on_arrival")'
        )
        rank_zero_warn(
            f"fedlight: no client can arrive any more: the run ends after {where}, before its "
            f"limit{waits if held else ''}"
        )
    if held and stopped_by is None:
        rank_zero_info(
            f"fedlight: {held} updates were left in the aggregator's buffer at the end "
            "and were not used"
        )
    if not run.history:
        rank_zero_warn("fedlight: the run ended before the server made its first update")
    warn_if_unfair(run)
