"""Methods as values of an axis."""

import pytest
import torch

from fedlight import FedTrainer, methods, sweep
from fedlight.aggregators import FedAvg
from fedlight.arrivals import FixedDurations, UniformArrivals
from fedlight.local_optimizers import LocalSGD, Scaffold
from fedlight.studies.grid import cells_of
from tests.boring import Boring, classes

TIMES = FixedDurations([1.0, 0.7, 0.5, 0.3])
BUFF = methods.fedbuff(concurrency=None, buffer_size=2, lr=0.1, durations=TIMES)
AFA = methods.afa_cd(buffer_size=2, durations=TIMES)


def test_a_method_becomes_its_arguments():
    cells = cells_of({"method": {"FedBuff": BUFF, "AFA-CD": AFA}}, {"max_rounds": 3})
    assert [str(cell) for cell in cells] == ["method=FedBuff", "method=AFA-CD"]
    assert cells[0].arguments == {"max_rounds": 3, **BUFF}


def test_methods_in_a_list_have_their_names():
    assert [str(cell) for cell in cells_of({"rule": [BUFF, AFA]}, {})] == [
        "rule=FedBuff",
        "rule=AFA-CD",
    ]
    with pytest.raises(ValueError, match="two values called FedBuff; names must differ"):
        cells_of({"rule": [BUFF, BUFF]}, {})


def test_what_a_method_gives_is_given_once():
    both = "the axes 'method' and 'rate' both give local_optimizer; "
    with pytest.raises(ValueError, match=f"{both}write lr=None in the methods"):
        cells_of({"method": [BUFF], "rate": {0.1: LocalSGD(0.1)}}, {})
    with pytest.raises(ValueError, match=f"{both}put what goes together"):
        cells_of({"method": {"a": dict(BUFF)}, "rate": {0.1: LocalSGD(0.1)}}, {})
    fixed = {"arrivals": UniformArrivals(2), "aggregator": FedAvg(), "local_optimizer": None}
    with pytest.raises(ValueError, match="method FedBuff, which gives aggregator and arrivals, an"):
        cells_of({"method": [BUFF]}, fixed)
    (cell,) = cells_of({"method": {"own": {**BUFF, "local_optimizer": Scaffold(0.1)}}}, {})
    assert isinstance(cell.arguments["local_optimizer"], Scaffold)


def test_a_method_without_a_rate_leaves_the_rate_to_another_axis():
    method = methods.fedbuff(concurrency=None, buffer_size=2, lr=None, durations=TIMES)
    rates = {lr: LocalSGD(lr) for lr in (0.1, 0.2)}
    cells = cells_of({"method": {"FedBuff": method}, "lr": rates}, {})
    assert [cell.arguments for cell in cells] == [
        {**method, "local_optimizer": rate} for rate in rates.values()
    ]


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")
def test_a_study_of_methods_is_each_method_alone():
    study = sweep(
        over={"method": {"FedBuff": BUFF, "AFA-CD": AFA}},
        seeds=[0],
        module=Boring,
        datamodule=classes(),
        max_updates=12,
        metric="val_loss",
        enable_progress_bar=False,
        accelerator="cpu",
    )
    table = study.table().to_markdown()
    assert "| FedBuff |" in table
    assert "| AFA-CD |" in table
    for run, method in zip(study.runs, (BUFF, AFA), strict=True):
        torch.manual_seed(0)
        alone = FedTrainer(
            **method, max_updates=12, logger=False, enable_progress_bar=False, accelerator="cpu"
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            start = Boring()
        alone.fit(start, classes())
        assert run.fingerprint == alone.fingerprint()
