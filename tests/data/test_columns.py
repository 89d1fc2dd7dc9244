import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fedlight.data.columns import LEAF_ALPHABET, Column
from fedlight.data.reading import read_images, read_numbers, read_text


def images(*arrays, mode=None):
    pictures = [Image.fromarray(np.asarray(a, dtype=np.uint8), mode=mode) for a in arrays]
    return pictures_dataset(pictures)


def pictures_dataset(pictures):
    return datasets.Dataset.from_dict(
        {"image": pictures}, features=datasets.Features({"image": datasets.Image()})
    )


def test_normalized_pixel_worked_by_hand():
    # (51/255 - 0.1) / 0.4 = 0.25 and (255/255 - 0.1) / 0.4 = 2.25
    column = Column(torch.tensor([[[[51]]], [[[255]]]], dtype=torch.uint8), torch.float32)
    batch = column.normalized([0.1], [0.4], unit=255).take(torch.tensor([0, 1]))
    torch.testing.assert_close(batch, torch.tensor([[[[0.25]]], [[[2.25]]]]))


def test_each_channel_has_its_own_statistics():
    values = torch.full((1, 3, 1, 2), 255, dtype=torch.uint8)
    batch = Column(values, torch.float32).normalized([0.0, 0.5, 1.0], [1.0, 0.5, 2.0], unit=255)
    expected = torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]).reshape(1, 3, 1, 2)
    torch.testing.assert_close(batch.take(torch.tensor([0])), expected)


@pytest.mark.parametrize("shape", [(11, 7), (11, 784), (11, 3, 5, 5), (11,)])
@pytest.mark.parametrize("channels", [1, 3])
def test_converted_values_are_the_bits_of_a_batch(shape, channels, monkeypatch):
    monkeypatch.setattr("fedlight.data.reading._CHUNK", 4)
    values = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.manual_seed(0))
    column = Column(values, torch.float32)
    if channels == 1 or len(shape) == 4:
        column = column.normalized([0.1307] * channels, [0.3081] * channels, unit=255)
    column = column.to("cpu", torch.float32)
    rows = torch.tensor([10, 3, 3, 0])
    assert torch.equal(column.converted().take(rows), column.take(rows))
    assert column.converted().converted().values.dtype == torch.float32


def test_statistics_of_a_scalar_column():
    column = Column(torch.tensor([3.0, 5.0]), torch.float32).normalized([1.0], [2.0])
    assert column.take(torch.tensor([1, 0])).tolist() == [2.0, 1.0]


def test_normalizing_integers_gives_floats():
    column = Column(torch.tensor([[3, 5]]), torch.int64).normalized([1.0, 1.0], [2.0, 4.0])
    batch = column.take(torch.tensor([0]))
    assert batch.tolist() == [[1.0, 1.0]]
    assert batch.dtype == torch.float32


def test_moving_casts_floats_and_leaves_integers():
    pixels = Column(torch.zeros(1, 1, 1, 1, dtype=torch.uint8), torch.float32)
    moved = pixels.normalized([0.1307], [0.3081], unit=255).to("cpu", torch.float64)
    assert moved.values.dtype == torch.uint8
    value = moved.take(torch.tensor([0]))
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(-0.1307 / 0.3081, rel=1e-15)
    labels = Column(torch.tensor([1]), torch.int64).to("cpu", torch.float64)
    assert labels.take(torch.tensor([0])).dtype == torch.int64


def test_stored_doubles_keep_their_digits_until_the_type_is_known():
    column = Column(torch.tensor([0.1], dtype=torch.float64), torch.float32)
    assert column.take(torch.tensor([0])).dtype == torch.float32
    assert column.to("cpu", torch.float64).take(torch.tensor([0])).item() == 0.1
    assert column.to("cpu", torch.float32).values.dtype == torch.float32  # cast once, not per batch
    assert column.to("cpu", None).values.dtype == torch.float32


def test_grey_images():
    read = read_images(images([[0, 1], [2, 255]], [[3, 4], [5, 6]]), "image")
    assert read.dtype == torch.uint8
    assert read.tolist() == [[[[0, 1], [2, 255]]], [[[3, 4], [5, 6]]]]


def test_colour_images_have_the_channel_first():
    read = read_images(images([[[1, 2, 3], [4, 5, 6]]]), "image")
    assert read.tolist() == [[[[1, 4]], [[2, 5]], [[3, 6]]]]


def test_images_of_one_bit_and_with_a_palette():
    bits = Image.fromarray(np.array([[0, 255]], dtype=np.uint8)).convert("1")
    assert read_images(pictures_dataset([bits]), "image").tolist() == [[[[0, 255]]]]
    colours = Image.fromarray(np.array([[[1, 2, 3]]], dtype=np.uint8)).convert(
        "P", palette=Image.Palette.ADAPTIVE
    )
    assert read_images(pictures_dataset([colours]), "image").shape == (1, 3, 1, 1)


def test_images_follow_a_selection_of_rows():
    chosen = images([[1]], [[2]], [[3]]).select([2, 0])
    assert read_images(chosen, "image").flatten().tolist() == [3, 1]


def test_images_of_two_sizes_are_refused():
    with pytest.raises(ValueError, match=r"row 0 is \(1, 1, 1\), row 1 is \(1, 1, 2\)"):
        read_images(images([[1]], [[1, 2]]), "image")


def test_a_missing_image_is_refused():
    with pytest.raises(ValueError, match="no image in row 1"):
        read_images(pictures_dataset([Image.new("L", (1, 1)), None]), "image")


def test_images_of_sixteen_bits_are_refused():
    deep = Image.fromarray(np.array([[300]], dtype=np.uint16))
    with pytest.raises(ValueError, match="mode 'I;16' in row 0"):
        read_images(pictures_dataset([deep]), "image")


@pytest.mark.parametrize(
    ("values", "feature", "dtype", "shape"),
    [
        ([1.0, 2.0], datasets.Value("float32"), torch.float32, (2,)),
        ([1, 2], datasets.Value("int16"), torch.int16, (2,)),
        ([1, 2], datasets.Value("uint32"), torch.int64, (2,)),
        ([True, False], datasets.Value("bool"), torch.bool, (2,)),
        ([[1.0, 2.0, 3.0]], datasets.List(datasets.Value("float64")), torch.float64, (1, 3)),
        ([[1, 2], [3, 4]], datasets.List(datasets.Value("uint8"), length=2), torch.uint8, (2, 2)),
        ([[[1.0], [2.0]]], datasets.Array2D((2, 1), "float32"), torch.float32, (1, 2, 1)),
    ],
)
def test_numbers_keep_their_type(values, feature, dtype, shape):
    dataset = datasets.Dataset.from_dict({"x": values}, datasets.Features({"x": feature}))
    read = read_numbers(dataset, "x")
    assert read.dtype == dtype
    assert read.shape == shape
    assert read.tolist() == values


def test_numbers_follow_a_selection_and_chunks(monkeypatch):
    monkeypatch.setattr("fedlight.data.reading._CHUNK", 2)
    dataset = datasets.Dataset.from_dict({"x": [[i, 10 * i] for i in range(7)]})
    assert read_numbers(dataset.select([6, 1, 3]), "x").tolist() == [[6, 60], [1, 10], [3, 30]]


@pytest.mark.parametrize("chunk", [1, 10])
def test_ragged_lists_are_refused(monkeypatch, chunk):
    monkeypatch.setattr("fedlight.data.reading._CHUNK", chunk)
    dataset = datasets.Dataset.from_dict({"x": [[1, 2], [1, 2, 3]]})
    with pytest.raises(ValueError, match=r"'x' has lists of several lengths \(2 and 3\)"):
        read_numbers(dataset, "x")


def test_missing_numbers_are_refused():
    dataset = datasets.Dataset.from_dict({"x": [1.0, None]})
    with pytest.raises(ValueError, match=r"'x' has 1 missing value"):
        read_numbers(dataset, "x")


def test_strings_are_no_numbers():
    dataset = datasets.Dataset.from_dict({"x": ["one"]})
    with pytest.raises(TypeError, match="'x' holds string, which is not a number"):
        read_numbers(dataset, "x")


def test_the_alphabet_has_80_distinct_characters():
    assert len(LEAF_ALPHABET) == len(set(LEAF_ALPHABET)) == 80
    assert [LEAF_ALPHABET.index(c) for c in "\n 0Aaz}"] == [0, 1, 11, 25, 53, 78, 79]


def test_text_becomes_tokens():
    dataset = datasets.Dataset.from_dict({"x": ["a Z", "z\nA"]})
    tokens = read_text(dataset, "x", 3)
    assert tokens.dtype == torch.uint8
    assert tokens.tolist() == [[53, 1, 50], [78, 0, 25]]


def test_text_in_chunks(monkeypatch):
    monkeypatch.setattr("fedlight.data.reading._CHUNK", 2)
    dataset = datasets.Dataset.from_dict({"x": list("abcde")})
    assert read_text(dataset, "x", 1).flatten().tolist() == [53, 54, 55, 56, 57]


@pytest.mark.parametrize("character", ["é", "#", "…"])
def test_unknown_characters_are_refused(character):
    dataset = datasets.Dataset.from_dict({"x": ["ab", f"a{character}"]})
    with pytest.raises(ValueError, match=rf"in row 1: \['{character}'\]"):
        read_text(dataset, "x", 2)


@pytest.mark.parametrize("text", ["abc", "", None])
def test_text_of_another_length_is_refused(text):
    dataset = datasets.Dataset.from_dict({"x": ["ab", text]})
    with pytest.raises(ValueError, match=f"strings of 2 characters, row 1 is {text!r}"):
        read_text(dataset, "x", 2)
