"""FedASMU's clients: a fresh global model is mixed into the local one in the middle of a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedlight._support.checks import non_negative, positive
from fedlight.local_optimizers.base import LocalOptimizer, LocalRun, keeps_state, per_client

if TYPE_CHECKING:
    from lightning import LightningModule


class FreshModel(LocalOptimizer):
    """y <- (1 - b) * y + b * x_g in the middle of a task, then the other steps of `optimizer`.

    ::

        phi = (gamma / sqrt(g)) * (1 - upsilon / sqrt(g - o + 1)), and 0 below 0
        b = mu * phi / (1 + mu * phi)

    Here y is the client's model after the first half of its task (`RefreshedTasks`), o the version
    that it pulled at the start, g that of the middle. If the server has made no version in between
    (g = o), nothing is mixed. The update is ``delta = y - x_g`` at the end of the task.

    Each client learns its gamma and upsilon, if their rates are above 0: the gradient G of the
    first step after the mixing is taken at the mixed model, so that the loss changes with b by
    ``D = <G, x_g - y>`` for the y before the mixing, and::

        gamma   <- gamma   - rate * D * (db/dphi) / sqrt(g) * (1 - upsilon / sqrt(g - o + 1))
        upsilon <- upsilon + rate * D * (db/dphi) * gamma / sqrt(g * (g - o + 1))
        db/dphi =  mu / (1 + mu * phi)^2

    Both stay at 0 or above. `optimizer` starts anew in each half, and the batches of the second
    half are those of another task. A client keeps its model between the halves, and with rates two
    more vectors of its size.

    Args:
        optimizer: The optimizer for the local steps, without state between tasks.
        mu: mu_beta, above 0.
        gamma: The first gamma of each client, 0 or larger; 0 (with no rate) mixes nothing.
        upsilon: The first upsilon of each client, 0 or larger.
        gamma_rate: The rate of gamma, 0 or larger.
        upsilon_rate: The rate of upsilon, 0 or larger.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range, or `optimizer` keeps a state.

    Source: Liu et al., FedASMU, AAAI 2024, https://arxiv.org/abs/2312.05770, Algorithm 2 and
    Equations 7 to 9.

    Example:
        >>> from fedlight.local_optimizers import LocalSGD
        >>> FreshModel(LocalSGD(lr=0.1), gamma=0.5)
        FreshModel(LocalSGD(lr=0.1), gamma=0.5)
    """

    _repr_positional = 1
    _repr_optional = ("mu", "gamma", "upsilon", "gamma_rate", "upsilon_rate")

    def __init__(
        self,
        optimizer: LocalOptimizer,
        mu: float = 1.0,
        gamma: float = 1.0,
        upsilon: float = 1.0,
        gamma_rate: float = 0.0,
        upsilon_rate: float = 0.0,
    ) -> None:
        if not isinstance(optimizer, LocalOptimizer):
            raise TypeError(
                f"optimizer must be a local optimizer, got {optimizer!r}; for example "
                "FreshModel(LocalSGD(lr=0.1))"
            )
        if keeps_state(optimizer) or optimizer.shared_state:
            raise ValueError(
                f"optimizer must keep no state between tasks, but {optimizer!r} does; the client "
                "keeps its model here, so use for example LocalSGD(lr=…)"
            )
        self.optimizer = optimizer
        self.needs_full_gradient = optimizer.needs_full_gradient
        self.stackable = optimizer.stackable
        self.lr = optimizer.lr  # the executors read it
        self.mu = positive("mu", mu)
        self.gamma = non_negative("gamma", gamma)
        self.upsilon = non_negative("upsilon", upsilon)
        self.gamma_rate = non_negative("gamma_rate", gamma_rate)
        self.upsilon_rate = non_negative("upsilon_rate", upsilon_rate)
        self._learns = self.gamma_rate > 0 or self.upsilon_rate > 0
        self.kept = ("own", "gamma", "upsilon") if self._learns else ("own",)

    def begin(self, run: LocalRun, module: LightningModule) -> None:
        """Mix the client's own model with the fresh one, in the second half of a task."""
        own, *_ = [run.remembered(name) for name in self.kept]
        # Zeros are no model: they are what a client has whose first half has failed. The task has
        # failed then, but its second half is computed all the same.
        known = [t.is_second_half and k > 0 for t, k in zip(run.tasks, run.kept_steps, strict=True)]
        fresh = [task.began_with < task.pulled_version for task in run.tasks]
        if any(known):
            where = torch.tensor(known, device=own[0].device)
            share = self._share(run)[0] * torch.tensor(fresh, dtype=own[0].dtype).to(own[0])
            with torch.no_grad():
                for param, pulled, y in zip(run.params, run.pulled, own, strict=True):
                    mixed = torch.lerp(y, pulled, per_client(share, y))
                    param.copy_(torch.where(per_client(where, y), mixed, pulled))
        self.optimizer.begin(run, module)

    def step(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        """Learn gamma and upsilon from the first gradient after the mixing; make one step."""
        if self._learns and run.step == 0:
            self._learn(run, grads)
        self.optimizer.step(run, grads)

    def finish(self, run: LocalRun) -> list[Tensor]:
        """Keep the model."""
        self.optimizer.finish(run)
        for own, param in zip(run.remembered("own"), run.params, strict=True):
            own.copy_(param)
        return []

    def _share(self, run: LocalRun) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """b, db/dphi, dphi/dgamma and dphi/dupsilon of each client, shape ``[n]``."""
        like = run.params[0]
        gamma = self._control(run, "gamma", self.gamma)
        upsilon = self._control(run, "upsilon", self.upsilon)
        versions = [max(1, task.pulled_version) for task in run.tasks]
        ages = [task.pulled_version - task.began_with + 1 for task in run.tasks]
        root = torch.tensor([g**-0.5 for g in versions], dtype=like.dtype).to(like)
        age = torch.tensor([a**-0.5 for a in ages], dtype=like.dtype).to(like)
        by_gamma = root * (1 - upsilon * age)
        by_upsilon = -gamma * root * age
        phi = (gamma * by_gamma).clamp(min=0.0)
        b = self.mu * phi / (1 + self.mu * phi)
        return b, self.mu / (1 + self.mu * phi) ** 2, by_gamma, by_upsilon

    def _control(self, run: LocalRun, name: str, first: float) -> Tensor:
        """A number of each client; its whole vector holds the difference from the first value."""
        # A parameter may have no numbers.
        n = len(run.tasks)
        filled = next(k for k, param in enumerate(run.params) if param.numel())
        if not self._learns:
            return torch.full_like(run.params[filled].reshape(n, -1)[:, 0], first)
        return first + run.remembered(name)[filled].reshape(n, -1)[:, 0]

    def _learn(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        fresh = [task.began_with < task.pulled_version for task in run.tasks]
        learns = [yes and steps > 0 for yes, steps in zip(fresh, run.kept_steps, strict=True)]
        if not any(learns):
            return
        triples = zip(grads, run.pulled, run.remembered("own"), strict=True)
        products = [
            (g * (x - y)).reshape(len(g), -1).sum(dim=1) for g, x, y in triples if g.numel()
        ]
        slope = torch.stack(products, dim=1).sum(dim=1)
        _, by_phi, by_gamma, by_upsilon = self._share(run)
        slope = slope * by_phi * torch.tensor(learns, dtype=slope.dtype).to(slope)
        for name, first, rate, partial in (
            ("gamma", self.gamma, self.gamma_rate, by_gamma),
            ("upsilon", self.upsilon, self.upsilon_rate, by_upsilon),
        ):
            before = self._control(run, name, first)
            change = (before - rate * slope * partial).clamp(min=0.0) - first
            for kept in run.remembered(name):
                kept.copy_(per_client(change, kept).expand_as(kept))
