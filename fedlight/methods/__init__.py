"""Published methods, each as in its paper: arguments of `FedTrainer` that belong together.

Each function returns the arrivals (with `resume`, pull and concurrency), the aggregator and the
local optimizer of a paper:

    >>> from fedlight import FedTrainer, methods
    >>> trainer = FedTrainer(
    ...     **methods.fedbuff(concurrency=100, buffer_size=10, lr=0.1), max_rounds=500
    ... )

Defaults are the paper's; a number that the paper tunes has to be given. All functions take
`local_steps`, and nearly all take `durations`, so that several methods can be compared under the
same ones. ``lr=None`` leaves the local step to the module's own optimizer.

An axis of `fedlight.sweep` takes methods as its values: ``over={"method": {"FedBuff":
methods.fedbuff(…), "AFA-CD": methods.afa_cd(…)}}``. To change a part, write a dict:
``{**methods.fedbuff(…), "local_optimizer": Scaffold(lr=0.1)}``. `fedlight.cite` returns the papers.
"""

from fedlight.methods._method import Method
from fedlight.methods.bounded_delay import malenia, rennala, ringleader, ringmaster
from fedlight.methods.buffered import afa_cd, dp_fedbuff, fadas, fedbuff, fedbuff_ma
from fedlight.methods.client_drift import feddyn, fednova, fedprox, fedsam, scaffold
from fedlight.methods.client_memory import ace, afa_cs, area, ca2fl, fedstale, fedvarp, mifa
from fedlight.methods.every_arrival import (
    async_fedavg,
    dc_asgd,
    delay_adaptive_sgd,
    fedasync,
    generalized_async_sgd,
)
from fedlight.methods.intervals import async_comm_sgd, favas, fedfix, quafl
from fedlight.methods.islands import (
    async_local_sgd,
    cgad,
    diloco,
    halos,
    heloco,
    look_ahead,
    ringmaster_muon,
    sparse_loco,
)
from fedlight.methods.planned import fedasmu, fedcompass
from fedlight.methods.rounds import delayed_sgd, fedadam, fedat, fedavg, mindflayer
from fedlight.methods.selection import oort, pisces, power_of_choice

__all__ = [
    "Method",
    "ace",
    "afa_cd",
    "afa_cs",
    "area",
    "async_comm_sgd",
    "async_fedavg",
    "async_local_sgd",
    "ca2fl",
    "cgad",
    "dc_asgd",
    "delay_adaptive_sgd",
    "delayed_sgd",
    "diloco",
    "dp_fedbuff",
    "fadas",
    "favas",
    "fedadam",
    "fedasmu",
    "fedasync",
    "fedat",
    "fedavg",
    "fedbuff",
    "fedbuff_ma",
    "fedcompass",
    "feddyn",
    "fedfix",
    "fednova",
    "fedprox",
    "fedsam",
    "fedstale",
    "fedvarp",
    "generalized_async_sgd",
    "halos",
    "heloco",
    "look_ahead",
    "malenia",
    "mifa",
    "mindflayer",
    "oort",
    "pisces",
    "power_of_choice",
    "quafl",
    "rennala",
    "ringleader",
    "ringmaster",
    "ringmaster_muon",
    "scaffold",
    "sparse_loco",
]
