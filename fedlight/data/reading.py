"""Reads the columns of a `datasets.Dataset` as compact tensors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedlight.data._png import plain_pngs
from fedlight.data.columns import LEAF_ALPHABET

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

_CHUNK = 10_000  # rows whose undecoded form is in memory at the same time
_UNKNOWN = 255


def read_images(dataset: datasets.Dataset, name: str) -> Tensor:
    """Decode the images of a column: uint8 `[rows, channels, height, width]`.

    Grey images have one channel. Images with a palette become RGB.

    Raises:
        ValueError: An image is missing or cannot be decoded, differs in size or in channels
            from the first one, or has pixels of more than 8 bits.
    """
    images: np.ndarray | None = None
    for row, pixels in _decoded(dataset, name):
        if images is None:
            images = np.empty((len(dataset), *pixels.shape[1:]), dtype=np.uint8)
        if pixels.shape[1] != images.shape[1]:
            raise ValueError(
                f"column {name!r} has images with {images.shape[1]} channels (row 0) and with "
                f"{pixels.shape[1]} (row {row}), such as grey ones and RGB ones; bring them to one "
                f'mode with dataset.cast_column({name!r}, datasets.Image(mode="RGB")) first'
            )
        if pixels.shape[1:] != images.shape[1:]:
            raise ValueError(
                f"column {name!r} has images of several sizes: row 0 is {images.shape[1:]}, "
                f"row {row} is {pixels.shape[1:]} (channels, height, width); bring them to one "
                "size with dataset.map(...) first"
            )
        images[row : row + len(pixels)] = pixels
    assert images is not None
    return torch.from_numpy(images)


def read_numbers(dataset: datasets.Dataset, name: str) -> Tensor:
    """Read the numbers of a column, or its lists of numbers: `[rows, ...]` in their own type.

    Raises:
        TypeError: The column holds other values, such as strings.
        ValueError: A value is missing, or lists differ in length.
    """
    values = _in_memory(dataset, name)
    row = 0
    for chunk in chunks_of(dataset, name) if values is None else ():
        numbers = _numbers(chunk, name)
        if values is None:
            values = np.empty((len(dataset), *numbers.shape[1:]), dtype=numbers.dtype)
        if numbers.shape[1:] != values.shape[1:]:
            raise _ragged(name, values.shape[1], numbers.shape[1])
        values[row : row + len(numbers)] = numbers
        row += len(numbers)
    assert values is not None
    # torch supports hardly any operation for the wider unsigned types.
    wider = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}.get(values.dtype.name)
    if wider is not None:
        values = values.astype(wider)
    with warnings.catch_warnings():  # the tensor is only read, so it need not be writable
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(values)


def read_text(dataset: datasets.Dataset, name: str, length: int) -> Tensor:
    """Read the strings of a column as tokens of LEAF's alphabet: uint8 `[rows, length]`.

    Raises:
        ValueError: A string is missing, has a different length, or contains a character outside
            the alphabet.
    """
    import pyarrow.compute as pc

    token_of = np.full(256, _UNKNOWN, dtype=np.uint8)
    token_of[np.frombuffer(LEAF_ALPHABET.encode(), dtype=np.uint8)] = range(len(LEAF_ALPHABET))
    tokens = np.empty((len(dataset), length), dtype=np.uint8)
    row = 0
    for chunk in chunks_of(dataset, name):
        lengths = pc.utf8_length(chunk).fill_null(-1).to_numpy()
        if (lengths != length).any():
            wrong = int((lengths != length).argmax())
            raise ValueError(
                f"column {name!r} must hold strings of {length} characters, "
                f"row {row + wrong} is {chunk[wrong].as_py()!r}"
            )
        texts = chunk.to_pylist()
        joined = "".join(texts)
        unknown = set(joined) - set(LEAF_ALPHABET)
        if unknown:
            wrong = next(i for i, text in enumerate(texts) if unknown & set(text))
            raise ValueError(
                f"column {name!r} has characters outside LEAF's alphabet of {len(LEAF_ALPHABET)} "
                f"in row {row + wrong}: {sorted(unknown & set(texts[wrong]))}; replace or drop "
                "them with dataset.map(...) or dataset.filter(...) first"
            )
        encoded = np.frombuffer(joined.encode("ascii"), dtype=np.uint8)
        tokens[row : row + len(chunk)] = token_of[encoded].reshape(len(chunk), length)
        row += len(chunk)
    return torch.from_numpy(tokens)


def first_image_shape(dataset: datasets.Dataset, name: str) -> tuple[int, ...]:
    """Channels, height and width of the first image of a column."""
    return tuple(read_images(dataset.select(range(1)), name).shape[1:])


def _decoded(dataset: datasets.Dataset, name: str) -> Iterator[tuple[int, np.ndarray]]:
    """The images of a column, one or many of one shape at a time, after the row of the first."""
    feature = dataset.features[name]
    row = 0
    for chunk in chunks_of(dataset, name):
        many = None if chunk.null_count else plain_pngs(chunk.field("bytes").to_pylist())
        # A grey image may have to become RGB, and the like.
        if many is not None and feature.mode in (None, "L" if many.shape[1] == 1 else "RGB"):
            yield row, many
            row += len(many)
            continue
        for cell in chunk.to_pylist():
            if cell is None:
                raise ValueError(f"column {name!r} has no image in row {row}")
            try:
                image = feature.decode_example(cell)
            except Exception as error:  # PIL raises various exceptions for broken files
                raise ValueError(
                    f"column {name!r} has an image that cannot be decoded in row {row} "
                    f"({type(error).__name__}: {error}); repair it or leave the row out with "
                    "dataset.select(...)"
                ) from error
            yield row, _pixels(image, name, row)[None]
            row += 1


def chunks_of(dataset: datasets.Dataset, name: str) -> Iterator[pa.Array]:
    """The column as Arrow arrays of at most `_CHUNK` rows."""
    column = dataset.select_columns([name]).with_format("arrow")
    for start in range(0, len(dataset), _CHUNK):
        yield column[start : start + _CHUNK].column(name).combine_chunks()


def _in_memory(dataset: datasets.Dataset, name: str) -> np.ndarray | None:
    """The numbers of a column, without a copy, if it is in memory in one piece; else None."""
    if dataset.cache_files:
        return None
    column = dataset.select_columns([name]).with_format("arrow")[:].column(name)
    return _numbers(column.chunk(0), name) if column.num_chunks == 1 else None


def _pixels(image: object, name: str, row: int) -> np.ndarray:
    """A PIL image as uint8 `[channels, height, width]`."""
    mode = getattr(image, "mode", None)
    if mode in ("1", "P"):
        image = image.convert("L" if mode == "1" else "RGB")  # type: ignore[attr-defined]
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8:
        raise ValueError(
            f"column {name!r} has an image of mode {mode!r} in row {row}, "
            "only pixels of 8 bits are read; convert it with dataset.map(...) first"
        )
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _numbers(array: pa.Array, name: str) -> np.ndarray:
    """An Arrow array of numbers, or of nested lists of numbers, as a NumPy array."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(array, pa.ExtensionArray):  # datasets' Array2D and the like
        array = array.storage
    if array.null_count:
        raise ValueError(
            f"column {name!r} has {array.null_count} missing value(s); "
            "drop these rows with dataset.filter(...) first"
        )
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.list_value_length(array).to_numpy()
        if (lengths != lengths[0]).any():
            raise _ragged(name, int(lengths[0]), int(lengths[lengths != lengths[0]][0]))
        inner = _numbers(array.flatten(), name)
        return inner.reshape(len(array), int(lengths[0]), *inner.shape[1:])
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    raise TypeError(
        f"column {name!r} holds {kind}, which is not a number; convert it to numbers with "
        "dataset.map(...) first, or name other columns in columns="
    )


def _ragged(name: str, one: int, other: int) -> ValueError:
    return ValueError(
        f"column {name!r} has lists of several lengths ({one} and {other}); pad or cut them with "
        "dataset.map(...) first, or give a collate_fn that pads each batch"
    )
