"""CUDA graphs of traced steps, with a recorder of operators in the place of CUDA's graphs.

As a graph does, it calls the operators of the capture again on the tensors of the capture. What was
read on the way there is baked in, and nothing else is run.
"""

import logging
from collections import Counter
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedlight import Callback
from fedlight.aggregators import FedBuff
from fedlight.arrivals import UniformArrivals, UniformSteps
from fedlight.executors import VectorizedExecutor, vectorized
from fedlight.executors._stack import cuda_graph as _cuda_graph
from fedlight.executors._stack.cuda_graph import CudaGraphs
from fedlight.executors._tracing import TracedStep
from fedlight.local_optimizers import LocalAdam, LocalSGD, Scaffold
from tests.boring import Boring, classes, fitted, trainer

DEVICE = trainer().fabric.device


class Recording(TorchDispatchMode):
    """A stream that is captured: no value may be read."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing\nmore words")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


class Graph:
    """In the place of ``torch.cuda.CUDAGraph``."""

    all: ClassVar[list] = []

    def __init__(self):
        self.calls, self.replays = [], 0
        Graph.all.append(self)

    def replay(self):
        self.replays += 1
        for func, args, kwargs, result in self.calls:
            new = func(*args, **kwargs)
            for old, each in zip(tree_leaves(result), tree_leaves(new), strict=True):
                aliases = isinstance(each, torch.Tensor) and each.data_ptr() == old.data_ptr()
                if isinstance(each, torch.Tensor) and not aliases:
                    old.copy_(each)


@pytest.fixture
def cuda(monkeypatch):
    """A device with graphs; counts what the framework asks it for."""
    asked = Counter()
    Graph.all = []

    class Stream:
        def wait_stream(self, other):
            asked["waits"] += 1

    @contextmanager
    def on(stream):
        asked["on a side stream"] += 1
        yield

    @contextmanager
    def capture(graph, pool=None, stream=None, capture_error_mode=None):
        asked[f"captures in {pool}"] += 1
        assert stream is not None
        assert capture_error_mode == "thread_local"
        with Recording(graph.calls):
            yield

    main = Stream()
    for name, value in {
        "CUDAGraph": Graph,
        "graph": capture,
        "Stream": Stream,
        "stream": on,
        "current_stream": lambda: main,
        "device": lambda device: nullcontext(),
        "graph_pool_handle": lambda: "the pool",
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(_cuda_graph, "KIND", DEVICE.type)
    return asked


@pytest.fixture
def early(monkeypatch):
    """Steps are traced when they come for the second time; the traced steps that were made."""
    made = []

    class Early(TracedStep):
        def __init__(self, step, **given):
            super().__init__(step, after=2, **given)
            made.append(self)

    monkeypatch.setattr(vectorized, "TracedStep", Early)
    return made


@pytest.fixture
def said(caplog):
    """The lines of the log about CUDA graphs."""
    caplog.set_level(logging.INFO, "lightning.pytorch.utilities.rank_zero")
    return lambda: [line for line in caplog.messages if "CUDA graphs" in line]


def always(function):
    return True


def tensors(*shape):
    return torch.arange(1.0, 1 + torch.Size(shape).numel(), device=DEVICE).reshape(shape)


def test_a_call_reads_its_own_inputs_and_returns_tensors_of_its_own(cuda, said):
    calls = []

    def step(x, y):
        calls.append(1)
        return [x * y, x.sum(0), y]

    graph = CudaGraphs(DEVICE).graphed(step, [tensors(2, 3), tensors(3)], always)
    assert len(calls) == 4  # three times to warm up, once for the capture
    first = graph(tensors(2, 3), 10 * tensors(3))
    second = graph(-tensors(2, 3), tensors(3))
    assert len(calls) == 4
    assert first[0].tolist() == [[10, 40, 90], [40, 100, 180]]
    assert [each.tolist() for each in first[1:]] == [[5, 7, 9], [10, 20, 30]]
    assert second[0].tolist() == [[-1, -4, -9], [-4, -10, -18]]
    assert [graph.replays for graph in Graph.all] == [2]
    assert cuda == {"captures in the pool": 1, "on a side stream": 1, "waits": 2}
    assert not said()


def test_each_shape_has_a_graph_and_all_share_a_pool(cuda):
    graphs = CudaGraphs(DEVICE)
    one = graphs.graphed(lambda x: [x + 1], [tensors(2)], always)
    other = graphs.graphed(lambda x: [x + 1], [tensors(3)], always)
    assert one(tensors(2))[0].tolist() == [2, 3]
    assert other(tensors(3))[0].tolist() == [2, 3, 4]
    assert one(2 * tensors(2))[0].tolist() == [3, 5]
    assert cuda["captures in the pool"] == 2


def test_a_number_of_the_host_is_part_of_the_graph(cuda, said):
    half = torch.tensor(0.5)
    graph = CudaGraphs(DEVICE).graphed(lambda x: [x * (half + 1)], [tensors(2)], always)
    assert graph(tensors(2))[0].tolist() == [1.5, 3]
    assert not said()


def reads(x):
    return [x * x.sum().item()]


def uses_the_host(x):
    return [x + torch.ones(2).to(x.device)]


def has_no_room(x):
    if Graph.all:  # a capture has begun
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    return [x]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (reads, "RuntimeError: operation not permitted when stream is capturing); "),
        (has_no_room, "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB); "),
        pytest.param(
            uses_the_host,
            "RuntimeError: aten._to_copy.default copies a tensor from one device to another); ",
            marks=pytest.mark.skipif(DEVICE.type == "cpu", reason="python tests/on_device.py"),
        ),
    ],
)
def test_what_cannot_be_captured_runs_as_before_and_the_log_says_why_once(cuda, said, step, reason):
    graphs = CudaGraphs(DEVICE)
    assert graphs.graphed(step, [tensors(2)], always) is step
    (line,) = said()
    assert line.startswith(f"VectorizedExecutor: no CUDA graphs ({reason}")
    assert line.endswith("); steps are launched as usual")
    assert "\n" not in line
    assert graphs.graphed(step, [tensors(3)], always) is step  # nothing is tried a second time
    assert len(said()) == 1
    assert len(Graph.all) == (step is not uses_the_host)


def test_a_graph_with_other_numbers_is_not_used(cuda, said):
    example, seen = tensors(2), []

    def step(x):
        seen.append(x.clone())  # the first input stays in the graph
        return [x + seen[0]]

    def check(function):
        return function(example)[0].tolist() == [2, 4]

    graphs = CudaGraphs(DEVICE)
    found = graphs.graphed(step, [example], check)
    assert found(3 * example)[0].tolist() == [4, 8]  # the check cannot see it
    del seen[:]
    assert graphs.graphed(lambda x: [x - x], [example], check) is not found
    (line,) = said()
    assert "(a captured step gave other numbers); " in line


def test_what_a_step_writes_to_its_inputs_is_there_afterwards(cuda):
    def step(x, y):
        x.mul_(2)
        return [x, x + y]

    graph = CudaGraphs(DEVICE).graphed(step, [tensors(2), tensors(2)], always)
    given = tensors(2), 10 * tensors(2)
    results = graph(*given)
    assert [each.tolist() for each in given] == [[2, 4], [10, 20]]
    assert [each.tolist() for each in results] == [[2, 4], [12, 24]]
    assert results[0].data_ptr() != given[0].data_ptr()


def test_a_device_without_graphs_says_so_at_once(said):
    graphs = CudaGraphs(torch.device("meta"))
    assert graphs.graphed(reads, [], always) is reads
    assert said() == [
        "VectorizedExecutor: no CUDA graphs (the run is on meta, which has none); steps are "
        "launched as usual"
    ]


class Dropping(Boring):
    """Random numbers, buffers of both kinds, and values that are read after the run."""

    def __init__(self):
        super().__init__(
            nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3))
        )

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, 0)  # a step that reads batch_idx has a trace for each
        self.log_dict({"lr": 0.1, "last": loss}, on_step=True)
        return loss


RUNS = {
    "rates": lambda: (Boring(), {"local_optimizer": LocalSGD(lambda v: 0.5 / (1 + v))}),
    "Adam": lambda: (Boring(), {"local_optimizer": LocalAdam(0.01), "aggregator": FedBuff(2)}),
    "momentum": lambda: (Dropping(), {"local_optimizer": LocalSGD(0.1, momentum=0.9)}),
    "SCAFFOLD": lambda: (Dropping(), {"local_optimizer": Scaffold(lambda v: 0.5 / (1 + v))}),
}


@pytest.mark.parametrize("run", RUNS)
def test_a_run_has_the_same_bits(cuda, early, said, run):
    def made(graphs):
        torch.manual_seed(0)
        arrivals = UniformArrivals(4, max_staleness=2, local_steps=UniformSteps(1, 5))
        executor = VectorizedExecutor(max_batch=3, cuda_graphs=graphs)
        given = {"arrivals": arrivals, "executor": executor, "max_rounds": 8}
        module, others = RUNS[run]()
        trained = fitted(module, classes((6, 10, 4, 8, 9)), **given, **others)
        return trained.fingerprint(), [row.metrics for row in trained.history]

    plain = made(False)
    assert not Graph.all
    assert made(True) == plain
    assert not said()
    traced = [trace for trace in early[1].traces.values() if trace is not None]
    assert len({id(trace.function) for trace in traced}) == len(Graph.all) > 2  # as many shapes
    assert cuda["captures in the pool"] == len(Graph.all)
    # Three replays are the check of a trace; the batches of a run differ from those.
    assert sum(graph.replays for graph in Graph.all) > 3 * len(Graph.all)


class Changing(Boring):
    """Holds a constant that a callback changes, and changes its batch."""

    factor = 1.0

    def training_step(self, batch, batch_idx):
        batch[0].mul_(2)
        return self.factor * super().training_step(batch, 0)


class Halves(Callback):
    def on_round_end(self, trainer, module):
        module.factor /= 2


def test_a_constant_that_changes_makes_other_graphs(cuda, early, said):
    def made(graphs):
        torch.manual_seed(0)
        given = {"callbacks": Halves(), "arrivals": UniformArrivals(2, local_steps=4)}
        executor = VectorizedExecutor(cuda_graphs=graphs)
        return fitted(Changing(), classes((8, 8)), executor=executor, **given).fingerprint()

    assert made(False) == made(True)
    assert len(Graph.all) == 5  # one a round
    assert not said()


class Hungry(LocalSGD):
    """Finds no memory for more than two clients once a step was traced."""

    full = False

    def begin(self, run, module):
        if self.full and len(run.tasks) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("run", RUNS)
def test_on_a_card(early, said, run):
    module, others = RUNS[run]()
    start = deepcopy(module)
    prints = [
        fitted(
            deepcopy(start),
            classes((8,) * 4),
            executor=VectorizedExecutor(cuda_graphs=graphs),
            deterministic=True,
            **others,
        ).fingerprint()
        for graphs in (False, True)
    ]
    assert prints[0] == prints[1]
    assert not said()
    kinds = {type(trace.function).__name__ for trace in early[1].traces.values()}
    assert kinds == {"_Graph"}


def test_memory_that_runs_out_frees_the_graphs(cuda, early):
    class Fills(Callback):
        def on_round_end(self, trainer, module):
            assert {key[0][0][0] for key in early[0].traces} == {2 if optimizer.full else 4}
            optimizer.full = True

    optimizer = Hungry(0.1)
    with pytest.warns(UserWarning, match="at most 2"):
        fitted(
            Boring(),
            classes((8,) * 4),
            executor=VectorizedExecutor(cuda_graphs=True),
            arrivals=UniformArrivals(4, local_steps=3),
            local_optimizer=optimizer,
            callbacks=Fills(),
        )
    assert len(Graph.all) == 2


def test_the_argument():
    assert repr(VectorizedExecutor(cuda_graphs=True)) == (
        "VectorizedExecutor(max_batch=256, cuda_graphs=True)"
    )
    assert not VectorizedExecutor().cuda_graphs
    with pytest.raises(TypeError, match="cuda_graphs must be True or False, got 'auto'"):
        VectorizedExecutor(cuda_graphs="auto")


@pytest.mark.skipif(DEVICE.type == "cuda", reason="there they are made")
def test_a_run_elsewhere_goes_on_without(said):
    torch.manual_seed(0)
    with_them = fitted(Boring(), classes(), executor=VectorizedExecutor(cuda_graphs=True))
    torch.manual_seed(0)
    without = fitted(Boring(), classes(), executor=VectorizedExecutor())
    assert with_them.fingerprint() == without.fingerprint()
    (line,) = said()
    assert f"(the run is on {DEVICE}, which has none)" in line
