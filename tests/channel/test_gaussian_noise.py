"""Noise of the clients: clipped by hand, its size, rows alone, and what is refused."""

import math

import pytest
import torch

from fedlight import FedTrainer
from fedlight.aggregators import MIFA, FedBuff, PrivateSum
from fedlight.arrivals import ContinuousArrivals, ExponentialDurations
from fedlight.channel import Chain, Clip, ErrorFeedback, GaussianNoise, Senders, TopK
from fedlight.local_optimizers import LocalSGD, Scaffold
from fedlight.types import Task
from tests.boring import Boring, classes


def senders(*clients, seed=0, visit=0):
    return Senders([Task(client, 0, 0.0, 1.0, 1, 0, visit) for client in clients], seed)


def test_by_hand():
    """(6, 8) has norm 10 and is clipped to 5; the noise is too small to be seen."""
    updates = torch.tensor([[6.0, 8.0], [3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    sent = GaussianNoise(1e-12, 5.0).send(updates, senders(0, 1, 2))
    expected = torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(sent, expected)
    assert updates.tolist()[0] == [6.0, 8.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_size_of_the_noise(dtype):
    """Of 40,000 zeros: mean 0, deviation z * C, and normal tails, within five standard errors."""
    many = 40_000
    sent = GaussianNoise(3.0, 0.5).send(torch.zeros(1, many, dtype=dtype), senders(0))
    assert sent.dtype == dtype
    assert abs(sent.mean()) < 5 * 1.5 / math.sqrt(many)
    assert abs(sent.std() / 1.5 - 1) < 5 / math.sqrt(2 * many)
    share = 0.0455  # of a normal number, beyond two deviations
    beyond = (sent.abs() > 3.0).double().mean()
    assert abs(beyond - share) < 5 * math.sqrt(share / many)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_row_depends_on_its_client_and_visit_only(dtype):
    draw = torch.Generator().manual_seed(0)
    updates = torch.randn(3, 1001, generator=draw, dtype=torch.float64).to(dtype)
    channel = GaussianNoise(1.0, 1.0)
    together = channel.send(updates, senders(4, 7, 9))
    for row, client in enumerate((4, 7, 9)):
        alone = channel.send(updates[row : row + 1], senders(client))
        assert torch.equal(alone[0], together[row])
    assert not torch.equal(channel.send(updates, senders(4, 7, 9, visit=1)), together)
    assert not torch.equal(channel.send(updates, senders(4, 7, 9, seed=1)), together)
    zeros = channel.send(torch.zeros(2, 1001), senders(4, 7))
    assert not torch.isclose(zeros[0], zeros[1], rtol=0, atol=1e-9).any()


def test_the_message_has_its_size():
    assert GaussianNoise(1.0, 1.0).nbytes(size=1000, itemsize=4) == 4000


def test_a_chain_has_its_largest_noise():
    noises = [GaussianNoise(1.0, 0.5), TopK(0.5), GaussianNoise(2.0, 0.5)]
    assert Chain(noises).noise_multiplier == 2.0
    assert Chain([Clip(1.0), TopK(0.5)]).noise_multiplier is None


def test_error_feedback_must_not_hold_the_noise():
    with pytest.raises(ValueError, match="must not be inside ErrorFeedback"):
        ErrorFeedback([GaussianNoise(1.0, 1.0), TopK(0.5)])
    before = Chain([ErrorFeedback(TopK(0.5)), GaussianNoise(1.0, 1.0)])
    after = Chain([GaussianNoise(1.0, 1.0), ErrorFeedback(TopK(0.5))])
    assert before.noise_multiplier == after.noise_multiplier == 1.0


@pytest.mark.parametrize(("z", "norm", "name"), [(0, 1, "noise_mult"), (1, 0, "clipping_norm")])
def test_numbers_are_above_zero(z, norm, name):
    with pytest.raises(ValueError, match=f"{name}.* must be larger than 0, got 0"):
        GaussianNoise(z, norm)


def boring():
    """A module that always begins at the same parameters."""
    torch.manual_seed(0)
    return Boring()


def fitted(**given):
    options = {
        "arrivals": ContinuousArrivals(ExponentialDurations(1.0), local_steps=2),
        "aggregator": MIFA(1),
        "channel": GaussianNoise(1.0, 0.1),
        "local_optimizer": LocalSGD(0.1),
        "max_rounds": 8,
        "logger": False,
        "enable_progress_bar": False,
        "accelerator": "cpu",
    }
    trainer = FedTrainer(**{**options, **given})
    trainer.fit(boring(), classes())
    return trainer


@pytest.mark.filterwarnings("ignore:fedlight. ")
def test_executors_give_the_same_bits():
    """Also with a server that remembers updates, which may not add noise by itself."""
    one, two, three = (fitted(executor=each) for each in ("sequential", "processes", "sequential"))
    assert one.fingerprint() == two.fingerprint() == three.fingerprint()
    assert fitted(channel=None).fingerprint() != one.fingerprint()


def test_runs_whose_noise_does_not_cover_all_are_refused():
    with pytest.raises(ValueError, match="sends a second vector of each client"):
        fitted(local_optimizer=Scaffold(0.1))
    with pytest.raises(ValueError, match="both the channel and the aggregator add noise"):
        fitted(aggregator=PrivateSum(FedBuff(1), 1.0, 1.0))
