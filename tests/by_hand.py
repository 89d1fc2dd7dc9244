"""The worked examples of the methods' pages, as their tests compare them."""

import re
import tomllib
from pathlib import Path

_TEXTS = Path(__file__).parents[1] / "docs" / "methods" / "texts.toml"


def rows(name: str) -> list[list[str]]:
    """The cells of the example's table, without its head."""
    text = tomllib.loads(_TEXTS.read_text(encoding="utf-8"))[name]["by_hand"]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def versions(name: str) -> dict[int, float]:
    """By version the model that the table says."""
    found = (re.search(r"version (\d+): \$x = ([\d.]+)\$", row[-1]) for row in rows(name))
    return {int(each[1]): float(each[2]) for each in found if each}
