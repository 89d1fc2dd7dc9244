"""What a study says of all its runs is one line, whoever computes them."""

from pathlib import Path

import pytest

from fedlight._support.messages import Note
from fedlight.studies._messages import speaking_for

SCRIPT = """
import os, signal, sys
from fedlight import Callback
from fedlight.arrivals import ContinuousArrivals, FixedDurations
from fedlight.callbacks import EarlyStopping
from tests.studies.grid_of_boring import swept

for workers in (1, "together", 2):
    child = os.fork()  # some words are said once in a process
    if not child:
        break
    if os.waitpid(child, 0)[1]:
        raise SystemExit(1)
else:
    raise SystemExit

parent = os.getpid()

class Impatient(Callback):
    def on_round_end(self, trainer, module):
        if trainer.version == 2 and trainer.seed == 1:
            os.kill(parent, signal.SIGINT)

print("\\nworkers", workers, file=sys.stderr, flush=True)
swept(workers=workers, max_updates=41, arrivals=ContinuousArrivals(
    FixedDurations([1.0, 0.2, 0.3, 2.0]), resume="on_arrival"))
print("stopping", file=sys.stderr, flush=True)
swept(workers=workers, callbacks=lambda: [EarlyStopping("val_loss", stopping_threshold=9.0)])
print("a folder", file=sys.stderr, flush=True)
for path in (f"{sys.argv[1]}/{workers}", None):
    try:
        swept(workers=workers, path=path, seeds=(0, 1, 2), callbacks=lambda: [Impatient()])
    except KeyboardInterrupt:
        continue
    raise AssertionError("the signal did not end the study")
"""


@pytest.fixture(scope="module")
def said(scripts, tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """The folder of the studies, and all that they say, by who computes the runs."""
    folder = tmp_path_factory.mktemp("studies")
    code, _, err = scripts.run(SCRIPT, str(folder))
    assert code == 0, err
    found = err.split("\nworkers ")[1:]
    return folder, {workers: text for workers, _, text in (each.partition("\n") for each in found)}


@pytest.mark.parametrize("workers", ["1", "together", "2"])
def test_a_study_speaks_for_its_runs(workers, said) -> None:
    folder, found = said
    whole, stopped = found[workers].split("a folder")
    whole, early = whole.split("stopping\n")
    (line,) = [line for line in whole.splitlines() if " on cpu: " in line]
    assert line.endswith(": the module can be stacked")  # nobody has given an executor
    (line,) = [line for line in whole.splitlines() if "left in" in line]
    assert line.endswith("and not used (aggregator=FedBuff, seed 0; likewise in 1 more of 4 runs)")
    (line,) = [line for line in whole.splitlines() if "count for more" in line]  # a warning
    assert "(aggregator=FedAsync, seed 0; likewise in 3 more of 4 runs)" in line
    (line,) = early.splitlines()
    assert line.startswith("fedlight: stopped early after round ")
    assert line.endswith("(aggregator=FedAsync, seed 0; likewise in 3 more of 4 runs)")
    assert "ckpt_path" not in stopped
    kept, lost = [line for line in stopped.splitlines() if "stopped" in line]
    assert "of 6 runs finished" in kept
    assert kept.endswith(f"the same call with path={str(folder / workers)!r} goes on")
    assert lost.endswith("the same call goes on")


def test_what_another_fit_within_a_run_tells_is_said_too(monkeypatch) -> None:
    said = []
    monkeypatch.setattr("fedlight.studies._messages.say", lambda note: said.append(note.words))
    with speaking_for([]) as voice:
        run, other = object(), object()
        voice.note(run, Note("left", "of the run"))
        voice.note(other, Note("left", "of another fit"))
        assert [note.words for note in voice.notes_of(run)] == ["of the run"]
    assert said == ["of another fit"]


def test_a_warning_that_is_an_error_does_not_take_the_place_of_what_ended_the_study() -> None:
    def study() -> None:
        with speaking_for([]) as voice:
            voice.note(object(), Note("unfair", "fedlight: unfair", warns=True))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study()
