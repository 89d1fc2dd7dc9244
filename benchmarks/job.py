"""The seconds of a whole job in a fresh process, against code that one would write by hand.

    FEDLIGHT_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/job.py [--turns N]

The job: 150 rounds of FedAvg over 100 clients with 600 images of MNIST each, 20 a round, 5 local
steps of batch 64, logistic regression, an evaluation of the 10,000 test images after each round.
`FOLDER/mnist` holds the parquet files of the data set `ylecun/mnist`.

Each contender runs twice, with an empty cache for its data and then with what the first run has
left there, and the contenders take turns. Process CPU time is counted; wall time has a column.
A peer runs if `--peer NAME=PYTHON` names an interpreter that has it: `blazefl`, `pfl`, `flower`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.job_scripts.marks import PARTS
from benchmarks.run import machine, show

ROOT = Path(__file__).resolve().parent.parent

OURS = {
    "module loop by hand": ["module_loop"],
    "closed form by hand": ["closed_form"],
    "fedlight": ["with_fedlight"],
    "fedlight, default logger and bar": ["with_fedlight", "--logger"],
}
PEERS = {"blazefl": "with_blazefl", "pfl": "with_pfl", "flower": "with_flower"}
RAW = "module loop by hand"


def run(python: str, script: list[str], cache: str) -> dict[str, object]:
    """Run a script; its report, with the totals of its process.

    Raises:
        RuntimeError: It failed.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "HF_DATASETS_CACHE": cache,
        "HF_HUB_OFFLINE": "1",
        "FEDLIGHT_DATA": str(Path(os.environ["FEDLIGHT_DATA"]).resolve()),
        "JOB_STARTED": str(time.time()),
    }
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    result = subprocess.run(
        [python, "-m", f"benchmarks.job_scripts.{script[0]}", *script[1:]],
        env=environment,
        cwd=cache,
        capture_output=True,
        text=True,
        check=False,
    )
    wall, after = time.time() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = [line for line in result.stdout.splitlines() if line.startswith("JOB ")]
    if result.returncode or not lines:
        raise RuntimeError(result.stderr.strip().splitlines()[-1:] or "no report")
    report: dict[str, object] = json.loads(lines[0].removeprefix("JOB "))
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = report["seconds"]
    assert isinstance(seconds, dict)
    seconds["rest"] = [
        total - sum(each[i] for each in seconds.values()) for i, total in enumerate((cpu, wall))
    ]
    return report | {"total": [cpu, wall]}


def table(found: dict[str, list[dict]], clock: int) -> list[list[str]]:
    """Median seconds of each part, and medians of the turns' ratios to the module loop."""
    rows = [["", *PARTS, "total", "/ module loop", "wall", "accuracy", "updates"]]
    for name, reports in found.items():
        parts = [
            statistics.median(each["seconds"][part][clock] for each in reports) for part in PARTS
        ]
        totals = [each["total"][clock] for each in reports]
        raw = [each["total"][clock] for each in found[RAW]]
        ratio = statistics.median(own / other for own, other in zip(totals, raw, strict=True))
        wall = statistics.median(each["total"][1] for each in reports)
        rows.append(
            [
                name,
                *(f"{part:.2f}" for part in parts),
                f"{statistics.median(totals):.1f}",
                f"{ratio:.2f}",
                f"{wall:.1f}",
                f"{statistics.median(each['accuracy'] for each in reports):.3f}",
                f"{reports[0]['updates']:,}",
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3, help="turns of each contender")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    chosen = parser.parse_args()
    if "FEDLIGHT_DATA" not in os.environ:
        sys.exit("FEDLIGHT_DATA is unset: it should name a folder with mnist/")
    contenders = {name: (sys.executable, script) for name, script in OURS.items()}
    pythons = dict.fromkeys(PEERS, sys.executable) | dict(e.split("=", 1) for e in chosen.peer)
    contenders |= {name: (pythons[name], [script]) for name, script in PEERS.items()}
    found: dict[str, dict[str, list[dict]]] = {"first": {}, "second": {}}
    skipped: dict[str, str] = {}
    for turn in range(chosen.turns):
        for name, (python, script) in contenders.items():
            if name in skipped:
                continue
            print(f"\rturn {turn + 1} of {chosen.turns}: {name:40}", end="", file=sys.stderr)
            with tempfile.TemporaryDirectory() as cache:
                try:
                    for which in found:
                        found[which].setdefault(name, []).append(run(python, script, cache))
                except RuntimeError as error:
                    if name not in PEERS:
                        raise
                    skipped[name] = str(error)
    print("\r" + " " * 70 + "\r", end="", file=sys.stderr)
    print(machine("cpu"), f"{chosen.turns} turns, seconds of CPU time", sep=", ")
    for which, reports in found.items():
        whole = {name: each for name, each in reports.items() if name not in skipped}
        show(f"The {which} run", table(whole, clock=0))
    for name, reason in skipped.items():
        print(f"\n{name} was skipped: {reason}")


if __name__ == "__main__":
    main()
