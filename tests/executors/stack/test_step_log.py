from types import SimpleNamespace

import torch
from lightning import LightningModule

from fedlight.executors._stack.step_log import StepLog


def test_a_stacked_step_keeps_all_values_on_one_device_and_of_one_kind():
    """A plain number and a tensor made on the CPU meet the others on a GPU."""
    for dtype in (torch.float32, torch.float64):
        layout = SimpleNamespace(dtype=dtype)
        state = SimpleNamespace(device=torch.device("meta"), param_layout=layout)
        log = StepLog(SimpleNamespace(module=LightningModule(), state=state))
        log.begin()
        log.log("number", 0.1)
        log.log("cpu", torch.tensor([2]))
        log.log("half", torch.tensor(0.5, dtype=torch.float16), reduce_fx="max")
        values = log.logged.values.values()
        assert {(value.device.type, value.dtype, value.shape) for value in values} == {
            ("meta", dtype, torch.Size())
        }
