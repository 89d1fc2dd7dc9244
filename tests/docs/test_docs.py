"""The README and the guide keep what they promise: blocks, commands, pictures, tags, links."""

import ast
import difflib
import importlib.util
import inspect
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import jsonargparse
import numpy as np
import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fedlight
from data_partitioners import IidPartitioner
from docs import sections
from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight.aggregators import AFACD, Aggregator, BufferedAggregator, FedAsync
from fedlight.arrivals import (
    ArrivalProcess,
    ContinuousArrivals,
    DurationModel,
    LocalSteps,
    PoissonArrivals,
    SynchronousArrivals,
    TickPattern,
    UniformArrivals,
    UniformSpeeds,
)
from fedlight.callbacks import ClientEvaluation, FedCheckpoint, TensorBoardMetrics
from fedlight.local_optimizers import LocalOptimizer
from fedlight.models import LogisticRegression
from tests.boring import Point, points, trainer
from tests.parity import lightning_page

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
PRINTED = ("asynchronous-or-not.md", "plan-rl.md")  # their blocks of text are what the code prints
COMMANDS = ("make", "pip", "python", "ray", "tensorboard")


def blocks(page: Path, language: str) -> list[str]:
    block = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return block.findall(page.read_text(encoding="utf-8"))


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


def shortened(block: str, page: Path) -> str:
    """A block with shorter runs and fewer seeds, unless the page shows what it draws or prints."""
    drawn = ".savefig(" in page.read_text(encoding="utf-8") and re.search("sweep|compare", block)
    if drawn or page.name in PRINTED:
        return block
    block = re.sub(r"\bseeds=range\(\d\)", "seeds=range(2)", block)
    return re.sub(r"\bmax_(rounds|updates)=\d{2,}\b", r"max_\1=10", block)


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")
@pytest.mark.parametrize("page", pages_with("python"), ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if page.name == "privacy.md":
        pytest.importorskip("opacus", reason="opacus is the extra 'privacy'")
    names: dict[str, object] = {"__name__": "__main__"}
    found, printed = blocks(page, "python"), []
    capsys.readouterr()
    for block in found:
        exec(compile(shortened(block, page), str(page), "exec"), names)
        printed.append(capsys.readouterr().out)
    if page.name in PRINTED:
        assert [each for each in printed if each] == blocks(page, "text")
    for picture in tmp_path.glob("*.png"):
        assert f"figures/{picture.name}" in page.read_text(encoding="utf-8")
        assert_alike(picture, FIGURES / picture.name)


def test_the_callback_of_the_guide_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    found = blocks(ROOT / "docs" / "extending.md", "python")
    (block,) = (each for each in found if "DroppedUpdates(Callback)" in each)
    assert len([line for line in block.splitlines() if line]) <= 15
    names: dict[str, type] = {}
    exec(block, names)
    counts = []
    for folder, stops in (("whole", [9]), ("resumed", [4, 9])):
        for stop in stops:
            run = trainer(
                aggregator=FedAsync(alpha=0.5, max_staleness=0),
                arrivals=UniformArrivals(per_round=2, max_staleness=2, local_steps=1),
                callbacks=[names["DroppedUpdates"](), FedCheckpoint(tmp_path / folder)],
                max_rounds=stop,
            )
            run.fit(Point(), points([1.0], [2.0], [3.0]), ckpt_path="last")
        dropped = sum(len(record.dropped) for record in run.history)
        assert run.history[-1].metrics["dropped"] == dropped
        counts.append([record.metrics["dropped"] for record in run.history])
    assert counts[0] == counts[1]
    assert 0 < counts[0][3] < counts[0][-1]


def test_the_callback_of_the_guide_may_be_added_when_a_run_is_resumed(tmp_path: Path) -> None:
    found = blocks(ROOT / "docs" / "extending.md", "python")
    (block,) = (each for each in found if "DroppedUpdates(Callback)" in each)
    names: dict[str, type] = {}
    exec(block, names)
    for stop, added in ((4, []), (9, [names["DroppedUpdates"]()])):
        run = trainer(
            aggregator=FedAsync(alpha=0.5, max_staleness=0),
            arrivals=UniformArrivals(per_round=2, max_staleness=2, local_steps=1),
            callbacks=[*added, FedCheckpoint(tmp_path)],
            max_rounds=stop,
        )
        run.fit(Point(), points([1.0], [2.0], [3.0]), ckpt_path="last")
    late = [len(record.dropped) for record in run.history[4:]]
    assert sum(late) > 0
    assert run.history[-1].metrics["dropped"] == sum(late)
    assert "dropped" not in run.history[3].metrics


@pytest.mark.parametrize(
    "base",
    [
        *(Aggregator, BufferedAggregator, ArrivalProcess, DurationModel, LocalSteps, TickPattern),
        *(LocalOptimizer, Callback),
    ],
)
def test_the_guide_names_all_that_can_be_overridden(base: type) -> None:
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", text))))
    own = {name for name in vars(base) if not name.startswith("_")}
    assert own - named - {"simulate"} == set()  # which is called, not overridden
    assert len(own) >= 4


def test_the_readme_is_short_and_begins_with_a_recipe() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) < 1250  # 900 without blocks of code and tables
    assert readme.index("```python") < 500


def test_a_section_of_the_readme_comes_into_a_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    page = sections.on_page_markdown(index)
    assert "<!--" not in page
    for part in ("make quickstart", "seed_everything(0)", "A run is a value"):
        assert (part in page) == (part != "make quickstart")
    with pytest.raises(ValueError, match="0 sections 'nothing'"):
        sections.on_page_markdown("See there. <!-- README: nothing -->")


def test_one_client_on_several_tasks() -> None:
    """The example of the guide is one of a real schedule; other processes have no overlaps."""

    def tasks(arrivals: ArrivalProcess, **limits: float) -> dict[int, list[tuple[float, float]]]:
        found: dict[int, list[tuple[float, float]]] = {}
        for event in arrivals.simulate(num_clients=8, **limits).events:
            found.setdefault(event.client, []).append((event.dispatched_at, event.time))
        return found

    drawn = tasks(UniformArrivals(per_round=4, max_staleness=4), max_rounds=8)
    assert {(1.0, 5.0), (3.0, 6.0)} <= set(drawn[3])
    for arrivals in (
        UniformArrivals(per_round=4),
        SynchronousArrivals(per_round=4),
        ContinuousArrivals(UniformSpeeds(0.8), resume="on_arrival"),
        PoissonArrivals(rate=9.0, durations=UniformSpeeds(0.8)),
    ):
        limits = {} if arrivals.by_rounds else {"buffer_size": 2}
        for each in tasks(arrivals, max_time=40, **limits).values():
            each.sort()
            assert all(one[1] <= other[0] for one, other in pairwise(each))


def test_the_examples_of_the_guide_are_short() -> None:
    """At most 15 lines each, without imports, docstrings and empty lines."""
    found = {}
    for block in blocks(ROOT / "docs" / "extending.md", "python"):
        tree = ast.parse(block)
        left_out: set[int] = set()
        for node in ast.walk(tree):
            text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if text or isinstance(node, ast.Import | ast.ImportFrom):
                left_out |= set(range(node.lineno, node.end_lineno + 1))
        lines = enumerate(block.splitlines(), start=1)
        found[block] = sum(bool(line.strip()) for n, line in lines if n not in left_out)
    assert len(found) >= 10
    assert {block: count for block, count in found.items() if not 1 <= count <= 15} == {}


def assert_alike(drawn: Path, shown: Path) -> None:
    """What a block draws is the picture beside it, but for what differs between machines."""
    pictures = [Image.open(path).convert("RGB") for path in (drawn, shown)]
    assert pictures[0].size == pictures[1].size
    first, second = (np.asarray(picture, dtype=np.int16) for picture in pictures)
    assert abs(first - second).mean() < 3, f"{shown.name} is not what its block draws"


def commands(block: str) -> Iterator[list[str]]:
    """The commands that a shell block would run, as a shell reads them."""
    notes = [f'{name}() {{ printf "%s\\t" {name} "$@"; echo; }}' for name in COMMANDS]
    script = "\n".join([*notes, "PATH=", block])
    done = subprocess.run(["/bin/bash", "-euc", script], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        yield line.split("\t")[:-1]


@cache
def imported(script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{script.stem}", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def parser(function: Callable[..., None]) -> jsonargparse.ArgumentParser:
    return jsonargparse.auto_parser(function, exit_on_error=False)


@pytest.mark.parametrize("page", pages_with("bash"), ids=lambda page: page.name)
def test_the_commands_of_a_page_can_be_run(page: Path) -> None:
    for block in blocks(page, "bash"):
        for name, *arguments in commands(block):
            if name == "make":
                run = ["make", "--dry-run", *arguments]
                subprocess.run(run, cwd=ROOT, capture_output=True, check=True)
            elif name == "python" and arguments[0] == "-m":
                assert importlib.util.find_spec(arguments[1]) is not None
            elif name == "python":
                module = imported(ROOT / arguments[0])
                if arguments[1:]:
                    parser(module.main).parse_args(arguments[1:])
            elif name == "ray":
                scripts = pytest.importorskip("ray.scripts.scripts")
                scripts.cli.commands[arguments[0]].make_context(arguments[0], arguments[1:])
            elif name == "pip":
                assert set(re.findall(r"\[(\w+)\]", " ".join(arguments))) <= EXTRAS.keys()


def test_fedlight_is_installed_from_where_it_is() -> None:
    """It is not on the package index, so its bare name is never told to pip."""
    folders = (ROOT / "fedlight", ROOT / "data_partitioners", ROOT / "recipes")
    sources = [path for folder in folders for path in folder.glob("**/*.py")]
    for path in [*PAGES, *sources]:
        for told in re.findall(r"pip install[^\n`#]*", path.read_text(encoding="utf-8")):
            bare = re.search(r"[\s'\"]fedlight(\[[\w,]+\])?(?=[\s'\")]|$)(?! @)", told)
            assert bare is None, f"{path.name}: {told}"


def test_what_the_checks_above_would_miss() -> None:
    assert len(blocks(ROOT / "README.md", "python")) >= 2
    assert {page.name for page in pages_with("bash")} >= {"README.md", "reproduction.md"}
    assert list(commands("for x in 1 2; do\n  python a.py --x $x \\\n    --y '[b, c]'\ndone")) == [
        ["python", "a.py", "--x", str(x), "--y", "[b, c]"] for x in (1, 2)
    ]
    with pytest.raises(subprocess.CalledProcessError):
        list(commands("pyton a.py"))


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_figure_is_shown() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert all(f"figures/{path.name}" in text for path in FIGURES.iterdir())


def test_tensorboard_has_the_tags_that_the_guide_names(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "tensorboard.md").read_text(encoding="utf-8")
    section = text.split("\n## The tags\n")[1].split("\n## ")[0]
    named = set(re.findall(r"`((?:train_|val_|fed/|clients/|updates/)[\w/]+)`", section))
    trainer = FedTrainer(
        arrivals=UniformArrivals(per_round=2),
        aggregator=AFACD(),
        callbacks=[TensorBoardMetrics(histogram_every_n_rounds=1), ClientEvaluation(1)],
        logger=TensorBoardLogger(tmp_path, name="", version=""),
        max_rounds=1,
    )
    trainer.fit(
        LogisticRegression(28 * 28, 10), FederatedDataModule("mnist-mini", IidPartitioner(2))
    )
    events = EventAccumulator(str(tmp_path)).Reload()
    kinds = {kind: set(events.Tags()[kind]) for kind in ("scalars", "histograms", "images")}
    assert len(named) >= 25
    assert named <= set().union(*kinds.values())
    assert kinds["histograms"] | kinds["images"] <= named
    assert {
        tag for tag in kinds["scalars"] if tag.startswith("fed/") and "/by_" not in tag
    } <= named


def test_the_page_of_lightning_is_the_generated_one() -> None:
    written = lightning_page.PAGE.read_text(encoding="utf-8").splitlines()
    changes = [
        line
        for line in difflib.unified_diff(written, lightning_page.page().splitlines(), n=0)
        if line[:1] in "+-"
    ]
    assert changes == [], f"write it anew: {lightning_page.COMMAND}"


def test_the_reference_has_every_package() -> None:
    text = "".join(
        page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md")
    )
    shown = set(re.findall(r"^::: ([\w.]+)", text, re.MULTILINE))
    # Like the server and the run, the clients' local runs are no part of the reference.
    names = {path.parent.name for path in ROOT.glob("fedlight/[a-z]*/__init__.py")} - {"clients"}
    packages = {f"fedlight.{name}" for name in names}
    assert {*packages, "data_partitioners"} <= shown
    for name in fedlight.__all__:
        public = getattr(fedlight, name)
        home = public.__name__ if inspect.ismodule(public) else f"{public.__module__}.{name}"
        assert any(home.startswith(part) for part in shown), f"{name} is not there"
