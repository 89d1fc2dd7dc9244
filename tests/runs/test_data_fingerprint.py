"""Whether two runs have the same data."""

import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from fedlight import FederatedDataModule
from fedlight._runs.data_fingerprint import data_content


class Own(Dataset):
    """Examples of its own kind."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, row):
        return self.x[row], self.y[row]


@pytest.mark.parametrize("kind", ["own", "subset"])
def test_the_content_of_any_data_set_counts(kind) -> None:
    def made(factor):
        x, y = factor * torch.ones(6, 2), torch.zeros(6, dtype=torch.int64)
        each = Own(x, y) if kind == "own" else Subset(TensorDataset(x, y), range(6))
        data = FederatedDataModule.from_client_datasets([each], batch_size=2, val_dataset=each)
        data.setup()
        return data_content(data)

    assert made(1.0) == made(1.0) != made(3.0)
