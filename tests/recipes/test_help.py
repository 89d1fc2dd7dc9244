"""`--help` of the recipes: quick, since little is loaded, and with words for each option."""

import ast
import contextlib
import io
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.py"))
HEAVY = {"torch", "lightning", "datasets", "pandas", "pyarrow", "matplotlib", "numpy", "scipy"}

ASK_ALL = """
import runpy, sys
for script in sys.argv[1:]:
    sys.argv = [script, "--help"]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        assert ended.code in (0, None), ended.code
    else:
        raise AssertionError(script)
print("LOADED", *sys.modules)
"""


def test_help_loads_nothing_large():
    """Modules are counted, not seconds; one process asks all recipes."""
    done = subprocess.run(
        [sys.executable, "-c", ASK_ALL, *map(str, RECIPES)],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'recipes'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = done.stdout.rpartition("LOADED ")[2].split()
    assert not HEAVY & {name.partition(".")[0] for name in loaded}
    assert len(loaded) < 1000
    assert done.stdout.count("usage: ") == len(RECIPES) >= 12


def shown(script, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    out = io.StringIO()
    with pytest.raises(SystemExit), contextlib.redirect_stdout(out):
        runpy.run_path(str(script), run_name="__main__")
    return " ".join(out.getvalue().split())


@pytest.mark.parametrize("script", RECIPES, ids=lambda script: script.stem)
def test_each_option_is_described(script, monkeypatch):
    text = shown(script, monkeypatch)
    tree = ast.parse(script.read_text())
    (main,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "main")
    assert " ".join(ast.get_docstring(tree).split()) in text
    for argument in main.args.args:
        _, _, described = text.rpartition(f"--{argument.arg} {argument.arg.upper()} ")
        words = described.partition("(type: ")[0]
        assert len(words.split()) >= 2, f"--{argument.arg} has no description"


def test_descriptions_say_what_is_done(monkeypatch):
    text = shown(ROOT / "recipes" / "method.py", monkeypatch)
    assert "Train one run with the parts given and one with FedBuff" in text
    assert "--aggregator.help lists the classes" in text
    assert "Train both" not in text
