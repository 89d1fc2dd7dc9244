"""Runs killed at random instants; the long version is ``python tests/kill_and_resume.py``."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SCRIPT = str(TESTS / "kill_and_resume.py")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(TESTS.parent), "PYTHONUNBUFFERED": "1"}


def test_a_few_kills():
    """A part of the 100 kills over all aggregators that are done by hand."""
    result = subprocess.run(
        [sys.executable, SCRIPT, "--kills", "6", "--cases", "FedBuff", "AFACS", "--rounds", "8"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"6 kills .* in (\d+) runs: \1 identical", result.stdout), result.stdout


RUN = """
import sys
from fedlight.callbacks import FedCheckpoint
from lightning.pytorch.loggers import CSVLogger
from tests.boring import Point, points, trainer

class Slow(Point):
    def training_step(self, batch, batch_idx):
        print("step", flush=True)
        return super().training_step(batch, batch_idx)

run = trainer(
    max_rounds=int(sys.argv[1]),
    executor="sequential",
    logger=CSVLogger("csv", flush_logs_every_n_steps=10**6),
    callbacks=FedCheckpoint("checkpoints", every_n_rounds=10**6),
)
run.fit(Slow(), points([1.0, 2.0], [3.0], [7.0, 5.0, 6.0]), ckpt_path="last")
print("version", run.version, run.fingerprint(), run.interrupted)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_event_saves_and_says_how_to_go_on(number, tmp_path):
    def start(rounds):
        return subprocess.Popen(
            [sys.executable, "-c", RUN, str(rounds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    process = start(10**6)
    assert process.stdout.readline() == "step\n"
    time.sleep(0.2)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    _, version, _, interrupted = out.splitlines()[-1].split()
    assert interrupted == "True"
    assert f"stopped by {number.name} after round {version} at virtual time" in err
    assert 'to go on, fit again with ckpt_path="last"' in err
    assert (tmp_path / "checkpoints" / "last.ckpt").is_file()
    (metrics,) = tmp_path.glob("csv/**/metrics.csv")  # written when the loggers were closed
    assert len(metrics.read_text().splitlines()) >= int(version)

    if number == signal.SIGINT:
        return  # once is enough for what follows
    rounds = int(version) + 3
    out, err = start(rounds).communicate(timeout=60)
    resumed = out.splitlines()[-1]
    assert out.count("step") < 60 * 6
    (tmp_path / "checkpoints" / "last.ckpt").unlink()
    for path in (tmp_path / "checkpoints").glob("*.ckpt"):
        path.unlink()
    out, err = start(rounds).communicate(timeout=60)
    assert resumed == out.splitlines()[-1] == f"version {rounds} {resumed.split()[2]} False"
