"""Choosing clients by what they have logged: the interface, and the three rules by hand."""

import json
import math

import numpy as np
import pytest

from fedlight.aggregators import FedAvg
from fedlight.arrivals import (
    Availability,
    ClientSelection,
    ContinuousArrivals,
    DropOut,
    FixedDurations,
    Oort,
    PartialWork,
    Pisces,
    PoissonArrivals,
    PowerOfChoice,
    RefreshedTasks,
    SynchronousArrivals,
    UniformArrivals,
)
from fedlight.arrivals.client_selection import statistical_utility
from fedlight.arrivals.schedule import Schedule
from fedlight.events import Kind
from fedlight.local_optimizers import LocalSGD
from fedlight.loop import Handled
from fedlight.types import Federation, Seen, Task
from tests.boring import Point, fitted, points, trainer

ROUNDS = SynchronousArrivals(per_round=2, durations=FixedDurations([1.0] * 4), local_steps=1)
CLOCK = ContinuousArrivals(FixedDurations([1.0, 2.0, 3.0, 4.0]), 2, local_steps=1)
RNG = np.random.default_rng(0)


def federation(*sizes, seed=0):
    return Federation(len(sizes), np.array(sizes), 1, seed=seed)


def seen(loss, size=1, duration=1.0, staleness=0):
    return Seen({"train_loss": loss}, 1.0, size, duration, staleness)


def tell(arrivals, client, loss, size=1, duration=1.0, staleness=0):
    task = Task(client, 0, 0.0, duration, 1, 0, 0)
    arrivals.on_feedback(task, seen(loss, size, duration, staleness), duration)


def ready(arrivals, *sizes):
    arrivals.setup(federation(*(sizes or (1, 1, 1, 1))))
    return arrivals


class Smallest(ClientSelection):
    """The free clients of the smallest numbers; notes what it was asked."""

    def __init__(self, arrivals):
        super().__init__(arrivals)
        self.asked = []

    def choose(self, clients, count, rng, now):
        self.asked.append((list(clients), count, now))
        return clients[:count]


def play(arrivals, losses, until, buffer_size=2, num_clients=4, made=None):
    """Play a server that steps after a number of updates; return the tasks as (client, start)."""
    schedule = Schedule(arrivals, federation(*[1] * num_clients), max_time=until)
    version, held, started = 0, [], []
    while (event := schedule.next()) is not None:
        released, task = [], event.task
        if task is not None and not task.lost:
            stale = version - task.pulled_version
            duration = task.arrives_at - task.dispatched_at
            loss = losses[task.client_id]
            arrivals.on_feedback(task, seen(loss, 1, duration, stale), schedule.now)
            held.append(task.client_id)
        due = len(held) >= buffer_size if buffer_size else event.kind is Kind.ROUND_END
        if due:
            version, released, held = version + 1, held, []
            if made is not None:
                made.append(schedule.now)
        for each in schedule.send_on(event, Handled(version, released)):
            started.append((each.client_id, each.dispatched_at))
    return started


def test_rounds_choose_among_all_and_places_among_the_idle():
    arrivals = Smallest(ROUNDS)
    assert play(arrivals, [1.0] * 4, 1.5, buffer_size=None) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert arrivals.asked == [([0, 1, 2, 3], 2, 0.0), ([0, 1, 2, 3], 2, 1.0)]
    arrivals = Smallest(CLOCK)
    assert play(arrivals, [1.0] * 4, 2.5) == [(0, 0), (1, 0), (2, 1), (3, 2)]
    assert arrivals.asked == [
        ([0, 1, 2, 3], 1, 0.0),
        ([1, 2, 3], 1, 0.0),
        ([2, 3], 1, 1.0),  # client 0 waits for the version
        ([3], 1, 2.0),
    ]


def test_poisson_and_wrapped_ones_choose_too():
    arrivals = Smallest(PoissonArrivals(50.0, FixedDurations([9.0] * 4), 1))
    assert [client for client, _ in play(arrivals, [1.0] * 4, 5.0)] == [0, 1, 2, 3]
    arrivals = Smallest(DropOut(PartialWork(ROUNDS, 0.0), 0.0))
    assert play(arrivals, [1.0] * 4, 0.5, buffer_size=None) == [(0, 0), (1, 0)]


def test_another_one_is_chosen_for_a_client_that_is_not_there():
    windows = {0: [(3.0, 9.0)], 1: [(0.0, 9.0)], 2: [(0.0, 9.0)], 3: [(0.0, 9.0)]}
    arrivals = Availability(Smallest(CLOCK), windows)
    assert play(arrivals, [1.0] * 4, 0.5) == [(2, 0), (1, 0)]


def test_over_selection_and_late_ones():
    late = SynchronousArrivals(
        2, FixedDurations([1.0, 5.0, 1.0, 1.0]), 1, late="continue", quorum=1
    )
    arrivals = Smallest(late)
    started = play(arrivals, [1.0] * 4, 1.5, buffer_size=None)
    assert started == [(0, 0), (1, 0), (0, 1), (2, 1)]
    assert arrivals.asked[1] == ([0, 2, 3], 2, 1.0)  # client 1 is still at work
    more = Smallest(SynchronousArrivals(2, FixedDurations([1.0] * 4), 1, over_select=1))
    assert len(play(more, [1.0] * 4, 0.5, buffer_size=None)) == 3


@pytest.mark.parametrize("rule", [lambda each: PowerOfChoice(each, 3), Oort, Pisces])
def test_a_round_in_which_all_clients_are_at_work_chooses_none(rule):
    """Four clients of 10 units start at 0 to 3; the fifth round has nobody left to choose."""
    busy = SynchronousArrivals(
        1, FixedDurations([10.0] * 4), local_steps=1, timeout=1.0, late="continue"
    )
    tasks = play(rule(busy), [1.0] * 4, 9.0, buffer_size=None)
    assert [start for _, start in tasks] == [0.0, 1.0, 2.0, 3.0]


def test_the_process_itself_still_draws():
    drawn = CLOCK.simulate(4, buffer_size=2, max_time=9)
    Smallest(CLOCK)
    assert CLOCK.simulate(4, buffer_size=2, max_time=9) == drawn


@pytest.mark.parametrize("answer", [[0], [0, 0], [0, 7], [0, 1, 2], []])
def test_a_choice_has_to_be_of_the_free_ones(answer):
    class Wrong(ClientSelection):
        def choose(self, clients, count, rng, now):
            return answer

    with pytest.raises(ValueError, match=r"Wrong.choose must return 2 different clients .*0, 1, 2"):
        play(Wrong(ROUNDS), [1.0] * 4, 2.0)


@pytest.mark.parametrize(
    ("arrivals", "error", "match"),
    [
        (SynchronousArrivals(), ValueError, "per_round must be a number"),
        (SynchronousArrivals([[0, 1]]), ValueError, "per_round must be a number"),
        (ContinuousArrivals(FixedDurations([1.0])), ValueError, "concurrency must be a number"),
        (UniformArrivals(2), TypeError, "does not let others choose"),
        (Smallest(ROUNDS), TypeError, "already chooses"),
        ("rounds", TypeError, "arrivals must be an arrival process"),
    ],
)
def test_not_every_process_lets_others_choose(arrivals, error, match):
    with pytest.raises(error, match=match):
        Smallest(arrivals)


def test_random_numbers_go_on_from_a_state():
    drawn = []

    class Any(ClientSelection):
        def choose(self, clients, count, rng, now):
            drawn.append(rng.random())
            return clients[:count]

    one, two = ready(Any(ROUNDS)), ready(Any(ROUNDS))
    for _ in range(3):
        one._chosen([0, 1], 1, 0.0)
    state = one.state_dict()
    one._chosen([0, 1], 1, 0.0)
    two.load_state_dict(state)
    two._chosen([0, 1], 1, 0.0)
    assert drawn[3] == drawn[4]
    assert len(set(drawn)) == 4


def test_statistical_utility():
    """10 examples; a mean loss of 3 or a mean square of 9 is a utility of 30."""
    assert statistical_utility(seen(3.0, 10), "train_loss", squared=False) == 30.0
    assert statistical_utility(seen(9.0, 10), "train_loss", squared=True) == 30.0
    assert statistical_utility(seen(math.nan, 10), "train_loss", squared=True) is None
    with pytest.raises(ValueError, match="must be a mean of squares, got -1"):
        statistical_utility(seen(-1.0, 10), "train_loss", squared=True)
    with pytest.raises(ValueError, match="has logged 'train_loss'"):
        statistical_utility(seen(3.0), "loss", squared=False)


class TestPowerOfChoice:
    def test_by_hand(self):
        """Unknown losses are infinite; of equal ones, the candidate drawn first."""
        arrivals = ready(
            PowerOfChoice(ROUNDS, [[2, 0, 1], [3, 0, 2], [0, 3, 1], [1, 3], [1, 0, 3]])
        )
        everyone = range(4)
        assert arrivals._chosen(everyone, 2, 0.0) == [2, 0]
        tell(arrivals, 2, 0.5)
        tell(arrivals, 0, 2.0)
        assert arrivals._chosen(everyone, 2, 0.0) == [3, 0]  # infinite, then 2.0
        tell(arrivals, 3, 2.0)
        assert arrivals._chosen(everyone, 2, 0.0) == [1, 0]  # 0 before 3, as it was drawn
        tell(arrivals, 1, math.nan)  # as if it had said nothing
        tell(arrivals, 0, 1.0)
        assert arrivals._chosen([1, 3], 2, 0.0) == [1, 3]
        assert arrivals._chosen([0, 3], 2, 0.0) == [3, 0]  # client 1 is not free
        with pytest.raises(ValueError, match="candidates lists 5 choices"):
            arrivals._chosen(everyone, 2, 0.0)

    def test_candidates_are_drawn_by_their_examples(self):
        arrivals = ready(PowerOfChoice(CLOCK, 1), 1, 1, 1, 97)
        drawn = [arrivals._chosen(range(4), 1, 0.0)[0] for _ in range(2000)]
        # 97 % of 2000 is 1940, with a standard deviation of 7.6.
        assert abs(drawn.count(3) - 1940) < 31

    def test_with_all_candidates_the_losses_alone_decide(self):
        arrivals = ready(PowerOfChoice(ROUNDS, 4))
        for client, loss in enumerate([1.0, 4.0, 2.0, 3.0]):
            tell(arrivals, client, loss)
        assert [arrivals._chosen(range(4), 2, 0.0) for _ in range(5)] == [[1, 3]] * 5
        assert arrivals._chosen([0, 2, 3], 2, 0.0) == [3, 2]

    def test_too_few_candidates(self):
        with pytest.raises(ValueError, match="candidates=1 gives 1 of the free clients, but 2"):
            ready(PowerOfChoice(ROUNDS, 1))._chosen(range(4), 2, 0.0)
        with pytest.raises(ValueError, match="candidates=5 is more than the 4 clients"):
            ready(PowerOfChoice(ROUNDS, 5))
        with pytest.raises(TypeError, match="metric must be the name"):
            PowerOfChoice(ROUNDS, 2, metric=1)


class Noting(Pisces):
    """Notes the staleness of each update."""

    def on_feedback(self, task, seen, now):
        self.stale.append(seen.staleness)
        super().on_feedback(task, seen, now)


class TestPisces:
    def test_by_hand(self):
        """beta = 1, a window of 2: U = n * loss / (mean staleness + 1)."""
        arrivals = ready(Pisces(CLOCK, beta=1.0, exploration=0.0, least_exploration=0.0, window=2))
        arrivals._explored = {0, 1, 2}
        tell(arrivals, 0, 6.0, size=2, staleness=2)  # 12 / 3 = 4
        tell(arrivals, 1, 5.0, staleness=0)  # 5
        assert arrivals._utilities == {0: 4.0, 1: 5.0}
        assert arrivals._chosen(range(3), 1, 0.0) == [1]
        assert arrivals._chosen([0, 2], 1, 0.0) == [0]  # client 2 has not reported: 0
        tell(arrivals, 0, 6.0, size=2, staleness=0)  # 12 / (1 + 1) = 6
        tell(arrivals, 0, 6.0, size=2, staleness=0)  # the 2 is forgotten: 12
        assert arrivals._utilities[0] == 12.0
        assert arrivals._chosen(range(4), 3, 0.0) == [0, 1, 2]
        assert arrivals._chosen([2, 3], 2, 0.0) == [2, 3]  # a new one, as nobody else is left

    def test_exploration_decays(self):
        arrivals = ready(
            Pisces(CLOCK, exploration=1.0, exploration_decay=0.5, least_exploration=0.3)
        )
        arrivals._explored = {0}
        arrivals._chosen(range(4), 1, 0.0)
        assert arrivals._exploration == 1.0  # nobody has reported yet
        tell(arrivals, 0, 1.0)
        assert arrivals._chosen(range(9), 1, 0.0) != [0]
        assert arrivals._exploration == 0.5
        arrivals._chosen(range(9), 1, 0.0)
        assert arrivals._exploration == 0.3

    def test_pace(self):
        """Durations 1 and 4 and b = 2: the longest task at work is 4, so steps are 2 apart.

        Client 0 arrives at 1 and 2; the first step is at 2. It arrives at 3 and 4 like client 1;
        the next one is at 4: both work again from then on.
        """
        times = ContinuousArrivals(
            FixedDurations([1.0, 4.0]), concurrency=2, local_steps=1, resume="on_arrival"
        )
        made = []
        arrivals = Pisces(times, staleness_bound=2.0)
        assert arrivals.by_rounds
        play(arrivals, [1.0, 1.0], 8.5, buffer_size=None, num_clients=2, made=made)
        assert made == [2.0, 4.0, 6.0, 8.0]

    def test_pace_bounds_the_staleness(self):
        """No update is staler than b when the durations are those expected."""
        rng = np.random.default_rng(1)
        for bound in (1, 2, 5):
            durations = FixedDurations(rng.uniform(0.1, 3.0, 12).round(3).tolist())
            times = ContinuousArrivals(durations, 5, local_steps=1, resume="on_arrival")
            arrivals = Noting(times, staleness_bound=bound)
            stale = arrivals.stale = []
            play(arrivals, rng.uniform(0, 1, 12), 60.0, buffer_size=None, num_clients=12)
            assert len(stale) > 50
            assert max(stale) <= bound

    @pytest.mark.filterwarnings("ignore:fedlight. ")
    @pytest.mark.parametrize("picky", [False, True])
    def test_no_step_without_an_update(self, picky):
        """Neither a first half nor an update that the server drops is one that waits."""

        class Picky(FedAvg):
            def accepts(self, update, version):
                return update.client_id != 0

        times = ContinuousArrivals(
            FixedDurations([1.0, 1.5, 2.0]), concurrency=2, local_steps=4, resume="on_arrival"
        )
        run = fitted(
            Point(),
            points([1.0], [2.0], [3.0]),
            arrivals=Pisces(times if picky else RefreshedTasks(times), staleness_bound=2.0),
            aggregator=Picky() if picky else FedAvg(),
            local_optimizer=LocalSGD(0.1),
            max_time=9.0,
        )
        assert len(run.history) > 4
        assert all(record.updates for record in run.history)

    def test_rounds_of_its_own_only(self):
        with pytest.raises(ValueError, match="staleness_bound=2 ends rounds, which"):
            Pisces(ROUNDS, staleness_bound=2)
        assert not Pisces(CLOCK).by_rounds


def oort(**given):
    return ready(Oort(ROUNDS, **{"exploration": 0.5, "least_exploration": 0.5} | given))


class TestOort:
    def test_scores_of_the_paper(self):
        """Round 4; U = 10, 4 and 6 of rounds 1, 2 and 3; T = 2, alpha = 2, durations 1, 4 and 2."""
        arrivals = oort(reading="paper", pacer_step=2.0, clip=1.0)
        for round_, (client, loss, time) in enumerate([(0, 5.0, 1), (1, 2.0, 4), (2, 3.0, 2)], 1):
            arrivals._round = round_
            tell(arrivals, client, loss, size=2, duration=float(time))
        arrivals._round = 4
        log = 0.1 * math.log(4)
        assert arrivals._scores([0, 1, 2]) == pytest.approx(
            {
                0: 10 + math.sqrt(log / 1),
                1: (4 + math.sqrt(log / 2)) * 0.25,
                2: 6 + math.sqrt(log / 3),
            },
            rel=1e-14,
        )

    def test_scores_of_the_code(self):
        """Between 0.999 of the smallest utility and the largest; T is the median of 1, 1, 2, 4."""
        arrivals = oort(reading="code", preferred=50.0, clip=1.0)
        arrivals._expected = None
        for client, loss, time in [(0, 10.0, 1), (1, 4.0, 4), (2, 6.0, 2), (3, 8.0, 1)]:
            arrivals._round = 1
            tell(arrivals, client, loss, duration=float(time))
        arrivals._round = 2
        least = 4 * 0.999
        width, bonus = 10 - least, math.sqrt(0.1 * math.log(2))
        assert arrivals._preferred(arrivals._times()) == 2.0
        assert arrivals._scores(range(4)) == pytest.approx(
            {
                0: 1 + bonus,
                1: ((4 - least) / width + bonus) / 4,
                2: (6 - least) / width + bonus,
                3: (8 - least) / width + bonus,
            },
            rel=1e-14,
        )

    def test_clip(self):
        """The 50 % quantile of 1, 2, 3 and 100 is 3, as the code counts."""
        arrivals = oort(reading="paper", pacer_step=9.0, clip=0.5)
        arrivals._round = 1
        for client, loss in enumerate([1.0, 2.0, 3.0, 100.0]):
            tell(arrivals, client, loss)
        assert arrivals._scores(range(4)) == {0: 1.0, 1: 2.0, 2: 3.0, 3: 3.0}

    def test_the_best_and_new_ones(self):
        """eps = 1/2 of 2 clients: one is the best known (c = 1), one is new."""
        arrivals = oort(reading="paper", pacer_step=9.0, cut_off=1.0)
        first = arrivals._chosen(range(4), 2, 0.0)
        for client in first:
            tell(arrivals, client, 1.0 + client)
        picked = arrivals._chosen(range(4), 2, 0.0)
        assert picked[0] == max(first)
        assert picked[1] not in first
        tell(arrivals, picked[1], 1.0)
        rest = ({0, 1, 2, 3} - {*first, picked[1]}).pop()
        assert arrivals._chosen(range(4), 2, 0.0)[1] == rest
        tell(arrivals, rest, 0.5)
        # Nobody is new: the two best.
        best = sorted(range(4), key=lambda c: -arrivals._utilities[c])[:2]
        assert set(arrivals._chosen(range(4), 2, 0.0)) == set(best)

    def test_cut_off_lets_more_in(self):
        """With c = 0.5 all of 2, 1.5 and 1 may take the place of the best, in proportion."""
        arrivals = oort(reading="paper", pacer_step=9.0, cut_off=0.5, exploration=0.0)
        counts = np.zeros(4)
        for _ in range(3000):
            (client,) = arrivals._exploit({0: 2.0, 1: 1.5, 2: 1.0, 3: 0.9}, 1, RNG)
            counts[client] += 1
        assert counts[3] == 0
        assert counts[:3] / 3000 == pytest.approx([4 / 9, 3 / 9, 2 / 9], abs=0.04)

    def test_new_ones_by_speed_or_size(self):
        clock = SynchronousArrivals(2, FixedDurations([1.0, 1.0, 2.0, 4.0]), local_steps=1)
        paper = Oort(clock, reading="paper", pacer_step=1.0)
        paper.setup(federation(1, 1, 1, 1))
        code = Oort(clock, reading="code", preferred=75.0, penalty=1.0)
        code.setup(federation(4, 2, 1, 4))
        found = {}
        for name, arrivals in {"paper": paper, "code": code}.items():
            counts = np.zeros(4)
            for _ in range(4000):
                counts[arrivals._explore(range(4), 1, RNG)] += 1
            found[name] = counts / 4000
        assert found["paper"] == pytest.approx(np.array([4, 4, 2, 1]) / 11, abs=0.04)
        # T is 4, the largest duration: nobody is slow.
        assert found["code"] == pytest.approx(np.array([4, 2, 1, 4]) / 11, abs=0.04)

    def test_exploration_decays_after_or_before_a_choice(self):
        given = {"exploration": 0.8, "exploration_decay": 0.5, "least_exploration": 0.3}
        paper, code = oort(reading="paper", pacer_step=1.0, **given), oort(**given)
        seen_at = {"paper": [], "code": []}
        for name, arrivals in {"paper": paper, "code": code}.items():
            for _ in range(3):
                arrivals._chosen(range(4), 2, 0.0)
                seen_at[name].append(arrivals._epsilon)
        assert seen_at == {"paper": [0.4, 0.3, 0.3], "code": [0.4, 0.3, 0.3]}
        # In the first choice the paper has 0.8, the code 0.4: of ten, 2 or 6 would be known ones.
        rounds = SynchronousArrivals(per_round=10, local_steps=1)
        paper = Oort(rounds, reading="paper", pacer_step=1.0, **given)
        for arrivals, known in ((paper, 2), (Oort(rounds, **given), 6)):
            arrivals.setup(federation(*[1] * 20))
            arrivals._round = 1
            for client in range(15):
                tell(arrivals, client, 1.0)
            arrivals._chosen(range(20), 10, 0.0)
            assert len(arrivals._exploited) == known

    def test_pacer_of_the_paper(self):
        """W = 1: T grows by 2 after a round with less utility than the round before."""
        arrivals = oort(reading="paper", pacer_step=2.0, pacer_window=1)
        paces = []
        for loss in (5.0, 3.0, 3.0, 4.0, 1.0):
            arrivals._chosen(range(4), 1, 0.0)
            paces.append(arrivals._pace)
            tell(arrivals, 0, loss)
        arrivals._chosen(range(4), 1, 0.0)
        assert [*paces, arrivals._pace] == [2.0, 2.0, 4.0, 4.0, 4.0, 6.0]

    def test_pacer_of_the_code(self):
        """W = 1: 10 points more if the utility stays within 10 %, 10 less if it is sixfold."""
        arrivals = oort(reading="code", pacer_window=1, preferred=50.0)
        paces = []
        for loss in (5.0, 5.2, 40.0, 20.0):
            arrivals._chosen(range(4), 1, 0.0)
            arrivals._exploited = [0]
            paces.append(arrivals._pace)
            tell(arrivals, 0, loss)
        arrivals._chosen(range(4), 1, 0.0)
        # 0 -> 5 is more than fivefold of nothing; 5 -> 5.2 is flat; 5.2 -> 40 is sharp; -> 20 not.
        assert [*paces, arrivals._pace] == [50.0, 40.0, 50.0, 40.0, 40.0]

    def test_no_more_tasks_than_wanted(self):
        """After more than one update a client is left out, at most 30 % of the clients."""
        arrivals = Oort(SynchronousArrivals(per_round=3, local_steps=1), most_tasks=1)
        arrivals.setup(federation(*[1] * 10))
        arrivals._round = 1
        for client in (3, 3, 3, 5, 5, 7, 7, 8, 8):
            tell(arrivals, client, 1.0)
        assert arrivals._blocked() == {3, 5, 7}
        arrivals._epsilon = 0.0
        assert sorted(arrivals._chosen([3, 5, 8], 1, 0.0)) == [8]
        assert sorted(arrivals._chosen([3, 5, 8], 3, 0.0)) == [3, 5, 8]

    def test_utilities_of_zero(self):
        arrivals = oort(exploration=0.0, least_exploration=0.0)
        arrivals._round = 1
        for client in range(4):
            tell(arrivals, client, 0.0)
        assert len(set(arrivals._chosen(range(4), 3, 0.0))) == 3

    def test_what_is_refused(self):
        with pytest.raises(ValueError, match="has no rounds"):
            Oort(CLOCK)
        with pytest.raises(ValueError, match="reading='paper' needs pacer_step"):
            Oort(ROUNDS, reading="paper")
        with pytest.raises(ValueError, match="reading"):
            Oort(ROUNDS, reading="listing")


MAKES = {
    "power of choice": lambda: PowerOfChoice(ROUNDS, 3),
    "oort": lambda: Oort(ROUNDS, exploration=0.5),
    "oort of the paper": lambda: Oort(
        ROUNDS, exploration=0.5, reading="paper", pacer_step=0.5, pacer_window=2
    ),
    "pisces": lambda: Pisces(CLOCK),
    "pace": lambda: Pisces(CLOCK, staleness_bound=2),
    "poisson": lambda: PowerOfChoice(PoissonArrivals(2.0, FixedDurations([1.0] * 4), 1), 3),
}


@pytest.mark.parametrize("name", MAKES)
def test_a_state_is_plain_and_complete(name):
    """Stopped after any event, its state through JSON, and taken up by a fresh process."""
    losses = [3.0, 1.0, 4.0, 1.5]

    def run(stop_after=None):
        arrivals = MAKES[name]()
        schedule = Schedule(arrivals, federation(1, 2, 3, 4))
        held, version, started, number = [], 0, [], 0
        while number < 60:
            event = schedule.next()
            number += 1
            if event.task is not None:
                loss = losses[event.task.client_id] / (1 + version)
                arrivals.on_feedback(event.task, seen(loss, 2), schedule.now)
                held.append(event.task.client_id)
            released = []
            if len(held) >= 2 or (held and event.kind is Kind.ROUND_END):
                version, released, held = version + 1, held, []
            for each in schedule.send_on(event, Handled(version, released)):
                started.append((each.client_id, each.dispatched_at))
            if number == stop_after:
                state = json.loads(json.dumps(schedule.state_dict()))
                arrivals = MAKES[name]()
                schedule = Schedule(arrivals, federation(1, 2, 3, 4))
                schedule.load_state_dict(state)
        return started

    whole = run()
    assert len(whole) > 20
    assert run(1) == run(7) == run(18) == run(40) == whole


def test_a_setup_that_forgets_ours_is_an_error():
    class Forgets(Smallest):
        def setup(self, federation):
            self.asked = []

    with pytest.raises(
        TypeError,
        match=r"Forgets.setup must call super\(\).setup\(federation\), which sets up Synchronous",
    ):
        play(Forgets(ROUNDS), [1.0] * 4, until=2)


def test_a_setup_that_forgets_ours_is_an_error_in_a_run():
    class Forgets(Smallest):
        def setup(self, federation):
            self.asked = []

    with pytest.raises(TypeError, match=r"Forgets.setup must call super\(\).setup\(federation\)"):
        fitted(Point(), points(*[[1.0]] * 4), arrivals=Forgets(ROUNDS), max_rounds=1)


def test_a_constructor_that_forgets_ours_is_an_error():
    class Forgets(Smallest):
        def __init__(self, arrivals):
            self.arrivals = arrivals

    words = r"Forgets.__init__ must call super\(\).__init__\(arrivals\), with the process"
    with pytest.raises(TypeError, match=words):
        trainer(arrivals=Forgets(ROUNDS), aggregator=FedAvg())
    with pytest.raises(TypeError, match=words):
        Forgets(ROUNDS).setup(federation(1, 1, 1, 1))
