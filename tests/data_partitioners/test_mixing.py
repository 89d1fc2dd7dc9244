import datasets
import numpy as np
import pytest

from data_partitioners import MixingPartitioner

DIGITS = datasets.Dataset.from_dict(
    {"label": np.random.default_rng(1).permutation(np.arange(6000) % 10)}
)


def counts_of(num_partitions, ratio):
    return MixingPartitioner(num_partitions, ratio).partition(DIGITS).label_counts(DIGITS)


def test_ratio_0_is_disjoint_in_the_order_of_labels():
    assert (counts_of(10, 0) == 600 * np.eye(10)).all()
    # Four clients: 1500 rows are two classes and a half.
    assert counts_of(4, 0.0).tolist() == [
        [600, 600, 300, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 300, 600, 600, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 600, 600, 300, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 300, 600, 600],
    ]


def test_ratio_1_is_iid():
    # Hypergeometric: mean 60, standard deviation 7.
    assert np.abs(counts_of(10, 1) - 60).max() < 5 * 7


@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_the_papers_ratios_leave_that_share_at_home(ratio):
    counts = counts_of(10, ratio)
    assert (counts.sum(axis=1) == 600).all()
    # A client's own class: all of the sorted part, about a tenth of its random part.
    assert np.allclose(np.diag(counts), 600 * (1 - 0.9 * ratio), atol=30)


@pytest.mark.parametrize("ratio", [0, 0.1, 1 / 3, 0.5, 0.999, 1])
@pytest.mark.parametrize("num_partitions", [1, 3, 7, 13])
def test_sizes_differ_by_one_row_at_most(num_partitions, ratio):
    dataset = DIGITS.select(range(13))
    sizes = MixingPartitioner(num_partitions, ratio).partition(dataset).sizes
    assert sizes.tolist() == [len(piece) for piece in np.array_split(range(13), num_partitions)]


def test_arguments_are_checked():
    for ratio in (-0.1, 1.1):
        with pytest.raises(ValueError, match=f"ratio={ratio} is no share"):
            MixingPartitioner(3, ratio)
    with pytest.raises(ValueError, match="ratio=nan is not finite"):
        MixingPartitioner(3, float("nan"))
    for ratio in (True, "1"):
        with pytest.raises(TypeError, match=f"ratio={ratio!r} is a"):
            MixingPartitioner(3, ratio)
