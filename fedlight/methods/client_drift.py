"""Methods of rounds against client drift: clients whose data differ move apart in local steps."""

from __future__ import annotations

from fedlight._support.checks import Rate, below_one, fraction, non_negative, optional, rate
from fedlight.aggregators import FedAvg, FedDynServer, FedNova
from fedlight.arrivals import (
    ArrivalProcess,
    DurationModel,
    LocalEpochs,
    LocalSteps,
    PartialWork,
    SynchronousArrivals,
)
from fedlight.local_optimizers import SAM, FedDyn, FedProx, Scaffold
from fedlight.methods._method import Method, bundle, sgd


def fedprox(
    *,
    lr: Rate,
    mu: float,
    per_round: int | None = 10,
    stragglers: float = 0.0,
    local_steps: LocalSteps | int = LocalEpochs(20),
    durations: DurationModel | None = None,
) -> Method:
    """FedProx: FedAvg whose clients minimise f_i(y) + (mu / 2) * |y - x_p|^2.

    Args:
        lr: The local learning rate.
        mu: The weight of the proximal term, which the paper chooses among 0.001, 0.01, 0.1 and 1.
        per_round: m, the clients of a round; None for all.
        stragglers: The share of tasks that stop early and send what they have: 0, 0.5 or 0.9.
        local_steps: K, or a policy for it: E = 20 local epochs, as in the paper.
        durations: The time of a task; None for one unit of virtual time.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Li et al., 2020, Algorithm 2, https://arxiv.org/abs/1812.06127. The paper draws clients
    by n_i and averages evenly; here they are drawn evenly and averaged by n_i.

    Example:
        >>> fedprox(lr=0.01, mu=1.0, stragglers=0.5)["local_optimizer"].mu
        1.0
    """
    arrivals: ArrivalProcess = SynchronousArrivals(per_round, durations, local_steps)
    if fraction("stragglers", stragglers):
        arrivals = PartialWork(arrivals, stragglers)
    return bundle("FedProx", arrivals, FedAvg(), FedProx(lr, mu))


def scaffold(
    *,
    lr: Rate,
    per_round: int | None,
    server_lr: Rate = 1.0,
    option: int = 2,
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """SCAFFOLD: x <- x + eta * mean of delta_i, local steps along g - c_i + c.

    Args:
        lr: The local learning rate.
        per_round: m, the clients of a round; None for all. The paper has 20 % of them.
        server_lr: eta, which is 1 in the experiments.
        option: How a client renews c_i: 1 by the gradient at x_p over all its examples, 2 from the
            steps made.
        local_steps: K, or a policy for it.
        durations: The time of a task; None for one unit of virtual time.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Karimireddy et al., 2020, Algorithm 1, https://arxiv.org/abs/1910.06378.

    Example:
        >>> scaffold(lr=0.1, per_round=20)["aggregator"]
        FedAvg(buffer_size=None, client_weights='uniform')
    """
    arrivals = SynchronousArrivals(per_round, durations, local_steps)
    aggregator = FedAvg(client_weights="uniform", server_lr=server_lr)
    return bundle("SCAFFOLD", arrivals, aggregator, Scaffold(lr, option))


def fednova(
    *,
    lr: Rate | None,
    per_round: int | None = None,
    momentum: float = 0.0,
    mu: float = 0.0,
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = LocalEpochs(2),
    durations: DurationModel | None = None,
) -> Method:
    """FedNova: x <- x + eta * tau_eff * sum of w_i * delta_i / a_i, tau_eff = sum of w_i * a_i.

    a_i is that of the local rule, so client and server get the same momentum or proximal term.

    Args:
        lr: The local learning rate; None for the module's own optimizer, which must be plain SGD.
        per_round: m, the clients of a round; None for all, as in the paper.
        momentum: rho of the clients' SGD.
        mu: The weight of a proximal term; not together with `momentum`.
        server_lr: eta.
        local_steps: K, or a policy for it; the paper has 2 local epochs, or 2 to 5 drawn anew.
        durations: The time of a task; None for one unit of virtual time.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Wang et al., 2020, https://arxiv.org/abs/2007.07481.

    Example:
        >>> method = fednova(lr=0.05, momentum=0.9)
        >>> method["aggregator"].momentum == method["local_optimizer"].momentum
        True
    """
    mu, momentum = non_negative("mu", mu), below_one("momentum", momentum)
    lr = optional(rate, "lr", lr)
    if lr is None and (mu or momentum):
        name = f"mu={mu:g}" if mu else f"momentum={momentum:g}"
        raise ValueError(f"{name} needs lr, the learning rate of the clients, got None")
    aggregator = FedNova(server_lr=server_lr, momentum=momentum, mu=mu, local_lr=lr)
    arrivals = SynchronousArrivals(per_round, durations, local_steps)
    local = FedProx(lr, mu) if mu and lr is not None else sgd(lr, momentum)
    return bundle("FedNova", arrivals, aggregator, local)


def feddyn(
    *,
    lr: Rate,
    per_round: int | None,
    alpha: float = 0.01,
    local_steps: LocalSteps | int = LocalEpochs(5),
    durations: DurationModel | None = None,
) -> Method:
    """FedDyn: h <- h - (alpha / M) * sum of delta_i; then x <- x + mean of delta_i - h / alpha.

    The clients' steps are along ``g - h_i + alpha * (y - x_p)``, with the same alpha.

    Args:
        lr: The local learning rate; 0.1 in the authors' code.
        per_round: m, the clients of a round; None for all.
        alpha: The weight of the dynamic regulariser; 0.01 for CIFAR-10 in the authors' code.
        local_steps: K, or a policy for it: 5 local epochs, as in the authors' code.
        durations: The time of a task; None for one unit of virtual time.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Acar et al., 2021, Algorithm 1, https://arxiv.org/abs/2111.04263.

    Example:
        >>> method = feddyn(lr=0.1, per_round=10)
        >>> method["aggregator"].alpha == method["local_optimizer"].alpha
        True
    """
    arrivals = SynchronousArrivals(per_round, durations, local_steps)
    return bundle("FedDyn", arrivals, FedDynServer(alpha), FedDyn(lr, alpha))


def fedsam(
    *,
    lr: Rate,
    per_round: int | None,
    rho: float = 0.05,
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """FedSAM: FedAvg with local steps along the gradient at y + rho * g / norm of g.

    Args:
        lr: The local learning rate.
        per_round: m, the clients of a round; None for all.
        rho: The radius of the step uphill; the default is that of SAM's paper.
        local_steps: K, or a policy for it. A step takes two gradients.
        durations: The time of a task; None for one unit of virtual time.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, 2022,
    https://arxiv.org/abs/2206.02618; Foret et al., 2021, Algorithm 1,
    https://arxiv.org/abs/2010.01412. Neither text was checked for this function.

    Example:
        >>> fedsam(lr=0.1, per_round=10)["local_optimizer"].rho
        0.05
    """
    arrivals = SynchronousArrivals(per_round, durations, local_steps)
    return bundle("FedSAM", arrivals, FedAvg(client_weights="uniform"), SAM(lr, rho))
