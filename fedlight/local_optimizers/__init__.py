"""Local optimizers: the local steps that a client makes between a pull and an update."""

from fedlight.local_optimizers.adam import LocalAdam, LocalAdamW
from fedlight.local_optimizers.base import LocalOptimizer, LocalRun, client_norms, per_client
from fedlight.local_optimizers.feddyn import FedDyn
from fedlight.local_optimizers.fedprox import FedProx
from fedlight.local_optimizers.fresh_model import FreshModel
from fedlight.local_optimizers.module_optimizer import ModuleOptimizer
from fedlight.local_optimizers.own_model import OwnModel
from fedlight.local_optimizers.rates import ByStep, WarmupCosine
from fedlight.local_optimizers.sam import SAM
from fedlight.local_optimizers.scaffold import Scaffold
from fedlight.local_optimizers.sgd import LocalSGD

__all__ = [
    "SAM",
    "ByStep",
    "FedDyn",
    "FedProx",
    "FreshModel",
    "LocalAdam",
    "LocalAdamW",
    "LocalOptimizer",
    "LocalRun",
    "LocalSGD",
    "ModuleOptimizer",
    "OwnModel",
    "Scaffold",
    "WarmupCosine",
    "client_norms",
    "per_client",
]
