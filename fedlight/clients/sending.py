"""Sends updates through the channel, and keeps the clients' memories of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from fedlight.channel import Senders
from fedlight.channel._draws import row_norms
from fedlight.executors._stack.blocks import rows_of
from fedlight.executors.base import ClientError, Outcome
from fedlight.types import LocalResult, Measured

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.channel import Channel
    from fedlight.clients.pending import PendingRun
    from fedlight.types import Task


class Sending:
    """Takes the deltas of many local runs through the channel as one block.

    Without a memory, the updates of a stack go through the channel as soon as they are computed.
    With one, the order of a client's updates matters. It is the order of their arrivals, which is
    known only when they have arrived: a local run that was dispatched later may arrive earlier. So
    an update that is computed ahead of its arrival waits. It goes through the channel when the
    server needs it, after the client's earlier ones.

    Args:
        channel: The channel.
        seed: The seed of the fit.

    Attributes:
        remembers: Whether the channel keeps something of each client.
    """

    def __init__(self, channel: Channel, seed: int) -> None:
        self.remembers = channel.remembers
        self._channel, self._seed = channel, seed
        self._memory: dict[int, Tensor] = {}  # by client: e_i after all that it has sent
        self._unsent: dict[int, list[PendingRun]] = {}  # by client: arrived, in that order
        self._dropped: set[int] = set()  # serials of unsent ones that the server did not accept

    def check(self, run: PendingRun, outcome: Outcome) -> None:
        """Refuse buffers that a client has changed, if the channel adds noise to the parameters.

        Raises:
            ValueError: There are some.
        """
        if self._channel.noise_multiplier is None or isinstance(outcome, ClientError):
            return
        assert run.pulled is not None
        kind = outcome.changed_buffers(run.pulled)
        if kind is not None:
            raise ValueError(
                f"client {run.task.client_id} sends {kind} buffers of the module that it has "
                f"changed, to which {self._channel!r} adds no noise; take a module without such "
                "buffers (GroupNorm in place of BatchNorm)"
            )

    def through(self, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return the outcomes of a stack as they arrive; for channels without a memory.

        Args:
            tasks: The tasks.
            outcomes: Their results, or errors, which stay as they are.
        """
        pairs = zip(tasks, outcomes, strict=True)
        good = [(task, each) for task, each in pairs if isinstance(each, LocalResult)]
        sent = iter(self._block(*zip(*good, strict=True))[0] if good else ())
        return [next(sent) if isinstance(each, LocalResult) else each for each in outcomes]

    def arrived(self, run: PendingRun) -> None:
        """Put a run behind the client's others that have arrived and are not sent."""
        self._unsent.setdefault(run.task.client_id, []).append(run)

    def drop(self, run: PendingRun) -> None:
        """Note that the server did not accept an update that has arrived."""
        self._dropped.add(run.task.serial)

    def unsent(self) -> Iterator[PendingRun]:
        """Return all runs that have arrived and are not sent."""
        return chain.from_iterable(self._unsent.values())

    def with_earlier(self, runs: Iterable[PendingRun]) -> list[PendingRun]:
        """Return runs, each after the unsent ones of its client that have arrived before it."""
        return list(dict.fromkeys(each for run in runs for each in [*self._up_to(run), run]))

    def send(self, runs: Iterable[PendingRun]) -> None:
        """Send computed runs, and before each of them the earlier ones of its client.

        Of each client one is sent at a time, and those of all clients together.
        """
        left: dict[int, int] = {}  # by client: how many are to be sent
        for run in runs:
            client = run.task.client_id
            left[client] = max(left.get(client, 0), len(self._up_to(run)))
        while left := {client: number for client, number in left.items() if number}:
            turn = []
            for client in left:
                unsent = self._unsent[client]
                turn.append(unsent.pop(0))
                if not unsent:
                    del self._unsent[client]
                left[client] -= 1
            self._take(turn)

    def _take(self, turn: Sequence[PendingRun]) -> None:
        """Send runs of different clients, or add dropped ones to the memory."""
        good = []
        for run in turn:
            outcome = run.computed()
            if isinstance(outcome, ClientError):
                self._dropped.discard(run.task.serial)
            elif run.task.serial in self._dropped:
                self._dropped.remove(run.task.serial)
                kept = self._memory.get(run.task.client_id)
                self._memory[run.task.client_id] = self._added(outcome.delta, kept)
                run.release()
            else:
                good.append((run, outcome))
        if not good:
            return
        tasks, results = [run.task for run, _ in good], [outcome for _, outcome in good]
        sent, kept_now = self._block(tasks, results, [self._memory.get(t.client_id) for t in tasks])
        for (run, _), outcome, kept in zip(good, sent, kept_now, strict=True):
            if isinstance(outcome, LocalResult):
                self._memory[run.task.client_id] = kept
            run.send(outcome)

    def look_ahead(self, run: PendingRun) -> Outcome:
        """Return the outcome of a run as it will arrive, and change nothing.

        It and the earlier ones of its client are known, computed or tried.
        """
        kept = self._memory.get(run.task.client_id)
        outcome = run.computed()
        for each in self._up_to(run):
            outcome = each.computed()
            if isinstance(outcome, ClientError):
                continue
            if each.task.serial in self._dropped and each is not run:
                kept = self._added(outcome.delta, kept)
                continue
            (sent,), (after,) = self._block([each.task], [outcome], [kept])
            kept, outcome = (kept if isinstance(sent, ClientError) else after), sent
        return outcome

    def memory(self, client_id: int) -> Tensor | None:
        """Return e_i after all that client i has sent, shape ``[P]``; None for zeros."""
        return self._memory.get(client_id)

    def _added(self, delta: Tensor, kept: Tensor | None) -> Tensor:
        """The memory after a dropped update, as if the channel had sent nothing of it.

        A new tensor, also if nothing was kept: a delta is a row of a whole stack's block.
        """
        if kept is None:
            return delta.clone()
        decay = self._channel.memory_decay
        return delta + (kept if decay == 1 else decay * kept)

    def _up_to(self, run: PendingRun) -> list[PendingRun]:
        """Return the unsent runs of a client up to `run`; none if that is not among them."""
        waiting = self._unsent.get(run.task.client_id, [])
        return waiting[: waiting.index(run) + 1] if run in waiting else []

    @torch.no_grad()
    def _block(
        self,
        tasks: Sequence[Task],
        results: Sequence[LocalResult],
        memory: Sequence[Tensor | None] | None = None,
    ) -> tuple[list[Outcome], list[Tensor]]:
        """Return the outcomes of n runs as they arrive, and their clients' new memories.

        Args:
            tasks: The tasks, of different clients if there is a memory.
            results: Their results.
            memory: The memories of their clients, if the channel has any.
        """
        deltas = _stacked([result.delta for result in results])
        senders = Senders(tasks, self._seed)
        if memory is not None:
            nothing = torch.zeros_like(deltas[0])
            senders.memory = _stacked([nothing if each is None else each for each in memory])
        sent = self._channel.send(deltas, senders)
        if sent.shape != deltas.shape:
            raise ValueError(
                f"{self._channel!r} must return what arrives of {len(tasks)} updates as a tensor "
                f"of shape {list(deltas.shape)}, got {list(sent.shape)}"
            )
        norms = row_norms(sent)[:, 0].tolist()
        kept = [] if senders.memory is None else rows_of(senders.memory, apart=True)
        outcomes: list[Outcome] = []
        for task, result, row, norm in zip(tasks, results, rows_of(sent), norms, strict=True):
            if math.isfinite(norm):
                measured = Measured(row, row._version, norm)
                outcomes.append(result._replace(delta=row, measured=measured))
            else:
                reason = f"what {self._channel!r} makes of its update is not finite"
                outcomes.append(ClientError(task, reason))
        return outcomes, kept

    def state_dict(self) -> dict[str, Any]:
        """Return the memories, and which runs wait in which order."""
        return {
            "memory": {client: kept.to("cpu", copy=True) for client, kept in self._memory.items()},
            "unsent": {
                client: [run.task.serial for run in runs] for client, runs in self._unsent.items()
            },
            "dropped": sorted(self._dropped),
        }

    def load_state_dict(
        self, state: Mapping[str, Any], runs: Mapping[int, PendingRun], device: torch.device
    ) -> None:
        """Restore what `state_dict` returned.

        Args:
            state: The memories and the serials.
            runs: The runs by serial.
            device: The device of the memories.
        """
        self._memory = {client: kept.to(device) for client, kept in state["memory"].items()}
        self._unsent = {
            client: [runs[serial] for serial in serials]
            for client, serials in state["unsent"].items()
        }
        self._dropped = set(state["dropped"])


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    return rows[0][None] if len(rows) == 1 else torch.stack(list(rows))
