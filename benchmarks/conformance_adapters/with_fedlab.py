"""FedLab's server handlers, `fedlab.contrib.algorithm`."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed
from importlib.util import find_spec
from typing import Any
from unittest.mock import MagicMock

import torch

from benchmarks.conformance_adapters import Point, hinge, only, vector, without
from fedlight.conformance import Case, Outcome, Update, play_events

# FedLab imports its data sets with its servers, and these need torchvision; no rule does.
if find_spec("torchvision") is None:
    for part in ("", ".datasets", ".transforms", ".models"):
        sys.modules[f"torchvision{part}"] = MagicMock()

from fedlab.contrib.algorithm.basic_server import AsyncServerHandler, SyncServerHandler
from fedlab.contrib.algorithm.feddyn import FedDynServerHandler
from fedlab.contrib.algorithm.fednova import FedNovaServerHandler


class FedLab:
    """With the defaults of its handlers."""

    name = "FedLab"
    precision = "float32"  # it computes weights in single precision
    version = installed("fedlab")
    fednova = "weighted_scale"
    shifted = False

    def play(self, case: Case) -> Outcome:
        name = only(case, "fedavg", "fedasync", "fednova", "feddyn")
        without(case, "max_staleness", "alpha_decay")
        spec, model = case.method, Point(case.x0)
        if name == "fedasync":
            self.rule = AsyncServerHandler(model, global_round=10**6)
            s = spec["staleness"]
            a, b = s.get("a"), s.get("b")
            if self.shifted:
                b = b + 1 - 1 / a
            self.rule.setup_optim(spec["alpha"], s["kind"], a, b)
        else:
            kinds = {
                "fedavg": SyncServerHandler,
                "fednova": FedNovaServerHandler,
                "feddyn": FedDynServerHandler,
            }
            ratio = spec["buffer_size"] / len(case.clients)
            self.rule = kinds[name](model, 10**6, ratio)
            self.rule.num_clients = len(case.clients)
            if name == "fednova":
                self.rule.setup_optim(self.fednova)
            elif name == "feddyn":
                self.rule.setup_optim(spec["alpha"])
        self.method = name
        return play_events(case, self)

    def receive(self, update: Update) -> Any:
        payload = [vector(update.end)]
        if self.method == "fedasync":
            payload.append(torch.tensor([update.pulled_version]))
        elif self.method == "fednova":
            payload.append(vector([update.num_steps]))
        before = self.rule.round
        self.rule.load(payload)
        return self.rule.model_parameters.numpy().copy() if self.rule.round > before else None


class FedLabNormalized(FedLab):
    """With FedNova's option whose weights sum to 1."""

    name = "FedLab, FedNova with option='other'"
    fednova = "other"

    def play(self, case: Case) -> Outcome:
        only(case, "fednova")
        return super().play(case)


class FedLabShifted(FedLab):
    """With another b of the hinge, which makes up for the place of its 1."""

    name = "FedLab, hinge with b + 1 - 1/a"
    shifted = True

    def play(self, case: Case) -> Outcome:
        hinge(case)
        return super().play(case)
