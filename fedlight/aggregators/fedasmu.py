"""FedASMU: asynchronous mixing with weights that the server learns for each client."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedlight._support.checks import (
    Rate,
    flag,
    non_negative,
    non_negative_int,
    optional,
    positive,
    positive_int,
    rate,
    rate_at,
)
from fedlight.aggregators._server_step import next_version, pulled
from fedlight.aggregators.buffered import BufferedAggregator, Updates
from fedlight.types import UsedUpdate

if TYPE_CHECKING:
    from fedlight.types import ClientUpdate, Federation, ServerState


class FedASMU(BufferedAggregator):
    """x <- (1 - a) * x + a * y after each arrival, with an `a` that is learned for each client.

    ::

        a = mu * xi / (1 + mu * xi)
        xi = lam / (sqrt(t) * tau ^ sigma) + iota

    Here y is the client's model, t the number of the version that is made, and tau the staleness
    counted from `fresh`: ``tau = version - o + fresh``, where o is the version that the client
    pulled at the start of its task, also if it has pulled another one since (`RefreshedTasks`).

    Each client has a lam, a sigma and an iota of its own, which start at the given values. Its next
    update learns them by a step of gradient descent on its loss F_i at the model that it pulled::

        lam   <- lam   - lam_rate   * D * (da/dxi) / (sqrt(t) * tau^sigma)
        sigma <- sigma + sigma_rate * D * (da/dxi) * lam * ln(tau) / (sqrt(t) * tau^sigma)
        iota  <- iota  - iota_rate  * D * (da/dxi)
        da/dxi = mu / (1 + mu * xi)^2,   D = <G, y' - x'>

    Here t, tau and xi are those of the client's update before, y' was its model, and x' the
    server's just before it was mixed in. ``G = -delta / (lr * K)`` estimates the gradient of F_i
    from the K steps of the new update; after a refresh delta is relative to the fresh model and K
    counts the steps since, so that G is larger (a reading). The learned values are used for this
    update already. All three stay at 0 or above. With `own_versions`, a client learns only if it
    has pulled the very version that its update before had made; otherwise each update learns (a
    reading).

    With all rates 0, nothing is learned or remembered; with ``lam=0`` as well, this is `FedAsync`
    with ``alpha = mu * iota / (1 + mu * iota)``.

    Args:
        mu: mu_alpha, above 0.
        lam: The first lambda of each client, 0 or larger.
        sigma: The first sigma, 0 or larger.
        iota: The first iota, 0 or larger.
        lam_rate: The rate of lambda, 0 or larger.
        sigma_rate: The rate of sigma, 0 or larger.
        iota_rate: The rate of iota, 0 or larger.
        local_lr: lr, the learning rate of the clients, a number or a function of the pulled
            version; None for ``G = -delta``, so that the rates are those times lr * K.
        max_staleness: Drop updates that are staler (versions since o), or None.
        fresh: tau of an update whose client pulled the newest version: 1, or 2 if o is counted
            against the version that is made.
        own_versions: Whether a client learns only from versions that its own update made.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range.

    Source: Liu et al., FedASMU: Efficient Asynchronous Federated Learning with Dynamic
    Staleness-Aware Model Update, AAAI 2024, https://arxiv.org/abs/2312.05770, Equations 1 to 3 and
    Algorithm 1.

    Example:
        >>> FedASMU(lam=1.0, sigma=0.5)
        FedASMU(mu=1.0, lam=1.0, sigma=0.5, iota=0.0)
    """

    _repr_optional = (  # type: ignore[assignment]
        "lam_rate",
        "sigma_rate",
        "iota_rate",
        "local_lr",
        "max_staleness",
        "fresh",
        "own_versions",
    )

    def __init__(
        self,
        mu: float = 1.0,
        lam: float = 1.0,
        sigma: float = 0.5,
        iota: float = 0.0,
        lam_rate: float = 0.0,
        sigma_rate: float = 0.0,
        iota_rate: float = 0.0,
        local_lr: Rate | None = None,
        max_staleness: int | None = None,
        fresh: int = 1,
        own_versions: bool = False,
    ) -> None:
        super().__init__(1)
        self.mu = positive("mu", mu)
        self.lam = non_negative("lam", lam)
        self.sigma = non_negative("sigma", sigma)
        self.iota = non_negative("iota", iota)
        self.lam_rate = non_negative("lam_rate", lam_rate)
        self.sigma_rate = non_negative("sigma_rate", sigma_rate)
        self.iota_rate = non_negative("iota_rate", iota_rate)
        self.local_lr = optional(rate, "local_lr", local_lr)
        self.max_staleness = optional(non_negative_int, "max_staleness", max_staleness)
        self.fresh = positive_int("fresh", fresh)
        self.own_versions = flag("own_versions", own_versions)

    def start(self, federation: Federation, state: ServerState) -> None:
        """Each client has the first values, and no update yet."""
        self.controls: dict[int, list[float]] = {}  # lam, sigma, iota
        self.moved: dict[int, Tensor] = {}  # y' - x', shape [P]
        # The derivatives of a by lam, sigma and iota, and the version that was made.
        self.slopes: dict[int, list[float]] = {}

    @property
    def drops(self) -> bool:
        """Whether updates can be too stale."""
        return self.max_staleness is not None

    def rates(self, version: int) -> dict[str, float]:
        """None: each client has a share of its own."""
        return {}

    def accepts(self, update: ClientUpdate, version: int) -> bool:
        """Whether it is not too stale."""
        return self.max_staleness is None or self._age(update, version) <= self.max_staleness

    def weights(self, updates: Updates, version: int) -> list[float]:
        """The share a."""
        (update,) = updates
        lam, sigma, iota = self.controls.get(update.client_id, [self.lam, self.sigma, self.iota])
        scaled = self.mu * (lam * self._decay(update, version, sigma) + iota)
        return [scaled / (1 + scaled)]

    def step(self, state: ServerState) -> ServerState:
        """Learn from the update, then mix the client's model in (Algorithm 1)."""
        (update,) = updates = self.drain()
        start = pulled(update, "FedASMU mixes models and")
        learns = self.lam_rate > 0 or self.sigma_rate > 0 or self.iota_rate > 0
        if learns:
            self._learn(update)
        (a,) = self.weights(updates, state.version)
        moved = start.params + update.delta - state.params
        if learns:
            self.moved[update.client_id] = moved
            self.slopes[update.client_id] = self._slopes(update, state.version)
        return next_version(state, state.params + a * moved, [UsedUpdate(update, a)], keep=1 - a)

    def _age(self, update: ClientUpdate, version: int) -> int:
        return version - update.task.began_with

    def _decay(self, update: ClientUpdate, version: int, sigma: float) -> float:
        """1 / (sqrt(t) * tau^sigma)."""
        tau = self._age(update, version) + self.fresh
        return 1.0 / (math.sqrt(version + 1) * math.pow(tau, sigma))

    def _slopes(self, update: ClientUpdate, version: int) -> list[float]:
        """The derivatives of a by lam, sigma and iota, and the version that is made."""
        lam, sigma, iota = self.controls.get(update.client_id, [self.lam, self.sigma, self.iota])
        decay = self._decay(update, version, sigma)
        by_xi = self.mu / (1 + self.mu * (lam * decay + iota)) ** 2
        log = math.log(self._age(update, version) + self.fresh)
        return [by_xi * decay, -by_xi * lam * log * decay, by_xi, version + 1]

    def _learn(self, update: ClientUpdate) -> None:
        """One step of gradient descent on the loss of the client."""
        client = update.client_id
        if client not in self.moved:
            return
        *slopes, made = self.slopes[client]
        if self.own_versions and update.pulled_version != made:
            return
        loss_by_a = -float(torch.dot(update.delta, self.moved[client])) / self._scale(update)
        rates = (self.lam_rate, self.sigma_rate, self.iota_rate)
        before = self.controls.get(client, [self.lam, self.sigma, self.iota])
        self.controls[client] = [
            max(0.0, value - rate * loss_by_a * slope)
            for value, rate, slope in zip(before, rates, slopes, strict=True)
        ]

    def _scale(self, update: ClientUpdate) -> float:
        """Lr * K, so that delta = -lr * K * G; 1 without `local_lr`."""
        if self.local_lr is None:
            return 1.0
        lr = rate_at("local_lr", self.local_lr, update.pulled_version)
        # Without a step delta is zero, whatever it is divided by.
        return positive(f"local_lr(version={update.pulled_version})", lr) * max(1, update.num_steps)
