"""A traced graph of operators as the source of a Python function of tensors."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, fx

from fedlight.executors._tracing.simplify import simplify

Function: TypeAlias = Callable[..., Sequence[Tensor]]

# TorchScript never frees a function that it has traced (half a megabyte). So each one is kept and
# used again, as runs that differ in seeds or strategies have the same graphs, and their number is
# limited; beyond it, programs run as Python.
_INTERPRETED: dict[str, Function] = {}
_MOST = 256

# TorchScript does not know the former, and the latter has no batching rule.
_KNOWN: dict[Any, Any] = {torch.ops.aten.view.dtype: torch.ops.aten.view_copy.dtype}

# not part of a name such as `add_3`, nor of a float
_WHOLE_NUMBER = re.compile(r"(?<![\w.])(\d+)(?![\w.])")


class Program(NamedTuple):
    """A simplified graph as the source of a Python function ``step``.

    Attributes:
        source: The source.
        known: The global names that the source uses, and their values.
        words: The graph as text, or None if it holds tensors of its own.
    """

    source: str
    known: dict[str, Any]
    words: str | None


def program(module: fx.GraphModule, simplified: bool = True) -> Program:
    """The program of a graph.

    Args:
        module: The graph, as `make_fx` returns it.
        simplified: Whether the graph is simplified.
    """
    graph = module.graph
    if simplified:
        simplify(graph)
    known: dict[str, Any] = {"__name__": __name__}
    source = "\n".join(_lines(module, known))
    own = any(node.op == "get_attr" for node in graph.nodes)
    return Program(source, known, None if own else str(graph))


def resized(one: Program, n: int, two: Program, m: int, wanted: int) -> Program | None:
    """The program for stacks of another size, from those for stacks of n and of m clients.

    Both must differ in whole numbers alone. Each number that differs is taken to be linear in the
    number of clients, as sizes and strides are. That is a guess: the program must be checked before
    it is used.

    Returns:
        The program for `wanted` clients, or None if the two differ in anything else.
    """
    if one.known.keys() != two.known.keys() or not all(
        _same_value(one.known[name], two.known[name]) for name in one.known
    ):
        return None
    parts = [_WHOLE_NUMBER.split(each.source) for each in (one, two)]
    if len(parts[0]) != len(parts[1]):
        return None
    # The parts alternate between text and numbers, so equal texts keep the numbers in step.
    written = []
    for first, second in zip(*parts, strict=True):
        if first != second:
            if not (first.isdigit() and second.isdigit()):
                return None
            slope, rest = divmod(int(second) - int(first), m - n)
            if rest:
                return None
            first = str(int(first) + slope * (wanted - n))
        written.append(first)
    words = None if one.words is None or two.words is None else one.words + two.words
    return Program("".join(written), one.known, words)


def compiled(program: Program, inputs: Sequence[Tensor], interpreted: bool = True) -> Function:
    """Turn a program into a function.

    Args:
        program: The program.
        inputs: Tensors like those of later calls. They are not kept.
        interpreted: Whether TorchScript's interpreter may run it.
    """
    names = dict(program.known)
    exec(program.source, names)  # a call of `torch.fx.GraphModule` costs twice as much
    function: Function = names["step"]
    # Elsewhere TorchScript fuses operators, which changes bits.
    on_cpu = all(tensor.device.type == "cpu" for tensor in inputs)
    if not (interpreted and on_cpu) or program.words is None:
        return function
    # The default dtype is part of the key, as it decides the type of numbers in the program.
    shapes = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in inputs]
    key = f"{program.words} {shapes} {torch.get_default_dtype()}"
    if key not in _INTERPRETED and len(_INTERPRETED) < _MOST:
        _INTERPRETED[key] = _interpreted(function, inputs)
    return _INTERPRETED.get(key, function)


def _interpreted(function: Function, inputs: Sequence[Tensor]) -> Function:
    """The function under TorchScript's interpreter: a call costs half of what Python needs."""
    with warnings.catch_warnings():  # torch recommends `torch.compile`: that needs a C++ compiler
        warnings.simplefilter("ignore")
        try:
            traced = torch.jit.trace(function, tuple(inputs), check_trace=False)  # type: ignore[no-untyped-call]
        except RuntimeError:  # TorchScript does not know all kinds of arguments
            return function
    return cast(Function, traced)


def _lines(module: fx.GraphModule, known: dict[str, Any]) -> Iterator[str]:
    """The lines of the function. The values of their global names are added to `known`."""
    nodes = list(module.graph.nodes)
    last = {source: node for node in nodes for source in node.all_input_nodes}
    yield f"def step({', '.join(node.name for node in nodes if node.op == 'placeholder')}):"
    for number, node in enumerate(nodes):
        if node.op == "placeholder":
            continue
        if node.op == "get_attr":
            known[node.name] = getattr(module, str(node.target))
        elif node.op == "output":
            yield f"    return {_written(tuple(node.args[0]), known, number)}"
        elif node.op == "call_function":
            target: Any = _KNOWN.get(node.target, node.target)
            # `OpOverload` is a Python object around the operator: one call less
            known[f"op{number}"] = getattr(target, "_op", target)
            inputs = [_written(arg, known, number) for arg in node.args]
            inputs += [f"{k}={_written(arg, known, number)}" for k, arg in node.kwargs.items()]
            yield f"    {node.name} = op{number}({', '.join(inputs)})"
        else:
            raise NotImplementedError(f"{node.op} in a traced step")
        done = [s.name for s in node.all_input_nodes if last[s] is node and s.name not in known]
        if done and node.op != "output":
            yield f"    {' = '.join(done)} = None"  # free the memory as early as possible


def _same_value(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def _written(arg: Any, known: dict[str, Any], number: int) -> str:
    """An argument as Python source."""
    if isinstance(arg, fx.Node):
        return arg.name
    if isinstance(arg, list | tuple):
        inner = ", ".join(_written(each, known, number) for each in arg)
        return f"[{inner}]" if isinstance(arg, list) else f"({inner},)"
    if isinstance(arg, int | float | str | bool | None) and repr(arg) not in ("inf", "-inf", "nan"):
        return repr(arg)
    name = f"const{number}_{len(known)}"
    known[name] = arg
    return name
