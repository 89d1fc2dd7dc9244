"""Flower's `FedAvg`; Flower has no asynchronous strategy."""

from __future__ import annotations

from importlib.metadata import version as installed
from typing import Any

from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg

from benchmarks.conformance_adapters import only
from fedlight.conformance import Case, NotImplementedHere, Outcome, Update, play_events


class Flower:
    """One call of `aggregate_fit` for each round."""

    name = "Flower"
    precision = "float64"
    version = installed("flwr")
    inplace = True

    def play(self, case: Case) -> Outcome:
        only(case, "fedavg")
        if case.method["client_weights"] != "examples":
            raise NotImplementedHere("no uniform weights")
        self.rule, self.buffer = FedAvg(inplace=self.inplace), []
        self.size = case.method["buffer_size"]
        return play_events(case, self)

    def receive(self, update: Update) -> Any:
        sent = ndarrays_to_parameters([update.end])
        self.buffer.append((None, FitRes(Status(Code.OK, ""), sent, update.num_examples, {})))
        if len(self.buffer) < self.size:
            return None
        made, _ = self.rule.aggregate_fit(1, self.buffer, [])
        self.buffer = []
        return parameters_to_ndarrays(made)[0]
