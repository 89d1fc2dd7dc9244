"""Workers in this process, which finish in an order that a test chooses, and may die."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from fedlight.executors import Executor, Job, SequentialExecutor
from fedlight.executors._remote.crew import Crew, Worker, WorkerLost
from fedlight.executors.base import Outcome
from fedlight.types import LocalResult


class Here(Worker):
    """A worker in this process: it computes a parcel when it is asked for the outcomes."""

    def __init__(self, number: int, executor: Executor, lives: int | None = None) -> None:
        self.number, self.executor, self.lives = number, executor, lives
        self.parcels: deque[Sequence[Job]] = deque()
        self.stopped = False

    @property
    def name(self) -> str:
        return f"worker {self.number}"

    def fits(self, jobs: Sequence[Job]) -> bool:
        return True

    def send(self, jobs: Sequence[Job]) -> None:
        assert not self.stopped
        self.parcels.append(jobs)

    def receive(self) -> list[Outcome]:
        if self.lives == 0:
            raise WorkerLost(f"{self.name} has died")
        if self.lives is not None:
            self.lives -= 1
        return self.executor.run(self.parcels.popleft())

    def stop(self) -> None:
        self.stopped = True


class Depends(SequentialExecutor):
    """Results depend on who is computed together, as those of some stacks do."""

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        mix = 1 + 1e-3 * sum((job.task.serial + 1) * (at + 1) for at, job in enumerate(jobs))
        return [
            each._replace(delta=each.delta * mix, measured=None)
            if isinstance(each, LocalResult)
            else each
            for each in super().run(jobs)
        ]


class Crowd(Executor):
    """Several workers in this process.

    Args:
        workers: How many.
        seed: Decides which of the workers that have work is the next to finish.
        independent: Whether results depend on the job alone.
        parcel: The most jobs of a worker at once.
        max_batch: The most that are ahead of their arrival.
        dying: The probability that a worker dies over a parcel.

    Attributes:
        parcels: The serials of the tasks of each parcel that was computed or lost.
    """

    def __init__(
        self,
        workers: int,
        seed: int = 0,
        independent: bool = True,
        parcel: int = 1,
        max_batch: int = 16,
        dying: float = 0.0,
    ) -> None:
        self.workers, self.random, self.dying = workers, random.Random(seed), dying
        self.independent, self.parcel, self.max_batch = independent, parcel, max_batch
        self.inner = SequentialExecutor() if independent else Depends()

    def setup(self, workplace) -> None:
        self.inner.setup(workplace)
        self.crew = Crew(self.hire, self.next_ones, self.workers)

    def hire(self, number: int, jobs: Sequence[Job]) -> Here:
        # The third one over the same parcel would be an error, so every second worker lives on.
        mortal = not jobs and self.random.random() < self.dying
        return Here(number, self.inner, self.random.randrange(4) if mortal else None)

    def next_ones(self, workers: Sequence[Here], timeout: float) -> list[Here]:
        return self.random.sample(workers, self.random.randint(1, len(workers)))

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        return self.crew.run([jobs])[0]

    def teardown(self) -> None:
        self.crew.stop()
        self.crew = None
        self.inner.teardown()
