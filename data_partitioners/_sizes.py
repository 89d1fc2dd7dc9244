"""Arithmetic of sizes."""

import numpy as np
from numpy.typing import NDArray


def donations(sizes: NDArray[np.int64], minimum: int) -> NDArray[np.int64]:
    """Return how many rows each client must give so that all reach ``minimum``.

    Each row is taken from whoever is the largest at that moment, the last of equals, so that
    sizes that fall still do so afterwards. The sum of ``sizes`` must reach ``minimum`` times
    their number.

    Example:
        >>> donations(np.array([9, 0, 7, 1, 2]), minimum=2)
        array([2, 0, 1, 0, 0])
        >>> donations(np.array([9, 0, 8, 1, 2]), minimum=3)
        array([3, 0, 3, 0, 0])
    """
    needed = int(np.maximum(minimum - sizes, 0).sum())
    low, high = minimum, int(sizes.max())
    # The highest level above which there are enough rows: bisection, log2(rows) steps.
    while low < high:
        level = (low + high + 1) // 2
        if np.maximum(sizes - level, 0).sum() >= needed:
            low = level
        else:
            high = level - 1
    given = np.maximum(sizes - low, 0)
    given[np.flatnonzero(given)[: int(given.sum()) - needed]] -= 1
    return given
