"""FLSim's asynchronous aggregators, `flsim.optimizers.async_aggregators`."""

from __future__ import annotations

import dataclasses
from importlib.metadata import version as installed
from typing import Any

import hydra  # noqa: F401 (before the change below, which is for FLSim's classes alone)
from omegaconf import OmegaConf

from benchmarks.conformance_adapters import Point, only, without
from fedlight.conformance import Case, Outcome, Update, play_events

_dataclass = dataclasses.dataclass


def _hashable(cls: type | None = None, **options: Any) -> Any:
    """Since Python 3.11 a default without a hash is refused; FLSim 0.1.0 has such defaults."""
    if cls is None:
        return lambda given: _hashable(given, **options)
    if cls.__module__.startswith("flsim"):
        options.setdefault("unsafe_hash", True)
    return _dataclass(cls, **options)


dataclasses.dataclass = _hashable
try:
    from flsim.optimizers import async_aggregators as rules
    from flsim.utils.async_trainer import async_staleness_weights as weights
    from flsim.utils.async_trainer.async_weights import AsyncWeight, AsyncWeightConfig
finally:
    dataclasses.dataclass = _dataclass


class Model:
    """FLSim's interface around a module."""

    def __init__(self, x: Any) -> None:
        self.module = Point(x)

    def fl_get_module(self) -> Point:
        return self.module


class FLSim:
    """With the paper's server rate as `lr`."""

    name = "FLSim"
    precision = "float64"
    version = installed("flsim")
    divided = False

    def play(self, case: Case) -> Outcome:
        name = only(case, "fedasync", "fedbuff")
        without(case, "max_staleness", "alpha_decay")
        spec = case.method
        self.model = Model(case.x0)
        if name == "fedasync":
            self.rule = rules.FedAvgWithLRAsyncAggregator(
                global_model=self.model,
                lr=spec["alpha"],
                aggregation_type=rules.AsyncAggregationType.fed_async_aggregation,
            )
        else:
            lr = spec["server_lr"] / (spec["buffer_size"] if self.divided else 1)
            self.rule = rules.FedAvgWithLRFedBuffAggregator(
                global_model=self.model, lr=lr, buffer_size=spec["buffer_size"]
            )
        s = spec["staleness"]
        if s["kind"] == "constant":
            config = weights.ConstantStalenessWeightConfig(avg_staleness=0)
        elif s["kind"] == "polynomial":
            config = weights.PolynomialStalenessWeightConfig(avg_staleness=0, exponent=s["a"])
        else:
            only(case, "a hinge")
        self.weight = AsyncWeight(
            **OmegaConf.structured(AsyncWeightConfig(staleness_weight=config))
        )
        return play_events(case, self)

    def receive(self, update: Update) -> Any:
        self.rule.zero_grad()
        weight = self.weight.weight(update.num_examples, update.staleness)
        made = self.rule.on_client_training_end(Model(-update.delta), Model(update.end), weight)
        return self.model.module.x.detach().numpy().copy() if made else None


class FLSimDivided(FLSim):
    """With the paper's server rate divided by the buffer's size as `lr`."""

    name = "FLSim, lr = eta / K"
    divided = True
