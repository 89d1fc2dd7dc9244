"""Aggregators: how the server makes a new version of the model from client updates."""

from fedlight.aggregators import staleness
from fedlight.aggregators._server_step import ServerStep, next_version
from fedlight.aggregators.afacd import AFACD
from fedlight.aggregators.afacs import AFACS
from fedlight.aggregators.async_comm_sgd import AsyncCommSGD
from fedlight.aggregators.async_fedavg import AsyncFedAvg
from fedlight.aggregators.base import Aggregator
from fedlight.aggregators.buffered import BufferedAggregator
from fedlight.aggregators.favas import FAVAS
from fedlight.aggregators.fedasync import FedAsync
from fedlight.aggregators.fedat import FedAT
from fedlight.aggregators.fedavg import FedAvg
from fedlight.aggregators.fedbuff import FedBuff
from fedlight.aggregators.fedfix import FedFix
from fedlight.aggregators.quafl import QuAFL
from fedlight.lattice import Lattice
from fedlight.parameters import weighted_sum

__all__ = [
    "AFACD",
    "AFACS",
    "FAVAS",
    "Aggregator",
    "AsyncCommSGD",
    "AsyncFedAvg",
    "BufferedAggregator",
    "FedAT",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedFix",
    "Lattice",
    "QuAFL",
    "ServerStep",
    "next_version",
    "staleness",
    "weighted_sum",
]
