"""CUDA graphs of traced steps: one launch in place of one for each operator.

**Never run on a card.** The tests put a recorder of operators in the place of CUDA's graphs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Function: TypeAlias = Callable[..., Sequence[Tensor]]

KIND = "cuda"
"""The kind of device that has graphs."""

_WARM_UPS = 3  # libraries choose their kernels and take their workspaces before the capture


class CudaGraphs:
    """Captures steps as CUDA graphs for one run on one device.

    A graph does again what was launched while it was captured, at the same addresses. So a call
    copies its inputs (models, batches, the keys of random numbers) to where the graph reads them,
    and returns copies of what the graph wrote; what the step changes in its inputs (the buffers of
    BatchNorm) it copies back. Learning rates are no inputs of a step: the local optimizer applies
    them afterwards.

    All graphs share one pool of memory, since nothing but those copies outlives a call.

    Args:
        device: The device of the run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._stopped = device.type != KIND
        if self._stopped:
            _say(f"the run is on {device}, which has none")

    def graphed(
        self, step: Function, examples: Sequence[Tensor], check: Callable[[Function], bool]
    ) -> Function:
        """The step as a graph for inputs like these, or the step itself where that fails.

        The first failure is said once and stops further tries: what cannot be captured in one shape
        rarely can in another one.

        Args:
            step: From tensors to tensors, without gradients and without a look at any value.
            examples: Inputs of the shapes, strides and types of all later ones. Not kept.
            check: Whether a function gives what the step does on the examples.
        """
        if self._stopped:
            return step
        try:
            graph = _Graph(step, examples, self._shared_pool())
            if check(graph):
                return graph
            reason = "a captured step gave other numbers"
        except Exception as error:  # CUDA, its libraries and the allocator all raise their own
            first = str(error).partition("\n")[0]
            reason = f"{type(error).__name__}: {first}"
        self._stopped = True
        _say(reason)
        return step

    def _shared_pool(self) -> Any:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool


class _Graph:
    """A captured step.

    Args:
        step: The step.
        examples: Inputs like those of later calls.
        pool: The pool of memory for what the graph computes.
    """

    def __init__(self, step: Function, examples: Sequence[Tensor], pool: Any) -> None:
        self._step = step  # it holds the constants that the graph reads
        self._inputs = [_like(each).copy_(each) for each in examples]
        versions = [each._version for each in self._inputs]
        device = examples[0].device
        with torch.cuda.device(device):
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side), _NoCopies():  # type: ignore[no-untyped-call]
                for _ in range(_WARM_UPS):
                    step(*self._inputs)
            torch.cuda.current_stream().wait_stream(side)
            # BatchNorm changes its buffers without telling autograd.
            self._written = [
                position
                for position, (each, example) in enumerate(zip(self._inputs, examples, strict=True))
                if each._version != versions[position] or not torch.equal(each, example)
            ]
            for each in self._inputs:
                each.zero_()  # were an example baked in, the check would now find it
            self._graph = torch.cuda.CUDAGraph()
            # other threads may use the device meanwhile
            with torch.cuda.graph(
                self._graph, pool=pool, stream=side, capture_error_mode="thread_local"
            ):
                self._outputs = list(step(*self._inputs))

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Run the graph on other inputs."""
        _copy(inputs, self._inputs)
        self._graph.replay()
        _copy([self._inputs[i] for i in self._written], [inputs[i] for i in self._written])
        # the next call writes to the same addresses, and logged values are read much later
        results = [torch.empty_like(each) for each in self._outputs]
        _copy(self._outputs, results)
        return results


class _NoCopies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses copies between the CPU and a device.

    A graph would do them again with memory of the CPU that is no longer theirs. A number that an
    operator takes from a tensor of the CPU without dimensions is part of the launch, as any other
    constant of a trace.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operator."""
        result = func(*args, **(kwargs or {}))
        given, made = _tensors((args, kwargs)), _tensors(result)
        places = {each.device for each in given if each.dim() or func.name() in _COPIES}
        if len(places.union(each.device for each in made)) > 1:
            raise RuntimeError(f"{func} copies a tensor from one device to another")
        return result


_COPIES = {"aten::_to_copy", "aten::copy_"}


def _tensors(tree: Any) -> list[Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor)]


def _like(tensor: Tensor) -> Tensor:
    """A tensor without values, with the same strides."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copy tensors with one launch for each type."""
    groups: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
    for source, target in zip(sources, targets, strict=True):
        groups[target.dtype][0].append(source)
        groups[target.dtype][1].append(target)
    for some, others in groups.values():
        torch._foreach_copy_(others, some)


def _say(reason: str) -> None:
    rank_zero_info(f"VectorizedExecutor: no CUDA graphs ({reason}); steps are launched as usual")
