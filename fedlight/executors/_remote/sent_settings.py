"""Settings in another process that has a copy of the module and of the local optimizer."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

from lightning import LightningModule

from fedlight._module.settings import (
    LiveSettings,
    Settings,
    changed,
    differences,
)
from fedlight._module.values import MISSING


def to_bytes(live: LiveSettings, settings: Settings, cloudpickle: Any) -> bytes:
    """What differs in settings from those of the start, with which the copy was made.

    Args:
        live: The settings of the run.
        settings: The settings to be sent.
        cloudpickle: Ray's own pickle, which sends functions and classes of scripts, too.

    Raises:
        ValueError: An attribute cannot be sent; the error names it.
    """
    if settings.sent is None:
        assert live.start is not None
        start = live.start
        changes = [tuple(each) for each in differences(start, settings)]
        tensors = [
            (tensor, value)
            for tensor, value in settings.tensors.items()
            if value is not None and value is not start.tensors.get(tensor)
        ]
        names = {id(named): name for name, named in _names(live).items()}

        class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # Ray has no types for it
            def persistent_id(self, each: Any) -> Any:
                return names.get(id(each))

        def dumped(content: Any) -> bytes:
            buffer = io.BytesIO()
            Pickler(buffer).dump(content)
            return buffer.getvalue()

        try:
            settings.sent = dumped((changes, tensors))
        except Exception as error:
            found = _unsent(changes, live, dumped)
            raise ValueError(
                f"a hook has changed {', '.join(found)} of {type(live.module).__name__}, which "
                f"cannot be sent to a Ray actor ({error}): write executor='sequential', or make it "
                "in the step"
            ) from error
    return settings.sent


def from_bytes(live: LiveSettings, sent: bytes) -> Settings:
    """The settings that `to_bytes` made bytes of, for the copies in this process."""
    assert live.start is not None
    names = _names(live)

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, name: Any) -> Any:
            return names[name]

    changes, tensors = Unpickler(io.BytesIO(sent)).load()
    made = changed(live.start, changes)
    own = {tensor: value.to(tensor.device) for tensor, value in tensors}
    return Settings(made.layers, {**made.tensors, **own}, like=None if own else made)


def _names(live: LiveSettings) -> Mapping[Any, Any]:
    """The objects of module and local optimizer that their copies have, too, by their names."""
    module: LightningModule = live.module
    return {
        ("missing",): MISSING,
        ("trainer",): module._trainer,
        ("optimizer",): live.optimizer,
        **{("tensor", name): tensor for name, tensor in live.named_tensors()},
        **{("layer", path): layer for layer, path in live.paths.items()},
    }


def _unsent(changes: Iterable[Any], live: LiveSettings, dumped: Any) -> list[str]:
    """The names of the attributes that cannot be sent."""
    found = []
    for layer, key, value in changes:
        parts = value.items() if key == "_modules" else [(key, value)]
        for name, part in parts:
            try:
                dumped(part)
            except Exception:  # a value may raise anything
                found.append(f"{live.paths.get(layer, type(layer).__name__)}.{name}".lstrip("."))
    return found
