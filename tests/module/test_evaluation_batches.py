import pytest
import torch

from fedlight._module.evaluation_batches import EvaluationBatches
from fedlight.data.examples import ExampleList, ExampleTable
from tests.module.test_evaluation import numbers


@pytest.mark.parametrize(
    ("limit", "batches"), [(None, 3), (1, 1), (2, 2), (7, 3), (1.0, 3), (0.67, 2), (0.01, 1)]
)
def test_the_limit_is_a_number_or_a_share(limit, batches):
    for examples in (numbers(1, 2, 3, 4, 5), ExampleList([[torch.ones(1)] * 5])):
        assert len(list(EvaluationBatches(examples, 2, limit))) == batches


def test_small_tables_are_gathered_once(monkeypatch):
    gathered = []
    table = numbers(1, 2, 3)
    original = ExampleTable.gather
    monkeypatch.setattr(
        ExampleTable, "gather", lambda self, rows: gathered.append(1) or original(self, rows)
    )
    batches = EvaluationBatches(table, 2, None)
    first, second = list(batches), list(batches)
    made = len(gathered)
    assert [size for size, _ in first] == [2, 1]
    assert first[0][1][0] is second[0][1][0]
    assert len(list(batches)) == 2
    assert len(gathered) == made

    with_nan = EvaluationBatches(numbers(1, float("nan")), 2, None)
    assert next(iter(list(with_nan)))[1][0] is next(iter(list(with_nan)))[1][0]

    monkeypatch.setattr("fedlight._module.evaluation_batches._KEPT_BYTES", 1)
    large = EvaluationBatches(table, 2, None)
    values = [[part.tolist() for part in batch] for _, batch in large]
    assert values == [[[1, 2]], [[3]]] == [[p.tolist() for p in batch] for _, batch in large]
    assert next(iter(large))[1][0] is not next(iter(large))[1][0]
