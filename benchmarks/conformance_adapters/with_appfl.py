"""APPFL's aggregators, `appfl.algorithm.aggregator`."""

from __future__ import annotations

from importlib.metadata import version as installed
from typing import Any

from appfl.algorithm.aggregator import FedAsyncAggregator, FedAvgAggregator, FedBuffAggregator
from omegaconf import DictConfig

from benchmarks.conformance_adapters import Point, only, vector, without
from fedlight.conformance import Case, Outcome, Update, play_events


class Appfl:
    """With `num_clients` as APPFL's server agent sets it: the number of all clients."""

    name = "APPFL"
    precision = "float64"
    version = installed("appfl")
    divided = True
    moved = False

    def play(self, case: Case) -> Outcome:
        name = only(case, "fedavg", "fedasync", "fedbuff")
        without(case, "max_staleness", "alpha_decay")
        spec = case.method
        kind = dict(spec.get("staleness", {"kind": "constant"}))
        self.buffer: list[Update] = []
        self.version_made = 0
        config: dict[str, Any] = {
            "alpha": spec.get("alpha", spec.get("server_lr")),
            "staleness_fn": kind.pop("kind"),
            "staleness_fn_kwargs": kind,
            "num_clients": len(case.clients) if self.divided else 1,
        }
        if name == "fedavg":
            uniform = spec["client_weights"] == "uniform"
            config = {"client_weights_mode": "equal" if uniform else "sample_size"}
        if name == "fedbuff":
            config["K"] = spec["buffer_size"]
            if self.moved:
                config["alpha"] *= config["num_clients"] / config["K"]
        kinds = {
            "fedavg": FedAvgAggregator,
            "fedasync": FedAsyncAggregator,
            "fedbuff": FedBuffAggregator,
        }
        self.rule = kinds[name](Point(case.x0), DictConfig(config))
        self.size = spec["buffer_size"] if name == "fedavg" else None
        for client, data in enumerate(case.clients):
            self.rule.set_client_sample_size(client, data.num_examples)
        return play_events(case, self)

    def receive(self, update: Update) -> Any:
        if self.size is not None:
            return self.round(update)
        # What `get_parameters(client_id=…)` has noted when the client pulled.
        self.rule.client_step[update.client] = update.pulled_version
        sent = vector(update.end)
        if self.moved:
            sent = self.rule.get_parameters()["x"] + vector(update.delta)
        state = self.rule.aggregate(update.client, {"x": sent})
        if self.rule.global_step == self.version_made:
            return None
        self.version_made = self.rule.global_step
        return state["x"].numpy().copy()

    def round(self, update: Update) -> Any:
        """FedAvg: a whole round at once."""
        self.buffer.append(update)
        if len(self.buffer) < self.size:
            return None
        state = self.rule.aggregate({u.client: {"x": vector(u.end)} for u in self.buffer})
        self.buffer = []
        return state["x"].numpy().copy()


class AppflUndivided(Appfl):
    """The aggregators by themselves, with their default `num_clients` of 1."""

    name = "APPFL, num_clients=1"
    divided = False

    def play(self, case: Case) -> Outcome:
        only(case, "fedasync", "fedbuff")
        return super().play(case)


class AppflMoved(Appfl):
    """FedBuff with alpha = eta * M / K, from clients that send x + delta in place of y."""

    name = "APPFL, FedBuff with alpha = eta M / K and x + delta sent"
    moved = True

    def play(self, case: Case) -> Outcome:
        only(case, "fedbuff")
        return super().play(case)
