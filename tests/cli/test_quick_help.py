"""The help of a script is made from its source."""

import pytest

from fedlight import cli

SCRIPT = '''"""Does 100 % of the work.

All of it is done at once, and as soon as it is asked for.

    python work.py --needed 100 --rate 0.25 --out folder
"""

from fedlight.aggregators import Aggregator

raise RuntimeError("the script was run")


def main(needed: int, aggregator: Aggregator | None = None, rate=0.5) -> None:
    """Work.

    Args:
        needed: Share in %.
        aggregator: The rule.
    """
'''


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "work.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_is_read_from_the_source(word, script, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["work.py", "--rate", "1", word])
    with pytest.raises(SystemExit) as ended:
        cli.help_first("__main__", script)
    assert not ended.value.code
    text = " ".join(capsys.readouterr().out.split())
    assert "Does 100 % of the work. All of it" in text
    assert "--out folder Work." in text
    assert "--needed NEEDED Share in %. (type: int)" in text
    assert "The rule. (type: Aggregator | None, default: None); --aggregator.help" in text
    assert "(default: 0.5)" in text


def test_paragraphs_are_wrapped_at_the_width_of_the_terminal(script, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["work.py", "--help"])
    monkeypatch.setenv("COLUMNS", "40")
    with pytest.raises(SystemExit):
        cli.help_first("__main__", script)
    text = capsys.readouterr().out
    assert "\nAll of it is done at once, and as soon\nas it is asked for.\n\n" in text
    assert "\n    python work.py --needed 100 --rate 0.25 --out folder\n" in text


@pytest.mark.parametrize(
    ("name", "words"), [("__main__", []), ("__main__", ["--rule.help"]), ("work", ["--help"])]
)
def test_nothing_happens_otherwise(name, words, script, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["work.py", *words])
    cli.help_first(name, script)
    assert capsys.readouterr().out == ""
