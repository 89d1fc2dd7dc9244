"""Texts for examples that need no download: Shakespeare, Python's own library, translations."""

from __future__ import annotations

import ast
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from fedlight._support.checks import names as names_of
from fedlight._support.checks import word
from fedlight.data.reading import chunks_of
from fedlight.data.sources import checked_source, load_splits

_LEFT_OUT = {"__pycache__", "dist-packages", "site-packages", "test"}


def shakespeare_texts(
    source: str | Path = "flwrlabs/shakespeare", split: str = "train"
) -> dict[str, str]:
    """What each character of Shakespeare's plays says, from LEAF's windows of 80 characters.

    Successive windows of a character overlap in all but one of their characters; they are joined
    to the text that they were cut from. A window that does not continue the one before it begins
    a new piece.

    Args:
        source: The hub id or a folder with the same files: string columns `character_id`, `x` and
            `y`.
        split: The split.

    Returns:
        Texts by `character_id`, in the order of their first windows.

    Raises:
        ValueError: There is no such split, or it lacks a column.
        ConnectionError: The hub is needed and cannot be reached.

    Source: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018,
    https://arxiv.org/abs/1812.01097.
    """
    word("split", split)
    splits = load_splits(checked_source(source, "source"), None, None, split)
    if split not in splits:
        raise ValueError(
            f"split={split!r} is not a split of the data set, which has {list(splits)}"
        )
    dataset = splits[split]
    wanted = ("character_id", "x", "y")
    if missing := [name for name in wanted if name not in dataset.column_names]:
        raise ValueError(
            f"source={str(source)!r} has no column {missing[0]!r}, it has {dataset.column_names}; "
            "give LEAF's Shakespeare, such as 'flwrlabs/shakespeare'"
        )
    parts: dict[str, list[str]] = defaultdict(list)
    expected: dict[str, str] = {}
    for columns in zip(*(chunks_of(dataset, name) for name in wanted), strict=True):
        for role, x, y in zip(*(column.to_pylist() for column in columns), strict=True):
            parts[role].append(y if expected.get(role) == x else x + y)
            expected[role] = x[1:] + y
    return {role: "".join(said) for role, said in parts.items()}


def python_texts(names: Iterable[str] | None = None) -> dict[str, bytes]:
    """The source of Python's standard library, one text for each of its modules and packages.

    The text of a package is that of its files, subpackages included, in the order of their paths.
    The library's tests are left out. The texts depend on the version of Python.

    Args:
        names: Modules and packages, such as ``["asyncio", "email"]``; None for all.

    Returns:
        The bytes of the files by name.

    Raises:
        TypeError: `names` is no list of names.
        ValueError: There is no such module with source in Python.
        FileNotFoundError: Python's library is not in a folder, as in a frozen program.

    Example:
        >>> sorted(python_texts(["json", "textwrap"]))
        ['json', 'textwrap']
    """
    folder = Path(sysconfig.get_path("stdlib"))
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {str(folder)!r} with Python's library")
    known = {
        path.stem: path
        for path in sorted(folder.iterdir())
        if path.suffix == ".py" or (path / "__init__.py").is_file()
        if path.name not in _LEFT_OUT
    }
    wanted = list(known) if names is None else names_of("names", names)
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(
            f"names has {unknown[0]!r}, which is no module of the standard library with source in "
            f"Python; there are {len(known)}, such as {', '.join(list(known)[-3:])}"
        )
    return {name: b"".join(file.read_bytes() for file in _sources(known[name])) for name in wanted}


def django_texts(languages: Iterable[str] | None = None) -> dict[str, str]:
    """The translations that Django brings, one text for each language; Django must be installed.

    A text has the translated messages of Django and of its `contrib` applications, in the order of
    their files, a message a line. Messages without a translation, and those marked as fuzzy, are
    left out, and so are languages without any.

    Args:
        languages: Names of locales as Django's folders have them, such as ``["de", "pt_BR"]``; None
            for all.

    Returns:
        Texts by language.

    Raises:
        ImportError: Django is not installed.
        TypeError: `languages` is no list of names.
        ValueError: There is no such language.
    """
    chosen = [] if languages is None else names_of("languages", languages)
    spec = find_spec("django")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(
            "django_texts reads the translations that Django brings, which is not installed: "
            "pip install django"
        )
    found: dict[str, list[str]] = defaultdict(list)
    for folder in map(Path, spec.submodule_search_locations):
        for file in sorted(folder.rglob("locale/*/LC_MESSAGES/*.po")):
            found[file.parts[-3]] += _translations(file.read_text(encoding="utf-8"))
    texts = {name: "\n".join(found[name]) + "\n" for name in sorted(found) if found[name]}
    wanted = list(texts) if languages is None else chosen
    if unknown := [name for name in wanted if name not in texts]:
        raise ValueError(
            f"languages has {unknown[0]!r}, which Django is not translated to; it has {list(texts)}"
        )
    return {name: texts[name] for name in wanted}


def _sources(path: Path) -> list[Path]:
    """The Python files of a module or package, without tests."""
    if path.is_file():
        return [path]
    files = sorted(path.rglob("*.py"))
    return [file for file in files if not {"test", "tests", "idle_test"} & set(file.parts)]


def _translations(catalogue: str) -> Iterator[str]:
    """The translations in a file of gettext, without its header."""
    for entry in catalogue.split("\n\n"):
        lines = entry.splitlines()
        if any(line.startswith("#,") and "fuzzy" in line for line in lines):
            continue
        strings: dict[str, str] = {}
        keyword = ""
        for line in lines:
            if line.startswith("#"):
                continue
            start, quote, rest = line.partition('"')
            keyword = start.strip() or keyword
            if quote:
                # The escapes of gettext are those of Python.
                strings[keyword] = strings.get(keyword, "") + ast.literal_eval(quote + rest.strip())
        if strings.get("msgid"):  # the header's is empty
            yield from (
                text for name, text in strings.items() if name.startswith("msgstr") and text
            )
