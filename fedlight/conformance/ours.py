"""Plays the cases on fedlight itself, through its public API."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Literal

import torch
from lightning import LightningModule
from torch.utils.data import TensorDataset

from fedlight import __version__, methods
from fedlight import aggregators as agg
from fedlight import arrivals as arr
from fedlight import local_optimizers as opt
from fedlight.aggregators import staleness as stale
from fedlight.arrivals import ArrivalProcess, ReplayArrivals, ReplayEvent
from fedlight.arrivals.windows import Window
from fedlight.callbacks import Callback
from fedlight.channel import Channel
from fedlight.conformance.adapter import NotImplementedHere, Outcome
from fedlight.conformance.case import Case
from fedlight.data import FederatedDataModule
from fedlight.events import MAX_TICKS, TICKS_PER_UNIT, to_ticks
from fedlight.trainer import FedTrainer
from fedlight.types import ClientUpdate, Federation, Task

Spec = Mapping[str, Any]


@dataclass
class Fedlight:
    """The adapter for fedlight.

    Args:
        executor: The executor of the local runs.
        precision: Of models and data.
        replay: Whether to replay the updates of a timed case instead of letting the arrival
            process make them. Cases in which work is stopped, polled or cut cannot be replayed.
    """

    executor: str = "vectorized"
    precision: Literal["float64", "float32"] = "float64"
    replay: bool = False
    name: str = "fedlight"
    version: str = field(default=__version__)

    def play(self, case: Case) -> Outcome:
        """Run a case with a `FedTrainer`."""
        dtype: torch.dtype = getattr(torch, self.precision)
        watch = _Watch(case)
        trainer = FedTrainer(
            arrivals=_replayed(case) if self.replay else _process(case),
            aggregator=_aggregator(case),
            local_optimizer=_local_optimizer(case),
            channel=_channel(case),
            executor=self.executor,
            precision=f"{dtype.itemsize * 8}-true",
            max_time=case.until.get("time"),
            max_rounds=case.until.get("version"),
            accelerator="cpu",
            callbacks=watch,
            logger=False,
            enable_progress_bar=False,
        )
        data = [
            TensorDataset(
                *torch.tensor([[c.a] * c.num_examples, [c.c] * c.num_examples], dtype=dtype)
            )
            for c in case.clients
        ]
        module = _Quadratic(torch.tensor(case.x0, dtype=dtype), case.layers)
        with warnings.catch_warnings():
            # Advice to somebody who trains a model, such as that fast clients count for more.
            warnings.filterwarnings("ignore", "fedlight", UserWarning)
            trainer.fit(module, FederatedDataModule.from_client_datasets(data, batch_size=4))
        more: dict[str, Any] = {}
        if watch.shared:
            states = [trainer.client_state(client) for client in range(len(case.clients))]
            more["server_variates"] = watch.shared
            more["client_variates"] = [s.tolist() for s in states if s is not None]
        if watch.sent:
            more["sent"] = watch.sent
        return Outcome(watch.models, watch.times, _updates(trainer, watch), more)


class _Quadratic(LightningModule):
    """f_i(x) = mean over the examples of 1/2 * sum of a * (x - c)^2."""

    def __init__(self, start: torch.Tensor, layers: Sequence[Sequence[int]]) -> None:
        super().__init__()
        shapes = [torch.Size(shape) for shape in layers or [start.shape]]
        parts = torch.split_with_sizes(start, [shape.numel() for shape in shapes])
        self.layers = torch.nn.ParameterList(
            part.clone().view(shape) for part, shape in zip(parts, shapes, strict=True)
        )

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> Any:
        a, c = batch
        x = torch.cat([layer.flatten() for layer in self.layers])
        loss = (a * (x - c) ** 2).sum(dim=-1).mean() / 2
        self.log("train_loss", loss)  # rules that choose clients read it
        return loss


class _Watch(Callback):
    """Records each version's model, time, SCAFFOLD's c and what is sent, and the unused updates."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.models: list[list[float]] = []
        self.times: list[float] = []
        self.shared: list[list[float]] = []
        self.sent: list[list[float]] = []
        self.unused: list[dict[str, Any]] = []
        self.first_half: dict[int, Task] = {}  # by client: that of its task in flight
        self.whole: dict[int, dict[str, Any]] = {}  # by serial: how a refreshed task began

    def on_dispatch(self, trainer: FedTrainer, module: LightningModule, task: Task) -> None:
        if task.is_first_half:
            self.first_half[task.client_id] = task
        elif task.is_second_half:
            first = self.first_half[task.client_id]
            self.whole[task.serial] = {
                "pulled_version": first.pulled_version,
                "dispatched_at": first.dispatched_at,
                "steps": first.num_steps + task.num_steps,
            }

    def on_round_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        self.models.append(trainer.state.params.tolist())
        self.times.append(trainer.now)
        if trainer.state.shared is not None:
            self.shared.append(trainer.state.shared.tolist())
        sent = trainer.aggregator.outgoing(trainer.state)
        if sent is not None:
            self.sent.append(sent.tolist())

    def on_drop(self, trainer: FedTrainer, module: LightningModule, update: ClientUpdate) -> None:
        if update.task.is_first_half:
            return
        self._add(update.task, "dropped", update.task.arrives_at)
        self.unused[-1]["staleness"] = trainer.version - update.pulled_version
        self.unused[-1]["steps"] = update.num_steps

    def on_cancel(self, trainer: FedTrainer, module: LightningModule, task: Task) -> None:
        # A client without a whole step at its deadline has nothing to send.
        late = "deadline" in self.case.process
        self._add(task, "dropped" if late else "stopped", trainer.now)

    def on_client_failure(
        self, trainer: FedTrainer, module: LightningModule, task: Task, error: BaseException
    ) -> None:
        self._add(task, "stopped", trainer.now)

    def refreshed(self, serial: int, made: int) -> dict[str, Any]:
        """How a refreshed task that was used began; empty for another one."""
        began = self.whole.get(serial)
        return {} if began is None else began | {"staleness": made - 1 - began["pulled_version"]}

    def is_cut(self, client: int, steps: int) -> bool:
        """Whether a client had to send less than it was to compute."""
        planned = self.case.clients[client].steps
        return "deadline" in self.case.process and planned is not None and steps < planned

    def _add(self, task: Task, outcome: str, ended_at: float) -> None:
        row = {
            "client": task.client_id,
            "ended_at": ended_at,
            "pulled_version": task.pulled_version,
            "outcome": outcome,
            "made_version": None,
        }
        if self.case.kind == "timed":  # else the case does not say when
            row["dispatched_at"] = task.dispatched_at
        self.unused.append(row)


def _updates(trainer: FedTrainer, watch: _Watch) -> list[dict[str, Any]]:
    """All updates: those of the history, those not used, and those left in the buffer."""
    found = [
        {
            "client": update.client_id,
            "ended_at": update.arrived_at,
            "aggregated_at": record.now,
            "pulled_version": update.pulled_version,
            "dispatched_at": update.dispatched_at,
            "steps": update.num_steps,
            "staleness": update.staleness,
            "weight": update.weight,
            "made_version": record.version,
            "outcome": "cut" if watch.is_cut(update.client_id, update.num_steps) else "used",
        }
        | watch.refreshed(update.serial, record.version)
        for record in trainer.history
        for update in record.updates
    ]
    left = [
        {"client": held.client_id, "ended_at": held.task.arrives_at, "outcome": "left"}
        for held in trainer.aggregator.held
    ]
    return [*found, *watch.unused, *left]


def _aggregator(case: Case) -> agg.Aggregator:
    spec = case.method
    name = spec["name"]
    if name in _BUNDLES:
        return _BUNDLES[name](spec)
    called = _CALLED_OTHERWISE.get(name, name.replace("_", ""))
    classes = {each.lower(): each for each in agg.__all__}
    if called not in classes:
        raise NotImplementedHere(f"no aggregator for the method {name!r}")
    kind = getattr(agg, classes[called])
    given = {each: spec[each] for each in signature(kind).parameters if each in spec}
    if name in _OTHERWISE:
        given |= _OTHERWISE[name](spec)
    aggregator: agg.Aggregator = kind(**given)
    return aggregator


def _alpha(spec: Spec) -> Any:
    if "alpha_decay" not in spec:
        return spec["alpha"]
    # The update that makes version `epoch` is the first with the smaller alpha.
    epoch, factor = spec["alpha_decay"]["epoch"], spec["alpha_decay"]["factor"]
    return lambda version: spec["alpha"] * (factor if version + 1 >= epoch else 1.0)


def _staleness(spec: Spec) -> Any:
    if "staleness" not in spec:
        return None
    given = dict(spec["staleness"])
    return getattr(stale, given.pop("kind").capitalize())(**given)


_CALLED_OTHERWISE = {
    "delay_adaptive": "fedbuff",
    "generalized_async": "generalizedasyncsgd",
    "feddyn": "feddynserver",
}
"""The classes, in small letters, of methods that the cases call by another name."""

_OTHERWISE: dict[str, Callable[[Spec], dict[str, Any]]] = {
    "fedasync": lambda spec: {"alpha": _alpha(spec), "staleness": _staleness(spec)},
    "fedbuff": lambda spec: {"staleness": _staleness(spec)},
    "delay_adaptive": lambda spec: {"buffer_size": 1, "staleness": stale.DelayAdaptive(spec["c"])},
    "ringmaster": lambda spec: {"max_staleness": spec["R"] - 1},
    "fedat": lambda spec: {"client_weights": spec["within"]},
    "fedcompass": lambda spec: {"staleness": _staleness(spec)},
}
"""Arguments that a case names or writes in another way than the class."""


def _diloco(spec: Spec) -> agg.Aggregator:
    made = methods.diloco(lr=None, server_lr=spec["server_lr"], momentum=spec["momentum"])
    aggregator: agg.Aggregator = made["aggregator"]
    return aggregator


def _cgad(spec: Spec) -> agg.Aggregator:
    if spec["eps"] != 1e-8:
        raise NotImplementedHere("the eps of cgad is 1e-8")
    gate, betas = _staleness(spec), tuple(spec["betas"])
    made = methods.cgad(lr=None, gate=gate, server_lr=spec["server_lr"], betas=betas)
    aggregator: agg.Aggregator = made["aggregator"]
    return aggregator


_BUNDLES: dict[str, Callable[[Spec], agg.Aggregator]] = {
    "diloco": _diloco,
    "sparse_loco": _diloco,
    "cgad": _cgad,
}
"""Methods that are a class of another name with an optimizer on the server."""


def _channel(case: Case) -> Channel | None:
    """What an update goes through on its way to the server; None for nothing."""
    spec = case.method
    if spec["name"] != "sparse_loco":
        return None
    given = {"share": spec["k"] / len(case.x0), "decay": spec["decay"]}
    channel: Channel = methods.sparse_loco(lr=None, **given)["channel"]
    return channel


def _local_optimizer(case: Case) -> opt.LocalOptimizer:
    local = dict(case.local)
    if isinstance(local["lr"], Mapping):
        given = dict(local["lr"])
        if given.pop("kind") != "warmup_cosine":
            raise NotImplementedHere(f"no local rate of the kind {local['lr']['kind']!r}")
        local["lr"] = opt.WarmupCosine(**given)
    fresh = local.pop("fresh", None)
    if "betas" in local:
        local["betas"] = tuple(local["betas"])
    kinds: dict[str, Callable[..., opt.LocalOptimizer]] = {
        "sgd": opt.LocalSGD,
        "fedprox": opt.FedProx,
        "scaffold": opt.Scaffold,
        "feddyn": opt.FedDyn,
        "adamw": opt.LocalAdamW,
    }
    rule = kinds[local["rule"]](**{name: local[name] for name in local if name != "rule"})
    if fresh is not None:
        rule = opt.FreshModel(rule, **fresh)
    if case.method["name"] == "quafl":
        corrected = case.method.get("lr_correction", False)
        rule = opt.OwnModel(rule, case.process["polls"], lr_correction=corrected)
    return rule


def _process(case: Case) -> ArrivalProcess:
    processes: dict[str, Callable[[Case], ArrivalProcess]] = {
        "replay": _replayed,
        "ticks": lambda case: arr.CommunicationPattern.from_table(case.process["communicates"]),
        "always_on": _always_on,
        "rounds": _rounds,
        "pipeline": _pipeline,
        "polled": _polled,
        "tiers": _tiers,
        "trials": _trials,
        "regions": _regions,
        "compass": _compass,
        "chosen": _chosen,
    }
    process = processes[case.process["name"]](case)
    # In `regions` it is not about failures: it is the transfer to a region.
    down = None if case.process["name"] == "regions" else case.process.get("down")
    return process if down is None else _Failures(process, down)


class _Failures(arr.Failures):
    """The times at which clients are down are those of the case instead of being drawn."""

    def __init__(
        self, arrivals: ArrivalProcess, down: Sequence[Sequence[tuple[float, float]]]
    ) -> None:
        super().__init__(arrivals, mtbf=1.0, mttr=1.0)
        self.down = down

    def _draw(self, client: int, known: list[Window]) -> None:
        starts, ends = [0.0], []
        for fails, repaired in self.down[client]:
            ends.append(fails)
            starts.append(repaired)
        ends.append(MAX_TICKS / TICKS_PER_UNIT)
        known += [Window(to_ticks(a), to_ticks(b)) for a, b in zip(starts, ends, strict=True)]


def _polled(case: Case) -> ArrivalProcess:
    return arr.PolledArrivals(
        per_poll=case.process["polls"],
        interval=case.process["interval"],
        step_durations=arr.FixedDurations([c.step_time or 0.0 for c in case.clients]),
        max_steps=case.process["max_steps"],
    )


def _replayed(case: Case) -> ArrivalProcess:
    """The events of the case, or those of a timed one with their times of dispatch."""
    events = [
        ReplayEvent(event.client, event.pulled_version, event.time, event.steps)
        for event in case.events
    ]
    if not events:
        updates = case.expected.get("updates", ())
        process = case.process
        name = process["name"]
        always_on = name == "always_on" and process["restart_after"] is None
        if not (always_on or name in ("chosen", "pipeline")) or "stops" in case.topics:
            raise NotImplementedHere("work that is stopped, polled, cut or planned is not replayed")
        if "refresh" in process:
            raise NotImplementedHere("tasks that are refreshed are not replayed")
        events = [
            ReplayEvent(
                client=update["client"],
                pulled_version=update["pulled_version"],
                time=update["ended_at"],
                num_steps=update["steps"],
                dispatched_at=update["dispatched_at"],
            )
            for update in updates
        ]
    durations = [client.compute_time for client in case.clients]
    known = [duration for duration in durations if duration is not None]
    by_rounds = case.method["name"] == "fedavg" and (
        "per_round" in case.process or "staleness_bound" in case.process
    )
    return ReplayArrivals(
        events,
        durations=known if len(known) == len(durations) else None,
        round_ends=case.expected["times"] if by_rounds else (),
    )


def _always_on(case: Case) -> ArrivalProcess:
    clock = arr.ContinuousArrivals(
        _durations(case),
        local_steps=_steps(case),
        resume=case.process["resume"],
        restart_after=case.process["restart_after"],
    )
    refresh = case.process.get("refresh")
    return clock if refresh is None else arr.RefreshedTasks(clock, refresh)


def _compass(case: Case) -> ArrivalProcess:
    """Each client is a class of its own, with step times that change."""
    each: list[tuple[float, arr.DurationModel]] = []
    for client in case.clients:
        step_time = client.step_time or 0.0
        factors = [(start, time / step_time) for start, time in client.step_times]
        durations = arr.ChangingDurations(arr.StepDurations(step_time), factors)
        each.append((1 / len(case.clients), durations))
    options = {name: value for name, value in case.process.items() if name != "name"}
    return arr.CompassArrivals(arr.MixedDurations(each), **options)


def _rounds(case: Case) -> ArrivalProcess:
    cohorts = case.process["cohorts"]
    options: dict[str, Any] = {}
    if "first" in case.process:
        options["over_select"] = len(cohorts[0]) - case.process["first"]
    if "deadline" in case.process:
        options |= {"timeout": case.process["deadline"], "late": "cut"}
    return arr.SynchronousArrivals(cohorts, _durations(case), _steps(case), **options)


class _Pipeline(arr.ConstantStaleness):
    """The order of the clients is that of the case instead of being drawn."""

    order: Sequence[int] = ()

    def setup(self, federation: Federation) -> None:
        super().setup(federation)
        self._order = list(self.order)


def _pipeline(case: Case) -> ArrivalProcess:
    made = _Pipeline(case.process["tau"], case.process["per_round"], _steps(case))
    made.order = case.process["order"]
    return made


def _tiers(case: Case) -> ArrivalProcess:
    # More rounds than any tier has time for.
    rounds = len(case.expected["models"]) + 1
    tiers = {
        f"tier {place}": arr.SynchronousArrivals([clients] * rounds, _durations(case), _steps(case))
        for place, clients in enumerate(case.process["tiers"])
    }
    return arr.Tiers(tiers)


def _trials(case: Case) -> ArrivalProcess:
    process = case.process
    return arr.TrialRounds(
        _Listed(process["durations"]), process["allotted"], process["trials"], _steps(case)
    )


class _Listed(arr.DurationModel):
    """The durations of each client's tasks, one after another."""

    uses_rng = False

    def __init__(self, durations: Sequence[Sequence[float]]) -> None:
        self.durations = durations

    def check(self, federation: Federation) -> None:
        """Start with the first of each."""
        self._left = [iter(each) for each in self.durations]

    def draw(self, rng: Any, client_id: int, num_steps: int, *others: Any) -> float:
        """The next one; beyond the last round there is none that counts."""
        return next(self._left[client_id], 1.0)


def _regions(case: Case) -> ArrivalProcess:
    spec = case.process
    times, steps = _durations(case).durations, _steps(case).num_steps
    members = {f"region {place}": clients for place, clients in enumerate(spec["regions"])}
    processes = {
        name: arr.ContinuousArrivals(
            arr.FixedDurations([times[client] for client in clients]),
            local_steps=arr.PerClientSteps([steps[client] for client in clients]),
        )
        for name, clients in members.items()
    }
    ways = {way: dict(zip(members, spec[way], strict=True)) for way in ("up", "down", "within")}
    return arr.Regions(processes, members, spec["arrivals_per_send"], **ways)


class _Oort(arr.Oort):
    """Takes new clients in the order of the case instead of drawing them."""

    order: Sequence[int] = ()

    def _explore(self, new: Sequence[int], number: int, rng: Any) -> list[int]:
        return [client for client in self.order if client in new][:number]


class _Pisces(arr.Pisces):
    """Takes new clients in the order of the case instead of drawing them."""

    order: Sequence[int] = ()

    def _explore(self, new: Sequence[int], number: int, rng: Any) -> list[int]:
        return [client for client in self.order if client in new][:number]


def _chosen(case: Case) -> ArrivalProcess:
    process, rule = case.process, dict(case.process["rule"])
    name, order = rule.pop("name"), rule.pop("new", ())
    times, steps = _durations(case), _steps(case)
    if "per_round" in process:
        more = process.get("over_select")
        inner: ArrivalProcess = arr.SynchronousArrivals(process["per_round"], times, steps, more)
    else:
        places, resume = process["concurrency"], process["resume"]
        inner = arr.ContinuousArrivals(times, places, resume=resume, local_steps=steps)
    if name == "power_of_choice":
        return arr.PowerOfChoice(inner, **rule)
    made: _Oort | _Pisces
    if name == "oort":
        made = _Oort(inner, **rule)
    else:
        made = _Pisces(inner, **rule, staleness_bound=process.get("staleness_bound"))
    made.order = order
    return made


def _durations(case: Case) -> arr.FixedDurations:
    times = [
        client.compute_time or (client.step_time or 0.0) * (client.steps or 1)
        for client in case.clients
    ]
    return arr.FixedDurations([round(time, 9) for time in times])


def _steps(case: Case) -> arr.PerClientSteps:
    return arr.PerClientSteps([client.steps or 1 for client in case.clients])
