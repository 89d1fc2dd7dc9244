import datasets
import numpy as np
import pytest

from data_partitioners import QuantityPartitioner


def sizes_of(num_rows, num_partitions, **arguments):
    dataset = datasets.Dataset.from_dict({"x": range(num_rows)})
    return QuantityPartitioner(num_partitions, **arguments).partition(dataset).sizes.tolist()


def test_the_power_law_by_hand():
    # 1 : 1/2 : 1/3 is 6 : 3 : 2, and 1 : 1/4 : 1/9 is 36 : 9 : 4.
    assert sizes_of(110, 3, exponent=1) == [60, 30, 20]
    assert sizes_of(490, 3, exponent=2.0) == [360, 90, 40]
    assert sizes_of(49, 3, exponent=2) == [36, 9, 4]
    # 54.5, 27.3, 18.2 rounded down leaves one row to the first client.
    assert sizes_of(100, 3, exponent=1) == [55, 27, 18]
    assert sizes_of(11, 4, exponent=0) == [3, 3, 3, 2]


def test_nobody_is_left_without_a_row():
    assert sizes_of(10, 5, exponent=4) == [6, 1, 1, 1, 1]
    assert sizes_of(5, 5, exponent=4) == [1] * 5
    assert sizes_of(10, 5, exponent=1e300) == [6, 1, 1, 1, 1]


@pytest.mark.parametrize("exponent", [0, 0.3, 1, 1.7, 6])
def test_sizes_fall_and_add_up(exponent):
    for num_partitions in (1, 2, 17, 300):
        sizes = sizes_of(300, num_partitions, exponent=exponent)
        assert sum(sizes) == 300
        assert sizes == sorted(sizes, reverse=True)


def test_given_sizes():
    dataset = datasets.Dataset.from_dict({"x": range(10)})
    partition = QuantityPartitioner(3, sizes=[2, 5, 1]).partition(dataset)
    assert partition.sizes.tolist() == [2, 5, 1]
    assert len(partition.unused) == 2
    assert partition.unused_reason == "sizes add up to 8 of 10 rows"
    assert sizes_of(8, 3, sizes=np.array([2, 5, 1])) == [2, 5, 1]


def test_sizes_are_copied():
    sizes = [2, 5]
    partitioner = QuantityPartitioner(2, sizes=sizes)
    sizes[0] = 7
    assert partitioner.sizes == (2, 5)


def test_arguments_are_checked():
    for arguments in ({}, {"exponent": 1.0, "sizes": [1, 1]}):
        with pytest.raises(ValueError, match="give exactly one of them"):
            QuantityPartitioner(2, **arguments)
    with pytest.raises(ValueError, match=r"exponent=-0\.5 is negative"):
        QuantityPartitioner(2, exponent=-0.5)
    with pytest.raises(TypeError, match="exponent=True is a bool"):
        QuantityPartitioner(2, exponent=True)
    with pytest.raises(ValueError, match="3 sizes for num_partitions=2"):
        QuantityPartitioner(2, sizes=[1, 2, 3])
    with pytest.raises(ValueError, match="each of sizes=0 is too small"):
        QuantityPartitioner(2, sizes=[1, 0])
    for sizes in ([1, 2.0], [1, True], "12", 2, {1: 50, 2: 70}, {50, 70}):
        with pytest.raises(TypeError, match="sizes="):
            QuantityPartitioner(2, sizes=sizes)
    with pytest.raises(ValueError, match="sizes add up to 12 rows, the data set has 10"):
        sizes_of(10, 2, sizes=[11, 1])
