"""Detects strategies whose state would be missing from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess


class StateWatch:
    """Compares the plain attributes of strategies at the start and at the first checkpoint.

    A strategy without `state_dict` whose attributes have changed would not resume correctly.

    Args:
        strategies: The arrival process and the aggregator, after their set-up.
    """

    def __init__(self, strategies: Sequence[object]) -> None:
        self._before = [(strategy, _plain_attributes(strategy)) for strategy in strategies]

    def warn(self) -> None:
        """Warn, once per run, of strategies that have changed and define no `state_dict`."""
        for strategy, before in self._before:
            now = _plain_attributes(strategy)
            if now != before and now is not None and before is not None:
                changed = sorted(name for name in now if now[name] != before.get(name))
                rank_zero_warn(
                    f"{type(strategy).__name__} changes {', '.join(changed)} during the run and "
                    "has no state_dict and load_state_dict: a resumed run starts from what setup "
                    "assigns"
                )
        self._before.clear()


def _plain_attributes(strategy: object) -> dict[str, str] | None:
    """Return the plain attributes of a strategy, or None if it defines `state_dict`."""
    kinds = (ArrivalProcess, Aggregator)
    if type(strategy).state_dict not in [kind.state_dict for kind in kinds]:  # type: ignore[attr-defined]
        return None
    plain = (bool, int, float, str, list, tuple, dict, set, np.ndarray, Tensor)
    return {name: repr(v) for name, v in vars(strategy).items() if isinstance(v, plain)}
