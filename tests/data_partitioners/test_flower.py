import os
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest

import data_partitioners
from data_partitioners import FlowerPartitioner

DIGITS = datasets.Dataset.from_dict(
    {
        "label": np.random.default_rng(1).permutation(np.arange(300) % 10),
        "x": np.arange(300),
        "writer": [f"w{row % 4}" for row in range(300)],
    }
)


def test_flower_is_not_imported_with_the_package():
    code = (
        "import sys, data_partitioners; "
        "print([m for m in ('flwr', 'flwr_datasets', 'torch', 'fedlight') if m in sys.modules])"
    )
    root = str(Path(data_partitioners.__file__).parents[1])
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": root}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def flower():
    return pytest.importorskip(
        "flwr_datasets.partitioner",
        reason="flwr-datasets is not installed (flwr-datasets 0.6.1 asks for datasets < 5)",
    )


@pytest.mark.parametrize(
    ("name", "arguments", "num_partitions"),
    [
        ("IidPartitioner", {"num_partitions": 7}, 7),
        (
            "DirichletPartitioner",
            {"num_partitions": 5, "partition_by": "label", "alpha": 0.5, "min_partition_size": 2},
            5,
        ),
        (
            "PathologicalPartitioner",
            {"num_partitions": 10, "partition_by": "label", "num_classes_per_partition": 2},
            10,
        ),
        ("NaturalIdPartitioner", {"partition_by": "writer"}, 4),
    ],
)
# Flower's pathological partitioner may leave classes to nobody, and says so by a warning.
@pytest.mark.filterwarnings("ignore:Classes.*NOT be used:UserWarning")
def test_rows_are_those_of_flowers_partitions(flower, name, arguments, num_partitions):
    ours = FlowerPartitioner(getattr(flower, name)(**arguments))
    partition = ours.partition(DIGITS)
    theirs = getattr(flower, name)(**arguments)
    theirs.dataset = DIGITS
    assert len(partition) == num_partitions
    for client_id in range(num_partitions):
        assert partition[client_id].tolist() == sorted(theirs.load_partition(client_id)["x"])
    counts = partition.label_counts(DIGITS)
    if name == "PathologicalPartitioner":
        assert ((counts > 0).sum(axis=1) == 2).all()
        assert len(partition.unused) == 30 * (counts.sum(axis=0) == 0).sum() > 0
    else:
        assert len(partition.unused) == 0
    assert ours.partition(DIGITS) == partition


def test_a_used_flower_partitioner_is_refused(flower):
    used = flower.IidPartitioner(3)
    used.dataset = DIGITS
    with pytest.raises(ValueError, match="has a data set already"):
        FlowerPartitioner(used)


class FixedShares:
    """Hands out fixed rows the way a partitioner of flwr-datasets does."""

    dataset = None

    def __init__(self, *shares, columns=None):
        self.shares, self.columns = shares, columns
        self.num_partitions = len(shares)

    def load_partition(self, partition_id):
        part = self.dataset.select(self.shares[partition_id])
        return part.select_columns(self.columns) if self.columns else part


def partition_of(*shares, **arguments):
    return FlowerPartitioner(FixedShares(*shares, **arguments)).partition(DIGITS.select(range(6)))


def test_rows_left_out_are_unused_with_the_reason():
    partition = partition_of([5, 0], [2])
    assert [share.tolist() for share in partition] == [[0, 5], [2]]
    assert partition.unused.tolist() == [1, 3, 4]
    assert partition.unused_reason == "FixedShares gave them to nobody"


def test_the_data_set_is_seen_whole_and_no_file_is_written(tmp_path):
    DIGITS.save_to_disk(tmp_path / "digits")
    before = sorted(tmp_path.rglob("*"))
    stored = datasets.load_from_disk(tmp_path / "digits").select([9, 8, 7])
    seen = []

    class Look(FixedShares):
        def load_partition(self, partition_id):
            seen.append(self.dataset[0])
            return super().load_partition(partition_id)

    assert FlowerPartitioner(Look([0, 1, 2])).partition(stored)[0].tolist() == [0, 1, 2]
    assert {name: seen[0][name] for name in stored.column_names} == stored[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_bad_shares_are_refused():
    with pytest.raises(ValueError, match="gave client 1 of 2 no rows"):
        partition_of([0, 1], [])
    with pytest.raises(ValueError, match="client 1 rows that are held already, 1 of them by other"):
        partition_of([0, 1], [1, 2])
    with pytest.raises(ValueError, match="client 0 rows that are held already, 0 of them by other"):
        partition_of([0, 0], [1])
    with pytest.raises(ValueError, match=r"client 0 the columns \['x'\] without the rows' numbers"):
        partition_of([0], [1], columns=["x"])


@pytest.mark.parametrize("nonsense", [None, "iid", 3, FixedShares])
def test_what_is_no_partitioner_is_refused(nonsense):
    with pytest.raises(TypeError, match=r"give an object such as flwr_datasets\.partitioner"):
        FlowerPartitioner(nonsense)
