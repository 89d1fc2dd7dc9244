"""Two cards: what is on one does not mix with the other, and nothing stays on a worker's.

`tests/executors/test_pretended_ray.py` has the other tests that run on both.
"""

import sys

import pytest
import torch
from lightning.fabric.plugins.precision.amp import MixedPrecision

from fedlight.executors._remote.actor import autocast_on
from tests.fits_on_cards import METHODS, Devices, bits, cards, fit_on

if "_pretended" not in sys.modules:
    pytest.skip(
        "needs the pretended device: python tests/on_device.py builds it", allow_module_level=True
    )

FIRST, SECOND = torch.device("pretended", 0), torch.device("pretended", 1)


def test_tensors_of_two_cards_do_not_mix() -> None:
    one, other = torch.ones(2, device=FIRST), torch.ones(2, device=SECOND)
    assert (one.device, other.device, (other + other).device) == (FIRST, SECOND, SECOND)
    with pytest.raises(RuntimeError, match="same device"):
        one + other
    leaf = other.clone().requires_grad_()
    (3 * leaf).sum().backward()
    assert (leaf.grad.device, leaf.grad.tolist()) == (SECOND, [3, 3])
    assert (one + other.to(FIRST)).tolist() == [2, 2]


@pytest.mark.parametrize("method", METHODS)
def test_two_cards_have_the_bits_of_one_and_results_come_to_the_drivers(method) -> None:
    one = fit_on(cards(1), method)
    for seed in range(4):
        ray, devices = cards(2, seed), Devices()
        two = fit_on(ray, method, callbacks=devices)
        assert bits(two) == bits(one)
        assert sorted(ray.shares) == [(0, "pretended:0"), (1, "pretended:1")]
        assert devices.seen == {FIRST}
        assert min(ray.computed.values()) > 1


def test_mixed_precision_is_that_of_the_card() -> None:
    """The process that sends the jobs may have none."""
    made = autocast_on(SECOND, MixedPrecision("bf16-mixed", "cpu").forward_context)
    with made():
        assert torch.is_autocast_enabled("pretended")
        assert not torch.is_autocast_enabled("cpu")
