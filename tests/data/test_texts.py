"""Texts in blocks, and the total of tokens that follows from them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data_partitioners import IidPartitioner, NaturalIdPartitioner
from fedlight import plot
from fedlight.data import text_data
from fedlight.models import TinyGPT
from tests.boring import fitted, replay

TEXTS = {"b": "abcdefghij", "a": b"0123456"}


def shown(examples, row):
    x, y = examples.gather(torch.tensor([row]))
    assert x.dtype == y.dtype == torch.int64
    return bytes(x[0].tolist()), bytes(y[0].tolist())


def test_blocks_by_hand():
    data = text_data(TEXTS, context=3, batch_size=2, val_share=0)
    data.setup()
    # 10 bytes have 9 to predict, 7 have 6.
    assert data.partition.client_ids == ("b", "a")
    assert data.partition.sizes.tolist() == [3, 2]
    found = [shown(data.train_data, row) for row in range(5)]
    assert found == [
        (b"abc", b"bcd"),
        (b"def", b"efg"),
        (b"ghi", b"hij"),
        (b"012", b"123"),
        (b"345", b"456"),
    ]
    assert (data.batch_size, data.tokens_per_example) == (2, 3)
    assert data.val_data is None
    assert data.lacks_validation
    assert data.train_data.stackable


@given(length=st.integers(2, 60), context=st.integers(1, 20))
def test_each_byte_but_the_first_is_predicted_once(length, context):
    text = bytes(range(length))
    blocks = (length - 1) // context
    if not blocks:
        with pytest.raises(
            ValueError, match=f"'0'. has {length} bytes .*context . 1 = {context + 1}"
        ):
            text_data([text], context, val_share=0)
        return
    data = text_data([text], context, val_share=0)
    x, y = data.train_data.gather(torch.arange(blocks))
    assert bytes(x.flatten().tolist()) == text[: blocks * context]
    assert bytes(y.flatten().tolist()) == text[1 : blocks * context + 1]


def test_the_end_of_each_text_is_for_validation():
    data = text_data(TEXTS, context=2, val_share=0.4, eval_batch_size=7)
    assert data.partition.sizes.tolist() == [2, 2]  # of 6 and 5 bytes
    assert [shown(data.val_data, row) for row in range(len(data.val_data))] == [(b"gh", b"hi")]
    assert data.eval_batch_size == 7
    usual = text_data(["x" * 100], context=4)
    assert (len(usual.train_data), len(usual.val_data)) == (22, 2)  # 90 and 10 bytes


def test_texts_for_validation_and_test():
    data = text_data(TEXTS, 3, val_texts=["vwxyz"], test_texts={"t": "TUVW", "u": "stuv"})
    assert data.partition.sizes.tolist() == [3, 2]  # nothing is kept back
    assert shown(data.val_data, 0) == (b"vwx", b"wxy")
    assert shown(data.test_data, 1) == (b"stu", b"tuv")
    with pytest.raises(ValueError, match=r"val_share=0.1 and val_texts exclude each other"):
        text_data(TEXTS, 3, val_texts=["vwxyz"], val_share=0.1)


def test_files_folders_and_parts(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "two.txt").write_text("ghijkl")
    (tmp_path / "sub" / "one.txt").write_bytes("äöü".encode())
    (tmp_path / "none.md").write_text("")
    islands = text_data(tmp_path, 2, val_share=0, pattern="*.txt")
    assert islands.partition.client_ids == ("sub/one.txt", "two.txt")
    assert shown(islands.train_data, 0) == ("ä".encode(), "äö".encode()[1:3])
    joined = text_data([tmp_path, [tmp_path / "two.txt", "!"], "xyz"], 2, val_share=0)
    assert joined.partition.client_ids == ("0", "1", "2")
    assert joined.partition.sizes.tolist() == [5, 3, 1]
    assert shown(joined.train_data, 2)[0] == "ü".encode()
    assert shown(joined.train_data, 7) == (b"kl", b"l!")


def test_a_partitioner_divides_the_blocks():
    data = text_data(TEXTS, 1, partitioner=IidPartitioner(3), val_share=0, partition_seed=4)
    assert sorted(data.partition.sizes.tolist()) == [5, 5, 5]
    by_name = data.repartition(NaturalIdPartitioner("text"))
    assert by_name.partition.client_ids == ("a", "b")
    assert by_name.partition.sizes.tolist() == [6, 9]
    assert by_name.tokens_per_example == 1
    own = text_data(TEXTS, 1, val_share=0)
    again = own.repartition(IidPartitioner(3), partition_seed=4)
    assert again.partition.rows.tolist() == data.partition.rows.tolist()


def test_short_texts_are_refused_or_left_out():
    texts = {"long": "abcdef", "short": "xy", "empty": ""}
    with pytest.raises(
        ValueError, match=r"'short'. has 2 bytes for training.*short=.drop."
    ) as caught:
        text_data(texts, 2, val_share=0)
    assert "context + 1 = 3" in str(caught.value)
    data = text_data(texts, 2, val_share=0, short="drop")
    assert data.partition.client_ids == ("long",)


@pytest.mark.parametrize(
    ("texts", "kwargs", "error", "message"),
    [
        ({}, {}, ValueError, "texts must have one or more texts, got none"),
        ("abc", {}, TypeError, r"texts must be texts by name.*got 'abc'; write texts=\[…\]"),
        (3, {}, TypeError, "texts must be texts by name, a list"),
        ({"a": 3}, {}, TypeError, r"texts\['a'\] must be a str, bytes, a pathlib.Path.*got 3"),
        ({1: "abc"}, {}, TypeError, "the names of texts must be strings, got 1"),
        (["ab"], {"short": "drop"}, ValueError, r"texts must hold a block of context \+ 1 = 4"),
        (["abcd"], {"context": 0}, ValueError, "context must be"),
        (["abcd"], {"short": "skip"}, ValueError, "short must be"),
        (["abcd"], {"val_share": 1}, ValueError, "val_share must be at least 0 and below 1"),
        (["abcdef"], {"val_share": 0.1}, ValueError, "val_share=0.1 at the ends of the texts must"),
        (["abcd"], {"test_texts": ["a"]}, ValueError, "test_texts must hold a block"),
        (["abcd"], {"partitioner": 3}, TypeError, "partitioner must be"),
    ],
)
def test_wrong_arguments(texts, kwargs, error, message):
    with pytest.raises(error, match=message):
        text_data(texts, **{"context": 3, "val_share": 0, **kwargs})


def test_paths_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"texts\['0'\]: there is no file or folder"):
        text_data([tmp_path / "no"], 3)
    with pytest.raises(FileNotFoundError, match=r"has no file pattern='\*.txt'"):
        text_data(tmp_path, 3, pattern="*.txt")
    file = tmp_path / "t"
    file.write_text("abcdef")
    with pytest.raises(ValueError, match=r"must be a folder.*write texts=\[Path\("):
        text_data(file, 3)
    with pytest.raises(ValueError, match=r"is the text '.*' itself; a file is given as Path\("):
        text_data([str(file)], 200)


def test_tokens_are_counted_and_are_an_axis():
    # Batches: min(4, 3) = 3 blocks of "b", 2 of "a". Update by update: 2 and 3 local steps.
    data = text_data(TEXTS, context=3, batch_size=4, val_texts=["vwxyz"])
    torch.manual_seed(0)
    module = TinyGPT(128, context=3, num_layers=1, num_heads=1, width=4)
    run = fitted(
        module,
        data,
        arrivals=replay((0, 0, 1.0, 2), (1, 0, 2.0, 3), round_ends=[1.0, 2.0]),
        max_rounds=2,
    )
    found = [(r.metrics["fed/examples"], r.metrics["fed/tokens"]) for r in run.history]
    assert found == [(6, 18), (12, 36)]
    assert plot.curve(run.history, "val_loss", "tokens")[0].tolist() == [18, 36]
