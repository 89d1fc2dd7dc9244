"""The small study that the tests of this folder share."""

from fedlight import sweep
from fedlight.aggregators import FedAsync, FedBuff
from fedlight.arrivals import ContinuousArrivals, ExponentialDurations
from fedlight.local_optimizers import LocalSGD
from tests.boring import Boring, classes

CLOCK = ContinuousArrivals(ExponentialDurations(1.0), resume="on_arrival", local_steps=2)
RULES = {"FedAsync": FedAsync(alpha=0.5), "FedBuff": FedBuff(buffer_size=2)}


def swept(**kwargs):
    """A silent study of two aggregators and two seeds on the CPU."""
    given = {
        "over": {"aggregator": RULES},
        "seeds": (0, 1),
        "module": Boring,
        "datamodule": classes(),
        "arrivals": CLOCK,
        "local_optimizer": LocalSGD(lr=0.1),
        "max_updates": 12,
        "metric": "val_loss",
        "enable_progress_bar": False,
        "accelerator": "cpu",
        "workers": 1,
    }
    return sweep(**{**given, **kwargs})


def prints(study):
    """The fingerprints of the runs, in their order."""
    return [run.fingerprint for run in study.runs]
