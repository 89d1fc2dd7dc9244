"""Every strategy can be named on a command line, with its arguments, by jsonargparse."""

import inspect

import pytest

jsonargparse = pytest.importorskip("jsonargparse", reason="jsonargparse is the extra 'recipes'")

import data_partitioners  # noqa: E402
from data_partitioners import Partitioner  # noqa: E402
from fedlight import aggregators, arrivals, executors, local_optimizers  # noqa: E402
from fedlight.aggregators import Aggregator, FedAsync, FedBuff  # noqa: E402
from fedlight.aggregators.staleness import Hinge, Polynomial  # noqa: E402
from fedlight.arrivals import ArrivalProcess, ContinuousArrivals  # noqa: E402
from fedlight.executors import Executor  # noqa: E402
from fedlight.local_optimizers import LocalOptimizer  # noqa: E402

NEEDED = {
    "FedAsync": ["alpha=0.5"],
    "FedBuff": ["buffer_size=3"],
    "CompassArrivals": ["durations=StepDurations", "durations.per_step=0.5", "max_steps=30"],
    "FedFix": ["interval=2"],
    "AREA": ["buffer_size=3"],
    "CA2FL": ["buffer_size=3"],
    "DCASGD": ["lam=0.5"],
    "DelayedNesterov": ["period=3"],
    "FADAS": ["buffer_size=3"],
    "FedDynServer": ["alpha=0.5"],
    "GeneralizedAsyncSGD": ["probabilities=[0.25, 0.75]"],
    "Rennala": ["buffer_size=3"],
    "Ringmaster": ["max_staleness=2"],
    "ConstantStaleness": ["tau=2"],
    "MindFlayer": ["trials=2", "probabilities=0.5"],
    "TrialRounds": ["durations=ExponentialDurations", "durations.mean=1", "allotted=2", "trials=3"],
    "BiasedArrivals": ["per_round=1", "probabilities=[0.5, 0.5]"],
    "ContinuousArrivals": ["durations=ExponentialDurations", "durations.mean=1"],
    "PoissonArrivals": ["rate=1", "durations=FixedDurations", "durations.durations=[1]"],
    "SynchronousArrivals": ["per_round=2", "durations=UniformSpeeds", "durations.spread=0.5"],
    "UniformArrivals": ["per_round=2", "local_steps=UniformSteps", "local_steps.low=1"],
    "PolledArrivals": ["per_poll=2", "interval=0.5", "step_durations=[1.0]", "max_steps=3"],
    "FedDyn": ["lr=0.1", "alpha=0.5"],
    "FreshModel": ["optimizer=LocalSGD", "optimizer.lr=0.1", "gamma=0.5"],
    "FedProx": ["lr=0.1", "mu=0.5"],
    "LocalAdam": ["lr=0.1"],
    "LocalAdamW": ["lr=WarmupCosine", "lr.peak=0.1", "lr.warmup=2", "lr.total=9"],
    "LocalSGD": ["lr=0.1", "momentum=0.9"],
    "OwnModel": ["optimizer=LocalSGD", "optimizer.lr=0.1", "per_poll=2"],
    "SAM": ["lr=0.1", "rho=0.05"],
    "Scaffold": ["lr=0.1"],
    "DirichletPartitioner": ["num_partitions=3", "alpha=0.5"],
    "IidPartitioner": ["num_partitions=3"],
    "MixingPartitioner": ["num_partitions=3", "ratio=0.5"],
    "NaturalIdPartitioner": ["partition_by=user"],
    "PathologicalPartitioner": ["num_partitions=3", "num_classes_per_partition=2"],
    "QuantityPartitioner": ["num_partitions=3", "exponent=1.5"],
}
NEEDED["UniformArrivals"].append("local_steps.high=4")
# They are put around other objects, or take what a shell has no words for.
ELSEWHERE = {
    "Availability",
    "CommunicationPattern",
    "DropOut",
    "Failures",
    "FlowerPartitioner",
    "Oort",
    "LeastVisitedShards",
    "PartialWork",
    "PrivateSum",
    "Pisces",
    "PowerOfChoice",
    "Recording",
    "Regions",
    "RefreshedTasks",
    "ReplayArrivals",
    "SharedStream",
    "Tiers",
    "Wrapper",
}


def strategies():
    for package, kind in (
        (aggregators, Aggregator),
        (arrivals, ArrivalProcess),
        (local_optimizers, LocalOptimizer),
        (executors, Executor),
        (data_partitioners, Partitioner),
    ):
        for name in sorted(package.__all__):
            found = getattr(package, name)
            if name in ELSEWHERE or not inspect.isclass(found):
                continue
            if issubclass(found, kind) and not inspect.isabstract(found):
                yield pytest.param(kind, found, id=name)


def parsed(kind, *words):
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--it", type=kind)
    return parser.instantiate(parser.parse_args(words)).it


@pytest.mark.parametrize(("kind", "strategy"), list(strategies()))
def test_a_strategy_is_named_from_the_shell(kind, strategy):
    name = strategy.__name__
    words = [f"--it.{word}" for word in NEEDED.get(name, [])]
    made = parsed(kind, f"--it={name}", *words)
    assert type(made) is strategy
    for word in NEEDED.get(name, []):
        argument, value = word.split("=")
        shown = repr(vars(made)) + repr(made)
        assert value.strip("[]").split(",")[0] in shown or "." in argument


def test_what_is_named_within_a_strategy_gets_its_own_arguments():
    fedasync = parsed(
        Aggregator,
        "--it=FedAsync",
        "--it.alpha=0.3",
        "--it.staleness=Hinge",
        "--it.staleness.a=10",
        "--it.staleness.b=4",
    )
    assert isinstance(fedasync, FedAsync)
    assert fedasync.staleness == Hinge(a=10, b=4)
    fedbuff = parsed(Aggregator, "--it=FedBuff", "--it.buffer_size=10")
    assert isinstance(fedbuff, FedBuff)
    assert (fedbuff.buffer_size, fedbuff.staleness) == (10, Polynomial(0.5))
    clock = parsed(
        ArrivalProcess,
        "--it=ContinuousArrivals",
        "--it.durations=UniformSpeeds",
        "--it.durations.spread=0.8",
        "--it.concurrency=3",
    )
    assert isinstance(clock, ContinuousArrivals)
    assert repr(clock).startswith("ContinuousArrivals(UniformSpeeds(0.8, slowest=1), concurrency=3")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--it=FedBuf"], "FedBuf"),
        (["--it=FedBuff", "--it.buffer=10"], "buffer"),
        (["--it=FedBuff", "--it.buffer_size=ten"], "buffer_size"),
    ],
)
def test_a_wrong_word_is_named(words, message):
    with pytest.raises(jsonargparse.ArgumentError, match=message):
        parsed(Aggregator, *words)
