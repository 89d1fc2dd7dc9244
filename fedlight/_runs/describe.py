"""The description of a federation: a run resumes only from a checkpoint with the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from fedlight._runs.identity import in_words
from fedlight._runs.own_settings import differing, differing_optimizers, own_settings
from fedlight._runs.setting import Setting
from fedlight._support.flat_layout import FlatLayout
from fedlight.checkpoint import CheckpointError
from fedlight.parameters import ModuleState
from fedlight.types import Federation

OPTIMIZER = "optimizer of the module"
_OWN = "attributes of own strategies"


def numbers(federation: Federation) -> dict[str, int]:
    """The numbers of a federation that loggers get in addition to the strategies."""
    return {
        "clients": federation.num_clients,
        "batch_size": federation.batch_size,
        "seed": federation.seed,
    }


def describe_federation(setting: Setting, federation: Federation, data: str) -> dict[str, Any]:
    """The description of a run before its module is read.

    Args:
        setting: The setting of the run.
        federation: The clients.
        data: The `data_fingerprint`.
    """
    sizes = hashlib.blake2b(federation.num_examples.tobytes(), digest_size=8).hexdigest()
    limit = setting.max_update_norm
    return {
        "number of clients": federation.num_clients,
        "examples of the clients (hash)": sizes,
        "data (hash)": data,
        "batch_size": federation.batch_size,
        "seed": federation.seed,
        **{name: in_words(each) for name, each in setting.strategies.items()},
        "on_client_failure": setting.on_client_failure,
        "max_update_norm": limit,
        "on_large_update": None if limit is None else setting.on_large_update,
        "precision": setting.precision,
        _OWN: own_settings(setting.strategies),
    }


def describe_module(state: ModuleState) -> dict[str, Any]:
    """Names, shapes and types of the tensors that the server averages."""
    return {
        "parameters": _shapes(state.param_layout),
        "buffers": _shapes(state.buffer_layout) + _shapes(state.counter_layout),
    }


def check_same(saved: Mapping[str, Any], present: Mapping[str, Any], path: str) -> None:
    """Refuse a checkpoint of another federation.

    Args:
        saved: The description in the checkpoint.
        present: That of the run.
        path: The name of the checkpoint.

    Raises:
        CheckpointError: They differ; the error names what differs.
    """
    saved, present = dict(saved), dict(present)
    if saved.get("on_client_failure") == "raise":
        # Nothing has failed so far, or the run would have ended. Failures to come may therefore
        # be treated in another way: the result is that of a run which always treated them so.
        saved["on_client_failure"] = present.get("on_client_failure")
    told = [
        *differing(saved.pop(_OWN, {}), present.pop(_OWN, {})),
        *differing_optimizers(saved.pop(OPTIMIZER, {}), present.pop(OPTIMIZER, {})),
    ]
    saved.setdefault("precision", present.get("precision"))  # one of 0.2 does not name it
    different = [
        f"{name} was {saved.get(name)!r}, is {present.get(name)!r}"
        for name in present | saved
        if saved.get(name) != present.get(name)
    ]
    if different or told:
        words = "; ".join(different + told)
        raise CheckpointError(f"{path!r} is of another federation: {words}")


def _shapes(layout: FlatLayout) -> list[str]:
    return [
        f"{name} {tuple(shape)} {layout.dtype}"
        for name, shape in zip(layout.names, layout.shapes, strict=True)
    ]
