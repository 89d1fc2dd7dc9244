"""Asynchronous methods in four papers' settings: the time to an accuracy on non-i.i.d. MNIST."""

from functools import partial
from math import inf, isnan, nan
from typing import Any

from jsonargparse.typing import PositiveInt
from matplotlib import pyplot

from data_partitioners import PathologicalPartitioner
from fedlight import FederatedDataModule, aggregators, cli, settings, sweep
from fedlight.arrivals import ChangingDurations, ContinuousArrivals, PolledArrivals
from fedlight.local_optimizers import LocalSGD, OwnModel
from fedlight.models import LogisticRegression
from fedlight.studies import bootstrap

M, m, K = 20, 5, 5  # clients, buffer, local steps of a task
SETTINGS = {"Ringmaster": (settings.sqrt_random(M), 5), "FedFix": (settings.fedfix(80), 0.2),
            "QuAFL": (settings.quafl(), 10), "FADAS": (settings.fadas("large"), 1.5)}  # fmt: skip


def methods(setting: str, lr: float) -> dict[str, Any]:
    """The arguments of each method; the server of FADAS has a fifth of the rate."""
    tasks, period = SETTINGS[setting]  # of polls and of FedFix
    a, sgd, arrivals = aggregators, LocalSGD(lr), partial(ContinuousArrivals, tasks, local_steps=K)
    # QuAFL's times are those of a step, the others' those of a task of K steps.
    steps = tasks if setting == "QuAFL" else ChangingDurations(tasks, [(0, 1 / K)])
    polled = PolledArrivals(m, period, steps, max_steps=2 * K)
    free = {"FedBuff": a.FedBuff(m), "FedAsync": a.FedAsync(0.6, a.staleness.Polynomial(0.5)),
            "asynchronous SGD": a.FedBuff(1, None), "DC-ASGD": a.DCASGD(0.04, local_lr=lr),
            "AsyncFedAvg": a.AsyncFedAvg(), "FedFix": a.FedFix(period), "AREA": a.AREA(m),
            "CA2FL": a.CA2FL(m), "MIFA": a.MIFA(m), "FADAS": a.FADAS(m, lr / 5)}  # fmt: skip
    parts = {name: (aggregator, arrivals(), sgd) for name, aggregator in free.items()}
    parts["Ringmaster"] = a.Ringmaster(M - 1), arrivals(restart_after=M), sgd
    parts["Rennala"] = a.Rennala(m), arrivals(restart_after=1), sgd
    parts["Malenia"] = a.Malenia(), arrivals(restart_after=1), sgd
    parts["QuAFL"] = a.QuAFL(), polled, OwnModel(sgd, m)
    parts["FAVAS"] = a.FAVAS(), polled, LocalSGD(K * lr)  # it divides by the number of steps
    return {name: {"aggregator": x, "arrivals": y, "local_optimizer": z}
            for name, (x, y, z) in parts.items()}  # fmt: skip


def words(values: dict[int, float]) -> str:
    there = [value for value in values.values() if not isnan(value)]
    each, few = bootstrap(there or [nan]), f" ({len(there)})" * (len(there) < len(values))
    return f"{each.mean:.4g} [{each.low:.4g}, {each.high:.4g}]{few}" if there else "not reached"


def main(dataset: str = "ylecun/mnist", target: cli.PositiveNumber = 0.85,
         rates: list[cli.PositiveNumber] = (0.02, 0.06, 0.2), max_updates: PositiveInt = 3000,
         seeds: PositiveInt = 5, figure: cli.Figure | None = None) -> None:  # fmt: skip
    """Tune each method with one seed, then print and draw its times; (n) if only n seeds arrive."""
    data = FederatedDataModule(dataset, PathologicalPartitioner(M, 2), batch_size=32)
    limits = {"max_updates": max_updates, "check_val_every_n_updates": 10, "workers": "together"}
    run = partial(sweep, module=partial(LogisticRegression, 784, 10), datamodule=data, **limits)
    drawn, panels = pyplot.subplots(1, len(SETTINGS), figsize=(12, 4), sharey=True, squeeze=False)
    print("| setting | method, rate | virtual time | minus FedBuff's | gradients | bytes |")
    print("|---" * 6 + "|")
    for setting, ax in zip(SETTINGS, panels[0], strict=True):
        cells = {f"{n}, {lr:g}": each for lr in rates for n, each in methods(setting, lr).items()}
        tuning = run({"method": cells}, seeds=[1000])
        time, best = tuning.time_to(target).entries.values(), tuning.table().entries
        key = {c: (t.reached or [inf], -best[(c,), "best"].mean)
               for c, t in zip(cells, time, strict=True)}  # fmt: skip
        groups = [[f"{name}, {lr:g}" for lr in rates] for name in methods(setting, 1)]
        chosen = [min(group, key=key.__getitem__) for group in groups]
        study = run({"method": {cell: cells[cell] for cell in chosen}}, seeds=range(seeds))
        axes = ("virtual_time", "gradients", "bytes")
        found = [[e.values for e in study.time_to(target, x).entries.values()] for x in axes]
        for cell, time, *others in zip(chosen, *found, strict=True):
            less = {seed: value - found[0][0][seed] for seed, value in time.items()}
            print(f"| {setting} | {cell} |", " | ".join(map(words, (time, less, *others))), "|")
            ax.plot(list(time.values()), [cell.split(",")[0]] * len(time), "o", alpha=0.5)
        ax.set(title=setting, xlabel="virtual time", xscale="symlog")
    if figure is not None:
        drawn.savefig(figure, dpi=80, bbox_inches="tight")


if __name__ == "__main__":
    cli.run(main)
