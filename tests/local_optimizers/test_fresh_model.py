"""A fresh model is mixed in, in the middle of a task."""

import math

import pytest
import torch
from lightning import LightningModule

from fedlight.aggregators import FedASMU, FedAsync
from fedlight.arrivals import RefreshedTasks, ReplayArrivals, ReplayEvent
from fedlight.local_optimizers import FedDyn, FreshModel, LocalSGD, Scaffold
from tests.aggregators.test_fedasmu import pair
from tests.arrivals.test_refreshed import clock
from tests.boring import Point, fitted

# Client 1 makes version 1 at 1.0; client 0, which pulled version 0, is refreshed at 2.0.
HALVES = [
    ReplayEvent(1, 0, 1.0, 1, dispatched_at=0.0),
    ReplayEvent(0, 0, 2.0, 1, dispatched_at=0.0, tag="half 2 1000000000"),
    ReplayEvent(0, 1, 3.0, 2, dispatched_at=2.0, tag="from 0"),
]


def run(optimizer, events=HALVES, module=None, **more):
    return fitted(
        module or Point(),
        pair(),
        arrivals=ReplayArrivals(events),
        aggregator=FedAsync(0.5),
        local_optimizer=optimizer,
        precision="64-true",
        **more,
    )


def test_mixing_by_hand():
    """y = 4 after a step from 0 to 8, x_1 = -2; phi = 3 * (1 - 0.5 / sqrt(2)), mu = 0.5."""
    last = run(FreshModel(LocalSGD(0.5), mu=0.5, gamma=3.0, upsilon=0.5)).state.params.item()
    phi = 3 * (1 - 0.5 / math.sqrt(2))
    b = 0.5 * phi / (1 + 0.5 * phi)
    y = 8 + ((1 - b) * 4 + b * -2 - 8) / 4
    assert last == pytest.approx((-2 + y) / 2, rel=1e-14)


def test_without_a_share_the_client_goes_on_with_its_own_model():
    optimizer = FreshModel(LocalSGD(0.5), gamma=0.0)
    assert run(optimizer).state.params.item() == pytest.approx((-2 + 7.0) / 2, rel=1e-14)


def test_nothing_is_mixed_if_nothing_is_new():
    """With upsilon = 0 the formula alone would mix the pulled model in again."""
    events = [
        ReplayEvent(0, 0, 2.0, 1, dispatched_at=0.0, tag="half 2 1000000000"),
        ReplayEvent(0, 0, 3.0, 2, dispatched_at=2.0, tag="from 0"),
    ]
    last = run(FreshModel(LocalSGD(0.5), upsilon=0.0), events).state.params.item()
    assert last == pytest.approx(7.0 / 2, rel=1e-14)


def test_learning_by_hand():
    """D = <mixed - 8, x_1 - 4>, and x_1 = -2; the learned values are in what the client keeps."""
    learned = FreshModel(LocalSGD(0.5), gamma_rate=0.01, upsilon_rate=0.02)
    made = run(learned)
    root = 1 / math.sqrt(2)
    phi = 1 - root
    b = phi / (1 + phi)
    slope = ((1 - b) * 4 + b * -2 - 8) * (-2 - 4) / (1 + phi) ** 2
    state = made.client_state(0).tolist()  # own, gamma - 1, upsilon - 1, steps
    assert state[1] == pytest.approx(-0.01 * slope * (1 - root), rel=1e-12)
    assert state[2] == pytest.approx(0.02 * slope * root, rel=1e-12)
    # They act in the next task only: this one ends as without rates.
    assert made.state.params.item() == run(FreshModel(LocalSGD(0.5))).state.params.item()


def test_the_next_refresh_has_what_was_learned():
    events = [
        *HALVES,
        ReplayEvent(1, 1, 4.0, 1, dispatched_at=1.0),
        ReplayEvent(0, 2, 5.0, 1, dispatched_at=3.0, tag="half 1 1000000000"),
        ReplayEvent(0, 3, 6.0, 1, dispatched_at=5.0, tag="from 2"),
    ]
    learned = FreshModel(LocalSGD(0.5), gamma_rate=0.01)
    made = run(learned, events)
    gamma = 1.0 + run(learned).client_state(0)[1].item()
    models = [0.0, -2.0, 0.0, 0.0]
    models[2] = run(learned).state.params.item()
    models[3] = (models[2] + (-2.0 - 8.0) / 2) / 2
    phi = gamma / math.sqrt(3) * (1 - 1 / math.sqrt(2))
    b = phi / (1 + phi)
    y = 8 + ((1 - b) * (models[2] + 8) / 2 + b * models[3] - 8) / 2
    assert made.state.params.item() == pytest.approx((models[3] + y) / 2, rel=1e-12)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_a_parameter_may_have_no_numbers(executor):
    """It comes first here, and gamma is kept where there are numbers."""

    class Hollow(Point):
        def __init__(self):
            LightningModule.__init__(self)
            self.nothing = torch.nn.Parameter(torch.zeros(0))
            self.w = torch.nn.Parameter(torch.tensor([0.0]))

    events = [*HALVES, ReplayEvent(0, 2, 5.0, 2, dispatched_at=3.0)]
    learned = FreshModel(LocalSGD(0.5), gamma_rate=0.01)
    made = run(learned, events, Hollow(), executor=executor)
    assert (
        made.state.params.tolist() == run(learned, events, executor=executor).state.params.tolist()
    )


def test_a_share_below_0_is_0():
    """With upsilon = 3, phi would be below 0."""
    last = run(FreshModel(LocalSGD(0.5), upsilon=3.0)).state.params.item()
    assert last == pytest.approx((-2 + 7.0) / 2, rel=1e-14)


def test_a_task_whose_first_half_fails_is_left_out():
    class Fails(LocalSGD):
        def step(self, run, grads):
            super().step(run, grads)
            for row, task in zip(run.params[0], run.tasks, strict=True):
                if task.is_first_half:
                    row.fill_(torch.nan)

    made = run(FreshModel(Fails(0.5)), on_client_failure="drop")
    assert made.state.params.item() == -2.0  # that of client 1
    assert made.num_failures == 1


def test_without_halves_it_is_its_optimizer():
    def ends(optimizer):
        return fitted(
            Point(),
            pair(),
            arrivals=clock(),
            aggregator=FedASMU(),
            local_optimizer=optimizer,
            max_rounds=6,
        ).state.params

    sgd = LocalSGD(0.3, momentum=0.5)
    with pytest.warns(UserWarning, match=r"when a task is refreshed, .* never does"):
        fresh = ends(FreshModel(sgd))
    assert torch.equal(fresh, ends(sgd))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: FreshModel(0.1), TypeError, "optimizer must be a local optimizer, got 0.1"),
        (lambda: FreshModel(Scaffold(0.1)), ValueError, "optimizer must keep no state between"),
        (lambda: FreshModel(FedDyn(0.1, 0.1)), ValueError, "no state between tasks, but FedDyn"),
        (lambda: FreshModel(LocalSGD(0.1), mu=0), ValueError, "mu must be larger than 0, got 0"),
        (lambda: FreshModel(LocalSGD(0.1), gamma=-1), ValueError, "gamma must be 0 or larger"),
        (lambda: FreshModel(LocalSGD(0.1), upsilon=-1), ValueError, "upsilon must be 0 or larger"),
        (lambda: RefreshedTasks("x"), TypeError, "arrivals must be an arrival process, got 'x'"),
    ],
)
def test_mistakes(make, error, words):
    with pytest.raises(error, match=words):
        make()
