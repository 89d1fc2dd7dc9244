"""Runs killed at random instants; the long version is ``python tests/kill_and_resume.py``."""

import os
import re
import shutil
import signal

import pytest
from lightning.pytorch.loggers import CSVLogger

from fedlight.callbacks import FedCheckpoint
from tests import kill_and_resume
from tests.boring import Point, Recorder, points, trainer


@pytest.mark.filterwarnings("ignore")  # as in a script
def test_a_few_kills(capsys):
    """A part of the 100 kills over all aggregators that are done by hand."""
    arguments = ["--kills", "2", "--cases", "CA2FL", "--rounds", "6"]
    assert kill_and_resume.main(arguments) == 0
    printed = capsys.readouterr().out
    assert re.search(r"2 kills .* in (\d+) runs: \1 identical", printed), printed


class Slow(Point):
    """Says each step."""

    def training_step(self, batch, batch_idx):
        print("step", flush=True)
        return super().training_step(batch, batch_idx)


def go(rounds: int) -> str:
    """Train in the working folder, from the last checkpoint if there is one."""
    run = trainer(
        max_rounds=rounds,
        executor="sequential",
        logger=CSVLogger("csv", flush_logs_every_n_steps=10**6),
        callbacks=FedCheckpoint("checkpoints", every_n_rounds=10**6),
        on_interrupt="return",
    )
    run.fit(Slow(), points([1.0, 2.0], [3.0], [7.0, 5.0, 6.0]), ckpt_path="last")
    return f"{run.version} {run.fingerprint()} {run.interrupted}"


def test_an_interrupt_ends_the_event_saves_and_says_how_to_go_on(scripts, tmp_path):
    process = scripts.start("from tests.test_kill import go; print(go(10**6))")
    for _ in range(100):  # 10 rounds at least, less those that are computed before their turn
        assert process.stdout.readline() == "step\n"
    os.kill(process.pid, signal.SIGTERM)
    out, err = process.communicate()
    assert process.returncode == 0, err
    version, _, interrupted = out.splitlines()[-1].split()
    assert interrupted == "True"
    assert f"stopped by SIGTERM after round {version} at virtual time" in err
    assert 'to continue, fit again with ckpt_path="last"' in err
    (metrics,) = tmp_path.glob("csv/**/metrics.csv")  # written when the loggers were closed
    assert len(metrics.read_text().splitlines()) == int(version) + 1

    rounds = int(version) + 3
    resumed = go(rounds)
    assert len(metrics.read_text().splitlines()) == rounds + 1
    shutil.rmtree("checkpoints")
    assert resumed == go(rounds)
    assert resumed.endswith("False")


def loop() -> None:
    """A script's loop over two runs, that of the first having no end."""
    for number in range(2):
        print("run", number, flush=True)
        keeper = FedCheckpoint(f"run-{number}", every_n_rounds=10**6)
        run = trainer(max_rounds=10**6, executor="sequential", callbacks=keeper)
        run.fit(Slow(), points([1.0, 2.0], [3.0]))


def test_an_interrupt_ends_a_scripts_loop_over_runs(scripts, tmp_path):
    process = scripts.start("from tests.test_kill import loop; loop()")
    assert process.stdout.readline() == "run 0\n"
    assert process.stdout.readline() == "step\n"
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == -signal.SIGINT, err
    assert "run 1" not in out
    assert "stopped by SIGINT" in err
    assert (tmp_path / "run-0" / "last.ckpt").is_file()  # saved before the script ended
    assert not (tmp_path / "run-1").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_the_run_ends_in_order_before_the_script_does(number, executor):
    """`lightning.Trainer` ends the script in the same two ways, by an exit or an interrupt."""

    class Interrupting(Recorder):
        def __getattribute__(self, name):
            if name == "on_round_end":
                return lambda trainer, module: os.kill(os.getpid(), number)
            return super().__getattribute__(name)

    callback = Interrupting()
    run = trainer(executor=executor, callbacks=callback)
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit) as ended:
        run.fit(Point(), points([1.0, 2.0], [3.0]))
    assert run.version == 1
    assert run.interrupted
    assert callback.names[-2:] == ["on_fit_end", "teardown"]
    assert "on_exception" not in callback.names  # nothing failed
    if number == signal.SIGTERM:
        assert ended.value.code == 143
