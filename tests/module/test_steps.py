import pytest
from lightning import LightningModule

from fedlight._module.steps import step_function


class Steps(LightningModule):
    def both(self, batch, batch_idx):
        return batch, batch_idx

    def named_otherwise(self, batch, number):
        return batch, number

    def short(self, batch):
        return batch

    def open(self, *args):
        return args

    def named(self, *, batch_idx, batch=None):
        return batch_idx


@pytest.mark.parametrize(
    ("name", "expected"),
    [("both", (1, 2)), ("named_otherwise", (1, 2)), ("short", 1)],
)
def test_a_step_may_leave_the_number_out(name, expected):
    assert step_function(Steps(), name)(1, 2) == expected
