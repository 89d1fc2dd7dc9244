"""What four papers claim of their methods, on quadratics with a known optimum and on MNIST."""

from functools import partial
from typing import Any, Literal

import torch
from jsonargparse.typing import PositiveInt
from matplotlib import pyplot

from data_partitioners import IidPartitioner, PathologicalPartitioner
from fedlight import FederatedDataModule, cli, plot, settings, sweep
from fedlight.aggregators import CA2FL, FADAS, FAVAS, MIFA, FedBuff, Ringmaster
from fedlight.arrivals import BiasedArrivals, ContinuousArrivals, ParetoDurations, PolledArrivals
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression
from fedlight.studies import Entry, bootstrap
from parts.quadratics import Quadratic, quadratics


def methods(claim: str, rate: float) -> dict[str, tuple[Any, Any, float]]:
    """By scene and method: aggregator, arrivals, local rate; a scene's first is the reference."""
    if claim == "floor":
        come = BiasedArrivals(2, [0.19, 0.19, *[0.1] * 6, 0.01, 0.01], 4, local_steps=5)
        return {
            f"biased, {kind.__name__}": (kind(2), come, rate) for kind in (FedBuff, CA2FL, MIFA)
        }
    if claim == "delays":
        adam = partial(torch.optim.Adam, lr=rate, betas=(0.9, 0.99))
        made = {"FedBuff with Adam": FedBuff(5, None, server_optimizer=adam)}
        made |= {f"FADAS {d}": FADAS(5, rate, delay=d) for d in ("none", "reciprocal", "divided")}
        come = partial(ContinuousArrivals, concurrency=25, resume="on_arrival", local_steps=5)
        return {f"{scene}, {name}": (each, come(settings.fadas(scene)), 0.1)
                for scene in ("mild", "large") for name, each in made.items()}  # fmt: skip
    if claim == "stops":
        times = {"linear": settings.linear_random(32), "Pareto": ParetoDurations(1, 1.1)}
        made = {"asynchronous SGD": (None, None), "Ringmaster": (7, None), "with stops": (7, 8)}
        come = partial(ContinuousArrivals, local_steps=1)
        return {f"{scene}, {name}": (Ringmaster(age), come(time, restart_after=stop), rate)
                for scene, time in times.items() for name, (age, stop) in made.items()}  # fmt: skip
    come = ContinuousArrivals(settings.quafl(0.3), resume="on_arrival", local_steps=5)
    polls = PolledArrivals(5, 10, settings.quafl(0.3), max_steps=10)
    return {"slow, FedBuff": (FedBuff(5, None), come, rate), "slow, FAVAS": (FAVAS(), polls, rate)}


def main(claim: Literal["floor", "delays", "stops", "bias"] = "floor", dataset: str = "quadratic",
         rates: list[cli.PositiveNumber] = (0.02, 0.1, 0.5), max_updates: PositiveInt = 1000,
         seeds: PositiveInt = 5, figure: cli.Figure | None = None) -> None:  # fmt: skip
    """Print and draw one claim; each method is compared, at its best rate, with the first one."""
    exact, timed, every = dataset == "quadratic", claim == "stops", list(methods(claim, 1))
    M = {"floor": 10, "delays": 50, "stops": 32, "bias": 20}[claim]
    parts = IidPartitioner(M) if timed else PathologicalPartitioner(M, 1 + (M > 10))
    data = quadratics(M, timed) if exact else FederatedDataModule(dataset, parts, batch_size=32)
    metric, sign, scale = ("error", 1, "log") if exact else ("val_acc", 2 * timed - 1, "linear")
    cells = {f"{name}, {rate:g}": {"aggregator": x, "arrivals": y, "local_optimizer": LocalSGD(lr)}
             for rate in rates for name, (x, y, lr) in methods(claim, rate).items()}  # fmt: skip
    form = {"metric": metric, "datamodule": data, "max_updates": max_updates, "workers": "together"}
    form["module"] = Quadratic if exact else partial(LogisticRegression, 784, 10)
    study = sweep({"method": cells}, seeds=range(seeds), check_val_every_n_updates=10, **form)
    table = study.time_to(0.3 if exact else 0.85) if timed else study.table(last=10)
    column = "virtual_time" if timed else "mean of the last 10"
    print("| rate |", *(f"{r} |" for r in rates), "paired |\n" + "|---" * (len(rates) + 2) + "|")
    groups = list(dict.fromkeys(name.split(", ")[0] for name in every))
    figures, panels = pyplot.subplots(1, len(groups), sharey=True, squeeze=False, figsize=(9, 3.5))
    for scene, ax in zip(groups, panels[0], strict=True):
        base, lines = None, {}
        for name in [each for each in every if each.startswith(scene)]:
            found = {rate: table.entries[(f"{name}, {rate:g}",), column] for rate in rates}
            best = min((-len(e.reached), e.mean * sign, rate) for rate, e in found.items())[-1]
            base = base or found[best]
            less = [value - base.values[seed] for seed, value in found[best].values.items()]
            words = [e.words(3) for e in (*found.values(), Entry({}, difference=bootstrap(less)))]
            print(f"| {name} |", " | ".join(words), "|")
            lines[f"{name}, {best:g}"] = study.histories[f"{name}, {best:g}"]
        plot.curves(lines, metric, "virtual_time", ax=ax).set(title=scene, yscale=scale)
    if figure is not None:
        figures.savefig(figure, dpi=80, bbox_inches="tight")


if __name__ == "__main__":
    cli.run(main)
