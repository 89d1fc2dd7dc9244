"""What an import, or a run, loads: modules are counted, not seconds."""

import subprocess
import sys
from pathlib import Path

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


def loaded(code: str, cwd: Path) -> list[set[str]]:
    """The modules that a new process has loaded at each line ``seen()`` of some code."""
    code = f"import sys\ndef seen(): print('LOADED', *sys.modules)\n{code}"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if line.startswith("LOADED ")]
    return [set(line.split()[1:]) for line in lines]


def packages(modules: set[str]) -> set[str]:
    """The packages of modules, without those of Python itself."""
    found = {name.partition(".")[0] for name in modules}
    return {name for name in found if name not in sys.stdlib_module_names} - {"__main__"}


def test_the_package_itself_loads_nothing(tmp_path: Path) -> None:
    before, after = loaded("seen(); import fedlight; seen()", tmp_path)
    assert packages(after - before) == {"fedlight"}


def test_a_run_loads_no_library_that_it_does_not_use(tmp_path: Path) -> None:
    """In one process: Lightning, the imports of a recipe, a run on tensors, data in a table."""
    parts = ["import lightning", RECIPE, RUN, TABLES]
    found = loaded("".join(f"{part}\nseen()\n" for part in parts), tmp_path)
    lightning, imports, run, tables = found
    assert packages(imports) - packages(lightning) == {"fedlight", "data_partitioners"}
    more = [name for name in imports - lightning if not name.startswith(("fedlight", "data_p"))]
    assert len(more) < 30
    of_the_run = packages(run) - packages(lightning)
    assert not of_the_run & (LIBRARIES | {"tensorboard"}), of_the_run
    assert not list(tmp_path.iterdir())
    of_tables = packages(tables) - packages(lightning)
    assert {"datasets", "pyarrow"} <= of_tables
    assert not of_tables & {"jsonargparse", "ray", "scipy", "tensorboard"}
