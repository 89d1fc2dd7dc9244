"""Whole runs as tasks of a Ray cluster."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedlight._support.checks import non_negative, positive
from fedlight._support.voice import Note, speaking
from fedlight.studies._saying import StudyVoice
from fedlight.studies.one_run import OneRun, Surroundings
from fedlight.studies.runs import Planned, StudyRun
from fedlight.studies.workers import Over, Work, Workers, go_through

_LOOK = 0.5  # seconds between two looks at signals
_GRACE = 30.0  # seconds for runs that were cancelled


class RayWorkers(Workers):
    """Runs on a Ray cluster: each is a task that computes a whole run.

    The finished runs are kept by the process that calls `sweep`. A run under way writes its
    checkpoints to the study's folder if all nodes see it (`shared_folder`); else a study that was
    stopped begins those runs anew.

    Args:
        address: A cluster to join, such as "auto" or "ray://host:10001"; None to use the one that
            is running in this process, or else to start one here.
        num_cpus: CPU cores of a run.
        num_gpus: GPUs of a run, which may be a part of one.
        shared_folder: Whether the `path` of the study is a folder that all nodes share.

    Raises:
        ImportError: Ray is not installed.
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range.
    """

    def __init__(
        self,
        address: str | None = None,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
        shared_folder: bool = False,
    ) -> None:
        if address is not None and not isinstance(address, str):
            raise TypeError(f'address must name a cluster, such as "auto", got {address!r}')
        self.address = address
        self.num_cpus = positive("num_cpus", num_cpus)
        self.num_gpus = non_negative("num_gpus", num_gpus)
        self.shared_folder = bool(shared_folder)
        self._ray = _import_ray()

    def run(self, work: Work) -> None:
        """Compute runs."""
        ray = self._ray
        started_here = not ray.is_initialized()
        if started_here:
            ray.init(
                address=self.address,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
            )
        try:
            self._check_room(ray.cluster_resources())
            task = ray.remote(_work).options(
                num_cpus=self.num_cpus, num_gpus=self.num_gpus, max_retries=1
            )
            going: dict[Any, Planned] = {}
            for planned in work.free:
                try:
                    sent = ray.put(self._share(planned, work.shared))
                    going[task.remote(sent)] = planned
                except Exception as error:
                    work.over(_ended(planned, work.shared, planned.failed(error)))
            while going and not work.stopped():
                done, _ = ray.wait(list(going), num_returns=1, timeout=_LOOK)
                for each in done:
                    work.over(self._result(each, going.pop(each), work.shared))
                work.progress.tick([])
            self._cancel(going, work.shared, work.over)
        finally:
            if started_here:
                ray.shutdown()

    def _share(self, planned: Planned, shared: Surroundings) -> tuple[Any, ...]:
        """What a task gets: the run, and what it shares with others."""
        return planned, shared.for_task(keep=self.shared_folder)

    def _result(self, reference: Any, planned: Planned, shared: Surroundings) -> OneRun:
        try:
            plain, planned.schedule, notes = self._ray.get(reference)
        except Exception as error:  # of Ray, such as a worker that has died
            return _ended(planned, shared, planned.failed(error))
        run = None if plain is None else StudyRun.from_plain(plain, dict(planned.cell.names))
        ended = _ended(planned, shared, run)
        ended.notes = notes
        return ended

    def _cancel(self, going: dict[Any, Planned], shared: Surroundings, over: Over) -> None:
        """Stop the runs under way, and take those that have just finished."""
        for each in going:
            self._ray.cancel(each)
        if going:
            self._ray.wait(list(going), num_returns=len(going), timeout=_GRACE)
        for planned in going.values():
            over(_ended(planned, shared, None))

    def _check_room(self, there: dict[str, float]) -> None:
        """Refuse tasks for which no cluster has room, which would wait for ever."""
        for name, asked in (("CPU", self.num_cpus), ("GPU", self.num_gpus)):
            if asked > there.get(name, 0.0):
                raise ValueError(
                    f"num_{name.lower()}s must be at most what the cluster has, "
                    f"{there.get(name, 0.0):g}, got {asked:g}"
                )

    def __repr__(self) -> str:
        return f"RayWorkers(address={self.address!r}, num_cpus={self.num_cpus:g})"


def _ended(planned: Planned, shared: Surroundings, result: StudyRun | None) -> OneRun:
    run = OneRun(planned, shared)
    run.result = result
    return run


def _work(given: tuple[Planned, Surroundings]) -> tuple[Any, Any, list[Note]]:
    """What a task does: one run."""
    planned, shared = given
    run = OneRun(planned, shared)
    with speaking(StudyVoice()):
        go_through(run)
    return None if run.result is None else run.result.to_plain(), planned.schedule, run.notes


def _import_ray() -> Any:
    try:
        return import_module("ray")
    except ImportError as error:
        raise ImportError("RayWorkers needs the package ray: pip install ray") from error
