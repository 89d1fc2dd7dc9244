"""What a project that one can join has: a notebook that runs, forms, one version throughout."""

import json
import re
import tomllib
from pathlib import Path

import matplotlib
import pytest
import yaml

import fedlight

ROOT = Path(__file__).parents[2]
FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"


def test_the_notebook_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    notebook = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text(encoding="utf-8"))
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    printed = capsys.readouterr().out
    assert re.search(r"^FedAvg best 0\.[5-9]", printed, re.MULTILINE)
    assert all(len(history) == 20 for history in names["histories"].values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", sorted(FORMS.glob("*_*.yml")), ids=lambda path: path.stem)
def test_a_form_has_what_its_host_needs(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form["name"]
    assert form["description"]
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in fields}) == len(fields)
    for part in fields:
        assert part["type"] in ("input", "textarea", "dropdown", "checkboxes")
        assert part["attributes"]["label"]


def test_the_workflow_runs_what_the_makefile_has() -> None:
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    runs = [step.get("run", "") for job in flow["jobs"].values() for step in job["steps"]]
    targets = {run.split()[1] for run in runs if run.startswith("make ")}
    assert targets == {"lint", "docs", "test"}
    made = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert targets <= set(made)
    assert "secrets" not in str(flow)


def test_the_citation_is_of_this_project() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert cited["title"].split(":")[0] == project["name"]
    assert cited["license"] == project["license"]
    assert cited["keywords"]


def test_all_places_name_the_same_version() -> None:
    """The newest release of the changelog, the citation, the scorecard and the package."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.+?)\](?: - (\S+))?$", changes, re.MULTILINE)
    assert headings[0] == ("Unreleased", "")
    version, date = headings[1]
    assert version == fedlight.__version__
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (cited["version"], str(cited["date-released"])) == (version, date)
    assert f"| fedlight {version} |" in (ROOT / "docs" / "scorecard.md").read_text(encoding="utf-8")


def test_the_way_to_contribute_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(
        r"`((?:fedlight|tests|docs|recipes|benchmarks|data_partitioners)/[\w/.]*)`", text
    )
    assert len(named) >= 10
    assert [path for path in named if not (ROOT / path).exists()] == []
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (ROOT / target).exists()
