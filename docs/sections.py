"""Puts sections of the README into pages of the guide.

A line of a page that ends with ``<!-- README: NAME -->`` is replaced by what the README has between
``<!-- start: NAME -->`` and ``<!-- end: NAME -->``. Outside of the site, such a line is a link.
"""

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parent.parent / "README.md"


def section(name: str) -> str:
    """Return a section of the README.

    Raises:
        ValueError: It has no such section, or more than one.
    """
    marked = rf"<!-- start: {name} -->\n(.*?)<!-- end: {name} -->"
    found = re.findall(marked, README.read_text(encoding="utf-8"), re.DOTALL)
    if len(found) != 1:
        raise ValueError(f"README.md has {len(found)} sections {name!r}")
    return str(found[0])


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Called by mkdocs with the text of each page."""
    wanted = re.compile(r"^.*<!-- README: (\w+) -->$", re.MULTILINE)
    return wanted.sub(lambda line: section(line[1]), markdown)
