"""One random generator per concern; the global state is neither read nor changed."""

from typing import Any

import numpy as np

from data_partitioners._checks import check_integer


def generator(seed: Any, concern: str) -> np.random.Generator:
    """Return the generator for one concern of a partitioner, such as "rows"."""
    # The concern is part of the key, so no other use of the same seed draws the same numbers.
    key = tuple(f"data_partitioners.{concern}".encode())
    return np.random.default_rng(
        np.random.SeedSequence(check_integer("seed", seed, 0), spawn_key=key)
    )
