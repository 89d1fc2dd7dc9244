"""The command line of a module and its data, in the form of `LightningCLI`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning import LightningModule
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

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


class _Parser(LightningArgumentParser):
    """Also takes the arguments of a trainer that is none of Lightning's."""

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
