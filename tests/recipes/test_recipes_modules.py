"""The recipes with models of other packages run, shortened, where these are installed."""

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import nn

RECIPES = Path(__file__).parents[2] / "recipes"


def recipe(name, *needs):
    for package in needs:
        pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


@pytest.fixture
def small_timm(monkeypatch):
    """What the recipe calls of timm, with one small model; timm itself may be absent."""

    def create_model(name, pretrained, in_chans, num_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(in_chans * 28 * 28, num_classes))

    made = SimpleNamespace(is_model=lambda name: name == "small", create_model=create_model)
    monkeypatch.setitem(sys.modules, "timm", made)


def test_a_vision_model_of_another_package(small_timm, capsys):
    recipe("vision_model", "jsonargparse").main(model="small", max_rounds=2)
    assert re.search(r"small: val_acc 0\.\d{4}", capsys.readouterr().out)


def test_an_unknown_vision_model_is_refused(small_timm):
    with pytest.raises(ValueError, match=r"one of timm.list_models\(\), got 'smal'"):
        recipe("vision_model", "jsonargparse").main(model="smal")
