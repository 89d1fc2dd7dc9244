"""Makes all tables of `docs/performance.md` again in one sitting, and README's figures from them.

    FEDLIGHT_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/report.py [--only WORD …]

Each table of the page stands between ``<!-- python benchmarks/… -->``, the command that makes it,
and ``<!-- end -->``. The commands run one after another, each in a process of its own; a page is
written when all of its commands have succeeded. ``--peer`` is handed on to `job.py`.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.run import machine

ROOT = Path(__file__).resolve().parent.parent
PAGE, README = ROOT / "docs" / "performance.md", ROOT / "README.md"
BLOCK = re.compile(r"(<!-- python (?P<command>[^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
ROWS = {
    "FedAvg, vectorized": "FedAvg, clients stacked",
    "FedBuff(10), vectorized": "FedBuff(10), clients stacked",
    "FedAsync, vectorized": "FedAsync, clients stacked",
    "FedAvg, sequential": "FedAvg, one client at a time",
    "closed form, batched": "for comparison: the closed form by hand, batched",
}


def made_anew(page: str, only: list[str], peers: list[str]) -> str:
    """The page with the output of each command in its place.

    Args:
        page: The page.
        only: Leave the tables of commands that have none of these words; empty for all.
        peers: The interpreters of other frameworks for `job.py`, ``NAME=PYTHON`` each.
    """

    def block(match: re.Match[str]) -> str:
        command = match["command"]
        if only and not any(word in command for word in only):
            return match[0]
        print(f"{time.strftime('%H:%M:%S')} python {command}", file=sys.stderr, flush=True)
        given = [part for peer in peers for part in ("--peer", peer)] if "job.py" in command else []
        result = subprocess.run(
            [sys.executable, *shlex.split(command), *given],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        lines = result.stdout.strip().splitlines()
        starts = (at for at, line in enumerate(lines) if line.startswith(("#", "|")))
        kept = lines[next(starts, 0) :]  # the machine is named once, at the top of the page
        return match[1] + "\n".join(["", *kept, "", match[3]])

    return BLOCK.sub(block, page)


def summary() -> str:
    """README's table: the rates of A and B as multiples of the raw loop, from the page."""
    found: dict[str, list[str]] = {name: [] for name in ROWS}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in found and len(found[cells[0]]) < 2:
            found[cells[0]].append(cells[3])
    lines = ["| | A | B |", "|---|---|---|"]
    lines += [f"| {words} | {' | '.join(found[name])} |" for name, words in ROWS.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--machine", action="store_true", help="print the machine and the date")
    parser.add_argument("--summary", action="store_true", help="print README's table")
    chosen = parser.parse_args()
    if chosen.machine:
        print(f"{machine('cpu')}, {date.today():%B %Y}.")
    elif chosen.summary:
        print(summary())
    else:
        PAGE.write_text(made_anew(PAGE.read_text(), chosen.only, chosen.peer))
        README.write_text(made_anew(README.read_text(), [], []))


if __name__ == "__main__":
    main()
