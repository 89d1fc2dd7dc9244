"""APPFL's simulator (package ``appfl``, run with 1.12.0).

    pip install . appfl==1.12.0        # in an environment of its own
    OMP_NUM_THREADS=1 python benchmarks/peers/time_appfl.py [--turns N]

Timed is ``SyncSimDriver.run`` of ``appfl.vsim``, which trains a cohort of ``ClientAgent`` one after
another in this process, with ``VanillaTrainer`` (a ``DataLoader`` over tensors), ``SyncScheduler``
and ``FedAvgAggregator``. ``optimize_memory``, which collects garbage several times per client, is
off, and so are the log and the accuracy that the trainer computes. The agents are made once, before
the clock starts.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

try:
    from appfl.agent import ServerAgent
    from appfl.agent.sim_client import SimClientAgent
    from appfl.vsim import ClientProfile, SyncSimDriver
    from omegaconf import OmegaConf

    from benchmarks.peers.common import Shard, compare
except ImportError as error:
    sys.exit(f"{error}. Install it in an environment of its own: pip install . appfl==1.12.0")

from torch.utils.data import TensorDataset

from benchmarks.clock import now
from benchmarks.floors import LR
from benchmarks.workloads import A

ROUNDS = 10
FAST = {"optimize_memory": False}


class Parts:
    """The model and the metric of an agent, otherwise read from files."""

    def _load_model(self) -> None:
        if not hasattr(self, "model"):
            self.model = A.module().net

    def _load_metric(self) -> None:
        self.metric = lambda labels, scores: 0.0


class Client(Parts, SimClientAgent):
    pass


class Server(Parts, ServerAgent):
    pass


def make(shards: list[Shard]) -> Callable[[], float]:
    logging.disable(logging.INFO)
    training = {
        "trainer": "VanillaTrainer",
        "mode": "step",
        "num_local_steps": A.steps,
        "optim": "SGD",
        "optim_args": {"lr": LR},
        "loss_fn": "CrossEntropyLoss",
        "train_batch_size": A.batch_size,
        "logging_output_filename": "",
        **FAST,
    }
    serving = {
        "num_clients": A.clients,
        "num_global_epochs": 10**9,
        "scheduler": "SyncScheduler",
        "scheduler_kwargs": {**FAST},
        "aggregator": "FedAvgAggregator",
        "aggregator_kwargs": {**FAST},
        **FAST,
    }
    shared = {"train_configs": training}
    server = Server(OmegaConf.create({"client_configs": shared, "server_configs": serving}))
    clients = [
        Client({**shared, **FAST}, client_id=str(i), client_dataset=TensorDataset(*shard))
        for i, shard in enumerate(shards)
    ]
    profiles = {client.get_id(): ClientProfile() for client in clients}

    def run() -> float:
        driver = SyncSimDriver(
            server, clients, profiles, A.per_round, logging.getLogger("vsim"), target_rounds=ROUNDS
        )
        begun = now()
        driver.run()
        return ROUNDS * A.per_round / (now() - begun)

    return run


if __name__ == "__main__":
    compare("appfl", make)
