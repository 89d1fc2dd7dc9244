from collections import Counter

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_partitioners import PathologicalPartitioner
from data_partitioners.pathological import _deal


def make_dataset(*class_sizes):
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    return datasets.Dataset.from_dict({"label": np.random.default_rng(7).permutation(labels)})


def counts_of(dataset, num_partitions, p, seed=0):
    partition = PathologicalPartitioner(num_partitions, p).partition(dataset, seed)
    return partition.label_counts(dataset)


@pytest.mark.parametrize("p", [1, 2, 5, 10])
@pytest.mark.parametrize("num_partitions", [10, 100])
def test_the_papers_cases_give_equal_shares_of_p_classes(num_partitions, p):
    counts = counts_of(make_dataset(*[600] * 10), num_partitions, p)
    share = 6000 // (num_partitions * p)
    assert set(counts.ravel()) == {0, share} if p < 10 else {share}
    assert ((counts > 0).sum(axis=1) == p).all()
    assert ((counts > 0).sum(axis=0) == num_partitions * p // 10).all()
    assert (counts.sum(axis=1) == 6000 // num_partitions).all()


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 8), st.integers(0, 10**6))
def test_each_class_is_drawn_equally_often(num_partitions, p, more, seed):
    num_classes = p + more
    counts = counts_of(make_dataset(*[40] * num_classes), num_partitions, p, seed)
    assert ((counts > 0).sum(axis=1) == p).all()
    draws = (counts > 0).sum(axis=0)
    assert draws.max() - draws.min() <= 1
    assert draws.sum() == num_partitions * p
    for column in counts.T:
        shares = column[column > 0]
        assert not len(shares) or shares.max() - shares.min() <= 1


def test_every_deal_of_two_of_four_classes_to_four_clients_occurs_alike():
    rng = np.random.default_rng(0)
    deals = Counter(
        tuple(tuple(sorted(holders)) for holders in _deal(4, 2, 4, rng)) for _ in range(9000)
    )
    # There are 90 tables of zeros and ones, 4 by 4, with all sums 2; expected 100 of each. The
    # deal is even in its margins and nearly so in its tables.
    assert len(deals) == 90
    assert min(deals.values()) > 60
    assert max(deals.values()) < 150


def test_classes_of_unequal_size_give_clients_of_unequal_size():
    counts = counts_of(make_dataset(7, 10), num_partitions=4, p=1)
    assert sorted(map(tuple, counts)) == [(0, 5), (0, 5), (3, 0), (4, 0)]


def test_classes_that_nobody_drew_are_unused_with_the_reason():
    dataset = make_dataset(*[5] * 10)
    partition = PathologicalPartitioner(3, 2).partition(dataset, seed=1)
    counts = partition.label_counts(dataset)
    assert sorted(counts.sum(axis=0)) == [0] * 4 + [5] * 6
    assert len(partition.unused) == 20
    nobodys = ", ".join(map(str, np.flatnonzero(counts.sum(axis=0) == 0)))
    assert partition.unused_reason == f"6 draws leave 4 of 10 classes to nobody: {nobodys}"


def test_a_long_list_of_unused_classes_is_cut():
    partition = PathologicalPartitioner(1, 1).partition(make_dataset(*[1] * 9))
    assert partition.unused_reason.startswith("1 draws leave 8 of 9 classes to nobody: ")
    assert partition.unused_reason.endswith(", ...")
    assert partition.unused_reason.count(",") == 5


def test_train_and_test_splits_give_a_client_the_same_classes():
    train, test = make_dataset(*[60] * 10), make_dataset(*[20, 13] * 5)
    held = [counts_of(dataset, 12, 3, seed=5) > 0 for dataset in (train, test)]
    assert (held[0] == held[1]).all()
    assert (held[0] != (counts_of(train, 12, 3, seed=6) > 0)).any()


def test_what_cannot_be_dealt_is_refused_with_the_numbers():
    with pytest.raises(ValueError, match=r"num_classes_per_partition=3 but .* has 2 classes"):
        PathologicalPartitioner(2, 3).partition(make_dataset(5, 5))
    with pytest.raises(ValueError, match="class 1 has 3 rows for 4 clients"):
        PathologicalPartitioner(4, 2).partition(make_dataset(5, 3))
    for value in (1.0, True):
        with pytest.raises(TypeError, match=f"num_classes_per_partition={value} is a"):
            PathologicalPartitioner(4, value)
    with pytest.raises(ValueError, match="num_classes_per_partition=0 is too small"):
        PathologicalPartitioner(4, 0)
