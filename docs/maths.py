"""Shows the mathematics of pages and docstrings as static MathML.

A formula is $…$ in a line, or $$…$$ by itself. It is converted when the guide is built, so that a
reader's browser loads no script for it. Code is left as it is. mkdocs loads this file as a hook for
the pages, and mkdocstrings as an extension of Griffe for the docstrings.
"""

import re
from html import escape
from typing import Any

import griffe
from latex2mathml.converter import convert

_CODE = r"^(?P<fence>```+|~~~+).*?^(?P=fence)|(?P<ticks>`+).+?(?<!`)(?P=ticks)(?!`)"
_MATHS = r"\$\$(?P<block>.+?)\$\$|\$(?!\s)(?P<inline>[^$\n]+?)(?<!\s)\$"
_FOUND = re.compile(rf"{_CODE}|{_MATHS}", re.MULTILINE | re.DOTALL)
# A formula by itself is no paragraph.
_MARK = re.compile(r"<p>FORMULAB([0-9a-f]+)X</p>|FORMULA(B?)([0-9a-f]+)X")


def mathml(tex: str, display: str) -> str:
    """Return a formula as MathML, with its TeX as the text for those who cannot see it.

    Args:
        tex: The formula.
        display: "block" or "inline".

    Raises:
        ValueError: Something of it is not known; it would be shown as its TeX.
    """
    made = convert(tex.strip(), display=display)
    if "\\" in made or ">&amp;<" in made or ">&<" in made:
        raise ValueError(f"not all of this formula can be shown: {tex}")
    return made.replace("<math ", f'<math alttext="{escape(" ".join(tex.split()))}" ', 1)


def marked(text: str) -> str:
    """Replace each formula by a mark that holds it, in which Markdown finds nothing to change."""

    def mark(found: re.Match[str]) -> str:
        if found["block"] is not None:
            return f"FORMULAB{found['block'].encode().hex()}X"
        if found["inline"] is not None:
            return f"FORMULA{found['inline'].encode().hex()}X"
        return found[0]

    return _FOUND.sub(mark, text)


class Formulas(griffe.Extension):
    """Marks the formulas of docstrings, which become Markdown after the text of their page."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called with everything that may have a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = marked(obj.docstring.value)


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Called by mkdocs with the text of each page; Markdown must not see the formulas."""
    return marked(markdown)


def on_page_content(html: str, **kwargs: Any) -> str:
    """Called by mkdocs with the page as HTML."""

    def formula(found: re.Match[str]) -> str:
        alone, block, other = found.groups()
        tex = bytes.fromhex(alone or other).decode()
        if alone or block:
            return f'<div class="formula">{mathml(tex, "block")}</div>'
        return mathml(tex, "inline")

    return _MARK.sub(formula, html)
