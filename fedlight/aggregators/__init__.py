"""Aggregators: how the server makes a new version of the model from client updates."""

from fedlight.aggregators import staleness
from fedlight.aggregators._server_step import ServerParams, ServerStep, next_version
from fedlight.aggregators.afacd import AFACD
from fedlight.aggregators.afacs import AFACS
from fedlight.aggregators.area import AREA
from fedlight.aggregators.async_comm_sgd import AsyncCommSGD
from fedlight.aggregators.async_fedavg import AsyncFedAvg
from fedlight.aggregators.base import Aggregator
from fedlight.aggregators.buffered import BufferedAggregator
from fedlight.aggregators.ca2fl import CA2FL
from fedlight.aggregators.dc_asgd import DCASGD
from fedlight.aggregators.delayed_nesterov import DelayedNesterov
from fedlight.aggregators.fadas import FADAS
from fedlight.aggregators.favas import FAVAS
from fedlight.aggregators.fedasmu import FedASMU
from fedlight.aggregators.fedasync import FedAsync
from fedlight.aggregators.fedat import FedAT
from fedlight.aggregators.fedavg import FedAvg
from fedlight.aggregators.fedbuff import FedBuff
from fedlight.aggregators.fedbuff_ma import FedBuffMA
from fedlight.aggregators.fedcompass import FedCompass
from fedlight.aggregators.feddyn_server import FedDynServer
from fedlight.aggregators.fedfix import FedFix
from fedlight.aggregators.fednova import FedNova
from fedlight.aggregators.fedvarp import FedVARP
from fedlight.aggregators.generalized_async_sgd import GeneralizedAsyncSGD
from fedlight.aggregators.halos import HALoS
from fedlight.aggregators.heloco import HeLoCo
from fedlight.aggregators.look_ahead import LookAhead
from fedlight.aggregators.malenia import Malenia
from fedlight.aggregators.mifa import MIFA
from fedlight.aggregators.mindflayer import MindFlayer
from fedlight.aggregators.private_sum import PrivateSum
from fedlight.aggregators.quafl import QuAFL
from fedlight.aggregators.rennala import Rennala
from fedlight.aggregators.ringleader import Ringleader
from fedlight.aggregators.ringmaster import Ringmaster
from fedlight.channel._lattice import Lattice
from fedlight.parameters import weighted_sum

__all__ = [
    "AFACD",
    "AFACS",
    "AREA",
    "CA2FL",
    "DCASGD",
    "FADAS",
    "FAVAS",
    "MIFA",
    "Aggregator",
    "AsyncCommSGD",
    "AsyncFedAvg",
    "BufferedAggregator",
    "DelayedNesterov",
    "FedASMU",
    "FedAT",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedBuffMA",
    "FedCompass",
    "FedDynServer",
    "FedFix",
    "FedNova",
    "FedVARP",
    "GeneralizedAsyncSGD",
    "HALoS",
    "HeLoCo",
    "Lattice",
    "LookAhead",
    "Malenia",
    "MindFlayer",
    "PrivateSum",
    "QuAFL",
    "Rennala",
    "Ringleader",
    "Ringmaster",
    "ServerParams",
    "ServerStep",
    "next_version",
    "staleness",
    "weighted_sum",
]
