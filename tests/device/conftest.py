"""What the tests of this folder need: the pretended device."""

import sys

import pytest

collect_ignore = ["pretended.py"]  # a plugin, which is there only if it is asked for


@pytest.fixture(autouse=True)
def memory(request):
    """Counts and limits what is allocated on the pretended device."""
    if not request.config.pluginmanager.has_plugin("tests.device.pretended"):
        pytest.skip("needs the pretended device: python tests/on_device.py builds it")
    return sys.modules["_pretended"]
