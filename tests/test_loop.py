"""The loop alone: a script of events, and a receiver that writes down what it hears."""

import math

import pytest

from fedlight.events import Kind
from fedlight.loop import Counts, Event, Handled, Limits, play
from fedlight.types import Task


def arrival(client):
    return Event(Kind.ARRIVAL, Task(client, 0, 0.0, 1.0, 1, client, 0))


class Script:
    """Events in a fixed order; after an arrival its client pulls again."""

    def __init__(self, *events):
        self.left = list(events)
        self.sent_on = []

    def next(self):
        return self.left.pop(0) if self.left else None

    def send_on(self, event, handled):
        self.sent_on.append((event, handled))
        return [event.task._replace(visit=1)] if event.kind is Kind.ARRIVAL else []


class Receiver:
    """Makes a version of each arrival, of whose local run it has to wait."""

    def __init__(self):
        self.counts = Counts()
        self.heard = []

    def handle(self, event):
        self.heard.append(event.kind.name)
        if event.kind is Kind.ARRIVAL:
            yield [event.task.client_id]
            self.counts.num_updates += 1
            self.counts.version += 1
        return Handled(self.counts.version)

    def dispatch(self, task):
        self.heard.append(("pulls", task.client_id))


def test_each_event_is_handled_wholly_before_the_next():
    script = Script(Event(Kind.WAKE), arrival(3), Event(Kind.ROUND_END), arrival(5))
    receiver = Receiver()
    waits = []
    for waiting in play(script, receiver, Limits()):
        waits.append(list(waiting))
        receiver.heard.append("computes" if waiting else "between")
    # Nothing is yielded after a wake-up, which concerns the clients alone.
    assert waits == [[3], [], [], [5], []]
    assert receiver.heard == [
        "WAKE",
        *["ARRIVAL", "computes", ("pulls", 3), "between"],
        *["ROUND_END", "between"],
        *["ARRIVAL", "computes", ("pulls", 5), "between"],
    ]
    assert [handled.version for _, handled in script.sent_on] == [0, 1, 1, 2]


@pytest.mark.parametrize("limits", [Limits(max_rounds=2), Limits(max_updates=2)])
def test_the_event_at_the_limit_is_handled_wholly(limits):
    script, receiver = Script(*map(arrival, range(5))), Receiver()
    assert [list(waiting) for waiting in play(script, receiver, limits)] == [[0], [], [1], []]
    assert receiver.heard[-1] == ("pulls", 1)
    assert len(script.left) == 3


def test_nothing_happens_at_a_limit_or_when_it_is_no_use():
    for limits, over in ((Limits(max_rounds=1), False), (Limits(), True)):
        receiver = Receiver()
        receiver.counts.version, receiver.counts.over = 1, over
        assert list(play(Script(arrival(0)), receiver, limits)) == []
        assert receiver.heard == []


def test_whoever_drives_it_may_stop_between_two_events():
    script, receiver = Script(*map(arrival, range(5))), Receiver()
    for waiting in play(script, receiver, Limits()):
        if not waiting and receiver.counts.version == 3:
            break
    assert (receiver.counts.version, len(script.left)) == (3, 2)


def test_limits():
    assert Limits(max_rounds=3).reached(3, 0)
    assert not Limits(max_rounds=3).reached(2, 99)
    assert Limits(max_updates=3).reached(0, 3)
    assert not Limits(max_time=1.0).reached(99, 99)
    with pytest.raises(ValueError, match="max_updates must be at least 1, got 0"):
        Limits(max_updates=0)
    with pytest.raises(ValueError, match="max_time must be larger than 0, got -1"):
        Limits(max_time=-1)


def test_how_many_updates_are_left():
    """After the round that is being made, which is number `version` + 1."""
    assert Limits().updates_left(3, 30, 10) == math.inf
    assert Limits(max_rounds=6).updates_left(3, 30, 10) == 20
    assert Limits(max_rounds=4).updates_left(3, 30, math.inf) == 0
    assert Limits(max_rounds=6, max_updates=37).updates_left(3, 30, 10) == 7
