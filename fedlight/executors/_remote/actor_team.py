"""The actors of a Ray cluster and the fits for which they compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from fedlight.data.examples import same_examples
from fedlight.executors._remote.actor import Actor, SentExamples, SentWorkplace, unsent
from fedlight.executors._remote.actor_worker import ActorWorker, SentFit, with_news
from fedlight.executors._remote.cluster import Cluster, Wanted, share_of_gpus
from fedlight.executors._remote.crew import Crew

if TYPE_CHECKING:
    from fedlight.executors.base import Job, Workplace


@dataclass(frozen=True, slots=True)
class ActorNeeds:
    """What actors need of a cluster.

    Attributes:
        num_actors: How many actors.
        num_cpus: CPU cores of each.
        num_gpus: GPUs of each; None to share those of the cluster evenly.
        address: The cluster; None for the one that is running, or one that is started here.
    """

    num_actors: int
    num_cpus: float
    num_gpus: float | None
    address: str | None


class ActorTeam:
    """Actors, and what they have of each fit.

    Args:
        ray: The package.
        needs: What the actors need.
    """

    def __init__(self, ray: Any, needs: ActorNeeds) -> None:
        self._ray, self._needs = ray, needs
        self._numbers = count()
        self._fits: dict[Workplace | None, SentFit] = {}
        self._examples: list[tuple[Any, SentExamples]] = []
        self._cluster: Cluster | None = None
        self._crew: Crew[ActorWorker] | None = None

    @property
    def crew(self) -> Crew[ActorWorker]:
        """The actors."""
        assert self._crew is not None
        return self._crew

    def start(self) -> bool:
        """Start the actors; return False if they are there already.

        Raises:
            ValueError: The cluster has no room for them.
        """
        if self._crew is not None:
            return False
        ray, needs = self._ray, self._needs
        cores = max(2, math.ceil(needs.num_actors * needs.num_cpus))
        self._cluster = Cluster(ray, needs.address, cores)
        try:
            there = self._cluster.resources()
            gpus = needs.num_gpus
            if gpus is None:
                gpus = share_of_gpus(int(there.get("GPU", 0)), needs.num_actors)
            less = "num_actors, num_cpus or num_gpus" if gpus > 0 else "num_actors or num_cpus"
            wanted = Wanted("RayExecutor", "actor", needs.num_actors, needs.num_cpus, gpus, less)
            self._cluster.check_room(wanted)
            make = ray.remote(Actor).options(num_cpus=needs.num_cpus, num_gpus=gpus).remote

            device = "cuda" if gpus > 0 else "cpu"  # an actor sees the GPUs that Ray gives it

            def hire(number: int, _: Sequence[Job]) -> ActorWorker:
                actor = make(device, max(1, round(needs.num_cpus)))
                return ActorWorker(number, actor, ray, self._fits)

            self._crew = Crew(hire, partial(with_news, ray), needs.num_actors)
        except BaseException:
            self.close()
            raise
        return True

    def add(self, named: Workplace | None, work: Workplace, sent: SentWorkplace) -> SentFit:
        """Make a fit ready to be sent: actors get it with its first jobs.

        Args:
            named: How its jobs name it (`Job.work`).
            work: What its local runs share.
            sent: The form in which that is sent.

        Raises:
            ValueError: Something in it cannot be sent.
        """
        examples = self._sent_examples(work)
        try:
            held = self._ray.put(sent)
        except Exception as error:
            raise unsent(work.module, error) from error
        parts = next(self._numbers), held, examples, work.settings, work.state.device
        fit = self._fits[named] = SentFit(self._ray, *parts)
        return fit

    def _sent_examples(self, work: Workplace) -> SentExamples:
        """The examples in the object store, where several fits have the same ones once."""
        given = work.examples.to("cpu", work.state.param_layout.dtype)
        found = next((e for own, e in self._examples if same_examples(own, given)), None)
        used = {fit.examples.number for fit in self._fits.values()}
        self._examples = [
            (own, each) for own, each in self._examples if each.number in used or each is found
        ]
        if found is None:
            try:
                held = self._ray.put(given)
            except Exception as error:
                raise unsent(work.module, error) from error
            found = SentExamples(next(self._numbers), partial(self._ray.get, held))
            self._examples.append((given, found))
        return found

    def drop(self, work: Workplace | None) -> None:
        """Release a fit, here and in the actors."""
        fit = self._fits.pop(work, None)
        if fit is not None and self._crew is not None:
            for worker in self._crew.workers:
                worker.forget(fit)

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        if self._crew is not None:
            self._crew.stop()
        if self._cluster is not None:
            self._cluster.close()
        self._crew = self._cluster = None
        self._fits.clear()
        self._examples.clear()
