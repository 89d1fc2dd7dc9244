"""Steps whose loss does not use all parameters."""

import torch

from fedlight.executors._stack.unused_parameters import step_without
from fedlight.local_optimizers import LocalSGD
from fedlight.local_optimizers.base import LocalRun


def test_a_step_counts_as_skipped_if_it_uses_no_parameter_at_all():
    params = [torch.ones(1, 2), torch.ones(1, 3)]
    run = LocalRun(
        params=[param.clone() for param in params],
        pulled=params,
        lr=0.1,
        num_steps=torch.ones(1, dtype=torch.int64),
    )
    run.step = 0
    grads = [torch.ones(1, 2), torch.zeros(1, 3)]
    step_without(LocalSGD(0.1), run, grads, [1])
    assert run.skipped == 0
    step_without(LocalSGD(0.1), run, grads, [0, 1])
    assert run.skipped == 1
    torch.testing.assert_close(run.params[0], torch.full((1, 2), 0.9))
    assert torch.equal(run.params[1], params[1])
