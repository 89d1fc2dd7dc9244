import math

import numpy as np
import pytest

from fedlight._support import checks


@pytest.mark.parametrize(
    ("check", "good", "expected"),
    [
        (checks.positive_int, 3, 3),
        (checks.positive_int, np.int64(3), 3),
        (checks.non_negative_int, 0, 0),
        (checks.integer, -2, -2),
        (checks.number, 2, 2.0),
        (checks.number, np.float32(0.5), 0.5),
        (checks.positive, 1e-9, 1e-9),
        (checks.non_negative, 0, 0.0),
        (checks.fraction, 1, 1.0),
        (checks.fraction, 0.0, 0.0),
        (checks.rate, 0.5, 0.5),
    ],
)
def test_good_values(check, good, expected):
    value = check("name", good)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("check", "bad", "error", "says"),
    [
        (checks.positive_int, 0, ValueError, "must be at least 1, got 0"),
        (checks.positive_int, 2.0, TypeError, "must be an integer, got 2.0"),
        (checks.positive_int, True, TypeError, "must be an integer, got True"),
        (checks.non_negative_int, -1, ValueError, "must be 0 or larger, got -1"),
        (checks.integer, "5", TypeError, "must be an integer, got '5'"),
        (checks.number, None, TypeError, "must be a number, got None"),
        (checks.number, True, TypeError, "must be a number, got True"),
        (checks.number, math.nan, ValueError, "must be finite, got nan"),
        (checks.positive, 0, ValueError, "must be larger than 0, got 0"),
        (checks.positive, -0.5, ValueError, "must be larger than 0, got -0.5"),
        (checks.positive, math.inf, ValueError, "must be finite, got inf"),
        (checks.non_negative, -1e-9, ValueError, "must be 0 or larger, got -1e-09"),
        (checks.fraction, 1.1, ValueError, "must lie between 0 and 1, got 1.1"),
        (checks.rate, "a", TypeError, "a function of the version"),
        (checks.rate, 0, ValueError, "must be larger than 0, got 0"),
    ],
)
def test_bad_values_are_named(check, bad, error, says):
    with pytest.raises(error) as caught:
        check("the_name", bad)
    assert str(caught.value).startswith("the_name ")
    assert says in str(caught.value)


def test_rates():
    assert checks.rate_at("lr", 0.5, 7) == 0.5
    assert checks.rate_at("lr", lambda version: 1 / (1 + version), 3) == 0.25
    with pytest.raises(ValueError, match=r"lr\(version=3\) must be 0 or larger, got -1"):
        checks.rate_at("lr", lambda version: -1, 3)


def test_choices():
    assert checks.one_of("resume", "a", ("a", "b")) == "a"
    with pytest.raises(ValueError, match="resume must be one of 'a', 'b', got 'c'"):
        checks.one_of("resume", "c", ("a", "b"))
