"""What a study says of all its runs is one line, whoever computes them."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys
from fedlight import Callback
from tests.studies.grid_of_boring import swept

workers, parent = eval(sys.argv[1]), os.getpid()

class Impatient(Callback):
    def on_round_end(self, trainer, module):
        if trainer.version == 2 and trainer.seed == 1:
            os.kill(parent, signal.SIGINT)

swept(workers=workers)
print("a folder", file=sys.stderr, flush=True)
for path in (sys.argv[2], None):
    try:
        swept(workers=workers, path=path, seeds=(0, 1, 2), callbacks=lambda: [Impatient()])
    except KeyboardInterrupt:
        continue
    raise AssertionError("the signal did not end the study")
"""


@pytest.mark.parametrize("workers", [1, "together", 2])
def test_a_study_speaks_for_its_runs(workers, tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, repr(workers), str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    whole, stopped = done.stderr.split("a folder")
    assert whole.count(" on cpu: ") == 1  # what computes, for four runs
    assert "ckpt_path" not in stopped
    kept, lost = [line for line in stopped.splitlines() if "stopped" in line]
    assert "of 6 runs finished" in kept
    assert kept.endswith(f"the same call with path={str(tmp_path)!r} goes on")
    assert lost.endswith("the same call goes on")
