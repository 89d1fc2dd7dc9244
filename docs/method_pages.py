"""Makes the pages on methods: texts.toml beside docstrings, source and figures.

    python docs/method_pages.py                  # writes docs/methods/*.md
    python docs/method_pages.py --timelines      # also draws what each call does
    python docs/method_pages.py --figures        # also runs their commands and draws the figures
    python docs/method_pages.py --figures MIFA   # those of one method

mkdocs loads this file as a hook, which lists the pages in the site's menu.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from functools import cache
from inspect import getdoc, getsource, isclass
from io import StringIO
from pathlib import Path
from pkgutil import resolve_name
from textwrap import dedent
from typing import Any

import torch
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule, FedTrainer, cite, plot
from fedlight.callbacks import EventLog
from fedlight.models import LogisticRegression

FOLDER = Path(__file__).parent / "methods"
FIGURES = Path(__file__).parent / "figures" / "methods"
RECIPE = Path(__file__).parent.parent / "recipes" / "method.py"
TEXTS: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "texts.toml").read_text("utf-8"))
KINDS = {
    "aggregators": "Aggregators",
    "local_optimizers": "Local optimizers",
    "arrivals": "Arrivals",
}
REPEATED = {"BufferedAggregator", "Aggregator", "LocalOptimizer", "ArrivalProcess"}


def method(name: str) -> Any:
    """The class that a page is about."""
    return getattr(resolve_name(f"fedlight.{kind(name)}"), name)


def kind(name: str) -> str:
    """The package of a method: "aggregators", "local_optimizers" or "arrivals"."""
    return next(k for k in KINDS if name in resolve_name(f"fedlight.{k}").__all__)


def title(name: str) -> str:
    """The heading of a page."""
    return str(TEXTS[name].get("title", name))


def docstring(name: str) -> dict[str, str]:
    """The parts of a method's docstring: "summary", "body" and "Source"."""
    text = getdoc(method(name)) or ""
    summary, _, rest = text.partition("\n\n")
    body = re.split(r"^(?:Args|Attributes|Raises|Source|Example):", rest, flags=re.MULTILINE)[0]
    source = re.search(r"^Source: (.*?)(?:\n\n|\Z)", rest, re.MULTILINE | re.DOTALL)
    return {
        "summary": " ".join(summary.split()),
        "body": re.sub(r"::$", ":", body.strip(), flags=re.MULTILINE),
        "Source": "" if source is None else " ".join(source[1].split()),
    }


def linked(text: str, own: str) -> str:
    """Make links of addresses, and of the names of methods that have pages."""
    text = re.sub(r"(?<!\()https?://[^\s,;]+[^\s,;.]", lambda url: f"<{url[0]}>", text)
    pages = {
        each: name for name, texts in TEXTS.items() for each in [name, *texts.get("covers", ())]
    }

    def link(found: re.Match[str]) -> str:
        page = pages.get(found[1], own)
        return found[0] if page == own else f"[`{found[1]}`]({page}.md)"

    return re.sub(r"(?<![`\[])`(?:fedlight\.\w+\.)?(\w+)`(?![`\]])", link, text)


def code(name: str) -> str:
    """The functions that are the rule, from the source."""
    shown = []
    for place in TEXTS[name]["code"]:
        module, _, path = place.rpartition(":")
        found: Any = resolve_name(module) if module else method(name)
        for part in path.split("."):
            found = getattr(found, part)
        found = found.fget if isinstance(found, property) else found
        header = f"# {module.replace('.', '/')}.py, {path.partition('.')[0]}\n" if module else ""
        shown.append(header + dedent(getsource(found)).strip())
    return "\n\n".join(shown)


@cache
def trainers(name: str) -> dict[str, FedTrainer]:
    """The trainers that a page's call makes, by name; the first one is the method's."""
    names: dict[str, Any] = {}
    exec(TEXTS[name]["call"], names)
    return {each: value for each, value in names.items() if isinstance(value, FedTrainer)}


def entries(name: str) -> str:
    """The BibTeX of all that a page's call uses, each paper once, without fedlight's own."""
    found = {each: None for made in trainers(name).values() for each in cite(made).split("\n\n")}
    return "\n\n".join(each for each in found if not each.startswith("@misc{fedlight,"))


def eight_clients() -> FederatedDataModule:
    """The data of the timelines: eight clients of a few numbers each."""
    random = torch.Generator().manual_seed(0)
    clients = [
        TensorDataset(torch.randn(6, 4, generator=random), torch.arange(6) % 2) for _ in range(8)
    ]
    return FederatedDataModule.from_client_datasets(clients, batch_size=3)


def fitted(made: FedTrainer, **options: Any) -> FedTrainer:
    """A trainer with the strategies of another one that has trained the eight clients."""
    run = FedTrainer(
        arrivals=made.arrivals,
        aggregator=made.aggregator,
        local_optimizer=made.local_optimizer,
        channel=made.channel,
        accelerator="cpu",
        executor="sequential",
        logger=False,
        enable_progress_bar=False,
        **options,
    )
    run.fit(LogisticRegression(4, 2), eight_clients())
    return run


def in_use(name: str) -> str:
    """The call of a page, its timeline, and where to start."""
    texts = TEXTS[name]
    hints = {"Client side": texts.get("side"), "Server rate": texts.get("rate")}
    called = dict.fromkeys(re.findall(r"\bmethods\.(\w+)\(", texts["call"]))
    links = [f"[`methods.{each}`](../api/methods.md#fedlight.methods.{each})" for each in called]
    said = "\n".join(f"- **{what}.** {linked(text, name)}" for what, text in hints.items() if text)
    parts = [
        f"```python\n{texts['call'].strip()}\n```",
        f"![The call at work: tasks of eight clients over virtual time]"
        f"(../figures/methods/{name}.svg)",
        f"{'The first call' if len(trainers(name)) > 1 else 'This call'} with eight clients: a bar "
        "is a task, from the pull of a model to the arrival of the update; a line is a new version "
        f"of the server's model. Arguments: {', '.join(links)}.",
        said,
    ]
    return "\n\n".join(part for part in parts if part)


def commands(name: str) -> list[list[str]]:
    """The commands of the experiment, as words; the last one makes the figure."""
    options = TEXTS[name]["options"]
    lines = [options] if isinstance(options, str) else options
    return [["python", "recipes/method.py", *shlex.split(line)] for line in lines]


def command_lines(words: list[str]) -> str:
    """A command in lines of at most about 100 characters."""
    lines, start = [""], [*words]
    while start:
        option = [start.pop(0)]
        while start and not start[0].startswith("--"):
            option.append(start.pop(0))
        part = shlex.join(option)
        if lines[-1] and len(lines[-1]) + len(part) > 96:
            lines.append("   ")
        lines[-1] += f" {part}" if lines[-1] else part
    return " \\\n".join(lines)


def table(pairs: list[list[str]]) -> str:
    """A table of readings."""
    rows = [" | ".join(pair) for pair in pairs]
    return "\n".join(
        ["| chosen here | alternative |", "|---|---|", *(f"| {row} |" for row in rows)]
    )


def page(name: str) -> str:
    """The text of a method's page."""
    texts, doc = TEXTS[name], docstring(name)
    others = texts["others"] or ["No difference of another code is on record for this method."]
    names = [name, *texts.get("covers", ())]
    reference = ", ".join(f"[`{n}`](../api/{kind(n)}.md#fedlight.{kind(n)}.{n})" for n in names)
    ran = "\n".join(command_lines(words) for words in commands(name))
    parts = [
        "<!-- Made by docs/method_pages.py from texts.toml, docstrings and source. -->",
        f"# {title(name)}",
        f"## In use\n\n{in_use(name)}",
        f"## The rule\n\n{texts['rule'].strip()}",
        linked(doc["body"], name),
        f"Symbols: [Methods](index.md#symbols). Arguments: {reference}.",
        f"## By hand\n\n{linked(texts['by_hand'].strip(), name)}" if "by_hand" in texts else "",
        f"## The code\n\n``` {{ .py }}\n{code(name)}\n```",
        f"## Paper\n\n{linked(doc['Source'], name) or 'None: a tool, no published method.'}",
        "`fedlight.cite(trainer)` of the calls above, arrivals included, without fedlight's own "
        "entry:\n\n"
        f"```bibtex\n{entries(name)}\n```"
        if entries(name)
        else "",
        f"## State\n\n- Server: {texts['server']}\n- Client: {texts['client']}",
        f"## Readings\n\n{linked(table(texts['readings']), name)}",
        "## Other codes\n\n" + "\n".join(f"- {linked(each, name)}" for each in others),
        f"## An experiment\n\n```bash\n{ran}\n```",
        f"![Accuracy over virtual time, and staleness, of {title(name)} and a reference]"
        f"(../figures/methods/{name}.png)",
        "The reference is `FedBuff` of five updates with SGD and ten of fifty clients at work at a "
        "time; each client holds two digits. One seed and no tuning: the picture shows how the "
        "method behaves, not which one is better.",
        f"## When to use it\n\n- **Good for.** {linked(texts['use'], name)}\n"
        f"- **Not for.** {linked(texts['avoid'], name)}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


SYMBOLS = r"""
| symbol | meaning |
|---|---|
| $x$, $x_{p}$ | the server's model now, and the version that a client pulled |
| $y_i$, $\delta_i = y_i - x_{p}$ | client $i$'s model after its local run, and its update |
| $\tau_i$ | staleness: versions made since the pull, 0 for a fresh update |
| $\eta$, $\eta_\ell$ | the server's rate (`server_lr`) and the local one (`lr`) |
| $M$, $S$, $m$ | the number of clients, the updates of a step, and their number |
| $K_i$, $n_i$ | local steps of the task, examples of the client |
| $f_i$, $g$ | client $i$'s loss, and its gradient on a batch |
| $T_i$ | duration of a task in virtual time |
| $P$ | the number of parameters |
""".strip()


def index() -> str:
    """The page that lists all methods."""
    parts = [
        "<!-- Made by docs/method_pages.py. -->",
        "# Methods",
        "Each method has a page: its call and a picture of it at work, its rule, the lines of "
        "code that are it, the paper, the readings that the paper leaves open, how other codes "
        "differ, an experiment with its command, and "
        "when to use it. What is said of other codes was read in their sources or in their public "
        "threads; the commit or the number stands beside it if it is on record.",
        f"## Symbols\n\n{SYMBOLS}",
    ]
    for package, heading in KINDS.items():
        names = [name for name in TEXTS if kind(name) == package]
        rows = [f"| [{title(n)}]({n}.md) | {TEXTS[n]['use']} |" for n in names]
        parts.append(
            f"## {heading}\n\n" + "\n".join(["| method | use it for |", "|---|---|", *rows])
        )
    return "\n\n".join(parts) + "\n"


def pages() -> dict[Path, str]:
    """All pages, by their files."""
    made = {FOLDER / f"{name}.md": page(name) for name in TEXTS}
    return {FOLDER / "index.md": index(), **made}


def draw_timeline(name: str) -> None:
    """Draw the first tasks of a page's call as an SVG."""
    from matplotlib import pyplot, rc_context

    made = next(iter(trainers(name).values()))
    with tempfile.TemporaryDirectory() as folder:
        log = EventLog(Path(folder) / "events.parquet")
        fitted(made, max_updates=32, callbacks=log)
        # Text stays text, and the same numbers give the same file.
        settings = {
            "svg.fonttype": "none",
            "svg.hashsalt": name,
            "font.sans-serif": ["DejaVu Sans"],
        }
        with rc_context(settings):
            figure, ax = pyplot.subplots(figsize=(9.2, 3.1))
            figure.subplots_adjust(0.06, 0.15, 0.98, 0.9)
            plot.timeline(log.path, ax=ax)
            drawn = StringIO()
            figure.savefig(drawn, format="svg", metadata={"Date": None})
            pyplot.close(figure)
    short = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", drawn.getvalue())
    (FIGURES / f"{name}.svg").write_text(re.sub(r"\s*\n\s*", "\n", short), encoding="utf-8")


def draw(name: str) -> None:
    """Run a method's commands and draw its figure."""
    *first, last = commands(name)
    with tempfile.TemporaryDirectory() as folder:
        for words in [*first, [*last, "--figure", str(FIGURES / f"{name}.png")]]:
            run = [sys.executable, str(RECIPE), *words[2:]]
            subprocess.run(run, cwd=folder, check=True, capture_output=True)


def with_paper() -> set[str]:
    """The names of all that must have a page."""
    from fedlight import aggregators, arrivals, local_optimizers

    found = set()
    for package, base in (
        (aggregators, aggregators.Aggregator),
        (local_optimizers, local_optimizers.LocalOptimizer),
        (arrivals, arrivals.ArrivalProcess),
    ):
        for name in package.__all__:
            value = getattr(package, name)
            if isclass(value) and issubclass(value, base) and name not in REPEATED:
                found.add(name)
    # The first is the module's own, of no paper; `PrivateSum` is put around others and has a page
    # of the guide; the others are on the pages of their kin.
    covered = {name for text in TEXTS.values() for name in text.get("covers", ())}
    return found - {"ModuleOptimizer", "ClientSelection", "PrivateSum", *covered}


def on_config(config: Any) -> Any:
    """Called by mkdocs: the menu gets the pages."""
    for entry in config["nav"]:
        if "Methods" in entry:
            for package, heading in KINDS.items():
                names = [name for name in TEXTS if kind(name) == package]
                listed = [{title(name): f"methods/{name}.md"} for name in names]
                entry["Methods"].append({heading: listed})
    return config


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figures", nargs="*", metavar="NAME", help="draw these, or all")
    parser.add_argument("--timelines", action="store_true", help="draw what each call does")
    chosen = parser.parse_args()
    for file, text in pages().items():
        file.write_text(text, encoding="utf-8")
    for each in TEXTS if chosen.timelines else ():
        draw_timeline(each)
    for each in () if chosen.figures is None else chosen.figures or TEXTS:
        draw(each)
