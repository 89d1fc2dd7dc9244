"""The help of a script, from its source alone."""

from __future__ import annotations

import ast
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from textwrap import TextWrapper, dedent

_CLASSES = ("fedlight.aggregators", "fedlight.arrivals", "fedlight.local_optimizers")


def help_first(name: str, file: str) -> None:
    """Print the help of a script and end, if it was asked for; before the imports that take long.

    ::

        from fedlight import cli

        cli.help_first(__name__, __file__)

        import torch  # and all other imports

    The script is read, not run: its docstring describes it, that of its function ``main`` the
    options. If it was started without ``--help``, or is imported, nothing happens.

    Args:
        name: The script's ``__name__``.
        file: The script's ``__file__``.

    Raises:
        SystemExit: Help was asked for (0).
    """
    if name != "__main__" or not {"-h", "--help"}.intersection(sys.argv[1:]):
        return
    parser = _parser_of(ast.parse(Path(file).read_text(encoding="utf-8")), Path(file).name)
    parser.print_help()
    sys.exit()


class _Formatter(RawDescriptionHelpFormatter):
    """Wraps paragraphs at the terminal's width; indented ones, such as commands, stay."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        wrapped = TextWrapper(width, break_on_hyphens=False, break_long_words=False)
        return "\n\n".join(
            block if block.startswith(" ") else wrapped.fill(" ".join(block.split()))
            for block in dedent(text).strip().split("\n\n")
        )


def _parser_of(script: ast.Module, program: str) -> ArgumentParser:
    from docstring_parser import parse

    main = next(n for n in script.body if isinstance(n, ast.FunctionDef) and n.name == "main")
    documented = parse(ast.get_docstring(main) or "")
    described = {each.arg_name: each.description for each in documented.params}
    summary = documented.short_description or ""
    parser = ArgumentParser(
        prog=program,
        description=f"{ast.get_docstring(script)}\n\n{summary}",
        formatter_class=_Formatter,
    )
    imported = [node for node in script.body if isinstance(node, ast.ImportFrom)]
    classes = {each.name for node in imported if node.module in _CLASSES for each in node.names}
    defaults = [None] * (len(main.args.args) - len(main.args.defaults)) + main.args.defaults
    for argument, default in zip(main.args.args, defaults, strict=True):
        kind = "" if argument.annotation is None else ast.unparse(argument.annotation)
        kind = kind.replace("cli.", "")
        facts = {"type": kind, "default": "" if default is None else ast.unparse(default)}
        known = ", ".join(f"{name}: {fact}" for name, fact in facts.items() if fact)
        text = f"{described.get(argument.arg) or ''} ({known})"
        if classes.intersection(kind.split(" | ")):
            text += f"; --{argument.arg}.help lists the classes, and the arguments of one"
        parser.add_argument(f"--{argument.arg}", help=" ".join(text.replace("%", "%%").split()))
    parser.add_argument("--config", help="a YAML file of options")
    parser.add_argument("--print_config", action="store_true", help="print such a file and exit")
    return parser
