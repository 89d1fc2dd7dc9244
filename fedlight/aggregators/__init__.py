"""Aggregators: how the server makes a new version of the model from client updates."""

from fedlight.aggregators import staleness
from fedlight.aggregators.afa import AFACD, AFACS
from fedlight.aggregators.async_comm_sgd import AsyncCommSGD
from fedlight.aggregators.async_fedavg import AsyncFedAvg
from fedlight.aggregators.base import Aggregator
from fedlight.aggregators.fedasync import FedAsync
from fedlight.aggregators.fedavg import FedAvg
from fedlight.aggregators.fedbuff import FedBuff
from fedlight.aggregators.fedfix import FedFix

__all__ = [
    "AFACD",
    "AFACS",
    "Aggregator",
    "AsyncCommSGD",
    "AsyncFedAvg",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedFix",
    "staleness",
]
