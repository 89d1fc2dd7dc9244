"""The LSTM of Adaptive Federated Optimization on Shakespeare's plays, trained with FedBuff.

    python -m benchmarks.shakespeare_lstm FOLDER --path runs/lstm [--max-rounds N]

The model has the paper's size: an embedding of 8, two LSTM layers of 256, and a dense layer that
scores the next character after each of 80; loss and accuracy are those of all 80. FOLDER holds the
parquet files of `flwrlabs/shakespeare` or of a part of it. Its windows begin at every character;
the run takes every eightieth window of a role, so that each character is there once. The paper's
federation has 715 roles. If FOLDER has fewer, each role's text is cut into successive pieces, so
many that there are about as many clients (143 roles: five pieces each, 715 clients).

The run writes a checkpoint every few rounds, and goes on from it if the same command is called
again, after a kill as well. `metrics.csv` in the same folder has a row for each round, with the
test accuracy of those that were evaluated.

Source: Reddi et al., Adaptive Federated Optimization, ICLR 2021, https://arxiv.org/abs/2003.00295
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor
from torch.utils.data import TensorDataset

from data_partitioners import NaturalIdPartitioner
from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight.aggregators import FedBuff
from fedlight.arrivals import ContinuousArrivals, HalfNormalDurations
from fedlight.callbacks import CSVMetrics, FedCheckpoint
from fedlight.local_optimizers import LocalSGD
from fedlight.models import CharLSTM

CLIENTS, LENGTH = 715, 80


class EveryCharacter(CharLSTM):
    """Scores what follows each character of a text, not only the last one."""

    def forward(self, x: Tensor) -> Tensor:
        """Scores ``[batch * length, num_classes]`` for tokens ``[batch, length]``."""
        states, _ = self.lstm(self.embedding(x))
        scores: Tensor = self.dense(states.flatten(0, 1))
        return scores

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Mean cross-entropy over all characters of a batch."""
        return super().training_step((batch[0], batch[1].flatten()), batch_idx)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs loss and accuracy over all characters."""
        super().validation_step((batch[0], batch[1].flatten()), batch_idx)


class Line(Callback):
    """Prints a line for each evaluation."""

    def on_validation_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        text = ", ".join(f"{name} {values[name]:.4f}" for name in ("val_acc", "val_loss"))
        print(f"round {trainer.version:,}, updates {trainer.num_updates:,}: {text}", flush=True)


def sequences(folder: str, batch_size: int) -> FederatedDataModule:
    """The clients' texts in sequences of 80 characters, each with the 80 that follow."""
    windows = FederatedDataModule(folder, NaturalIdPartitioner("character_id"))
    windows.setup()
    roles = windows.partition
    pieces = max(1, round(CLIENTS / len(roles)))
    clients: dict[str, TensorDataset] = {}
    assert roles.client_ids is not None
    for number, name in enumerate(roles.client_ids):
        rows = torch.from_numpy(np.sort(roles[number])[::LENGTH])
        for piece, part in enumerate(rows.tensor_split(pieces)):
            if len(part):
                clients[f"{name}-{piece}"] = _texts(windows.train_data, part)
    test = windows.val_dataset
    held_out = windows.partitioner.partition(test, client_ids=roles.client_ids)  # type: ignore[call-arg]
    rows = np.concatenate([np.sort(held_out[each])[::LENGTH] for each in range(len(held_out))])
    data = FederatedDataModule.from_client_datasets(
        clients,
        batch_size,
        val_dataset=_texts(windows.val_data, torch.from_numpy(rows)),
        eval_batch_size=100,
    )
    print(
        f"{len(roles)} roles, {pieces} pieces each: {data.partition}, "
        f"{len(rows):,} sequences for test",
        flush=True,
    )
    return data


def _texts(examples: object, rows: Tensor) -> TensorDataset:
    x, y = examples.gather(rows)  # type: ignore[attr-defined]
    return TensorDataset(x, torch.cat([x[:, 1:], y[:, None]], dim=1))


def main() -> None:
    """Train, or go on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder")
    parser.add_argument("--path", type=Path, required=True, help="checkpoints and metrics.csv")
    parser.add_argument("--max-rounds", type=int, default=1200)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--server-lr", type=float, default=1.0)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--in-flight", type=int, default=30)
    parser.add_argument("--every", type=int, default=25, help="rounds between evaluations")
    parser.add_argument("--executor", default="processes")
    given = parser.parse_args()
    torch.manual_seed(0)
    module = EveryCharacter(hidden_size=256)
    trainer = FedTrainer(
        arrivals=ContinuousArrivals(
            HalfNormalDurations(1.0), concurrency=given.in_flight, resume="on_arrival"
        ),
        aggregator=FedBuff(buffer_size=10, server_lr=given.server_lr),
        local_optimizer=LocalSGD(lr=given.lr),
        executor=given.executor,
        max_rounds=given.max_rounds,
        check_val_every_n_rounds=given.every,
        callbacks=[
            FedCheckpoint(given.path, every_n_rounds=given.every),
            CSVMetrics(given.path / "metrics.csv"),
            Line(),
        ],
        logger=False,
        enable_progress_bar=False,
        accelerator="cpu",
    )
    trainer.fit(module, sequences(given.folder, given.batch_size), ckpt_path="last")


if __name__ == "__main__":
    main()
