"""The columns of a `datasets.Dataset` as compact tensors, and how batches are made of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

LEAF_ALPHABET = (
    "\n !\"&'(),-."
    "0123456789:;>?"
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ[]"
    "abcdefghijklmnopqrstuvwxyz}"
)  # fmt: skip
"""The 80 characters of LEAF's Shakespeare task; a character's position is its token.

Source: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018,
https://arxiv.org/abs/1812.01097.
"""

_CHUNK = 10_000  # rows whose undecoded form is in memory at the same time
_UNKNOWN = 255


@dataclass(frozen=True, eq=False)
class Column:
    """One column of a table: a stored value per row, and how a batch of values is converted.

    A batch is `values[rows]` as `dtype`. If there is a scale, it is `batch * scale + shift`.

    Args:
        values: The stored values, `[rows, ...]`, in the smallest type that can hold them.
        dtype: Type of the batches.
        scale: Factor, broadcast against one example; None for no conversion.
        shift: Addend of the same shape as `scale`.

    Example:
        >>> pixels = Column(torch.tensor([[0], [51]], dtype=torch.uint8), torch.float32)
        >>> pixels.normalized(mean=[0.1], std=[0.4], unit=255).take(torch.tensor([1, 0]))
        tensor([[ 0.2500],
                [-0.2500]])
    """

    values: Tensor
    dtype: torch.dtype
    scale: Tensor | None = None
    shift: Tensor | None = None

    def normalized(self, mean: Sequence[float], std: Sequence[float], unit: float = 1) -> Column:
        """The column whose batches are `(values / unit - mean) / std`, per channel.

        Args:
            mean: One number per channel (dimension 1 of a batch), or one for all channels.
            std: As many numbers as `mean`.
            unit: The stored value that represents 1.
        """
        shape = [len(mean)] + [1] * (self.values.dim() - 2) if len(mean) > 1 else []
        mean_, std_ = (torch.tensor(s, dtype=torch.float64).reshape(shape) for s in (mean, std))
        dtype = self.dtype if self.dtype.is_floating_point else torch.get_default_dtype()
        return Column(self.values, dtype, scale=1 / (unit * std_), shift=-mean_ / std_)

    def to(self, device: torch.device | str, dtype: torch.dtype | None) -> Column:
        """The column on a device, its floating-point batches of `dtype` (None keeps their type)."""
        out = dtype if dtype is not None and self.dtype.is_floating_point else self.dtype
        return Column(
            self.values.to(device, out if self.values.is_floating_point() else None),
            out,
            None if self.scale is None else self.scale.to(device, out),
            None if self.shift is None else self.shift.to(device, out),
        )

    def take(self, rows: Tensor) -> Tensor:
        """The batch of the rows given: `[b, ...]` for `rows` of shape `[b]`."""
        batch = self.values.index_select(0, rows)
        if batch.dtype != self.dtype:
            batch = batch.to(self.dtype)
        if self.scale is None or self.shift is None:
            return batch
        if self._factor is not None:
            # One pass, in place: `batch` is a new tensor. torch.addcmul takes three times as long.
            return torch.add(self.shift, batch, alpha=self._factor, out=batch)
        return batch.mul_(self.scale).add_(self.shift)

    def converted(self) -> Column:
        """The column that stores what `take` returns, to the bit: more memory and less time."""
        if self.values.dtype == self.dtype and self.scale is None:
            return self
        values = torch.empty(self.values.shape, dtype=self.dtype, device=self.values.device)
        for start in range(0, len(values), _CHUNK):
            rows = torch.arange(start, min(start + _CHUNK, len(values)), device=values.device)
            values[start : start + _CHUNK] = self.take(rows)
        return Column(values, self.dtype)

    @cached_property
    def _factor(self) -> float | None:
        """The scale if it is a single number on the CPU, else None."""
        scale = self.scale
        one = scale is not None and scale.dim() == 0 and scale.device.type == "cpu"
        return scale.item() if scale is not None and one else None


def read_images(dataset: datasets.Dataset, name: str) -> Tensor:
    """Decode the images of a column: uint8 `[rows, channels, height, width]`.

    Grey images have one channel. Images with a palette become RGB.

    Raises:
        ValueError: An image is missing or cannot be decoded, differs in size from the first one,
            or has pixels of more than 8 bits.
    """
    feature = dataset.features[name]
    images: np.ndarray | None = None
    row = 0
    for chunk in _chunks(dataset, name):
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
            pixels = _pixels(image, name, row)
            if images is None:
                images = np.empty((len(dataset), *pixels.shape), dtype=np.uint8)
            if pixels.shape != images.shape[1:]:
                raise ValueError(
                    f"column {name!r} has images of several sizes: row 0 is {images.shape[1:]}, "
                    f"row {row} is {pixels.shape} (channels, height, width); bring them to one "
                    "size with dataset.map(...) first"
                )
            images[row] = pixels
            row += 1
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
    for chunk in _chunks(dataset, name) if values is None else ():
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
    token_of = np.full(256, _UNKNOWN, dtype=np.uint8)
    token_of[np.frombuffer(LEAF_ALPHABET.encode(), dtype=np.uint8)] = range(len(LEAF_ALPHABET))
    tokens = np.empty((len(dataset), length), dtype=np.uint8)
    row = 0
    for chunk in _chunks(dataset, name):
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


def _chunks(dataset: datasets.Dataset, name: str) -> Iterator[pa.Array]:
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
