"""Runs on a device whose tensors do not mix with those of the CPU."""

import gc
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedlight import FedTrainer
from fedlight.aggregators import AFACD, FedAvg, FedBuff
from fedlight.arrivals import UniformArrivals, UniformSteps
from fedlight.callbacks import ClientEvaluation, FedCheckpoint
from fedlight.executors import SequentialExecutor, VectorizedExecutor
from fedlight.local_optimizers import FedProx, LocalSGD, ModuleOptimizer, Scaffold
from tests.boring import Boring, Measured, classes, fitted, trainer

if "_pretended" not in sys.modules:
    pytest.skip(
        "needs the pretended device: python tests/on_device.py builds it", allow_module_level=True
    )


class Logs(Boring):
    """Logs numbers of all kinds, none of which lies on the device."""

    def training_step(self, batch, batch_idx):
        self.log("lr", 0.1)
        self.log("host", torch.tensor(2.0))
        self.log_dict({"one": torch.ones(1), "whole": 3, "numpy": np.float32(1.5), "yes": True})
        self.log("most", 0.5, on_step=True, on_epoch=True, reduce_fx="max")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.log("val_host", torch.tensor(1.5))


@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_numbers_of_the_host_are_logged(executor):
    run = fitted(Logs(), classes(), executor=executor, max_rounds=30)
    expected = {"lr": 0.1, "host": 2, "one": 1, "whole": 3, "numpy": 1.5, "yes": 1, "most": 0.5}
    logged = run.history[-1].metrics
    assert {name: logged[name] for name in expected} == pytest.approx(expected)
    assert logged["val_host"] == 1.5
    assert isinstance(run.run.executor, SequentialExecutor) == (executor == "sequential")


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    "optimizer", [LocalSGD(0.1, momentum=0.9), FedProx(0.1, mu=0.1), Scaffold(0.1)], ids=repr
)
@pytest.mark.parametrize("aggregator", [FedAvg, AFACD, lambda: FedBuff(3)])
def test_all_stays_on_the_device_until_the_end(executor, optimizer, aggregator):
    module = Boring(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    run = fitted(
        module,
        classes(),
        executor=executor,
        local_optimizer=optimizer,
        aggregator=aggregator(),
        arrivals=UniformArrivals(3, max_staleness=2, local_steps=UniformSteps(1, 4)),
        max_rounds=12,
    )
    assert run.state.params.device.type == "pretended"
    assert run.run.module_state.device == run.fabric.device  # the executor's
    assert all(param.device.type == "cpu" for param in module.parameters())  # given back


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_torchmetrics_and_optimizers_of_the_module(executor):
    assert fitted(Measured(), classes(), executor=executor).version == 5
    assert fitted(Measured(), classes(), local_optimizer=ModuleOptimizer()).version == 5


class Attention(Boring):
    """Attention of its own, which no rule about layers knows."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        heads = self.net(x)[:, None, None]
        mixed = functional.scaled_dot_product_attention(heads, heads, heads)
        return functional.cross_entropy(mixed[:, 0, 0], y)


class Recurrent(Boring):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 4)


def test_what_has_no_batched_operators_runs_one_by_one():
    run = fitted(Recurrent(), classes(), executor="auto", max_rounds=1)
    assert run.run.executor_reason == "stacking LSTM layers does not pay"
    conv = Boring(nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 4), nn.Flatten()))
    run = fitted(conv, classes(), executor="auto", max_rounds=1)
    assert isinstance(run.run.executor, VectorizedExecutor)  # other than on a CPU


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("deterministic", [True, "warn"])
def test_a_deterministic_run_has_the_same_bits(executor, deterministic):
    def bits(deterministic):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3))
        run = fitted(
            Boring(net),
            classes(),
            executor=executor,
            local_optimizer=Scaffold(0.1, option=1),
            aggregator=FedBuff(3),
            callbacks=ClientEvaluation(every_n_rounds=2),
            deterministic=deterministic,
        )
        run.test()
        return run.fingerprint()

    assert bits(deterministic) == bits(deterministic) == bits(None)


def test_processes_of_this_machine_compute_on_the_cpu():
    with pytest.raises(ValueError, match="on pretended:0; write accelerator='cpu', or executor="):
        fitted(Boring(), classes(), executor="processes")


def test_a_stack_for_which_memory_runs_out_is_halved(memory):
    def run(room):
        gc.collect()
        memory.reset_peak()
        memory.limit(0 if room is None else memory.memory() + room)
        try:
            run = trainer(executor="vectorized", arrivals=UniformArrivals(16), max_rounds=4)
            torch.manual_seed(0)
            run.fit(Boring(nn.Sequential(nn.Linear(4, 2000), nn.Linear(2000, 3))), data)
        finally:
            memory.limit(0)
        return run

    data = classes(sizes=(8,) * 16)
    free = run(None)
    start = memory.memory()
    room = memory.peak() - start
    with pytest.warns(UserWarning, match=r"the memory of pretended:0 ran out .* at most \d+\."):
        tight = run(3 * room // 4)
    assert 1 < tight.run.executor.max_batch < 16
    torch.testing.assert_close(tight.state.params, free.state.params)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        run(room // 100)
    assert caught.value  # not even one client


def test_a_checkpoint_takes_no_memory_of_the_device(memory, tmp_path):
    taken = []

    class Watching(FedCheckpoint):
        def on_event_end(self, trainer: FedTrainer, module) -> None:
            memory.reset_peak()
            before = memory.memory()
            super().on_event_end(trainer, module)
            taken.append(memory.peak() - before)

    arrivals = UniformArrivals(2, max_staleness=4)
    fitted(
        Boring(nn.Linear(4, 3)),
        classes(sizes=(8,) * 12),
        local_optimizer=Scaffold(0.1),
        executor="vectorized",
        arrivals=arrivals,
        callbacks=Watching(tmp_path),
        max_rounds=12,
    )
    assert (tmp_path / "last.ckpt").is_file()
    assert max(taken) < 15 * 4  # less than one model


def test_client_evaluation_does_not_hold_the_training_data_twice(memory):
    data = classes(sizes=(4000,) * 4)
    size = 4 * 4000 * (4 * 4 + 8)

    def peak(*callbacks):
        gc.collect()  # what earlier tests have left behind
        memory.reset_peak()
        before = memory.memory()
        fitted(Boring(), data, callbacks=callbacks, check_val_every_n_rounds=None, max_rounds=2)
        return memory.peak() - before

    alone = peak()
    assert size < alone < 1.5 * size
    assert peak(ClientEvaluation(every_n_rounds=1, max_examples=4)) < alone + 0.5 * size
