"""The global random generators, and those of a module: seeded for a step and restored after it."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

_SPARE = np.random.MT19937(0)


@contextmanager
def isolated_rng(own: Iterable[Any] = ()) -> Iterator[None]:
    """Restore the global generators of Python, NumPy and torch (all devices) on exit.

    Args:
        own: Generators of the module, which are restored, too.
    """
    before = [(each, _state(each)) for each in own]
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
        for each, state in before:
            _set_state(each, state)


def seed_all(seed: int, own: Iterable[Any] = ()) -> None:
    """Seed the global generators of Python, NumPy and torch (all devices).

    Args:
        seed: The seed.
        own: Generators of the module, which are seeded, too.
    """
    for each in own:
        _seed(each, seed)
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


def position(own: Iterable[Any] = ()) -> tuple[Any, ...]:
    """The positions of the global generators and of others; equal if nothing was drawn."""
    cpu, cards = torch_position()
    states = [pickle.dumps(_state(each)) for each in own]
    return random.getstate(), _numpy_state(), cpu.numpy().tobytes(), cards, states


def drawn_from(seed: int, own: Mapping[str, Any]) -> list[str]:
    """The generators, in words, from which numbers were drawn since they were seeded.

    All are seeded again. If torch's was seeded since (`Streams` does so), that is no draw.

    Args:
        seed: The seed.
        own: Generators of the module by name.
    """
    states = {name: _bytes(each) for name, each in own.items()}
    python, numpy, position = random.getstate(), _numpy_state(), torch_position()
    fresh = torch.Generator().manual_seed(torch.default_generator.initial_seed()).get_state()
    seed_all(seed, own.values())
    moved = {
        "Python's random": random.getstate() != python,
        "numpy.random": _numpy_state() != numpy,
        "torch's global generator": not torch.equal(position[0], fresh) or any(position[1]),
        **{name: _bytes(own[name]) != state for name, state in states.items()},
    }
    return [name for name, has in moved.items() if has]


def _numpy_state() -> tuple[object, ...]:
    state: Any = np.random.get_state()  # noqa: NPY002
    return state[1].tobytes(), *state[2:]


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _bytes(generator: Any) -> bytes:
    state = _state(generator)
    # Equal tensors may have different bytes as a pickle.
    return state.numpy().tobytes() if isinstance(state, Tensor) else pickle.dumps(state)


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, np.random.Generator):
        kind: Any = type(generator.bit_generator)
        generator.bit_generator.state = kind(seed).state
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed & ((1 << 63) - 1))
    else:
        generator.seed(seed if isinstance(generator, random.Random) else seed % (1 << 32))
