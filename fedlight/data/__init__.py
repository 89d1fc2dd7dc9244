"""The clients' data: loaded once, stored as compact tensors, gathered on the device."""

from fedlight.data.columns import LEAF_ALPHABET, Column
from fedlight.data.examples import ExampleList, ExampleTable
from fedlight.data.module import FederatedDataModule

__all__ = ["LEAF_ALPHABET", "Column", "ExampleList", "ExampleTable", "FederatedDataModule"]
