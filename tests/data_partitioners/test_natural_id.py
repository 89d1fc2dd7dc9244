import datasets
import numpy as np
import pytest

from data_partitioners import NaturalIdPartitioner
from tests.work import bounded_work

BY_WRITER = NaturalIdPartitioner("writer")


def make_dataset(*writers):
    return datasets.Dataset.from_dict({"writer": writers})


def test_clients_are_numbered_by_sorted_id():
    partition = BY_WRITER.partition(make_dataset("cy", "ann", "cy", "Bob", "élan", "cy"))
    assert partition.client_ids == ("Bob", "ann", "cy", "élan")
    assert [share.tolist() for share in partition] == [[3], [1], [0, 2, 5], [4]]


def test_integers_are_sorted_as_numbers():
    partition = BY_WRITER.partition(make_dataset(10, 9, -1, 10))
    assert partition.client_ids == ("-1", "9", "10")
    assert [share.tolist() for share in partition] == [[2], [1], [0, 3]]


def test_who_is_who_does_not_depend_on_the_order_of_rows():
    writers = [f"f{number:04d}_{number % 7}" for number in range(300)] * 2
    orders = [np.random.default_rng(seed).permutation(600) for seed in range(3)]
    partitions = [BY_WRITER.partition(make_dataset(*writers).select(order)) for order in orders]
    for order, partition in zip(orders, partitions, strict=True):
        assert partition.client_ids == tuple(sorted(set(writers)))
        for client_id in (0, 17, 299):
            names = {writers[order[row]] for row in partition[client_id]}
            assert names == {partition.client_ids[client_id]}


class TestClientIdsOfAnotherSplit:
    def test_ids_missing_on_either_side(self):
        train = BY_WRITER.partition(make_dataset("cy", "ann", "bob"))
        test = BY_WRITER.partition(make_dataset("dan", "cy", "ann", "cy"), 0, train.client_ids)
        assert test.client_ids == train.client_ids == ("ann", "bob", "cy")
        assert [share.tolist() for share in test] == [[2], [], [1, 3]]
        assert test.unused.tolist() == [0]
        assert test.unused_reason == "1 id not among client_ids: dan"

    def test_ids_that_are_numbers(self):
        train = BY_WRITER.partition(make_dataset(10, 9, 2))
        test = BY_WRITER.partition(make_dataset(9, 10, 10), client_ids=train.client_ids)
        assert test.sizes.tolist() == [0, 1, 2]

    def test_the_given_order_is_kept(self):
        partition = BY_WRITER.partition(make_dataset("a", "b"), client_ids=["b", "a"])
        assert partition.client_ids == ("b", "a")
        again = BY_WRITER.partition(make_dataset("a", "b"), client_ids=(name for name in "ba"))
        assert again == partition
        assert partition[0].tolist() == [1]

    def test_many_strangers_are_listed_in_part(self):
        partition = BY_WRITER.partition(make_dataset(*"abcdefgh"), client_ids=["a"])
        assert partition.unused_reason == "7 ids not among client_ids: b, c, d, e, f, ..."

    def test_nonsense_is_refused(self):
        dataset = make_dataset("a", "b")
        with pytest.raises(ValueError, match=r"none of the 2 ids .*'a'\) .* 1 client_ids .*'x'"):
            BY_WRITER.partition(dataset, client_ids=["x"])
        with pytest.raises(ValueError, match="has 3 ids, 2 of them distinct"):
            BY_WRITER.partition(dataset, client_ids=["a", "b", "a"])
        with pytest.raises(ValueError, match=r"client_ids=\[\] has 0 ids"):
            BY_WRITER.partition(dataset, client_ids=[])
        for client_ids in ("ab", [1, 2], {"a", "b"}, 5):
            with pytest.raises(TypeError, match="client_ids must be a sequence of strings"):
                BY_WRITER.partition(dataset, client_ids=client_ids)


def test_ids_are_integers_or_strings():
    for writers in ([1.5, 2.5], [True, False]):
        with pytest.raises(ValueError, match="ids are integers or strings"):
            BY_WRITER.partition(make_dataset(*writers))
    empty = datasets.Dataset.from_dict(
        {"writer": []}, features=datasets.Features({"writer": datasets.Value("string")})
    )
    with pytest.raises(ValueError, match="no rows, hence no ids"):
        BY_WRITER.partition(empty)


def test_100_000_writers_cost_no_pass_each():
    writers = np.arange(300_000) % 100_000
    dataset = datasets.Dataset.from_dict({"writer": [f"writer {number}" for number in writers]})
    # One pass over the data for each of 3500 writers took others 60 hours.
    with bounded_work(lines=50_000):
        partition = BY_WRITER.partition(dataset)
    assert len(partition) == 100_000
