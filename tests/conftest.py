"""What all tests share; all but the data hold for the examples in docstrings as well."""

import functools
import gc
import inspect
import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings

from tests.scripts import Scripts, waiting_interpreter

# Read by torch when it is first imported, here and in subprocesses; the models are too small for
# threads to help. (Calling `torch.set_num_threads` would import torch for tests that need none.)
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile(
    "fedlight", deadline=None, derandomize=True, database=None, max_examples=50
)
settings.load_profile("fedlight")


class _EmptyFolder:
    """Fixtures in a plugin reach further than this folder: to the docstrings of the packages."""

    _spare: Path | None = None

    @pytest.fixture(autouse=True)
    def empty_folder(
        self,
        request: pytest.FixtureRequest,
        tmp_path_factory: pytest.TempPathFactory,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[None]:
        """Each test works in an empty folder, so that none litters the repository.

        It is `tmp_path` of a test that asks for it. To make and remove one takes as long as a small
        test, so the others have one folder in common, until one of them leaves something there.
        """
        if "tmp_path" in request.fixturenames:
            monkeypatch.chdir(request.getfixturevalue("tmp_path"))
            yield
            return
        if self._spare is None:
            self._spare = tmp_path_factory.mktemp("empty")
        monkeypatch.chdir(self._spare)
        yield
        if not self._spare.is_dir() or os.listdir(self._spare):
            shutil.rmtree(self._spare, ignore_errors=True)
            self._spare = None

    @pytest.fixture(autouse=True)
    def no_open_figures(self) -> Iterator[None]:
        """Figures of pyplot stay open in a process; from the twenty-first on it warns."""
        yield
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:
            pyplot.close("all")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Imports and tests are millions of objects that all stay: the collector need not look."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Spare the tests what is the same for all of them.

    The garbage collector leaves out what lives as long as the process: modules and tests.
    """
    gc.collect()
    gc.freeze()
    _read_entry_points_once()
    _read_no_sources()


def _read_entry_points_once() -> None:
    """Spare each trainer the reading of all installed packages' metadata, which do not change."""
    registry = sys.modules.get("lightning.fabric.utilities.registry")
    if registry is not None:
        registry.entry_points = functools.cache(registry.entry_points)


def _read_no_sources() -> None:
    """Let ``load_from_checkpoint`` see the names of the files that call it, not their lines.

    Lightning looks whether torch's scripts call it. To read the sources of all callers takes as
    long as several fits.
    """
    helpers = sys.modules.get("lightning.pytorch.utilities.model_helpers")
    if helpers is not None:
        helpers.inspect = SimpleNamespace(**{**vars(inspect), "stack": _callers})


def _callers() -> list[SimpleNamespace]:
    """As much of ``inspect.stack()`` as is read there."""
    frames = traceback.walk_stack(sys._getframe(1))
    return [SimpleNamespace(filename=frame.f_code.co_filename) for frame, _ in frames]


def pytest_configure(config: pytest.Config) -> None:
    # To wait for the disk keeps a file over a loss of power, which no test is about: what a killed
    # process has written stays. A descriptor that is not open is still an error.
    os.fsync = os.fstat
    config.pluginmanager.register(_EmptyFolder(), "fedlight-empty-folder")


@pytest.fixture(scope="session")
def scripts() -> Iterator[Scripts]:
    """Starts scripts in processes of their own that need not import torch."""
    with waiting_interpreter() as made:
        yield made


@pytest.fixture
def one_thread() -> Iterator[None]:
    """So that sums are taken in the order in which a worker takes them, which has one thread."""
    import torch  # most tests that share this file need none

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def fedlight_data() -> Path:
    """The folder with the data sets that are too large to be bundled, or a skip."""
    folder = os.environ.get("FEDLIGHT_DATA")
    if not folder:
        pytest.skip("FEDLIGHT_DATA is unset: it should name a folder with mnist/ and shakespeare/")
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"FEDLIGHT_DATA={folder!r} is not a folder")
    return path
