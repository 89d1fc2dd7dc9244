"""The command line of the recipes: what is refused, in one line, and what is not."""

import os
from collections.abc import Callable
from typing import Literal

import pytest
import torch

jsonargparse = pytest.importorskip("jsonargparse")

from jsonargparse import lazy_instance  # noqa: E402
from jsonargparse.typing import PositiveInt  # noqa: E402

from fedlight import cli  # noqa: E402
from fedlight.aggregators import AFACD, Aggregator  # noqa: E402

RULE = lazy_instance(AFACD, server_lr=1.0)


def main(
    sizes: list[PositiveInt] = [1],  # noqa: B006  # only read
    kind: Literal["one", "two"] = "one",
    rate: cli.PositiveNumber = 0.1,
    rule: Aggregator = RULE,
    other: Aggregator | None = None,
    folder: cli.Folder | None = None,
    figure: cli.Figure | None = None,
    act: str = "",
) -> tuple:
    """Do nothing.

    Args:
        sizes: Sizes.
        kind: Kind.
        rate: Rate.
        rule: Rule.
        other: Another rule.
        folder: Folder.
        figure: Figure.
        act: What to do.
    """
    if act == "refuse":
        raise ValueError("act must be something else, got refuse")
    if act == "distinct":
        cli.distinct(sizes=[1, 1])
    if act == "defect":
        _, _ = sizes
    if act == "memory":
        raise MemoryError
    if act == "tensor":
        torch.empty(10**15)
    if act == "training":
        raise RuntimeError("a client failed")
    if act == "package":
        import nosuchpackage  # noqa: F401
    return sizes, kind, rate, rule, other, folder, figure


def refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.run(main, args)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert out == ""
    assert line.endswith("--help)")
    return line.partition(": error: ")[2]


def test_what_is_right_is_passed_on(tmp_path):
    args = ["--sizes", "[1, 2]", "--sizes+", "3", "--kind=two", "--rate", "1e-3"]
    args += ["--other", "FedBuff", "--other.buffer_size", "4", "--folder", f"{tmp_path}/new/er"]
    args += ["--figure", f"{tmp_path}/a.pdf"]
    sizes, kind, rate, rule, other, folder, figure = cli.run(main, args)
    assert (sizes, kind, rate) == ([1, 2, 3], "two", 0.001)
    assert repr(rule) == repr(AFACD(server_lr=1.0))
    assert other.buffer_size == 4
    assert (folder, figure) == (f"{tmp_path}/new/er", f"{tmp_path}/a.pdf")
    assert not list(tmp_path.iterdir()), "it only looked whether they can be written"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--sizes", "2"], ["--sizes must be a list, such as '[2]', got '2'"]),
        (["--sizes", "[0]"], ["each item of --sizes must be an integer of at least 1, got '[0]'"]),
        (["--sizes", ""], ["--sizes must be a list, such as '[…]', got ''"]),
        (["--kind", "tow"], ["--kind must be one of 'one', 'two', got 'tow'; did you mean two?"]),
        (["--rate", "x"], ["--rate must be a finite number above 0, got 'x'"]),
        (["--rate", "nan"], ["--rate must be a finite number above 0, got 'nan'"]),
        (["--rate", "inf"], ["--rate must be a finite number above 0, got 'inf'"]),
        (["--rate=-1"], ["--rate must be a finite number above 0, got '-1'"]),
        (["--rate"], ["argument --rate: expected one argument"]),
        (["--rate", "1", "--rate=2"], ["--rate is given 2 times; give it once"]),
        (["--rat", "1"], ["there is no option --rat; did you mean --rate?"]),
        (["--rull.server_lr=1"], ["there is no option --rull.server_lr=1; did you mean --rule?"]),
        (["stray"], ["there is no option stray"]),
        (["--rule", "AFAD"], ["--rule must be one of ", "got 'AFAD'; did you mean AFACD?"]),
        (
            ["--other", "FedBuf"],
            ["--other must be one of AFACD, AFACS, ", "FedFix", "did you mean FedBuff?"],
        ),
        (
            ["--other", "json.JSONDecoder"],
            ["--other must be one of AFACD, AFACS, ", "FedFix", ", got 'json.JSON"],
        ),
        (["--other", ""], ["--other must be one of AFACD, AFACS, ", "FedFix", ", got ''"]),
        (["--other", "FedBuff"], ["--other FedBuff also needs --other.buffer_size"]),
        (["--other.buffer_size", "3"], ["--other must name a class before its arguments"]),
        (["--rule.buffer", "3"], ["AFACD has no buffer; --rule.help AFACD lists what it has"]),
        (["--rule.server_lr", "-1"], ["server_lr must be larger than 0, got -1"]),
        (["--other", "FedBuff", "--other.buffer_size", "0"], ["buffer_size must be at least 1"]),
        (
            ["--other", "FedBuff", "--other.buffer_size", "x"],
            ["--other.buffer_size must be an integer, got 'x'"],
        ),
        (
            ["--other=FedBuff", "--other.buffer_size=2", "--other.staleness=Hing"],
            [
                "--other.staleness must be one of ",
                "Constant, DelayAdaptive, ",  # after those that other tests have defined
                "did you mean Hinge?",
            ],
        ),
        (["--figure", "x.txt"], ["--figure must end in one of .", ".png", "got 'x.txt'"]),
        (["--figure", "x"], ["--figure must end in one of"]),
        (["--figure", ""], ["--figure must end in one of"]),
        (["--figure", "no/x.png"], ["--figure must lie in a folder that exists, got 'no/x.png'"]),
        (["--figure", "folder.png"], ["--figure must be a file that can be written"]),
        (["--folder", __file__], ["--folder must be a folder, or one to be made"]),
        (["--folder", f"{__file__}/x"], ["--folder must be a folder, or one to be made"]),
        (["--folder", ""], ["--folder must be a folder, or one to be made, got ''"]),
        (["--config", "none.yaml"], ["--config: File does not exist"]),
        (["--act", "refuse"], ["act must be something else, got refuse"]),
        (["--act", "distinct"], ["sizes must hold one or more, each of them once, got [1, 1]"]),
        (["--act", "memory"], ["not enough memory"]),
        (["--act", "tensor"], ["[enforce fail at", "can't allocate memory"]),
        (["--act", "package"], ["No module named 'nosuchpackage'; install it: "]),
    ],
)
def test_what_is_wrong_is_one_line(args, said, capsys):
    os.mkdir("folder.png")
    line = refused(args, capsys)
    first, *rest = said
    assert line.startswith(first)
    assert all(each in line for each in rest)


@pytest.mark.parametrize("args", [["--rule.help"], ["--other.help", "--rate=0.2"]])
def test_help_without_a_class_lists_the_classes(args, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.run(main, args)
    assert not ended.value.code
    text = " ".join(capsys.readouterr().out.split())
    assert " FedBuff x <- x + eta * (1/m) * sum of s(tau_i) * delta_i" in text
    assert f"{args[0]} NAME lists the arguments of one" in text
    assert " Aggregator " not in text


def test_help_with_a_class_has_its_arguments(capsys):
    with pytest.raises(SystemExit):
        cli.run(main, ["--rule.help", "FedBuff"])
    assert "--rule.buffer_size" in capsys.readouterr().out


def test_a_defect_keeps_its_traceback():
    with pytest.raises(ValueError, match="not enough values to unpack"):
        cli.run(main, ["--act", "defect"])
    with pytest.raises(RuntimeError, match="a client failed"):
        cli.run(main, ["--act", "training"])


def test_the_debugging_of_jsonargparse_brings_tracebacks_back(monkeypatch):
    monkeypatch.setenv("JSONARGPARSE_DEBUG", "true")
    with pytest.raises(ValueError, match="act must be"):
        cli.run(main, ["--act", "refuse"])
    with pytest.raises(Exception, match='Parser key "sizes"'):
        cli.run(main, ["--sizes", "2"])


def test_a_folder_that_nobody_may_write_to(monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(ValueError, match="must be a folder that can be written to"):
        cli.folder("new")


@pytest.mark.parametrize("check", [cli.folder, cli.figure_file])
def test_a_check_leaves_nothing_behind_and_keeps_what_is_there(
    check: Callable[[str], object], tmp_path
):
    old = tmp_path / "old.png"
    old.write_text("kept")
    check(str(tmp_path / "new.png"))
    cli.figure_file(old)
    assert [path.name for path in tmp_path.iterdir()] == ["old.png"]
    assert old.read_text() == "kept"
