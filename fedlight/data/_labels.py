"""The labels of a torch data set, in a table that a partitioner can read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from lightning.pytorch.utilities.seed import isolate_rng
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from fedlight._support.checks import shown
from fedlight.data._tensors import chosen
from fedlight.data.sources import is_a

if TYPE_CHECKING:
    import datasets

Labels: TypeAlias = "str | Callable[[Any], Any] | Mapping[str, Any] | Any"
"""An array, a name, a function of an example, or several of them by column."""

_ATTRIBUTES = ("targets", "labels")  # torchvision has both
_KEYS = ("label", "labels", "target", "targets", "y")
_COLUMN = "label"


def labels_table(dataset: Any, labels: Labels | None) -> datasets.Dataset:
    """A table with one row for each example of a data set and its labels in the column "label".

    Args:
        dataset: A map-style data set.
        labels: One label for each example; the name of an attribute of the data set or of a key of
            its examples, which also becomes the column's name; a function of an example; or a dict
            with one of these for each column. None for those that the data set is known to have.
            Without any, the only column is "row".

    Raises:
        TypeError: `labels` is none of these.
        ValueError: There is not one label for each example, or they are neither numbers nor texts.
    """
    import datasets

    if labels is None and type(dataset) is Subset and is_a("Dataset", dataset.dataset):
        whole: Any = dataset.dataset
        return cast("datasets.Dataset", whole.select(dataset.indices))
    columns: dict[str, NDArray[Any]] = {}
    if labels is None:
        known = _known_labels(dataset)
        # Not every attribute of that name holds labels by which examples can be divided.
        with suppress(TypeError, ValueError):
            columns = {} if known is None else {_COLUMN: _values(_COLUMN, dataset, known)}
    elif isinstance(labels, Mapping):
        if not labels:
            raise ValueError(f"labels must name at least one column, got {labels!r}")
        columns = {str(name): _values(str(name), dataset, each) for name, each in labels.items()}
    else:
        columns = {_COLUMN: _values(_COLUMN, dataset, labels)}
        if isinstance(labels, str):
            columns[labels] = columns[_COLUMN]
    return datasets.Dataset.from_dict(columns or {"row": np.arange(len(dataset))})


def _values(column: str, dataset: Any, labels: Any) -> NDArray[Any]:
    """One label for each example."""
    argument = "labels" if column == _COLUMN else f"labels[{column!r}]"
    if isinstance(labels, str):
        name = labels
        found = _attribute(dataset, name)
        labels = (lambda example: _item(argument, example, name)) if found is None else found
    if isinstance(labels, type):
        raise TypeError(f"{argument} must be labels or a function, got {shown(labels)}")
    if callable(labels):
        with isolate_rng(include_cuda=False):  # reading an example may draw random numbers
            labels = [labels(dataset[row]) for row in range(len(dataset))]
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu()
    try:
        values = np.asarray(labels)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{argument} cannot be read as an array ({error}), got {shown(labels)}"
        ) from error
    if values.ndim != 1 or values.dtype.kind not in "biufUO":
        raise ValueError(
            f"{argument} must hold one number or text for each example, got {shown(labels)} of "
            f"shape {values.shape} and type {values.dtype}; for one-hot labels write "
            "labels.argmax(1)"
        )
    if len(values) != len(dataset):
        raise ValueError(
            f"{argument} must hold one label for each of the {len(dataset)} examples of "
            f"{type(dataset).__name__}, got {len(values)}: {shown(labels)}"
        )
    return values


def _item(argument: str, example: Any, name: str) -> Any:
    if not isinstance(example, Mapping) or name not in example:
        has = list(example) if isinstance(example, Mapping) else type(example).__name__
        raise ValueError(
            f"{argument}={name!r} is neither an attribute of the data set nor a key of its "
            f"examples ({has}); give an array, or a function such as "
            "labels=lambda example: example[1]"
        )
    return example[name]


def _known_labels(dataset: Any) -> Any:
    """The labels that a data set is known to have; None if there are none."""
    tensors = dataset.tensors if type(dataset) is TensorDataset else ()
    if type(dataset) is StackDataset and isinstance(dataset.datasets, tuple):
        tensors = dataset.datasets
    if len(tensors) > 1:
        last = tensors[-1]
        is_class = isinstance(last, Tensor) and last.dim() == 1 and not last.is_floating_point()
        return last if is_class else None
    if type(dataset) in (Subset, ConcatDataset):
        return _through(dataset, _known_labels)
    names = _KEYS if type(dataset) is StackDataset else _ATTRIBUTES
    found = (_attribute(dataset, name) for name in names)
    return next((each for each in found if each is not None), None)


def _attribute(dataset: Any, name: str) -> Any:
    """The values that a data set keeps under a name; None if there are none."""
    if type(dataset) in (Subset, ConcatDataset):
        return _through(dataset, lambda inner: _attribute(inner, name))
    if type(dataset) is StackDataset and isinstance(dataset.datasets, dict):
        return dataset.datasets.get(name)
    if is_a("Dataset", dataset):
        return dataset[name][:] if name in dataset.column_names else None
    # Data sets of torchvision and others keep their labels so, under no common class.
    found = getattr(dataset, name, None)
    return None if callable(found) else found


def _through(dataset: Any, find: Callable[[Any], Any]) -> Any:
    """The labels of a subset or a concatenation, from those of the data sets in it."""
    if type(dataset) is Subset:
        found = find(dataset.dataset)
        return None if found is None else chosen(_array(found), dataset)
    parts = [find(each) for each in dataset.datasets]
    if any(part is None for part in parts):
        return None
    return np.concatenate([_array(part) for part in parts])


def _array(values: Any) -> NDArray[Any]:
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
