"""The same run gives the same bits in another process, and no global generator is touched."""

import ast
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from data_partitioners import DirichletPartitioner, IidPartitioner, PathologicalPartitioner
from fedlight import FederatedDataModule, participation_report
from fedlight.arrivals import UniformArrivals
from fedlight.callbacks import ClientEvaluation, FedCheckpoint, TensorBoardMetrics
from fedlight.models import LogisticRegression
from tests.boring import fitted
from tests.kill_and_resume import CASES, Net, clients, train

ROOT = Path(__file__).parents[2]


def test_two_processes_give_the_same_bits(scripts, tmp_path):
    """One executor each: AFACS runs one by one, FedBuff stacked."""
    cases = ["AFACS", "FedBuff"]
    code = (
        "import sys; from pathlib import Path; from tests.kill_and_resume import train\n"
        "for case in sys.argv[1:]:\n"
        "    run = train(case, Path('other') / case, 6); print(run.fingerprint(), run.history)"
    )
    code, out, err = scripts.run(code, *cases)
    assert code == 0, err
    runs = [train(case, tmp_path / case, 6) for case in cases]
    assert out.splitlines() == [f"{run.fingerprint()} {run.history}" for run in runs]


def states():
    return (
        random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
        torch.get_rng_state().tolist(),
    )


@pytest.mark.parametrize("case", CASES)
def test_no_strategy_reads_or_changes_a_global_generator(case, tmp_path):
    prints = []
    for seed in (1, 2):
        module, given = Net(), {"executor": "sequential", **CASES[case]()}
        data = clients(given.pop("broken", False))
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        before = states()
        prints.append(fitted(module, data, **given, max_rounds=4).fingerprint())
        assert states() == before
    assert prints[0] == prints[1]


@pytest.mark.filterwarnings("ignore:TensorBoardMetrics has nothing")
@pytest.mark.parametrize(
    "partitioner",
    [IidPartitioner(4), PathologicalPartitioner(4, 2), DirichletPartitioner(4, alpha=1.0)],
    ids=["iid", "pathological", "dirichlet"],
)
def test_data_callbacks_and_reports_leave_the_generators_alone(partitioner, tmp_path):
    module, before = LogisticRegression(784, 10), states()
    data = FederatedDataModule("mnist-mini", partitioner, batch_size=500)
    callbacks = [ClientEvaluation(1, max_clients=2), FedCheckpoint(tmp_path), TensorBoardMetrics()]
    run = fitted(module, data, callbacks=callbacks, max_rounds=2)
    run.validate()
    participation_report(run)
    UniformArrivals(2).simulate(num_clients=4, max_rounds=3)
    assert states() == before


# One lends the generators out, the other looks at their states.
ALLOWED = {"_module/rng.py", "executors/_tracing/constants.py"}
GLOBAL = {
    "random": {"random", "seed", "choice", "choices", "shuffle", "sample", "randint", "uniform"},
    "np.random": {"rand", "randn", "seed", "choice", "shuffle", "permutation", "get_state"},
    "numpy.random": {"rand", "randn", "seed", "choice", "shuffle", "permutation", "get_state"},
    "torch": {"manual_seed", "seed"},
}
DRAWING = {"rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "normal"}


def test_no_source_names_a_global_generator():
    found = []
    for package in ("fedlight", "data_partitioners"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT / package))
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                owner, attribute = ast.unparse(node.func.value), node.func.attr
                named = {keyword.arg for keyword in node.keywords}
                if attribute in GLOBAL.get(owner, ()) or (
                    owner == "torch" and attribute in DRAWING and "generator" not in named
                ):
                    found.append((name, f"{owner}.{attribute}"))
    # A callback's own generator may be called `random`.
    assert {name for name, call in found if call != "random.choice"} <= ALLOWED, found
