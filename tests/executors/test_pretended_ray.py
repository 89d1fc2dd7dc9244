"""`RayExecutor` with a stand-in for Ray: any number of cards, in any order, gives the same bits.

With `tests/on_device.py` the cards are those of the pretended device.
"""

from functools import cache

import pytest

from fedlight.aggregators import FedAvg
from fedlight.arrivals import (
    ContinuousArrivals,
    ExponentialDurations,
    LeastVisitedShards,
    SharedStream,
    UniformArrivals,
    UniformSteps,
)
from fedlight.callbacks import FedCheckpoint
from fedlight.local_optimizers import Scaffold
from tests.fits_on_cards import METHODS, bits, cards, fit_on


@cache
def on_one_card(method, executor=None):
    """The run that all others have the bits of."""
    return fit_on(cards(1), method, executor)


@pytest.mark.parametrize(
    ("method", "executor"), [*((each, None) for each in METHODS), ("SCAFFOLD", "sequential")]
)
def test_any_number_of_cards_gives_the_same_bits_in_any_order(method, executor) -> None:
    one = on_one_card(method, executor)
    size = one.executor.traffic.sent // one.executor.traffic.versions
    for seed in range(2):
        ray = cards(2, seed)
        two = fit_on(ray, method, executor)
        assert bits(two) == bits(one)
        assert ray.computed.keys() == {0, 1}
        traffic = two.executor.traffic
        if method == "FedAvg":  # all cards compute from each version, and clients have no state
            assert traffic.versions == one.executor.traffic.versions == two.version
            assert traffic.sent == 2 * size * traffic.versions
    three = cards(2, seed=3)
    assert bits(fit_on(three, method, executor, actors=3)) == bits(one)  # two on one of the cards
    assert sorted(card for card, _ in three.shares) == [0, 0, 1]


@pytest.mark.parametrize("shared", [SharedStream, LeastVisitedShards])
def test_data_that_all_clients_share_too(shared) -> None:
    arrivals = shared(UniformArrivals(4, max_staleness=3, local_steps=UniformSteps(1, 4)), 9)
    one = fit_on(cards(1), "FedAvg", arrivals=arrivals)
    assert {update.client_id for record in one.history for update in record.updates} - set(range(7))
    assert bits(fit_on(cards(2, seed=1), "FedAvg", arrivals=arrivals)) == bits(one)


def test_one_actor_without_a_card_too() -> None:
    ray = cards(0)
    run = fit_on(ray, executor="sequential", actors=1)
    assert ray.shares == [(None, "cpu")]
    assert run.history == fit_on(cards(0, seed=1), executor="sequential", actors=3).history


def test_these_stacks_depend_on_their_members() -> None:
    assert bits(fit_on(cards(2))) != bits(fit_on(cards(2), share=2))


@pytest.mark.parametrize("method", ["FedBuff", "SCAFFOLD"])
def test_an_actor_or_a_card_that_is_lost_costs_no_bit(method) -> None:
    one = bits(on_one_card(method))
    for seed, blow in ((0, "deaths"), (1, "deaths"), (0, "failures")):
        ray = cards(2, seed, **{blow: 2})
        run = fit_on(ray, method)
        assert bits(run) == one
        assert 1 <= run.executor.num_replaced <= ray.num_lost  # one may be lost after the last use


def test_cards_that_are_lost_again_and_again_end_the_run() -> None:
    words = (
        r"the GPU of actor \d has failed \(RuntimeError: CUDA error: uncorrectable ECC error "
        r"encountered\)\. It is the 3rd over the same local runs \(clients \d"
    )
    with pytest.raises(RuntimeError, match=words):
        fit_on(cards(2, failures=1000, chance=1.0))


@pytest.mark.parametrize("before", [1, 2])
def test_a_resumed_run_may_have_another_number_of_cards(tmp_path, before) -> None:
    given = {"aggregator": FedAvg(), "local_optimizer": Scaffold(0.1)}
    whole = bits(fit_on(cards(1), **given))
    saved = FedCheckpoint(tmp_path, every_n_rounds=1)
    fit_on(cards(before, seed=7), **given, callbacks=saved, max_rounds=2)
    for number in (1, 2):
        resumed = fit_on(cards(number, seed=8), **given, ckpt_path=tmp_path / "last.ckpt")
        assert bits(resumed) == whole


@pytest.mark.parametrize("resume", ["on_arrival", "on_aggregation"])
def test_continuous_arrivals_resume_between_any_two_updates(tmp_path, resume) -> None:
    """Stacks whose members matter go on with those that the cards had at the checkpoint."""
    clock = ContinuousArrivals(
        ExponentialDurations(1.0), concurrency=6, resume=resume, local_steps=UniformSteps(1, 4)
    )
    given = {"arrivals": clock, "max_rounds": 6}
    saved = FedCheckpoint(tmp_path, every_n_updates=5, save_top_k=-1)
    whole = bits(fit_on(cards(1), **given, callbacks=saved))
    found = [path for path in tmp_path.glob("*.ckpt") if path.name != "last.ckpt"]
    assert len(found) == 3  # of 18 updates; in the midst of a buffer of 3
    for number, path in enumerate(found):
        resumed = fit_on(cards(1 + number % 2, seed=number), **given, ckpt_path=path)
        assert bits(resumed) == whole
