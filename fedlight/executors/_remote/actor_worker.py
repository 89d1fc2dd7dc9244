"""An actor of a Ray cluster, as the process sees it that sends it jobs."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from fedlight.executors._remote.actor import SentJob, SentJobs, SentOutcomes
from fedlight.executors._remote.crew import Traffic, Worker, WorkerLost
from fedlight.executors._remote.sent_settings import to_bytes
from fedlight.executors._remote.tensor_block import Marks, Packed
from fedlight.executors.base import ClientError, Job, Outcome

if TYPE_CHECKING:
    from fedlight._module.settings import LiveSettings, Settings
    from fedlight.types import ServerState

_SETTINGS = 64  # settings of the module that keep their number


class ObjectStore:
    """The versions of the model in Ray's object store, each put there once.

    Args:
        ray: The package.
        live: The module's settings; None if all jobs have the same.

    Attributes:
        traffic: Counts what crosses.
    """

    def __init__(self, ray: Any, live: LiveSettings | None) -> None:
        self._ray, self._live = ray, live
        self._versions: dict[tuple[int, ...], tuple[Marks, int, Any]] = {}
        self._settings: dict[int, Settings] = {}
        self._numbers = count()
        self.traffic = Traffic()

    def version(self, state: ServerState) -> tuple[int, Any]:
        """The number of a version, and the reference by which an actor gets it."""
        tensors = (state.params, state.buffers, state.counters, state.shared)
        key = tuple(map(id, tensors))
        found = self._versions.get(key)
        if found is None or not found[0].hold(tensors):
            # Those that the server has released leave the store, too.
            gone = [key for key, (marks, *_) in self._versions.items() if marks.is_gone]
            for each in gone:
                del self._versions[each]
            reference = self._ray.put(Packed.of(tensors))
            found = self._versions[key] = Marks(tensors), next(self._numbers), reference
            self.traffic.versions += 1
        return found[1], found[2]

    def settings(self, job: Job) -> tuple[int | None, Mapping[int, bytes]]:
        """The number of the settings of a job, and those settings by number; none at the start."""
        live, own = self._live, job.pulled.settings
        if live is None or own is None or own is live.start:
            return None, {}
        known = next((n for n, each in self._settings.items() if each is own), None)
        if known is None:
            known = next(self._numbers)
            self._settings[known] = own
            self._settings = dict([*self._settings.items()][-_SETTINGS:])
        return known, {known: to_bytes(live, own, self._ray.cloudpickle)}


@dataclass(eq=False)
class ActorWorker(Worker):
    """An actor, as this process sees it.

    Attributes:
        number: Its place among the actors.
        actor: Ray's handle.
        ray: The package.
        store: The versions.
        device: Where results go.
        note: Called with its number and the state of its executor after each parcel.
    """

    number: int
    actor: Any
    ray: Any
    store: ObjectStore
    device: torch.device
    note: Callable[[int, dict[str, Any]], None]
    answers: deque[Any] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._place = self.actor.place.remote()

    @property
    def name(self) -> str:
        """Its number, and its process and node once it has started."""
        ready, _ = self.ray.wait([self._place], timeout=0)
        if not ready:
            return f"actor {self.number} (not started yet)"
        try:
            process, node = self.ray.get(ready[0])
        except self.ray.exceptions.RayActorError:
            return f"actor {self.number} (which has died)"
        return f"actor {self.number} (process {process} on {node})"

    def fits(self, jobs: Sequence[Job]) -> bool:
        """Any actor fits: settings are sent with the jobs."""
        return True

    def send(self, jobs: Sequence[Job]) -> None:
        """Send a parcel of jobs."""
        sent: list[SentJob] = []
        settings: dict[int, bytes] = {}
        versions: dict[int, Any] = {}
        own = [job.client_state for job in jobs if job.client_state is not None]
        for job in jobs:
            number, reference = self.store.version(job.pulled)
            versions[number] = reference
            known, some = self.store.settings(job)
            settings.update(some)
            sent.append(SentJob(job.task, number, known, job.client_state is not None))
        self.store.traffic.tasks += len(sent)
        self.store.traffic.sent += sum(each.nbytes for each in own)
        message = pickle.dumps(SentJobs(sent, settings, [*versions]))
        states = [each.cpu().view(torch.uint8).numpy() for each in own]
        # In a list, the references are passed on and not what they refer to.
        self.answers.append(self.actor.run.remote(message, [*versions.values()], states))

    def receive(self) -> list[Outcome]:
        """The outcomes of the earliest parcel."""
        errors = self.ray.exceptions
        try:
            message, blocks = self.ray.get(self.answers[0])
        except (errors.RayActorError, errors.ObjectLostError) as error:
            reason = str(error).strip().splitlines()
            raise WorkerLost(
                f"actor {self.number} has died ({reason[0] if reason else type(error).__name__}); "
                "where memory is short, write a smaller max_batch"
            ) from error
        self.answers.popleft()
        answer: SentOutcomes = pickle.loads(message)
        self.note(self.number, answer.state)
        traffic = self.store.traffic
        traffic.sent += answer.fetched
        results = iter(blocks)
        found: list[Outcome] = []
        for each in answer.outcomes:
            if isinstance(each, ClientError):
                found.append(each)
            else:
                traffic.received += each.shape.nbytes
                found.append(each.result(next(results), self.device))
        return found

    def stop(self) -> None:
        """End the actor."""
        self.ray.kill(self.actor)


def with_news(ray: Any, workers: Sequence[ActorWorker], timeout: float) -> list[ActorWorker]:
    """The actors that have answered or died, after `timeout` seconds at the latest."""
    asked = {worker.answers[0]: worker for worker in workers}
    ready, _ = ray.wait([*asked], num_returns=1, timeout=timeout)
    if ready and len(asked) > 1:
        ready, _ = ray.wait([*asked], num_returns=len(asked), timeout=0)
    return [asked[each] for each in ready]
