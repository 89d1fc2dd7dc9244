"""Aggregators: how the server makes a new version of the model from client updates."""

from fedlight.aggregators import staleness
from fedlight.aggregators._server_step import ServerStep, next_version
from fedlight.aggregators.afacd import AFACD
from fedlight.aggregators.afacs import AFACS
from fedlight.aggregators.async_comm_sgd import AsyncCommSGD
from fedlight.aggregators.async_fedavg import AsyncFedAvg
from fedlight.aggregators.base import Aggregator
from fedlight.aggregators.buffered import BufferedAggregator
from fedlight.aggregators.fedasync import FedAsync
from fedlight.aggregators.fedavg import FedAvg
from fedlight.aggregators.fedbuff import FedBuff
from fedlight.aggregators.fedfix import FedFix
from fedlight.parameters import weighted_sum

__all__ = [
    "AFACD",
    "AFACS",
    "Aggregator",
    "AsyncCommSGD",
    "AsyncFedAvg",
    "BufferedAggregator",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedFix",
    "ServerStep",
    "next_version",
    "staleness",
    "weighted_sum",
]
