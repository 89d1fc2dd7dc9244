import datasets
import numpy as np
import pytest

from data_partitioners import Partition

ROWS = np.array([4, 0, 1, 3])
OFFSETS = np.array([0, 1, 4])


def make(**changes):
    arguments = {"rows": ROWS, "offsets": OFFSETS, "unused": np.array([2]), "unused_reason": "odd"}
    return Partition(**{**arguments, **changes})


def test_looks_like_a_sequence_of_shares():
    partition = make()
    assert len(partition) == 2
    assert [share.tolist() for share in partition] == [[4], [0, 1, 3]]
    assert partition[-1].tolist() == [0, 1, 3]
    assert partition.sizes.tolist() == [1, 3]
    assert np.shares_memory(partition[1], partition.rows)
    for outside in (2, -3):
        with pytest.raises(IndexError, match=f"client {outside} of a partition with 2 clients"):
            partition[outside]


def test_says_in_one_line_what_was_achieved():
    assert repr(make()) == "Partition(2 clients with 1 to 3 of 5 rows, 1 unused: odd)"


def test_equality_is_of_contents():
    assert make() == make()
    assert make() != make(rows=np.array([4, 0, 3, 1]))
    assert make() != make(unused_reason="even")
    assert make() != make(client_ids=("a", "b"))
    assert make() != "something else"
    with pytest.raises(TypeError, match="unhashable"):
        hash(make())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offsets": np.array([0, 1, 3])}, "must rise from 0 to the 4 rows"),
        ({"offsets": np.array([1, 2, 4])}, "must rise from 0"),
        ({"offsets": np.array([0, 5, 4])}, "must rise from 0"),
        ({"offsets": np.array([0])}, "must rise from 0"),
        ({"offsets": np.array([0, 0, 4, 4])}, "2 of 3 clients have no rows, the first is client 0"),
        ({"rows": np.array([4, 0, 1, 1])}, "row 3 is in neither rows nor unused"),
        ({"rows": np.array([4, 0, 1, 2])}, "row 3 is in neither"),
        ({"rows": np.array([5, 0, 1, 3])}, r"0\.\.4 once, but they reach from 0 to 5"),
        ({"rows": np.array([-1, 0, 1, 3])}, "reach from -1 to 3"),
        ({"unused_reason": ""}, "1 rows are unused; say why in unused_reason"),
        ({"client_ids": ("a",)}, "1 client_ids for 2 clients"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


@pytest.mark.parametrize("rows", [np.array([4.0, 0, 1, 3]), np.array([[4, 0, 1, 3]])])
def test_rows_are_flat_integers(rows):
    with pytest.raises(TypeError, match=r"rows is array\(.*, an array of"):
        make(rows=rows)


def test_empty_shares_need_natural_ids():
    partition = Partition(np.array([0]), np.array([0, 0, 1]), client_ids=("ann", "bob"))
    assert partition.sizes.tolist() == [0, 1]
    assert partition[0].tolist() == []


def test_from_owners():
    partition = Partition.from_owners(np.array([2, -1, 0, 2, 1, 0, -1]), 3, unused_reason="why")
    assert [share.tolist() for share in partition] == [[2, 5], [4], [0, 3]]
    assert partition.unused.tolist() == [1, 6]
    assert partition.unused_reason == "why"
    assert Partition.from_owners(np.array([0]), 1, unused_reason="why").unused_reason == ""
    for owners in ([0, 3, 1, 2], [0, -2, 1, 2]):
        with pytest.raises(ValueError, match=r"with num_partitions=3 they are -1\.\.2"):
            Partition.from_owners(np.array(owners), 3)


class TestLabelCounts:
    def test_by_hand(self):
        assert make().label_counts([7, 7, 1, 5, 7]).tolist() == [[0, 0, 1], [0, 1, 2]]
        assert make().label_counts(["b", "b", "a", "b", "a"]).tolist() == [[1, 0], [0, 3]]

    def test_of_a_data_set(self):
        dataset = datasets.Dataset.from_dict({"digit": [7, 7, 1, 5, 7]})
        assert make().label_counts(dataset, column="digit").tolist() == [[0, 0, 1], [0, 1, 2]]
        with pytest.raises(ValueError, match=r"no column 'label'; its columns are \['digit'\]"):
            make().label_counts(dataset)

    def test_named_classes_have_a_column_even_without_rows(self):
        features = datasets.Features({"label": datasets.ClassLabel(names=list("abcd"))})
        dataset = datasets.Dataset.from_dict({"label": [3, 0, 0, 1, 3]}, features=features)
        assert make().label_counts(dataset).tolist() == [[0, 0, 0, 1], [1, 1, 0, 1]]

    @pytest.mark.parametrize("labels", [[1, 2, None, 1, 1], [1.0, 2.0, np.nan, 1.0, 1.0]])
    def test_gaps_are_refused(self, labels):
        with pytest.raises(ValueError, match="1 of 5 labels are None or NaN"):
            make().label_counts(labels)

    def test_one_label_per_row(self):
        with pytest.raises(ValueError, match="3 labels for 5 rows"):
            make().label_counts([1, 2, 3])
        with pytest.raises(ValueError, match=r"labels=array.* have shape \(5, 1\)"):
            make().label_counts(np.zeros((5, 1)))
