import logging
import re
from io import StringIO

import pytest
import torch
from rich.console import Console

from fedlight import Callback
from fedlight.aggregators import FedAvg
from fedlight.callbacks import ProgressBar
from fedlight.callbacks.progress import _clock
from fedlight.local_optimizers import LocalSGD
from tests.boring import Point, points, replay, trainer


def run(bar, module=None, **kwargs):
    given = {
        "arrivals": replay((0, 0, 1.0, 1), (1, 0, 2.0, 2, 0.0), (0, 1, 3.5, 1)),
        "aggregator": FedAvg(buffer_size=1),
        "local_optimizer": LocalSGD(lr=0.5),
        "callbacks": bar,
        "enable_progress_bar": True,
    }
    made = trainer(**{**given, **kwargs})
    made.fit(module or Point(), points([4.0], [-2.0, -2.0], val=(1.0, 3.0)))
    return made


@pytest.fixture
def screen():
    return Console(file=StringIO(), force_terminal=True, width=200, color_system=None)


def last_line(screen):
    return [line for line in screen.file.getvalue().splitlines() if "round" in line][-1]


def test_it_shows_the_figures_of_the_last_round(screen):
    run(ProgressBar(console=screen))
    line = last_line(screen)
    for figure in ("round 3", "t=3.5", "updates/s", "staleness 1.0", "train_loss 2", "val_error 1"):
        assert figure in line
    assert "fed/" not in line


def test_the_metrics_of_the_validation_are_not_crowded_out(screen):
    class Many(Point):
        def training_step(self, batch, batch_idx):
            self.log_dict({f"train_{k}": 1.0 for k in range(20)})
            return super().training_step(batch, batch_idx)

    run(ProgressBar(console=screen), Many())
    assert "val_error 1" in last_line(screen)
    assert "train_3" not in last_line(screen)


def test_names_are_shown_to_the_letter(screen):
    class Brackets(Point):
        def validation_step(self, batch, batch_idx):
            self.log("error[/b] [red]", torch.tensor(2.0))

    run(ProgressBar(console=screen), Brackets())
    assert "error[/b] [red] 2" in last_line(screen)


@pytest.mark.parametrize("width", range(40, 130, 7))
def test_figures_that_do_not_fit_are_left_out_whole(width):
    class Logs(Point):
        def training_step(self, batch, batch_idx):
            self.log_dict({f"asked_{k}": 1.25 for k in range(5)}, prog_bar=True)
            return super().training_step(batch, batch_idx)

    screen = Console(file=StringIO(), force_terminal=True, width=width, color_system=None)
    run(ProgressBar(console=screen), Logs())
    shown = last_line(screen).replace("\x1b[2K", "").rstrip()
    assert len(shown) <= width
    figure = r"(t=3\.5|\d+(\.\d)? updates/s|asked_\d 1\.25|staleness 1\.0)"
    assert re.fullmatch(rf"round 3 ━+ \d:\d\d( {figure}(  {figure})*)?", shown), shown
    assert (width < 50) or "t=3.5" in shown


def test_messages_are_printed_above_the_bar(monkeypatch):
    """Lightning's log writes to the stream that was standard error when it was imported."""
    stderr = StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    log = logging.getLogger("lightning.pytorch")
    handler = logging.StreamHandler(stderr)
    monkeypatch.setattr(log, "handlers", [handler])

    class Says(Callback):
        def on_fit_start(self, trainer, module):
            log.warning("a message")

    run([ProgressBar(console=Console(file=stderr, force_terminal=True, width=100)), Says()])
    assert handler.stream is stderr
    lines = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", stderr.getvalue()).replace("\r", "\n").split("\n")
    assert lines.count("a message") == 1  # alone on its line


class Frames(Callback):
    """The state of the bar after each round and at the end; draws a line for each."""

    def __init__(self, bar, stop_after=None):
        self.bar, self.stop_after = bar, stop_after
        self.shares, self.end = [], None

    def on_round_end(self, trainer, module):
        (task,) = self.bar._progress.tasks
        self.shares.append(None if task.total is None else task.completed / task.total)
        self.bar._progress.refresh()
        trainer.should_stop |= trainer.version == self.stop_after

    def on_fit_end(self, trainer, module):
        (task,) = self.bar._progress.tasks
        self.end = None if task.total is None else task.completed / task.total


@pytest.mark.parametrize(
    ("limits", "shares"),
    [
        ({"max_rounds": 3}, [1 / 3, 2 / 3, 1.0]),
        ({"max_updates": 2}, [0.5, 1.0]),
        ({"max_time": 4.0}, [0.25, 0.5, 0.875]),
        ({"max_time": 4.0, "max_updates": 3}, [1 / 3, 2 / 3, 1.0]),
        ({}, [None, None, None]),
    ],
)
def test_the_bar_goes_by_the_nearest_limit_and_is_full_at_its_end(screen, limits, shares):
    bar = ProgressBar(console=screen)
    frames = Frames(bar)
    run([bar, frames], **limits)
    assert frames.shares == pytest.approx(shares) if limits else frames.shares == shares
    assert frames.end == 1.0


def test_updates_after_the_last_round_fill_the_bar(screen):
    bar = ProgressBar(console=screen)
    frames = Frames(bar)
    run([bar, frames], max_updates=3, aggregator=FedAvg(buffer_size=2))
    assert frames.shares == pytest.approx([2 / 3])
    assert frames.end == 1.0
    assert "t=3.5" in last_line(screen)


def test_a_run_that_was_stopped_leaves_the_bar_where_it_was(screen):
    bar = ProgressBar(console=screen)
    frames = Frames(bar, stop_after=2)
    run([bar, frames], max_time=4.0)
    assert frames.end == 0.5


def test_a_terminal_of_80_columns_shows_the_figures_that_matter():
    """A round of 75 s, by a clock of the screen's own."""
    rounds = [0]
    screen = Console(
        file=StringIO(),
        force_terminal=True,
        width=80,
        color_system=None,
        get_time=lambda: 75.0 * rounds[0],
    )

    class Clock(Callback):
        def on_round_end(self, trainer, module):
            rounds[0] = trainer.version

    class Accuracy(Point):
        def validation_step(self, batch, batch_idx):
            self.log("val_acc", torch.tensor(0.87654))

    bar = ProgressBar(console=screen)
    arrivals = replay((0, 0, 123.456, 1), (1, 0, 246.912, 2, 0.0), (0, 1, 370.368, 1))
    run([Clock(), bar, Frames(bar, stop_after=3)], Accuracy(), arrivals=arrivals, max_rounds=150)
    shown = last_line(screen).replace("\x1b[2K", "").rstrip()
    assert len(shown) <= 80
    pattern = (
        r"round 3/150 ━*[╸╺]?[━ ]* 3:45<3:03:4[56] t=370\.37  \d+(\.\d)? updates/s  "
        r"val_acc 0\.8765(  |$)"
    )
    assert re.match(pattern, shown), shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0:00"), (65.9, "1:05"), (3599, "59:59"), (3725, "1:02:05")]
)
def test_clock(seconds, shown):
    assert _clock(seconds) == shown


def test_it_stops_with_the_run(screen):
    class Fails(Point):
        def training_step(self, batch, batch_idx):
            raise ValueError("no")

    bar = ProgressBar(console=screen)
    with pytest.raises(RuntimeError, match="no"):
        run(bar, Fails())
    assert bar._progress is None
    made = run(bar)
    assert bar._progress is None
    made.validate()


def test_a_validation_in_between_does_not_end_it(screen):
    class Validates(Callback):
        def on_round_end(self, trainer, module):
            trainer.validate()

    run([Validates(), ProgressBar(console=screen)])
    assert "round 3" in last_line(screen)


def test_it_draws_on_standard_error(capsys):
    run(None)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "round 3" in shown.err
    run(None, enable_progress_bar=False)
    assert "round" not in capsys.readouterr().err


@pytest.mark.parametrize("rate", [0, -1.0])
def test_refresh_rate(rate):
    with pytest.raises(ValueError, match="refresh_rate must be larger than 0"):
        ProgressBar(refresh_rate=rate)


def test_what_the_module_asks_for_comes_first(screen):
    class Asks(Point):
        def training_step(self, batch, batch_idx):
            self.log_dict({f"asked_{k}": float(k) for k in range(5)}, prog_bar=True)
            return super().training_step(batch, batch_idx)

    run(ProgressBar(console=screen), Asks())
    line = last_line(screen)
    assert all(f"asked_{k} {k}" in line for k in range(5))
    assert line.index("t=3.5") < line.index("asked_4") < line.index("staleness 1.0")
    assert "val_error" not in line  # there is no room left
