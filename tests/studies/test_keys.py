"""A study takes a finished run only for the same code and data, and says what it cannot see."""

import json
from pathlib import Path

import pytest
import torch

from fedlight import FederatedDataModule, Study, sweep
from fedlight.aggregators import AFACD, FedAvg
from fedlight.arrivals import UniformArrivals
from fedlight.local_optimizers import LocalSGD
from fedlight.studies.keys import RunKey
from fedlight.studies.store import Store
from tests.boring import Boring, classes
from tests.studies.grid_of_boring import prints

FACTOR = 1.0
HELD = None


class Scaled(Boring):
    """A module that reads a global."""

    def training_step(self, batch, batch_idx):
        return FACTOR * super().training_step(batch, batch_idx)


class Reads(Boring):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 if HELD is None else 2)


def study(path, module=Scaled, seeds=(0,), **options):
    given = {
        "over": {"rule": {"AFA-CD": AFACD()}},
        "arrivals": UniformArrivals(2, max_staleness=1, local_steps=2),
        "datamodule": classes(),
        "local_optimizer": LocalSGD(lr=0.1),
        "max_updates": 4,
        "workers": 1,
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "metric": "val_loss",
    }
    return sweep(**{**given, **options}, module=module, seeds=seeds, path=path)


@pytest.fixture
def said(monkeypatch):
    """What studies say."""
    lines = []
    for module in ("sweeping", "running"):
        monkeypatch.setattr(f"fedlight.studies.{module}.rank_zero_info", lines.append)
    return lines


def test_a_changed_global_is_computed_and_an_old_one_is_found(tmp_path, monkeypatch, said) -> None:
    first = study(tmp_path)
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    second = study(tmp_path)
    assert prints(second) != prints(first)
    assert any("1 of 1 runs were finished, and are computed again" in each for each in said)
    assert any("has changed (module):" in each for each in said)
    monkeypatch.setitem(globals(), "FACTOR", 1.0)
    said.clear()
    assert prints(study(tmp_path)) == prints(first)
    assert "fedlight: 1 of 1 runs are finished already" in said
    assert not any("computed again" in each for each in said)


class Zero(Boring):
    """A module that begins with the same weights at every seed."""

    def __init__(self):
        super().__init__()
        torch.nn.init.zeros_(self.net.weight)
        torch.nn.init.zeros_(self.net.bias)


def test_the_seed_is_part_of_a_key(tmp_path) -> None:
    found = study(tmp_path, Zero, seeds=(0, 1))
    (_, _, first), (_, _, second) = found.keys().runs
    assert second.changed_from(first) == ["seed"]
    assert second.key != first.key


def test_keys_have_a_part_for_each_argument(tmp_path) -> None:
    one, other = study(tmp_path / "a"), study(tmp_path / "b", local_optimizer=LocalSGD(lr=0.2))
    (first,), (second,) = one.keys().runs, other.keys().runs
    assert first[:2] == ({"rule": "AFA-CD"}, 0)
    assert second[2].changed_from(first[2]) == ["local_optimizer"]
    assert (tmp_path / "a" / "runs" / f"{first[2].key}.json").is_file()
    assert str(one.keys()) == f"{first[2].key}  rule=AFA-CD, seed 0"
    assert Study.load(tmp_path / "a").keys() == one.keys()
    assert one.only(rule="AFA-CD").keys() == one.keys()


def test_a_study_without_a_folder_has_no_keys() -> None:
    with pytest.raises(ValueError, match=r"the runs have no keys: .* sweep\(…, path=…\)"):
        study(None).keys()


def test_what_cannot_be_seen_is_said_once_and_kept(tmp_path, monkeypatch, said) -> None:
    monkeypatch.setitem(globals(), "HELD", (k for k in range(3)))
    told = "HELD (generator) is read by Reads.training_step and is not part of the key"
    first = study(tmp_path, Reads, seeds=(0, 1))
    assert first.keys().hidden == (told,)
    lines = [each for each in said if told in each]
    assert len(lines) == 1
    assert "fresh=True" in lines[0]
    assert Study.load(tmp_path).keys().hidden == (told,)


def test_a_log_with_many_sentences_is_cut(tmp_path, monkeypatch, said) -> None:
    monkeypatch.setitem(globals(), "HELD", {name: (k for k in range(3)) for name in "abcdef"})
    found = study(tmp_path, Reads).keys().hidden
    assert len(found) == 6
    assert found[0] == (
        "HELD.a (generator) is read by Reads.training_step and is not part of the key"
    )
    (line,) = [each for each in said if "not part of the key" in each]
    assert line.count("is not part of the key") == 3
    assert "and 3 more, see study.keys()" in line


def test_a_file_of_the_data_counts(tmp_path) -> None:
    class Lines(torch.utils.data.Dataset):
        def __init__(self, path):
            self.path = str(path)

        def __len__(self):
            return 6

        def __getitem__(self, row):
            numbers = Path(self.path).read_text().split()
            return torch.full((4,), float(numbers[row])), row % 3

    file = tmp_path / "numbers"
    file.write_text("1 2 3 4 5 6")
    data = FederatedDataModule.from_client_datasets(
        [Lines(file), Lines(file)], batch_size=2, val_dataset=Lines(file)
    )
    found = []
    for text in ("1 2 3 4 5 6", "1 2 3 4 5 7", "1 2 3 4 5 6"):
        file.write_text(text)
        found.append(study(tmp_path / "study", datamodule=data).keys().runs[0][2])
    assert found[0] == found[2]
    assert found[1].changed_from(found[0]) == ["data"]


# All anew.


def counting(path):
    """A module that counts its steps in a file, which no key sees."""

    class Counting(Boring):
        def training_step(self, batch, batch_idx):
            with path.open("a") as file:
                file.write(".")
            return super().training_step(batch, batch_idx)

    return Counting


def test_fresh_computes_all_runs_and_takes_their_place(tmp_path) -> None:
    steps = tmp_path / "steps"
    module = counting(steps)
    first = study(tmp_path / "s", module)
    once = len(steps.read_text())
    assert once > 0
    study(tmp_path / "s", module)
    assert len(steps.read_text()) == once
    again = study(tmp_path / "s", module, fresh=True)
    assert len(steps.read_text()) == 2 * once
    assert prints(again) == prints(first)
    study(tmp_path / "s", module)
    assert len(steps.read_text()) == 2 * once


def test_one_run_of_two_cells_is_computed_once_by_a_fresh_study(tmp_path) -> None:
    steps = tmp_path / "steps"
    over = {"rule": {"a": AFACD(), "b": AFACD()}}
    study(tmp_path / "s", counting(steps), over=over)
    once = len(steps.read_text())
    study(tmp_path / "s", counting(steps), over=over, fresh=True)
    assert len(steps.read_text()) == 2 * once


class Fails(Boring):
    def training_step(self, batch, batch_idx):
        if HELD is not None:
            next(HELD)
        return super().training_step(batch, batch_idx)


def test_a_fresh_run_that_fails_leaves_the_old_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "HELD", (k for k in range(1000)))
    first = study(tmp_path, Fails)
    monkeypatch.setitem(globals(), "HELD", (k for k in range(1)))
    (failed,) = study(tmp_path, Fails, fresh=True).runs
    assert failed.key == first.runs[0].key
    assert "StopIteration" in failed.error
    assert prints(study(tmp_path, Fails)) == prints(first)
    assert prints(Study.load(tmp_path)) == prints(first)


def test_a_fresh_study_does_not_go_on_from_a_checkpoint_of_the_old_code(tmp_path) -> None:
    for fresh in (False, True):
        store = Store(tmp_path, fresh=fresh)
        store.checkpoints("k").mkdir(exist_ok=True)
        assert store.lock("k")
        assert store.checkpoints("k").exists() == (not fresh)
        store.unlock_all()


def test_a_run_and_its_schedule_take_their_place_together(tmp_path) -> None:
    over = {"rule": {"a": AFACD(), "b": FedAvg()}}
    first = study(tmp_path, over=over, schedule="recorded")
    (old,) = (tmp_path / "runs").glob("*.parquet")
    again = study(tmp_path, over=over, schedule="recorded", fresh=True)
    (new,) = (tmp_path / "runs").glob("*.parquet")
    assert new != old
    assert prints(again) == prints(first)
    named = [
        json.loads(each.read_text()).get("schedule") for each in (tmp_path / "runs").glob("*.json")
    ]
    assert sorted(filter(None, named)) == [new.name]
    assert prints(study(tmp_path, over=over, schedule="recorded")) == prints(first)


def test_fresh_is_true_or_false(tmp_path) -> None:
    with pytest.raises(TypeError, match="fresh must be True or False, got 1"):
        study(tmp_path, fresh=1)


def test_parts_of_an_older_list_are_not_known() -> None:
    old = RunKey.from_plain({"key": "k", "cell": {}, "seed": 0})
    assert old == RunKey("k")
    assert RunKey("n", {"a": "1"}).changed_from(old) == ["a"]
