"""Shows the mathematics of a page: $…$ in a line and $$…$$ by itself, as static MathML.

It is made when the guide is built, so that a reader's browser loads no script for it. Code is left
as it is.
"""

import re
from html import escape
from typing import Any

from latex2mathml.converter import convert

_CODE = r"^(?P<fence>```+|~~~+).*?^(?P=fence)|(?P<ticks>`+).+?(?<!`)(?P=ticks)(?!`)"
_MATHS = r"\$\$(?P<block>.+?)\$\$|\$(?!\s)(?P<inline>[^$\n]+?)(?<!\s)\$"
_FOUND = re.compile(rf"{_CODE}|{_MATHS}", re.MULTILINE | re.DOTALL)


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


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Called by mkdocs with the text of each page; Markdown must not see the formulas."""
    page.formulas = []

    def mark(found: re.Match[str]) -> str:
        if found["block"] is None and found["inline"] is None:
            return found[0]
        if found["block"] is not None:
            made = f'<div class="formula">{mathml(found["block"], "block")}</div>'
        else:
            made = mathml(found["inline"], "inline")
        page.formulas.append(made)
        return f"FORMULA{len(page.formulas) - 1}X"

    return _FOUND.sub(mark, markdown)


def on_page_content(html: str, page: Any, **kwargs: Any) -> str:
    """Called by mkdocs with the page as HTML."""
    for number, made in enumerate(page.formulas):
        mark = f"FORMULA{number}X"
        # A formula by itself is no paragraph.
        html = html.replace(f"<p>{mark}</p>", made).replace(mark, made)
    return html
