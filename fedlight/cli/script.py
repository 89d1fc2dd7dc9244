"""The command line of a script: each argument of its function is an option (needs jsonargparse).

``run(main)`` does what ``jsonargparse.auto_cli(main)`` does, but ends with one line on standard
error and exit code 2 if an option is wrong, where jsonargparse shows its usage and the types that
it has tried. `Figure` and `Folder` are types of arguments that refuse what could not be written
after the run. ``JSONARGPARSE_DEBUG=true`` brings the tracebacks back.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from inspect import getdoc, isabstract
from pathlib import Path
from pkgutil import resolve_name
from textwrap import shorten
from typing import Any, NoReturn, get_args, get_type_hints

from lightning_utilities.core.inheritance import get_all_subclasses

from fedlight._support.files import user_path

try:
    from jsonargparse import ArgumentParser, auto_cli
    from jsonargparse.typing import extend_base_type, restricted_number_type
except ImportError as error:
    raise ImportError(
        "fedlight.cli needs jsonargparse, which is not installed: "
        "pip install 'jsonargparse[signatures]'"
    ) from error

# An error that is raised in a line of these packages is a refusal; any other one is a defect.
_PACKAGES = ("fedlight", "data_partitioners", "datasets", "jsonargparse")

_KINDS = {
    "PositiveInt": "an integer of at least 1",
    "NonNegativeInt": "an integer of at least 0",
    "PositiveNumber": "a finite number above 0",
    "ClosedUnitInterval": "a number from 0 to 1",
    "int": "an integer",
    "float": "a finite number",
    "bool": "true or false",
}


def figure_file(path: str | Path) -> Path:
    """Return `path` if matplotlib could write a figure there; for a check before a long run.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: The end of its name is that of no kind of picture, its folder does not exist, or
            the file cannot be written.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    file = user_path(path)
    kinds = FigureCanvasBase.get_supported_filetypes()
    if file.suffix.lower().removeprefix(".") not in kinds:
        listed = ", ".join(f".{kind}" for kind in sorted(kinds))
        raise ValueError(f"must end in one of {listed}, got {str(path)!r}")
    if not file.parent.is_dir():
        raise ValueError(f"must lie in a folder that exists, got {str(path)!r}")
    new = not file.exists()
    try:
        file.open("ab").close()
    except OSError as error:
        raise ValueError(
            f"must be a file that can be written, got {str(path)!r} ({error.strerror})"
        ) from error
    if new:
        file.unlink()
    return file


def folder(path: str) -> Path:
    """Return `path` if it is a folder that can be written to, or can be made.

    Raises:
        ValueError: It cannot.
    """
    found = user_path(path).absolute()
    while path and not found.exists():
        found = found.parent
    if not path or not found.is_dir():
        raise ValueError(f"must be a folder, or one to be made, got {path!r}")
    if not os.access(found, os.W_OK | os.X_OK):
        raise ValueError(f"must be a folder that can be written to, got {path!r}")
    return user_path(path)


PositiveNumber: Any = restricted_number_type(
    "PositiveNumber", float, [(">", 0.0), ("<", float("inf"))]
)
"""A finite number above 0; jsonargparse's own PositiveFloat takes infinity."""


class _Path(str):
    """A path in which ``~`` is the home folder: a shell leaves it as it is in ``--path=~/runs``."""

    def __new__(cls, path: str) -> _Path:
        return super().__new__(cls, os.path.expanduser(path))


Figure: Any = extend_base_type("Figure", _Path, lambda kind, path: figure_file(path))
"""A file for a figure, checked by `figure_file`."""

Folder: Any = extend_base_type("Folder", _Path, lambda kind, path: folder(path))
"""A folder, checked by `folder`."""


def distinct(**lists: Sequence[object]) -> None:
    """Check lists of settings, by their names.

    Raises:
        ValueError: One of them is empty or holds a value twice.
    """
    for name, values in lists.items():
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{name} must hold one or more, each of them once, got {values}")


def run(main: Callable[..., Any], args: Sequence[str] | None = None) -> Any:
    """Call `main` with the options of the command line.

    Args:
        main: The function; its docstring describes its arguments, which all have a default.
        args: The command line; None for that of the process.

    Returns:
        The result of `main`.

    Raises:
        SystemExit: An option is wrong (2), or help was asked for (0).
    """
    given = list(sys.argv[1:] if args is None else args)

    class Parser(ArgumentParser):
        def error(self, message: str, ex: Exception | None = None) -> NoReturn:
            if not self.exit_on_error or _debugging():
                super().error(message, ex)
            _end(_sentence(message, main, given, self.format_usage()))

    names = [word.partition("=")[0] for word in given if word.startswith("--")]
    for name in names:
        if names.count(name) > 1 and name != "--config" and not name.endswith("+"):
            _end(f"{name} is given {names.count(name)} times; give it once")
    for word, following in zip(given, [*given[1:], "--"], strict=False):
        option = word.removeprefix("--").removesuffix(".help")
        bare = word == f"--{option}.help" and following.startswith("-")
        if bare and (classes := _classes_of(get_type_hints(main).get(option))):
            _list_classes(option, classes)  # jsonargparse shows the empty help of the base class
            sys.exit()
    try:
        return auto_cli(
            main, args=given, as_positional=False, parser_class=Parser, allow_abbrev=False
        )
    except (ValueError, TypeError, OSError, ImportError, MemoryError, RuntimeError) as error:
        if _debugging() or not _on_purpose(error, main):
            raise
        text = _reason(str(error)) or "not enough memory for these options"
        if isinstance(error, ModuleNotFoundError):
            text += f"; install it: {sys.executable} -m pip install {error.name}"
    return _end(text)  # out here the frames of `main` are gone, and with them its progress bar


def _debugging() -> bool:
    return os.environ.get("JSONARGPARSE_DEBUG", "").lower() == "true"


def _end(text: str) -> NoReturn:
    script = Path(sys.argv[0]).name
    print(f"{script}: error: {text} (see {script} --help)", file=sys.stderr)
    sys.exit(2)


def _on_purpose(error: BaseException, main: Callable[..., Any]) -> bool:
    """Whether an error is a refusal of options; a defect is shown with its traceback."""
    if isinstance(error, OSError | ModuleNotFoundError | MemoryError):
        return True
    if isinstance(error, RuntimeError):
        # The message of torch for a layer that is too wide.
        return "can't allocate memory" in str(error)
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None:
        return False
    module = str(place.tb_frame.f_globals.get("__name__"))
    file = place.tb_frame.f_code.co_filename
    line = linecache.getline(file, place.tb_lineno)
    # Modules that a script imports from its own folder or from one in it.
    beside = Path(main.__code__.co_filename).parent in (Path(file).parent, Path(file).parent.parent)
    ours = module == main.__module__ or beside or module.partition(".")[0] in _PACKAGES
    return ours and line.lstrip().startswith("raise ")


def _reason(message: str) -> str:
    """The lines of a message, without those about other types that were tried."""
    vain = r"Does not validate|Subtypes:|Errors:|Given value|Expected a path but"
    vain += r"|Expected a <class 'NoneType'>|Type collections.abc"
    plain = re.sub(r'Parser key "\w+":', "", message)
    lines = [line.strip().removeprefix("- ") for line in plain.splitlines()]
    return shorten(" ".join(each for each in lines if not re.match(vain, each)), 500)


def _sentence(message: str, main: Callable[..., Any], given: list[str], usage: str) -> str:
    """The message of jsonargparse as a sentence: the option, its valid values, the value given."""
    if match := re.match(r"unrecognized arguments: (\S*)", message):
        known = re.findall(r"\[(--\w+)", usage)
        return f"there is no option {match[1]}{_nearest(re.split('[.=]', match[1])[0], known)}"
    keys = list(dict.fromkeys(re.findall(r'Parser key "(\w+)"', message)))
    option = "--" + ".".join(keys)
    reason = _reason(message)
    classes = [path.rpartition(".")[2] for path in re.findall(r"class_path '([\w.]+)'", message)]
    written = _written(option, given)
    got = "" if written is None else f", got {written!r}"
    if re.search("dot import path string|does not correspond to a subclass", reason):
        names = list(_classes(message, main, keys))
        return f"{option} must be one of {', '.join(names)}{got}{_nearest(written or '', names)}"
    if match := re.search(r"Option '([\w.]+)' is not accepted", reason):
        return f"{classes[-1]} has no {match[1]}; {option}.help {classes[-1]} lists what it has"
    if match := re.search(r"arguments are required: (.+)", reason):
        missing = ", ".join(f"{option}.{name}" for name in match[1].split(", "))
        return f"{option} {classes[-1]} also needs {missing}"
    if "is abstract" in reason:
        return f"{option} must name a class before its arguments are given"
    each = f"each item of {option}" if (written or "").lstrip().startswith("[") else option
    if match := re.search(r"typing.Literal\[(.+?)\]\. Got", reason):
        nearest = _nearest((written or "").strip("[]"), re.findall(r"'(.+?)'", match[1]))
        return f"{each} must be one of {match[1]}{got}{nearest}"
    if "Expected a <class 'list'>" in reason:
        return f"{option} must be a list, such as '[{written or '…'}]'{got}"
    if match := re.search(r"(?:Not of type |Expected a <class ')(\w+)", reason):
        if match[1] in _KINDS:
            return f"{each} must be {_KINDS[match[1]]}{got}"
        reason = reason[match.end() :].lstrip("': ")
    colon = "" if reason.startswith("must ") else ":"
    return f"{option}{colon} {reason}" if keys else reason


def _written(option: str, given: list[str]) -> str | None:
    """The value of an option on the command line."""
    for word, following in zip(given, [*given[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name.rstrip("+") == option:
            return value if equals else following
    return None


def _nearest(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _classes(message: str, main: Callable[..., Any], keys: list[str]) -> dict[str, type]:
    """The classes that can be given, by name."""
    if len(keys) == 1:
        return _classes_of(get_type_hints(main)[keys[0]])
    # An argument of a class, of which jsonargparse tells the types.
    tried = re.findall(r"<class '([\w.]+)'>", message.rpartition("Subtypes: ")[2])
    return _concrete({resolve_name(name) for name in tried if name.startswith(_PACKAGES[:2])})


def _classes_of(hint: Any) -> dict[str, type]:
    """The classes of this project that an annotation allows, by name."""
    kinds = [kind for kind in get_args(hint) or (hint,) if isinstance(kind, type)]
    return _concrete({kind for kind in kinds if kind.__module__.startswith(_PACKAGES[:2])})


def _concrete(bases: set[type]) -> dict[str, type]:
    kinds = bases.union(*map(get_all_subclasses, bases))
    public = {kind.__name__: kind for kind in kinds if not isabstract(kind)}
    hidden = ("_", "LazyInstance_")
    return {name: public[name] for name in sorted(public) if not name.startswith(hidden)}


def _list_classes(option: str, classes: dict[str, type]) -> None:
    width = max(map(len, classes))
    print(f"--{option} is one of:\n")
    for name, kind in classes.items():
        summary, *_ = (getdoc(kind) or "").splitlines() or [""]
        print(f"  {name:<{width}}  {summary}".rstrip())
    print(f"\n--{option}.help NAME lists the arguments of one.")
