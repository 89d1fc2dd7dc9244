"""Notices strategies that change as they go and would forget that in a resumed run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess


class StateWatch:
    """Compares the plain attributes of strategies at the start and at the first checkpoint.

    Args:
        strategies: Arrival process and aggregator, set up.
    """

    def __init__(self, strategies: Sequence[object]) -> None:
        self._before = [(strategy, _plain_attributes(strategy)) for strategy in strategies]

    def warn(self) -> None:
        """Warn, once a run, of a strategy that has changed and does not say what is to be kept."""
        for strategy, before in self._before:
            now = _plain_attributes(strategy)
            if now != before and now is not None and before is not None:
                changed = sorted(name for name in now if now[name] != before.get(name))
                rank_zero_warn(
                    f"{type(strategy).__name__} changes {', '.join(changed)} as it goes and has no "
                    "state_dict and load_state_dict: a resumed run starts with what setup gives"
                )
        self._before.clear()


def _plain_attributes(strategy: object) -> dict[str, str] | None:
    """The plain attributes of a strategy, or None if it says itself what is to be kept."""
    kinds = (ArrivalProcess, Aggregator)
    if type(strategy).state_dict not in [kind.state_dict for kind in kinds]:  # type: ignore[attr-defined]
        return None
    plain = (bool, int, float, str, list, tuple, dict, set, np.ndarray, Tensor)
    return {name: repr(v) for name, v in vars(strategy).items() if isinstance(v, plain)}
