"""Loading a data set: from the hub, a folder, the bundled sample, or an object in memory."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from lightning import LightningDataModule

from fedlight._support.checks import described
from fedlight._support.files import user_path

if TYPE_CHECKING:
    import datasets

BUNDLED = "mnist-mini"

Source: TypeAlias = "str | Path | datasets.Dataset | datasets.DatasetDict"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_a(kind: str, value: object, library: str = "datasets") -> bool:
    """Whether a value is an instance of a class of a library, by default of `datasets`.

    The library is not imported for this, which takes half a second: without it nobody can have made
    such an object.

    Args:
        kind: The name of the class, such as "Dataset".
        value: Any object.
        library: The library's name.
    """
    return isinstance(value, getattr(sys.modules.get(library), kind, ()))


def checked_source(dataset: object, name: str = "dataset") -> Source:
    """Check an argument, by default `dataset`, and return a folder as a `Path`.

    Raises:
        TypeError: It is neither a name, a folder nor a data set of the `datasets` library.
        FileNotFoundError: It looks like a folder that does not exist.
    """
    if is_a("Dataset", dataset) or is_a("DatasetDict", dataset):
        given: datasets.Dataset | datasets.DatasetDict = dataset
        return given
    if not isinstance(dataset, str | os.PathLike):
        raise TypeError(
            f"{name} must be a hub id such as 'ylecun/mnist', a folder, 'mnist-mini', a "
            "datasets.Dataset, a datasets.DatasetDict or a map-style torch.utils.data.Dataset, got "
            f"{described(dataset)}; "
            f"{_way_out(dataset)}"
        )
    if dataset == BUNDLED:
        return BUNDLED
    if not os.fspath(dataset):
        raise ValueError(f"{name} must name a data set or a folder, got {dataset!r}")
    folder = user_path(dataset)
    if folder.is_dir():
        return folder.resolve()
    if isinstance(dataset, str) and _HUB_ID.fullmatch(dataset):
        return dataset
    raise FileNotFoundError(
        f"{name}={os.fspath(dataset)!r} is not a folder; give a folder with the data set's files, "
        "a hub id such as 'ylecun/mnist', or 'mnist-mini'"
    )


def _way_out(dataset: object) -> str:
    if is_a("IterableDataset", dataset) or is_a("IterableDatasetDict", dataset):
        return "clients need rows by number: load it without streaming=True"
    if isinstance(dataset, LightningDataModule):
        return "write FederatedDataModule.from_lightning(datamodule, partitioner)"
    if is_data_frame(dataset):
        return "write datasets.Dataset.from_pandas(dataset)"
    if is_a("Table", dataset, "pyarrow"):
        return "write datasets.Dataset(dataset)"
    if isinstance(dataset, dict):
        return (
            "for columns write datasets.Dataset.from_dict(dataset), for one data set per client "
            "FederatedDataModule.from_client_datasets(dataset)"
        )
    parts = dataset if isinstance(dataset, tuple) else (dataset,)
    if any(is_a("ndarray", part, "numpy") or is_a("Tensor", part, "torch") for part in parts):
        return "write TensorDataset(*map(torch.as_tensor, (x, y)))"
    return (
        "for a list of torch data sets, one per client, use "
        "FederatedDataModule.from_client_datasets(...)"
    )


def is_data_frame(data: object) -> bool:
    """Whether it is a data frame of pandas or polars, neither of which need be installed."""
    kind = type(data)
    return kind.__name__ == "DataFrame" and kind.__module__.split(".")[0] in ("pandas", "polars")


def load_splits(
    source: Source, name: str | None, revision: str | None, train_split: str
) -> datasets.DatasetDict:
    """Load all splits of the data set.

    A folder or a hub data set is converted once into the cache of the `datasets` library
    (`HF_DATASETS_CACHE`, by default `~/.cache/huggingface/datasets`). Nothing is written into the
    folder itself. The bundled sample and objects in memory are not written anywhere.

    Raises:
        ConnectionError: The hub is needed and cannot be reached. Its client tries for about 25 s;
            it does not try if the environment has `HF_HUB_OFFLINE=1`.
        FileNotFoundError: The hub has no such data set, or the folder has no data files.
    """
    import datasets

    if isinstance(source, datasets.DatasetDict):
        return source
    if isinstance(source, datasets.Dataset):
        return datasets.DatasetDict({train_split: source})
    if source == BUNDLED:
        return _bundled()
    try:
        return datasets.load_dataset(os.fspath(source), name=name, revision=revision)
    except (ConnectionError, FileNotFoundError) as error:
        # If a proxy refuses the connection, the library reports a missing file, not a lost network.
        if not isinstance(error, ConnectionError) and "LocalEntryNotFoundError" not in str(error):
            raise
        raise ConnectionError(
            f"the hub cannot be reached to load {os.fspath(source)!r} ({error}); without a "
            "network give a local folder with the same files, or a data set at hand: "
            '"mnist-mini" or a datasets.Dataset object'
        ) from error


def _bundled() -> datasets.DatasetDict:
    import datasets
    import pyarrow.parquet as pq
    from datasets.table import InMemoryTable

    folder = Path(__file__).parent / "mnist_mini"
    return datasets.DatasetDict(
        {
            split: datasets.Dataset(InMemoryTable(pq.read_table(folder / f"{split}.parquet")))
            for split in ("train", "test")
        }
    )
