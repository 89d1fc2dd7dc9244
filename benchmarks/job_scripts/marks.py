"""Where a script's seconds go, from the start of its process."""

from __future__ import annotations

import json
import os
import time

PARTS = ("imports", "data", "first round", "training", "evaluation", "rest")
"""The parts of the job. "rest" is what `job.py` adds: the end of the process, and what is left."""

ROUNDS, CLIENTS, PER_ROUND, STEPS, BATCH, LR = 150, 100, 20, 5, 64, 0.1
"""The job: FedAvg over clients of 600 images each, K local steps of SGD."""


class Marks:
    """Adds up process CPU time and wall time by the part of the job.

    The wall clock starts when the process was started, which `job.py` says in `JOB_STARTED`.
    """

    def __init__(self) -> None:
        self.seconds = {part: [0.0, 0.0] for part in PARTS}
        self._last = [0.0, float(os.environ.get("JOB_STARTED", time.time()))]

    def end_of(self, part: str) -> None:
        """The time since the last mark belongs to this part."""
        now = [time.process_time(), time.time()]
        for i in range(2):
            self.seconds[part][i] += now[i] - self._last[i]
        self._last = now

    def report(self, updates: int, accuracy: float) -> None:
        """Print one line for `job.py`."""
        found = {"seconds": self.seconds, "updates": updates, "accuracy": accuracy}
        print("JOB " + json.dumps(found), flush=True)
