"""Clients that go on from their own model, by hand."""

from types import SimpleNamespace

import pytest
import torch

from fedlight.channel._lattice import Lattice
from fedlight.local_optimizers import LocalRun, LocalSGD, OwnModel


def run(own, pulled, versions=(0, 0), known=(True, True)):
    """The runs of two clients with one number each."""
    return LocalRun(
        params=[torch.tensor([[pulled], [pulled]])],
        pulled=[torch.tensor([[pulled], [pulled]])],
        lr=0.1,
        num_steps=torch.tensor([1, 1]),
        client=[torch.tensor([[own[0]], [own[1]]])],
        has_state=list(known),
        tasks=[SimpleNamespace(pulled_version=version) for version in versions],
    )


def test_mixing():
    optimizer = OwnModel(LocalSGD(0.1), per_poll=3)
    made = run([2.0, -2.0], 6.0, known=[True, False])
    optimizer.begin(made, None)
    assert made.params[0].flatten().tolist() == [3.0, 6.0]  # (6 + 3 * 2) / 4; the first task
    optimizer.step(made, [torch.tensor([[1.0], [2.0]])])
    (states,) = optimizer.finish(made)
    assert states.flatten().tolist() == pytest.approx([2.9, 5.8])
    states.zero_()
    assert made.params[0].flatten().tolist() == pytest.approx([2.9, 5.8])


def test_without_mixing_a_zero_is_a_model_too():
    made = run([0.0, 1.0], 6.0)
    OwnModel(LocalSGD(0.1)).begin(made, None)
    assert made.params[0].flatten().tolist() == [0.0, 1.0]


def test_polls_of_different_sizes():
    """Version 0 answers the first poll, of one client; version 1 the second, of three."""
    optimizer = OwnModel(LocalSGD(lambda version: 0.1), [[0], [0, 1, 2]], lr_correction=True)
    made = run([2.0, 2.0], 6.0, versions=(0, 1))
    optimizer.begin(made, None)
    assert made.params[0].flatten().tolist() == [4.0, 3.0]
    assert [optimizer.lr(version) for version in (0, 1)] == pytest.approx([0.2, 0.4 / 3])
    with pytest.raises(ValueError, match="per_poll lists 2 polls, but a client pulls version 2"):
        optimizer.lr(2)


def test_the_quantizer_has_the_own_model_as_its_key():
    made = run([2.0, 9.0], 6.2)
    OwnModel(LocalSGD(0.1), per_poll=1, quantizer=Lattice(1.0, 2)).begin(made, None)
    # 6.2 is sent as the place 2 of four: 2 near 2, and 10 near 9.
    assert made.params[0].flatten().tolist() == [2.0, 9.5]
