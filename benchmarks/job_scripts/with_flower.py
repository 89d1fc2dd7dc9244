"""The job with Flower's simulation runtime; needs the package `flwr[simulation]`.

    FEDLIGHT_DATA=FOLDER python -m benchmarks.job_scripts.with_flower

A ``ServerApp`` with the strategy ``FedAvg``, and a ``ClientApp`` that one Ray actor on one CPU
runs. The actor reads the data as the server does, once. Starting Ray is a part of the first round.
"""

from __future__ import annotations

import functools
import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read on import

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.job_scripts.marks import BATCH, CLIENTS, LR, PER_ROUND, ROUNDS, STEPS, Marks
from benchmarks.job_scripts.mnist import evaluated, mnist


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))


@functools.cache
def shards() -> tuple[Tensor, Tensor, Tensor]:
    """Images and labels of the training, and the rows of each client, in the actor."""
    x, y, *_ = mnist()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x, y, order.view(CLIENTS, -1)


client = ClientApp()
clients_net = functools.cache(network)


@client.train()
def train(message: Message, context: Context) -> Message:
    net = clients_net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y, rows = shards()
    own = rows[int(context.node_config["partition-id"])]
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for batch in own[torch.randperm(len(own))][: STEPS * BATCH].split(BATCH):
        optimizer.zero_grad()
        functional.cross_entropy(net(x[batch]), y[batch]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(own)})
    reply = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=reply, reply_to=message)


def main() -> None:
    marks = Marks()
    marks.end_of("imports")
    torch.manual_seed(0)
    _, _, *test = mnist()
    marks.end_of("data")
    net, server = network(), ServerApp()
    done = {"updates": 0, "accuracy": 0.0, "rounds": 0}

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        marks.end_of("first round" if done["rounds"] < 2 else "training")
        done["rounds"] += 1
        if server_round:  # it is called once before the first round, too
            net.load_state_dict(arrays.to_torch_state_dict())
            done["accuracy"] = evaluated(net, *test)
            marks.end_of("evaluation")

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=PER_ROUND / CLIENTS,
            fraction_evaluate=0.0,
            min_train_nodes=PER_ROUND,
            min_available_nodes=CLIENTS,
            train_metrics_aggr_fn=lambda replies, _: MetricRecord({"updates": len(replies)}),
        )
        result = strategy.start(
            grid, ArrayRecord(net.state_dict()), num_rounds=ROUNDS, evaluate_fn=evaluate
        )
        records = result.train_metrics_clientapp.values()
        done["updates"] = sum(int(record["updates"]) for record in records)

    one = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 1}}
    run_simulation(server, client, CLIENTS, backend_config=one)
    marks.report(int(done["updates"]), done["accuracy"])


if __name__ == "__main__":
    from benchmarks.job_scripts import with_flower  # by its name, so that the actor can import it

    with_flower.main()
