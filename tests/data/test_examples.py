import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fedlight.data import Column, ExampleList, ExampleTable
from fedlight.data.examples import _faster, examples_of


@pytest.fixture
def table():
    x = torch.arange(10, dtype=torch.uint8).reshape(5, 2)
    return ExampleTable([Column(x, torch.float32), Column(torch.arange(5), torch.int64)])


def test_gather_one_batch(table):
    x, y = table.gather(torch.tensor([4, 0]))
    assert x.tolist() == [[8.0, 9.0], [0.0, 1.0]]
    assert y.tolist() == [4, 0]
    assert y.dtype == torch.int64


def test_gather_keeps_the_leading_dimensions(table):
    rows = torch.tensor([[[0, 1, 2]], [[4, 3, 2]]])
    x, y = table.gather(rows)
    assert x.shape == (2, 1, 3, 2)
    assert torch.equal(y, rows)
    assert torch.equal(x[1, 0, 1], torch.tensor([6.0, 7.0]))


def test_transform_sees_the_flattened_batch(table):
    seen = []

    def double(batch):
        seen.append(tuple(batch[0].shape))
        return batch[0] * 2, batch[1]

    x, _ = ExampleTable(table.columns, double).gather(torch.tensor([[0, 1], [2, 3]]))
    assert seen == [(4, 2)]
    assert x.tolist() == [[[0, 2], [4, 6]], [[8, 10], [12, 14]]]


def test_transform_must_return_a_tuple(table):
    with pytest.raises(TypeError, match="transform must return a tuple"):
        ExampleTable(table.columns, lambda batch: batch[0]).gather(torch.tensor([0]))


def test_transform_must_keep_the_number_of_examples(table):
    halved = ExampleTable(table.columns, lambda batch: tuple(part[:1] for part in batch))
    with pytest.raises(ValueError, match=r"keep the number of examples, 2.*\[\(1, 2\), \(1,\)\]"):
        halved.gather(torch.tensor([0, 1]))


def test_batches_in_the_order_of_the_rows(table):
    assert [y.tolist() for _, y in table.batches(2)] == [[0, 1], [2, 3], [4]]


def test_one_example(table):
    x, y = table[-1]
    assert x.tolist() == [8.0, 9.0]
    assert y.item() == 4
    assert len(list(table)) == 5  # stops, as a sequence does
    with pytest.raises(IndexError, match="row 5 of 5"):
        table[5]


def test_an_ordinary_data_loader_reads_it(table):
    x, y = next(iter(DataLoader(table, batch_size=3)))
    assert x.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert y.tolist() == [0, 1, 2]


def test_moving_changes_the_type_of_floats_only(table):
    moved = table.to("cpu", torch.float64)
    assert [part.dtype for part in moved.gather(torch.tensor([0]))] == [torch.float64, torch.int64]
    assert table.gather(torch.tensor([0]))[0].dtype == torch.float32


@pytest.mark.parametrize("faster", ["stored", "converted"])
def test_many_batches_from_one_table_have_the_same_bits(table, monkeypatch, faster):
    asked = []

    def chosen(columns):
        asked.append(columns)
        return columns if faster == "stored" else tuple(each.converted() for each in columns)

    monkeypatch.setattr("fedlight.data.examples._faster", chosen)
    monkeypatch.setattr("fedlight.data.examples._PAYS_AFTER", 1)
    table = ExampleTable(table.columns)
    rows = torch.tensor([4, 0, 2])
    batches = [table.gather(rows) for _ in range(4)]
    assert len(asked) == 1  # five rows of the table, at the second batch of three
    for x, y in batches:
        assert x.tolist() == [[8.0, 9.0], [0.0, 1.0], [4.0, 5.0]]
        assert y.tolist() == [4, 0, 2]
    batches[-1][0].zero_()  # a step may change its batch
    assert table.gather(rows)[0].tolist() == [[8.0, 9.0], [0.0, 1.0], [4.0, 5.0]]


def test_what_would_not_fit_is_converted_anew_for_each_batch(table, monkeypatch):
    monkeypatch.setattr("fedlight.data.examples._CONVERTED", 79)  # 5 * 2 * 4 + 5 * 8 = 80 bytes
    monkeypatch.setattr("fedlight.data.examples._PAYS_AFTER", 1)
    monkeypatch.delattr("fedlight.data.examples._faster")
    table = ExampleTable(table.columns)
    for _ in range(4):
        assert table.gather(torch.tensor([4, 0, 2]))[1].tolist() == [4, 0, 2]


def test_the_faster_way_is_one_of_both(table):
    chosen = _faster(table.columns)
    assert [each.take(torch.tensor([3])).tolist() for each in chosen] == [[[6.0, 7.0]], [3]]


def test_a_table_needs_columns_of_one_length():
    with pytest.raises(ValueError, match=r"equal length, got lengths \[1, 2\]"):
        ExampleTable.of_tensors([torch.zeros(1), torch.zeros(2)])
    with pytest.raises(ValueError, match=r"equal length, got lengths \[\]"):
        ExampleTable([])
    with pytest.raises(ValueError, match="at least one row"):
        ExampleTable.of_tensors([torch.zeros(0)])


class Words(Dataset):
    def __init__(self, *numbers):
        self.numbers = numbers

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, i):
        return {"x": torch.tensor([self.numbers[i]], dtype=torch.float64), "y": i, "name": str(i)}


def test_a_list_collates_examples_of_any_kind():
    examples = ExampleList([Words(1.0, 2.0), Words(3.0)])
    assert len(examples) == 3
    batch = examples.gather(torch.tensor([2, 0]))
    assert batch["x"].tolist() == [[3.0], [1.0]]
    assert batch["name"] == ["0", "0"]
    assert [b["x"].flatten().tolist() for b in examples.batches(2)] == [[1.0, 2.0], [3.0]]


def test_a_list_moves_its_batches():
    moved = ExampleList([Words(1.0)]).to("cpu", torch.float32)
    batch = moved.gather(torch.tensor([0]))
    assert (batch["x"].dtype, batch["y"].dtype) == (torch.float32, torch.int64)
    assert not moved.stackable
    on_meta = ExampleList([Words(1.0)]).to("meta")
    batch = on_meta.gather(torch.tensor([0]))
    assert batch["x"].device.type == "meta"
    assert batch["x"].dtype == torch.float64


def test_a_list_is_not_stacked_over_clients():
    with pytest.raises(ValueError, match=r"one dimension here, got shape \(1, 1\)"):
        ExampleList([Words(1.0)]).gather(torch.tensor([[0]]))


def test_tensor_datasets_become_one_table_of_their_types():
    parts = [
        TensorDataset(torch.full((n, 2), n, dtype=torch.float16), torch.full((n,), n).int())
        for n in (1, 2)
    ]
    table = examples_of(parts)
    assert isinstance(table, ExampleTable)
    x, y = table.gather(torch.tensor([2, 0]))
    assert x.tolist() == [[2, 2], [1, 1]]
    assert y.tolist() == [2, 1]
    assert (x.dtype, y.dtype) == (torch.float16, torch.int32)


class Doubled(TensorDataset):
    def __getitem__(self, i):
        return tuple(2 * part for part in super().__getitem__(i))


@pytest.mark.parametrize(
    "parts",
    [
        [TensorDataset(torch.zeros(1, 2)), TensorDataset(torch.zeros(1, 3))],
        [TensorDataset(torch.zeros(1)), TensorDataset(torch.zeros(1).int())],
        [TensorDataset(torch.zeros(1)), TensorDataset(torch.zeros(1), torch.zeros(1))],
        [TensorDataset(torch.zeros(1)), Words(1.0)],
        [Doubled(torch.ones(1))],
    ],
)
def test_other_data_sets_stay_a_list(parts):
    assert isinstance(examples_of(parts), ExampleList)


def test_a_collate_function_rules_out_the_table():
    examples = examples_of([TensorDataset(torch.ones(2))], collate_fn=len)
    assert examples.gather(torch.tensor([0, 1])) == 2


# --- batches as dicts ---


@pytest.fixture
def named():
    tensors = [torch.arange(10.0).reshape(5, 2), torch.arange(5)]
    return ExampleTable.of_tensors(tensors, keys=["x", "labels"])


def test_batches_are_dicts_with_keys(named):
    batch = named.gather(torch.tensor([[0, 2], [1, 1]]))
    assert list(batch) == ["x", "labels"]
    assert batch["x"].shape == (2, 2, 2)
    assert batch["labels"].tolist() == [[0, 2], [1, 1]]
    assert named.gather(torch.tensor([3]))["x"].tolist() == [[6.0, 7.0]]
    assert named[4]["labels"].item() == 4
    assert [each["labels"].tolist() for each in named.batches(3)] == [[0, 1, 2], [3, 4]]
    assert named.to("cpu", torch.float64).gather(torch.tensor([0]))["x"].dtype == torch.float64
    assert next(iter(DataLoader(named, batch_size=2)))["labels"].tolist() == [0, 1]


def test_a_transform_may_return_a_dict_or_take_one(named, table):
    as_dict = ExampleTable(table.columns, lambda batch: {"x": batch[0] + 1, "rest": (batch[1],)})
    batch = as_dict.gather(torch.tensor([[0], [1]]))
    assert batch["x"].tolist() == [[[1, 2]], [[3, 4]]]
    assert batch["rest"][0].tolist() == [[0], [1]]
    as_tuple = ExampleTable(named.columns, lambda b: (b["x"], b["labels"]), named.keys)
    assert as_tuple.gather(torch.tensor([[2]]))[1].tolist() == [[2]]


@pytest.mark.parametrize(
    ("returned", "error", "says"),
    [
        ({"x": "a"}, TypeError, "returned dict with str"),
        ({"x": torch.zeros(1)}, ValueError, r"number of examples, 2.*\[\(1,\)\]"),
        ({}, ValueError, r"number of examples, 2.*\[\]"),
        ((torch.zeros(2), 3), TypeError, "returned tuple with int"),
    ],
)
def test_a_transform_must_return_tensors(table, returned, error, says):
    with pytest.raises(error, match=f"transform must .*{says}"):
        ExampleTable(table.columns, lambda batch: returned).gather(torch.tensor([0, 1]))


# --- lists that read several examples at once, and the row that fails ---


class Together(Words):
    """Reads several examples at once, and fails for the number 5."""

    def __getitems__(self, rows):
        self.asked = rows
        return [self[row] for row in rows]

    def __getitem__(self, i):
        if self.numbers[i] == 5:
            raise KeyError("five")
        return super().__getitem__(i)


def test_a_data_set_reads_several_examples_at_once():
    parts = [Together(1.0, 2.0), Together(3.0, 4.0)]
    examples = ExampleList(parts)
    assert examples.gather(torch.tensor([3, 2]))["x"].tolist() == [[4.0], [3.0]]
    assert parts[1].asked == [1, 0]
    assert examples.gather(torch.tensor([0, 2]))["x"].tolist() == [[1.0], [3.0]]


@pytest.mark.parametrize("kind", [Words, Together])
def test_the_row_that_fails_is_named(kind):
    examples = ExampleList([kind(1.0), Together(2.0, 5.0)], names=["one", "two"])
    with pytest.raises(KeyError, match="five") as caught:
        examples.gather(torch.tensor([0, 2]))
    assert caught.value.__notes__ == ["(while reading row 1 of two)"]
    with pytest.raises(KeyError, match="five") as caught:
        ExampleList(examples.datasets).gather(torch.tensor([1, 2]))
    assert caught.value.__notes__ == ["(while reading row 1 of datasets[1])"]


def test_a_list_says_why_it_is_no_table():
    assert ExampleList([Words(1.0), [1]]).how_read == "they are read one at a time (Words, list)"
    assert ExampleList([[1]], len).how_read == "len makes each batch of a list of rows"
