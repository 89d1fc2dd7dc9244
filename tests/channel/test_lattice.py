"""Places in a lattice, decoded near a key."""

import pytest
import torch

from fedlight import FedTrainer
from fedlight.aggregators import QuAFL
from fedlight.arrivals import PolledArrivals
from fedlight.channel._lattice import Lattice
from fedlight.local_optimizers import LocalSGD, OwnModel
from tests.boring import Boring, classes


def test_by_hand():
    """Side 1, two bits: the points 0 to 3 repeat; 5.2 is sent as 1, and is 5 near 6, 1 near 0."""
    value = torch.tensor([5.2, 5.2, -2.7], dtype=torch.float64)
    key = torch.tensor([6.0, 0.0, -3.0], dtype=torch.float64)
    assert Lattice(1.0, 2).sent(value, key).tolist() == [5.0, 1.0, -3.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_error_is_at_most_half_a_side(dtype):
    random = torch.Generator().manual_seed(0)
    key = torch.randn(1000, generator=random, dtype=dtype)
    lattice = Lattice(side=1e-3, bits=10)
    value = key + 0.51 * (2 * torch.rand(1000, generator=random, dtype=dtype) - 1)
    sent = lattice.sent(value, key)
    assert sent.dtype == dtype
    assert (sent - value).abs().max() <= 0.5e-3 + 1e-6


def test_what_is_further_away_comes_out_as_another_number():
    lattice = Lattice(side=0.5, bits=3)  # from one number to the next of the same place: 4
    value, key = torch.tensor([3.0]), torch.tensor([0.0])
    assert lattice.sent(value, key).item() == -1.0


@pytest.mark.parametrize("up", [None, Lattice(bits=14)])
@pytest.mark.parametrize("down", [None, Lattice(bits=10)])
def test_the_bytes_of_what_is_quantized(up, down):
    """15 parameters: 60 bytes, 27 of 14 bits each, 19 of 10 bits each."""
    run = FedTrainer(
        arrivals=PolledArrivals(2, interval=1.0, step_durations=[0.5] * 4, max_steps=2),
        aggregator=QuAFL(quantizer=up),
        local_optimizer=OwnModel(LocalSGD(0.1), per_poll=2, quantizer=down),
        max_rounds=3,
        logger=False,
        enable_progress_bar=False,
    )
    run.fit(Boring(), classes())
    metrics = run.history[-1].metrics
    pulls = metrics["fed/models"] - 6  # three polls of two clients
    assert pulls > 6
    sent = pulls * (60 if down is None else 19) + 6 * (60 if up is None else 27)
    assert metrics["fed/bytes"] == sent
