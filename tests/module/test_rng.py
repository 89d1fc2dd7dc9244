import random
from contextlib import suppress

import numpy as np
import pytest
import torch

from fedlight._module.rng import drawn_from, isolated_rng, seed_all


def draws():
    return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002


def test_seeded_and_put_back():
    seed_all(1)
    expected = draws()
    seed_all(1)
    with isolated_rng():
        seed_all(2)
        inside = draws()
    assert draws() == expected
    assert all(a != b for a, b in zip(inside, expected, strict=True))


def test_put_back_after_an_error():
    seed_all(1)
    expected = draws()
    seed_all(1)
    with suppress(RuntimeError), isolated_rng():
        seed_all(2)
        raise RuntimeError
    assert draws() == expected


@pytest.mark.parametrize("seed", [0, -1, 2**32, 2**63 - 1, 2**63, -(2**70), 2**200])
def test_any_integer_is_a_seed(seed):
    with isolated_rng():
        seed_all(seed)
        one = draws()
        seed_all(seed)
        assert draws() == one


def test_a_generator_that_is_not_used_counts_as_no_draw():
    own = {"used": torch.Generator(), "spare": torch.Generator(), "numpy": np.random.default_rng(0)}
    with isolated_rng(own.values()):
        seed_all(3, own.values())
        torch.rand(1, generator=own["used"])
        assert drawn_from(3, own) == ["used"]
