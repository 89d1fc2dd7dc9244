"""The global random generators: seeded for ``training_step`` and restored afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

_SPARE = np.random.MT19937(0)


@contextmanager
def isolated_rng() -> Iterator[None]:
    """Restore the global generators of Python, NumPy and torch (all devices) on exit."""
    python, numpy = random.getstate(), np.random.mtrand.get_bit_generator()
    # Swapping NumPy's generator for a spare one is ten times as fast as copying its state.
    # A nested call gets a new one, since the spare one is in use.
    np.random.mtrand.set_bit_generator(np.random.MT19937(0) if numpy is _SPARE else _SPARE)
    cpu = torch.default_generator.get_state()
    # Reading the state of CUDA's generators would initialise CUDA.
    cuda = torch.cuda.get_rng_state_all() if _cuda_in_use() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.mtrand.set_bit_generator(numpy)
        torch.default_generator.set_state(cpu)
        for device, state in enumerate(cuda):
            torch.cuda.set_rng_state(state, device)


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002
    seed &= (1 << 63) - 1
    if _cuda_in_use() or torch.backends.mps.is_available():
        torch.manual_seed(seed)
    else:  # the same for the CPU alone, in 2 us instead of 150; each local run seeds once
        torch.default_generator.manual_seed(seed)


def _cuda_in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def torch_position() -> tuple[Tensor, list[int]]:
    """The positions of torch's generators: the state on the CPU, the offsets on the cards."""
    cards = torch.cuda.default_generators if _cuda_in_use() else ()
    return torch.default_generator.get_state(), [each.get_offset() for each in cards]


def has_moved(before: tuple[Tensor, list[int]]) -> bool:
    """Whether torch's generators have another position than before."""
    state, offsets = torch_position()
    # The states lie on the CPU. As bytes: a comparison of tensors would count as one of the device.
    return state.numpy().tobytes() != before[0].numpy().tobytes() or offsets != before[1]


def drawn_from(seed: int) -> list[str]:
    """The global generators, in words, from which numbers were drawn since ``seed_all(seed)``.

    All are seeded again. If torch's was seeded since (`Streams` does so), that is no draw.
    """
    python, numpy, position = random.getstate(), _numpy_state(), torch_position()
    fresh = torch.Generator().manual_seed(torch.default_generator.initial_seed()).get_state()
    seed_all(seed)
    moved = {
        "Python's random": random.getstate() != python,
        "numpy.random": _numpy_state() != numpy,
        "torch's global generator": not torch.equal(position[0], fresh) or any(position[1]),
    }
    return [name for name, has in moved.items() if has]


def _numpy_state() -> tuple[object, ...]:
    state: Any = np.random.get_state()  # noqa: NPY002
    return state[1].tobytes(), *state[2:]
