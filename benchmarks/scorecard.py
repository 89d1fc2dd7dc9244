"""Runs the adapters of other packages on the conformance set and writes the page of verdicts.

    python -m benchmarks.scorecard docs/scorecard.md

Each adapter runs in a process of its own. The packages must be installed; one that is missing ends
the script, so that the page always has all of them. What the page says about a difference is
written here, beside the adapters that show it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlight.conformance import load_cases

FOLDER = "benchmarks.conformance_adapters"
PACKAGES: dict[str, list[str]] = {
    "APPFL": ["with_appfl:Appfl", "with_appfl:AppflUndivided", "with_appfl:AppflMoved"],
    "FedLab": ["with_fedlab:FedLab", "with_fedlab:FedLabShifted", "with_fedlab:FedLabNormalized"],
    "FLGo": ["with_flgo:FLGo", "with_flgo:FLGoShifted"],
    "FLSim": ["with_flsim:FLSim", "with_flsim:FLSimDivided"],
    "Flower": ["with_flower:Flower"],
}
METHODS = {
    "fedavg": "FedAvg",
    "fedasync": "FedAsync",
    "fedbuff": "FedBuff",
    "fednova": "FedNova",
    "feddyn": "FedDyn",
}

HEAD = """# Scorecard

The server rules of other packages on the [conformance set](conformance.md). Each adapter drives
the class that a user of the package would run; networking and data loaders are left out, and the
clients' steps are fedlight's. Only cases of kind "events" are tried, since these rules have no
clock of their own.

A difference is not always a fault. It means that the same numbers under the same names give
another model than the paper's text. Below is where, and the setting or the reading under which
the package's rule is the paper's. Where a row of the table shows that reading, it was run.

```bash
pip install appfl fedlab flgo flsim flwr
python -m benchmarks.scorecard docs/scorecard.md
python -m fedlight.conformance --only fedasync \\
    --adapter benchmarks.conformance_adapters.with_flgo:FLGo
```
"""

NOTES: dict[str, list[str]] = {
    "APPFL": [
        "**FedAsync.** Algorithm 1 of Xie et al. mixes with alpha_t = alpha · s(t - tau). "
        "APPFL has alpha · s(t - tau) / M: its server agent sets `num_clients`, and the "
        "aggregator divides by it. Right if `alpha` is read as M times the paper's. With "
        "the aggregator's own default, `num_clients=1`, all cases agree (second row).",
        "**FedBuff.** Algorithm 1 of Nguyen et al. adds eta_g / K times the sum of the "
        "clients' deltas, each against the model that its client pulled. APPFL adds alpha / "
        "M times the sum of y - x, x being the server's model when the update arrives. "
        "Right if `alpha` is read as eta_g M / K and no update is stale. With this alpha, "
        "and clients that send x + delta in place of y, all cases agree (third row): these "
        "two are the only differences.",
        "**Staleness** is the paper's, as the aggregator notes each pull. Not tried: "
        "`max_staleness` and a changing alpha, which APPFL does not have.",
    ],
    "FedLab": [
        "**FedAsync, hinge.** The paper's s is 1 / (a (tau - b) + 1) for tau > b. FedLab "
        "has 1 / (a (tau - b + 1)): the 1 is inside the brackets. Right for a = 1, or with "
        "b + 1 - 1/a in place of b if a > 1: with this, the case agrees (second row).",
        "**FedAvg.** Algorithm 1 of McMahan et al. weights with n_k / n. FedLab's handler "
        "takes the plain mean. Right for clients with equally many examples; the case with "
        "uniform weights agrees.",
        "**FedNova.** In Wang et al., p_i = n_i / n. FedLab takes 1/m, as a comment there "
        "says, and its default `weighted_scale` multiplies the step by M/m besides. Right "
        "with the option `other` (third row, which still has 1/m) and equally many "
        "examples.",
        "**FedDyn.** Algorithm 1 of Acar et al. subtracts alpha / M times the sum over the "
        "clients of the round of theta_k - theta from h. FedLab subtracts alpha / M · (Σ "
        "theta_k - theta): theta once, not once a client. The brackets of the listing can "
        "be read so; the authors' code subtracts theta for each client. The two are equal "
        "with one client a round.",
        "**Installation.** Weights are computed in single precision, so the tolerance is "
        "that of float32. FedLab imports torchvision with its servers, for its data sets "
        "alone; where it is missing, the adapter puts an empty stand-in in its place.",
    ],
    "FLGo": [
        "**FedAsync, hinge.** The paper's s is 1 / (a (tau - b) + 1) for tau > b. FLGo has "
        "1 / (a (tau - b)), without the + 1. Right with b - 1/a in place of b if a > 1: "
        "with this, the case agrees (second row).",
        "**FedAsync, equal times.** The paper's server mixes in one update after the other. "
        "FLGo gives all updates of one instant to the rule at once; each is mixed into the "
        "same model, the results are averaged, and there is one new version. Right if no "
        "two updates arrive together.",
        "FedAvg, FedBuff, FedNova and FedDyn agree, under the option `other` of `aggregate` "
        "where weights follow the examples. Staleness is taken as its loop counts rounds. "
        "Not tried: its MIFA, which takes every update against the server's newest model, "
        "as a synchronous method may, and makes no step until each client has answered "
        "(option `c`).",
    ],
    "FLSim": [
        "**FedBuff.** Algorithm 1 of Nguyen et al. divides the sum by K. FLSim's default "
        "reducer (`WEIGHTED_SUM`) does not. Right if `lr` is read as eta_g / K: with this, "
        "all cases agree (second row).",
        "**Staleness weights** are divided by the weight of `avg_staleness`, by default 1, "
        "so that an update of staleness 1 has the weight 1 and a fresh one more. The "
        "adapter sets it to 0, which is the paper's.",
        "**Installation.** Version 0.1.0 does not import on Python 3.11 or newer, whose "
        "dataclasses refuse defaults without a hash. The adapter makes its configuration "
        "classes hashable. FLSim has no hinge and no FedAvg among its asynchronous "
        "aggregators; its synchronous servers were not tried.",
    ],
    "Flower": [
        "FedAvg agrees. Flower has no asynchronous strategy to try, and no FedAvg with "
        "uniform weights.",
    ],
}

READ = """## Only read

These were not run. What is said is what the source of the named version shows. A commit is that of
the repository that was read, not the last one that changed the file.

- **AFL-Lib**, FedBuff (`alg/fedbuff.py`, b6dab18): the mean of the buffer is divided by K once
  more. Right if `etag` is read as K times the paper's eta_g. There is no discount for staleness.
- **AFL-Lib**, FedAsync (`alg/fedasync.py`, b6dab18): the hinge is 1 / (a (tau + b) + 1), with the
  wrong sign of b.
- **AFL-Lib**, CA2FL (`alg/ca2fl.py`, b6dab18): the list of buffered clients is never filled, so
  the calibration term, a sum over it, is always 0, and memories are replaced at arrival. What is
  left is MIFA's rule with a step after every M arrivals.
- **AFL-Lib**, FADAS (`alg/fadas.py`, b6dab18): the step divides by the root of v, the running mean
  of squares. The paper divides by the root of the running maximum of v, which is computed and not
  used. Right as FADAS without AMSGrad. The rate under a delay is min(eta, eta / tau), as in the
  authors' code, not min(eta, 1 / tau).
- **APPFL**, MIFA (`mifa_aggregator.py`, 4914bb7; not in the released package): there is no memory
  of each client, and the sum is not cleared after a step. Right if clients send the change of
  their gradient since their last update.
"""


def run(adapter: str) -> dict[str, Any]:
    """The JSON of `python -m fedlight.conformance` for an adapter.

    Raises:
        RuntimeError: It could not be run.
    """
    command = [sys.executable, "-W", "ignore", "-m", "fedlight.conformance", "--json"]
    done = subprocess.run(
        [*command, "--adapter", adapter], capture_output=True, text=True, check=False
    )
    start = done.stdout.find("{")
    if start < 0:
        raise RuntimeError(f"{adapter}: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout[start:])
    return result


def tried(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of the cases that the code claims to implement."""
    return [row for row in result["results"] if row["verdict"] != "not implemented"]


def cell(rows: Sequence[Mapping[str, Any]], method: str) -> str:
    """How many cases of a method agree, of how many."""
    events = {case.name for case in load_cases() if case.kind == "events"}
    mine = [row["verdict"] for row in rows if row["method"] == method and row["case"] in events]
    return f"{mine.count('agrees')} of {len(mine)}" if mine else ""


def summary(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The table of packages and methods."""
    lines = [f"| code | {' | '.join(METHODS.values())} |", "|---" * (len(METHODS) + 1) + "|"]
    for each in results.values():
        for result in each:
            cells = [cell(tried(result), method) for method in METHODS]
            lines.append(f"| {title(result)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def title(result: Mapping[str, Any]) -> str:
    """The name with its version: "FLSim 0.1.0, lr = eta / K"."""
    name, _, rest = str(result["name"]).partition(", ")
    return f"{name} {result['version']}" + (f", {rest}" if rest else "")


def differences(each: Sequence[Mapping[str, Any]]) -> str:
    """The table of the cases that do not agree."""
    lines = []
    for result in each:
        for row in tried(result):
            if row["verdict"] != "agrees":
                size = "" if row["deviation"] is None else f"{row['deviation']:.1e}"
                lines.append(
                    f"| {title(result)} | `{row['case']}` | {row['verdict']} | {size} "
                    f"| {row['detail']} |"
                )
    if not lines:
        return ""
    head = ["| code | case | verdict | deviation | first difference |", "|---|---|---|---|---|"]
    return "\n".join([*head, *lines]) + "\n\n"


def page(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The whole page."""
    parts = [HEAD, "\nCases that agree, of those tried:\n\n", summary(results), "\n"]
    for package, notes in NOTES.items():
        parts += [f"## {package}\n\n", differences(results[package])]
        parts += ["- " + note + "\n" for note in notes] + ["\n"]
    return "".join([*parts, READ])


def main() -> None:
    """Write the page to the file that is named."""
    ours = run("fedlight.conformance.ours:Fedlight")
    results: dict[str, list[Mapping[str, Any]]] = {"fedlight": [ours]}
    for package, adapters in PACKAGES.items():
        results[package] = [run(f"{FOLDER}.{adapter}") for adapter in adapters]
    Path(sys.argv[1]).write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
