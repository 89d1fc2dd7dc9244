"""What the tests of this folder need: the pretended device."""

import sys

import pytest

collect_ignore = ["pretended.py"]  # a plugin, which is there only if it is asked for


@pytest.fixture(autouse=True)
def memory():
    """Counts and limits what is allocated on the pretended device."""
    return sys.modules["_pretended"]
