"""The places of named tensors in a flat vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedlight._support.memory import new_tensor


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """The places of named tensors in a flat vector.

    Attributes:
        names: Names in the module, in order.
        shapes: Their shapes.
        dtype: The dtype of the vector.
        sizes: Their numbers of elements.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    dtype: torch.dtype
    sizes: tuple[int, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(shape.numel() for shape in self.shapes))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], default: torch.dtype) -> FlatLayout:
        """Return the layout of named tensors; of mixed dtypes it takes the widest one."""
        dtype = default
        if tensors:
            dtype = next(iter(tensors.values())).dtype
            for tensor in tensors.values():
                dtype = torch.promote_types(dtype, tensor.dtype)
        shapes = tuple(tensor.shape for tensor in tensors.values())
        return cls(tuple(tensors), shapes, dtype)

    @property
    def numel(self) -> int:
        """Length of the vector."""
        return sum(self.sizes)

    def flatten(self, tensors: Sequence[Tensor], leading: int = 0) -> Tensor:
        """Return a new vector ``[*lead, numel]`` made of tensors ``[*lead, *shape]``.

        Args:
            tensors: The tensors in the layout's order.
            leading: The number of leading dimensions that the tensors share.

        Raises:
            ValueError: There are no tensors.
        """
        if not tensors:
            raise ValueError("there is nothing to flatten; make an empty vector instead")
        lead = tensors[0].shape[:leading]
        parts = [tensor.reshape(*lead, -1).to(self.dtype) for tensor in tensors]
        return torch.cat(parts, dim=-1, out=new_tensor((*lead, self.numel), parts[0]))

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return views ``[*lead, *shape]`` of a vector ``[*lead, numel]``, in order."""
        if not self.sizes:
            return []
        lead = flat.shape[:-1]
        pieces = flat.split_with_sizes(self.sizes, dim=-1)
        return [
            piece.view((*lead, *shape)) for piece, shape in zip(pieces, self.shapes, strict=True)
        ]
