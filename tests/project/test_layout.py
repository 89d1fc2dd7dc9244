"""Imports go one way, and what needs no torch does not load it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# The parts of fedlight, from the lowest: each may import, directly or through others, only parts of
# the lines above its own. That holds for imports at run time and for typing alike.
ORDER = [
    {"_support"},
    {"types"},
    {"events", "randomness", "parameters", "checkpoint", "theory", "data", "models"},
    {"loop"},
    {"arrivals", "channel"},
    {"local_optimizers", "aggregators", "settings"},
    {"_module", "methods", "plot"},
    {"executors"},
    {"clients"},
    {"_runs"},
    {"server"},
    {"early_server"},
    {"run", "participation"},
    {"callbacks", "privacy"},
    {"_fit"},
    {"trainer"},
    {"studies"},
    {"citation", "comparison", "conformance", "cli", "independence"},
]
# Parts that may name higher ones for typing: a callback's hooks are called with the trainer.
FOR_TYPING = ("callbacks",)
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}


def modules(package: Path) -> dict[str, Path]:
    """Dotted name to file, for all modules below a folder at the top of the repository."""
    named = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    assert named, f"{package} holds no module"
    return named


def statements(tree: ast.AST, typing_too: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """All imports, those inside of functions too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body if typing_too else []:
                yield from statements(ast.Module([child], []), typing_too)
            for child in node.orelse:
                yield from statements(ast.Module([child], []), typing_too)
        else:
            yield from statements(node, typing_too)


@cache
def parsed(source: str) -> ast.Module:
    """A module; many tests look at each of them."""
    return ast.parse(source)


@cache
def imported(name: str, path: Path, source: str, typing_too: bool = True) -> frozenset[str]:
    """Dotted names that the module `name` imports; of `from a import b`, `a.b`."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    names = set()
    for node in statements(parsed(source), typing_too):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join(above + ([node.module] if node.module else []))
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return frozenset(names)


def part_of(name: str, known: set[str]) -> str | None:
    """The part of fedlight that an imported name lies in; "fedlight" for what it re-exports."""
    top, _, rest = name.partition(".")
    if top != "fedlight" or rest == "__version__":
        return None
    first = rest.partition(".")[0]
    return first if first in known else "fedlight"


@cache
def parts_graph() -> dict[str, set[str]]:
    """Which part of fedlight imports which; callbacks may name others for typing."""
    named = modules(ROOT / "fedlight")
    known = {name.split(".")[1] for name in named if "." in name}
    graph: dict[str, set[str]] = {part: set() for part in known}
    for name, path in named.items():
        if name == "fedlight":
            continue  # the package itself re-exports all of them
        own = name.split(".")[1]
        names = imported(name, path, path.read_text(), typing_too=own not in FOR_TYPING)
        graph[own] |= {part for n in names if (part := part_of(n, known))} - {own}
    return graph


def chains(graph: dict[str, set[str]], start: str) -> dict[str, list[str]]:
    """All that a part imports in the end, each with a shortest way to it."""
    ways = {start: [start]}
    queue = [start]
    for part in queue:
        for following in sorted(graph.get(part, set()) - ways.keys()):
            ways[following] = [*ways[part], following]
            queue.append(following)
    return ways


def test_every_part_has_a_rank() -> None:
    assert parts_graph().keys() == RANK.keys()
    for package in ("fedlight", "data_partitioners"):
        assert (ROOT / package / "py.typed").is_file()


@pytest.mark.parametrize("part", sorted(RANK))
def test_imports_go_one_way(part: str) -> None:
    wrong = [
        " <- ".join(reversed(way))
        for end, way in chains(parts_graph(), part).items()
        if end != part and RANK.get(end, len(ORDER)) >= RANK[part]
    ]
    assert wrong == []


def test_partitioners_stand_alone() -> None:
    for name, path in modules(ROOT / "data_partitioners").items():
        tops = {n.split(".")[0] for n in imported(name, path, path.read_text())}
        assert not tops & {"torch", "lightning", "fedlight", "recipes"}, path


def test_nothing_imports_recipes() -> None:
    for folder in ("fedlight", "data_partitioners", "tests"):
        for name, path in modules(ROOT / folder).items():
            source = path.read_text()
            if "recipes" in source:  # most need not be parsed
                tops = {n.split(".")[0] for n in imported(name, path, source)}
                assert "recipes" not in tops, path


@pytest.mark.parametrize("module", ["fedlight.arrivals", "data_partitioners"])
def test_torch_is_not_loaded(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr or f"{module} loads torch"


def sources() -> Iterator[tuple[Path, ast.Module]]:
    """All modules of the packages, parsed."""
    for package in ("fedlight", "data_partitioners"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT), parsed(path.read_text())


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """A shortest way from each module back to itself."""
    found = []
    for start in graph:
        for following in graph[start]:
            way = chains(graph, following).get(start)
            if way is not None:
                found.append([start, *way])
    return found


def test_no_module_imports_itself_in_the_end() -> None:
    """Neither at the top of a module nor within a function; for typing it may."""
    named = modules(ROOT / "fedlight")
    graph = {}
    for name, path in named.items():
        seen = imported(name, path, path.read_text(), typing_too=False)
        # `from a import b` is a.b, or b of a; a package's own modules do not import it.
        graph[name] = {other for n in seen for other in (n, n.rpartition(".")[0]) if other in named}
        graph[name] -= {name, *(name[:i] for i, c in enumerate(name) if c == ".")}
    assert cycles(graph) == []


def test_there_is_one_event_loop() -> None:
    """One place takes events from the schedule; one place takes them from the queue."""
    taken = {"next": [], "pop": []}
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = ast.unparse(node.func.value)
                if node.func.attr == "next" and owner.endswith("schedule"):
                    taken["next"].append(str(path))
                if node.func.attr == "pop" and owner.endswith("queue"):
                    taken["pop"].append(str(path))
    assert taken == {"next": ["fedlight/loop.py"], "pop": ["fedlight/arrivals/schedule.py"]}


# Private attributes of other libraries' objects that have no public counterpart: Lightning's
# modules and checkpoint callback, torch's schedulers, torchmetrics' collections, TensorBoard's
# writer, tensors, the datasets library's data sets, and Ray's free resources by node.
FOREIGN = {
    "_private",
    "_base", "_buffers", "_default_hp_metric", "_device", "_enable_compute_groups",
    "_experiment", "_fabric", "_fingerprint", "_forward_cache", "_get_file_writer", "_trainer",
    "_groups_checked", "_log_hyperparams", "_schema", "_version", "_unsafe_view", "_log_softmax",
    "_ConvNd", "_last_lr",
    "_every_n_epochs", "_every_n_train_steps", "_train_time_interval",
    "_foreach_add_", "_foreach_addcmul_", "_foreach_copy_", "_foreach_mul", "_foreach_sub",
}  # fmt: skip


def test_nobody_reads_what_is_private_to_another_object() -> None:
    found = []
    for path, tree in sources():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
                continue
            private = not node.attr.startswith("__") and node.attr not in FOREIGN
            private = private and node.attr not in ("_replace", "_asdict", "_make")
            owner = ast.unparse(node.value)
            if private and owner not in ("self", "cls", "torch", "torch._C"):
                found.append(f"{path}:{node.lineno} {owner}.{node.attr}")
    # `@classmethod`s and copies of the same class build their own objects.
    allowed = ("module._loaded", "other._loaded", "other._partition_seed")
    assert [each for each in found if not each.endswith(allowed)] == []


STRATEGIES = ("aggregator", "arrivals", "optimizer", "process", "strategy", "executor")


def test_nobody_guesses_a_strategy_by_its_attributes() -> None:
    found = []
    for path, tree in sources():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in ("getattr", "hasattr") and node.args:
                owner = ast.unparse(node.args[0]).rpartition(".")[2]
                if any(word in owner for word in STRATEGIES):
                    found.append(f"{path}:{node.lineno} {ast.unparse(node)}")
    assert found == []


def test_the_trainer_leaves_the_work_to_a_few_modules() -> None:
    """It imports at most fifteen modules of ours, those for typing included."""
    path, named = ROOT / "fedlight" / "trainer.py", modules(ROOT / "fedlight")
    names = imported("fedlight.trainer", path, path.read_text())
    used = {other for n in names for other in (n, n.rpartition(".")[0]) if other in named}
    assert len(used) <= 15, sorted(used)


def annotates(node: ast.stmt) -> bool:
    """Whether a statement declares an attribute and gives it no value."""
    return isinstance(node, ast.AnnAssign) and node.value is None


def test_no_mixin_declares_attributes_of_its_host() -> None:
    """A class without a base declares only what it assigns itself.

    Else it is one half of the class that inherits from it. Records (decorated) declare fields.
    """
    found = []
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.decorator_list and not node.bases:
                declared = {each.target.id for each in node.body if annotates(each)}
                assigned = {
                    each.attr
                    for each in ast.walk(node)
                    if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
                }
                found += [f"{path}:{node.name}.{name}" for name in declared - assigned]
    assert found == []


SOURCE = """
import os
import fedlight.events
from typing import TYPE_CHECKING
from fedlight import FedTrainer
from .rounds import UniformArrivals
from .. import parameters
if TYPE_CHECKING:
    from ..trainer import FedTrainer
else:
    import fedlight.models

def f():
    from fedlight.clients.pool import Pool
"""


def test_imports_are_found() -> None:
    """The reader above sees each way of writing an import."""
    seen = imported("fedlight.arrivals.base", Path("base.py"), SOURCE, typing_too=False)
    assert seen == {
        "os",
        "fedlight.events",
        "typing.TYPE_CHECKING",
        "fedlight.FedTrainer",
        "fedlight.arrivals.rounds.UniformArrivals",
        "fedlight.parameters",
        "fedlight.models",
        "fedlight.clients.pool.Pool",
    }
    with_typing = imported("fedlight.arrivals.base", Path("base.py"), SOURCE)
    assert with_typing - seen == {"fedlight.trainer.FedTrainer"}
    known = {"events", "parameters"}
    assert part_of("fedlight.events.EventQueue", known) == "events"
    assert part_of("fedlight.FedTrainer", known) == "fedlight"
    assert part_of("torch.nn", known) is None
    assert part_of("fedlight.__version__", known) is None


def test_chains_go_through_helpers() -> None:
    graph = {"events": {"helper"}, "helper": {"trainer"}, "trainer": {"events"}}
    assert chains(graph, "events")["trainer"] == ["events", "helper", "trainer"]


def test_the_tracer_has_one_name() -> None:
    """Modules outside `_tracing` import `TracedStep` from it and nothing else."""
    own = "fedlight.executors._tracing"
    seen = {
        (name, each)
        for name, path in modules(ROOT / "fedlight").items()
        if name != own and not name.startswith(f"{own}.")
        for each in imported(name, path, path.read_text())
        if each.startswith(own)
    }
    assert seen == {("fedlight.executors.vectorized", f"{own}.TracedStep")}
