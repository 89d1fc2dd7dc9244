"""Evaluation of the server's model on each client's own data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlight._module.evaluation import evaluate
from fedlight._support.checks import names, one_of, optional, positive_int
from fedlight.callbacks.base import Callback
from fedlight.data.sources import is_a
from fedlight.parameters import input_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from data_partitioners import Partition
    from fedlight.data import FederatedDataModule
    from fedlight.trainer import FedTrainer

LOWER_IS_BETTER = (
    *("loss", "error", "perplexity", "mse", "mae"),
    *("nll", "cross_entropy", "brier", "distance", "divergence", "regret"),
)
"""A metric whose name contains one of these words is better if it is smaller."""


def likely_mode(metric: str) -> str:
    """Return "min" or "max", whichever of a metric is best by its name."""
    return "min" if any(word in metric.lower() for word in LOWER_IS_BETTER) else "max"


class ClientEvaluation(Callback):
    """Evaluates the server's model on each client's own data, and how much the clients differ.

    Runs ``validation_step`` over the examples of each client separately. For each metric m that it
    logs, with the value m_i on client i and the clients' weights p_i (which sum to 1), it logs

    - ``clients/m_mean``: ``sum of p_i * m_i``, which for a loss is the federated objective;
    - ``clients/m_std``: ``sqrt(sum of p_i * (m_i - mean)^2)``;
    - ``clients/m_worst_tenth``: the plain mean over the worst tenth of the clients, at least one.

    They are in ``trainer.history``, ``trainer.callback_metrics`` and all loggers. The newest m_i
    are in `last`.

    Args:
        every_n_rounds: Evaluate after the first round and after each multiple of this number.
        data: "train" for each client's training examples; "validation" or "test" for its rows of
            that split. The latter need a `NaturalIdPartitioner`; clients without rows there are
            left out.
        max_clients: Largest number of clients, drawn once with the run's seed; None for all.
        max_examples: Largest number of examples of each client, the first ones; None for all.
        client_weights: p_i: "uniform", or proportional to the "examples" that are evaluated.
        lower_is_better: A metric whose name contains one of these words is worse if it is larger;
            all others are worse if they are smaller.

    Attributes:
        clients: The clients evaluated.
        last: The newest metrics, each with one value per client evaluated.

    Raises:
        ValueError: An argument is outside its range; (at the start of ``fit``) the module has no
            ``validation_step``, or the split cannot be divided among the clients.

    Source: Fraboni, Vidal, Kameni and Lorenzi, "A General Theory for Federated Optimization with
    Asynchronous and Heterogeneous Clients Updates", Section 5: the loss of the federated problem
    and its standard deviation over the clients. https://arxiv.org/abs/2206.10189

    Example:
        >>> callback = ClientEvaluation(every_n_rounds=10, max_clients=100)
    """

    def __init__(
        self,
        every_n_rounds: int = 10,
        data: str = "train",
        max_clients: int | None = 100,
        max_examples: int | None = None,
        client_weights: str = "uniform",
        lower_is_better: Sequence[str] = LOWER_IS_BETTER,
    ) -> None:
        self.every_n_rounds = positive_int("every_n_rounds", every_n_rounds)
        self.data = one_of("data", data, ("train", "validation", "test"))
        self.max_clients = optional(positive_int, "max_clients", max_clients)
        self.max_examples = optional(positive_int, "max_examples", max_examples)
        self.client_weights = one_of("client_weights", client_weights, ("uniform", "examples"))
        self.lower_is_better = tuple(names("lower_is_better", lower_is_better))
        self.clients: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.last: dict[str, NDArray[np.float64]] = {}

    def on_fit_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Choose the clients and collect their examples."""
        if not is_overridden("validation_step", module, LightningModule):
            raise ValueError(
                f"ClientEvaluation needs {type(module).__name__}.validation_step(batch, batch_idx) "
                "to log what is to be evaluated; define it"
            )
        data = trainer.datamodule
        assert data is not None
        partition, examples = _shared_out(data, self.data)
        clients = np.flatnonzero(partition.sizes)
        if self.max_clients is not None and len(clients) > self.max_clients:
            random = np.random.default_rng([trainer.seed % 2**64, len(clients)])
            clients = np.sort(random.choice(clients, self.max_clients, replace=False))
        self.clients, self.last = clients, {}
        self._rows = [
            torch.from_numpy(partition[int(client)][: self.max_examples]) for client in clients
        ]
        # Those that clients train on are on the device already, and need not be there twice.
        self._examples: Any = None
        if self.data != "train":
            self._examples = examples.to(trainer.fabric.device, input_dtype(module))
        self._batch_size = data.eval_batch_size

    def on_round_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Evaluate in the first round and in every n-th round."""
        if trainer.version != 1 and trainer.version % self.every_n_rounds:
            return
        if self._examples is None:
            self._examples = trainer.run.examples
        found = [
            evaluate(
                module, self._batches(rows), "validation", trainer.fabric.autocast(), trainer.seed
            )
            for rows in self._rows
        ]
        sizes = np.array([len(rows) for rows in self._rows], dtype=np.float64)
        importance = sizes if self.client_weights == "examples" else np.ones_like(sizes)
        self.last = {
            name: np.array([metrics.get(name, np.nan) for metrics in found]) for name in found[0]
        }
        trainer.log_metrics(
            {
                f"clients/{name}_{figure}": value
                for name, values in self.last.items()
                for figure, value in self._figures(name, values, importance).items()
            }
        )

    def teardown(self, trainer: FedTrainer, module: LightningModule, stage: str) -> None:
        """Release the data."""
        if stage == "fit":
            self._rows, self._examples = [], None

    def _batches(self, rows: torch.Tensor) -> Iterator[tuple[int, Any]]:
        for start in range(0, len(rows), self._batch_size):
            part = rows[start : start + self._batch_size]
            yield len(part), self._examples.gather(part)

    def _figures(
        self, name: str, values: NDArray[np.float64], importance: NDArray[np.float64]
    ) -> dict[str, float]:
        mean = float(np.average(values, weights=importance))
        variance = float(np.average((values - mean) ** 2, weights=importance))
        worst_first = np.sort(values)
        if any(word in name.lower() for word in self.lower_is_better):
            worst_first = worst_first[::-1]
        tenth = worst_first[: -(-len(values) // 10)]
        return {"mean": mean, "std": variance**0.5, "worst_tenth": float(tenth.mean())}


def _shared_out(data: FederatedDataModule, split: str) -> tuple[Partition, Any]:
    """The clients' rows of a split, and its examples."""
    if split == "train":
        return data.partition, data.train_data
    dataset = data.val_dataset if split == "validation" else data.test_dataset
    examples = data.val_data if split == "validation" else data.test_data
    ids = data.partition.client_ids
    if isinstance(examples, list):
        raise ValueError(
            f"ClientEvaluation(data={split!r}) needs one {split} data set, got {len(examples)}; "
            'write data="train" to evaluate on the clients\' training examples'
        )
    if not is_a("Dataset", dataset) or examples is None or ids is None:
        missing = (
            f"there are no {split} data"
            if examples is None
            else f"{data.partitioner!r} gives no client an id"
            if ids is None
            else f"the {split} data are no datasets.Dataset, which has a column for the ids"
        )
        raise ValueError(
            f"ClientEvaluation(data={split!r}) needs {split} data with the clients' ids in a "
            f"column, and a NaturalIdPartitioner over them, but {missing}; data='train' evaluates "
            "on the clients' training examples instead, which are no held-out ones"
        )
    partitioner: Any = data.partitioner
    return partitioner.partition(dataset, client_ids=ids), examples
