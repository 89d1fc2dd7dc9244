"""Adapters that try the server rules of other packages on the conformance set.

Each drives the class that a user of the package would run, without its networking and data loaders.
The clients' part is fedlight's. Where a package can be configured in two ways, both are tried.
`python -m benchmarks.scorecard` runs all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fedlight.conformance import Case, NotImplementedHere


class Point(torch.nn.Module):
    """A model with one parameter, `x`, in double precision."""

    def __init__(self, x: Sequence[float]) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(vector(x))


def vector(x: Any) -> torch.Tensor:
    """A tensor of its own, in double precision."""
    return torch.as_tensor(x, dtype=torch.float64).clone()


def only(case: Case, *methods: str) -> str:
    """The case's method, if it is one of these and the case lists its events.

    Raises:
        NotImplementedHere: It is another, or the case is timed.
    """
    if case.kind != "events":
        raise NotImplementedHere("no clock")
    name = str(case.method["name"])
    if name not in methods:
        raise NotImplementedHere(f"no {name}")
    return name


def without(case: Case, *arguments: str) -> None:
    """Refuse a case whose method has one of these arguments.

    Raises:
        NotImplementedHere: It has.
    """
    for argument in arguments:
        if case.method.get(argument) is not None:
            raise NotImplementedHere(f"no {argument}")


def hinge(case: Case) -> None:
    """Refuse every case but those of FedAsync with a hinge.

    Raises:
        NotImplementedHere: It is another.
    """
    only(case, "fedasync")
    if case.method["staleness"]["kind"] != "hinge":
        raise NotImplementedHere("no hinge")
