"""Records of chosen clients replay to the bit; 200 runs: ``python tests/feedback_replays.py``."""

import re

import pytest

from tests import feedback_replays


@pytest.mark.filterwarnings("ignore")  # as in a script
def test_a_few_random_federations(capsys):
    assert feedback_replays.main(["--runs", "6", "--seed", "20"]) == 0
    assert re.search(r"6 runs .*: 6 identical", capsys.readouterr().out)
    assert feedback_replays.main(["--runs", "6", "--plain"]) == 0
    assert re.search(r"6 runs .*: 6 identical", capsys.readouterr().out)
