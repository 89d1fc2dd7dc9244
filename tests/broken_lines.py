"""Whether the tests notice a wrong line: not collected by pytest, run before tests are taken out.

Each entry of the table breaks one line of the packages in the way a slip would: a sign, an end of a
range, a factor that is missing, a state that is not put back. The script copies the tree, breaks
the line in the copy, runs the tests that should notice, and says which one did::

    python tests/broken_lines.py [--only WORD] [--list]

``--only`` takes the entries that have the word in their file or text. The exit status is 1 if a
broken line is not noticed, or if a text is no longer there exactly once: then the line has changed,
and the entry has to follow it.
"""

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import datasets  # noqa: F401  # these libraries take long to import
import lightning  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import pytest
import tensorboard  # noqa: F401
import torchmetrics  # noqa: F401

ROOT = Path(__file__).parents[1]
COPIED = ("fedlight", "data_partitioners", "tests", "recipes", "benchmarks", "docs")
MOST_SECONDS = 900
"""For the tests of one entry."""


class Broken(NamedTuple):
    """One line that is broken on purpose.

    Attributes:
        file: The file.
        text: A text that is in the file exactly once.
        instead: The text that replaces it.
        tests: Test files and folders of ``tests/`` that should notice, with spaces between them.
    """

    file: str
    text: str
    instead: str
    tests: str


TABLE = (
    # fedlight.aggregators
    Broken(
        "fedlight/aggregators/staleness.py",
        "float((staleness + 1) ** -self.a)",
        "float(max(staleness, 1) ** -self.a)",
        "aggregators/test_rules.py",
    ),
    Broken(
        "fedlight/aggregators/buffered.py",
        "len(self._held) >= self.buffer_size",
        "len(self._held) > self.buffer_size",
        "aggregators/test_buffered.py",
    ),
    Broken(
        "fedlight/aggregators/_server_step.py",
        "torch.add(state.params, direction, alpha=lr, out=new)",
        "torch.add(state.params, direction, out=new)",
        "aggregators/test_buffered.py aggregators/test_rules.py",
    ),
    Broken(
        "fedlight/aggregators/_server_step.py",
        "torch.neg(direction, out=self._gradient)",
        "self._gradient.copy_(direction)",
        "aggregators/test_buffered.py aggregators/test_server_optimizers.py",
    ),
    Broken(
        "fedlight/aggregators/_client_memory.py",
        "self.total += change",
        "self.total -= change",
        "aggregators/test_client_memory.py",
    ),
    Broken(
        "fedlight/aggregators/fadas.py",
        "<= self.tau_c",
        "< self.tau_c",
        "aggregators/test_identities_of_methods.py aggregators/test_rules_of_methods.py",
    ),
    Broken(
        "fedlight/early_server.py",
        "if not released:",
        "if released:",
        "test_early_server.py",
    ),
    Broken(
        "fedlight/arrivals/power_of_choice.py",
        "-self._losses.get(client, math.inf)",
        "self._losses.get(client, math.inf)",
        "arrivals/test_client_selection.py conformance/test_ours.py",
    ),
    Broken(
        "fedlight/arrivals/oort.py",
        "math.sqrt(log / self._reported[c])",
        "math.sqrt(log * self._reported[c])",
        "arrivals/test_client_selection.py conformance/test_ours.py",
    ),
    Broken(
        "fedlight/arrivals/pisces.py",
        "or self._ending:",
        "or False:",
        "arrivals/test_client_selection.py",
    ),
    Broken(
        "fedlight/aggregators/fednova.py",
        "steps - rho * (1 - rho**steps) / (1 - rho)",
        "steps - rho * (1 - rho**steps)",
        "aggregators/test_rules_of_methods.py conformance/test_ours.py",
    ),
    Broken(
        "fedlight/aggregators/fedat.py",
        "reversed(self.counts)",
        "self.counts",
        "conformance/test_ours.py",
    ),
    Broken(
        "fedlight/aggregators/ringleader.py",
        "self._held = [u for u in updates if u.client_id not in self.to_step]",
        "self._held = []",
        "aggregators/test_ringleader.py conformance/test_ours.py",
    ),
    Broken(
        "fedlight/aggregators/fedbuff_ma.py",
        "self.contained = u * share + v * before",
        "self.contained = u * share + before",
        "aggregators/test_fedbuff_ma.py conformance/test_ours.py",
    ),
    Broken(
        "fedlight/aggregators/delayed_nesterov.py",
        "1 - self._c * self._period + self._c",
        "1 - self._c * self._period",
        "conformance/test_ours.py",
    ),
    Broken(
        "fedlight/aggregators/look_ahead.py",
        "torch.add(state.params, self.velocity, alpha=eta * self.momentum)",
        "torch.add(state.params, self.velocity, alpha=eta)",
        "conformance/test_ours.py",
    ),
    Broken(
        "fedlight/aggregators/heloco.py",
        "if c >= self.c_ok:",
        "if c >= 0:",
        "conformance/test_ours.py",
    ),
    Broken(
        "fedlight/aggregators/halos.py",
        "self.returned[region] = new.params",
        "self.returned[region] = state.params",
        "aggregators/test_halos.py",
    ),
    Broken(
        "fedlight/aggregators/halos.py",
        "if update.task.tries:",
        "if not update.task.tries:",
        "aggregators/test_halos.py",
    ),
    Broken(
        "fedlight/arrivals/regions.py",
        "        if not self._transfers[group]:\n            self._counts[group] = 0",
        "        self._counts[group] = 0",
        "arrivals/test_regions.py",
    ),
    Broken(
        "fedlight/arrivals/schedule.py",
        "self._newest_of.get(tag, self.version) if self._regional else self.version",
        "self.version",
        "arrivals/test_regions.py aggregators/test_halos.py",
    ),
    Broken(
        "fedlight/server.py",
        "if self._regional:  # clients of each",
        "if False:  # clients of each",
        "aggregators/test_halos.py",
    ),
    Broken(
        "fedlight/local_optimizers/adam.py",
        "before + k for before in run.kept_steps",
        "k for before in run.kept_steps",
        "conformance/test_ours.py",
    ),
    Broken(
        "fedlight/aggregators/fedcompass.py",
        "int(tag) < self.open or int(tag) in self.ended",
        "int(tag) < self.open",
        "aggregators/test_fedcompass.py",
    ),
    Broken(
        "fedlight/aggregators/fedasmu.py",
        "[by_xi * decay, -by_xi * lam * log * decay,",
        "[by_xi * decay, -by_xi * log * decay,",
        "aggregators/test_fedasmu.py",
    ),
    Broken(
        "fedlight/local_optimizers/fresh_model.py",
        "task.pulled_version - task.began_with + 1 for",
        "task.pulled_version - task.began_with for",
        "conformance/test_ours.py",
    ),
    # fedlight.arrivals
    Broken(
        "fedlight/arrivals/compass.py",
        "possible >= steps:",
        "possible > steps:",
        "arrivals/test_compass.py",
    ),
    Broken(
        "fedlight/arrivals/refreshed.py",
        "clients.remove(self._half)",
        "pass",
        "arrivals/test_refreshed.py",
    ),
    Broken(
        "fedlight/arrivals/polled.py",
        "if spent > ticks:",
        "if spent >= ticks:",
        "arrivals/test_polled.py",
    ),
    Broken(
        "fedlight/arrivals/continuous.py",
        "self._oldest[0][0] >= self.restart_after",
        "self._oldest[0][0] > self.restart_after",
        "conformance/test_ours.py",
    ),
    Broken(
        "fedlight/arrivals/synchronous.py",
        "min(slowest, self.timeout)",
        "max(slowest, self.timeout)",
        "conformance/test_ours.py",
    ),
    Broken(
        "fedlight/arrivals/synchronous.py",
        "if self._ending or self._round == self._last",
        "if self._round == self._last",
        "arrivals/test_synchronous.py",
    ),
    Broken(
        "fedlight/arrivals/synchronous.py",
        "task.lost or self._needed != 0",
        "task.lost or self._needed > 0",
        "arrivals/test_synchronous.py",
    ),
    Broken(
        "fedlight/arrivals/synchronous.py",
        "(self._continues and self.timeout is None) or end < self._latest",
        "end < self._latest",
        "arrivals/test_synchronous.py",
    ),
    Broken(
        "fedlight/arrivals/synchronous.py",
        "and (limited or not self._working)",
        "and limited",
        "arrivals/test_synchronous.py",
    ),
    Broken(
        "fedlight/arrivals/synchronous.py",
        "        self._working.discard(dispatch.client_id)",
        "        pass",
        "arrivals/test_synchronous.py",
    ),
    Broken(
        "fedlight/arrivals/local_steps.py",
        "np.floor(np.round(self.num_steps * (speeds / speeds.max()), 9))",
        "np.floor(self.num_steps * (speeds / speeds.max()))",
        "arrivals/test_local_steps.py",
    ),
    Broken(
        "fedlight/arrivals/local_steps.py",
        "means.min() / means",
        "means / means.min()",
        "arrivals/test_local_steps.py",
    ),
    Broken(
        "fedlight/arrivals/windows.py",
        "start = ticks - (ticks - self._phase(client)) % self._period",
        "start = ticks - (ticks + self._phase(client)) % self._period",
        "arrivals/test_availability.py",
    ),
    Broken(
        "fedlight/arrivals/composed_durations.py",
        "float(np.exp(-self.sigma * drawn)) / self.rate",
        "float(np.exp(-self.sigma * drawn)) * self.rate",
        "arrivals/test_more_durations.py",
    ),
    Broken(
        "fedlight/arrivals/shared_data.py",
        "self._position += num_steps * self._batch",
        "self._position += num_steps",
        "arrivals/test_shared_data.py",
    ),
    Broken(
        "fedlight/arrivals/shared_data.py",
        "self._taken[shard] += num_steps * int(self._batches[shard])",
        "self._taken[shard] += num_steps * self._batch_size",
        "arrivals/test_shared_data.py",
    ),
    Broken(
        "fedlight/arrivals/shared_data.py",
        "        super().load_state_dict(state)\n        self._progress = self._progress_of()",
        "        super().load_state_dict(state)",
        "arrivals/test_shared_data.py",
    ),
    Broken(
        "fedlight/arrivals/schedule.py",
        "again = again._replace(chunk=failed.chunk)",
        "pass",
        "arrivals/test_shared_data.py",
    ),
    Broken(
        "fedlight/executors/_stack/batches.py",
        "places[now] = _epoch_order(seed, shard, epoch, len(rows))[places[now]]",
        "places[now] = _epoch_order(seed, shard, 0, len(rows))[places[now]]",
        "arrivals/test_shared_data.py",
    ),
    Broken(
        "fedlight/arrivals/partial_work.py",
        "duration * num_steps / action.num_steps",
        "duration * action.num_steps / action.num_steps",
        "arrivals/test_partial_work.py",
    ),
    Broken(
        "fedlight/arrivals/schedule.py",
        "task.num_steps * (self._queue.ticks - begin) // whole",
        "task.num_steps * (self._queue.ticks - begin) // whole + 1",
        "conformance/test_ours.py project/test_scenarios_timed.py arrivals/test_schedule.py",
    ),
    Broken(
        "fedlight/aggregators/private_sum.py",
        "of_client[update.client_id] += weight",
        "of_client[update.client_id] = weight",
        "aggregators/test_private_sum.py",
    ),
    # fedlight.privacy
    Broken(
        "fedlight/privacy.py",
        "(*record.updates, *record.dropped)",
        "record.updates",
        "test_privacy.py",
    ),
    # fedlight.channel
    Broken(
        "fedlight/channel/gaussian_noise.py",
        "self.noise_multiplier * self.clipping_norm",
        "self.noise_multiplier",
        "channel/test_gaussian_noise.py",
    ),
    Broken(
        "fedlight/channel/qsgd.py",
        "senders.uniform(wide) < exact - level",
        "senders.uniform(wide) > exact - level",
        "channel/test_rules.py",
    ),
    Broken(
        "fedlight/channel/error_feedback.py",
        "senders.memory = full - sent",
        "senders.memory = updates - sent",
        "channel/test_rules.py",
    ),
    Broken(
        "fedlight/channel/random_k.py",
        "sent * (size / k)",
        "sent * (k / size)",
        "channel/test_rules.py",
    ),
    # fedlight.local_optimizers
    Broken(
        "fedlight/local_optimizers/adam.py",
        "run.step + 1 - run.skipped",
        "run.step + 1",
        "parity/test_modules_boundary.py",
    ),
    Broken(
        "fedlight/local_optimizers/scaffold.py",
        "alpha=1 / num_clients",
        "alpha=1 / len(state.used)",
        "local_optimizers/test_scaffold.py",
    ),
    Broken(
        "fedlight/local_optimizers/own_model.py",
        "(pulled + s * own) / (s + 1)",
        "(s * pulled + own) / (s + 1)",
        "local_optimizers/test_own_model.py",
    ),
    # fedlight.executors
    Broken(
        "fedlight/executors/sequential.py",
        "share = len(part) / size",
        "share = 1 / size",
        "local_optimizers/test_scaffold.py",
    ),
    Broken(
        "fedlight/executors/_random/streams.py",
        "return step + times * _AGAIN",
        "return step",
        "executors/random/test_streams.py",
    ),
    Broken(
        "fedlight/executors/_random/variates.py",
        "return drawn % min(high - low, _LARGEST) + low",
        "return drawn % min(high - low + 1, _LARGEST) + low",
        "executors/random/test_random_tensors.py executors/random/test_variates.py",
    ),
    Broken(
        "fedlight/executors/_stack/batches.py",
        "starts[which, None]",
        "starts[:1, None]",
        "executors/stack/test_batches.py",
    ),
    Broken(
        "fedlight/executors/_stack/unused_parameters.py",
        "if len(unused) == number:",
        "if True:",
        "executors/stack/test_unused_parameters.py",
    ),
    Broken(
        "fedlight/executors/_stack/start.py",
        "sum(step < task.num_steps for step in run.skipped_steps)",
        "len(run.skipped_steps)",
        "local_optimizers/test_kept.py",
    ),
    Broken(
        "fedlight/server.py",
        '"model": None if sent.params is self.state.params else self.state.params,',
        '"model": None,',
        "aggregators/test_look_ahead.py",
    ),
    Broken(
        "fedlight/arrivals/schedule.py",
        "self._steps_made[task.client_id] = made + task.num_steps",
        "self._steps_made[task.client_id] = task.num_steps",
        "local_optimizers/test_kept.py",
    ),
    Broken(
        "fedlight/executors/_tracing/simplify.py",
        "copied |= not _is_view(source)",
        "copied = not _is_view(source)",
        "executors/tracing/test_simplify.py executors/tracing/test_simplify_views.py",
    ),
    Broken(
        "fedlight/executors/_tracing/program.py",
        "int(first) + slope * (wanted - n)",
        "int(first) + slope * (wanted - m)",
        "executors/tracing/test_program.py",
    ),
    Broken(
        "fedlight/executors/_choice/trial.py",
        "(changes or kept) and succeeds",
        "False and succeeds",
        "executors/choice module/test_snapshot.py",
    ),
    Broken(
        "fedlight/executors/_remote/forked.py",
        "shared if parts.has_shared else None,",
        "shared,",
        "executors/remote",
    ),
    Broken(
        "fedlight/executors/_remote/forked.py",
        "if found is not None and not found.marks.hold(tensors):",
        "if False:",
        "executors/remote",
    ),
    Broken(
        "fedlight/executors/_remote/forked.py",
        "if version.forgotten and not version.users:",
        "if version.forgotten:",
        "executors/remote",
    ),
    Broken(
        "fedlight/executors/_remote/forked.py",
        "if self.results.num_free > self._num_jobs:",
        "if True:",
        "executors/remote",
    ),
    Broken(
        "fedlight/executors/_remote/crew.py",
        "self._dealt.extendleft(reversed([first, *others]))",
        "self._dealt.extend([first])",
        "executors/remote/test_crew.py",
    ),
    Broken(
        "fedlight/executors/_remote/crew.py",
        "if idle is not None and all(place.parcels for place in fitting):",
        "if idle is not None and not fitting:",
        "executors/remote/test_crew.py",
    ),
    Broken(
        "fedlight/clients/work_ahead.py",
        "if pool.has_chains:",
        "if False:",
        "clients/test_work_ahead.py",
    ),
    Broken(
        "fedlight/clients/work_ahead.py",
        "if not self.has(run):",
        "if True:",
        "clients/test_work_ahead.py",
    ),
    Broken(
        "fedlight/clients/clients.py",
        "self.pool.settle()",
        "pass",
        "clients/test_work_ahead.py",
    ),
    Broken(
        "fedlight/clients/pool.py",
        "if run.status is not Status.OPEN or self.is_with_workers(run):",
        "if run.status is not Status.OPEN:",
        "clients",
    ),
    # fedlight.clients, server, loop, events, run, checkpoint
    Broken(
        "fedlight/parameters.py",
        "return (most / norms).clamp(max=1)",
        "return (norms / most).clamp(max=1)",
        "test_parameters.py",
    ),
    Broken(
        "fedlight/clients/clients.py",
        "if run.status is Status.OPEN or run.error is not None:",
        "if run.error is not None:",
        "local_optimizers/test_scaffold.py clients fit/test_failures.py",
    ),
    Broken(
        "fedlight/clients/sending.py",
        "self._memory[run.task.client_id] = self._added(outcome.delta, kept)",
        "self._memory[run.task.client_id] = outcome.delta",
        "channel/test_runs.py",
    ),
    Broken(
        "fedlight/clients/sending.py",
        "decay = self._channel.memory_decay",
        "decay = 1",
        "channel/test_runs.py",
    ),
    Broken(
        "fedlight/channel/base.py",
        "self.memory_decay = next(decays, 1.0)",
        "self.memory_decay = 1.0",
        "channel/test_rules.py",
    ),
    Broken(
        "fedlight/channel/error_feedback.py",
        "updates + (senders.memory if self.decay == 1 else self.decay * senders.memory)",
        "updates + senders.memory",
        "channel/test_rules.py",
    ),
    Broken(
        "fedlight/server.py",
        "num_gradients += task.num_steps",
        "num_gradients += 1",
        "test_server.py fit/test_trainer.py callbacks/test_tensorboard_extras.py",
    ),
    Broken(
        "fedlight/server.py",
        "update.task.tries + 1 < _MOST_TRIES",
        "update.task.tries < _MOST_TRIES",
        "test_server.py fit/test_failures.py",
    ),
    Broken(
        "fedlight/loop.py",
        "counts.num_updates < updates",
        "counts.num_updates <= updates",
        "test_loop.py fit/test_trainer.py",
    ),
    Broken(
        "fedlight/events.py",
        "DEADLINE = 2",
        "DEADLINE = 5",
        "test_events.py arrivals/test_schedule.py",
    ),
    Broken(
        "fedlight/checkpoint.py",
        "for part in reversed(parts) for item in part",
        "for part in parts for item in part",
        "test_checkpoint.py",
    ),
    # fedlight._fit, _module, _runs, trainer
    Broken(
        "fedlight/_fit/intervals.py",
        "before // self._every != self._updates // self._every",
        "self._updates % self._every == 0",
        "fit/test_intervals.py",
    ),
    Broken(
        "fedlight/_fit/lightning_callbacks.py",
        'callback.min_delta * (1 if callback.mode == "max" else -1)',
        "callback.min_delta",
        "parity/test_callbacks.py parity/test_callbacks_trainer.py",
    ),
    Broken(
        "fedlight/_fit/one_fit.py",
        "record.version % every == 0",
        "True",
        "parity/test_logging.py parity/test_trainer_arguments.py fit/test_trainer.py",
    ),
    Broken(
        "fedlight/_module/evaluation.py",
        "child.training = training",
        "child.training = True",
        "module/test_evaluation.py parity/test_modules_boundary.py parity/test_hooks.py",
    ),
    Broken(
        "fedlight/_module/evaluation_batches.py",
        "not examples.stackable or examples.transform is not None",
        "not examples.stackable",
        "module/test_evaluation_batches.py",
    ),
    Broken(
        "fedlight/_module/evaluation_batches.py",
        "self._kept.drop_if_changed()",
        "pass",
        "module/test_evaluation_batches.py",
    ),
    Broken(
        "fedlight/_module/evaluation_batches.py",
        "key = (str(device), dtype, sizes)",
        "key = (str(device), sizes)",
        "module/test_evaluation_batches.py",
    ),
    Broken(
        "fedlight/_module/evaluation_batches.py",
        "copies = [part.clone() for part in parts] if self._is_first else []",
        "copies: list[Tensor] = []",
        "module/test_evaluation_batches.py",
    ),
    Broken(
        "fedlight/_fit/callback_hooks.py",
        "del self._trainer, self._made_version",
        "pass",
        "fit/test_trainer.py",
    ),
    Broken(
        "fedlight/_fit/module_trainer.py",
        "        shown.let_go()\n",
        "",
        "fit/test_trainer.py",
    ),
    Broken(
        "fedlight/run.py",
        "(lambda: server.state), state.show",
        "(lambda: self.server.state), state.show",
        "fit/test_trainer.py",
    ),
    Broken(
        "fedlight/early_server.py",
        "_replace(released=released, retried=retried, failed=failed)",
        "_replace(released=released, retried=retried)",
        "test_early_server.py",
    ),
    Broken(
        "fedlight/studies/one_run.py",
        "            _empty_frames(error)\n",
        "",
        "studies/test_sweep.py",
    ),
    Broken(
        "fedlight/studies/one_run.py",
        "        trainer.run.let_go()\n",
        "",
        "studies/test_sweep.py",
    ),
    Broken(
        "fedlight/_module/evaluation_batches.py",
        "max(1, int(limit * number))",
        "max(1, round(limit * number))",
        "module/test_evaluation.py parity/test_trainer_arguments.py",
    ),
    Broken(
        "fedlight/_module/log_arguments.py",
        "total = number * weight if REDUCTIONS[self.reduce].weighted else number",
        "total = number",
        "module/test_log.py parity/test_logging.py",
    ),
    Broken(
        "fedlight/_runs/records.py",
        'each.reason != "cancelled"',
        'each.reason == "cancelled"',
        "runs arrivals/test_schedule.py fit/test_stopping.py",
    ),
    Broken(
        "fedlight/_runs/content.py",
        "yield part.of(dense.values())",
        "pass",
        "runs/test_content.py",
    ),
    Broken(
        "fedlight/_runs/content.py",
        "yield part.of(list(items or ()))",
        "pass",
        "runs/test_content.py",
    ),
    Broken(
        "fedlight/_runs/code.py",
        "waiting.append(place[handler[each.offset][0]])",
        "pass",
        "runs/test_content.py",
    ),
    Broken(
        "fedlight/_runs/reading.py",
        "after = first - 1",
        "after = first",
        "runs/test_content.py",
    ),
    Broken(
        "fedlight/_runs/files.py",
        "state.st_size <= whole)",
        "True)",
        "runs/test_files.py",
    ),
    # fedlight.callbacks
    Broken(
        "fedlight/callbacks/early_stopping.py",
        "sign * self.best_score - self.min_delta",
        "sign * self.best_score + self.min_delta",
        "callbacks/test_early_stopping.py",
    ),
    Broken(
        "fedlight/callbacks/checkpoint.py",
        "len(self.best_k) >= self.save_top_k",
        "len(self.best_k) > self.save_top_k",
        "test_checkpoint.py parity/test_checkpoints.py",
    ),
    Broken(
        "fedlight/callbacks/client_evaluation.py",
        "np.average((values - mean) ** 2, weights=importance)",
        "np.average((values - mean) ** 2)",
        "callbacks/test_client_evaluation.py",
    ),
    # fedlight.data, models, plot
    Broken(
        "fedlight/data/_png.py",
        "left + above - 2 * above_left",
        "left + above - above_left",
        "data/test_png.py",
    ),
    Broken(
        "fedlight/data/columns.py", "shift=-mean_ / std_", "shift=-mean_", "data/test_columns.py"
    ),
    Broken(
        "fedlight/models/char_lstm.py", "states[:, -1]", "states[:, 0]", "models/test_models.py"
    ),
    Broken(
        "fedlight/plot/figures.py",
        "(sums[last] - sums[first]) / (last - first)",
        "(sums[last] - sums[first]) / smooth",
        "plot/test_plot.py",
    ),
    Broken(
        "fedlight/plot/_pictures.py",
        "end <= task.start",
        "end < task.start",
        "plot/test_pictures.py",
    ),
    # The endings of runs without use.
    Broken(
        "fedlight/arrivals/_silence.py",
        "return tasks + self.wakes // 10 >= self.most",
        "return tasks + self.wakes // 10 > self.most",
        "arrivals/test_silence.py",
    ),
    Broken(
        "fedlight/arrivals/_silence.py",
        "self.rounds += end_of_round and not self._busy",
        "self.rounds += end_of_round",
        "arrivals/test_silence.py",
    ),
    Broken(
        "fedlight/arrivals/_silence.py",
        "self.stopped += stopped",
        "pass",
        "arrivals/test_silence.py",
    ),
    Broken(
        "fedlight/arrivals/_silence.py",
        "10 * max(self.most, buffer_size or 0)",
        "10 * self.most",
        "arrivals/test_silence.py",
    ),
    Broken(
        "fedlight/arrivals/schedule.py",
        "resting = not self._coming and not pulls and now >= expected",
        "resting = not self._coming and not pulls",
        "arrivals/test_silence.py",
    ),
    Broken(
        "fedlight/arrivals/schedule.py",
        "                silence.hear()\n",
        "                pass\n",
        "arrivals/test_silence.py",
    ),
    # The keys of studies, and settings that no argument shows.
    Broken(
        "fedlight/_runs/content.py",
        "yield inside.of([function.__defaults__, function.__kwdefaults__, vars(function)])",
        "yield inside.of([vars(function)])",
        "runs/test_content.py studies/test_keys.py",
    ),
    Broken(
        "fedlight/_runs/content.py",
        'yield f"environment {each.name}={value!r};".encode()',
        'yield f"environment {each.name};".encode()',
        "runs/test_content.py studies/test_keys.py",
    ),
    Broken(
        "fedlight/_runs/files.py",
        'yield f"{Path(place).as_posix()}:{content};".encode()',
        'yield f"{Path(place).as_posix()};".encode()',
        "runs/test_files.py studies/test_keys.py",
    ),
    Broken(
        "fedlight/studies/_cell_key.py",
        'parts["seed"] = str(planned.seed)',
        'parts["seed"] = ""',
        "studies/test_keys.py studies/test_sweep.py",
    ),
    Broken(
        "fedlight/studies/keys.py",
        "if self.parts.get(name) != before.parts.get(name)",
        "if name not in before.parts",
        "studies/test_keys.py",
    ),
    Broken(
        "fedlight/_runs/own_settings.py",
        "yield from _within(f\"{place}.{name.lstrip('_')}\", each, seen)",
        "pass",
        "runs/test_own_settings.py",
    ),
    Broken(
        "fedlight/_runs/own_settings.py",
        "isinstance(value, list | tuple | dict) and len(value) <= _MOST",
        "isinstance(value, list | tuple) and len(value) <= _MOST",
        "runs/test_own_settings.py",
    ),
    # Checks of arguments.
    Broken(
        "fedlight/_support/checks.py",
        "    if not 0 <= number < count:\n",
        "    if not number < count:\n",
        "project/test_wrong_methods.py",
    ),
    Broken(
        "fedlight/_support/checks.py",
        "    if number > _MOST_CLIENTS:\n",
        "    if False:\n",
        "arrivals/test_shared_data.py",
    ),
    # fedlight.studies
    Broken(
        "fedlight/_support/bootstrap.py",
        "tail = (1 - confidence) / 2",
        "tail = 1 - confidence",
        "studies/test_comparison.py studies/test_parts.py",
    ),
    Broken(
        "fedlight/studies/_measures.py",
        "(1 - last) * times[-1]",
        "last * times[-1]",
        "studies/test_comparison.py studies/test_parts.py",
    ),
    Broken(
        "fedlight/studies/tables.py",
        "value - base[seed]",
        "base[seed] - value",
        "studies/test_comparison.py studies/test_parts.py",
    ),
    Broken(
        "fedlight/_runs/data_fingerprint.py",
        "held.append(_held(examples))",
        "pass",
        "runs/test_data_fingerprint.py studies/test_keys.py",
    ),
    # What a record says of lost tasks.
    Broken(
        "fedlight/arrivals/_table_writer.py",
        "(self._lost if task.lost else self._rows).append(_row(task, now, version))",
        "self._rows.append(_row(task, now, version))",
        "arrivals/test_recording.py",
    ),
    Broken(
        "fedlight/arrivals/_table_writer.py",
        'if "lost" not in state:',
        "if False:",
        "arrivals/test_recording.py",
    ),
    Broken(
        "fedlight/arrivals/_table_writer.py",
        "waste_known=self._waste_known and arrivals.waste_known",
        "waste_known=self._waste_known",
        "arrivals/test_recording.py",
    ),
    Broken(
        "fedlight/arrivals/replay.py",
        "yield self._dispatch(event, at, delay=at)._replace(lost=True)",
        "yield from ()",
        "arrivals/test_replay.py",
    ),
    Broken(
        "fedlight/arrivals/replay.py",
        "if task.lost:  # the records do not wait for it",
        "if False:",
        "arrivals/test_replay.py",
    ),
    Broken(
        "fedlight/arrivals/replay.py",
        "stopped += [(e, True) for e in self.lost if e.stopped_at_version is not None]",
        "pass",
        "arrivals/test_replay.py arrivals/test_recording.py",
    ),
    Broken(
        "fedlight/arrivals/schedule.py",
        "            if not lost:\n                raise self._too_early",
        "            if True:\n                raise self._too_early",
        "arrivals/test_replay.py",
    ),
    Broken(
        "fedlight/server.py",
        "tasks += [update.task for update, _ in failed]",
        "pass",
        "fit/test_failures.py",
    ),
    Broken(
        "fedlight/participation.py",
        "elif arrivals.waste_known:",
        "elif True:",
        "test_participation.py",
    ),
    # The modules of the root that need no training.
    Broken(
        "fedlight/participation.py",
        "np.abs(self.share - self.importance).sum() / 2",
        "np.abs(self.share - self.importance).sum()",
        "test_participation.py",
    ),
    Broken(
        "fedlight/theory.py",
        "odds * (clients - concurrency + 1)",
        "odds * (clients - concurrency)",
        "test_closed_network.py test_theory.py",
    ),
    Broken(
        "fedlight/settings.py",
        "UniformSteps(1, 2 * steps)",
        "UniformSteps(1, steps)",
        "test_settings.py",
    ),
    Broken(
        "fedlight/cli/script.py",
        "names.count(name) > 1",
        "names.count(name) > 2",
        "cli/test_script.py",
    ),
    Broken(
        "fedlight/parameters.py",
        "step == 0 and length > 1",
        "step == 0 and length > 2",
        "test_parameters.py",
    ),
    Broken(
        "fedlight/conformance/verdict.py",
        "_deviation(outcome.models, reading.models) <= tolerance",
        "_deviation(outcome.models, reading.models) >= tolerance",
        "conformance/test_verdict.py conformance/test_ours.py",
    ),
    # data_partitioners
    Broken(
        "data_partitioners/_sizes.py",
        "[: int(given.sum()) - needed]] -= 1",
        "[needed - int(given.sum()) :]] -= 1",
        "data_partitioners/test_sizes.py",
    ),
    Broken(
        "data_partitioners/mixing.py",
        "round(self.ratio * len(codes))",
        "round((1 - self.ratio) * len(codes))",
        "data_partitioners/test_mixing.py",
    ),
    Broken(
        "data_partitioners/pathological.py",
        "(len(turns) - turn) / needs - 1",
        "(len(turns) - turn - 1) / needs",
        "data_partitioners/test_pathological.py",
    ),
    Broken(
        "fedlight/_support/products.py",
        "os.environ.setdefault(_SWITCH, _STRICT)",
        "os.environ.get(_SWITCH, _STRICT)",
        "support/test_products.py executors/stack/test_independence.py",
    ),
    Broken(
        "fedlight/executors/_stack/steady_functions.py",
        "return torch.constant_pad_nd(rows, (0, 1))[:, :-1].view(x.shape), 0",
        "return rows.view(x.shape), 0",
        "executors/stack/test_independence.py",
    ),
    Broken(
        "fedlight/executors/_stack/steady_functions.py",
        "centred = torch.addcmul(share * total, gradient, factor)",
        "centred = gradient * factor",
        "executors/stack/test_steady_functions.py",
    ),
    Broken(
        "fedlight/executors/_stack/local_runs.py",
        "                rows.copy_(values)",
        "                pass",
        "parity/test_modules_boundary.py",
    ),
    Broken(
        "fedlight/executors/_stack/stack_size.py",
        "return 2 if most > 1 or by_size > 1 else 1",
        "return 1",
        "executors/stack/test_independence.py",
    ),
    Broken(
        "fedlight/_module/settings.py",
        "        if settings is None or self.look() is settings:",
        "        if settings is None or settings:",
        "executors/test_changed_settings.py",
    ),
    Broken(
        "fedlight/executors/_choice/trial.py",
        "each.owner[each.key] = now + _MANY if isinstance(now, float) else _MULTIPLE - 1",
        "each.owner[each.key] = now",
        "executors/test_changed_settings.py",
    ),
    Broken(
        "fedlight/_module/rng.py",
        "        _seed(each, seed)",
        "        _state(each)",
        "executors/random/test_streams.py",
    ),
    Broken(
        "fedlight/studies/_shared_executors.py",
        "            and choice.executor.independent\n",
        "",
        "studies",
    ),
)


def copy_to(folder: Path) -> None:
    """Copy what the tests need; a link to the environment is not followed."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, folder)


def run_pytest(folder: Path, said: Path, tests: Sequence[str]) -> int:
    """Run tests in a copy, in this process; what they print goes to a file."""
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    signal.alarm(MOST_SECONDS)
    os.chdir(folder)
    os.environ.update(PYTHONPATH=str(folder), OMP_NUM_THREADS="1")
    own = {str(ROOT), str(ROOT / "tests")}
    sys.path[:] = [str(folder), *(each for each in sys.path if each not in own)]
    sys.dont_write_bytecode = True  # a file may change twice within a second
    imported = "ignore::pytest.PytestAssertRewriteWarning"  # a plugin of pytest, by a library
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-W", imported]
    status = pytest.main([*options, *tests])
    sys.stdout.flush()
    return int(status)


def first_failure(folder: Path, tests: Sequence[str]) -> str:
    """Run tests in a copy; the first that does not pass, or "".

    Raises:
        RuntimeError: The tests could not be run, or did not end.
    """
    said = folder / "said"
    child = os.fork()  # it has the libraries already, and nothing of this project
    if not child:
        status = 70
        try:
            status = run_pytest(folder, said, tests)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    output = said.read_text("utf-8", errors="replace")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if status and failed is None:
        raise RuntimeError(f"pytest ends with status {status}\n{output[-2000:]}")
    return "" if failed is None else failed[1]


def is_caught(folder: Path, broken: Broken) -> bool:
    """Break one line in the copy, run its tests, and repair it; whether they noticed."""
    path = folder / broken.file
    whole = path.read_text("utf-8") if path.is_file() else ""
    times = whole.count(broken.text)
    where = f"{broken.file}: {broken.text!r}"
    if times != 1:
        print(f"{where} is there {times} times; write the entry anew", flush=True)
        return False
    path.write_text(whole.replace(broken.text, broken.instead), "utf-8")
    try:
        test = first_failure(folder, [f"tests/{each}" for each in broken.tests.split()])
    finally:
        path.write_text(whole, "utf-8")
    # A test that fails in the whole tree as well says nothing about the line.
    caught = bool(test) and not first_failure(folder, [test])
    said = test if caught else f"NOT CAUGHT ({test or 'all pass'})"
    print(f"{where} -> {broken.instead!r}\n    {said}", flush=True)
    return caught


def main() -> int:
    """Check the entries that are asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="entries with this word in their file or text")
    parser.add_argument("--list", action="store_true", help="show the entries and check no more")
    asked = parser.parse_args()
    chosen = [each for each in TABLE if asked.only in each.file or asked.only in each.text]
    if asked.list:
        print(*(f"{each.file}: {each.text!r} -> {each.instead!r}" for each in chosen), sep="\n")
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        copy_to(folder)
        caught = [is_caught(folder, each) for each in chosen]
    print(f"{sum(caught)} of {len(caught)} broken lines are caught")
    return 0 if chosen and all(caught) else 1


if __name__ == "__main__":
    sys.exit(main())
