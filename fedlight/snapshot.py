"""A run as a value: everything that it needs to go on from between two events."""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
import numpy as np
import torch
from lightning.fabric.loggers.csv_logs import CSVLogger
from lightning.fabric.loggers.tensorboard import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from torch import Tensor

from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess
from fedlight.checkpoint import FORMAT, CheckpointError, differences
from fedlight.types import FailureRecord, RoundRecord, UpdateRecord

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.trainer import FedTrainer
    from fedlight.types import Federation


def own_state(strategy: object) -> dict[str, str] | None:
    """The plain attributes of a strategy, or None where it says itself what is to be kept."""
    kinds = (ArrivalProcess, Aggregator)
    if type(strategy).state_dict not in [kind.state_dict for kind in kinds]:  # type: ignore[attr-defined]
        return None
    plain = (bool, int, float, str, list, tuple, dict, set, np.ndarray, Tensor)
    return {name: repr(v) for name, v in vars(strategy).items() if isinstance(v, plain)}


def _warn_of_lost_state(trainer: FedTrainer) -> None:
    for strategy, before in trainer._own_states:
        now = own_state(strategy)
        if now != before and now is not None and before is not None:
            changed = sorted(name for name in now if now[name] != before.get(name))
            rank_zero_warn(
                f"{type(strategy).__name__} changes {', '.join(changed)} as it goes and has no "
                "state_dict and load_state_dict: a resumed run starts with what setup gives"
            )
    trainer._own_states.clear()  # once a run


def take_snapshot(trainer: FedTrainer) -> dict[str, Any]:
    """The run of a trainer between two events, as tensors and plain data.

    The random streams need no state: each is named by the seed and by what it is for.
    """
    module = trainer.module
    _warn_of_lost_state(trainer)
    return {
        "state_dict": {name: value.cpu() for name, value in module.state_dict().items()},
        "hyper_parameters": _plain_hparams(module),
        "pytorch-lightning_version": lightning.__version__,
        "epoch": 0,
        "global_step": trainer.version,
        "fedlight": {
            "format": FORMAT,
            "federation": describe(trainer),
            "server": trainer._server.state_dict(),
            "schedule": trainer._schedule.state_dict(),
            "history": [_record_to_list(record) for record in trainer.history],
            "metrics": dict(trainer._latest),
            "callbacks": [[key, c.state_dict()] for key, c in _keyed(trainer.callbacks)],
            "loggers": [[key, _position(each)] for key, each in _keyed(trainer.loggers)],
        },
    }


def restore_snapshot(trainer: FedTrainer, content: dict[str, Any], path: str) -> None:
    """Put a trainer that is set up for ``fit`` where a snapshot was taken.

    Raises:
        CheckpointError: The snapshot is one of another federation; names what differs.
    """
    saved = content["fedlight"]
    different = differences(saved["federation"], describe(trainer))
    if different:
        raise CheckpointError(f"{path!r} is of another federation: {'; '.join(different)}")
    _restore_frozen(trainer.module, content["state_dict"], path)
    trainer._server.load_state_dict(saved["server"])
    trainer._schedule.load_state_dict(saved["schedule"])
    trainer.history[:] = [_record_from_list(fields) for fields in saved["history"]]
    trainer._latest.update(saved["metrics"])
    states = dict(map(tuple, saved["callbacks"]))
    for key, callback in _keyed(trainer.callbacks):
        if key in states:
            callback.load_state_dict(states[key])
    positions = dict(map(tuple, saved["loggers"]))
    for key, logger in _keyed(trainer.loggers):
        if key in positions:
            _continue(logger, positions[key], trainer.history)


def _restore_frozen(module: LightningModule, tensors: dict[str, Tensor], path: str) -> None:
    """What does not take part in the federation belongs to the model all the same."""
    for name, param in module.named_parameters():
        if not param.requires_grad:
            kept = tensors.get(name)
            if kept is None or kept.shape != param.shape:
                raise CheckpointError(
                    f"{path!r} has no parameter {name!r} of shape {tuple(param.shape)}"
                )
            param.data.copy_(kept)


def describe(trainer: FedTrainer) -> dict[str, Any]:
    """What two runs must have in common for one to go on from the other's checkpoint."""
    federation: Federation = trainer._federation
    state = trainer._module_state
    sizes = hashlib.blake2b(federation.num_examples.tobytes(), digest_size=8).hexdigest()
    return {
        "number of clients": federation.num_clients,
        "examples of the clients (hash)": sizes,
        "batch_size": federation.batch_size,
        "seed": federation.seed,
        "parameters": _shapes(state.param_layout),
        "buffers": _shapes(state.buffer_layout) + _shapes(state.counter_layout),
        **describe_strategies(trainer),
    }


def describe_strategies(trainer: FedTrainer) -> dict[str, str]:
    """The strategies in words, by the names of the trainer's arguments."""
    return {
        "arrivals": _named(trainer.arrivals),
        "aggregator": _named(trainer.aggregator),
        "local_optimizer": _named(trainer.local_optimizer),
    }


def _named(strategy: object) -> str:
    """The strategy in words, without the addresses of the functions in it."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(strategy))


def _shapes(layout: Any) -> list[str]:
    return [
        f"{name} {tuple(shape)} {layout.dtype}"
        for name, shape in zip(layout.names, layout.shapes, strict=True)
    ]


def _plain_hparams(module: LightningModule) -> dict[str, Any]:
    """The module's hyper-parameters, as far as a file may hold them without running code."""
    plain, left_out = {}, []
    for name, value in module.hparams.items():
        buffer = io.BytesIO()
        try:
            torch.save(value, buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except Exception:  # whatever cannot be written or read so is left out
            left_out.append(name)
        else:
            plain[name] = value
    if left_out:
        rank_zero_warn(
            f"the hyper-parameters {left_out} of {type(module).__name__} are no plain data and are "
            "left out of the checkpoint; give them to load_from_checkpoint"
        )
    return plain


def _keyed(objects: Sequence[Any]) -> Iterable[tuple[str, Any]]:
    """Objects with the name of their class and their number in it, which survive added ones."""
    seen: Counter[str] = Counter()
    for each in objects:
        name = type(each).__qualname__
        yield f"{name}-{seen[name]}", each
        seen[name] += 1


def _position(logger: Any) -> dict[str, Any]:
    """Where a logger writes; everything logged so far is on the disk afterwards."""
    if isinstance(logger, TensorBoardLogger):
        logger.experiment.flush()
        return {"root_dir": str(logger.root_dir), "version": logger.version}
    if hasattr(logger, "save"):
        logger.save()
    if isinstance(logger, CSVLogger):
        return {"root_dir": str(logger.root_dir), "version": logger.version}
    return {}


def _continue(logger: Any, position: dict[str, Any], history: Sequence[RoundRecord]) -> None:
    """Let a logger go on in the same place; points later than the checkpoint are struck out."""
    if not isinstance(logger, TensorBoardLogger | CSVLogger) or logger._experiment is not None:
        return
    if str(logger.root_dir) != position["root_dir"]:
        return
    if logger._version is None:  # the user left it open
        logger._version = position["version"]
    if logger._version != position["version"]:
        return
    if isinstance(logger, CSVLogger):
        Path(logger.log_dir, "metrics.csv").unlink(missing_ok=True)
        with warnings.catch_warnings():
            # It warns that it will delete what is there; the rows are written again below.
            warnings.filterwarnings("ignore", ".*exists and is not empty.*", UserWarning)
            logger.experiment  # noqa: B018  # made here
        for record in history:
            logger.log_metrics(dict(record.metrics), step=record.version)
        return
    start = Event(session_log=SessionLog(status=SessionLog.START))
    for _ in range(2):  # a running TensorBoard takes the first one as the run's beginning
        logger.experiment._get_file_writer().add_event(start, step=len(history) + 1)


def _record_to_list(record: RoundRecord) -> list[Any]:
    return [
        record.version,
        record.now,
        record.metrics,
        list(map(list, record.updates)),
        list(map(list, record.dropped)),
        list(map(list, record.failures)),
    ]


def _record_from_list(fields: list[Any]) -> RoundRecord:
    version, now, metrics, updates, dropped, failures = fields
    return RoundRecord(
        version,
        now,
        dict(metrics),
        [UpdateRecord(*update) for update in updates],
        [UpdateRecord(*update) for update in dropped],
        [FailureRecord(*failure) for failure in failures],
    )
