"""The table of lines that are broken on purpose follows the packages."""

import ast
from pathlib import Path

from tests.broken_lines import TABLE

ROOT = Path(__file__).parents[2]


def test_each_line_is_there_once_and_its_tests_exist() -> None:
    assert len(TABLE) >= 60
    for broken in TABLE:
        whole = (ROOT / broken.file).read_text(encoding="utf-8")
        assert whole.count(broken.text) == 1, broken
        # Any test would notice a file that cannot be imported.
        ast.parse(whole.replace(broken.text, broken.instead))
        assert broken.tests, broken
        for test in broken.tests.split():
            assert (ROOT / "tests" / test).exists(), broken
