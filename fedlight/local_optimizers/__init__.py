"""Local optimizers: the arithmetic of a client's local run."""

from fedlight.local_optimizers.base import LocalOptimizer, LocalRun
from fedlight.local_optimizers.module_optimizer import ModuleOptimizer
from fedlight.local_optimizers.sgd import LocalSGD

__all__ = ["LocalOptimizer", "LocalRun", "LocalSGD", "ModuleOptimizer"]
