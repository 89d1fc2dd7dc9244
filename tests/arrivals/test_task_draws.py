from fedlight.arrivals import ConstantSteps, ExponentialDurations, UniformSpeeds, UniformSteps
from fedlight.arrivals._task_draws import TaskDraws, Visits
from fedlight.randomness import Concern, stream


def test_visits():
    visits = Visits()
    assert [visits.next(client) for client in (0, 5, 0, 0)] == [0, 0, 1, 2]
    other = Visits(list(visits.items()))
    assert [other.next(client) for client in (5, 0, 1)] == [1, 3, 0]


def test_streams_are_named_by_client_and_task(federation):
    here = federation(3, seed=8)
    draws = TaskDraws(here, ExponentialDurations(2.0), UniformSteps(1, 99))
    drawn = [draws.draw(client, starts_at=0.0) for client in (2, 0, 2)]
    for (duration, num_steps), (client, visit) in zip(drawn, [(2, 0), (0, 0), (2, 1)], strict=True):
        assert num_steps == stream(8, Concern.STEPS, client, visit).integers(1, 100)
        rng = stream(8, Concern.DURATIONS, client, visit)
        assert duration == 2 * rng.standard_exponential()


def test_what_is_not_random_counts_nothing(federation):
    draws = TaskDraws(federation(3), UniformSpeeds(0.8), ConstantSteps(5))
    drawn = [draws.draw(client, starts_at=0.0) for client in (0, 1, 2)]
    assert drawn == [(0.2, 5), (0.6, 5), (1.0, 5)]
    assert draws.visits == {}
