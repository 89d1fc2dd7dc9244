import numpy as np
import pandas as pd
import pytest
import torch

from fedlight.arrivals import (
    BiasedArrivals,
    CommunicationPattern,
    ContinuousArrivals,
    DiurnalWindows,
    ExponentialDurations,
    FixedDurations,
    HalfNormalDurations,
    LogNormalDurations,
    PerClientSteps,
    StepDurations,
    UniformSpeeds,
)

# Each takes one number for each client.
TAKERS = {
    "durations": FixedDurations,
    "mean": ExponentialDurations,
    "scale": HalfNormalDurations,
    "median": lambda values: LogNormalDurations(values, 0.5),
    "per_step": StepDurations,
    "num_steps": PerClientSteps,
    "probabilities": lambda values: BiasedArrivals(1, values),
    "period": CommunicationPattern.periodic,
    "offsets": lambda values: CommunicationPattern.periodic(9, values),
    "probability": CommunicationPattern.random,
    "phases": lambda values: DiurnalWindows(phases=values),
}
WHOLE = ("num_steps", "period", "offsets")


def values_for(name):
    return [2, 3] if name in WHOLE else [0.25, 0.75]


@pytest.mark.parametrize("name", TAKERS)
@pytest.mark.parametrize(
    "form",
    [tuple, iter, np.array, pd.Series, torch.tensor, lambda v: dict(enumerate(v)).values()],
    ids=["tuple", "generator", "array", "series", "tensor", "values"],
)
def test_forms_of_a_list(name, form):
    values = values_for(name)
    assert repr(TAKERS[name](form(values))) == repr(TAKERS[name](values))


@pytest.mark.parametrize("name", TAKERS)
@pytest.mark.parametrize(
    ("form", "says"),
    [
        (lambda v: dict(enumerate(v, start=1)), "must be a list, got the mapping {1: "),
        (set, "must be a list, got the set {"),
        (
            lambda v: pd.DataFrame({"a": v, "b": v}),
            r"got DataFrame of shape \(2, 2\); pass one col",
        ),
        (lambda v: np.array([v, v]), r"got ndarray of shape \(2, 2\); pass one column"),
        (lambda v: np.array(v[0]), r"got ndarray of shape \(\); .* x.item\(\)"),
    ],
    ids=["mapping", "set", "frame", "matrix", "no dimension"],
)
def test_what_is_no_list(name, form, says):
    with pytest.raises(TypeError, match=f"{name} must be .*{says.removeprefix('must be ')}"):
        TAKERS[name](form(values_for(name)))


@pytest.mark.parametrize("name", TAKERS)
@pytest.mark.parametrize("wrong", [None, "0.5", True, 1j])
def test_what_is_no_number(name, wrong):
    with pytest.raises(TypeError, match=rf"{name}\[1\] must be an? (number|integer), got "):
        TAKERS[name]([values_for(name)[0], wrong])


@pytest.mark.parametrize("name", [name for name in TAKERS if name not in WHOLE])
def test_nan_is_named(name):
    with pytest.raises(ValueError, match=rf"{name}\[1\] must be finite, got nan"):
        TAKERS[name]([0.5, float("nan")])


def test_numpy_scalars_are_numbers():
    assert repr(ExponentialDurations(np.float32(0.5))) == "ExponentialDurations(0.5)"
    assert repr(UniformSpeeds(np.float64(0.5))) == "UniformSpeeds(0.5, slowest=1)"
    arrivals = ContinuousArrivals(StepDurations(np.int64(2)), local_steps=np.int64(3))
    assert arrivals.simulate(num_clients=1, buffer_size=1, max_updates=1).events[0].time == 6.0
