import torch
from lightning import LightningModule
from torchmetrics import MaxMetric

from fedlight._module.log_arguments import Options
from fedlight.executors._stack.log_recorder import StackedRecorder
from fedlight.executors._stack.step_log import LOSS, Deferred, StackedLog
from fedlight.types import LoggedAs, LoggedValue


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.largest = MaxMetric()


def losses(*values):
    return {LOSS: torch.tensor(values)}


def test_a_name_may_be_a_number_in_one_step_and_of_a_metric_object_in_another():
    how = {"x": Options(reduce="max")}
    recorder = StackedRecorder(Module(), [2, 2, 1], batch_size=4)
    number = {"x": torch.tensor([5.0, 1.0, 7.0])}
    recorder.add(StackedLog(losses(1.0, 2.0, 3.0) | number, {}, [], {}, how), active=3)
    fed = [("largest", (torch.tensor([[3.0], [2.0]]),), {})]
    metrics = {"x": Deferred("largest", batch=0)}
    recorder.add(StackedLog(losses(1.0, 1.0), metrics, fed, {}, how), active=2)
    summed, values = recorder.collect()
    assert summed == [2.0, 3.0, 3.0]
    shown = LoggedAs("max")
    assert values == [
        {"x": LoggedValue(5.0, 8, shown)},
        {"x": LoggedValue(2.0, 8, shown)},
        {"x": LoggedValue(7.0, 4, shown)},
    ]


def test_clients_with_fewer_steps_log_less():
    recorder = StackedRecorder(Module(), [2, 1], batch_size=4)
    recorder.add(
        StackedLog(losses(1.0, 2.0) | {"x": torch.tensor([1.0, 2.0])}, {}, [], {}, {}), active=2
    )
    # the second client is padding here
    recorder.add(
        StackedLog(losses(1.0, 9.0) | {"x": torch.tensor([3.0, 9.0])}, {}, [], {"x": 1}, {}),
        active=1,
    )
    summed, values = recorder.collect()
    assert summed == [2.0, 2.0]
    assert values == [{"x": LoggedValue(4 * 1.0 + 3.0, 5)}, {"x": LoggedValue(8.0, 4)}]


def test_a_client_logs_the_same_bits_whoever_else_is_in_the_stack():
    numbers = [0.1 * (step + 1) for step in range(11)]

    def logged(others):
        recorder = StackedRecorder(Module(), [11, *others], batch_size=3)
        for step, number in enumerate(numbers):
            row = torch.tensor([number] * (1 + sum(step < n for n in others)), dtype=torch.float64)
            recorder.add(StackedLog({LOSS: row, "x": row}, {}, [], {}, {}), active=len(row))
        sums, values = recorder.collect()
        return sums[0], values[0]

    by_hand, loss = 0.0, 0.0
    for number in numbers:
        by_hand, loss = by_hand + 3 * number, loss + number
    expected = loss, {"x": LoggedValue(by_hand, 33.0)}
    assert logged([]) == logged([11]) == logged([4]) == logged([11, 2, 1]) == expected
