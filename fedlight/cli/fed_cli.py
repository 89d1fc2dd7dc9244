"""The command line of a module and its data, in the form of `LightningCLI`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from inspect import isclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import yaml
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from fedlight._fit.lightning_arguments import lightning_objection
from fedlight.data import FederatedDataModule
from fedlight.trainer import FedTrainer


class FedCLI(LightningCLI):
    """Lightning's command line, ``LightningCLI``, with a `FedTrainer` and federated data.

    A script of one line serves the subcommands ``fit``, ``validate``, ``test`` and ``predict``, the
    options ``--trainer.…``, ``--model.…``, ``--data.…`` and ``--seed_everything``, ``--config`` for
    a file of them, and ``--print_config``, which prints such a file. Arrivals, aggregator, local
    optimizer and partitioner are named by their class: ``--trainer.aggregator FedBuff
    --trainer.aggregator.buffer_size 10``. The run's folder gets a ``config.yaml`` of all options.

    There are no options ``--optimizer`` and ``--lr_scheduler``: name a local optimizer
    (``--trainer.local_optimizer LocalSGD``), or let the module have its own, which starts afresh in
    each local run.

    Args:
        model_class: The class of the module, or a function that returns one; None for any class
            that ``--model`` names.
        datamodule_class: `FederatedDataModule`, a subclass, or a function that returns one.
        trainer_class: `FedTrainer` or a subclass.
        seed_everything_default: Seed of the initial weights if ``--seed_everything`` gives none.
            All other randomness follows from ``--trainer.seed``.
        **others: Further arguments of `LightningCLI`, such as ``trainer_defaults={…}``,
            ``run=False``, ``save_config_callback=None`` or ``args=[…]``.

    Raises:
        TypeError: `datamodule_class` is a data module of Lightning.

    Example:
        >>> from fedlight.models import LogisticRegression
        >>> def main():
        ...     FedCLI(LogisticRegression, trainer_defaults={"max_rounds": 150})
    """

    def __init__(
        self,
        model_class: type[LightningModule] | Callable[..., LightningModule] | None = None,
        datamodule_class: type[FederatedDataModule]
        | Callable[..., FederatedDataModule] = FederatedDataModule,
        trainer_class: type[FedTrainer] = FedTrainer,
        seed_everything_default: bool | int = 0,
        **others: Any,
    ) -> None:
        _refuse_lightnings(datamodule_class)
        super().__init__(
            model_class,
            datamodule_class,
            trainer_class=trainer_class,  # type: ignore[arg-type]  # it has the methods in use
            seed_everything_default=seed_everything_default,
            parser_class=_Parser,
            auto_configure_optimizers=False,
            **others,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The subcommands, and the arguments of each that are no options."""
        given = {"module", "model", "datamodule", "others"}
        return {
            "fit": given,
            "validate": given | {"verbose"},
            "test": given | {"verbose"},
            "predict": given | {"dataloaders", "dataset"},
        }

    def validate(self, **given: Any) -> None:
        """Validate, and print the metrics."""
        self.trainer.validate(**given, verbose=True)

    def test(self, **given: Any) -> None:
        """Test, and print the metrics."""
        self.trainer.test(**given, verbose=True)


def _refuse_lightnings(data: object) -> None:
    if not isclass(data) or issubclass(data, FederatedDataModule):
        return
    if issubclass(data, LightningDataModule):
        raise TypeError(
            f"FedCLI does not take the data module {data.__name__} of Lightning: write a function "
            f"that returns FederatedDataModule.from_lightning({data.__name__}(…), partitioner), "
            "and pass it as the second argument"
        )


class _Parser(LightningArgumentParser):
    """Also takes the arguments of a trainer that is none of Lightning's."""

    _words: Sequence[str] = ()

    def parse_args(  # type: ignore[override]  # argparse's overloads
        self, args: Sequence[str] | None = None, *others: Any, **more: Any
    ) -> Any:
        """Parse the command line, whose words `error` reads."""
        self._words = sys.argv[1:] if args is None else args
        return super().parse_args(args, *others, **more)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End with the remedies for options of Lightning, or with jsonargparse's message."""
        options = dict(_options(self._words))
        found = [
            lightning_objection(name, value) or f"leave out {name}={value!r}"
            for name, value in options.items()
            if lightning_objection(name, value) is not None
        ]
        empty = {
            name: f"leave out {name}: null"
            for part in _files(self._words)
            for name in _UNUSED
            if name in part and part[name] is None
        }
        found += empty.values()
        match = re.search(r"(?:--|option ')(optimizer|lr_scheduler)\b", message)
        if match and match[1] not in empty:
            found.append(f"FedCLI has no --{match[1]}: {_OPTIMIZER}")
        if found and self.exit_on_error:
            self.exit(2, "".join(f"{self.prog}: error: {each}\n" for each in found))
        super().error("\n  ".join(found) or message, ex)

    def add_lightning_class_args(
        self, lightning_class: Any, nested_key: str, *args: Any, **kwargs: Any
    ) -> list[str]:
        """Add the options of a class."""
        if nested_key == "trainer":
            added: list[str] = self.add_class_arguments(
                lightning_class, nested_key, instantiate=False, sub_configs=True
            )
            return added
        return super().add_lightning_class_args(lightning_class, nested_key, *args, **kwargs)


_OPTIMIZER = (
    "write --trainer.local_optimizer LocalSGD --trainer.local_optimizer.lr 0.1, or return the "
    "optimizer and its scheduler from the module's configure_optimizers"
)


_UNUSED = ("optimizer", "lr_scheduler", "weights_only")
"""Options that a file which `LightningCLI` has written contains without a value."""


def _files(words: Sequence[str]) -> Iterator[dict[Any, Any]]:
    """The content of the files of options on a command line, as far as it is a mapping."""
    for word, following in pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        value = value if equals else following
        if option in ("--config", "-c") and Path(value).is_file():
            content = _read(Path(value).read_text(encoding="utf-8"))
            # A file that was given before the subcommand has the options below its name.
            for part in (content, *content.values()) if isinstance(content, dict) else ():
                if isinstance(part, dict):
                    yield part


def _options(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The arguments of the trainer, from files of options and from the command line."""
    for part in _files(words):
        trainer = part.get("trainer")
        yield from trainer.items() if isinstance(trainer, dict) else ()
    for word, following in pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        if option.startswith("--trainer."):
            yield option.removeprefix("--trainer."), _read(value if equals else following)


def _read(text: str) -> Any:
    """The value of an option, or the content of a file; the text itself if it is no YAML."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
