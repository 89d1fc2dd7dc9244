"""What an import, or a run, loads: modules are counted, not seconds."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

RECIPE = """
from data_partitioners import IidPartitioner, PathologicalPartitioner
from fedlight import Callback, ClientUpdate, FedTrainer, FederatedDataModule, compare
from fedlight.aggregators import AFACD, FedAvg
from fedlight.arrivals import ReplayArrivals, UniformArrivals, UniformSteps
from fedlight.callbacks import CSVMetrics, EarlyStopping, FedCheckpoint, TensorBoardMetrics
from fedlight.executors import RayExecutor, VectorizedExecutor
from fedlight.local_optimizers import FedProx, LocalSGD
from fedlight.models import LogisticRegression
"""
RUN = """
import torch
from torch.utils.data import TensorDataset
clients = [TensorDataset(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)) for _ in range(2)]
data = FederatedDataModule.from_client_datasets(clients, val_dataset=clients[0])
trainer = FedTrainer(
    arrivals=UniformArrivals(per_round=2),
    aggregator=FedAvg(),
    local_optimizer=LocalSGD(lr=0.1),
    max_rounds=2,
    accelerator="cpu",
    enable_progress_bar=False,
    logger=False,
)
trainer.fit(LogisticRegression(3, 2), data)
assert trainer.version == 2
"""
TABLES = """
import datasets
table = datasets.Dataset.from_dict({"x": [[0.0], [1.0]], "y": [0, 1]})
FederatedDataModule(table, IidPartitioner(2)).setup()
"""
LIBRARIES = {"datasets", "jsonargparse", "pandas", "pyarrow", "ray", "scipy"}
"""Libraries that take long to import and that only some runs use."""


def loaded(code: str, cwd: Path) -> set[str]:
    """The modules that a new process has loaded at the end of some code."""
    code += "\nimport sys\nprint('LOADED', *sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split("LOADED ")[1].split())


def packages(modules: set[str]) -> set[str]:
    """The packages of modules, without those of Python itself."""
    found = {name.partition(".")[0] for name in modules}
    return {name for name in found if name not in sys.stdlib_module_names} - {"__main__"}


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    return loaded("import lightning", tmp_path_factory.mktemp("empty"))


def test_the_package_itself_loads_nothing(tmp_path: Path) -> None:
    assert packages(loaded("import fedlight", tmp_path) - loaded("", tmp_path)) == {"fedlight"}


def test_the_imports_of_a_recipe_load_no_library_that_lightning_does_not(
    tmp_path: Path, lightning: set[str]
) -> None:
    more = loaded("import lightning" + RECIPE, tmp_path) - lightning
    assert packages(more) - packages(lightning) == {"fedlight", "data_partitioners"}
    assert len([name for name in more if not name.startswith(("fedlight", "data_p"))]) < 30


def test_a_run_on_tensors_loads_no_library_that_lightning_does_not(
    tmp_path: Path, lightning: set[str]
) -> None:
    found = packages(loaded(RECIPE + RUN, tmp_path)) - packages(lightning)
    assert not found & (LIBRARIES | {"tensorboard"}), found
    assert not list(tmp_path.iterdir())


def test_a_run_on_a_table_loads_no_more_than_it_uses(tmp_path: Path, lightning: set[str]) -> None:
    found = packages(loaded(RECIPE + TABLES, tmp_path)) - packages(lightning)
    assert {"datasets", "pyarrow"} <= found
    assert not found & {"jsonargparse", "ray", "scipy", "tensorboard"}
