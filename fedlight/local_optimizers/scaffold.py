"""SCAFFOLD: SGD with control variates against client drift."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedlight._support.checks import Rate, rate, rate_at
from fedlight.local_optimizers.base import LocalOptimizer, LocalRun, per_client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning import LightningModule

    from fedlight.types import ServerState


class Scaffold(LocalOptimizer):
    """y <- y - lr * (g - c_i + c): SGD whose drift is corrected by control variates.

    g is the stochastic gradient of f_i at y. The control variates c_i of the client and c of the
    server are zero at first. c is pulled together with the model x_p. After K steps the client
    stores a new c_i+:

    - option 2: ``c_i+ = c_i - c + (x_p - y_K) / (K * lr)``, the mean of the gradients g;
    - option 1: ``c_i+`` = the gradient of f_i at x_p over all the client's examples. This costs
      an additional pass over the data for each task, in training mode and in batches (the last
      batch includes the remainder). The loss must be a mean over the batch.

    The server step that uses the update then adds ``(1/M) * (c_i+ - c_i)`` to c, where M is the
    number of all clients and c_i the stored state that c_i+ replaced.

    The paper is synchronous and does not define the asynchronous case. Here a client stores c_i+
    when its update arrives, even if the server drops the update. The change of c does not depend on
    the server's learning rate, staleness or n_i. Dropped updates do not change c.

    Args:
        lr: eta_L, a number or a function of the pulled version. There is no momentum, weight decay
            or clipping, because c_i+ would no longer be a mean of gradients.
        option: 1 or 2.

    Raises:
        TypeError: An option of `LocalSGD` is given that SCAFFOLD does not have.
        ValueError: An argument is outside its range; (during the run) `lr` returns 0 with option 2.

    Source: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
    ICML 2020, Algorithm 1, lines 10 to 17, https://arxiv.org/abs/1910.06378. Used with
    asynchronous clients in Yang et al., "Anarchic Federated Learning", ICML 2022, Appendix E.1,
    https://arxiv.org/abs/2108.09875.

    Example:
        >>> Scaffold(lr=0.1)
        Scaffold(lr=0.1, option=2)
    """

    client_state = True
    shared_state = True

    def __init__(self, lr: Rate, option: int = 2, **refused: object) -> None:
        if refused:
            given = ", ".join(f"{name}={value!r}" for name, value in refused.items())
            raise TypeError(
                f"Scaffold takes only lr and option, got {given}; c_i is a mean of gradients only "
                "with plain SGD, so leave it out, or use momentum on the server "
                "(server_optimizer=lambda params: torch.optim.SGD(params, 1.0, momentum=0.9))"
            )
        self.lr: Rate = rate("lr", lr)
        if not isinstance(option, Integral) or isinstance(option, bool) or option not in (1, 2):
            raise ValueError(
                "option must be 1 (c_i+ is the gradient at the pulled model) or 2 (c_i+ comes from "
                f"the local steps), got {option!r}"
            )
        self.option: int = int(option)  # a NumPy number would be written otherwise in checkpoints
        self.needs_full_gradient = option == 1

    def begin(self, run: LocalRun, module: LightningModule) -> None:
        """Refuse a rate of 0, by which option 2 would divide."""
        if self.option == 2 and 0.0 in self._rates(run):
            raise ValueError(
                "Scaffold divides by lr, but lr returned 0 for the pulled version; "
                "give a rate above 0, or use option=1"
            )

    def _rates(self, run: LocalRun) -> list[float]:
        """The rates of the local runs; a read from the device would make the host wait."""
        if isinstance(run.lr, float):
            return [run.lr]
        return [rate_at("lr", self.lr, task.pulled_version) for task in run.tasks]

    def step(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        """Line 10: make a corrected step of SGD."""
        drift = torch._foreach_sub(run.shared, run.client)
        run.descend(torch._foreach_add(list(grads), drift))

    def finish(self, run: LocalRun) -> list[Tensor]:
        """Line 12: return c_i+."""
        if self.option == 1:
            return run.full_gradient
        travelled = run.num_steps.to(run.params[0].dtype) * run.lr
        news = [
            own - shared + (pulled - after) / per_client(travelled, after)
            for own, shared, pulled, after in zip(
                run.client, run.shared, run.pulled, run.params, strict=True
            )
        ]
        if all(task.num_steps for task in run.tasks):
            return news
        # Without a step there is no gradient, and c_i stays.
        worked = run.num_steps > 0
        return [
            torch.where(per_client(worked, own), new, own)
            for new, own in zip(news, run.client, strict=True)
        ]

    def absorb(self, state: ServerState, num_clients: int) -> ServerState:
        """Lines 16 and 17: c <- c + (1/M) * sum of (c_i+ - c_i), in the order of arrival."""
        if not state.used:
            return state
        shared = torch.zeros_like(state.params) if state.shared is None else state.shared.clone()
        for update, _ in state.used:
            news = update.local.client_state
            assert news is not None
            # The state that was replaced may differ from the one read at the dispatch, if tasks of
            # one client overlap. Taking it keeps c the mean of the stored c_i.
            before = None if update.replaced_state is None else update.replaced_state()
            shared.add_(news if before is None else news - before, alpha=1 / num_clients)
        return replace(state, shared=shared)
