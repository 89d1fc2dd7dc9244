"""What a user can get wrong, and the sentence that each mistake gets.

Every row is a call, the exception that it raises, and a part of its message. The calls are made in
a namespace that holds all public names and a few small things.
"""

import inspect
import re

import datasets
import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.utils.data import TensorDataset

import data_partitioners
import fedlight
import fedlight.aggregators
import fedlight.aggregators.staleness
import fedlight.arrivals
import fedlight.callbacks
import fedlight.executors
import fedlight.local_optimizers
import fedlight.models
from fedlight import FederatedDataModule, compare
from fedlight.aggregators import FedAvg
from fedlight.arrivals import ArrivalProcess, UniformArrivals
from fedlight.callbacks import ClientEvaluation, EventLog, TensorBoardMetrics
from fedlight.executors import ClientError
from tests.boring import Boring, Point, classes, points, trainer

NAMES = {"classes": classes, "points": points, "trainer": trainer, "torch": torch}
for module in (
    fedlight,
    data_partitioners,
    fedlight.aggregators,
    fedlight.aggregators.staleness,
    fedlight.arrivals,
    fedlight.callbacks,
    fedlight.executors,
    fedlight.local_optimizers,
    fedlight.models,
):
    NAMES.update({name: getattr(module, name) for name in getattr(module, "__all__", dir(module))})
TABLE = datasets.Dataset.from_dict({"x": [0.0, 1.0, 2.0, 3.0], "y": [0, 1, 0, 1]})
NAMES.update(
    table=TABLE,
    clock=NAMES["ContinuousArrivals"](NAMES["FixedDurations"]([1.0, 2.0])),
    rounds=NAMES["UniformArrivals"](2),
    iid=NAMES["IidPartitioner"](2),
    two=[TensorDataset(torch.ones(2, 1)), TensorDataset(torch.ones(3, 1))],
)


class Manual(Point):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Stepless(LightningModule):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))


class Empty(Point):
    def __init__(self):
        super().__init__()
        del self.w


class Frozen(Point):
    def __init__(self):
        super().__init__()
        self.w.requires_grad_(False)


class Complex(Point):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.complex64))


class TwoOptimizers(Point):
    def configure_optimizers(self):
        return [torch.optim.SGD([self.w], 0.1), torch.optim.SGD([self.w], 0.1)]


class NoOptimizer(Point):
    def configure_optimizers(self):
        return None


NAMES.update(
    Point=Point,
    Boring=Boring,
    Manual=Manual,
    Stepless=Stepless,
    Empty=Empty,
    Frozen=Frozen,
    Complex=Complex,
    TwoOptimizers=TwoOptimizers,
    NoOptimizer=NoOptimizer,
)

ROWS = [
    # --- FedTrainer ---
    ("trainer(arrivals=UniformArrivals)", TypeError, "arrivals must be an object, got the class"),
    (
        "FedTrainer(arrivals='uniform', aggregator=FedAvg(), max_rounds=1)",
        TypeError,
        "arrivals must be of type ArrivalProcess, got 'uni",
    ),
    ("trainer(aggregator='FedAvg')", TypeError, "aggregator must be of type Aggregator, got"),
    ("trainer(aggregator=FedAvg)", TypeError, "aggregator must be an object, got the class FedAvg"),
    ("trainer(local_optimizer='sgd')", TypeError, "local_optimizer must be of type LocalOptimizer"),
    ("trainer(executor='gpu')", ValueError, "executor must be one of 'auto', 'sequential'"),
    ("trainer(executor=3)", TypeError, "executor must be one of 'auto', 'sequential', 'vector"),
    ("trainer(max_rounds=0)", ValueError, "max_rounds must be at least 1, got 0"),
    ("trainer(max_rounds=2.5)", TypeError, "max_rounds must be an integer, got 2.5"),
    ("trainer(max_rounds=True)", TypeError, "max_rounds must be an integer, got True"),
    ("trainer(max_time=-1)", ValueError, "max_time must be larger than 0, got -1"),
    ("trainer(max_time=float('nan'))", ValueError, "max_time must be finite, got nan"),
    ("trainer(max_updates=0)", ValueError, "max_updates must be at least 1, got 0"),
    ("FedTrainer(arrivals=rounds, aggregator=FedAvg())", ValueError, "nothing would stop a run"),
    ("trainer(arrivals=clock)", ValueError, "has none: give the aggregator a buffer_size"),
    ("trainer(seed='x')", TypeError, "seed must be an integer, got 'x'"),
    ("trainer(seed=1.0)", TypeError, "seed must be an integer, got 1.0"),
    ("trainer(devices=2)", ValueError, "devices must be 1, got 2: all clients share one device"),
    ("trainer(check_val_every_n_rounds=0)", ValueError, "check_val_every_n_rounds must be at leas"),
    ("trainer(limit_val_batches=1.5)", ValueError, "must be a share in [0, 1] or a number of batc"),
    (
        "trainer(max_epochs=5)",
        TypeError,
        "FedTrainer does not take max_epochs=5: write max_rounds",
    ),
    ("trainer(max_round=5)", TypeError, "unexpected keyword argument 'max_round'; did you mean 'm"),
    ("trainer(on_client_failure='ignore')", ValueError, "must be one of 'raise', 'drop', 'retry'"),
    ("trainer(max_update_norm=0)", ValueError, "max_update_norm must be larger than 0, got 0"),
    (
        "trainer(channel=0.01)",
        TypeError,
        "channel must be a channel or a list of channels, got 0.01",
    ),
    (
        "trainer(channel=[0.01])",
        TypeError,
        "channel must hold channels only, got 0.01; for example",
    ),
    ("trainer(on_large_update='cut')", ValueError, "on_large_update must be one of 'clip', 'drop'"),
    ("trainer(callbacks='bar')", TypeError, "callbacks must be of type Callback, got 'bar'"),
    ("trainer(callbacks=ProgressBar)", TypeError, "callbacks must be an object, got the class"),
    ("trainer(logger='tensorboard')", TypeError, "logger must be of type Logger, got 'tensorb"),
    ("trainer(default_root_dir=3)", TypeError, "default_root_dir must be a path, got 3"),
    ("trainer(fast_dev_run=-1)", ValueError, "fast_dev_run must be 0 or larger, got -1"),
    ("trainer(accelerator='abacus')", ValueError, "abacus"),
    ("trainer(precision='7-bit')", ValueError, "7-bit"),
    # --- fit ---
    ("trainer().fit(Boring, classes())", TypeError, "module must be an object, got the class Bor"),
    (
        "trainer().fit(torch.nn.Linear(4, 3), classes())",
        TypeError,
        "must be a LightningModule, got",
    ),
    ("trainer().fit(Stepless(), points([1.0]))", ValueError, "Stepless has no training_step"),
    ("trainer().fit(Manual(), points([1.0]))", ValueError, "Manual uses manual optimization"),
    (
        "trainer().fit(Empty(), points([1.0], [2.0]))",
        ValueError,
        "Empty has no parameter with requires_gr",
    ),
    (
        "trainer().fit(Frozen(), points([1.0], [2.0]))",
        ValueError,
        "Frozen has no parameter with requires_",
    ),
    (
        "trainer().fit(Complex(), points([1.0], [2.0]))",
        ValueError,
        "'w' of Complex is complex (torch.comp",
    ),
    (
        "trainer(local_optimizer=None).fit(TwoOptimizers(), points([1.0], [2.0]))",
        ValueError,
        "optim",
    ),
    (
        "trainer(local_optimizer=None).fit(NoOptimizer(), points([1.0], [2.0]))",
        ValueError,
        "optimiz",
    ),
    (
        "trainer().fit(Boring(), table)",
        TypeError,
        "datamodule must be a FederatedDataModule, got Da",
    ),
    (
        "trainer().fit(Boring(), None)",
        TypeError,
        "wrap your data: FederatedDataModule(dataset, part",
    ),
    ("trainer().fit(Point(), points([1.0]))", ValueError, "per_round=2 is more than the 1 clients"),
    (
        "trainer().fit(Point(), points([1.0]), ckpt_path='x')",
        FileNotFoundError,
        "no checkpoint file",
    ),
    (
        "trainer().fit(Point(), points([1.0]), ckpt_path='last')",
        ValueError,
        "needs a FedCheckpoint",
    ),
    (
        "trainer(executor='vectorized', local_optimizer=None).fit(Point(), points([1.0], [2.0]))",
        ValueError,
        "ModuleOptimizer() works on one client at a time",
    ),
    (
        "trainer(arrivals=ContinuousArrivals(FixedDurations([1.0])), aggregator=FedBuff(1))"
        ".fit(Point(), points([1.0], [2.0]))",
        ValueError,
        "durations has 1 numbers",
    ),
    (
        "trainer(callbacks=FedCheckpoint('x', monitor='val_f1')).fit(Boring(), classes())",
        ValueError,
        "FedCheckpoint monitors 'val_f1', which was not logged",
    ),
    ("trainer().validate(Point())", ValueError, "validate needs a datamodule"),
    ("trainer().module", RuntimeError, "this trainer has no module yet; call fit("),
    ("trainer().save_checkpoint('x')", RuntimeError, "call fit(module, datamodule)"),
    ("trainer().fingerprint()", RuntimeError, "call fit(module, datamodule)"),
    # --- aggregators ---
    ("FedAvg(buffer_size=0)", ValueError, "buffer_size must be at least 1, got 0"),
    (
        "FedAvg(client_weights='size')",
        ValueError,
        "client_weights must be one of 'examples', 'unif",
    ),
    ("FedAvg(server_lr=0)", ValueError, "server_lr must be larger than 0, got 0"),
    ("FedAvg(server_lr='1')", TypeError, "server_lr must be a number or a function of the version"),
    (
        "FedAvg(server_optimizer=3)",
        TypeError,
        "server_optimizer must be a function of the parameter",
    ),
    ("FedAvg(2, server_lr=0.5, server_optimizer=torch.optim.SGD)", ValueError, "not both"),
    ("AFACD(buffer_size=1.5)", TypeError, "buffer_size must be an integer, got 1.5"),
    ("AFACS(memory_device='disk')", ValueError, "memory_device must be one of 'model', 'cpu'"),
    ("FedAsync(alpha=1.5)", ValueError, "alpha must lie between 0 and 1, got 1.5"),
    ("FedAsync(0.5, staleness='poly')", TypeError, "staleness"),
    ("FedAsync(0.5, max_staleness=-1)", ValueError, "max_staleness must be 0 or larger, got -1"),
    ("AsyncFedAvg(weights='fast')", ValueError, "weights must be one of 'time_based', 'identical'"),
    ("FedFix(interval=0)", ValueError, "interval must be larger than 0, got 0"),
    ("FedFix(interval=1e-12)", ValueError, "interval must be at least 1e-9"),
    ("FedBuff(buffer_size=None)", TypeError, "buffer_size must be an integer, got None"),
    ("PrivateSum(FedBuff(2), 0, 1.0)", ValueError, "noise_multiplier must be larger than 0, got 0"),
    ("PrivateSum(MIFA(2), 1.0, 1.0)", ValueError, "channel=GaussianNoise(…)"),
    ("PrivateSum(FedAvg(2), 1.0, 1.0)", ValueError, 'write client_weights="uniform"'),
    (
        "trainer(aggregator=PrivateSum(FedBuff(2), 1.0, 1.0), local_optimizer=Scaffold(0.1))",
        ValueError,
        "take for example LocalSGD(0.1), FedProx(…) or FedDyn(…)",
    ),
    (
        "privacy_report(clock, FedBuff(1), delta=1e-5, num_clients=2, max_rounds=1)",
        ValueError,
        "write PrivateSum(aggregator, …) or channel=GaussianNoise(…)",
    ),
    ("FedBuff(2, normalize='mean')", ValueError, "normalize must be one of 'buffer', 'weights'"),
    ("AsyncCommSGD(interval=-1.0)", ValueError, "interval must be larger than 0, got -1.0"),
    ("AREA(0)", ValueError, "buffer_size must be at least 1, got 0"),
    ("MIFA(memory_device='disk')", ValueError, "memory_device must be one of 'model', 'cpu'"),
    ("FedVARP(2, beta=2)", ValueError, "beta must lie between 0 and 1, got 2"),
    ("FADAS(2, betas=(0.9, 1.0))", ValueError, "betas must be smaller than 1, got (0.9, 1.0)"),
    ("Ringleader(memory_device='gpu')", ValueError, "memory_device must be one of 'model', 'cpu'"),
    ("MindFlayer(1, 2)", ValueError, "probabilities must lie between 0 and 1, got 2"),
    ("MindFlayer(1, 1, 'each')", ValueError, "equal must be one of 'trials', 'clients', got 'each"),
    ("FedBuffMA(0)", ValueError, "buffer_size must be at least 1, got 0"),
    ("FedBuffMA(2, momentum=1)", ValueError, "momentum must be smaller than 1, got 1"),
    ("DelayedNesterov(0)", ValueError, "period must be at least 1, got 0"),
    ("DelayedNesterov(2, c=1)", ValueError, "c must lie between 0 and 1/period = 0.5, got 1"),
    ("LookAhead(send='x')", ValueError, "send must be one of 'look_ahead', 'model', got 'x'"),
    ("HALoS(0)", ValueError, "period must be at least 1, got 0"),
    ("HALoS(momentum=1)", ValueError, "momentum must be smaller than 1, got 1"),
    ("HALoS(region_period=1.5)", TypeError, "region_period must be an integer, got 1.5"),
    ("HALoS(region_momentum=-0.1)", ValueError, "region_momentum must lie between 0 and 1, got"),
    ("HALoS(region_lr=0)", ValueError, "region_lr must be larger than 0, got 0"),
    ("HALoS(alpha=1.25)", ValueError, "alpha must lie between 0 and 1, got 1.25"),
    ("HALoS(summed='all')", ValueError, "summed must be one of 'since_return', 'since_send', got"),
    ("HALoS(send='sum')", ValueError, "send must be one of 'change', 'deltas', got 'sum'"),
    ("HALoS(at_return='x')", ValueError, "at_return must be one of 'keep', 'reset', got 'x'"),
    ("HeLoCo(beta=2)", ValueError, "beta must lie between 0 and 1, got 2"),
    (
        "FedCompass(average='mean')",
        ValueError,
        "average must be one of 'deltas', 'models', got 'me",
    ),
    ("FedCompass(client_weights=1)", ValueError, "client_weights must be one of 'examples', 'uni"),
    ("FedASMU(mu=0)", ValueError, "mu must be larger than 0, got 0"),
    ("FedASMU(lam=-1)", ValueError, "lam must be 0 or larger, got -1"),
    ("FedASMU(fresh=0)", ValueError, "fresh must be at least 1, got 0"),
    ("FADAS(2, delay='1/tau')", ValueError, "delay must be one of 'reciprocal', 'divided', 'no"),
    ("CA2FL(buffer_size=None)", TypeError, "buffer_size must be an integer, got None"),
    ("Malenia(batch_size=0)", ValueError, "batch_size must be larger than 0, got 0"),
    ("DCASGD(-1)", ValueError, "lam must be 0 or larger, got -1"),
    ("Ringmaster(max_staleness=-1)", ValueError, "max_staleness must be 0 or larger, got -1"),
    ("Rennala(0)", ValueError, "buffer_size must be at least 1, got 0"),
    ("GeneralizedAsyncSGD([0.5, 0.4])", ValueError, "probabilities must sum to 1, got a sum of 0"),
    ("GeneralizedAsyncSGD([0.5, 0.508])", ValueError, "must sum to 1, got a sum of 1.008"),
    ("FedNova(mu=0.1)", ValueError, "mu=0.1 needs local_lr, the learning rate of the clients"),
    ("FedDynServer(alpha=0)", ValueError, "alpha must be larger than 0, got 0"),
    ("DelayAdaptive(0)", ValueError, "c must be larger than 0, got 0"),
    ("Polynomial(-1)", ValueError, "a must be"),
    ("Hinge(1, -2)", ValueError, "b must be"),
    # --- local optimizers ---
    ("FreshModel(3)", TypeError, "optimizer must be a local optimizer, got 3"),
    ("LocalSGD(lr=0)", ValueError, "lr must be larger than 0, got 0"),
    ("LocalSGD(lr=None)", TypeError, "lr must be a number or a function of the version, got None"),
    ("LocalSGD(0.1, momentum=1)", ValueError, "momentum must be smaller than 1, got 1"),
    ("LocalSGD(0.1, weight_decay=-1)", ValueError, "weight_decay must be 0 or larger, got -1"),
    ("LocalSGD(0.1, nesterov=True)", ValueError, "nesterov"),
    ("LocalSGD(0.1, max_grad_norm=0)", ValueError, "max_grad_norm must be larger than 0, got 0"),
    ("LocalAdam(0.1, betas=0.9)", TypeError, "betas must be two numbers such as (0.9, 0.999)"),
    ("LocalAdam(0.1, keep='run')", ValueError, "keep must be one of 'task', 'client', got 'run'"),
    ("LocalAdamW(0.1, weight_decay=-1)", ValueError, "weight_decay must be 0 or larger, got -1"),
    ("LocalSGD(0.1, keep='client')", ValueError, 'keep="client" needs a momentum above 0'),
    ("FedProx(0.1, mu=-1)", ValueError, "mu must be 0 or larger, got -1"),
    ("FedDyn(0.1, alpha=0)", ValueError, "alpha must be larger than 0, got 0"),
    ("SAM(0.1, rho=-1)", ValueError, "rho must be 0 or larger, got -1"),
    ("OwnModel(0.1)", TypeError, "optimizer must be a local optimizer, got 0.1"),
    ("OwnModel(Scaffold(0.1))", ValueError, "optimizer must keep no state between tasks"),
    ("OwnModel(LocalSGD(0.1), 0)", ValueError, "per_poll must be at least 1, got 0"),
    ("OwnModel(LocalSGD(0.1), [1])", TypeError, "per_poll must be a number or one list of clients"),
    ("OwnModel(LocalSGD(0.1), lr_correction=True)", ValueError, "lr_correction=True needs per_po"),
    ("OwnModel(LocalSGD(0.1), 2, quantizer=8)", TypeError, "quantizer must be a Lattice or None"),
    ("QuAFL(quantizer=8)", TypeError, "quantizer must be a Lattice or None, got 8"),
    ("QuAFL(0)", ValueError, "buffer_size must be at least 1, got 0"),
    ("Lattice(side=0)", ValueError, "side must be larger than 0, got 0"),
    ("Lattice(bits=33)", ValueError, "bits must be at most 32, got 33"),
    ("FAVAS(expected_steps=[0.0])", ValueError, "expected_steps[0] must be larger than 0, got 0.0"),
    ("FedAT(client_weights='all')", ValueError, "client_weights must be one of"),
    ("Scaffold(0.1, momentum=0.9)", TypeError, "Scaffold takes only lr and option, got momentum"),
    ("Scaffold(0.1, option=3)", ValueError, "option must be 1"),
    # --- arrivals ---
    ("UniformArrivals(per_round=0)", ValueError, "per_round must be at least 1, got 0"),
    (
        "UniformArrivals(1, max_staleness=-1)",
        ValueError,
        "max_staleness must be 0 or larger, got -1",
    ),
    ("UniformArrivals(1, local_steps=0)", ValueError, "must be at least 1, got 0"),
    ("UniformArrivals(1, local_steps='many')", TypeError, "local_steps"),
    ("UniformSteps(3, 2)", ValueError, "high"),
    ("LocalEpochs(0)", ValueError, "num_epochs must be larger than 0, got 0"),
    ("StepsBySpeed(50, [1, 0])", ValueError, "speeds[1] must be larger than 0, got 0"),
    ("StepsBySpeed(4, [1, 2])", ValueError, "least=5 must not be above num_steps=4"),
    ("PerClientSteps([1, 0])", ValueError, "num_steps[1] must be at least 1, got 0"),
    ("BiasedArrivals(1, [0.5, 0.4])", ValueError, "probabilities must sum to 1, got a sum of 0.9"),
    (
        "BiasedArrivals(1, [-0.5, 1.5])",
        ValueError,
        "probabilities[0] must be 0 or larger, got -0.5",
    ),
    ("BiasedArrivals(2, [1.0, 0.0])", ValueError, "leave only 1 clients that can be drawn"),
    ("SynchronousArrivals(durations=3)", TypeError, "durations"),
    ("ContinuousArrivals(3.0)", TypeError, "durations"),
    ("ContinuousArrivals(UniformSpeeds(0), resume='now')", ValueError, "resume must be one of"),
    (
        "ContinuousArrivals(UniformSpeeds(0), idle=-1)",
        ValueError,
        "idle must be 0 or larger, got -1",
    ),
    (
        "ContinuousArrivals(UniformSpeeds(0), concurrency=0)",
        ValueError,
        "concurrency must be at lea",
    ),
    ("PoissonArrivals(0, UniformSpeeds(0))", ValueError, "rate must be larger than 0, got 0"),
    ("FixedDurations([])", ValueError, "durations"),
    ("FixedDurations([1.0, 0.0])", ValueError, "durations[1] must be"),
    ("UniformSpeeds(1)", ValueError, "spread must be below 1, got 1"),
    ("ExponentialDurations(-1)", ValueError, "mean must be larger than 0, got -1"),
    ("HalfNormalDurations(0)", ValueError, "scale must be larger than 0, got 0"),
    ("LogNormalDurations(1.0, -1)", ValueError, "sigma must be"),
    ("CommunicationPattern('random')", TypeError, "pattern must be a TickPattern, got 'random'"),
    ("RandomTicks(0.0)", ValueError, "is 0, so the client would never communicate; give max_gap"),
    ("ReplayArrivals([])", ValueError, "events must hold at least one ReplayEvent, got none"),
    ("ReplayArrivals([(0, 0, 1.0, 1)])", TypeError, "events[0] must be a ReplayEvent, got (0, 0"),
    ("ReplayArrivals('nowhere.parquet')", FileNotFoundError, "nowhere.parquet"),
    ("ReplayEvent(0, 0, -1.0, 1)", ValueError, "time must be"),
    (
        "DropOut(rounds, 1)",
        ValueError,
        "probability must be below 1, got 1: no client would ever arri",
    ),
    ("Failures('rounds', 1, 1)", TypeError, "arrivals must be an arrival process, got 'rounds'"),
    ("Failures(rounds, 0, 1)", ValueError, "mtbf must be larger than 0, got 0"),
    ("ConstantStaleness(-1)", ValueError, "tau must be 0 or larger, got -1"),
    ("TrialRounds(UniformSpeeds(0), 0, 1)", ValueError, "allotted must be larger than 0, got 0"),
    ("TrialRounds(UniformSpeeds(0), 1, 0)", ValueError, "trials must be above 0 for at least one"),
    ("PowerOfChoice(rounds, 2)", TypeError, "does not let others choose its clients"),
    ("PowerOfChoice(SynchronousArrivals(2), 0)", ValueError, "candidates must be at least 1, got"),
    ("PowerOfChoice(SynchronousArrivals(2), 3, 4)", TypeError, "metric must be the name under whi"),
    ("PowerOfChoice(SynchronousArrivals(), 3)", ValueError, "per_round must be a number if the cl"),
    ("Pisces(SynchronousArrivals(2), beta=-1)", ValueError, "beta must be 0 or larger, got -1"),
    ("Pisces(SynchronousArrivals(2), window=0)", ValueError, "window must be at least 1, got 0"),
    ("Pisces(SynchronousArrivals(2), staleness_bound=2)", ValueError, "ends rounds, which"),
    ("Pisces(ContinuousArrivals(UniformSpeeds(0)))", ValueError, "concurrency must be a number if"),
    ("Oort(ContinuousArrivals(UniformSpeeds(0), 2))", ValueError, "has no rounds; write Oort(Sync"),
    ("Oort(SynchronousArrivals(2), reading='both')", ValueError, "reading must be one of"),
    ("Oort(SynchronousArrivals(2), reading='paper')", ValueError, "reading='paper' needs pacer_st"),
    (
        "Oort(SynchronousArrivals(2), cut_off=2)",
        ValueError,
        "cut_off must lie between 0 and 1, got 2",
    ),
    ("DropOut('rounds', 0.1)", TypeError, "arrivals must be an arrival process, got 'rounds'"),
    ("Availability(rounds, [])", ValueError, "windows must hold at least one (start, end), got"),
    ("Availability(rounds, [(2, 1)])", ValueError, "must hold pairs with start < end, got (2, 1)"),
    ("Availability(rounds, [(0, 1)], unfinished='stop')", ValueError, "unfinished must be one of"),
    ("SynchronousArrivals(over_select=0)", ValueError, "over_select must be at least 1, got 0"),
    ("SynchronousArrivals(2, timeout=0)", ValueError, "timeout must be larger than 0, got 0"),
    ("SynchronousArrivals(2, late='cut')", ValueError, "late='cut' needs over_select, timeout, qu"),
    ("SynchronousArrivals(quorum=0)", ValueError, "quorum must be at least 1, got 0"),
    ("SynchronousArrivals(grace=-1)", ValueError, "grace must be 0 or larger, got -1"),
    (
        "SynchronousArrivals(2, over_select=1, late='continue')",
        ValueError,
        "write quorum= for the number of arrivals to wait for",
    ),
    ("SynchronousArrivals(2, timeout=1, late='keep')", ValueError, "late must be one of"),
    ("SynchronousArrivals([[0, 1]], over_select=2)", ValueError, "leaves no client to wait for"),
    ("SynchronousArrivals([0, 1])", TypeError, "per_round[0] must be a list of clients, got 0"),
    ("SynchronousArrivals([[0], []])", ValueError, "per_round[1] must name at least one client"),
    ("UniformArrivals([[0, 0]])", ValueError, "per_round[0] must name each client once"),
    ("UniformArrivals([])", ValueError, "per_round must hold one list of clients for each round"),
    (
        "ContinuousArrivals(UniformSpeeds(0), restart_after=0)",
        ValueError,
        "restart_after must be at least 1, got 0",
    ),
    ("PolledArrivals(0, 1.0, [1.0], 3)", ValueError, "per_poll must be at least 1, got 0"),
    ("PolledArrivals(1, 0, [1.0], 3)", ValueError, "interval must be larger than 0, got 0"),
    ("PolledArrivals(1, 1.0, 3.0, 3)", TypeError, "durations must be a duration model, got 3.0"),
    ("PolledArrivals(1, 1.0, [1.0], 0)", ValueError, "max_steps must be at least 1, got 0"),
    ("CompassArrivals(3)", TypeError, "durations must be a duration model, got 3"),
    (
        "CompassArrivals(StepDurations(1), 5, 4)",
        ValueError,
        "max_steps=4 must be at least min_step",
    ),
    ("RefreshedTasks(rounds)", ValueError, "arrivals must have neither rounds nor groups, got "),
    ("Tiers([rounds])", TypeError, "processes must be a mapping from names to arrival processes"),
    ("Tiers({})", ValueError, "processes must hold at least one arrival process, got none"),
    ("Tiers({'a': 3})", TypeError, "processes['a'] must be an arrival process, got 3"),
    ("Tiers({'a': Tiers({'b': rounds})})", TypeError, "an arrival process without groups, got"),
    ("Tiers({'a': rounds}, {'b': [0]})", ValueError, "clients must name the tiers a, got b"),
    ("Tiers({'a': rounds}, [[0]])", TypeError, "clients must be a mapping from names of tiers"),
    ("Tiers({'a': rounds}, {'a': []})", ValueError, "clients['a'] must hold at least one client"),
    (
        "Tiers({'a': rounds, 'b': rounds}, {'a': [0], 'b': [1, 0]})",
        ValueError,
        "clients['b'] names client 0, which is already in tier 'a'",
    ),
    ("Regions({}, {}, 1)", ValueError, "processes must hold at least one arrival process"),
    ("Regions({'a': clock}, None, 1)", TypeError, "names of regions to lists of clients, got None"),
    ("Regions({'a': clock}, {}, 1)", ValueError, "clients must name the regions a, got none"),
    ("Regions({'a': clock}, {'a': []}, 1)", ValueError, "clients['a'] must hold at least one"),
    (
        "Regions({'a': clock, 'b': clock}, {'a': [0], 'b': [1, 0]}, 1)",
        ValueError,
        "clients['b'] names client 0, which is already in region 'a'",
    ),
    ("Regions({'a': rounds}, {'a': [0]}, 1)", ValueError, "processes['a'] works by rounds, got"),
    ("Regions({'a': clock}, {'a': [0]}, 0)", ValueError, "arrivals_per_send must be at least 1"),
    ("Regions({'a': clock}, {'a': [0]}, 1, up=-1)", ValueError, "up must be 0 or larger, got -1"),
    (
        "Regions({'a': clock}, {'a': [0]}, 1, down={'a': -2})",
        ValueError,
        "down['a'] must be 0 or larger, got -2",
    ),
    (
        "Regions({'a': clock}, {'a': [0]}, 1, within={'b': 1.0})",
        ValueError,
        "within must have a number for each of the regions a, got b",
    ),
    (
        "Regions({'a': clock}, {'a': [0]}, 1, up=1e-12)",
        ValueError,
        "up must be 0 or at least 1e-9 of virtual time, got 1e-12",
    ),
    (
        "Regions({'a': clock}, {'a': [0]}, 1, up='far')",
        TypeError,
        "up must be a number, got 'far'",
    ),
    (
        "Regions.from_matrix({'a': clock}, {'a': [0]}, 1, [[0.0, 1.0]], 'a')",
        ValueError,
        "times must have a row for each of the 1 regions, with a number for each of them, got",
    ),
    (
        "Regions.from_matrix({'a': clock}, {'a': [0]}, 1, [[0.0]], 'b')",
        ValueError,
        "home must be one of 'a', got 'b'",
    ),
    (
        "Regions({'a': clock}, {'a': [0]}, 1).simulate(1, buffer_size=2, max_rounds=3)",
        ValueError,
        "Regions has servers that step at each arrival, got buffer_size=2 and interval=None",
    ),
    (
        "Regions({'a': clock}, {'a': [3]}, 1).simulate(2, max_rounds=3)",
        ValueError,
        "clients['a'] names client 3, but there are only 2 clients (0 to 1)",
    ),
    (
        "ReplayEvent(0, 0, 1.0, 1, stopped_at_version=2)",
        ValueError,
        "stopped_at_version=2 needs dispatched_at",
    ),
    ("ReplayEvent(0, 0, 1.0, 1, tag=3)", TypeError, "ReplayEvent.tag must be a string or None"),
    ("SharedStream(rounds, 0)", ValueError, "num_clients must be at least 1, got 0"),
    ("SharedStream(rounds, 3 * 10**9)", ValueError, "num_clients must be at most 100,000,000 cli"),
    ("SynchronousArrivals(2, quorum=3)", ValueError, "quorum=3 is more than the 2 clients that"),
    (
        "LeastVisitedShards(rounds, by='loss')",
        ValueError,
        "by must be one of 'visits', 'examples', got 'loss'",
    ),
    (
        "ReplayEvent(0, 0, 1.0, 1, chunk_shard=2)",
        ValueError,
        "chunk_shard=2 needs chunk_start",
    ),
    ("PartialWork(rounds, 2)", ValueError, "probability must lie between 0 and 1, got 2"),
    # --- executors, callbacks, models ---
    ("VectorizedExecutor(max_batch=0)", ValueError, "max_batch must be at least 1, got 0"),
    (
        "FedCheckpoint('x', 1, 1)",
        ValueError,
        "give one interval, got every_n_rounds and every_n_up",
    ),
    ("FedCheckpoint('x', mode='best')", ValueError, "mode must be one of 'min', 'max', got 'best'"),
    ("FedCheckpoint('x', save_top_k=-2)", ValueError, "save_top_k must be -1 (all), 0 or more"),
    ("FedCheckpoint('')", ValueError, "dirpath must not be empty, got ''; write"),
    ("FedCheckpoint(3)", TypeError, "dirpath must be a path, got 3"),
    ("FedCheckpoint('x', monitor=3)", TypeError, "monitor must be the name of a metric, got 3"),
    ("EarlyStopping('x', patience=0)", ValueError, "patience must be at least 1, got 0"),
    ("TensorBoardMetrics(axes=['epoch'])", ValueError, "axes must be one of"),
    ("EventLog(3)", TypeError, "path must name a file"),
    ("CSVMetrics(3)", TypeError, "path must name a file"),
    ("ClientEvaluation(data='mine')", ValueError, "data must be one of 'train', 'validation'"),
    ("LogisticRegression(0, 3)", ValueError, "in_features must be at least 1, got 0"),
    ("LogisticRegression(4, 1)", ValueError, "num_classes must be at least 2, got 1"),
    # --- data ---
    ("FederatedDataModule('nowhere/at/all', iid)", FileNotFoundError, "nowhere/at/all"),
    ("FederatedDataModule(3, iid)", TypeError, "dataset"),
    (
        "FederatedDataModule(table, 'iid')",
        TypeError,
        "partitioner must be a data_partitioners.Part",
    ),
    ("FederatedDataModule(table, iid, batch_size=0)", ValueError, "batch_size must be at least 1"),
    ("FederatedDataModule(table, iid, transform=3)", TypeError, "transform must be a function"),
    ("FederatedDataModule(table, iid, columns=('z', 'y')).setup()", ValueError, "'z'"),
    (
        "FederatedDataModule(table, iid, val_split='val').setup()",
        ValueError,
        "val_split='val' is no",
    ),
    ("FederatedDataModule(table, iid).partition", RuntimeError, "call setup() first"),
    ("FederatedDataModule(table, IidPartitioner(5)).setup()", ValueError, "5"),
    (
        "FederatedDataModule.from_client_datasets([])",
        ValueError,
        "one data set per client, got none",
    ),
    (
        "FederatedDataModule.from_client_datasets([[]])",
        ValueError,
        "datasets[0] (client 0) is empty",
    ),
    ("FederatedDataModule.from_client_datasets([3])", TypeError, "must be a map-style data set"),
    ("IidPartitioner(0)", ValueError, "num_partitions=0 is too small; give a whole n"),
    ("PathologicalPartitioner(2, 0)", ValueError, "num_classes_per_partition=0 is too small"),
    ("DirichletPartitioner(2, alpha=0)", ValueError, "alpha=0 is no concentration; give"),
    ("participation_report(rounds)", ValueError, "give aggregator= and num_clients="),
]


@pytest.mark.parametrize(("call", "error", "words"), ROWS, ids=[row[0] for row in ROWS])
def test_each_mistake_gets_a_sentence(call, error, words):
    with pytest.raises(error) as caught:
        eval(call, dict(NAMES))
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()[0]) < 500


def test_there_are_enough_of_them():
    assert len(ROWS) >= 80
    text = " ".join(call for call, _, _ in ROWS)
    for package, kind in (
        (fedlight.aggregators, fedlight.aggregators.Aggregator),
        (fedlight.local_optimizers, fedlight.local_optimizers.LocalOptimizer),
        (fedlight.arrivals, fedlight.arrivals.ArrivalProcess),
    ):
        for name in package.__all__:
            it = getattr(package, name)
            if isinstance(it, type) and issubclass(it, kind) and not inspect.isabstract(it):
                assert f"{name}(" in text or name in ("ModuleOptimizer", "Recording"), name


# --- odd modules and odd data: each works, or is refused in one sentence ---


class Unused(Boring):
    def __init__(self):
        super().__init__()
        self.other = nn.Parameter(torch.ones(2))


class Tied(Boring):
    def __init__(self):
        super().__init__(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)))
        self.net[1].weight = self.net[0].weight


class HalfFrozen(Boring):
    def __init__(self):
        super().__init__(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)))
        self.net[0].requires_grad_(False)


class Buffered(Boring):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("wave", torch.ones(2, dtype=torch.complex64))
        self.register_buffer("nothing", None)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))


def normed():
    return Boring(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))


def tables(*sizes, y=None, x=None):
    random = torch.Generator().manual_seed(0)
    found = []
    for size in sizes:
        numbers = torch.randn(size, 4, generator=random) if x is None else torch.full((size, 4), x)
        labels = numbers[:, 0].nan_to_num().round().long().remainder(3)
        found.append(TensorDataset(numbers, labels if y is None else y(labels)))
    return FederatedDataModule.from_client_datasets(found, batch_size=4)


WORK = {
    "last batches of one": (normed, lambda: tables(5, 9)),
    "smaller than a batch": (normed, lambda: tables(2, 3)),
    "unused": (Unused, lambda: tables(5, 9)),
    "tied": (Tied, lambda: tables(5, 9)),
    "frozen": (HalfFrozen, lambda: tables(5, 9)),
    "buffers": (Buffered, lambda: tables(5, 9)),
    "double": (lambda: Boring().double(), lambda: tables(5, 9)),
    "half": (lambda: Boring().to(torch.bfloat16), lambda: tables(5, 9)),
    "one example": (Boring, lambda: tables(1, 1)),
}


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", WORK)
def test_odd_input_that_works(name, executor):
    module, data = WORK[name]
    torch.manual_seed(0)
    run = trainer(executor=executor, max_rounds=3)
    module = module()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    run.fit(module, data())
    after = module.state_dict()
    assert run.version == 3
    assert torch.isfinite(run.state.params.float()).all()
    changed = {key for key, value in after.items() if not torch.equal(value, before[key])}
    assert any("weight" in key for key in changed)
    assert not changed & {"other", "net.0.bias" if name == "frozen" else "", "mask", "wave"}
    assert all(after[key].dtype == value.dtype for key, value in before.items())


FAIL = {
    "labels beyond the head": (Boring, lambda: tables(5, 9, y=lambda y: y + 3), "out of bounds"),
    "float labels": (Boring, lambda: tables(5, 9, y=lambda y: y.float()), "type|dtype|Float|float"),
    "labels of another shape": (Boring, lambda: tables(5, 9, y=lambda y: y[:, None]), "target"),
    "NaN": (Boring, lambda: tables(5, 9, x=float("nan")), "the loss is not finite"),
    "infinite": (Boring, lambda: tables(5, 9, x=float("inf")), "the loss is not finite"),
    "one example under BatchNorm": (normed, lambda: tables(1, 1), "more than 1 value per channel"),
    "other inputs": (
        lambda: Boring(nn.Linear(5, 3)),
        lambda: tables(5, 9),
        "cannot be multiplied|must match|Expected|expected",
    ),
}


@pytest.mark.filterwarnings("ignore:fedlight. Boring has batch normalisation")
@pytest.mark.parametrize("executor", ["auto", "sequential", "vectorized"])
@pytest.mark.parametrize("name", FAIL)
def test_odd_input_that_is_refused(name, executor):
    """In the first round, with the client; by the vectorized executor partly at the start."""
    module, data, words = FAIL[name]
    with pytest.raises((ClientError, ValueError), match=words) as caught:
        trainer(executor=executor).fit(module(), data())
    message = str(caught.value)
    assert len(message.splitlines()) == 1, message
    where = r"client \d failed in its local run from version 0 \(dispatched at virtual time 0"
    assert executor == "vectorized" or re.match(where, message)


def test_a_partitioner_of_ones_own_that_leaves_a_client_empty():
    class Lopsided(data_partitioners.Partitioner):
        def partition(self, dataset, seed=0):
            rows = np.arange(len(dataset))
            return data_partitioners.Partition(
                rows=rows, offsets=np.array([0, len(rows), len(rows)])
            )

    data = FederatedDataModule(TABLE, Lopsided(), columns=("x", "y"))
    with pytest.raises(ValueError, match="1 of 2 clients have no rows, the first is client 1"):
        trainer().fit(Boring(), data)


def test_one_string_is_no_list_of_names():
    with pytest.raises(TypeError, match=r"metrics must be a list of names, such as \['val_acc'\]"):
        TensorBoardMetrics(metrics="val_acc")
    with pytest.raises(TypeError, match=r"axes must be a list of names, such as \['models'\]"):
        TensorBoardMetrics(axes="models")
    with pytest.raises(TypeError, match=r"lower_is_better must be a list of names"):
        ClientEvaluation(lower_is_better="loss")


def test_a_folder_is_no_event_log(tmp_path):
    with pytest.raises(ValueError, match=r"path must name a file, but '.*' is a folder"):
        EventLog(tmp_path)


def test_a_tuple_of_tensors_is_no_data_set():
    with pytest.raises(TypeError, match=r"datasets\[0\] .*is a tuple of tensors; write Tensor"):
        FederatedDataModule.from_client_datasets([(torch.ones(3, 2), torch.ones(3))])


def test_a_process_that_answers_nothing_is_named():
    class Silent(ArrivalProcess):
        def setup(self, federation):
            pass

        def on_wake(self, now):
            pass

    with pytest.raises(TypeError, match=r"Silent\(\) returned None; .*\(\) for none"):
        trainer(arrivals=Silent(), max_rounds=1, aggregator=FedAvg(1)).fit(Boring(), classes())


def test_seeds_are_several():
    with pytest.raises(TypeError, match=r"seeds must be several, such as range\(3\), got 3"):
        compare(
            {"a": FedAvg()}, arrivals=UniformArrivals(2), module=Boring(), datamodule=classes(),
            seeds=3, max_rounds=1,
        )  # fmt: skip
