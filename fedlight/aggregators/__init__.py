"""Aggregators: how the server makes a new version of the model from client updates."""

from fedlight.aggregators.afa import AFACD, AFACS
from fedlight.aggregators.base import Aggregator
from fedlight.aggregators.fedavg import FedAvg

__all__ = ["AFACD", "AFACS", "Aggregator", "FedAvg"]
