"""Central differential privacy: the server clips updates and adds noise to their sum."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from fedlight._support.checks import positive
from fedlight.aggregators.base import Aggregator
from fedlight.aggregators.buffered import BufferedAggregator, Updates, Weights
from fedlight.parameters import weighted_sum
from fedlight.randomness import Concern, stream
from fedlight.types import ClientUpdate

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import Federation, ServerState

# With another one of these, the step would be no weighted sum of the updates that have arrived.
_OF_A_SUM = (
    *("direction", "step", "receive", "full", "drain", "held", "discard"),
    *("end_round", "end_round_of", "outgoing", "bytes_up", "rates"),
)


class PrivateSum(BufferedAggregator):
    """x <- x + eta * (sum of w_i * clip(delta_i) + z * C * W * N(0, I)): the central model.

    ``clip(u) = u * min(1, C / |u|)``, with the norm over all P parameters. The w_i, eta, and when
    a step is due, are those of the given aggregator. W is the largest sum of the weights that one
    client has in the step, so ``C * W`` is the sensitivity of the sum to all that one client sends:
    discounts for stale updates lower the noise, and several updates of a client in one buffer raise
    it. Each step is then a Gaussian mechanism with the noise multiplier z. `fedlight.privacy` has
    the epsilon of a run.

    The server is trusted: it sees the updates before the noise. Staleness is a part of the
    schedule, so the weights may depend on it. They cannot depend on the updates: a rule that reads
    one to weigh it is refused. A `server_optimizer` of the aggregator gets the noisy sum.

    The noise is a function of the seed and the version.

    Args:
        aggregator: A rule that is a weighted sum of the updates held, such as ``FedBuff(10)`` or
            ``FedAvg(client_weights="uniform")``.
        noise_multiplier: z, the standard deviation of the noise, divided by the sensitivity.
        clipping_norm: C, the largest norm of an update, in the unit of the parameters.

    Raises:
        TypeError: An argument is of another kind.
        ValueError: A number is not above 0, or the rule is no such sum.

    Source: McMahan, Ramage, Talwar and Zhang, [Learning Differentially Private Recurrent Language
    Models](https://arxiv.org/abs/1710.06963), Algorithm 1 with flat clipping, for rounds.
    Nguyen et al., [Federated Learning with Buffered Asynchronous
    Aggregation](https://arxiv.org/abs/2106.06639), say that a buffer is compatible with
    differential privacy. The noise at the buffer, and that its deviation follows the largest weight
    of the step, are readings.

    Example:
        >>> from fedlight.aggregators import FedBuff
        >>> PrivateSum(FedBuff(10, staleness=None), noise_multiplier=1.0, clipping_norm=0.5)
        PrivateSum(FedBuff(buffer_size=10, staleness=Constant(), normalize='buffer'),
            noise_multiplier=1.0, clipping_norm=0.5)
    """

    _repr_positional = 1
    _saved_apart = frozenset({"aggregator"})

    def __init__(
        self, aggregator: BufferedAggregator, noise_multiplier: float, clipping_norm: float
    ) -> None:
        _check_sum(aggregator)
        rates = aggregator.server_lr, aggregator.server_optimizer
        super().__init__(aggregator.buffer_size, *rates, interval=aggregator.interval)
        self.aggregator = aggregator
        self.noise_multiplier = positive("noise_multiplier", noise_multiplier)
        self.clipping_norm = positive("clipping_norm", clipping_norm)
        self.needs_rounds = aggregator.needs_rounds
        self.max_staleness = aggregator.max_staleness
        self.client_weights = aggregator.client_weights
        self.speed_counts = aggregator.speed_counts

    def start(self, federation: Federation, state: ServerState) -> None:
        """Set up the given aggregator."""
        self.aggregator.setup(federation, state)

    def accepts(self, update: ClientUpdate, version: int) -> bool:
        """The answer of the given aggregator, which cannot read the update."""
        return self.aggregator.accepts(_unread(update), version)

    def weights(self, updates: Updates, version: int) -> Weights:
        """The weights of the given aggregator, which cannot read the updates."""
        return self.aggregator.weights([_unread(update) for update in updates], version)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """The sum of w_i * clip(delta_i), and the noise.

        Raises:
            ValueError: A buffer of the module has changed on a client.
        """
        _check_buffers(updates, state)
        of_client: defaultdict[int, float] = defaultdict(float)
        factors = []
        for update, weight in zip(updates, weights, strict=True):
            of_client[update.client_id] += weight
            norm = float(torch.linalg.vector_norm(update.delta))
            # In double precision, so that a weight that is rounded up in single does not matter.
            factors.append(weight * min(1.0, self.clipping_norm / max(norm, 1e-300)))
        total = weighted_sum([update.delta for update in updates], factors)
        assert self.noise_multiplier is not None
        deviation = self.noise_multiplier * self.clipping_norm * max(of_client.values())
        # On the CPU and in double precision, so that each device gets the same noise.
        noise = stream(self.federation.seed, Concern.PRIVACY, state.version)
        drawn = torch.from_numpy(noise.standard_normal(total.numel())).mul_(deviation)
        return total + drawn.to(total)

    def state_dict(self) -> dict[str, Any]:
        """The state, and that of the given aggregator."""
        return {**super().state_dict(), "aggregator": self.aggregator.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; `setup` was called before."""
        super().load_state_dict(state)
        self.aggregator.load_state_dict(state["aggregator"])

    @property
    def _accepts_by_own_rule(self) -> bool:
        return type(self.aggregator).accepts is not Aggregator.accepts


def _check_sum(aggregator: object) -> None:
    """Refuse a rule to whose steps noise of this kind cannot be added.

    Raises:
        TypeError: It is no `BufferedAggregator`.
        ValueError: It is no weighted sum, or it weighs by numbers of examples.
    """
    if not isinstance(aggregator, BufferedAggregator):
        raise TypeError(
            "aggregator must be one that adds up the updates of a buffer, got "
            f"{aggregator!r}; for example PrivateSum(FedBuff(10), …)"
        )
    kind = type(aggregator)
    others = [n for n in _OF_A_SUM if getattr(kind, n) is not getattr(BufferedAggregator, n)]
    if others or aggregator.remembers or aggregator.sends_before:
        found = f"defines {', '.join(others)}" if others else "uses updates again"
        raise ValueError(
            "aggregator must be a weighted sum of new updates, each used once, but "
            f"{kind.__name__} {found}: the noise of one sum would not cover it; take for example "
            "FedBuff(10), or let the clients add the noise, channel=GaussianNoise(…)"
        )
    if aggregator.client_weights == "examples":
        raise ValueError(
            f"{aggregator!r} weighs clients by their numbers of examples, which the noise does not "
            'hide; write client_weights="uniform"'
        )


class _Unread(ClientUpdate):
    """An update of which a rule sees only what the schedule tells."""

    __slots__ = ()

    @property
    def result(self) -> NoReturn:
        """Refuse."""
        raise _told("an update")

    @property
    def pulled(self) -> NoReturn:
        """Refuse: the noisy model, which the accounting of the schedule does not know."""
        raise _told("the model")

    @property
    def num_examples(self) -> NoReturn:
        """Refuse."""
        raise _told("num_examples")


def _unread(update: ClientUpdate) -> ClientUpdate:
    return _Unread(*update)


def _told(what: str) -> ValueError:
    return ValueError(
        f"the aggregator in PrivateSum reads {what} in weights or accepts, so its weights depend "
        "on what the clients send or have, and the noise does not cover that; use client_id, "
        "num_steps and staleness(version) only"
    )


def _check_buffers(updates: Updates, state: ServerState) -> None:
    """Refuse buffers that clients have changed, such as the statistics of BatchNorm.

    Raises:
        ValueError: There are some.
    """
    for update in updates:
        kind = update.local.changed_buffers(state)
        if kind is not None:
            raise ValueError(
                f"client {update.client_id} sends {kind} buffers of the module that it has "
                "changed, to which no noise is added; take a module without such buffers "
                "(GroupNorm in place of BatchNorm)"
            )
