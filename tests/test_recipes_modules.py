"""The recipes with models of other packages run, shortened, where these are installed."""

import importlib.util
import re
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[1] / "recipes"


def recipe(name, *needs):
    for package in needs:
        pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["lora_text", "vision_model"])
def test_they_are_short(name):
    assert len((RECIPES / f"{name}.py").read_text().splitlines()) <= 80


@pytest.mark.filterwarnings("ignore")  # other packages warn of what they please
def test_lora(capsys):
    recipe("lora_text", "jsonargparse", "transformers", "peft").main(max_rounds=2)
    travel, size = re.search(r"(\d+) of (\d+) parameters travel", capsys.readouterr().out).groups()
    assert 0 < int(travel) < int(size) / 10


@pytest.mark.filterwarnings("ignore")
def test_a_vision_model(capsys):
    module = recipe("vision_model", "jsonargparse", "timm")
    module.main(dataset="mnist-mini", side=16, max_rounds=1, num_clients=40)
    assert re.search(r"test_resnet: val_acc 0\.\d{4}", capsys.readouterr().out)
