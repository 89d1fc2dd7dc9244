"""Updates and versions made by hand, so that an aggregator's step is one line of numbers."""

import numpy as np
import pytest
import torch

from fedlight.types import ClientUpdate, Federation, LocalResult, ServerState, Task


@pytest.fixture
def make_update():
    """``make_update(client, [delta], …)``: an update that is computed already."""
    serial = iter(range(10**6))

    def make(
        client,
        delta,
        *,
        pulled=0,
        start=None,
        steps=1,
        examples=10,
        duration=1.0,
        arrives=None,
        buffers=(),
        counters=(),
        state=None,
        replaced=None,
    ):
        arrives = duration if arrives is None else arrives
        task = Task(client, pulled, arrives - duration, arrives, steps, next(serial), 0)
        result = LocalResult(
            torch.tensor(delta, dtype=torch.float64),
            torch.tensor(buffers, dtype=torch.float64),
            torch.tensor(counters, dtype=torch.int64),
            client_state=None if state is None else torch.tensor(state, dtype=torch.float64),
        )
        before = None if replaced is None else torch.tensor(replaced, dtype=torch.float64)
        return ClientUpdate(
            task, examples, result, None if replaced is None else lambda: before, start
        )

    return make


@pytest.fixture
def make_state():
    """``make_state([params], version, …)``: a version of the server's model."""

    def make(params=(0.0,), version=0, buffers=(), counters=()):
        return ServerState(
            version,
            torch.tensor(params, dtype=torch.float64),
            torch.tensor(buffers, dtype=torch.float64),
            torch.tensor(counters, dtype=torch.int64),
        )

    return make


@pytest.fixture
def make_federation():
    """``make_federation([n_i], [T_i])``."""

    def make(examples=(10, 10, 10, 10), durations=None):
        return Federation(
            num_clients=len(examples),
            num_examples=np.array(examples),
            batch_size=1,
            expected_durations=None if durations is None else np.array(durations),
        )

    return make


@pytest.fixture
def run(make_state, make_federation):
    """``run(aggregator, updates, …)``: one step with these updates; the new version."""

    def run(aggregator, updates, *, state=None, federation=None, setup=True):
        state = make_state() if state is None else state
        if setup:
            aggregator.setup(federation or make_federation(), state)
        for update in updates:
            aggregator.receive(update)
        after = aggregator.step(state)
        assert after.version == state.version + 1
        assert [used.update for used in after.used] == list(updates)
        assert aggregator.held == []
        return after

    return run
