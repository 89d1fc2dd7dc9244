"""Warns of strategies whose attributes change in a run and are not kept in checkpoints."""

from __future__ import annotations

import dis
import pickle
from collections.abc import Iterator, Sequence
from types import FunctionType

from lightning.pytorch.utilities import rank_zero_warn

from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess
from fedlight.arrivals._state import Saved, saved_of
from fedlight.arrivals.wrapper import Wrapper
from fedlight.types import ClientUpdate


class StateWatch:
    """Compares the attributes of strategies at the start of a run with those at its checkpoints.

    Args:
        strategies: Arrival process and aggregator, set up.
    """

    def __init__(self, strategies: Sequence[object]) -> None:
        self._before = [(each, _attributes(each)) for each in _with_wrapped(strategies)]

    def warn(self) -> None:
        """Warn, once in a run, of a strategy whose state has changed and is in no checkpoint."""
        for strategy, before in list(self._before):
            now = {} if before is None else _attributes(strategy) or {}
            changed = sorted(name for name in now if now[name] != (before or {}).get(name))
            if changed:
                self._before.remove((strategy, before))
                missing = "has no state_dict and load_state_dict"
                if isinstance(strategy, Saved) and saved_of(type(strategy)):
                    missing = "does not list them in _saved_attributes"
                rank_zero_warn(
                    f"{type(strategy).__name__} changes {', '.join(changed)} during the run and "
                    f"{missing}: a resumed run starts from what setup assigns"
                )


def _with_wrapped(strategies: Sequence[object]) -> Iterator[object]:
    """The strategies, and the processes inside of wrappers."""
    for strategy in strategies:
        yield strategy
        while isinstance(strategy, Wrapper):
            strategy = strategy.arrivals
            yield strategy


def _attributes(strategy: object) -> dict[str, bytes] | None:
    """The attributes of a strategy, or None if it has a state_dict of its own."""
    kinds = (ArrivalProcess, Aggregator, Wrapper)
    if type(strategy).state_dict not in [kind.state_dict for kind in kinds]:  # type: ignore[attr-defined]
        return None
    among = set(vars(strategy))
    if isinstance(strategy, ArrivalProcess) and (saved := saved_of(type(strategy))):
        # Ours list what counts, and have besides what follows from it.
        among = _assigned_by_users(type(strategy)).difference(saved)
    found = {}
    for name, value in vars(strategy).items():
        if isinstance(value, ArrivalProcess) or name not in among:
            continue  # a process is watched by itself
        # Updates that an aggregator holds are kept by the server.
        compared = [] if _holds_updates(value) else value
        try:
            found[name] = pickle.dumps(compared)  # a generator and a deque have no telling repr
        except Exception:  # what cannot be pickled is not compared
            continue
    return found


def _assigned_by_users(kind: type) -> set[str]:
    """The attributes that the methods of classes outside this package assign, as ``self.count``."""
    return {
        str(step.argval)
        for each in kind.__mro__
        if each.__module__.partition(".")[0] != "fedlight"
        for method in vars(each).values()
        if isinstance(method, FunctionType)
        for step in dis.get_instructions(method)
        if step.opname == "STORE_ATTR"
    }


def _holds_updates(value: object) -> bool:
    return isinstance(value, ClientUpdate) or (
        isinstance(value, list | tuple) and any(isinstance(each, ClientUpdate) for each in value)
    )
