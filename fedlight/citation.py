"""`cite`: the BibTeX of what a run or a study has used."""

from __future__ import annotations

from collections.abc import Mapping

from fedlight.methods import Method
from fedlight.methods._papers import PARTS, bibtex, papers_of
from fedlight.studies import Study
from fedlight.trainer import FedTrainer


def cite(used: FedTrainer | Study | Method) -> str:
    """Return BibTeX of the papers of all methods in use, and of fedlight, each entry once.

    The arrivals, the aggregator, the local optimizer and the channel of a trainer are looked at,
    and those within them (`ErrorFeedback(TopK(0.1))`). A strategy of your own has the papers of its
    base class.

    Args:
        used: A trainer, a study, or a method of `fedlight.methods`.

    Raises:
        TypeError: `used` is something else.

    Example:
        >>> from fedlight import FedTrainer, methods
        >>> trainer = FedTrainer(**methods.fedbuff(concurrency=10, lr=0.1), max_rounds=5)
        >>> print(cite(trainer))
        @misc{fedlight,
        ...
        @inproceedings{nguyen2022federated,
          author = {Nguyen, John and Malik, Kshitiz and Zhan, Hongyuan and ...},
          title = {Federated Learning with Buffered Asynchronous Aggregation},
        ...
    """
    if isinstance(used, Study):
        found = {key for run in used.runs for key in run.papers}
        return bibtex(found)
    if isinstance(used, FedTrainer):
        return bibtex(papers_of({name: getattr(used, name) for name in PARTS}))
    if isinstance(used, Mapping) and "aggregator" in used:
        return bibtex(papers_of(used))
    raise TypeError(
        f"used must be a FedTrainer, a Study or a method, got {used!r} ({type(used).__name__}); "
        "the study of a comparison is its .study"
    )
