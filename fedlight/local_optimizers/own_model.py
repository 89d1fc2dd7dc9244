"""Clients that continue from their own model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedlight._support.checks import (
    Rate,
    flag,
    items,
    non_negative_int,
    optional,
    positive_int,
    rate_at,
    shown,
)
from fedlight.channel._lattice import Lattice, as_quantizer
from fedlight.local_optimizers.base import LocalOptimizer, LocalRun, keeps_state, per_client
from fedlight.local_optimizers.rates import ByStep

if TYPE_CHECKING:
    from lightning import LightningModule


class OwnModel(LocalOptimizer):
    """A client continues from its own model y_i, mixed with the pulled one.

    ``y_i <- (x_p + s * y_i) / (s + 1)`` at the start of a task, then the K steps of `optimizer`.
    y_i is the model at the end of the client's previous task; the first task starts from x_p. The
    update is still ``delta = y_i - x_p``, so an aggregator obtains y_i as x_p + delta.

    Args:
        optimizer: The optimizer for the local steps, without a client or shared state.
        per_poll: s, the number of clients polled together, or the same lists of clients as for
            `PolledArrivals`. With lists, s is the length of ``per_poll[p]`` for a client that pulls
            version p, since poll p + 1 is answered with version p. None for no mixing: the client
            keeps its model, and its update is relative to the model that it pulls.
        lr_correction: Whether the local rate is multiplied by ``(s + 1) / s``, as in the code of
            QuAFL's authors.
        quantizer: The quantizer through which x_p is sent, with y_i as its key; None for no
            quantization.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: `optimizer` has a client or shared state, `per_poll` is below 1, or
            `lr_correction` is given without `per_poll`.

    Source: Zakerinia et al., QuAFL, AISTATS 2024, Algorithm 1, https://arxiv.org/abs/2206.10032.

    Example:
        >>> from fedlight.local_optimizers import LocalSGD
        >>> OwnModel(LocalSGD(lr=0.1), per_poll=5)
        OwnModel(LocalSGD(lr=0.1), per_poll=5)
    """

    _repr_positional = 1
    _repr_optional = ("per_poll", "lr_correction", "quantizer")
    client_state = True

    def __init__(
        self,
        optimizer: LocalOptimizer,
        per_poll: int | Sequence[Sequence[int]] | None = None,
        lr_correction: bool = False,
        quantizer: Lattice | None = None,
    ) -> None:
        if not isinstance(optimizer, LocalOptimizer):
            raise TypeError(
                f"optimizer must be a local optimizer, got {optimizer!r}; for example "
                "OwnModel(LocalSGD(lr=0.1), per_poll=5)"
            )
        if keeps_state(optimizer) or optimizer.shared_state:
            raise ValueError(
                f"optimizer must keep no state between tasks, but {optimizer!r} does; the client's "
                "state is its model here, so use for example LocalSGD(lr=…)"
            )
        self.optimizer = optimizer
        self.needs_full_gradient = optimizer.needs_full_gradient
        self.stackable = optimizer.stackable
        self.per_poll = optional(_sizes, "per_poll", per_poll)
        self.lr_correction = flag("lr_correction", lr_correction)
        if self.lr_correction and self.per_poll is None:
            raise ValueError("lr_correction=True needs per_poll, the s of its factor (s + 1) / s")
        self.quantizer = as_quantizer(quantizer)
        # The executors read this rate, and the wrapped optimizer steps with `LocalRun.lr`.
        self.lr = optimizer.lr
        if self.lr_correction and optimizer.lr is not None:
            if isinstance(optimizer.lr, ByStep):
                raise ValueError(
                    "lr_correction=True needs a rate that is a number or a function of the "
                    f"version, got {optimizer.lr!r}"
                )
            self.lr = self._corrected(optimizer.lr)

    def _corrected(self, lr: Rate) -> Callable[[int], float]:
        def corrected(version: int) -> float:
            polled = max(1, self._polled(version))
            return rate_at("lr", lr, version) * (polled + 1) / polled

        return corrected

    def _polled(self, version: int) -> int:
        """The s of the poll that was answered with a version."""
        if isinstance(self.per_poll, tuple):
            if version >= len(self.per_poll):
                raise ValueError(
                    f"per_poll lists {len(self.per_poll)} polls, but a client pulls version "
                    f"{version}; give one list for each poll, as for PolledArrivals"
                )
            return self.per_poll[version]
        return self.per_poll or 0

    def bytes_down(self, size: int, itemsize: int) -> int:
        """The bytes of x_p when sent through the quantizer."""
        quantizer = self.quantizer
        return size * itemsize if quantizer is None else quantizer.nbytes(size)

    def begin(self, run: LocalRun, module: LightningModule) -> None:
        """Mix the client's own model with the pulled one."""
        if any(run.has_state):
            known = torch.tensor(run.has_state, device=run.params[0].device)
            with torch.no_grad():
                for param, pulled, own in zip(run.params, run.pulled, run.client, strict=True):
                    mixed = self._mixed(run, pulled, own)
                    param.copy_(torch.where(per_client(known, own), mixed, pulled))
        self.optimizer.begin(run, module)

    def _mixed(self, run: LocalRun, pulled: Tensor, own: Tensor) -> Tensor:
        if self.per_poll is None:
            return own
        polled = [float(self._polled(task.pulled_version)) for task in run.tasks]
        s = per_client(torch.tensor(polled, dtype=own.dtype, device=own.device), own)
        if self.quantizer is not None:
            pulled = self.quantizer.sent(pulled, key=own)
        return (pulled + s * own) / (s + 1)

    def step(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        """Make one step of the optimizer."""
        self.optimizer.step(run, grads)

    def finish(self, run: LocalRun) -> list[Tensor]:
        """Keep the model."""
        self.optimizer.finish(run)
        return [param.clone() for param in run.params]


def _sizes(name: str, per_poll: object) -> int | tuple[int, ...]:
    """s, or the s of each poll.

    Raises:
        TypeError: It is neither a number nor a list of lists.
        ValueError: The number is below 1, a list names a client twice, or there is no client.
    """
    if not isinstance(per_poll, Iterable) or isinstance(per_poll, str | bytes):
        return positive_int(name, per_poll)
    polls = items(name, per_poll)
    if not polls:
        raise ValueError(f"{name} must hold one list of clients for each poll, got none")
    sizes = []
    for number, clients in enumerate(polls):
        alone = isinstance(clients, str | bytes) or not getattr(clients, "shape", (1,))
        if alone or not isinstance(clients, Iterable):
            raise TypeError(
                f"{name} must be a number or one list of clients for each poll, got "
                f"{shown(clients)} as {name}[{number}]"
            )
        found = [non_negative_int(f"{name}[{number}][{k}]", e) for k, e in enumerate(clients)]
        if len(set(found)) < len(found):
            raise ValueError(f"{name}[{number}] must name each client once, got {found}")
        sizes.append(len(found))
    if not any(sizes):
        raise ValueError(f"{name} must name a client in at least one poll, got {shown(polls)}")
    return tuple(sizes)
