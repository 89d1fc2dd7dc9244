import datasets
import numpy as np
import pytest

from data_partitioners import DirichletPartitioner
from data_partitioners._sizes import donations
from data_partitioners.dirichlet import _draw_dirichlet
from tests.work import bounded_work

MNIST_LIKE = datasets.Dataset.from_dict({"label": np.arange(60_000) % 10})


@pytest.mark.parametrize(
    ("num_partitions", "alpha", "least"),
    [
        (100, 0.1, 1),
        (100, 0.1, 10),
        (1000, 0.05, 1),
        (1000, 0.05, 60),
        (60_000, 0.05, 1),
        (1000, 1e-3, 10),
        (10, 1e-300, 1),
        (10, 5e-324, 6000),
        (10, 1e308, 6000),
    ],
)
def test_cases_in_which_others_hang_or_give_up_or_divide_zero_by_zero(num_partitions, alpha, least):
    partitioner = DirichletPartitioner(num_partitions, alpha, min_partition_size=least)
    with bounded_work(lines=50_000):  # 11,000, most of them where `datasets` reads the column
        partition = partitioner.partition(MNIST_LIKE)
    assert len(partition) == num_partitions
    assert partition.sizes.min() >= least
    assert partition.sizes.sum() == 60_000


def test_small_alpha_is_skewed_and_large_alpha_even():
    def largest_share(alpha):
        counts = DirichletPartitioner(10, alpha).partition(MNIST_LIKE).label_counts(MNIST_LIKE)
        return counts.max(axis=0) / counts.sum(axis=0)

    assert largest_share(1e-4).min() > 0.95
    assert 0.2 < largest_share(0.5).mean() < 0.8
    assert largest_share(1e6).max() < 0.11


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0, 20.0])
def test_the_proportions_have_a_dirichlets_moments(alpha):
    rng = np.random.default_rng(0)
    draws = np.stack([_draw_dirichlet(alpha, 4, rng) for _ in range(20_000)])
    assert np.allclose(draws.sum(axis=1), 1)
    # Each is Beta(alpha, 3·alpha): mean 1/4, variance (1/4)(3/4)/(4·alpha + 1).
    variance = 3 / 16 / (4 * alpha + 1)
    assert np.allclose(draws.mean(axis=0), 0.25, atol=5 * np.sqrt(variance / 20_000))
    assert np.allclose(draws.var(axis=0), variance, rtol=0.05)


def test_counts_are_the_proportions_within_one_row():
    # Without repair: the ends of the shares are rounded, so each count is off by less than one.
    dataset = datasets.Dataset.from_dict({"label": [0] * 1000})
    counts = DirichletPartitioner(7, 50.0).partition(dataset, seed=2).sizes
    train = DirichletPartitioner(7, 50.0).partition(MNIST_LIKE, seed=2)
    other = train.label_counts(MNIST_LIKE)[:, 0]
    assert np.abs(counts * 6 - other).max() <= 6


def test_filling_up_takes_from_the_largest_only():
    assert donations(np.array([5, 4, 3, 0, 0]), 1).tolist() == [1, 1, 0, 0, 0]
    assert donations(np.array([5, 4, 3]), 3).tolist() == [0, 0, 0]
    assert donations(np.array([0, 6, 0]), 2).tolist() == [0, 4, 0]


def test_filling_up_equals_moving_row_after_row():
    rng = np.random.default_rng(3)
    for _ in range(200):
        sizes = rng.integers(0, 12, size=8)
        minimum = int(rng.integers(0, sizes.sum() // 8 + 1))
        moved = sizes.copy()
        while moved.min() < minimum:
            moved[moved.argmin()] += 1
            moved[moved.argmax()] -= 1
        ours = np.maximum(sizes, minimum) - donations(sizes, minimum)
        assert sorted(ours) == sorted(moved)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"alpha=0\.0 is no concentration"):
        DirichletPartitioner(3, 0.0)
    for alpha in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"alpha={alpha} is not finite"):
            DirichletPartitioner(3, alpha)
    for alpha in (True, "0.1", None):
        with pytest.raises(TypeError, match=f"alpha={alpha!r} is a"):
            DirichletPartitioner(3, alpha)
    with pytest.raises(ValueError, match="min_partition_size=0 is too small"):
        DirichletPartitioner(3, 1, min_partition_size=0)
    with pytest.raises(ValueError, match=r"at least 3 .* need 12 rows, .* has 10; give .* <= 3"):
        DirichletPartitioner(4, 0.5, min_partition_size=3).partition(MNIST_LIKE.select(range(10)))


def test_a_column_that_is_missing_names_the_argument():
    rows = datasets.Dataset.from_dict({"x": [0.0] * 9, "species": [0, 1, 2] * 3})
    words = r"its columns are \['x', 'species'\]: give the partitioner one of them"
    with pytest.raises(ValueError, match=f"{words} as partition_by="):
        DirichletPartitioner(3, 1.0).partition(rows)
    assert len(DirichletPartitioner(3, 1.0, "species").partition(rows)) == 3
