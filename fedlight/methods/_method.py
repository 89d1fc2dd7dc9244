"""A method: arguments of `FedTrainer` that belong together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedlight._support.checks import Rate
from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess
from fedlight.local_optimizers import LocalOptimizer, LocalSGD


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Method(Mapping[str, Any]):
    """Arguments of `FedTrainer` that belong together, as a mapping that cannot be changed.

    ``FedTrainer(**method, max_rounds=100)`` takes all of them, ``{**method, "channel": QSGD(8)}``
    adds or replaces one, and an axis of `sweep` takes a method as a value. An argument that is None
    is left out: the trainer has its default for it.

    Attributes:
        name: The name of the method in its paper.

    Example:
        >>> from fedlight.aggregators import FedAvg
        >>> from fedlight.arrivals import UniformArrivals
        >>> method = Method("two of M", {"arrivals": UniformArrivals(2), "aggregator": FedAvg()})
        >>> list(method)
        ['arrivals', 'aggregator']
    """

    name: str
    given: Mapping[str, Any]

    def __post_init__(self) -> None:
        kept = {argument: value for argument, value in self.given.items() if value is not None}
        object.__setattr__(self, "given", kept)

    def __getitem__(self, argument: str) -> Any:
        return self.given[argument]

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)

    def __repr__(self) -> str:
        shown = (f"{argument}={value!r}" for argument, value in self.given.items())
        return f"<{self.name}: {', '.join(shown)}>"


def bundle(
    name: str,
    arrivals: ArrivalProcess,
    aggregator: Aggregator,
    local_optimizer: LocalOptimizer | None,
) -> Method:
    """The method of these three; None for the module's own optimizer."""
    given = {"arrivals": arrivals, "aggregator": aggregator, "local_optimizer": local_optimizer}
    return Method(name, given)


def sgd(lr: Rate | None, momentum: float = 0.0) -> LocalOptimizer | None:
    """Plain SGD on the client; None for the module's own optimizer."""
    if lr is None and momentum:
        raise ValueError(f"momentum={momentum!r} needs lr, the learning rate of the clients")
    return None if lr is None else LocalSGD(lr, momentum=momentum)
