"""Flower (package ``flwr[simulation]``, run with 1.42.0 and its Ray 2.55.1).

    pip install . "flwr[simulation]==1.42.0"        # in an environment of its own
    OMP_NUM_THREADS=1 python benchmarks/peers/time_flower.py [--turns N]

Timed is Flower's simulation runtime: a ``ServerApp`` with the strategy ``FedAvg`` and a
``ClientApp`` of the message API, which a Ray actor on one CPU runs. The simulation is started by
``run_simulation``; ``flwr run``, which its documentation now prefers, hands an app folder to the
same runtime. Starting Ray and loading the data, which the actor does once, are not timed.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read on import

try:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    from benchmarks.peers.common import Shard, client_data, compare, quiet, rate
except ImportError as error:
    wanted = 'pip install . "flwr[simulation]==1.42.0"'
    sys.exit(f"{error}. Install it in an environment of its own: {wanted}")

import torch
from torch.nn import functional

from benchmarks.clock import now
from benchmarks.floors import LR
from benchmarks.workloads import A

ROUNDS = 30
client = ClientApp()
actors_data = functools.cache(client_data)
actors_net = functools.cache(lambda: A.module().net)


@client.train()
def train(message: Message, context: Context) -> Message:
    net = actors_net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = actors_data()[int(context.node_config["partition-id"])]
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for rows in torch.randperm(len(y))[: A.steps * A.batch_size].split(A.batch_size):
        optimizer.zero_grad()
        functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(y)})
    reply = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=reply, reply_to=message)


def make(shards: list[Shard]) -> Callable[[], float]:
    times: list[float] = []
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=A.per_round / A.clients,
            fraction_evaluate=0.0,
            min_train_nodes=A.per_round,  # the first round may begin before all nodes are known
            min_available_nodes=A.clients,
            train_metrics_aggr_fn=lambda replies, _: MetricRecord({"updates": len(replies)}),
        )
        result = strategy.start(
            grid,
            ArrayRecord(A.module().net.state_dict()),
            num_rounds=ROUNDS,
            evaluate_fn=lambda _, arrays: times.append(now()),  # called after each round
        )
        made = sum(record["updates"] for record in result.train_metrics_clientapp.values())
        if made != ROUNDS * A.per_round:
            raise RuntimeError(f"{made} updates of {ROUNDS * A.per_round}: clients failed")

    def run() -> float:
        times.clear()
        one = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 1}}
        with quiet():
            run_simulation(server, client, len(shards), backend_config=one)
        return rate(times)

    return run


if __name__ == "__main__":
    from benchmarks.peers import time_flower  # by its name, so that the actor can import it

    compare("flwr", time_flower.make)
