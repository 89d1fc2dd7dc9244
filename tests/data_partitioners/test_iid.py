import datasets
import numpy as np

from data_partitioners import IidPartitioner


def test_sizes_differ_by_one_row_at_most():
    dataset = datasets.Dataset.from_dict({"x": range(11)})
    assert IidPartitioner(4).partition(dataset).sizes.tolist() == [3, 3, 3, 2]
    assert IidPartitioner(11).partition(dataset).sizes.tolist() == [1] * 11
    assert IidPartitioner(1).partition(dataset)[0].tolist() == list(range(11))


def test_each_row_goes_to_each_client_equally_often():
    dataset = datasets.Dataset.from_dict({"x": range(6)})
    counts = np.zeros((3, 6))
    for seed in range(900):
        for client_id, rows in enumerate(IidPartitioner(3).partition(dataset, seed)):
            counts[client_id, rows] += 1
    # Binomial(900, 1/3): mean 300, standard deviation 14.
    assert np.abs(counts - 300).max() < 5 * 14
