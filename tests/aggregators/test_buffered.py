"""Aggregators of one's own: what the base does by itself, and how it answers to mistakes."""

import io
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedlight import Callback
from fedlight.aggregators import (
    Aggregator,
    BufferedAggregator,
    FedAsync,
    FedAvg,
    ServerStep,
    next_version,
)
from fedlight.callbacks import FedCheckpoint
from fedlight.checkpoint import plain
from fedlight.types import (
    ClientUpdate,
    Federation,
    LocalResult,
    ServerState,
    Task,
    UsedUpdate,
)
from tests.boring import Boring, classes, trainer
from tests.docs.test_docs import ROOT, blocks


class Mean(BufferedAggregator):
    def weights(self, updates, version):
        return [1 / len(updates)] * len(updates)


class Part:
    """Counts, and says what it keeps."""

    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Everything(Mean):
    """A state of every kind; some of it is made late, some is declared in the constructor."""

    def __init__(self, buffer_size=None, decay=0.9, **options):
        super().__init__(buffer_size, **options)
        self.decay = decay
        self.steps = 0
        self.last = None

    def start(self, federation, state):
        self.velocity = torch.zeros_like(state.params)
        self.last = -1
        self.steps = 0
        self.part = Part()
        self.seen = {}
        self.pairs, self.clients = (), set()
        self.sizes = np.zeros(federation.num_clients)
        self.scalar = np.float32(0.1)

    def accepts(self, update, version):
        self.part.count += 1
        return self.part.count % 5 != 0

    def direction(self, updates, weights, state):
        mean = super().direction(updates, weights, state)
        if self.steps == 1:  # not before the second step
            self.late = mean.clone()
        elif self.steps > 1:
            self.late = self.late + mean
        self.steps += 1
        for update in updates:
            self.seen[update.client_id] = [*self.seen.get(update.client_id, []), state.version]
            self.sizes[update.client_id] += 1
            self.clients.add(update.client_id)
            self.pairs = (*self.pairs, (update.client_id, self.last))
            self.last = update.client_id
        self.scalar = self.scalar * self.scalar
        self.velocity = self.decay * self.velocity + mean * float(
            self.sizes.sum() + self.part.count
        )
        # All of it counts, so that a state lost is a model changed.
        number = (
            self.last
            + sum(map(sum, self.pairs))
            + len(self.clients)
            + sum(map(len, self.seen.values()))
        )
        late = self.late if self.steps > 1 else 0.0
        return self.velocity * (1e-2 + 1e-4 * number) + 0.1 * late + float(self.scalar)


def start():
    """The same module each time."""
    torch.manual_seed(1)
    return Boring()


def fadas():
    """The class that the guide shows."""
    (block,) = [b for b in blocks(ROOT / "docs" / "extending.md", "python") if "class FADAS" in b]
    code = [line for line in block.splitlines() if line.strip() and '"""' not in line]
    names = {"BufferedAggregator": BufferedAggregator}
    exec(block, names)
    return names["FADAS"], len(code) - 1  # but the import


def feed(aggregator, make_update, state, *deltas):
    for client, delta in enumerate(deltas):
        update = make_update(client, delta, pulled=state.version, start=state)
        if aggregator.accepts(update, state.version):
            aggregator.receive(update)
    return aggregator.step(state)


class Killed(Exception):
    """Stands for the end of the process."""


class Kill(Callback):
    """Ends a run at the second arrival after a version."""

    def __init__(self, version):
        self.version, self.arrivals = version, 0

    def on_update(self, trainer, module, update):
        self.arrivals += trainer.version == self.version
        if self.arrivals == 2:
            raise Killed


# --- an own aggregator in a run ---


@pytest.mark.parametrize(
    ("make", "after"),
    [
        (lambda: fadas()[0](buffer_size=None), 2),
        (lambda: fadas()[0](buffer_size=3), 4),
        (Everything, 1),
        (Everything, 4),
        (lambda: Everything(3, server_optimizer=lambda p: torch.optim.Adam(p, 0.05)), 2),
    ],
    ids=["FADAS", "FADAS-3", "Everything", "Everything later", "Everything-Adam"],
)
def test_a_resumed_run_goes_on_to_the_same_bits(make, after, tmp_path):
    whole = trainer(aggregator=make(), max_rounds=7)
    whole.fit(start(), classes())
    killed = trainer(
        aggregator=make(), max_rounds=7, callbacks=[FedCheckpoint(tmp_path), Kill(after)]
    )
    with pytest.raises(Killed):
        killed.fit(start(), classes())
    resumed = trainer(aggregator=make(), max_rounds=7, callbacks=FedCheckpoint(tmp_path))
    resumed.fit(start(), classes(), ckpt_path="last")
    assert killed.version == after
    assert resumed.fingerprint() == whole.fingerprint()
    assert [r.updates for r in resumed.history] == [r.updates for r in whole.history]


def test_a_second_run_starts_anew():
    aggregator, seen = Everything(), []
    for _ in range(2):
        run = trainer(aggregator=aggregator, max_rounds=3)
        run.fit(start(), classes())
        seen.append(run.fingerprint())
    assert seen[0] == seen[1]


def test_a_server_optimizer_needs_nobodys_help():
    def server(params):
        return torch.optim.SGD(params, 0.5, momentum=0.9)

    prints = set()
    for aggregator in (
        Mean(server_optimizer=server),
        FedAvg(client_weights="uniform", server_optimizer=server),
        Mean(),
    ):
        run = trainer(aggregator=aggregator, max_rounds=3)
        run.fit(start(), classes())
        prints.add(run.fingerprint())
    assert len(prints) == 2


def test_accepts_is_called_once_for_each_arrival():
    class EveryOther(Mean):
        def start(self, federation, state):
            self.asked = []

        def accepts(self, update, version):
            self.asked.append(update.task.serial)
            return len(self.asked) % 2 == 0

    aggregator = EveryOther()
    run = trainer(aggregator=aggregator, max_rounds=4)
    run.fit(start(), classes())
    assert len(aggregator.asked) == len(set(aggregator.asked)) == run.num_updates
    used = [update.serial for record in run.history for update in record.updates]
    assert used == aggregator.asked[1::2]


def test_the_guides_fadas_is_the_papers(make_update, make_state, make_federation):
    kind, lines = fadas()
    assert lines <= 15
    aggregator, state = kind(2, server_lr=0.1), make_state([1.0, 2.0])
    aggregator.setup(make_federation(), state)
    x, u, w, w_max = np.array([1.0, 2.0]), 0.0, 0.0, 0.0
    for deltas in ([[1.0, -2.0], [3.0, 0.0]], [[0.1, 0.2], [0.0, -0.3]], [[-4.0, 0.0], [0.0, 1.0]]):
        state = feed(aggregator, make_update, state, *deltas)
        mean = np.mean(deltas, axis=0)
        u = 0.9 * u + 0.1 * mean
        w = 0.99 * w + 0.01 * mean**2
        w_max = np.maximum(w_max, w)
        x = x + 0.1 * u / (np.sqrt(w_max) + 1e-8)
        np.testing.assert_allclose(state.params, x, rtol=1e-12)


# --- the state ---


def test_an_attribute_made_late_is_state(make_update, make_state, make_federation):
    aggregator, state = Everything(2), make_state([1.0])
    aggregator.setup(make_federation(), state)
    assert "late" not in aggregator.state_dict()["own"]
    for _ in range(2):
        state = feed(aggregator, make_update, state, [1.0], [2.0])
    assert "late" in aggregator.state_dict()["own"]
    assert "decay" not in aggregator.state_dict()["own"]
    aggregator.setup(make_federation(), state)
    assert "late" not in vars(aggregator)
    assert aggregator.steps == 0


def test_what_the_saved_aggregator_did_not_have_goes(make_update, make_state, make_federation):
    class Counts(Mean):
        def receive(self, update):
            self.received = True
            return super().receive(update)

    saved, loaded, state = Counts(2), Counts(2), make_state([0.0])
    for aggregator in (saved, loaded):
        aggregator.setup(make_federation(), state)
    loaded.receive(make_update(0, [1.0]))
    loaded.load_state_dict(saved.state_dict())
    assert "received" not in vars(loaded)


def test_two_aggregators_share_no_tensor_after_loading(make_update, make_state, make_federation):
    one, other, state = Everything(2), Everything(2), make_state([1.0])
    for aggregator in (one, other):
        aggregator.setup(make_federation(), state)
    other.load_state_dict(one.state_dict())
    other.velocity.add_(1)
    assert one.velocity.tolist() == [0.0]


def test_tensors_come_back_where_start_made_them(make_state, make_federation):
    """The device "meta" stands for a GPU: checkpoints are read to main memory."""

    class Two(Mean):
        def start(self, federation, state):
            self.here = torch.zeros(2)
            self.there = torch.zeros_like(state.params)

    saved, loaded, state = Two(), Two(), make_state([1.0])
    saved.setup(make_federation(), state)
    saved.late = torch.ones(1)
    meta = make_state([1.0])
    meta = type(meta)(0, meta.params.to("meta"), meta.buffers, meta.counters)
    loaded.setup(make_federation(), meta)
    loaded.load_state_dict(saved.state_dict())
    devices = {name: getattr(loaded, name).device.type for name in ("here", "there", "late")}
    assert devices == {"here": "cpu", "there": "meta", "late": "meta"}


def test_a_state_that_no_checkpoint_can_hold_is_named(make_state, make_federation):
    class Holds(Mean):
        def start(self, federation, state):
            self.rule = lambda tau: tau

    aggregator = Holds()
    aggregator.setup(make_federation(), make_state())
    with pytest.raises(TypeError, match=r"Holds.rule is a function, which a checkpoint cannot"):
        aggregator.state_dict()


def test_a_part_made_late_is_named(make_state, make_federation):
    aggregator, other = Mean(), Mean()
    for each in (aggregator, other):
        each.setup(make_federation(), make_state())
    aggregator.part = Part()
    with pytest.raises(TypeError, match=r"Mean.part cannot be restored: make it in start"):
        other.load_state_dict(aggregator.state_dict())


@pytest.mark.parametrize(
    "value", [[], {}, set(), np.zeros(2), torch.zeros(2), Part()], ids=lambda v: type(v).__name__
)
def test_what_changes_in_place_belongs_in_start(value, make_state, make_federation):
    class Keeps(Mean):
        def __init__(self):
            super().__init__()
            self.kept = value

    with pytest.raises(TypeError, match=rf"Keeps.__init__ assigns kept, a {type(value).__name__}"):
        Keeps().setup(make_federation(), make_state())

    class Both(Keeps):
        def start(self, federation, state):
            self.kept = 1

    aggregator = Both()
    for _ in range(2):
        aggregator.setup(make_federation(), make_state())
        assert aggregator.kept == 1


def test_a_setting_that_changes_is_told_before_the_next_run(
    make_update, make_state, make_federation
):
    class Counts(Mean):
        def __init__(self):
            super().__init__(1)
            self.count = 0

        def weights(self, updates, version):
            self.count += 1
            return [1.0]

    aggregator, state = Counts(), make_state([0.0])
    aggregator.setup(make_federation(), state)
    feed(aggregator, make_update, state, [1.0])
    assert aggregator.state_dict()["own"] == {"count": 1}  # the run itself can go on
    with pytest.raises(ValueError, match=r"Counts.count was 0 at first and 1 later; assign"):
        aggregator.setup(make_federation(), state)


# --- wrong answers ---


def answering(weights=None, direction=None):
    class Wrong(BufferedAggregator):
        def weights(self, updates, version):
            return [0.5] * len(updates) if weights is None else weights(updates)

    if direction is not None:
        Wrong.direction = lambda self, updates, weights, state: direction(state)
    return Wrong(2)


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (lambda u: [1.0], TypeError, r"Wrong.weights must return one number for each of the 2 upd"),
        (
            lambda u: None,
            TypeError,
            r"got None; for example \[1 / len\(updates\)\] \* len\(updates",
        ),
        (lambda u: 0.5, TypeError, "Wrong.weights must return one number for each of the 2"),
        (lambda u: "ab", TypeError, "Wrong.weights must return one number for each of the 2"),
        (lambda u: {0: 1, 1: 1}, TypeError, "Wrong.weights must return one number for each"),
        (lambda u: [u[0], u[1]], TypeError, "Wrong.weights must return one number for each"),
        (lambda u: [u[0].delta, u[1].delta[:0]], TypeError, "one number for each of the 2"),
        (lambda u: (x for x in (0.5, 0.5)), TypeError, "one number for each of the 2"),
        (lambda u: torch.ones(3), TypeError, "one number for each of the 2"),
        (lambda u: torch.ones(2, 1), TypeError, "one number for each of the 2"),
        (lambda u: torch.tensor(0.5), TypeError, "one number for each of the 2"),
        (
            lambda u: [0.5, float("nan")],
            ValueError,
            "finite numbers of at least 0, got nan for update 1",
        ),
        (lambda u: [float("inf"), 1], ValueError, "Wrong.weights must return finite numbers"),
        (lambda u: [0.5, -0.5], ValueError, "got -0.5 for update 1; if the rule is not a weighted"),
    ],
    ids=range(14),
)
def test_wrong_weights_are_told(weights, error, message, make_update, make_state, make_federation):
    aggregator, state = answering(weights), make_state([0.0])
    aggregator.setup(make_federation(), state)
    with pytest.raises(error, match=message):
        feed(aggregator, make_update, state, [1.0], [3.0])


@pytest.mark.parametrize(
    "weights",
    [
        lambda u: torch.tensor([0.25, 0.75]),
        lambda u: np.array([0.25, 0.75]),
        lambda u: np.array([0.25, 0.75], dtype=np.float32),
        lambda u: (0.25, np.float32(0.75)),
        lambda u: [torch.tensor(0.25), 0.75],
    ],
    ids=range(5),
)
def test_weights_of_many_kinds(weights, make_update, make_state, make_federation):
    aggregator, state = answering(weights), make_state([0.0])
    aggregator.setup(make_federation(), state)
    after = feed(aggregator, make_update, state, [1.0], [3.0])
    assert [used.weight for used in after.used] == [0.25, 0.75]
    assert all(type(used.weight) is float for used in after.used)
    assert after.params.tolist() == [2.5]


@pytest.mark.parametrize(
    ("direction", "found"),
    [
        (lambda state: None, "NoneType"),
        (lambda state: 0.5, "float"),
        (lambda state: torch.zeros(3).double(), r"shape \(3,\) and torch.float64"),
        (lambda state: torch.zeros(1), r"shape \(1,\) and torch.float32"),
    ],
    ids=range(4),
)
def test_a_wrong_direction_is_told(direction, found, make_update, make_state, make_federation):
    aggregator, state = answering(direction=direction), make_state([0.0])
    aggregator.setup(make_federation(), state)
    message = (
        rf"Wrong.direction must return a tensor of shape \(1,\) and torch.float64, got {found}"
    )
    with pytest.raises(TypeError, match=message):
        feed(aggregator, make_update, state, [1.0], [3.0])


def test_a_direction_of_ones_own_stays_as_it_is(make_update, make_state, make_federation):
    """Only the sum that the base class makes for the step may become the new version."""
    kept = torch.tensor([3.0], dtype=torch.float64)
    aggregator, state = answering(direction=lambda state: kept), make_state([1.0])
    aggregator.setup(make_federation(), state)
    assert feed(aggregator, make_update, state, [1.0], [3.0]).params.item() == 4
    assert (kept.item(), state.params.item()) == (3, 1)


@pytest.mark.parametrize("make", [FedAvg(1), FedAsync(0.5)], ids=["FedAvg", "FedAsync"])
def test_a_step_leaves_versions_and_updates_as_they_are(
    make, make_update, make_state, make_federation
):
    state = make_state([1.0])
    update = make_update(0, [2.0], start=state)
    make.setup(make_federation(), state)
    make.receive(update)
    after = make.step(state)
    assert after.params.item() == 1 + make.rates(0).get("alpha", 1) * 2
    assert (state.params.item(), update.delta.item()) == (1, 2)


@pytest.mark.parametrize("make", [ServerStep(), next_version], ids=["ServerStep", "next_version"])
def test_bare_updates_are_no_used_updates(make, make_update, make_state):
    state = make_state([0.0], buffers=[1.0])
    updates = [make_update(0, [1.0], buffers=[1.0])]
    with pytest.raises(TypeError, match=r"used must hold UsedUpdate\(update, weight\).* ClientUpd"):
        make(state, torch.ones(1, dtype=torch.float64), updates)
    with pytest.raises(TypeError, match=r"used must hold UsedUpdate\(update, weight\).* tuple"):
        make(state, torch.ones(1, dtype=torch.float64), [(updates[0], 1.0)])
    used = (UsedUpdate(update, 1.0) for update in updates)  # any iterable of them
    after = make(state, torch.ones(1, dtype=torch.float64), used)
    assert after.used == (UsedUpdate(updates[0], 1.0),)
    assert after.buffers.tolist() == [1.0]


def test_a_server_optimizer_that_nobody_sets_up_is_told(make_update, make_state):
    step = ServerStep(server_optimizer=lambda params: torch.optim.SGD(params, 0.5))
    state = make_state([0.0])
    with pytest.raises(RuntimeError, match=r"never set up: call its setup\(state\) in the aggreg"):
        step(state, torch.ones(1, dtype=torch.float64), ())
    step.setup(state)
    assert step(state, torch.ones(1, dtype=torch.float64), ()).params.tolist() == [0.5]


# --- when it steps, and what it declares ---


def test_a_buffer_and_a_deadline_may_go_together(make_update, make_state, make_federation):
    aggregator = Mean(2, interval=0.5)
    aggregator.setup(make_federation(), make_state())
    assert not aggregator.needs_rounds
    assert [aggregator.receive(make_update(c, [1.0])) for c in range(2)] == [False, True]


def test_declarations():
    bare = type("Bare", (Aggregator,), {"receive": None, "step": None})()
    assert (bare.buffer_size, bare.interval, bare.needs_rounds) == (None, None, False)
    assert (bare.remembers, bare.drops, bare.can_discard) == (False, False, False)
    assert (bare.client_weights, bare.rates(0), bare.held) == ("uniform", {}, [])
    with pytest.raises(NotImplementedError, match=r"Bare does not define discard\(failed\) and he"):
        bare.discard([])
    own = type("Own", (Mean,), {"accepts": lambda self, update, version: True})
    limited = type("Limited", (Mean,), {"max_staleness": 2})
    assert (Mean().drops, own().drops, limited().drops) == (False, True, True)
    assert Mean().can_discard
    assert Mean(server_lr=lambda version: 1 / (1 + version)).rates(3) == {"server": 0.25}


def test_a_limit_of_staleness_needs_no_accepts(make_update):
    limited = type("Limited", (Mean,), {"max_staleness": 2})()
    update = make_update(0, [1.0], pulled=3)
    assert limited.accepts(update, 5)
    assert not limited.accepts(update, 6)


def test_occasions():
    def own(size):
        return type("Own", (Mean,), {"accepts": lambda self, update, version: True})(size)

    limited = type("Limited", (Mean,), {"max_staleness": 2})
    assert Mean().occasions == FedAvg().occasions == own(None).occasions == limited().occasions
    assert Mean(3).occasions == FedAvg(3).occasions
    assert Mean(interval=2).occasions == Mean(interval=2.0).occasions == own_interval(2).occasions
    assert limited(3).occasions == limited(3).occasions
    different = [Mean(), Mean(3), Mean(4), Mean(interval=2), own(3), own(3), limited(3)]
    assert len({each.occasions for each in different}) == len(different)
    black = [type("Bare", (Aggregator,), {"receive": None, "step": None})() for _ in range(2)]
    assert black[0].occasions != black[1].occasions


def own_interval(interval):
    kind = type("Own", (Mean,), {"accepts": lambda self, update, version: True})
    return kind(interval=interval)


# --- names ---


def test_it_prints_as_it_was_called():
    def lr(version):
        return 0.5

    assert repr(Mean()) == "Mean(buffer_size=None)"
    assert repr(Mean(3, 0.5)) == "Mean(buffer_size=3, server_lr=0.5)"
    assert repr(Mean(interval=2)) == "Mean(buffer_size=None, interval=2.0)"
    assert repr(Mean(server_lr=lr)) == f"Mean(buffer_size=None, server_lr={lr!r})"
    assert repr(Everything(2, server_lr=3)) == "Everything(buffer_size=2, decay=0.9, server_lr=3.0)"


class Keeps(BufferedAggregator):
    """State of kinds that a copy would tear apart, or that is at times what it was at first."""

    def __init__(self, buffer_size: int) -> None:
        super().__init__(buffer_size)
        self.maybe = None

    def start(self, federation, state):
        self.a = torch.zeros_like(state.params)
        self.same = self.a
        self.rows = torch.zeros(2, len(state.params), dtype=state.params.dtype)
        self.row = self.rows[0]
        self.q = torch.nn.Parameter(torch.zeros_like(state.params))
        self.optimizers = [torch.optim.SGD([self.q], 0.5, momentum=0.9)]
        self.x = np.float64(0.1)
        self.maybe = torch.ones_like(state.params)

    def weights(self, updates, version):
        return [1 / len(updates)] * len(updates)

    def direction(self, updates, weights, state):
        mean = super().direction(updates, weights, state)
        self.a += mean
        self.row.add_(self.same)
        self.q.grad = self.rows[0].clone()
        self.optimizers[0].step()
        self.x = self.x * 1.1
        self.maybe = None if self.maybe is not None else mean
        extra = 0 if self.maybe is None else self.maybe
        return mean + self.q.detach() + extra + float(self.x)


def test_state_that_is_shared_or_is_back_at_its_beginning_comes_back():
    state = ServerState(0, torch.zeros(2), torch.empty(0), torch.empty(0))

    def stepped(aggregator, state, times):
        for _ in range(times):
            task = Task(0, state.version, 0.0, 1.0, 1, 0, 0)
            empty = torch.empty(0)
            result = LocalResult(torch.tensor([1.0, 2.0]), empty, empty)
            aggregator.receive(ClientUpdate(task, 1, result))
            state = replace(aggregator.step(state), used=())
        return state

    for stopped in (1, 2):
        whole = Keeps(1)
        whole.setup(Federation(3, np.ones(3, dtype=np.int64), 1), state)
        expected = stepped(whole, state, 5)
        first, second = Keeps(1), Keeps(1)
        first.setup(Federation(3, np.ones(3, dtype=np.int64), 1), state)
        middle = stepped(first, state, stopped)
        buffer = io.BytesIO()
        torch.save(plain(first.state_dict()), buffer)  # as a file, not as the same tensors
        saved = torch.load(io.BytesIO(buffer.getvalue()))
        second.setup(
            Federation(3, np.ones(3, dtype=np.int64), 1),
            replace(state, params=state.params.clone()),
        )
        second.load_state_dict(saved)
        assert torch.equal(stepped(second, middle, 5 - stopped).params, expected.params)
        assert isinstance(second.x, np.float64)


def test_deques_and_the_kinds_of_dicts_come_back(make_state, make_federation):
    class Counts(Mean):
        def start(self, federation, state):
            self.recent = deque(maxlen=3)
            self.seen = Counter()
            self.by_client = defaultdict(list)
            self.order = OrderedDict()

    saved, loaded = Counts(), Counts()
    for each in (saved, loaded):
        each.setup(make_federation(), make_state())
    saved.recent.extend([1, 2, (3, 4), 5])
    saved.seen.update("abca")
    saved.by_client[3].append(torch.ones(2))
    saved.order.update(b=1, a=2)
    buffer = io.BytesIO()
    torch.save(plain(saved.state_dict()), buffer)
    buffer.seek(0)
    loaded.load_state_dict(torch.load(buffer, weights_only=True))
    assert loaded.recent == deque([2, (3, 4), 5], 3)
    assert loaded.recent.maxlen == 3
    assert type(loaded.seen) is Counter
    assert loaded.seen == saved.seen
    assert loaded.seen["nobody"] == 0
    assert loaded.by_client[3][0].tolist() == [1, 1]
    assert loaded.by_client[7] == []
    assert type(loaded.order) is OrderedDict
    assert list(loaded.order.items()) == [("b", 1), ("a", 2)]


def test_a_defaultdict_made_late_is_named(make_state, make_federation):
    saved, loaded = Mean(), Mean()
    for each in (saved, loaded):
        each.setup(make_federation(), make_state())
    saved.late = defaultdict(int)
    with pytest.raises(TypeError, match=r"Mean.late cannot be restored: make it in start"):
        loaded.load_state_dict(saved.state_dict())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_direction_that_is_not_finite_is_named_at_its_step(value):
    class Divides(Mean):
        def direction(self, updates, weights, state):
            found = super().direction(updates, weights, state)
            if state.version == 2:
                found[1] = value
            return found

    run = trainer(aggregator=Divides())
    with pytest.raises(ValueError, match=r"Divides.direction must return finite numbers, but 1 of"):
        run.fit(Boring(), classes())
    assert run.version == 2


def test_what_no_checkpoint_can_hold_is_refused_before_the_first_round(tmp_path):
    class Holds(Mean):
        def start(self, federation, state):
            self.rule = lambda tau: tau

    class Remembers(Callback):
        def state_dict(self):
            return {"recent": deque([1])}

    for given, words in (
        ({"aggregator": Holds()}, "Holds.rule is a function"),
        ({"callbacks": Remembers()}, r"Remembers.state_dict\(\)\['recent'\] is a deque"),
    ):
        plain_run = trainer(**given)
        plain_run.fit(Boring(), classes())  # nobody saves it
        assert plain_run.version == 5
        callbacks = [given.get("callbacks", Callback()), FedCheckpoint(tmp_path)]
        run = trainer(**{**given, "callbacks": callbacks})
        with pytest.raises(TypeError, match=words):
            run.fit(Boring(), classes())
        assert run.version == 0
    assert list(tmp_path.iterdir()) == []
