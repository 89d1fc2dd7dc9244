"""The report of a study: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from fedlight.methods._papers import bibtex
from fedlight.plot import X_AXES
from fedlight.plot.figures import of_matplotlib
from fedlight.studies._measures import has_metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedlight.studies._origin import Origin
    from fedlight.studies.study import Study
    from fedlight.studies.tables import StudyTable

_SIZE = (5.0, 3.5)  # inches; on a screen of 400 pixels its text is still 10 pixels high
_MOST_PANELS = 12
# On a narrow screen each cell of a table is a line of its own, with the name of its column.
_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #212529; background: #fff;
  max-width: 68rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem;
  border-bottom: 1px solid #dee2e6; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
th.number { text-align: right; }
pre, code { font: .85rem/1.4 ui-monospace, monospace; white-space: pre-wrap; margin: 0;
  overflow-wrap: anywhere; }
figure { margin: 0; } figcaption { font-weight: 600; } img { width: 100%; height: auto; }
.figures { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
@media screen and (max-width: 40rem) {
  thead { display: none; }
  tr { display: block; border-bottom: 2px solid #adb5bd; padding: .4rem 0; }
  td, td.number { display: block; text-align: left; border: 0; padding: .1rem 0; }
  td::before { content: attr(data-column) ": "; color: #5a6268; }
  td:empty { display: none; }
}
@media print {
  body { font-size: 10pt; max-width: none; padding: 0; }
  figure, tr { break-inside: avoid; } h2 { break-after: avoid; }
  .figures { grid-template-columns: 1fr 1fr; }
}
"""


def page(study: Study, table: StudyTable, metric: str, title: str) -> str:
    """The page as text.

    Args:
        study: The study.
        table: Its table.
        metric: The metric of the figures.
        title: The title.

    Raises:
        ImportError: matplotlib is not installed.
    """
    head, lines = table.lines()
    notes = [table.title, *filter(None, [table.legend]), *table.failures]
    parts = [
        _table(head, lines, len(table.axes)),
        *(f"<p>{escape(note)}</p>" for note in notes),
        "<h2>Figures</h2>",
        f'<div class="figures">{"".join(_figures(study, metric))}</div>',
        *_made(study.origin),
        "<h2>References</h2>",
        f"<pre>{escape(bibtex({key for run in study.runs for key in run.papers}))}</pre>",
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *parts,
            "</body></html>\n",
        ]
    )


def _table(head: Sequence[str], lines: Iterable[Sequence[str]], words: int, code: str = "") -> str:
    """A table.

    Args:
        head: The names of its columns.
        lines: Its lines.
        words: How many columns hold words; those after them hold numbers.
        code: A column that holds code.
    """
    kinds = [""] * words + [' class="number"'] * (len(head) - words)
    top = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, head, strict=True))
    body = "".join(
        "<tr>"
        + "".join(
            f'<td{kind} data-column="{escape(name)}">'
            + (f"<code>{escape(cell)}</code>" if name == code else escape(cell))
            + "</td>"
            for kind, name, cell in zip(kinds, head, line, strict=True)
        )
        + "</tr>\n"
        for line in lines
    )
    return f"<table><thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table>"


def _figures(study: Study, metric: str) -> Iterable[str]:
    """The metric over virtual time and over rounds; for each value of an axis if there are two."""
    several = [axis for axis, names in study.axes.items() if 1 < len(names) <= _MOST_PANELS]
    parts = {"": study}
    if sum(len(names) > 1 for names in study.axes.values()) > 1 and several:
        axis = min(several, key=lambda each: len(study.axes[each]))
        parts = {f"{axis} = {n}": study.only(**{axis: n}) for n in study.axes[axis]}
    for title, part in parts.items():
        if not any(run.error is None and has_metric(run.history, metric) for run in part.runs):
            words = ": ".join(filter(None, [title, f"no run has a value of {metric}"]))
            yield f"<p>{escape(words)}</p>"
            continue
        for x in ("virtual_time", "round"):
            words = ", ".join(filter(None, [title, f"{metric} over {X_AXES[x]}"]))
            yield (
                f"<figure><figcaption>{escape(words)}</figcaption>"
                f'<img alt="{escape(words)}" src="{_inline(part.plot(x, metric=metric))}"></figure>'
            )


def _inline(figure: Figure) -> str:
    """A figure as the address of an image within the page; the figure is closed."""
    figure.set_size_inches(*_SIZE)
    file = io.BytesIO()
    # The same study has the same file: without a date, and with names that depend on the content.
    with of_matplotlib("pyplot").rc_context({"svg.hashsalt": "fedlight"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    of_matplotlib("pyplot").close(figure)
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"


def _made(origin: Origin | None) -> Iterable[str]:
    """The sections on how the study was made."""
    if origin is None:
        yield "<p>The settings of this study were not recorded.</p>"
        return
    if origin.differing:
        yield "<h2>Settings that differ</h2>"
        lines = [
            (axis, name, argument, words)
            for axis, values in origin.differing.items()
            for name, arguments in values.items()
            for argument, words in (arguments or {"": ""}).items()
        ]
        yield _table(["axis", "name", "argument", "value"], lines, 4, code="value")
    yield "<h2>Settings that all runs share</h2>"
    seeds = ", ".join(map(str, origin.seeds))
    yield _pairs("argument", {"seeds": seeds} | origin.shared)
    yield "<h2>How it was made</h2>"
    yield f"<p>By <code>fedlight.{escape(origin.function)}</code>, in the process of</p>"
    yield f"<pre>{escape(origin.command)}</pre>"
    yield "<h2>Versions</h2>"
    yield _pairs("package", origin.versions)


def _pairs(name: str, pairs: Mapping[str, str]) -> str:
    return _table([name, "value"], pairs.items(), 2, code="value")
