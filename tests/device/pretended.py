"""A pytest plugin that sends every `FedTrainer` to a pretended device; importing it installs it.

The device lies over the memory of the CPU. Its tensors are real tensors, each operator runs on the
CPU, and tensors of two devices in one operator raise as they do on CUDA (a CPU tensor without
dimensions and CPU indices pass). There are two cards, the first of which trainers take; tensors of
both do not mix either. It counts and limits the memory that is allocated. It shows mixed
devices, copies, and where the host waits; it shows neither speed nor CUDA's kernels, random
generators and graphs.

``tests/on_device.py`` builds it and runs tests with it.
"""

import os
import sys
import types

import torch

import fedlight.trainer
from fedlight import FedTrainer

sys.path.insert(0, os.environ["FEDLIGHT_PRETENDED"])

torch.utils.rename_privateuse1_backend("pretended")
_module = types.ModuleType("pretended")
for _name, _answer in {
    "is_available": True,
    "is_initialized": True,
    "_is_in_bad_fork": False,
    "synchronize": None,
    "manual_seed": None,
    "manual_seed_all": None,
    "set_rng_state": None,
    "get_amp_supported_dtype": [torch.float16, torch.bfloat16],
}.items():
    setattr(_module, _name, lambda *args, _answer=_answer: _answer)
_module.get_rng_state = lambda device=None: torch.get_rng_state()
torch._register_device_module("pretended", _module)

import _pretended  # noqa: E402  # built by `tests/on_device.py`

_pretended.install()
for _name in ("device_count", "current_device", "set_device"):
    setattr(_module, _name, getattr(_pretended, _name))
DEVICE = torch.device("pretended", 0)
memory = _pretended

_made = fedlight.trainer.FedTrainer.__init__


def _on_device(self: FedTrainer, **arguments: object) -> None:
    _made(self, **arguments)
    strategy = self.fabric._strategy
    strategy._root_device = DEVICE
    for accelerator in (strategy._accelerator, self.fabric._accelerator):
        accelerator.setup_device = lambda device: None


FedTrainer.__init__ = _on_device
