"""Local optimizers: the arithmetic of a client's local run."""

from fedlight.local_optimizers.adam import LocalAdam
from fedlight.local_optimizers.base import LocalOptimizer, LocalRun
from fedlight.local_optimizers.fedprox import FedProx
from fedlight.local_optimizers.module_optimizer import ModuleOptimizer
from fedlight.local_optimizers.scaffold import Scaffold
from fedlight.local_optimizers.sgd import LocalSGD

__all__ = [
    "FedProx",
    "LocalAdam",
    "LocalOptimizer",
    "LocalRun",
    "LocalSGD",
    "ModuleOptimizer",
    "Scaffold",
]
