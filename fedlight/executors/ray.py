"""Local runs on a Ray cluster. Actors that hold the data compute shares of each list of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_warn

from fedlight._support.checks import positive, positive_int
from fedlight.executors._choice.choose_executor import check_executor
from fedlight.executors._remote.actor import Actor, SentWorkplace, job_on, result_on, unsent
from fedlight.executors._remote.cluster import (
    Cluster,
    Wanted,
    checked_gpus,
    import_ray,
    share_of_gpus,
)
from fedlight.executors._remote.sent_settings import to_bytes
from fedlight.executors.base import ClientError, Executor, Job, Outcome, Workplace
from fedlight.executors.processes import ProcessExecutor

if TYPE_CHECKING:
    from fedlight._module.settings import Settings

_TRIES = 3
_SETTINGS = 64  # settings of the module that keep their number
_PATIENCE = 60.0  # seconds


class RayExecutor(Executor):
    """Sends shares of each list of jobs to actors on a Ray cluster.

    The data go to the object store once. An actor that dies is replaced, and its share is computed
    again.

    Who computes which job depends only on the jobs' numbers of steps, their order in the list and
    `num_actors`; an actor splits its share by `executor` alone. Neither the load of the machines
    nor the order in which actors finish plays a part. A run therefore gives the same bits whenever
    it has the same `num_actors`, `executor` and `num_cpus` on machines of one kind. If the actors'
    executor is `independent` (the sequential one is), so is this one, and the number of actors
    changes no bit either.

    In a step, ``self.trainer`` answers from the task and from the trainer's settings; metrics,
    loggers and callbacks lie in the main process and are refused.

    Ray pays for heavy clients or on many machines: small models are faster in one process
    (`VectorizedExecutor`).

    Args:
        num_actors: Number of actors, each a process of its own.
        executor: The executor of each actor: "auto", "sequential", "vectorized" or an `Executor`.
        max_batch: Largest number of clients in flight at once, over all actors.
        num_cpus: CPU cores (and torch threads) of an actor.
        num_gpus: GPUs of an actor, a whole number or a part of one; None to share the GPUs of the
            cluster evenly, so that as few actors as possible are on one of them.
        address: A cluster to join; None to use the one that is running, or else to start one here.

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
        # For "auto" the actors know only after they have tried the module: `setup` asks them.
        self.independent = self.executor == "sequential" or (
            isinstance(self.executor, Executor) and self.executor.independent
        )
        self._ray = import_ray("RayExecutor")
        self.num_replaced = 0
        self._kept: list[dict[str, Any]] = []  # by actor; after the end too, for a checkpoint

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
        self._device, self._live = workplace.state.device, workplace.settings
        self._numbers: dict[int, Settings] = {}
        self._counter = count()
        cores = max(2, round(self.num_actors * self.num_cpus))
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
        self._make = partial(make, held, gpus > 0)
        self._actors = [self._make() for _ in range(self.num_actors)]
        self._kept = [{} for _ in self._actors]
        self._check_actors()
        self.independent = all(ray.get([actor.independent.remote() for actor in self._actors]))

    def _check_room(self, gpus: float) -> None:
        """Refuse actors for which the cluster has no room; say so if others use it."""
        less = "num_actors, num_cpus or num_gpus" if gpus > 0 else "num_actors or num_cpus"
        wanted = Wanted("RayExecutor", "actor", self.num_actors, self.num_cpus, gpus, less)
        self._cluster.check_room(wanted)

    def _check_actors(self) -> None:
        """Wait until all actors are there, and say so if others hold the cores that they need.

        Raises:
            ValueError: One of them cannot run the module, the data or the local optimizer.
        """
        ray = self._ray
        answers = [actor.refusal.remote() for actor in self._actors]
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
        for actor in self._actors:
            self._ray.kill(actor)
        del self._actors, self._make, self._live, self._numbers
        self._cluster.close()

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Compute jobs.

        Returns:
            Their results in the same order, with a `ClientError` in place of each that failed.

        Raises:
            RuntimeError: Three actors in a row died while computing the same share.
        """
        outcomes: dict[int, Outcome] = {}
        shares = [share for share in _shares(jobs, self.num_actors) if share]
        parts = [[jobs[index] for index in share] for share in shares]
        # All shares are sent before the first result is awaited, so the actors work side by side.
        sent = [self._send(number, part) for number, part in enumerate(parts)]
        for number, share in enumerate(shares):
            received = self._receive(number, parts[number], sent[number])
            outcomes.update(zip(share, received, strict=True))
        return [outcomes[index] for index in range(len(jobs))]

    def state_dict(self) -> dict[str, Any]:
        """The states of the actors' executors, if any has one."""
        return {"actors": self._kept} if any(self._kept) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore in each actor the state of the actor with the same number."""
        for number, kept in enumerate(state.get("actors", ())[: self.num_actors]):
            self._kept[number] = kept
            self._actors[number].load_state_dict.remote(kept)

    def _send(self, number: int, jobs: list[Job]) -> Any:
        settings: dict[int, bytes] = {}
        sent = [self._to_send(job, settings) for job in jobs]
        return self._actors[number].run.remote(sent, settings)

    def _to_send(self, job: Job, settings: dict[int, bytes]) -> Job:
        """A job with the number of its settings, which are added to `settings`."""
        live, own, sent = self._live, job.pulled.settings, job_on(job, "cpu")
        if live is None or own is None or own is live.start:
            return sent._replace(pulled=replace(sent.pulled, settings=None))
        known = next((n for n, each in self._numbers.items() if each is own), None)
        if known is None:
            known = next(self._counter)
            self._numbers[known] = own
            self._numbers = dict([*self._numbers.items()][-_SETTINGS:])
        settings[known] = to_bytes(live, own, self._ray.cloudpickle)
        return sent._replace(pulled=replace(sent.pulled, settings=known))

    def _receive(self, number: int, jobs: list[Job], reference: Any) -> list[Outcome]:
        for _ in range(_TRIES):
            try:
                results, kept = self._ray.get(reference)
            except self._ray.exceptions.RayActorError:
                # A new actor with the state of the old one computes the share again: the same bits.
                self._actors[number] = self._make()
                self._actors[number].load_state_dict.remote(self._kept[number])
                self.num_replaced += 1
                reference = self._send(number, jobs)
            else:
                most = kept.get("max_batch")
                if most != self._kept[number].get("max_batch"):  # its own warning stays there
                    rank_zero_warn(
                        f"RayExecutor: memory ran out in actor {number}, whose stacks hold at most "
                        f"{most} clients from now on. Another size may change the last bits of "
                        "results; for the same bits in every run write "
                        f"RayExecutor(executor=VectorizedExecutor(max_batch={most}))"
                    )
                self._kept[number] = kept
                return [
                    each if isinstance(each, ClientError) else result_on(each, self._device)
                    for each in results
                ]
        raise RuntimeError(
            f"an actor died {_TRIES} times over the same {len(jobs)} clients; it may lack memory: "
            f"give RayExecutor a smaller max_batch (now {self.max_batch})"
        )

    def __repr__(self) -> str:
        return f"RayExecutor(num_actors={self.num_actors}, executor={self.executor!r})"


def _shares(jobs: Sequence[Job], num_actors: int) -> list[list[int]]:
    """Which jobs go to which actor: the longest first, each to the actor with the fewest steps.

    The shares depend on the numbers of steps and their order alone. The bits of a stack must not
    depend on how fast the actors are.
    """
    shares: list[list[int]] = [[] for _ in range(num_actors)]
    loads = [0] * num_actors
    for index in sorted(range(len(jobs)), key=lambda index: -jobs[index].task.num_steps):
        least = loads.index(min(loads))
        shares[least].append(index)
        loads[least] += jobs[index].task.num_steps
    return [sorted(share) for share in shares]
