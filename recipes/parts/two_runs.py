"""A figure of two runs; not a recipe."""

from collections import Counter

from fedlight import cli
from fedlight.plot import curves
from fedlight.types import RoundRecord


def draw(file: cli.Figure, runs: dict[str, list[RoundRecord]]) -> None:
    """The accuracy over virtual time, and the share of each staleness among the updates used."""
    from matplotlib import pyplot

    made, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3), layout="constrained")
    curves(runs, "val_acc", "virtual_time", ax=left).set_ylabel("validation accuracy")
    for place, (name, history) in enumerate(runs.items()):
        counts = Counter(each.staleness for record in history for each in record.updates)
        taus, total = range(max(counts, default=0) + 1), max(1, counts.total())
        shares = [counts[tau] / total for tau in taus]
        colour = left.get_lines()[place].get_color()
        right.bar([tau + 0.4 * place - 0.2 for tau in taus], shares, 0.4, label=name, color=colour)
    right.set(xlabel="staleness (versions)", ylabel="share of the updates used")
    made.savefig(file, dpi=70)
