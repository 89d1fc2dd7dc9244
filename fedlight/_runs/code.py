"""The code of a function by what it does: instructions, constants and names.

Comments, formatting, docstrings and the place in a file are no part of it. Instructions are those
of this version of Python, so another minor version gives another text.
"""

from __future__ import annotations

import dis
import inspect
from collections import deque
from collections.abc import Iterator
from types import CodeType
from typing import Any

# They depend on the lines on which an expression stands, or on the place of a constant.
_NOTHING = ("NOP", "CACHE", "EXTENDED_ARG", "RESUME", "PRECALL", "NOT_TAKEN")
_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE")
_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_OF_A_CLASS = ("__doc__", "__firstlineno__", "__static_attributes__")
_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)


def instructions(code: CodeType) -> list[dis.Instruction]:
    """Return the instructions that do something."""
    given = [each for each in dis.get_instructions(code) if each.opname not in _NOTHING]
    # The names of arguments, which `dis` leaves out.
    return [
        each._replace(argval=code.co_consts[each.arg or 0]) if each.opname == "KW_NAMES" else each
        for each in given
    ]


def text_of(code: CodeType) -> str:
    """Return the parameters and instructions of a function as text, functions within it too.

    Instructions are numbered in the order in which control reaches them: where the compiler puts
    a block, and jumps to jumps, depend on lines.
    """
    given = instructions(code)
    place = _places(code, given)
    compiled: Any = dis.Bytecode(code)
    handler = {
        each.start + offset: (each.target, each.depth, each.lasti)
        for each in reversed(compiled.exception_entries)
        for offset in range(0, each.end - each.start, 2)
    }
    numbers: dict[int, int] = {}
    lines: list[tuple[dis.Instruction | None, int]] = []  # and where they lead, or -1
    waiting = deque([0])
    while waiting:
        at = _followed(waiting.popleft(), given, place)
        while at < len(given):
            if at in numbers:
                lines.append((None, at))
                break
            each = given[at]
            numbers[at] = len(lines)
            target = place[each.argval] if _jumps(each) else -1
            lines.append((each, target))
            if target >= 0:
                waiting.append(target)
            if each.offset in handler:
                waiting.append(place[handler[each.offset][0]])
            if each.opname in _ENDS:
                break
            at = _followed(at + 1, given, place)

    def number(position: int) -> int:
        return numbers[_followed(position, given, place)]

    told = [_signature(code)]
    for instruction, target in lines:
        leads = f"->{number(target)}" if target >= 0 else ""
        if instruction is None:
            told.append(leads)
            continue
        caught = handler.get(instruction.offset)
        on_error = "" if caught is None else f"!{number(place[caught[0]])}{caught[1:]}"
        told.append(f"{instruction.opname} {leads or _argument(instruction)}{on_error}")
    return "\n".join(told)


def constants(code: CodeType) -> Iterator[Any]:
    """The constants that a function and those within it load."""
    for each in instructions(code):
        if each.opcode in dis.hasconst:
            if isinstance(each.argval, CodeType):
                yield from constants(each.argval)
            else:
                yield each.argval


def _places(code: CodeType, given: list[dis.Instruction]) -> dict[int, int]:
    """The number of the first instruction at each offset or after it."""
    found, position = {}, 0
    for offset in range(0, len(code.co_code) + 2, 2):
        while position < len(given) and given[position].offset < offset:
            position += 1
        found[offset] = position
    return found


def _followed(at: int, given: list[dis.Instruction], place: dict[int, int]) -> int:
    """Where control is after all jumps without a condition; a loop of them is left as it is."""
    passed: set[int] = set()
    while at < len(given) and at not in passed:
        # A class's docstring and lines are stored by two instructions.
        if _describes(at, given):
            at += 2
        elif given[at].opname in _JUMPS:
            passed.add(at)
            at = place[given[at].argval]
        else:
            break
    return at


def _describes(at: int, given: list[dis.Instruction]) -> bool:
    if at + 1 >= len(given) or given[at].opcode not in dis.hasconst:
        return False
    return given[at + 1].opname == "STORE_NAME" and given[at + 1].argval in _OF_A_CLASS


def _jumps(each: dis.Instruction) -> bool:
    return each.opcode in dis.hasjrel or each.opcode in dis.hasjabs


def _signature(code: CodeType) -> str:
    number = code.co_argcount + code.co_kwonlyargcount
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    return f"{counts} {code.co_varnames[:number]} {code.co_flags & _FLAGS}"


def _argument(each: dis.Instruction) -> str:
    if each.opcode in dis.hasconst:
        return _constant(each.argval)
    if each.opcode in dis.hasname:
        return str(each.argval)
    if each.opcode in dis.hascompare:
        return each.argrepr
    return str(each.arg)


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return f"{value.co_name}({text_of(value)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    if isinstance(value, frozenset):  # in an order that differs between processes
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"
    return f"{type(value).__name__}:{value!r}"
