"""FLGo's servers, `flgo.algorithm`."""

from __future__ import annotations

from importlib.metadata import version as installed
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flgo.algorithm import fedasync, fedavg, fedbuff, feddyn, fednova
from flgo.utils.fmodule import FModule

from benchmarks.conformance_adapters import hinge, only, vector, without
from fedlight.conformance import Case, Clients, NotImplementedHere, Outcome, Update


class FLGo:
    """A server hands all updates of one instant to its rule at once, as FLGo's clock does."""

    name = "FLGo"
    precision = "float64"
    version = installed("flgo")
    shifted = False

    def play(self, case: Case) -> Outcome:
        name = only(case, "fedavg", "fedasync", "fedbuff", "fednova", "feddyn")
        without(case, "max_staleness", "alpha_decay")
        self.case = case
        self.server = server = self.make(name)
        clients, models = Clients(case), [np.asarray(case.x0, dtype=np.float64)]
        for _, events in groupby(case.events, key=lambda event: event.time):
            updates = [clients.update(event, models) for event in events]
            made = self.handle(name, updates)
            if made is not None:
                server.model = made
                server.current_round += 1  # as its loop does
                models.append(made.x.detach().numpy().copy())
        return Outcome([model.tolist() for model in models[1:]])

    def make(self, name: str) -> Any:
        """A server with its fields, but without data, clients and simulator."""
        spec = self.case.method
        rules = {
            "fedavg": fedavg,
            "fedasync": fedasync,
            "fedbuff": fedbuff,
            "fednova": fednova,
            "feddyn": feddyn,
        }
        server = rules[name].Server.__new__(rules[name].Server)
        server.model, server.current_round, self.buffer = self.model(self.case.x0), 1, []
        server.clients = [SimpleNamespace(datavol=c.num_examples) for c in self.case.clients]
        server.num_clients = len(server.clients)
        server.aggregation_option = spec.get("client_weights", "other")
        if name == "fedasync":
            s = spec["staleness"]
            flags = {"constant": "constant", "polynomial": "poly", "hinge": "hinge"}
            server.alpha, server.flag = spec["alpha"], flags[s["kind"]]
            server.poly_a = server.hinge_a = s.get("a")
            server.hinge_b = s["b"] - 1 / s["a"] if self.shifted else s.get("b")
        elif name == "fedbuff":
            if spec["staleness"] != {"kind": "polynomial", "a": 0.5}:
                raise NotImplementedHere("no other staleness than (1 + tau)^(-1/2)")
            server.buffer, server.eta = [], spec["server_lr"]
            server.buffer_ratio = (spec["buffer_size"] + 0.5) / server.num_clients
        elif name == "feddyn":
            server.alpha, server.h = spec["alpha"], server.model.zeros_like()
        return server

    def handle(self, name: str, updates: list[Update]) -> Any:
        """The new model, or None."""
        if name in ("fedasync", "fedbuff"):
            sent = []
            for update in updates:
                model = self.model(update.end if name == "fedasync" else update.delta)
                model._round = update.pulled_version + 1
                sent.append(model)
            self.server.received_clients = [update.client for update in updates]
            package = {"model": sent, "__cid": [update.client for update in updates]}
            return self.server.model if self.server.package_handler(package) else None
        self.buffer += updates
        if len(self.buffer) < self.case.method["buffer_size"]:
            return None
        batch, self.buffer = self.buffer, []
        self.server.received_clients = [update.client for update in batch]
        models = [self.model(update.end) for update in batch]
        if name != "fednova":
            return self.server.aggregate(models)
        # What its `iterate` does between the clients' answers and `aggregate`.
        taus = [update.num_steps for update in batch]
        total = sum(client.datavol for client in self.server.clients)
        p = [update.num_examples / total for update in batch]
        ds = [(y - self.server.model) / tau for y, tau in zip(models, taus, strict=True)]
        return self.server.aggregate(ds, taus, p)

    def model(self, x: Any) -> FModule:
        """A model whose class makes another of the same size."""
        size = len(self.case.x0)

        class Model(FModule):
            def __init__(self) -> None:
                super().__init__()
                self.x = torch.nn.Parameter(torch.zeros(size, dtype=torch.float64))

        model = Model()
        model.x.data = vector(x)
        return model


class FLGoShifted(FLGo):
    """With another b of the hinge, which makes up for the 1 that it lacks."""

    name = "FLGo, hinge with b - 1/a"
    shifted = True

    def play(self, case: Case) -> Outcome:
        hinge(case)
        return super().play(case)
