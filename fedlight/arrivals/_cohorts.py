"""Arguments that give a number of clients to draw, or list the clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from fedlight._support.checks import non_negative_int, positive_int
from fedlight.arrivals._per_client import as_list, no_client
from fedlight.randomness import Concern, stream

if TYPE_CHECKING:
    from fedlight.types import Federation

Cohorts: TypeAlias = int | Sequence[Sequence[int]]
"""A number of clients, or one list of clients for each round or poll."""


class Participants:
    """The clients of each round: drawn uniformly without replacement, or listed.

    Args:
        name: The argument's name.
        value: A number of clients, or for each round the list of its clients.
        empty: Whether a list may be empty.

    Attributes:
        count: How many are drawn; None if they are listed.
        listed: The clients of each round; None if they are drawn.
        given: The one of these two that is given.

    Raises:
        TypeError: `value` is neither a number nor a list of lists of client numbers.
        ValueError: The number is below 1, or a list names a client twice or is empty.
    """

    def __init__(self, name: str, value: object, empty: bool = False) -> None:
        self.name = name
        self.count: int | None = None
        self.listed: list[list[int]] | None = None
        rounds = None if isinstance(value, int) else as_list(name, value)
        if rounds is None:
            self.given: Cohorts = positive_int(name, value)
            self.count = self.given
            return
        if not rounds:
            raise ValueError(f"{name} must hold one list of clients for each round, got none")
        self.given = self.listed = [
            self._clients(f"{name}[{k}]", each) for k, each in enumerate(rounds)
        ]
        for number, clients in enumerate(self.listed):
            if not clients and (not empty or not any(self.listed)):
                raise ValueError(f"{name}[{number}] must name at least one client, got none")

    @staticmethod
    def _clients(name: str, value: object) -> list[int]:
        clients = as_list(name, value)
        if clients is None:
            raise TypeError(
                f"{name} must be a list of clients, got {value!r}; write a number of clients, or "
                "one list of clients for each round, such as [[0, 2], [1, 2]]"
            )
        found = [non_negative_int(f"{name}[{k}]", client) for k, client in enumerate(clients)]
        if len(set(found)) < len(found):
            raise ValueError(f"{name} must name each client once, got {found}")
        return found

    @property
    def rounds(self) -> int | None:
        """The number of listed rounds; None if clients are drawn, without an end."""
        return None if self.listed is None else len(self.listed)

    def check(self, federation: Federation) -> None:
        """Check that there are enough clients.

        Raises:
            ValueError: There are fewer clients.
        """
        most = federation.num_clients
        if self.count is not None and self.count > most:
            raise ValueError(
                f"{self.name}={self.count} is more than the {most} clients; "
                f"write {self.name}={most} or less"
            )
        for number, clients in enumerate(self.listed or ()):
            if clients and max(clients) >= most:
                raise no_client(f"{self.name}[{number}]", max(clients), federation)

    def of_round(self, round_: int, federation: Federation, more: int = 0) -> list[int]:
        """The clients of a round, a function of only the seed and the round.

        Args:
            round_: The round.
            federation: The clients to draw from.
            more: The number of additional clients to draw; lists already contain them.
        """
        if self.listed is not None:
            return self.listed[round_]
        assert self.count is not None
        rng = stream(federation.seed, Concern.PARTICIPANTS, round_)
        drawn: list[int] = rng.choice(
            federation.num_clients, size=self.count + more, replace=False
        ).tolist()
        return drawn
