"""What a wheel holds, and what an import, or a run, loads: modules are counted, not seconds.

The run uses the package as the wheel installs it, far from this folder.
"""

import subprocess
import sys
import zipfile
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


BUNDLED = """
import fedlight
from fedlight.conformance import load_cases
FederatedDataModule("mnist-mini", IidPartitioner(2)).setup()
print(fedlight.__file__, len(load_cases()))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the packages as a wheel brings them."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def files(folder: Path, *packages: str) -> set[str]:
    """The paths of all files of some packages."""
    return {
        str(path.relative_to(folder))
        for package in packages
        for path in (folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def printed(code: str, cwd: Path, packages: Path = ROOT) -> list[str]:
    """What a new process prints."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={"PYTHONPATH": str(packages), "HOME": str(cwd.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


SEEN = "import sys\ndef seen(): print('LOADED', *sys.modules)\n"


def loaded(lines: list[str]) -> list[set[str]]:
    """The modules that were loaded at each line ``seen()`` of the code that printed these lines."""
    return [set(line.split()[1:]) for line in lines if line.startswith("LOADED ")]


def packages(modules: set[str]) -> set[str]:
    """The packages of modules, without those of Python itself."""
    found = {name.partition(".")[0] for name in modules}
    return {name for name in found if name not in sys.stdlib_module_names} - {"__main__"}


def test_the_package_itself_loads_nothing(tmp_path: Path) -> None:
    before, after = loaded(printed(f"{SEEN}seen(); import fedlight; seen()", tmp_path))
    assert packages(after - before) == {"fedlight"}


def test_a_wheel_has_all_files(wheel: Path) -> None:
    both = ("fedlight", "data_partitioners")
    (about,) = wheel.glob("*.dist-info")
    assert files(wheel, ".") - files(wheel, about.name) == files(ROOT, *both)


def test_a_run_loads_no_library_that_it_does_not_use(wheel: Path, tmp_path: Path) -> None:
    """In one process: Lightning, the imports of a recipe, a run on tensors, data in a table.

    At its end, it reads what the wheel brings beside code.
    """
    parts = ["import lightning", RECIPE, RUN, TABLES]
    code = SEEN + "".join(f"{part}\nseen()\n" for part in parts) + BUNDLED
    lines = printed(code, tmp_path, wheel)
    lightning, imports, run, tables = loaded(lines)
    assert packages(imports) - packages(lightning) == {"fedlight", "data_partitioners"}
    more = [name for name in imports - lightning if not name.startswith(("fedlight", "data_p"))]
    assert len(more) < 30
    of_the_run = packages(run) - packages(lightning)
    assert not of_the_run & (LIBRARIES | {"tensorboard"}), of_the_run
    of_tables = packages(tables) - packages(lightning)
    assert {"datasets", "pyarrow"} <= of_tables
    assert not of_tables & {"jsonargparse", "ray", "scipy", "tensorboard"}
    file, cases = lines[-1].split()
    assert Path(file).is_relative_to(wheel)
    assert int(cases) >= 60
    assert not list(tmp_path.iterdir())
