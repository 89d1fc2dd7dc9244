"""A traced graph of operators as a plain Python function of tensors."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, fx

from fedlight.executors._tracing.simplify import simplify

Replay: TypeAlias = Callable[..., Sequence[Tensor]]

# TorchScript never lets go of what it has traced (half a megabyte), so it is kept and used again:
# runs that differ in seeds or strategies have the same graphs.
_INTERPRETED: dict[str, Replay] = {}
_MOST = 256

_WHOLE_NUMBER = re.compile(r"(?<![\w.])(\d+)(?![\w.])")


class Program(NamedTuple):
    """A simplified graph as the source of a Python function ``replay``.

    Attributes:
        source: The source.
        known: What it names beside its arguments.
        words: The graph in words, or None where it has tensors of its own.
    """

    source: str
    known: dict[str, Any]
    words: str | None


def program(module: fx.GraphModule, without: Collection[str] = ()) -> Program:
    """The program of a graph, simplified as far as no bit of its outputs changes.

    Where the graph writes nothing in place and draws nothing, operators without a tensor among
    their inputs (constants) run now.
    """
    graph = module.graph
    pure = simplify(graph, without)
    known: dict[str, Any] = {"__name__": __name__}
    source = "\n".join(_lines(module, known, pure and "constants" not in without))
    own = any(node.op == "get_attr" for node in graph.nodes)
    return Program(source, known, None if own else str(graph))


def resized(one: Program, n: int, two: Program, m: int, wanted: int) -> Program | None:
    """The program for stacks of another size, from those for stacks of n and of m clients.

    They differ in numbers alone, and each number that differs is taken to grow evenly with the
    size. None where they differ otherwise. To be checked before it is used.
    """
    if one.known.keys() != two.known.keys() or not all(
        _same_value(one.known[name], two.known[name]) for name in one.known
    ):
        return None
    parts = [_WHOLE_NUMBER.split(each.source) for each in (one, two)]
    if len(parts[0]) != len(parts[1]):
        return None
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


def compiled(program: Program, inputs: Sequence[Tensor], interpreted: bool = True) -> Replay:
    """A program as a function.

    Args:
        program: The program.
        inputs: Tensors like those that it will be called with; not kept.
        interpreted: Whether TorchScript's interpreter may run it.
    """
    names = dict(program.known)
    exec(program.source, names)  # as torch.fx does, whose calls cost twice as much
    function: Replay = names["replay"]
    on_cpu = all(tensor.device.type == "cpu" for tensor in inputs)  # elsewhere it changes bits
    if not (interpreted and on_cpu) or program.words is None:
        return function
    shapes = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in inputs]
    key = f"{program.words} {shapes} {torch.get_default_dtype()}"
    if key not in _INTERPRETED and len(_INTERPRETED) < _MOST:
        _INTERPRETED[key] = _interpreted(function, inputs)
    return _INTERPRETED.get(key, function)


def _interpreted(function: Replay, inputs: Sequence[Tensor]) -> Replay:
    """The same under TorchScript's interpreter, which spends half as much as Python on a call."""
    with warnings.catch_warnings():  # torch advises to compile; that takes a C++ compiler
        warnings.simplefilter("ignore")
        try:
            traced = torch.jit.trace(function, tuple(inputs), check_trace=False)  # type: ignore[no-untyped-call]
        except RuntimeError:  # a few operators have arguments of kinds that it does not know
            return function
    return cast(Replay, traced)


def _lines(module: fx.GraphModule, known: dict[str, Any], pure: bool) -> Iterator[str]:
    """The lines of the function; what they name goes into `known`."""
    nodes = list(module.graph.nodes)
    last = {source: node for node in nodes for source in node.all_input_nodes}
    yield f"def replay({', '.join(node.name for node in nodes if node.op == 'placeholder')}):"
    for number, node in enumerate(nodes):
        if node.op == "placeholder":
            continue
        if node.op == "get_attr":
            known[node.name] = getattr(module, str(node.target))
        elif node.op == "output":
            yield f"    return {_written(tuple(node.args[0]), known, number)}"
        elif node.op == "call_function":
            target: Any = node.target
            call = getattr(target, "_op", target)
            if pure and not node.all_input_nodes:
                known[node.name] = call(*node.args, **node.kwargs)
                continue
            known[f"op{number}"] = call
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
