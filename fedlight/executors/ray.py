"""Local runs on a Ray cluster. Actors that hold the data compute shares of each list of jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from fedlight._support.checks import positive, positive_int
from fedlight.executors._choice.choose_executor import check_executor
from fedlight.executors._remote.actor import Actor, SentWorkplace, unsent
from fedlight.executors._remote.actor_worker import ActorWorker, ObjectStore, with_news
from fedlight.executors._remote.cluster import (
    Cluster,
    Wanted,
    checked_gpus,
    import_ray,
    share_of_gpus,
)
from fedlight.executors._remote.crew import Crew, Traffic
from fedlight.executors.base import Executor, Job, Outcome, Workplace, results_within
from fedlight.executors.processes import ProcessExecutor

_PATIENCE = 60.0  # seconds


class RayExecutor(Executor):
    """Sends local runs to actors on a Ray cluster.

    The data go to the object store once, and each version of the model goes to an actor once. The
    actors are fed ahead: a local run begins as soon as an actor is free and the version that it
    pulls is there, those that arrive next first, and the server waits only for what it uses. An
    actor that dies is replaced, and only its own local runs are computed again; one that is silent
    for long is named in a warning.

    The number of actors and the speed of the machines change no bit, on machines of one kind. If
    the actors' executor is `independent` (the sequential one is), so is this one. Else the bits of
    a stack may depend on its members (convolutions in a stack, a GPU): then the schedule, `share`
    and `max_batch` decide who is computed together, and neither the load of the machines nor the
    order in which actors finish.

    In a step, ``self.trainer`` answers from the task and from the trainer's settings; metrics,
    loggers and callbacks lie in the main process and are refused.

    Ray pays for heavy clients or on many machines: small models are faster in one process
    (`VectorizedExecutor`).

    Args:
        num_actors: Number of actors, each a process of its own.
        executor: The executor of each actor: "auto", "sequential", "vectorized" or an `Executor`.
        max_batch: Largest number of local runs that are computed, or with actors, ahead of their
            arrival.
        num_cpus: CPU cores (and torch threads) of an actor.
        num_gpus: GPUs of an actor, a whole number or a part of one; None to share the GPUs of the
            cluster evenly, so that as few actors as possible are on one of them.
        address: A cluster to join; None to use the one that is running, or else to start one here.
        share: Largest number of local runs that an actor gets at once. Where they are independent,
            an actor gets as few as its messages are worth: one, if it takes long.
        max_bytes: Bytes that results ahead of their arrival may take, where they are independent;
            at least two per actor are ahead.

    Attributes:
        traffic: What has crossed between the processes since the last `setup`: the number of
            ``tasks``, the bytes of tensors ``sent`` and ``received``, and how many ``versions``.
        num_replaced: How many actors have died in the last fit.

    Raises:
        ImportError: Ray is not installed.
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range.
    """

    tries_itself = True

    def __init__(
        self,
        num_actors: int = 2,
        executor: Executor | str = "auto",
        max_batch: int = 256,
        num_cpus: float = 1.0,
        num_gpus: float | None = None,
        address: str | None = None,
        share: int = 64,
        max_bytes: int = 2**30,
    ) -> None:
        self.num_actors = positive_int("num_actors", num_actors)
        self.executor = check_executor(executor)
        several = isinstance(self.executor, RayExecutor | ProcessExecutor)
        if several or self.executor == "processes":
            raise ValueError(
                f"executor must be the executor of one actor, a single process, got {executor!r}; "
                "for example executor='vectorized'"
            )
        self.max_batch = positive_int("max_batch", max_batch)
        self.num_cpus = positive("num_cpus", num_cpus)
        self.num_gpus = None if num_gpus is None else checked_gpus(num_gpus)
        self.address = address
        self.share = positive_int("share", share)
        self.max_bytes = positive_int("max_bytes", max_bytes)
        # For "auto" the actors know only after they have tried the module: `setup` asks them.
        self.independent = self.executor == "sequential" or (
            isinstance(self.executor, Executor) and self.executor.independent
        )
        self._ray = import_ray("RayExecutor")
        self.traffic, self.num_replaced = Traffic(), 0
        self._kept: dict[str, Any] = {}  # after the end too, for a checkpoint

    def setup(self, workplace: Workplace) -> None:
        """Start the actors, each with the module and the data.

        Raises:
            ValueError: An actor cannot run the module, the data or the local optimizer; or the
                cluster has fewer CPU cores or GPUs than the actors ask for, which would never
                start.
        """
        ray = self._ray
        # A module that cannot be copied is refused before Ray starts.
        sent = SentWorkplace.of(workplace, self.executor, round(self.num_cpus))
        store = ObjectStore(ray, workplace.settings)
        self.traffic = store.traffic
        cores = max(2, math.ceil(self.num_actors * self.num_cpus))
        self._cluster = Cluster(ray, self.address, cores)
        try:
            there = self._cluster.resources()
            gpus = self.num_gpus
            if gpus is None:
                gpus = share_of_gpus(int(there.get("GPU", 0)), self.num_actors)
            self._check_room(gpus)
            make = ray.remote(Actor).options(num_cpus=self.num_cpus, num_gpus=gpus).remote
            try:
                held = ray.put(sent)
            except Exception as error:
                raise unsent(workplace.module, error) from error
        except Exception:
            self._cluster.close()
            raise
        self._kept = {}
        given = (ray, store, workplace.state.device, self._note)

        def hire(number: int, _: Sequence[Job]) -> ActorWorker:
            actor = make(held, gpus > 0)
            if self._kept:
                actor.load_state_dict.remote(self._kept)
            return ActorWorker(number, actor, *given)

        crew = Crew(hire, partial(with_news, ray), self.num_actors)
        actors = [worker.actor for worker in crew.workers]
        try:
            self._check_actors(actors)
        except BaseException:
            crew.stop()
            self._cluster.close()
            raise
        self.crew = crew
        self.independent = all(ray.get([actor.independent.remote() for actor in actors]))
        stacks = any(ray.get([actor.stacks.remote() for actor in actors]))
        self.parcel = self.share if stacks or self.independent else 1
        state = workplace.state.read()
        self.max_ahead = results_within(self.max_bytes, state, self.max_batch, self.num_actors)

    def _check_room(self, gpus: float) -> None:
        """Refuse actors for which the cluster has no room; say so if others use it."""
        less = "num_actors, num_cpus or num_gpus" if gpus > 0 else "num_actors or num_cpus"
        wanted = Wanted("RayExecutor", "actor", self.num_actors, self.num_cpus, gpus, less)
        self._cluster.check_room(wanted)

    def _check_actors(self, actors: Sequence[Any]) -> None:
        """Wait until all actors are there, and say so if others hold the cores that they need.

        Raises:
            ValueError: One of them cannot run the module, the data or the local optimizer.
        """
        ray = self._ray
        answers = [actor.refusal.remote() for actor in actors]
        ready, _ = ray.wait(answers, num_returns=len(answers), timeout=_PATIENCE)
        if len(ready) < len(answers):
            rank_zero_warn(
                f"RayExecutor: {len(ready)} of {len(answers)} actors have started in {_PATIENCE:g} "
                f"s; the others wait for {self.num_cpus:g} free CPU cores each"
            )
        for refused in ray.get(answers):
            if refused:
                raise ValueError(refused)

    def teardown(self) -> None:
        """Stop the actors, and the cluster if it was started here."""
        if self.crew is not None:
            self.num_replaced = self.crew.num_replaced
            self.crew.stop()
        self.crew = None
        self._cluster.close()

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Compute jobs.

        Returns:
            Their results in the same order, with a `ClientError` in place of each that failed.

        Raises:
            RuntimeError: Three actors in a row died while computing the same jobs.
        """
        assert self.crew is not None
        # The longest first: one that starts last would leave the other actors idle.
        order = sorted(range(len(jobs)), key=lambda index: -jobs[index].task.num_steps)
        parts = [order[at : at + self.parcel] for at in range(0, len(order), self.parcel)]
        parcels = self.crew.run([[jobs[index] for index in part] for part in parts])
        found: dict[int, Outcome] = {}
        for part, outcomes in zip(parts, parcels, strict=True):
            found.update(zip(part, outcomes, strict=True))
        return [found[index] for index in range(len(jobs))]

    def state_dict(self) -> dict[str, Any]:
        """The state of the actors' executors, if there is any."""
        return self._kept

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state in all actors."""
        # Older checkpoints have one for each actor.
        states = [each for each in state.get("actors", [state]) if each]
        if states:
            self._keep(min(states, key=lambda each: each["max_batch"]))

    def _keep(self, state: dict[str, Any]) -> None:
        assert self.crew is not None
        self._kept = state
        for worker in self.crew.workers:
            worker.actor.load_state_dict.remote(state)

    def _note(self, number: int, state: dict[str, Any]) -> None:
        """Take up the state of an actor's executor: all keep to the smallest stacks."""
        most, before = state.get("max_batch"), self._kept.get("max_batch")
        if most is None or (before is not None and before <= most):
            return
        # The actor's own warning stays there.
        rank_zero_warn(
            f"RayExecutor: memory ran out in actor {number}; the stacks of all actors hold at most "
            f"{most} clients from now on. Another size may change the last bits of results; for "
            "the same bits in every run write "
            f"RayExecutor(executor=VectorizedExecutor(max_batch={most}))"
        )
        self._keep(state)

    def __repr__(self) -> str:
        return f"RayExecutor(num_actors={self.num_actors}, executor={self.executor!r})"
