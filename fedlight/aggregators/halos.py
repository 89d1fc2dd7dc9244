"""HALoS: a server in each region, and a global one that their sums reach from far away."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from fedlight._support.checks import Rate, below_one, fraction, one_of, positive_int, rate, rate_at
from fedlight.aggregators._server_step import next_version
from fedlight.aggregators.buffered import BufferedAggregator, Updates
from fedlight.aggregators.delayed_nesterov import DelayedMomentum
from fedlight.types import UsedUpdate

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import ClientUpdate, Federation, ServerState


class HALoS(BufferedAggregator):
    """Delayed Nesterov in each region and, far away, on what the regions send.

    Region r has a model X_r and a sum s_r; x is the global model. There are three events::

        arrival in r            X_r <- X_r + eta_r * d,   s_r <- s_r + eta_r * d
                                d: a delayed Nesterov step of r's server on delta_i
        s_r at the global       x <- x + eta * D
        server                  D: its own delayed Nesterov step on s_r, as of the K-th arrival
        x back in r             X_r <- (1 - a) * X_r + a * x,   s_r <- 0
                                x: as it was made in the step on s_r

    Clients pull X_r and train from there; x is evaluated and saved. Each event makes a version, and
    a client pulls the newest one that an event of its region has made. `Regions` has K and the
    times of the transfers. The steps are those of `DelayedNesterov` with c = 0: ``delta_i / N``,
    and at each N-th also ``b * v``. Each server has its own v.

    Readings, with the public code's first: what arrives in r during the transfers moves X_r but is
    in no sum, or is in the next one (`summed`); s_r is the change of X_r, or the plain sum of the
    deltas (`send`); the momentum of r's server is kept at the return of x, or reset (`at_return`).

    Floating buffers are those of the client that arrived last, in all regions.

    Args:
        period: N of the global server.
        momentum: b of the global server in [0, 1).
        server_lr: eta, a number or a function of the version that the step starts from.
        region_period: N of the servers of regions.
        region_momentum: Their b in [0, 1).
        region_lr: eta_r, a number or a function of the version.
        alpha: a in [0, 1].
        summed: "since_return": s_r begins when x is back; "since_send": right after the K-th
            arrival, so that all updates are sent once.
        send: "change" or "deltas".
        at_return: "keep" or "reset".

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range; or the arrival process has no regions.

    Source: Kim et al., [HALoS: Hierarchical Asynchronous Local SGD over Slow Networks for
    Geo-Distributed Large Language Model Training](https://arxiv.org/abs/2506.04531), ICML 2025; the
    rules are those of its [public code](https://github.com/utnslab/halos). Its rates are ours: eta
    is the paper's rate times N.

    Example:
        >>> aggregator = HALoS(2, 0.5, 0.3, region_period=16, region_lr=3.2, send="deltas")
        >>> aggregator.region_momentum, aggregator.alpha
        (0.9, 0.25)
    """

    _repr_optional = ("summed", "send", "at_return")
    regional = True

    def __init__(
        self,
        period: int = 1,
        momentum: float = 0.5,
        server_lr: Rate = 1.0,
        region_period: int = 1,
        region_momentum: float = 0.9,
        region_lr: Rate = 1.0,
        alpha: float = 0.25,
        *,
        summed: str = "since_return",
        send: str = "change",
        at_return: str = "keep",
    ) -> None:
        super().__init__(None, server_lr)
        self.period = positive_int("period", period)
        self.momentum = below_one("momentum", momentum)
        self.region_period = positive_int("region_period", region_period)
        self.region_momentum = below_one("region_momentum", region_momentum)
        self.region_lr = rate("region_lr", region_lr)
        self.alpha = fraction("alpha", alpha)
        self.summed = one_of("summed", summed, ("since_return", "since_send"))
        self.send = one_of("send", send, ("change", "deltas"))
        self.at_return = one_of("at_return", at_return, ("keep", "reset"))

    def start(self, federation: Federation, state: ServerState) -> None:
        """All models are the initial one; nothing is on its way.

        Raises:
            ValueError: The arrival process has no regions.
        """
        if federation.arrivals_per_send is None or not federation.groups:
            raise ValueError(
                "HALoS needs regions with a server each: "
                "arrivals=Regions({name: process, …}, clients, arrivals_per_send=K)"
            )
        # One row for each region.
        self.models = state.params.expand(len(federation.groups), -1).clone()
        self.sums = torch.zeros_like(self.models)
        self.counts = dict.fromkeys(federation.groups, 0)
        self.servers = {
            name: DelayedMomentum(state.params, self.region_period, self.region_momentum)
            for name in federation.groups
        }
        self.center = DelayedMomentum(state.params, self.period, self.momentum)
        # On the way to the global server and back, by region.
        self.sent: dict[str, Tensor] = {}
        self.returned: dict[str, Tensor] = {}
        self.due = federation.groups[0]  # the region whose event makes the next version

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1/N of the region's server."""
        return [1 / self.region_period] * len(updates)

    def receive(self, update: ClientUpdate) -> bool:
        """Store the update; its region's server steps now."""
        super().receive(update)
        if update.task.tag not in self.counts:
            raise ValueError(
                f"HALoS has the regions {', '.join(self.counts)}, but client {update.client_id} "
                f"has the tag {update.task.tag!r}; use Regions(…) as arrivals"
            )
        self.due = update.task.tag
        return True

    def end_round_of(self, group: str) -> bool:
        """A transfer to or from the global server ends; a server steps now."""
        self.due = group
        return True

    def step(self, state: ServerState) -> ServerState:
        """Handle an arrival in a region, its sum at the global server, or the return of x."""
        region, updates = self.due, self.drain()
        row = self.federation.groups.index(region)
        if updates:
            (update,) = updates
            direction = self.servers[region].direction(update.delta)
            change = direction * rate_at("region_lr", self.region_lr, state.version)
            self.models[row] += change
            self.sums[row] += change if self.send == "change" else update.delta
            self._count(update)
            (weight,) = self.weights(updates, state.version)
            return next_version(state, state.params, [UsedUpdate(update, weight)])
        if region in self.sent:
            new = self._server(state, self.center.direction(self.sent.pop(region)), ())
            self.returned[region] = new.params
            return new
        self.models[row].lerp_(self.returned.pop(region), self.alpha)
        self.counts[region] = 0
        if self.summed == "since_return":
            self.sums[row] = 0
        if self.at_return == "reset":
            self.servers[region].reset()
        return next_version(state, state.params, ())

    def _count(self, update: ClientUpdate) -> None:
        """Count an arrival; the region's sum is sent at the K-th one."""
        if update.task.tries:  # its first try was counted
            return
        region = self.due
        self.counts[region] += 1
        if self.counts[region] == self.federation.arrivals_per_send:
            sums = self.sums[self.federation.groups.index(region)]
            self.sent[region] = sums.clone()
            if self.summed == "since_send":
                sums.zero_()

    def discard(self, failed: Collection[ClientUpdate]) -> bool:
        """Forget an update that failed; it counts as an arrival."""
        super().discard(failed)
        for update in failed:
            self._count(update)
        return False

    def outgoing(self, state: ServerState) -> Tensor:
        """X_r of the region whose event has made the version."""
        return self.models[self.federation.groups.index(self.due)]
