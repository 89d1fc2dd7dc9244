"""How many clients fit in a stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedlight.executors.base import Workplace

_CPU_BLOCK_BYTES = 4 * 2**20


def most_clients(
    workplace: Workplace,
    asked: int,
    max_bytes: int | None,
    block_bytes: int | None,
    example_bytes: Sequence[int],
) -> int:
    """How many clients a stack may hold.

    Args:
        workplace: The workplace of the local runs.
        asked: The largest number that is wanted.
        max_bytes: Bytes that a stack may take, or None for no limit.
        block_bytes: Bytes of the largest tensor of a stack, or None for the default.
        example_bytes: Size of each tensor of an example.
    """
    layout, fitting = workplace.state.param_layout, asked
    model = layout.numel * layout.dtype.itemsize
    partition = workplace.partition
    most = len(partition.rows) if workplace.pooled else int(partition.sizes.max())
    batch = min(workplace.batch_size, most)
    # The models, their gradients and the pulled models.
    if max_bytes is not None:
        fitting = min(fitting, max_bytes // (3 * model + batch * sum(example_bytes)))
    if block_bytes is None and workplace.state.device.type == "cpu":
        block_bytes = _CPU_BLOCK_BYTES
    if block_bytes is not None:
        fitting = min(fitting, block_bytes // max(model, batch * max(example_bytes)))
    return unpadded(fitting)


def fewest_clients(workplace: Workplace, most: int, example_bytes: Sequence[int]) -> int:
    """How many clients a stack holds at least, with padding.

    On a CPU a stack of one is computed by other kernels than a larger one, and so with other bits.
    Hence it is padded to two, unless each stack holds one because the model is too large for more.
    That is for the model and the data to say and not for a `max_batch`, or the bits would depend on
    it.

    Args:
        workplace: What is computed, and where.
        most: How many clients a stack may hold.
        example_bytes: Size of each tensor of an example.
    """
    if workplace.state.device.type != "cpu":
        return 1
    by_size = most_clients(workplace, 2, None, None, example_bytes)
    return 2 if most > 1 or by_size > 1 else 1


def unpadded(n: int) -> int:
    """The largest stack of at most `n` clients whose padding does not exceed that number."""
    while n > 1 and stack_size(n) > n:
        n -= 1
    return max(1, n)


def stack_size(n: int) -> int:
    """Return the size to which a stack of `n` clients is padded: five significant binary digits.

    So only few sizes occur (all up to 32, and 16 more for each doubling), each of which is traced
    once, and at most a sixteenth of the work is wasted.

    Example:
        >>> [stack_size(n) for n in (1, 15, 33, 100, 255)]
        [1, 15, 34, 100, 256]
    """
    unit: int = 1 << max(0, (n - 1).bit_length() - 5)
    return -(-n // unit) * unit
