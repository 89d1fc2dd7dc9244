import json

from fedlight.arrivals._state import Saved
from fedlight.randomness import Concern, Uniforms


class Inner(Saved):
    _saved_attributes = ("count",)

    def __init__(self):
        self.count = 0


class Outer(Saved):
    _saved_attributes = ("_inner", "_numbers", "_clients", "_by_client", "_pairs", "_nothing")

    def __init__(self):
        self._inner = Inner()
        self._numbers = Uniforms(7, Concern.STARTS)
        self._clients = set()
        self._by_client = {}
        self._pairs = []
        self._nothing = None


def test_state_is_plain_data_and_is_restored_in_place():
    one, two = Outer(), Outer()
    one._inner.count = 3
    one._clients.update({5, 2})
    one._by_client[4] = [1, 2]
    one._pairs.append((8, 9))
    drawn = one._numbers.next()
    state = json.loads(json.dumps(one.state_dict()))
    assert state["clients"] == [2, 5]
    before = two._inner, two._clients, two._by_client
    two.load_state_dict(state)
    assert all(
        a is b for a, b in zip(before, (two._inner, two._clients, two._by_client), strict=True)
    )
    assert (two._inner.count, two._clients, two._by_client) == (3, {2, 5}, {4: [1, 2]})
    assert (two._pairs, two._nothing) == ([[8, 9]], None)
    assert one._numbers.next() == two._numbers.next() != drawn


def test_two_objects_restored_from_one_state_share_nothing():
    one, two = Outer(), Outer()
    state = {"by_client": [[1, [2]]], "pairs": [[3]]}
    one.load_state_dict(state)
    two.load_state_dict(state)
    one._by_client[1].append(0)
    one._pairs[0].append(0)
    assert (two._by_client, two._pairs) == ({1: [2]}, [[3]])


def test_names_that_an_older_state_lacks_keep_their_values():
    one = Outer()
    one._inner.count = 2
    one.load_state_dict({"clients": [1]})
    assert (one._inner.count, one._clients) == (2, {1})


class Counting(Outer):
    """A class of a user's, with names that ours use, too."""

    _saved_attributes = ("seen",)
    saved = "something else"

    def __init__(self):
        super().__init__()
        self.seen, self.pairs = 0, "mine"


def test_a_subclass_adds_to_the_state_and_may_use_any_public_name():
    one, two = Counting(), Counting()
    one.seen, one._pairs = 4, [1]
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert (two.seen, two._pairs, two.pairs) == (4, [1], "mine")
    assert two._inner is not one._inner
