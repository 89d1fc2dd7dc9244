"""Messages about the beginning and the end of a run."""

from __future__ import annotations

import signal

from lightning.pytorch.utilities import rank_zero_info

from fedlight._module.log_recorder import LogRecorder
from fedlight._support.messages import Note, voice
from fedlight.callbacks.checkpoint import keeper_of
from fedlight.executors._choice.choose_executor import describe_device
from fedlight.participation import warn_if_unfair
from fedlight.run import Run


def say_what_computes(run: Run) -> None:
    """Say, once in a process, which executor computes the local runs, and why it was chosen."""
    voice().executor(run.executor, describe_device(run.module_state.device), run.executor_reason)


def say_if_over(run: Run) -> None:
    """Print that a resumed run is at its limit already; in a study such a run is a finished one."""
    if run.over and not voice().of_many:
        rank_zero_info(
            f"fedlight: the checkpoint is at its limit already ({run.counts.version} rounds, "
            f"{run.counts.num_updates} updates); to continue, raise max_rounds or max_updates"
        )


def say_if_lost(run: Run, logs: LogRecorder) -> None:
    """Warn of values that the module has logged after the last round."""
    if logs.names:
        words = (
            f"fedlight: self.log of {', '.join(logs.names)} comes after the last round, so no "
            "logger gets it; log in a step, in on_train_epoch_end or in on_validation_epoch_end"
        )
        voice().note(run, Note("logged too late", words, warns=True))


def say_how_it_ended(run: Run, stopped: bool, stopped_by: signal.Signals | None) -> None:
    """Say why a run ended before its limit, and which updates were left unused.

    Args:
        run: The run.
        stopped: Whether a callback or a signal asked for the end.
        stopped_by: The signal that ended it, or None.
    """
    counts, arrivals = run.counts, run.setting.arrivals
    where = f"round {counts.version} at virtual time {run.schedule.now:g}"

    def tell(kind: str, words: str, warns: bool = True) -> None:
        voice().note(run, Note(kind, f"fedlight: {words}", warns))

    if stopped_by is not None and not voice().of_many:
        resumable = keeper_of(run.callbacks) is not None
        path = '"last"' if resumable else "…, with a FedCheckpoint among the callbacks"
        rank_zero_info(
            f"fedlight: stopped by {stopped_by.name} after {where}; to continue, fit again with "
            f"ckpt_path={path}"
        )
    held = len(run.server.held)
    if counts.over:
        tell(
            "all failed",
            f"the last {counts.failed_in_a_row} local runs have all failed; the run ends "
            f"after {where}",
        )
    elif run.schedule.exhausted and not (arrivals.finite or run.over or stopped):
        waits = ""
        if held and not run.schedule.given_up:
            waits = (
                f"; {held} update{'s wait' if held > 1 else ' waits'} in a buffer that never "
                'fills: make it smaller, or let clients continue at once (resume="on_arrival")'
            )
        tell(
            "no arrivals",
            f"{run.schedule.why_over}: the run ends after {where}, before its limit{waits}",
        )
    if held and stopped_by is None:
        tell(
            "unused updates",
            f"{held} update{'s were' if held > 1 else ' was'} left in the aggregator's buffer "
            "at the end and not used",
            warns=False,
        )
    if not run.history:
        tell("no round", "the run ended before the server made its first update")
    elif not any(record.updates for record in run.history):
        tell(
            "empty rounds",
            f"none of the {counts.version} rounds has used an update, so the model is that of the "
            "start; trainer.history has what was dropped or failed; give clients more time "
            "(timeout, durations), or lose fewer tasks (DropOut, Availability, Failures)",
        )
    warn_if_unfair(run, run.history, run.setting, run.federation)
