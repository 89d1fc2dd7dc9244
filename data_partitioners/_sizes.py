"""How rows move from large clients to clients that are too small."""

import numpy as np
from numpy.typing import NDArray


def donations(sizes: NDArray[np.int64], minimum: int) -> NDArray[np.int64]:
    """Return how many rows each client must give so that every client has ``minimum``.

    Each row comes from the client that is largest at that moment, and from the last one if several
    are equal, so that decreasing sizes stay decreasing. The sum of ``sizes`` must be at least
    ``minimum`` times the number of clients.

    Example:
        >>> donations(np.array([9, 0, 7, 1, 2]), minimum=2)
        array([2, 0, 1, 0, 0])
        >>> donations(np.array([9, 0, 8, 1, 2]), minimum=3)
        array([3, 0, 3, 0, 0])
    """
    needed = int(np.maximum(minimum - sizes, 0).sum())
    low, high = minimum, int(sizes.max())
    # Taking rows one by one would need as many steps as rows. Bisection finds, in log2(rows)
    # steps, the highest level above which there are enough rows.
    while low < high:
        level = (low + high + 1) // 2
        if np.maximum(sizes - level, 0).sum() >= needed:
            low = level
        else:
            high = level - 1
    given = np.maximum(sizes - low, 0)
    given[np.flatnonzero(given)[: int(given.sum()) - needed]] -= 1
    return given
