"""Local runs on a Ray cluster. Actors that hold the data compute shares of each list of jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch.utilities import rank_zero_warn

from fedlight._module.moment import Moment, moment_of
from fedlight._support.checks import non_negative, positive, positive_int
from fedlight.executors._choice.choose import check_executor, resolve_executor
from fedlight.executors._remote.failure import Failure
from fedlight.executors.base import ClientError, Executor, Job, Outcome, Workplace
from fedlight.executors.processes import ProcessExecutor
from fedlight.parameters import ModuleState
from fedlight.types import LocalResult

if TYPE_CHECKING:
    from lightning import LightningModule

    from data_partitioners import Partition
    from fedlight.local_optimizers import LocalOptimizer

_TRIES = 3
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
        self.num_gpus = None if num_gpus is None else _gpus(num_gpus)
        self.address = address
        # for "auto" the actors know only after they have tried the module: `setup` asks them
        self.independent = self.executor == "sequential" or (
            isinstance(self.executor, Executor) and self.executor.independent
        )
        self._ray = _import_ray()
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
        # What cannot be copied is refused before Ray starts.
        share = _Share.of(workplace, self.executor, round(self.num_cpus), on_gpu=False)
        self._started_here = not ray.is_initialized()
        if self._started_here:
            ray.init(
                address=self.address,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                num_cpus=None if self.address else max(2, round(self.num_actors * self.num_cpus)),
            )
        there = ray.cluster_resources()
        self._device = workplace.state.device
        gpus = self.num_gpus
        if gpus is None:
            gpus = _share_of_gpus(int(there.get("GPU", 0)), self.num_actors)
        self._check_room(there, gpus)
        self._make = ray.remote(_Actor).options(num_cpus=self.num_cpus, num_gpus=gpus).remote
        try:
            self._share = ray.put(replace(share, on_gpu=gpus > 0))
        except Exception as error:
            if self._started_here:
                ray.shutdown()
            raise _unsent(workplace.module, error) from error
        self._actors = [self._make(self._share) for _ in range(self.num_actors)]
        self._kept = [{} for _ in self._actors]
        self._check_actors()
        self.independent = all(ray.get([actor.independent.remote() for actor in self._actors]))

    def _check_room(self, there: Mapping[str, float], gpus: float) -> None:
        """Refuse actors for which the cluster has no room: they would never start."""
        cores, cards = float(there.get("CPU", 0)), int(there.get("GPU", 0))
        if self.num_actors * self.num_cpus > cores:
            words, asked, found = "CPU cores", self.num_cpus, cores
        elif self.num_actors > _room(cards, gpus):
            words, asked, found = "GPUs", gpus, cards
        else:
            return
        if self._started_here:
            self._ray.shutdown()
        raise ValueError(
            f"{self.num_actors} actors of {asked:g} {words} each would wait for ever in a cluster "
            f"of {found:g}: write a smaller num_actors or num_{words.split()[0].lower()}s, or add "
            "nodes first"
        )

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
        del self._actors, self._share, self._make
        if self._started_here:
            self._ray.shutdown()

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Compute jobs.

        Returns:
            Their results in the same order, with a `ClientError` in place of each that failed.

        Raises:
            RuntimeError: Three actors in a row died while computing the same share.
        """
        outcomes: dict[int, Outcome] = {}
        shares = [share for share in _shares(jobs, self.num_actors) if share]
        waiting = [
            (number, self._send(number, [jobs[index] for index in share]))
            for number, share in enumerate(shares)
        ]
        for number, reference in waiting:
            share = shares[number]
            results = self._receive(number, [jobs[index] for index in share], reference)
            for index, result in zip(share, results, strict=True):
                outcomes[index] = self._outcome(jobs[index], result)
        return [outcomes[index] for index in range(len(jobs))]

    def state_dict(self) -> dict[str, Any]:
        """What the actors' executors must know of this run, if it is anything."""
        return {"actors": self._kept} if any(self._kept) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let each actor take up what the one with its number gave before a checkpoint."""
        for number, kept in enumerate(state.get("actors", ())[: self.num_actors]):
            self._kept[number] = kept
            self._actors[number].load_state_dict.remote(kept)

    def _send(self, number: int, jobs: list[Job]) -> Any:
        return self._actors[number].run.remote([_on(job, "cpu") for job in jobs])

    def _receive(self, number: int, jobs: list[Job], reference: Any) -> list[Any]:
        for _ in range(_TRIES):
            try:
                results, kept = self._ray.get(reference)
            except self._ray.exceptions.RayActorError:
                self._actors[number] = self._make(self._share)
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
                return cast("list[Any]", results)
        raise RuntimeError(
            f"an actor died {_TRIES} times over the same {len(jobs)} clients; it may lack memory: "
            f"give RayExecutor a smaller max_batch (now {self.max_batch})"
        )

    def _outcome(self, job: Job, result: LocalResult | Failure) -> Outcome:
        if isinstance(result, Failure):
            return result.error(job.task, "a Ray actor")
        return _result_on(result, self._device)

    def __repr__(self) -> str:
        return f"RayExecutor(num_actors={self.num_actors}, executor={self.executor!r})"


@dataclass(frozen=True, slots=True, eq=False)
class _Share:
    """A workplace in the form in which it is sent to an actor."""

    module: LightningModule
    optimizer: LocalOptimizer
    partition: Partition
    examples: Any
    batch_size: int
    seed: int
    autocast: Callable[[], AbstractContextManager[Any]]
    executor: Executor | str
    num_threads: int
    on_gpu: bool
    trainer: Moment | None

    @classmethod
    def of(
        cls, work: Workplace, executor: Executor | str, num_threads: int, on_gpu: bool
    ) -> _Share:
        module = _copy(work.module)
        examples = work.examples.to("cpu", work.state.param_layout.dtype)
        return cls(
            module,
            work.optimizer,
            work.partition,
            examples,
            work.batch_size,
            work.seed,
            work.autocast,
            executor,
            max(1, num_threads),
            on_gpu,
            moment_of(work.module).for_actor(),
        )


def _copy(module: LightningModule) -> LightningModule:
    """The module on the CPU, without what belongs to this process.

    Raises:
        ValueError: Something in it cannot be copied; names it.
    """
    fabric, trainer = module._fabric, module._trainer
    module.fabric = module.trainer = None
    try:
        copied = deepcopy(module).cpu()
        for name in ("log", "log_dict"):  # of the run here; an actor records by itself
            vars(copied).pop(name, None)
        return copied
    except Exception as error:
        raise _unsent(module, error) from error
    finally:
        module.trainer, module.fabric = trainer, fabric


def _unsent(module: LightningModule, error: Exception) -> ValueError:
    names = []
    for path, child in module.named_modules():
        for name, value in vars(child).items():
            if name in ("_modules", "_fabric"):
                continue
            try:
                deepcopy(value)
            except Exception:  # whatever a copy raises, it is the one that cannot be sent
                names.append(f"{path}.{name}".lstrip("."))
    where = f"; look at {', '.join(map(repr, names))}" if names else ""
    return ValueError(
        f"{type(module).__name__} cannot be sent to a Ray actor ({error}){where}: make locks, open "
        "files and the like in the step, or leave them out in the module's __getstate__"
    )


class _Actor:
    """Holds the module and the data, and computes the jobs that it is sent."""

    def __init__(self, share: _Share) -> None:
        torch.set_num_threads(share.num_threads)
        device = torch.device("cuda" if share.on_gpu else "cpu")
        module = share.module.to(device)
        module.trainer = share.trainer  # type: ignore[assignment]  # a copy of a module has none
        state = ModuleState(module)
        work = Workplace(
            module=module,
            state=state,
            optimizer=share.optimizer,
            partition=share.partition,
            examples=share.examples.to(device, state.param_layout.dtype),
            batch_size=share.batch_size,
            seed=share.seed,
            autocast=share.autocast,
        )
        self._device, self._refusal = device, ""
        try:
            self._executor, _ = resolve_executor(share.executor, work)
        except ValueError as error:
            self._refusal = str(error)

    def refusal(self) -> str:
        return self._refusal

    def independent(self) -> bool:
        return self._executor.independent

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._executor.load_state_dict(state)

    def run(self, jobs: Sequence[Job]) -> tuple[list[LocalResult | Failure], dict[str, Any]]:
        outcomes = self._executor.run([_on(job, self._device) for job in jobs])
        return [_sent(outcome) for outcome in outcomes], self._executor.state_dict()


def _gpus(value: object) -> float:
    """`num_gpus`, if Ray takes it.

    Raises:
        TypeError: It is no number.
        ValueError: It is negative, or neither whole nor below 1.
    """
    number = non_negative("num_gpus", value)
    if number > 1 and number % 1:
        raise ValueError(
            f"num_gpus must be a whole number, or a part of a GPU below 1, got {value!r}"
        )
    return number


def _share_of_gpus(cards: int, actors: int) -> float:
    """GPUs of an actor such that all fit: one, or what is left of one that several share.

    A GPU cannot be put together from parts of two. So three actors on two GPUs get a half each,
    not two thirds, of which only two would start.
    """
    if cards == 0:
        return 0.0
    each = -(-actors // cards)
    share = 1 / each
    # Ray counts in units of 1/10000.
    return math.floor(share * 10_000) / 10_000


def _room(cards: int, gpus: float) -> float:
    """How many actors with so many GPUs each fit on the cards."""
    if gpus == 0:
        return math.inf
    return cards // gpus if gpus >= 1 else cards * math.floor(1 / gpus + 1e-9)


def _shares(jobs: Sequence[Job], num_actors: int) -> list[list[int]]:
    """Which jobs go to which actor: the longest first, each to the actor with the fewest steps.

    A function of the numbers of steps and their order alone, so that a share, and with it the bits
    of a stack, does not depend on how fast the actors are.
    """
    shares: list[list[int]] = [[] for _ in range(num_actors)]
    loads = [0] * num_actors
    for index in sorted(range(len(jobs)), key=lambda index: -jobs[index].task.num_steps):
        least = loads.index(min(loads))
        shares[least].append(index)
        loads[least] += jobs[index].task.num_steps
    return [sorted(share) for share in shares]


def _on(job: Job, device: torch.device | str) -> Job:
    pulled = job.pulled
    moved = replace(
        pulled,
        params=pulled.params.to(device),
        buffers=pulled.buffers.to(device),
        counters=pulled.counters.to(device),
        shared=None if pulled.shared is None else pulled.shared.to(device),
    )
    own = None if job.client_state is None else job.client_state.to(device)
    return Job(job.task, moved, own)


def _result_on(result: LocalResult, device: torch.device | str) -> LocalResult:
    state = result.client_state
    return result._replace(
        delta=result.delta.to(device),
        buffers=result.buffers.to(device),
        counters=result.counters.to(device),
        client_state=None if state is None else state.to(device),
        measured=None,  # it refers to the tensor before the move
    )


def _sent(outcome: Outcome) -> LocalResult | Failure:
    """An outcome on the CPU. Rows are copied: a view would send the whole block of its stack."""
    if isinstance(outcome, ClientError):
        return Failure.of(outcome)
    result = _result_on(outcome, "cpu")
    state = result.client_state
    return result._replace(
        delta=result.delta.clone(),
        buffers=result.buffers.clone(),
        counters=result.counters.clone(),
        metrics=dict(result.metrics),
        client_state=None if state is None else state.clone(),
    )


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ImportError("RayExecutor needs the package ray: pip install ray") from error
    return ray
