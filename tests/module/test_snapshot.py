"""Modules whose steps leave something on them: who may stack them; trying leaves nothing."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedlight._module.snapshot import Snapshot
from fedlight.executors import SequentialExecutor, VectorizedExecutor
from fedlight.executors._choice.choose_executor import resolve_executor
from tests.boring import Boring, classes, fitted, workplace


class Keeps(Boring):
    """Adds what the step before has kept to the scores, as a recurrent state."""

    def __init__(self):
        super().__init__()
        self.hidden = None

    def kept(self):
        return self.hidden

    def keep(self, hidden):
        self.hidden = hidden

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x) if self.kept() is None else self(x) + 0.1 * self.kept()
        self.keep(scores.detach().mean(0))
        return functional.cross_entropy(scores, y)


class Private(Keeps):
    _hidden = None

    def kept(self):
        return self._hidden

    def keep(self, hidden):
        self._hidden = hidden


class InDict(Keeps):
    def __init__(self):
        super().__init__()
        self.hidden = {}

    def kept(self):
        return self.hidden.get("h")

    def keep(self, hidden):
        self.hidden["h"] = hidden


class InObject(Keeps):
    class Box:
        content = None

    def __init__(self):
        super().__init__()
        self.hidden = self.Box()

    def kept(self):
        return self.hidden.content

    def keep(self, hidden):
        self.hidden.content = hidden


class InPlace(Keeps):
    def __init__(self):
        super().__init__()
        self.hidden = torch.zeros(3)

    def keep(self, hidden):
        self.hidden.mul_(0.9).add_(hidden)


class Collects(Keeps):
    def __init__(self):
        super().__init__()
        self.hidden = []

    def kept(self):
        return None

    def keep(self, hidden):
        self.hidden.append(hidden)


def shown(module):
    """What the module keeps, for a comparison."""
    hidden = vars(module).get("hidden")
    return vars(module).get("_hidden"), vars(hidden) if isinstance(hidden, InObject.Box) else hidden


READ = [Keeps, Private, InDict, InObject, InPlace]


@pytest.mark.parametrize("executor", ["auto", "vectorized", VectorizedExecutor()])
@pytest.mark.parametrize("kind", READ)
def test_what_keeps_tensors_for_the_next_step_is_refused(kind, executor):
    torch.manual_seed(0)
    module = kind()
    before = str(shown(module))
    name = "_hidden" if kind is Private else "hidden"
    place = workplace(module, classes())
    with pytest.raises(ValueError, match=rf"{kind.__name__} keeps self.{name} .* register_buffer"):
        resolve_executor(executor, place)
    assert str(shown(module)) == before


def test_what_steps_only_add_to_is_run_one_by_one():
    place = workplace(Collects(), classes())
    choice = resolve_executor("auto", place)
    assert type(choice.executor) is SequentialExecutor
    assert choice.reason == (
        "training_step of Collects keeps tensors in self.hidden, which stacked clients would share"
    )
    with pytest.raises(ValueError, match=r"keeps tensors in self.hidden; .* register_buffer"):
        resolve_executor("vectorized", place)


class Looked(nn.Module):
    """Leaves what it has computed for those who want to look at it."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(4, 3), None

    def forward(self, x):
        self.last = self.layer(x)
        return self.last


def test_what_no_step_reads_may_be_stacked_if_asked_for():
    choice = resolve_executor("auto", workplace(Boring(Looked()), classes()))
    executor, reason = choice.executor, choice.reason
    assert type(executor) is SequentialExecutor
    assert "keeps tensors in self.net.last" in reason
    module = Boring(Looked())
    choice = resolve_executor("vectorized", workplace(module, classes()))
    reason = choice.reason
    assert reason.startswith("as given; training_step of Boring keeps tensors in self.net.last")
    assert module.net.last is None


class Registered(Keeps):
    """What is recommended: a buffer, of which each client has its own."""

    def __init__(self):
        super().__init__()
        del self.hidden
        self.register_buffer("hidden", torch.zeros(3))

    def keep(self, hidden):
        self.hidden.mul_(0.5).add_(hidden)


def test_a_buffer_is_each_clients_own():
    def params(executor):
        torch.manual_seed(0)
        return fitted(Registered(), classes(), executor=executor, precision="64-true").state.params

    torch.testing.assert_close(params("vectorized"), params("sequential"), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "names", "tensors"),
    [
        (lambda m: setattr(m, "count", 2), ["count"], False),
        (lambda m: m.seen.append(1), ["seen"], False),
        (lambda m: setattr(m, "seen", [1]), ["seen"], False),
        (lambda m: m.table["a"].append(torch.ones(1)), ["table"], True),
        (lambda m: m.fixed[0].zero_(), ["fixed"], True),
        (lambda m: delattr(m, "count"), ["count"], False),
        (lambda m: setattr(m.net, "own", torch.ones(1)), ["net.own"], True),
        (lambda m: setattr(m, "count", 1), [], False),
        (lambda m: m.net.weight.data.add_(1), [], False),
    ],
)
def test_changes_are_named_and_undone(change, names, tensors):
    module = Boring()
    module.count, module.seen, module.table = 1, [], {"a": [], "b": {1, 2}}
    module.fixed = (torch.ones(2), "x")
    kept = Snapshot(module)
    change(module)
    assert [each.name for each in kept.changes()] == names
    assert any(each.tensors for each in kept.changes()) == tensors
    kept.restore()
    assert kept.changes() == []
    assert (module.count, module.seen, module.table) == (1, [], {"a": [], "b": {1, 2}})
    assert module.fixed[0].tolist() == [1, 1]
    assert not hasattr(module.net, "own")
