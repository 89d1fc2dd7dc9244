"""An actor of a Ray cluster, as the process sees it that sends it jobs."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning.pytorch.utilities import rank_zero_warn

from fedlight.executors._remote.actor import SentExamples, SentJob, SentJobs, SentOutcomes
from fedlight.executors._remote.crew import Traffic, Worker, WorkerLost
from fedlight.executors._remote.sent_settings import to_bytes
from fedlight.executors._remote.tensor_block import Marks, Packed
from fedlight.executors.base import ClientError, Job, Outcome

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight._module.settings import LiveSettings, Settings
    from fedlight.executors.base import Workplace
    from fedlight.types import ServerState

_SETTINGS = 64  # settings of the module that keep their number


class SentVersion(NamedTuple):
    """Where a version of the model is.

    Attributes:
        number: Names it.
        bundle: Ray's reference to several versions.
        place: Which of them it is.
    """

    number: int
    bundle: Any
    place: int


def _tensors(state: ServerState) -> tuple[Tensor | None, ...]:
    return state.params, state.buffers, state.counters, state.shared


class SentFit:
    """A fit that actors compute for: what they have of it, and its versions of the model.

    Each version is put into Ray's object store once.

    Args:
        ray: The package.
        number: Names the fit.
        sent: The module and the settings, in the object store.
        examples: The examples.
        live: The module's settings; None if all jobs have the same.
        device: Where results go.

    Attributes:
        traffic: Counts what crosses.
        kept: The state of the actors' executors, such as the size of stacks that have room.
    """

    def __init__(
        self,
        ray: Any,
        number: int,
        sent: Any,
        examples: SentExamples,
        live: LiveSettings | None,
        device: torch.device,
    ) -> None:
        self._ray, self._live, self._sent = ray, live, sent
        self.number, self.examples, self.device = number, examples, device
        self._versions: dict[tuple[int, ...], tuple[Marks, SentVersion]] = {}
        self._settings: dict[int, Settings] = {}
        self._numbers = count()
        self.traffic = Traffic()
        self.kept: dict[str, Any] = {}
        self._actors: list[Any] = []

    def send_to(self, actor: Any) -> Any:
        """Send the fit to an actor; return what Ray gives for the `Answer`."""
        answer = actor.add.remote(self.number, self._sent, self.examples)
        if self.kept:
            actor.load_state_dict.remote(self.number, self.kept)
        self._actors.append(actor)
        return answer

    def leave(self, actor: Any) -> None:
        """Note that an actor does not have the fit any more."""
        self._actors.remove(actor)

    def keep(self, state: dict[str, Any]) -> None:
        """Restore a state in all actors."""
        self.kept = state
        for actor in self._actors:
            actor.load_state_dict.remote(self.number, state)

    def note(self, number: int, state: dict[str, Any]) -> None:
        """Take up the state of an actor's executor: all keep to the smallest stacks."""
        most, before = state.get("max_batch"), self.kept.get("max_batch")
        if most is None or (before is not None and before <= most):
            return
        # The actor's own warning stays there.
        rank_zero_warn(
            f"RayExecutor: memory ran out in actor {number}; the stacks of all actors hold at most "
            f"{most} clients from now on. Another size may change the last bits of results; for "
            "the same bits in every run write "
            f"RayExecutor(executor=VectorizedExecutor(max_batch={most}))"
        )
        self.keep(state)

    def versions(self, jobs: Sequence[Job]) -> list[SentVersion]:
        """The versions that jobs have pulled; new ones are put into the object store together."""
        found: list[SentVersion] = []
        new: dict[tuple[int, ...], tuple[Tensor | None, ...]] = {}
        for job in jobs:
            tensors = _tensors(job.pulled)
            key = tuple(map(id, tensors))
            known = self._versions.get(key)
            if known is None or not known[0].hold(tensors):
                new[key] = tensors
        if new:
            # Those that the server has released leave the store, too.
            self._versions = {
                key: each for key, each in self._versions.items() if not each[0].is_gone
            }
            # Each call of Ray costs as much as it takes to copy a small model.
            bundle = self._ray.put([Packed.of(tensors) for tensors in new.values()])
            for place, (key, tensors) in enumerate(new.items()):
                sent = SentVersion(next(self._numbers), bundle, place)
                self._versions[key] = Marks(tensors), sent
            self.traffic.versions += len(new)
        for job in jobs:
            found.append(self._versions[tuple(map(id, _tensors(job.pulled)))][1])
        return found

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
        fits_of: All fits, by the workplaces that jobs name.
        started: Ray's answer once the actor has started.
        answers: Ray's answers to parcels, and the fits of those.
        seconds: How long the computation of the last parcel took.
    """

    number: int
    actor: Any
    ray: Any
    fits_of: Mapping[Workplace | None, SentFit]
    answers: deque[tuple[Any, SentFit]] = field(default_factory=deque)
    seconds: float = 0.0
    _is_there: bool = False
    _has: dict[int, SentFit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.started = self.actor.place.remote()

    @property
    def is_there(self) -> bool:
        """Whether it has started, or died already."""
        if not self._is_there:
            self._is_there = bool(self.ray.wait([self.started], timeout=0)[0])
        return self._is_there

    @property
    def name(self) -> str:
        """Its number, and its process and node once it has started."""
        if not self.is_there:
            return f"actor {self.number}"
        try:
            process, node = self.ray.get(self.started)
        except self.ray.exceptions.RayActorError:
            return f"actor {self.number} (which has died)"
        return f"actor {self.number} (process {process} on {node})"

    def fits(self, jobs: Sequence[Job]) -> bool:
        """Any actor fits: what it does not have is sent with the jobs."""
        return True

    def take(self, fit: SentFit) -> Any:
        """Send a fit; return what Ray gives for the `Answer`."""
        self._has[fit.number] = fit
        return fit.send_to(self.actor)

    def forget(self, fit: SentFit) -> None:
        """Let the actor release a fit that is over."""
        if self._has.pop(fit.number, None) is not None:
            self.actor.forget.remote(fit.number)

    def send(self, jobs: Sequence[Job]) -> None:
        """Send a parcel of jobs."""
        sent: list[SentJob] = []
        settings: dict[int, bytes] = {}
        fit = self.fits_of[jobs[0].work]
        if fit.number not in self._has:
            self.take(fit)
        own = [job.client_state for job in jobs if job.client_state is not None]
        pulled = fit.versions(jobs)
        for job, version in zip(jobs, pulled, strict=True):
            known, some = fit.settings(job)
            settings.update(some)
            sent.append(SentJob(job.task, version.number, known, job.client_state is not None))
        fit.traffic.tasks += len(sent)
        fit.traffic.sent += sum(each.nbytes for each in own)
        bundles = list(dict.fromkeys(each.bundle for each in pulled))
        places = {each.number: (bundles.index(each.bundle), each.place) for each in pulled}
        message = pickle.dumps(SentJobs(sent, settings, places))
        states = [each.cpu().view(torch.uint8).numpy() for each in own]
        # In a list, the references are passed on and not what they refer to.
        given = fit.number, message, bundles, states
        self.answers.append((self.actor.run.remote(*given), fit))

    def receive(self) -> list[Outcome]:
        """The outcomes of the earliest parcel."""
        errors = self.ray.exceptions
        try:
            reference, fit = self.answers[0]
            message, blocks = self.ray.get(reference)
        except (errors.RayActorError, errors.ObjectLostError) as error:
            reason = str(error).strip().splitlines()
            raise WorkerLost(
                f"actor {self.number} has died ({reason[0] if reason else type(error).__name__}); "
                "where memory is short, write a smaller max_batch"
            ) from error
        except errors.RayTaskError as error:
            said = [line for line in str(error).splitlines() if "CUDA error" in line]
            if not said:
                raise
            # Nothing can be computed in a process after one.
            raise WorkerLost(
                f"the GPU of actor {self.number} has failed ({said[-1].strip()})"
            ) from error
        self.answers.popleft()
        answer: SentOutcomes = pickle.loads(message)
        self.seconds = answer.seconds
        fit.note(self.number, answer.state)
        traffic = fit.traffic
        traffic.sent += answer.fetched
        results = iter(blocks)
        found: list[Outcome] = []
        for each in answer.outcomes:
            if isinstance(each, ClientError):
                found.append(each)
            else:
                traffic.received += each.shape.nbytes
                found.append(each.result(next(results), fit.device))
        return found

    def stop(self) -> None:
        """End the actor."""
        for fit in self._has.values():
            fit.leave(self.actor)
        self._has.clear()
        self.ray.kill(self.actor)


def with_news(ray: Any, workers: Sequence[ActorWorker], timeout: float) -> list[ActorWorker]:
    """The actors that have answered or died, after `timeout` seconds at the latest."""
    asked = {worker.answers[0][0]: worker for worker in workers}
    ready, _ = ray.wait([*asked], num_returns=1, timeout=timeout)
    if ready and len(asked) > 1:
        ready, _ = ray.wait([*asked], num_returns=len(asked), timeout=0)
    return [asked[each] for each in ready]
