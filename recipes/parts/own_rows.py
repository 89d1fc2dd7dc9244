"""Rows of a CSV file, or made-up ones, as data of a federation; not a recipe."""

from pathlib import Path

import numpy as np
from datasets import Dataset
from pyarrow import ArrowInvalid
from pyarrow.csv import read_csv

from data_partitioners import DirichletPartitioner, NaturalIdPartitioner
from fedlight import FederatedDataModule


def weather() -> Dataset:
    """Make up the days of twelve stations, each with its own climate."""
    random = np.random.default_rng(0)
    station = random.integers(12, size=6000)
    x = random.normal(size=(12, 3))[station] + random.normal(size=(6000, 3))
    rains = x[:, 0] - x[:, 1] * x[:, 2] + 0.5 * random.normal(size=6000) > 0
    columns = {"humidity": 60 + 15 * x[:, 0], "pressure": 1013 + 8 * x[:, 1], "wind": x[:, 2]}
    return Dataset.from_dict({"station": station, **columns, "sky": np.where(rains, "rain", "sun")})


class OwnRows:
    """Rows with a column of labels, perhaps one of clients, and numbers in all others.

    Args:
        csv: A file with a header; None for `weather`.
        label: The column of labels.
        client: The column that says whose row it is; None deals the rows out to ten clients.

    Attributes:
        num_inputs: Number of columns of numbers.
        num_classes: Number of labels.

    Raises:
        ValueError: A column is missing or has no numbers, or the file cannot be read.
    """

    def __init__(self, csv: Path | None, label: str, client: str | None) -> None:
        try:
            rows = Dataset(read_csv(csv)) if csv else weather()
        except ArrowInvalid as error:
            raise ValueError(f"csv must be a file of comma-separated rows: {error}") from error
        for argument, name in {"label": label, "client": client}.items():
            if name not in (None, *rows.column_names):
                raise ValueError(f"{argument} must be one of {rows.column_names}, got {name!r}")
        inputs = [name for name in rows.column_names if name not in (label, client)]
        for name in inputs:
            if not all(isinstance(value, int | float) for value in rows[name]):
                raise ValueError(f"column {name!r} must hold a number in each row; leave it out")
        rows = rows.class_encode_column(label)
        x = np.stack([rows[name] for name in inputs], axis=1).astype(np.float32)
        self._rows = rows.add_column("inputs", list((x - x.mean(0)) / x.std(0).clip(1e-6)))
        self._label, self._client = label, client
        self.num_inputs, self.num_classes = len(inputs), rows.features[label].num_classes

    def split(self, seed: int) -> FederatedDataModule:
        """Return four fifths of the rows for training, and the others for validation."""
        splits = self._rows.train_test_split(test_size=0.2, seed=seed)
        by_client = NaturalIdPartitioner(self._client) if self._client else None
        partitioner = by_client or DirichletPartitioner(10, 1.0, self._label)
        columns = ("inputs", self._label)
        return FederatedDataModule(splits, partitioner, batch_size=32, columns=columns)
