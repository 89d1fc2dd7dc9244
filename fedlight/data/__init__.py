"""The clients' data: loaded once, stored as compact tensors, gathered on the device."""

from fedlight.data.columns import LEAF_ALPHABET, Column
from fedlight.data.corpora import django_texts, python_texts, shakespeare_texts
from fedlight.data.examples import ExampleList, ExampleTable
from fedlight.data.module import FederatedDataModule
from fedlight.data.texts import text_data

__all__ = [
    "LEAF_ALPHABET",
    "Column",
    "ExampleList",
    "ExampleTable",
    "FederatedDataModule",
    "django_texts",
    "python_texts",
    "shakespeare_texts",
    "text_data",
]
