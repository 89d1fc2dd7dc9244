"""Whether two runs have the same data: a quick fingerprint for checkpoints, and all content."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from data_partitioners import Partition
from fedlight._runs.content import Content, content_of
from fedlight._runs.identity import in_words
from fedlight.data import FederatedDataModule
from fedlight.data.examples import ExampleList, ExampleTable

_ROWS = 1024


def data_fingerprint(partition: Partition, examples: ExampleTable | ExampleList) -> str:
    """Sixteen hexadecimal digits of who holds which rows, of a sample of them, and of functions.

    Only stored tensors, and items of Python's own lists, are looked at. Other data sets compute an
    example when it is asked for: that may be slow, draw random numbers or count accesses, which
    would change the run. Of ``transform`` and ``collate_fn`` the code counts.

    Args:
        partition: The rows of each client.
        examples: The examples that the rows number.
    """
    digest = hashlib.blake2b(digest_size=8)
    for numbers in (partition.rows, partition.offsets):
        digest.update(np.ascontiguousarray(numbers).tobytes())
    for stored in _stored(examples):
        chosen = np.linspace(0, len(stored) - 1, min(len(stored), _ROWS)).astype(np.int64)
        if isinstance(stored, Tensor):
            digest.update(str(tuple(stored.shape)).encode())
            sample: Any = stored[torch.from_numpy(chosen).to(stored.device)]
        else:
            sample = [stored[row] for row in chosen.tolist()]
        for part in _bytes(sample):
            digest.update(part)
    for function in _functions(examples):
        digest.update(in_words(function).encode())
    return digest.hexdigest()


def data_content(data: FederatedDataModule) -> Content:
    """The content of all data of a run, which are set up already: clients, and validation.

    Unlike the fingerprint, it is taken before a run, and of whole data sets of any kind; files
    count that they name.
    """
    hashed = hashlib.blake2b(digest_size=8)
    partition = data.partition
    held: list[Any] = [partition.rows, partition.offsets, data.batch_size, data.eval_batch_size]
    for examples in (data.train_data, *data.evaluation_data("validation")):
        if isinstance(examples, ExampleTable):
            held.append(examples.keys)
            for text in _converted(examples):
                hashed.update(text)
        held.append(_held(examples))
        held.append([*_functions(examples)])
    found = content_of(held, "data", files=True)
    hashed.update(found.digest.encode())
    return Content(hashed.hexdigest(), found.hidden)


def _converted(examples: ExampleTable) -> Iterator[bytes]:
    """The values of a table as batches have them: how it keeps them is a matter of speed."""
    for column in examples.columns:
        yield f"{column.dtype}{tuple(column.values.shape)}".encode()
        for start in range(0, len(column.values), _ROWS):
            rows = torch.arange(start, min(start + _ROWS, len(column.values)))
            yield from _bytes(column.take(rows.to(column.values.device)))


def _held(examples: ExampleTable | ExampleList) -> list[Any]:
    """The data sets. No example is asked for: that may draw random numbers."""
    if isinstance(examples, ExampleTable):
        return []
    library = sys.modules.get("datasets")
    hub: Any = () if library is None else library.Dataset  # such a data set knows its content
    return [each._fingerprint if isinstance(each, hub) else each for each in examples.datasets]


def _functions(examples: ExampleTable | ExampleList) -> Iterator[Any]:
    """The user's functions that change the rows."""
    if isinstance(examples, ExampleList) and examples.collate_fn is not default_collate:
        yield examples.collate_fn
    if examples.transform is not None:
        yield examples.transform


def _stored(examples: ExampleTable | ExampleList) -> Iterator[Any]:
    """The sequences of stored values: tensors and lists."""
    if isinstance(examples, ExampleTable):
        for column in examples.columns:
            yield column.values
            yield [str(column.dtype), column.scale, column.shift]
    elif isinstance(examples, ExampleList):
        for each in examples.datasets:
            if type(each) is TensorDataset:
                yield from each.tensors
            elif type(each) in (list, tuple):
                yield each


def _bytes(value: Any) -> Iterator[bytes]:
    """The bytes of plain values; nothing for objects of other kinds."""
    if isinstance(value, Tensor):
        yield str(value.dtype).encode()
        if value.layout is torch.strided:
            flat = value.detach().cpu().contiguous().reshape(-1)
            yield flat.view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        yield str(value.dtype).encode() + value.tobytes()
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _bytes(item)
    elif isinstance(value, Mapping):
        yield from _bytes(list(value.items()))
    elif value is None or isinstance(value, bool | int | float | str | bytes | np.generic):
        yield repr(value).encode()
