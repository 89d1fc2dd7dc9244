"""The clock that everything is timed with."""

from __future__ import annotations

import time

import torch

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
chosen = "wall"


def now(device: str = "cpu") -> float:
    """Seconds; all work on the device is done by then."""
    if device != "cpu":
        torch.cuda.synchronize()
    return CLOCKS[chosen]()
