"""Texts as bytes, in blocks from which a model learns to predict the next byte."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from data_partitioners import Partition, Partitioner
from fedlight._support.checks import (
    described,
    number,
    one_of,
    positive_int,
    word,
)
from fedlight._support.files import user_path
from fedlight.data._arguments import checked_partition, checked_partitioner, checked_seed
from fedlight.data.columns import Column
from fedlight.data.examples import ExampleList, ExampleTable
from fedlight.data.module import FederatedDataModule

if TYPE_CHECKING:
    import datasets

Text: TypeAlias = "str | bytes | Path | Sequence[Text]"
"""A text, a file or a folder; or several, which are joined in their order."""

Texts: TypeAlias = "Mapping[str, Text] | Sequence[Text] | Path"
"""Several texts: by name, in a list, or a folder, of which each file is one."""

_Blocks: TypeAlias = tuple[Tensor, Tensor]
_VAL_SHARE = 0.1
_NOTHING = torch.empty(0, dtype=torch.uint8)


def text_data(
    texts: Texts,
    context: int = 128,
    batch_size: int = 8,
    *,
    partitioner: Partitioner | None = None,
    val_share: float | None = None,
    val_texts: Texts | None = None,
    test_texts: Texts | None = None,
    pattern: str = "*",
    short: str = "raise",
    partition_seed: int = 0,
    eval_batch_size: int = 100,
) -> FederatedDataModule:
    r"""A data module of texts, whose tokens are bytes: one client for each text.

    An example is a block of T = `context` tokens and, for each of them, the token that follows it,
    both int64 `[T]`. Block j of a text of bytes $c_0, c_1, \dots$ is

    $$x = (c_{jT}, \dots, c_{jT + T - 1}), \qquad y = (c_{jT + 1}, \dots, c_{jT + T})$$

    so blocks do not overlap, and each byte but the first is predicted once. Bytes after the last
    whole block are left out. The tokens are kept as bytes, two for each byte of text, and become
    integers when a batch is gathered.

    Args:
        texts: The texts by name; or a list, whose texts are named "0", "1", …; or a folder as a
            `pathlib.Path`, of which each file is a text. A text is a `str`, of which the UTF-8
            bytes are taken, `bytes`, a `Path` of a file, or a `Path` of a folder, whose files are
            joined in the order of their paths. A list of these is joined to one text.
        context: T, the number of tokens of a block.
        batch_size: Blocks per local step.
        partitioner: Divides the blocks of all texts among the clients, with the texts' names in
            the column "text". None for one client for each text, in their order, with its name.
        val_share: The share at the end of each text that is kept for validation, at least 0 and
            below 1; None for 0.1, or 0 if there are `val_texts`.
        val_texts: Texts for validation, in place of a share.
        test_texts: Texts for `test`.
        pattern: The files of folders that are read, such as ``"*.txt"``, also in subfolders.
        short: "raise" refuses a text whose training part has no whole block; "drop" leaves such
            texts out.
        partition_seed: Seed that the partitioner gets.
        eval_batch_size: Blocks per step of validation and test.

    Raises:
        TypeError: A text is of another kind.
        ValueError: There is no text, one is too short, or an argument is outside its range.
        FileNotFoundError: A path does not exist, or a folder has no such files.

    Example:
        >>> data = text_data({"one": "abcdefghi", "two": "123456789"}, context=3, val_share=0)
        >>> data.partition.client_ids, data.partition.sizes
        (('one', 'two'), array([2, 2]))
        >>> x, y = data.train_data.gather(torch.tensor([1]))
        >>> bytes(x[0].tolist()), bytes(y[0].tolist())
        (b'def', b'efg')
    """
    positive_int("context", context)
    one_of("short", short, ("raise", "drop"))
    if partitioner is not None:
        checked_partitioner(partitioner)
    word("pattern", pattern)
    partition_seed = checked_seed(partition_seed)
    if val_texts is not None and val_share is not None:
        raise ValueError(f"val_share={val_share!r} and val_texts exclude each other; give one")
    share = 0.0 if val_texts is not None else _VAL_SHARE if val_share is None else val_share
    if not 0 <= number("val_share", share) < 1:
        raise ValueError(f"val_share must be at least 0 and below 1, got {val_share!r}")
    train: dict[str, _Blocks] = {}
    ends: list[_Blocks] = []
    for name, tokens in _read("texts", texts, pattern).items():
        until = len(tokens) - int(share * len(tokens))
        blocks = _blocks(tokens[:until], context)
        if len(blocks[0]):
            train[name] = blocks
            ends.append(_blocks(tokens[until:], context))
        elif short == "raise":
            raise ValueError(_too_short(name, until, context, texts))
    examples = _table("texts", train.values(), context)
    names, sizes = list(train), [len(x) for x, _ in train.values()]
    rows = _rows(names, sizes)
    if partitioner is None:
        offsets = np.array([0, *accumulate(sizes)], dtype=np.int64)
        partition = Partition(np.arange(len(examples)), offsets, client_ids=tuple(names))
    else:
        partition = checked_partition(partitioner, rows, partition_seed)
    val: list[ExampleTable | ExampleList] = []
    test: list[ExampleTable | ExampleList] = []
    for argument, given, found in (("val_texts", val_texts, val), ("test_texts", test_texts, test)):
        if given is not None:
            read = _read(argument, given, pattern).values()
            found.append(_table(argument, [_blocks(each, context) for each in read], context))
    if share:
        val.append(_table(f"val_share={share} at the ends of the texts", ends, context))
    data = FederatedDataModule.of_examples(
        partition, examples, val, test, rows, batch_size, eval_batch_size
    )
    data.tokens_per_example = context
    return data


def _blocks(tokens: Tensor, context: int) -> _Blocks:
    """The blocks of a text and the tokens that follow, `[blocks, context]` each."""
    used = (len(tokens) - 1) // context * context if len(tokens) else 0
    return tokens[:used].view(-1, context), tokens[1 : used + 1].view(-1, context)


def _table(name: str, pairs: Collection[_Blocks], context: int) -> ExampleTable:
    """The blocks of several texts as one table."""
    if not any(len(x) for x, _ in pairs):
        raise ValueError(
            f"{name} must hold a block of context + 1 = {context + 1} bytes, and no text there is "
            "so long; give more text or a smaller context"
        )
    x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return ExampleTable([Column(x, torch.int64), Column(y, torch.int64)])


def _rows(names: Sequence[str], sizes: Sequence[int]) -> datasets.Dataset:
    import datasets

    return datasets.Dataset.from_dict({"text": np.repeat(np.array(names), sizes)})


def _too_short(name: str, length: int, context: int, texts: Texts) -> str:
    """What to write if the training part of a text has no block."""
    given = texts.get(name) if isinstance(texts, Mapping) else None
    if isinstance(texts, Sequence):
        given = texts[int(name)]
    if isinstance(given, str) and "\n" not in given and Path(given).exists():
        return f"texts[{name!r}] is the text {given!r} itself; a file is given as Path({given!r})"
    return (
        f"texts[{name!r}] has {length:,} bytes for training, and a block takes context + 1 = "
        f"{context + 1}; give a smaller context, join short texts to one (a list is one text), or "
        'leave them out with short="drop"'
    )


def _read(argument: str, texts: Any, pattern: str) -> dict[str, Tensor]:
    """The bytes of each text, uint8 `[n]`, by name."""
    named: dict[str, Any]
    if isinstance(texts, Path):
        folder = _existing(argument, texts)
        if not folder.is_dir():
            raise ValueError(
                f"{argument}={str(texts)!r} must be a folder, of which each file is a text; write "
                f"{argument}=[Path({str(texts)!r})] for one text"
            )
        named = {str(path.relative_to(folder)): path for path in _files(argument, folder, pattern)}
    elif isinstance(texts, Mapping):
        named = dict(texts)
    elif isinstance(texts, Sequence) and not isinstance(texts, str | bytes):
        named = {str(number): text for number, text in enumerate(texts)}
    else:
        raise TypeError(
            f"{argument} must be texts by name, a list of texts or a folder as a pathlib.Path, got "
            f"{described(texts)}; write {argument}=[…] for one text"
        )
    if not named:
        raise ValueError(f"{argument} must have one or more texts, got none")
    for name in named:
        if not isinstance(name, str):
            raise TypeError(f"the names of {argument} must be strings, got {name!r}")
    return {
        # A bytearray: torch warns of a buffer that cannot be written to.
        name: torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else _NOTHING
        for name, content in (
            (name, _bytes(f"{argument}[{name!r}]", text, pattern)) for name, text in named.items()
        )
    }


def _bytes(argument: str, text: Any, pattern: str) -> bytes:
    """The bytes of a text, a file, the files of a folder, or several of these."""
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return text
    if isinstance(text, Path):
        path = _existing(argument, text)
        files = _files(argument, path, pattern) if path.is_dir() else [path]
        return b"".join(file.read_bytes() for file in files)
    if isinstance(text, Sequence):
        return b"".join(_bytes(argument, part, pattern) for part in text)
    raise TypeError(
        f"{argument} must be a str, bytes, a pathlib.Path, or a list of these, got "
        f"{described(text)}"
    )


def _existing(argument: str, path: Path) -> Path:
    found = user_path(path)
    if not found.exists():
        raise FileNotFoundError(f"{argument}: there is no file or folder {str(path)!r}")
    return found


def _files(argument: str, folder: Path, pattern: str) -> list[Path]:
    found = sorted(path for path in folder.rglob(pattern) if path.is_file())
    if not found:
        raise FileNotFoundError(
            f"{argument}: the folder {str(folder)!r} has no file pattern={pattern!r}"
        )
    return found
