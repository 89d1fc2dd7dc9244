"""Whole runs as tasks of a Ray cluster."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

from fedlight._support.checks import flag, non_negative, positive
from fedlight._support.messages import speaking
from fedlight.executors._remote.cluster import Cluster, Wanted, import_ray
from fedlight.studies._messages import StudyVoice
from fedlight.studies._progress import RunUnderWay
from fedlight.studies._sent_run import SentRun, received
from fedlight.studies.one_run import OneRun, StudySettings
from fedlight.studies.runs import Planned
from fedlight.studies.workers import PendingRuns, Workers

_LOOK = 0.5  # seconds between two looks at signals
_GRACE = 30.0  # seconds for runs that were cancelled


class RayWorkers(Workers):
    """Runs on a Ray cluster: each is a task that computes a whole run.

    The finished runs are kept by the process that calls `sweep`. A run under way writes its
    checkpoints to the study's folder if all nodes see it (`shared_folder`); else a study that was
    stopped begins those runs again.

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
        if address is not None and (not isinstance(address, str) or not address):
            raise TypeError(f'address must name a cluster, such as "auto", got {address!r}')
        self.address = address
        self.num_cpus = positive("num_cpus", num_cpus)
        self.num_gpus = non_negative("num_gpus", num_gpus)
        self.shared_folder = flag("shared_folder", shared_folder)
        self._ray = import_ray("RayWorkers")

    def run(self, pending: PendingRuns) -> None:
        """Compute runs."""
        ray = self._ray
        going: dict[Any, Planned] = {}
        with closing(Cluster(ray, self.address)) as cluster:
            self._check_room(cluster)
            task = ray.remote(_compute).options(
                num_cpus=self.num_cpus, num_gpus=self.num_gpus, max_retries=1
            )
            for planned in pending.free:
                try:
                    sent = ray.put((planned, pending.shared.for_task(keep=self.shared_folder)))
                    going[task.remote(sent)] = planned
                except Exception as error:
                    failed = planned.failed(error)
                    pending.over(OneRun(planned, pending.shared, result=failed))
            while going and not pending.stopped():
                done, _ = ray.wait(list(going), num_returns=1, timeout=_LOOK)
                for each in done:
                    fetch = partial(ray.get, each)
                    pending.over(received(fetch, going.pop(each), pending.shared))
                pending.progress.tick(RunUnderWay(planned) for planned in going.values())
            for each in going:
                ray.cancel(each)
            if going:
                ray.wait(list(going), num_returns=len(going), timeout=_GRACE)
            for planned in going.values():
                pending.over(OneRun(planned, pending.shared))

    def _check_room(self, cluster: Cluster) -> None:
        """Check that a node has room for a task, which would otherwise wait for ever."""
        less = "num_cpus or num_gpus" if self.num_gpus > 0 else "num_cpus"
        cluster.check_room(Wanted("RayWorkers", "run", 1, self.num_cpus, self.num_gpus, less))

    def __repr__(self) -> str:
        return f"RayWorkers(address={self.address!r}, num_cpus={self.num_cpus:g})"


def _compute(given: tuple[Planned, StudySettings]) -> SentRun:
    """Compute one run in a task."""
    with speaking(StudyVoice()):
        return SentRun.compute(*given)
