"""The arguments of strategies as columns of a table, such as TensorBoard's page *HParams*."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from inspect import Parameter, signature
from types import FunctionType
from typing import Any, TypeAlias

from fedlight._runs.in_words import in_words

Plain: TypeAlias = bool | int | float | str

_DEPTH = 3


def columns(name: str, strategy: object, depth: int = _DEPTH) -> dict[str, Plain]:
    """The class of a strategy and each of its arguments, those of strategies within it too.

    An argument's value is the attribute of its name; if there is none, what the strategy's repr
    says of it; if that does not mention it, its default.

    Args:
        name: The first part of the columns' names.
        strategy: The strategy.
        depth: How deep strategies within strategies are looked at.

    Example:
        >>> from fedlight.aggregators import FedAsync
        >>> columns("aggregator", FedAsync(alpha=0.6))["aggregator.alpha"]
        0.6
    """
    found: dict[str, Plain] = {name: type(strategy).__name__}
    try:
        parameters = signature(type(strategy)).parameters
    except (TypeError, ValueError):  # a class written in C
        return found
    kept = _kept(strategy)
    told = _told(repr(strategy), list(parameters))
    for argument, parameter in parameters.items():
        column = f"{name}.{argument}"
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            continue
        if argument in kept:
            found.update(_columns_of(column, kept[argument], depth - 1))
        elif argument in told:
            held = _held(strategy, told[argument])
            if held is None:
                found.update(_of_node(column, told[argument]))
            else:
                found.update(columns(column, held, depth - 1))
        elif parameter.default is not Parameter.empty:
            found.update(_columns_of(column, parameter.default, depth - 1))
    return found


def _kept(value: object) -> Mapping[str, Any]:
    """The attributes of an object; none if it has slots in place of a dict."""
    try:
        return vars(value)
    except TypeError:
        return {}


def _columns_of(column: str, value: Any, depth: int) -> dict[str, Plain]:
    """An argument, and those of a strategy that it is."""
    if isinstance(value, bool | int | float | str):
        return {column: value}
    plain = value is None or isinstance(value, FunctionType | type | list | tuple | dict)
    if plain or not _kept(value) or not depth:
        return {column: in_words(value)}
    return columns(column, value, depth)


def _told(words: str, parameters: list[str]) -> dict[str, ast.expr]:
    """The arguments that a repr names, by name."""
    try:
        call = ast.parse(words, mode="eval").body
    except SyntaxError:  # ``<Rule object at 0x7f>``
        return {}
    if not isinstance(call, ast.Call):
        return {}
    given = dict(zip(parameters, call.args, strict=False))
    return given | {each.arg: each.value for each in call.keywords if each.arg is not None}


def _held(strategy: object, node: ast.expr, depth: int = _DEPTH) -> object:
    """The strategy within another one that a part of the other's repr stands for, or None."""
    if not isinstance(node, ast.Call) or not depth:
        return None
    for value in _kept(strategy).values():
        if type(value).__name__ == ast.unparse(node.func):
            return value
        found = _held(value, node, depth - 1)
        if found is not None:
            return found
    return None


def _of_node(column: str, node: ast.expr) -> dict[str, Plain]:
    """The columns of an argument as a repr writes it."""
    if isinstance(node, ast.Call):
        found: dict[str, Plain] = {column: ast.unparse(node.func)}
        for number, each in enumerate(node.args):
            found.update(_of_node(f"{column}.{number}", each))
        for keyword in node.keywords:
            if keyword.arg is not None:
                found.update(_of_node(f"{column}.{keyword.arg}", keyword.value))
        return found
    try:
        value = ast.literal_eval(node)
    except ValueError:
        value = None
    if isinstance(value, bool | int | float | str):
        return {column: value}
    return {column: ast.unparse(node)}
