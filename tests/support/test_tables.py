import math

import pytest
import torch

from fedlight._support.tables import SHORTEST, is_table, packed, unpacked

N = SHORTEST
NUMBERS = range(N)


def there_and_back(value):
    table = packed(value, list)
    assert is_table(table)
    return unpacked(table, list)


@pytest.mark.parametrize(
    "value",
    [
        [*NUMBERS],
        [2**63 - 1 - number for number in NUMBERS],
        [number / 7 for number in NUMBERS],
        [-0.0, math.inf, -math.inf, *[5e-324] * N],
        [number % 3 == 0 for number in NUMBERS],
        [None] * N,
        ["open", "computed"] * N,
        [[number, 0.5, None, "a", number > 9, [number, [1.5]]] for number in NUMBERS],
        [{"task": {"serial": number, "tag": None}, "state": "open"} for number in NUMBERS],
        {number * 7: [number, {"time": 0.1}] for number in NUMBERS},
        # A column of unlike items does not spoil the others.
        [[number, None if number else "late"] for number in NUMBERS],
        [[number, [0] * number] for number in NUMBERS],
        [[2**64 + number, 1.0] for number in NUMBERS],
        [[f"name {number}", 1] for number in NUMBERS],
    ],
)
def test_a_table_gives_back_the_same_items_of_the_same_kinds(value):
    again = there_and_back(value)
    assert repr(again) == repr(value)
    assert type(again) is type(value)


def test_not_a_number_and_tuples_come_back_as_from_all_plain_data():
    again = there_and_back([(number, math.nan) for number in NUMBERS])
    assert all(row[0] == number and math.isnan(row[1]) for number, row in enumerate(again))
    assert {type(row) for row in again} == {list}


@pytest.mark.parametrize(
    "value",
    [
        [*range(N - 1)],
        [*NUMBERS, 0.5],
        [[1, 2]] * N + [[1]],
        [[]] * N,
        [{}] * N,
        [{"a": 1, "b": 2}] * N + [{"b": 2, "a": 1}],
        [{1: 2}] * N,
        [torch.zeros(1)] * N,
        {str(number): number for number in NUMBERS},
        {number == 0: number for number in NUMBERS},
        [2**64] * N,
    ],
)
def test_short_lists_and_unlike_items_stay_as_they_are(value):
    assert packed(value, list) is None


def test_the_objects_of_a_table_do_not_grow_with_its_rows():
    def objects(table):
        if isinstance(table, dict):
            return 1 + sum(map(objects, table.values()))
        return 1 + sum(map(objects, table)) if isinstance(table, list) else 1

    few, many = (
        packed([{"a": [number, 0.5], "b": "open"} for number in range(rows)], list)
        for rows in (N, 20 * N)
    )
    assert objects(few) == objects(many)
