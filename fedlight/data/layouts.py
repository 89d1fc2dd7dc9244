"""Which columns of a data set are input and target, and how they are read.

A known data set is recognised by its columns, not by its name. A folder with the columns of a hub
data set is therefore read in the same way:

- *Shakespeare*: string columns `character_id`, `x` and `y`. `x` (80 characters) becomes int64
  tokens `[80]` of LEAF's alphabet, and `y` (1 character) becomes one int64 token.
- *MNIST*: an image column `image` of 28 x 28 grey pixels, and a column `label` of integers whose
  class names, if it has any, are "0" to "9". Mean 0.1307, standard deviation 0.3081. (Fashion-MNIST
  has other class names, so it is not mistaken for MNIST.)
- *CIFAR-10*: an image column `img` of 32 x 32 RGB pixels, and a column `label` of integers whose
  class names, if it has any, are CIFAR-10's. Mean (0.4914, 0.4822, 0.4465), standard deviation
  (0.2470, 0.2435, 0.2616).
- *Other images*: scaled to 0 … 1, and normalised only if `normalize` is given.
- *Numbers and lists of numbers*: floating-point values in the type of the run, integers in their
  own type. A target of class numbers is always int64, and so are all integers of a dict batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from fedlight._support.checks import number, positive
from fedlight.data._cache import cached
from fedlight.data.columns import Column
from fedlight.data.examples import ExampleTable, Transform
from fedlight.data.reading import first_image_shape, read_images, read_numbers, read_text
from fedlight.data.sources import is_a

if TYPE_CHECKING:
    import datasets

Statistics: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation, one number per channel or one for all."""

Columns: TypeAlias = tuple[tuple[str, ...], str | None]
"""Names of the input columns, name of the target column.

If batches are dicts, all columns are inputs and the target is None.
"""

_INPUT_NAMES = ("image", "img", "x", "features")
_TARGET_NAMES = ("label", "labels", "target", "y")
_SHAKESPEARE_LENGTHS = {"x": 80, "y": 1}


@dataclass(frozen=True)
class _KnownImages:
    input: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    statistics: Statistics


_KNOWN_IMAGES = (
    _KnownImages("image", (1, 28, 28), tuple("0123456789"), ((0.1307,), (0.3081,))),
    _KnownImages(
        "img",
        (3, 32, 32),
        (
            "airplane", "automobile", "bird", "cat", "deer",
            "dog", "frog", "horse", "ship", "truck",
        ),
        ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """How a data set is read; determined on the training split and used for every split.

    Args:
        inputs: Input columns.
        target: Target column; None if there is none.
        statistics: Mean and standard deviation of the input; None for no normalisation.
        text: Whether the columns hold characters of LEAF's alphabet.
        class_target: Whether the target must hold class numbers.
        keys: The batch's key for each input column; None for batches that are tuples.
    """

    inputs: tuple[str, ...]
    target: str | None
    statistics: Statistics | None
    text: bool
    class_target: bool
    keys: tuple[str, ...] | None = None

    def read(
        self,
        dataset: datasets.Dataset,
        split: str,
        transform: Transform | None = None,
        cache: bool | Path = False,
    ) -> ExampleTable:
        """Read the examples of a split as compact tensors.

        Args:
            dataset: The split.
            split: Its name in errors.
            transform: As for `ExampleTable`.
            cache: Where decoded images and text are kept, as for `cached`.

        Raises:
            ValueError: The split is empty, lacks a column, or has values that cannot be read.
        """
        if len(dataset) == 0:
            raise empty(split)
        wanted = [*self.inputs, *([] if self.target is None else [self.target])]
        missing = [name for name in wanted if name not in dataset.features]
        if missing:
            raise _no_column(missing, dataset.features, f"split {split!r} of the data set")
        # In a dict any column may be the target, so integers are read as those of targets are.
        columns = [
            self._input(dataset, name, cache)
            if self.keys is None or is_a("Image", dataset.features[name])
            else self._target(dataset, name, split, cache)
            for name in self.inputs
        ]
        if self.target is not None:
            columns.append(self._target(dataset, self.target, split, cache))
        return ExampleTable(columns, transform, self.keys)

    def _input(self, dataset: datasets.Dataset, name: str, cache: bool | Path) -> Column:
        if self.text:
            return Column(_tokens(dataset, name, cache), torch.int64)
        is_image = is_a("Image", dataset.features[name])
        values = _pixels(dataset, name, cache) if is_image else read_numbers(dataset, name)
        floating = is_image or values.is_floating_point()
        column = Column(values, torch.get_default_dtype() if floating else values.dtype)
        if self.statistics is not None:
            _check_channels(name, self.statistics, tuple(values.shape[1:]))
            return column.normalized(*self.statistics, unit=255 if is_image else 1)
        return column.normalized([0.0], [1.0], unit=255) if is_image else column

    def _target(
        self, dataset: datasets.Dataset, name: str, split: str, cache: bool | Path
    ) -> Column:
        if self.text:
            return Column(_tokens(dataset, name, cache)[:, 0].contiguous(), torch.int64)
        feature = dataset.features[name]
        if self.class_target and not _is_integer(feature):
            raise ValueError(
                f"column {name!r} should hold class numbers 0, 1, 2, … but holds "
                f"{getattr(feature, 'dtype', feature)}; use "
                f"dataset.class_encode_column({name!r}), or for another kind of target say so "
                f"with columns=({', '.join(map(repr, self.inputs))}, {name!r})"
            )
        values = read_numbers(dataset, name)
        if is_a("ClassLabel", feature) and int(values.min()) < 0:
            raise ValueError(
                f"column {name!r} of split {split!r} has class {int(values.min())}, which means "
                "that rows are not labelled; choose another split or drop these rows"
            )
        floating = values.is_floating_point()
        if self.keys is not None and values.dtype == torch.bool:
            return Column(values, torch.bool)
        return Column(values, torch.get_default_dtype() if floating else torch.int64)


def layout_of(
    dataset: datasets.Dataset,
    columns: Columns | None,
    statistics: Statistics | None,
    keys: tuple[str, ...] | None = None,
    known_statistics: bool = True,
) -> Layout:
    """Determine how the data set is read, from its columns and the user's arguments.

    Args:
        dataset: The training split.
        columns: Input columns and target column; None for the known ones.
        statistics: Mean and standard deviation; None for the known ones.
        keys: The batch's key for each column; None for batches that are tuples.
        known_statistics: Whether known images are normalised if there are no `statistics`.

    Raises:
        ValueError: A named column is missing, the columns cannot be recognised by their names, or
            there are statistics but no single input column for them.
    """
    features = dataset.features
    inputs, target = default_columns(features) if columns is None else columns
    missing = [name for name in (*inputs, target) if name is not None and name not in features]
    if missing:
        raise _no_column(missing, features, "the data set")
    images = [name for name in inputs if is_a("Image", features[name])]
    text = keys is None and _is_shakespeare(features) and (inputs, target) == (("x",), "y")
    if statistics is not None:
        needed = ""
        if keys is not None and len(images) != 1:
            needed = f"column of images in a dict of columns, got {len(images)}"
        elif keys is None and (text or len(inputs) > 1):
            named = ", ".join(map(repr, inputs)) + " (text)" * text
            needed = f"input column of images or numbers, got {named}"
        if needed:
            raise ValueError(
                f"normalize={statistics} needs one {needed}; leave it out and use "
                "transform= instead"
            )
    elif known_statistics and len(images) == 1 and len(dataset):
        if keys is not None and "label" in inputs:
            statistics = _known_statistics(dataset, images[0], "label")
        elif target is not None and len(inputs) == 1:
            statistics = _known_statistics(dataset, images[0], target)
    classes = columns is None and not text
    return Layout(inputs, target, statistics, text, classes, keys)


def checked_columns(columns: object) -> tuple[Columns | None, tuple[str, ...] | None]:
    """Check the argument `columns`, and return its full form and the keys of batches, or None.

    Raises:
        TypeError: It is neither a pair of input and target nor a dict of names.
    """
    if columns is None:
        return None, None
    if isinstance(columns, Mapping):
        if columns and all(isinstance(n, str) for pair in columns.items() for n in pair):
            return (tuple(columns.values()), None), tuple(columns)
    elif isinstance(columns, Sequence) and not isinstance(columns, str) and len(columns) == 2:
        inputs, target = columns
        inputs = (inputs,) if isinstance(inputs, str) else inputs
        named = isinstance(inputs, Sequence) and all(isinstance(n, str) for n in inputs)
        if named and inputs and isinstance(target, str | None):
            return (tuple(inputs), target), None
    raise TypeError(
        "columns must be (INPUT, TARGET) such as ('image', 'label'), or "
        "(('x1', 'x2'), 'y'), or ('x', None) without a target, or for batches that are dicts "
        f"{{KEY: COLUMN}} such as {{'pixel_values': 'image', 'labels': 'label'}}; got {columns!r}"
    )


def checked_statistics(normalize: object) -> Statistics | None:
    """Check the argument `normalize`, and return its full form.

    Raises:
        TypeError: It is not a pair of numbers or of sequences of numbers.
        ValueError: The two differ in length, or a standard deviation is not above 0.
    """
    if normalize is None:
        return None
    is_text = isinstance(normalize, str | bytes)
    if not isinstance(normalize, Sequence) or is_text or len(normalize) != 2:
        raise TypeError(
            "normalize must be (mean, std), numbers or one number per channel, such as "
            f"(0.5, 0.5); got {normalize!r}"
        )
    parts = [part if isinstance(part, Sequence) else [part] for part in normalize]
    mean = tuple(number("normalize[0] (mean)", value) for value in parts[0])
    std = tuple(positive("normalize[1] (std)", value) for value in parts[1])
    if not mean or len(mean) != len(std):
        raise ValueError(
            "normalize must have as many means as standard deviations, at least one; "
            f"got {len(mean)} and {len(std)}"
        )
    return mean, std


def default_columns(features: Mapping[str, Any]) -> Columns:
    """The input column and the target column by their names and types.

    Raises:
        ValueError: They cannot be recognised.
    """
    if _is_shakespeare(features):
        return ("x",), "y"
    images = [name for name, feature in features.items() if is_a("Image", feature)]
    classes = [n for n, feature in features.items() if is_a("ClassLabel", feature)]
    inputs = images or [name for name in _INPUT_NAMES if name in features][:1]
    targets = [name for name in _TARGET_NAMES if name in features][:1] or classes
    if len(inputs) != 1 or len(targets) != 1:
        raise ValueError(
            "columns=None: which columns are input and target cannot be told from the names "
            f"{list(features)}; write columns=(INPUT, TARGET), or columns={{KEY: COLUMN}} for "
            "batches that are dicts"
        )
    return tuple(inputs), targets[0]


def _pixels(dataset: datasets.Dataset, name: str, cache: bool | Path) -> Tensor:
    """The decoded images of a column, which may be on disk already."""
    # Decoders of JPEG may differ in the last bit.
    libraries = ", ".join(f"{each} {version(each)}" for each in ("pillow", "datasets"))
    how = f"images, {libraries}, {dataset.features[name]!r}"
    return cached(cache, dataset, name, how, lambda: read_images(dataset, name))


def _tokens(dataset: datasets.Dataset, name: str, cache: bool | Path) -> Tensor:
    """The tokens of a column of text, which may be on disk already."""
    length = _SHAKESPEARE_LENGTHS[name]
    how = f"text of {length}"
    return cached(cache, dataset, name, how, lambda: read_text(dataset, name, length))


def _known_statistics(dataset: datasets.Dataset, name: str, target: str) -> Statistics | None:
    feature = dataset.features[target]
    if target != "label" or not _is_integer(feature):
        return None
    names = getattr(feature, "names", None)
    for known in _KNOWN_IMAGES:
        if name == known.input and (names is None or tuple(names) == known.classes):
            same = first_image_shape(dataset, name) == known.shape
            return known.statistics if same else None
    return None


def _is_shakespeare(features: Mapping[str, Any]) -> bool:
    return all(
        getattr(features.get(name), "dtype", None) == "string"
        for name in ("character_id", "x", "y")
    )


def _is_integer(feature: Any) -> bool:
    dtype = getattr(feature, "dtype", "")
    return isinstance(dtype, str) and dtype.startswith(("int", "uint"))


def _check_channels(name: str, statistics: Statistics, shape: tuple[int, ...]) -> None:
    given, channels = len(statistics[0]), shape[0] if shape else 1
    if given not in (1, channels):
        raise ValueError(
            f"normalize has {given} means and standard deviations, but column {name!r} has "
            f"{channels} channel(s) (one example has shape {shape}); give {channels} of each or 1"
        )


def empty(split: str) -> ValueError:
    """The error for a split without examples."""
    return ValueError(f"the data set's split {split!r} is empty; it needs an example")


def _no_column(missing: Sequence[str], features: Mapping[str, Any], where: str) -> ValueError:
    return ValueError(
        f"{where} has no column {', '.join(map(repr, missing))}; it has {list(features)}; "
        "write columns=(INPUT, TARGET) with two of them"
    )
