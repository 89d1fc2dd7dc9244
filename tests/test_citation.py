"""BibTeX of what a trainer or a study has used."""

import re
from pathlib import Path

import pytest

from fedlight import Study, cite, compare, methods, sweep
from fedlight.aggregators import MIFA, BufferedAggregator, FedAvg, FedBuff, FedVARP
from fedlight.aggregators.staleness import DelayAdaptive
from fedlight.arrivals import (
    DropOut,
    PartialWork,
    StepsBySpeed,
    SynchronousArrivals,
    UniformArrivals,
)
from fedlight.channel import QSGD, ErrorFeedback, TopK
from fedlight.local_optimizers import SAM, LocalSGD, OwnModel
from fedlight.methods._papers import OF_STRATEGY, PAPERS
from tests.boring import Boring, classes, trainer

DRAWN = "yang2022anarchic"


def keys(text):
    return re.findall(r"^@\w+\{(\w+),$", text, re.MULTILINE)


class Own(BufferedAggregator):
    """The mean."""

    def weights(self, updates, version):
        return [1 / len(updates)] * len(updates)


class OwnBuff(FedBuff):
    """Of the paper's class."""


@pytest.mark.parametrize(
    ("used", "cited"),
    [
        ({"aggregator": Own(2)}, []),
        ({"aggregator": OwnBuff(2)}, ["nguyen2022federated"]),
        ({"aggregator": FedBuff(1, None)}, []),  # asynchronous SGD
        (
            {"aggregator": FedBuff(1, DelayAdaptive(3))},
            ["koloskova2022sharper", "mishchenko2022asynchronous"],
        ),
        ({"aggregator": MIFA(5)}, ["gu2021fast"]),
        ({"aggregator": MIFA(1)}, ["gu2021fast", "chang2025mitigating"]),
        ({"aggregator": FedVARP(beta=0.5)}, ["jhunjhunwala2022fedvarp", "rodio2024fedstale"]),
        (
            {"aggregator": Own(2), "local_optimizer": OwnModel(SAM(0.1))},
            ["foret2021sharpness", "qu2022generalized"],
        ),
        (
            {"aggregator": Own(2), "channel": [QSGD(8), ErrorFeedback(TopK(0.5))]},
            ["alistarh2017qsgd", "stich2018sparsified", "karimireddy2019error"],
        ),
        (
            {"aggregator": Own(2), "channel": ErrorFeedback(TopK(0.5), decay=0.5)},
            ["stich2018sparsified", "karimireddy2019error", "sarfi2025communication"],
        ),
    ],
)
def test_a_trainer_cites_its_parts_and_what_is_within_them(used, cited):
    process = DropOut(PartialWork(UniformArrivals(2), 0.5), 0.1)
    run = trainer(**{"local_optimizer": LocalSGD(0.1), "arrivals": process, **used})
    assert sorted(keys(cite(run))) == sorted(["fedlight", DRAWN, *cited])


@pytest.mark.parametrize(
    ("arrivals", "cited"),
    [
        (SynchronousArrivals(2, quorum=1), []),
        (SynchronousArrivals(2, grace=1.0), ["liu2024asynchronous"]),
        (SynchronousArrivals(2, local_steps=StepsBySpeed(9, [1, 2])), ["liu2024asynchronous"]),
    ],
    ids=repr,
)
def test_arrivals_cite_their_settings(arrivals, cited):
    run = trainer(aggregator=Own(2), local_optimizer=LocalSGD(0.1), arrivals=arrivals)
    assert keys(cite(run)) == ["fedlight", *cited]


def test_entries_are_bibtex():
    assert PAPERS.keys() >= {key for found in OF_STRATEGY.values() for key in found}
    for key, paper in PAPERS.items():
        entry = paper.bibtex(key)
        assert entry.count("{") == entry.count("}")
        assert entry.isascii()
        assert re.fullmatch(r"@\w+\{\w+,\n(  \w+ = \{.+\},\n)+\}", entry)
        # One name in braces stands for authors that are not listed.
        one = paper.authors.startswith("{Authors of ") or key == "fedlight"
        assert " and " in paper.authors or one
        assert str(paper.year) in key or key == "fedlight"
    assert "version 0.2.0" in PAPERS["fedlight"].bibtex("fedlight")


def test_the_readme_has_the_entry_of_fedlight():
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    assert f"```bibtex\n{PAPERS['fedlight'].bibtex('fedlight')}\n```" in text


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")
def test_a_study_cites_its_methods_once_also_from_its_folder(tmp_path):
    study = sweep(
        over={
            "method": [
                methods.afa_cd(buffer_size=2, local_steps=2),
                methods.fedasync(lr=0.1),
                methods.fedvarp(lr=0.1, per_round=2),
            ]
        },
        seeds=[0, 1],
        module=Boring,
        datamodule=classes(),
        max_rounds=2,
        metric="val_loss",
        path=tmp_path,
        enable_progress_bar=False,
        accelerator="cpu",
    )
    expected = ["fedlight", "jhunjhunwala2022fedvarp", DRAWN, "xie2019asynchronous"]
    assert keys(cite(study)) == expected
    assert cite(Study.load(tmp_path)) == cite(study)
    assert keys(cite(methods.fedasync(lr=0.1))) == ["fedlight", DRAWN, "xie2019asynchronous"]


def test_the_study_of_a_comparison_is_cited():
    result = compare(
        {"FedAvg": FedAvg(), "MIFA": MIFA(None)},
        arrivals=UniformArrivals(2),
        module=Boring,
        datamodule=classes(),
        local_optimizer=LocalSGD(0.1),
        seeds=[0],
        max_rounds=1,
        metric="val_loss",
        enable_progress_bar=False,
        accelerator="cpu",
    )
    expected = ["fedlight", "mcmahan2017communication", "gu2021fast", DRAWN]
    assert keys(cite(result.study)) == expected
    with pytest.raises(TypeError, match=r"the study of a comparison is its \.study"):
        cite(result)
