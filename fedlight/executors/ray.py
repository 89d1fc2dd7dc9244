"""Local runs on a Ray cluster, on actors that hold the data and are fed ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from fedlight._support.checks import positive, positive_int
from fedlight.executors._choice.choose_executor import check_executor
from fedlight.executors._remote.actor import Answer, SentWorkplace
from fedlight.executors._remote.actor_team import ActorNeeds, ActorTeam
from fedlight.executors._remote.actor_worker import ActorWorker
from fedlight.executors._remote.cluster import checked_gpus, import_ray
from fedlight.executors._remote.crew import Traffic, run_in_parcels
from fedlight.executors._remote.shared_crew import SharedCrew
from fedlight.executors.base import (
    Executor,
    Job,
    Outcome,
    Workplace,
    refuse_second_fit,
    results_within,
)
from fedlight.executors.processes import ProcessExecutor
from fedlight.local_optimizers.base import state_size

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
        share: Largest number of local runs that an actor gets at once. One that computes them one
            after another gets as few as its messages are worth: one, if that takes long.
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
    shared: SharedCrew[ActorTeam] | None = None
    """Actors that other fits use, too; None for actors of its own."""

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
        if address is not None and (not isinstance(address, str) or not address):
            raise TypeError(f'address must name a cluster, such as "auto", got {address!r}')
        self.address = address
        self.share = positive_int("share", share)
        self.max_bytes = positive_int("max_bytes", max_bytes)
        # For "auto" the actors know only after they have tried the module: `setup` asks them.
        self.independent = self.executor == "sequential" or (
            isinstance(self.executor, Executor) and self.executor.independent
        )
        self._ray = import_ray("RayExecutor")
        self.traffic, self.num_replaced = Traffic(), 0
        self._kept: dict[str, Any] | None = {}  # after the end, for a checkpoint

    def setup(self, workplace: Workplace) -> None:
        """Start the actors, each with the module and the data.

        Raises:
            ValueError: An actor cannot run the module, the data or the local optimizer; or the
                cluster has fewer CPU cores or GPUs than the actors ask for, which would never
                start.
        """
        refuse_second_fit(self)
        ray, shared = self._ray, self.shared
        # A module that cannot be copied is refused before Ray starts.
        sent = SentWorkplace.of(workplace, self.executor)
        team = self._new_team() if shared is None else shared.team
        named = None if shared is None else workplace
        try:
            if team.start():
                self._wait_for_actors(team.crew.workers)
            self._fit = team.add(named, workplace, sent)
            asked = team.crew.workers
            if shared is not None:  # the others have work to do, and get it with their first jobs
                asked = [min(asked, key=lambda worker: len(worker.answers))]
            answers: list[Answer] = ray.get([worker.take(self._fit) for worker in asked])
            self.independent = all(answer.independent for answer in answers)
            self._check(answers)
        except BaseException:
            if shared is None:
                team.close()
            else:
                team.drop(named)
            raise
        self._team, self._kept = team, None
        self.crew = team.crew if shared is None else shared.join(workplace)
        self.traffic = self._fit.traffic
        self.parcel = self.share
        self.few_at_once = not any(answer.stacks for answer in answers)
        most = self.max_bytes // (1 if shared is None else shared.most_fits)
        state = workplace.state.read()
        own = state_size(workplace.optimizer, state.params.numel())
        self.max_ahead = results_within(most, state, own, self.max_batch, self.num_actors)

    def team(self, most_fits: int) -> SharedCrew[ActorTeam]:
        """Actors that several fits have in common: each by an executor with them as `shared`.

        Args:
            most_fits: How many fits are under way at once at most.
        """
        return SharedCrew(self._new_team(), self.num_actors, most_fits)

    def _new_team(self) -> ActorTeam:
        needs = ActorNeeds(self.num_actors, self.num_cpus, self.num_gpus, self.address)
        return ActorTeam(self._ray, needs)

    def _wait_for_actors(self, workers: Sequence[ActorWorker]) -> None:
        """Wait until all actors are there, and say so if others hold the cores that they need."""
        started = [worker.started for worker in workers]
        ready, _ = self._ray.wait(started, num_returns=len(started), timeout=_PATIENCE)
        if len(ready) < len(started):
            rank_zero_warn(
                f"RayExecutor: {len(ready)} of {len(started)} actors have started in "
                f"{_PATIENCE:g} s; each of the others waits for a node with {self.num_cpus:g} CPU "
                "cores that are free"
            )

    def _check(self, answers: Sequence[Answer]) -> None:
        """Check what actors say of a fit.

        Raises:
            ValueError: One of them cannot run the module, the data or the local optimizer; or the
                bits of a result depend on others, which several fits would mix.
        """
        for answer in answers:
            if answer.refusal:
                raise ValueError(answer.refusal)
        if self.shared is not None and not self.independent:
            raise ValueError(
                f"the runs of a study cannot share the actors of {self!r}, as the last bits of a "
                "result depend on who is stacked with it: write workers=RayWorkers(…), or "
                "RayExecutor(…, executor='sequential')"
            )

    def teardown(self) -> None:
        """Stop the actors, and the cluster if it was started here; or leave them to others."""
        if self.crew is not None:
            self.num_replaced = self.crew.num_replaced
            self.crew.stop()
            self._kept = self._fit.kept
            del self._fit
        self.crew = None
        if self.shared is None:
            self._team.close()

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Compute jobs.

        Returns:
            Their results in the same order, with a `ClientError` in place of each that failed.

        Raises:
            RuntimeError: Three actors in a row died while computing the same jobs.
        """
        assert self.crew is not None
        return run_in_parcels(self.crew, jobs, self.parcel)

    def state_dict(self) -> dict[str, Any]:
        """The state of the actors' executors, if there is any."""
        return self._fit.kept if self._kept is None else self._kept

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state in all actors."""
        # Older checkpoints have one for each actor.
        states = [each for each in state.get("actors", [state]) if each]
        if states:
            self._fit.keep(min(states, key=lambda each: each["max_batch"]))

    def __repr__(self) -> str:
        return f"RayExecutor(num_actors={self.num_actors}, executor={self.executor!r})"
