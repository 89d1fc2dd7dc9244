"""How many workers have room in a Ray cluster."""

import pytest

from fedlight.executors._remote.cluster import room, share_of_gpus


@pytest.mark.parametrize(
    ("cards", "workers", "each"),
    [(0, 3, 0.0), (1, 1, 1.0), (4, 3, 1.0), (2, 3, 0.5), (2, 5, 0.3333), (1, 7, 0.1428)],
)
def test_gpus_are_shared_so_that_all_workers_fit(cards, workers, each) -> None:
    assert share_of_gpus(cards, workers) == each
    assert room(cards, each) >= workers
