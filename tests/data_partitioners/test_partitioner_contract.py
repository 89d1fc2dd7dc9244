"""What holds for every partitioner: a new one is a row of the registry."""

import pickle

import datasets
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from data_partitioners import (
    DirichletPartitioner,
    FlowerPartitioner,
    IidPartitioner,
    MixingPartitioner,
    NaturalIdPartitioner,
    Partition,
    PathologicalPartitioner,
    QuantityPartitioner,
)
from tests.work import bounded_work


class DealByTurns:
    """Looks like a partitioner of flwr-datasets and gives row r to client r mod M."""

    dataset = None

    def __init__(self, num_partitions):
        self.num_partitions = num_partitions

    def load_partition(self, partition_id):
        return self.dataset.shard(self.num_partitions, partition_id, contiguous=False)


# From (number of clients, another number in 1..4) to a partitioner.
REGISTRY = {
    "iid": lambda m, _: IidPartitioner(m),
    "pathological": lambda m, p: PathologicalPartitioner(m, num_classes_per_partition=p),
    "dirichlet": lambda m, p: DirichletPartitioner(m, alpha=10.0 ** (2 - 2 * p)),
    "dirichlet of at least two": lambda m, p: DirichletPartitioner(
        m, alpha=1 / p, min_partition_size=2
    ),
    "natural": lambda _, __: NaturalIdPartitioner("writer"),
    "mixing": lambda m, p: MixingPartitioner(m, ratio=(p - 1) / 3),
    "power law": lambda m, p: QuantityPartitioner(m, exponent=p - 1),
    "given sizes": lambda m, p: QuantityPartitioner(m, sizes=(p,) * int(m or 1)),
    "flower": lambda m, _: FlowerPartitioner(DealByTurns(m)),
}
SEEDLESS = {"natural", "flower"}


def make_dataset(labels, writers=None):
    if writers is None:
        writers = [f"w{row % 7}" for row in range(len(labels))]
    return datasets.Dataset.from_dict({"label": labels, "writer": writers})


def is_possible(name, clients, number, labels):
    _, counts = np.unique(labels, return_counts=True)
    if name == "natural":
        return True
    if name == "pathological":
        fewest, over = divmod(clients * number, len(counts))
        # Which classes get one holder more is random: leave out what depends on it.
        assume(not over or counts.min() != fewest or number > len(counts))
        return number <= len(counts) and counts.min() >= fewest
    least = {"dirichlet of at least two": 2, "given sizes": number}.get(name, 1)
    return len(labels) >= least * clients


BALANCED = make_dataset([row % 5 for row in range(200)])


@pytest.mark.parametrize("name", REGISTRY)
# Not function-scoped state, only a parameter; a slow machine is no failure.
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_shares_are_disjoint_nonempty_and_account_for_every_row(name, data):
    labels = data.draw(st.lists(st.integers(-2, 4), min_size=1, max_size=60))
    writers = data.draw(
        st.lists(st.text(max_size=2), min_size=len(labels), max_size=len(labels)), label="writers"
    )
    clients, number = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4))
    seed = data.draw(st.integers(0, 2**70))
    dataset = make_dataset(labels, writers)
    partitioner = REGISTRY[name](clients, number)
    if not is_possible(name, clients, number, labels):
        # What cannot be done is refused with numbers, and only then.
        with pytest.raises(ValueError, match=r"\d"):
            partitioner.partition(dataset, seed)
        return
    partition = partitioner.partition(dataset, seed)
    assert len(partition) == (len(set(writers)) if name == "natural" else clients)
    assert partition.sizes.min() >= 1
    assert sorted([*partition.rows, *partition.unused]) == list(range(len(labels)))
    assert [row for share in partition for row in share] == partition.rows.tolist()
    assert bool(len(partition.unused)) == bool(partition.unused_reason)
    assert all((np.diff(share) > 0).all() for share in partition)
    assert {array.dtype for array in (partition.rows, partition.offsets, partition.unused)} == {
        np.dtype(np.int64)
    }
    counts = partition.label_counts(dataset)
    assert counts.sum(axis=1).tolist() == partition.sizes.tolist()


@pytest.mark.parametrize("name", REGISTRY)
def test_the_seed_decides_and_nothing_else(name):
    partitioner = REGISTRY[name](6, 2)
    first = partitioner.partition(BALANCED, seed=3)
    np.random.seed(12345)  # noqa: NPY002 (the global state is what must not matter)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    assert partitioner.partition(BALANCED, seed=3) == first
    assert REGISTRY[name](6, 2).partition(BALANCED, np.int64(3)) == first
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    assert (partitioner.partition(BALANCED, seed=4) == first) == (name in SEEDLESS)


@pytest.mark.parametrize(
    "partitioner",
    [
        IidPartitioner(2),
        PathologicalPartitioner(2, 1),
        DirichletPartitioner(2, alpha=1e9),
        MixingPartitioner(2, ratio=0),
        MixingPartitioner(2, ratio=0.5),
        QuantityPartitioner(2, exponent=0),
        QuantityPartitioner(2, sizes=[2, 2]),
    ],
    ids=repr,
)
def test_rows_of_one_class_are_shuffled(partitioner):
    dataset = make_dataset([0] * 4)
    halves = [tuple(partitioner.partition(dataset, seed)[0]) for seed in range(120)]
    # Each of the six pairs of four rows, expected 20 times.
    assert len(set(halves)) == 6
    assert min(halves.count(half) for half in halves) > 4


@pytest.mark.parametrize("name", REGISTRY)
def test_a_selected_formatted_data_set_is_read_as_it_looks(name):
    order = np.random.default_rng(0).permutation(400)[:200]
    big = make_dataset([row % 4 for row in range(400)])
    seen = big.select(order)
    plain = make_dataset([int(row) % 4 for row in order], [f"w{row % 7}" for row in order])
    seen.set_transform(lambda batch: {"something": [0] * len(next(iter(batch.values())))})
    partitioner = REGISTRY[name](5, 2)
    assert partitioner.partition(seen, 1) == partitioner.partition(plain, 1)


@pytest.mark.parametrize("name", REGISTRY)
def test_partitioners_are_unchangeable_values(name):
    partitioner = REGISTRY[name](6, 2)
    with pytest.raises(AttributeError):
        partitioner.num_partitions = 3
    assert type(partitioner).__name__ in repr(partitioner)
    if name != "flower":
        assert partitioner == REGISTRY[name](6, 2)
        assert pickle.loads(pickle.dumps(partitioner)) == partitioner


@pytest.mark.parametrize("name", REGISTRY)
def test_what_is_no_data_set_or_no_seed_is_refused(name):
    partitioner = REGISTRY[name](2, 2)
    with pytest.raises(TypeError, match=r"dataset=\[1, 2, 3\] is a list"):
        partitioner.partition([1, 2, 3])
    with pytest.raises(TypeError, match=r"several splits; give one of \['test', 'train'\]"):
        partitioner.partition(datasets.DatasetDict(train=BALANCED, test=BALANCED))
    for seed in (1.0, True, None):
        with pytest.raises(TypeError, match=f"seed={seed!r} is a"):
            partitioner.partition(BALANCED, seed=seed)
    with pytest.raises(ValueError, match="seed=-1 is too small"):
        partitioner.partition(BALANCED, seed=-1)


@pytest.mark.parametrize("name", [name for name in REGISTRY if name not in SEEDLESS])
def test_bad_numbers_of_clients_are_refused_at_construction(name):
    for value in (2.0, True, "2", None):
        with pytest.raises(TypeError, match=f"num_partitions={value!r} is a"):
            REGISTRY[name](value, 2) if name != "given sizes" else QuantityPartitioner(
                value, sizes=[1]
            )
    with pytest.raises(ValueError, match="num_partitions=0 is too small"):
        REGISTRY[name](0, 2)


@pytest.mark.parametrize("name", [name for name in REGISTRY if name not in SEEDLESS])
def test_more_clients_than_rows_are_refused_with_both_numbers(name):
    with pytest.raises(ValueError, match=r"201.*(200|40)|40.*201|402"):
        REGISTRY[name](201, 1).partition(BALANCED)


LABELLED = {
    "pathological": lambda column: PathologicalPartitioner(2, 1, partition_by=column),
    "dirichlet": lambda column: DirichletPartitioner(2, 0.5, partition_by=column),
    "mixing": lambda column: MixingPartitioner(2, 0.5, partition_by=column),
    "natural": lambda column: NaturalIdPartitioner(partition_by=column),
}


@pytest.mark.parametrize("name", LABELLED)
class TestColumn:
    def test_missing_column_is_named_and_the_others_listed(self, name):
        with pytest.raises(ValueError, match=r"no column 'digit'; its columns are \['label', 'wri"):
            LABELLED[name]("digit").partition(BALANCED)

    def test_name_is_checked_at_construction(self, name):
        with pytest.raises(TypeError, match="partition_by=3 is a int"):
            LABELLED[name](3)
        with pytest.raises(ValueError, match="partition_by='' names no column"):
            LABELLED[name]("")

    def test_gaps_are_refused(self, name):
        partitioner = LABELLED[name]("x")
        for gappy in ([1, None, 2, None], ["a", None, None, "b"], [None] * 4):
            dataset = datasets.Dataset.from_dict({"x": gappy})
            with pytest.raises(ValueError, match=r"'x' is None in \d of 4 rows"):
                partitioner.partition(dataset)
        with pytest.raises(ValueError, match=r"'x' is NaN in 2 of 3 rows"):
            partitioner.partition(datasets.Dataset.from_dict({"x": [1.0, np.nan, np.nan]}))
        features = datasets.Features({"x": datasets.ClassLabel(names=["cat", "dog"])})
        unlabelled = datasets.Dataset.from_dict({"x": [0, -1, 1]}, features=features)
        with pytest.raises(ValueError, match=r"'x' is unlabelled \(-1\) in 1 of 3 rows"):
            partitioner.partition(unlabelled)

    def test_lists_are_refused(self, name):
        with pytest.raises(ValueError, match="'x' holds list"):
            LABELLED[name]("x").partition(datasets.Dataset.from_dict({"x": [[1], [2]]}))

    def test_strings_numbers_and_chunks_all_work(self, name):
        words = ["b", "a", "c", "a", "b", "c"] * 4
        pieces = [datasets.Dataset.from_dict({"x": words[i : i + 6]}) for i in range(0, 24, 6)]
        numbers = datasets.Dataset.from_dict({"x": [" abc".index(word) for word in words]})
        chunked = LABELLED[name]("x").partition(datasets.concatenate_datasets(pieces), 5)
        assert np.array_equal(chunked.rows, LABELLED[name]("x").partition(numbers, 5).rows)


@pytest.fixture(scope="module")
def half_a_million_rows():
    rows = np.arange(500_000)
    return make_dataset(rows % 10, rows // 2)


@pytest.mark.parametrize(
    "partitioner",
    [
        IidPartitioner(250_000),
        PathologicalPartitioner(250_000, 2),
        DirichletPartitioner(250_000, 0.1),
        NaturalIdPartitioner("writer"),
        MixingPartitioner(250_000, 0.5),
        QuantityPartitioner(250_000, exponent=1.0),
    ],
    ids=lambda partitioner: type(partitioner).__name__,
)
def test_a_quarter_of_a_million_clients_cost_no_pass_each(partitioner, half_a_million_rows):
    # 11,000 to 22,000 lines, most of them where `datasets` reads the columns.
    with bounded_work(lines=25_000):
        partition = partitioner.partition(half_a_million_rows)
        counts = partition.label_counts(half_a_million_rows)
    assert isinstance(partition, Partition)
    assert len(partition) == len(counts) == 250_000
    held = (partition.rows, partition.offsets, partition.unused)
    assert sum(array.nbytes for array in held) == 8 * 750_001
