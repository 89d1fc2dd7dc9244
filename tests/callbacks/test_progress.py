from io import StringIO

import pytest
import torch
from rich.console import Console

from fedlight import Callback
from fedlight.aggregators import FedAvg
from fedlight.callbacks import ProgressBar
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


@pytest.mark.parametrize(
    ("limits", "goal"),
    [
        ({"max_rounds": 3}, (3, 3)),
        ({"max_updates": 2}, (2, 2)),
        ({"max_time": 4.0}, (4.0, 3.5)),
        ({}, (None, 3.5)),
    ],
)
def test_the_bar_goes_by_the_limit_that_was_given(screen, limits, goal):
    class Asks(Callback):
        seen = None

        def on_fit_end(self, trainer, module):
            (task,) = bar._progress.tasks
            self.seen = (task.total, task.completed)

    bar, asks = ProgressBar(console=screen), Asks()
    run([bar, asks], **limits)
    assert asks.seen == goal


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
    assert line.index("asked_0") < line.index("t=3.5")
    assert "val_error" not in line  # there is no room left
