"""The page "From a Lightning script": its columns of code, and its files of options."""

import re
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "from-lightning.md"
WIDEST = 60
"""Characters of a line that fit into half of the page."""


def columns() -> list[list[tuple[str, str]]]:
    """For each pair of columns its blocks, each with its language and text."""
    grids = re.findall(r'^<div class="grid" markdown>\n(.*?)^</div>', PAGE.read_text(), re.M | re.S)
    return [re.findall(r"^```(\w+)\n(.*?)^```", grid, re.M | re.S) for grid in grids]


def test_the_columns_are_pairs_that_fit():
    found = columns()
    assert len(found) >= 3
    for blocks in found:
        assert len(blocks) % 2 == 0
        for language, text in blocks:
            assert language in ("python", "yaml")
            assert text.startswith("# ")
            assert max(map(len, text.splitlines())) <= WIDEST


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of jsonargparse, by Lightning
@pytest.mark.parametrize("column", [0, 1], ids=["before", "after"])
def test_the_command_lines_of_the_page_run(column, monkeypatch, tmp_path):
    """Both sides with one step of training."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    (first, *_) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    data, *_, command = columns()
    scripts = [text for language, text in command if language == "python"]
    files = [text for language, text in command if language == "yaml"]
    for text in (first, *(text for _, text in data[: column + 1]), scripts[column]):
        exec(text, names)
    short = re.sub(r"max_(epochs|rounds): \d+", r"max_\1: 1", files[column])
    Path("run.yaml").write_text(f"{short}\n")
    monkeypatch.setattr(sys, "argv", ["train.py", "fit", "--config=run.yaml", "--model.lr=0.02"])
    names["main"]()
    assert len(list(tmp_path.glob("*/*/config.yaml"))) + len(
        list(tmp_path.glob("lightning_logs/*/config.yaml"))
    )
