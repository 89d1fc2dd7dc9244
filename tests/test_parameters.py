import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning import LightningModule
from torch import nn
from torchmetrics import MeanMetric, MetricCollection

from fedlight.arrivals import UniformArrivals
from fedlight.parameters import (
    FlatLayout,
    ModuleState,
    block_of,
    input_dtype,
    shrinking,
    weighted_sum,
)
from tests.boring import fitted, points

shapes = st.lists(st.lists(st.integers(0, 4), max_size=3).map(torch.Size), min_size=1, max_size=6)


def layout(shapes, dtype=torch.float32):
    return FlatLayout.of({f"t{k}": torch.empty(s) for k, s in enumerate(shapes)}, dtype)


# --- the layout ---


@given(shapes, st.lists(st.integers(1, 3), max_size=2))
def test_flatten_and_views_are_inverse(shapes, lead):
    where = layout(shapes)
    flat = torch.arange(torch.Size([*lead, where.numel]).numel(), dtype=torch.float32)
    flat = flat.reshape(*lead, where.numel)
    views = where.views(flat)
    assert [tuple(view.shape) for view in views] == [(*lead, *shape) for shape in shapes]
    assert torch.equal(where.flatten(views, leading=len(lead)), flat)


@given(shapes)
def test_views_share_the_vector(shapes):
    where = layout(shapes)
    flat = torch.zeros(where.numel)
    for number, view in enumerate(where.views(flat)):
        view += number
    expected = [number for number, shape in enumerate(shapes) for _ in range(shape.numel())]
    assert flat.tolist() == expected


def test_flatten_copies_even_a_single_tensor():
    one = torch.zeros(3)
    flat = layout([torch.Size([3])]).flatten([one])
    flat += 1
    assert one.tolist() == [0, 0, 0]


def test_views_have_their_names():
    where = FlatLayout.of({"a": torch.empty(2), "b": torch.empty(1, 1)}, torch.float32)
    views = where.views(torch.tensor([1.0, 2.0, 3.0]))
    named = dict(zip(where.names, views, strict=True))
    assert {name: view.tolist() for name, view in named.items()} == {"a": [1, 2], "b": [[3]]}


def test_mixed_types_are_kept_in_the_widest():
    tensors = {"half": torch.ones(1, dtype=torch.bfloat16), "double": torch.ones(1).double()}
    assert FlatLayout.of(tensors, torch.float32).dtype == torch.float64
    mixed = {"half": torch.ones(1).half(), "brain": torch.ones(1, dtype=torch.bfloat16)}
    assert FlatLayout.of(mixed, torch.float64).dtype == torch.float32
    assert FlatLayout.of({}, torch.float16).dtype == torch.float16


def test_nothing_cannot_be_flattened():
    with pytest.raises(ValueError, match="nothing to flatten"):
        layout([torch.Size([1])]).flatten([])


# --- a module's state ---


class Everything(nn.Module):
    """Tied, frozen and unused parameters, a norm, a mask, a metric, a constant."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.norm = nn.BatchNorm1d(2)
        self.metrics = MetricCollection({"mean": MeanMetric()})
        self.metrics["mean"].register_buffer("inner", torch.zeros(5))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("phase", torch.ones(1, dtype=torch.complex64))


def test_what_belongs_to_the_federation():
    state = ModuleState(Everything())
    assert state.param_layout.names == ("embedding.weight", "norm.weight", "norm.bias")
    assert state.buffer_layout.names == ("phase", "norm.running_mean", "norm.running_var")
    assert state.counter_layout.names == ("mask", "norm.num_batches_tracked")
    read = state.read(version=7)
    assert (read.version, read.params.numel(), read.buffers.numel()) == (7, 6 + 2 + 2, 2 + 4)
    assert read.counters.tolist() == [1, 0, 0]
    assert read.counters.dtype == torch.int64


class Phase(LightningModule):
    """Adds (1 + 2j) times a client's number to a complex buffer."""

    def __init__(self, replaces):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))
        self.register_buffer("z", torch.zeros(2, dtype=torch.complex64))
        self._replaces = replaces

    def training_step(self, batch, batch_idx):
        added = batch[0].mean() * (1 + 2j)
        if self._replaces:
            self.z = self.z + added
        else:
            self.z += added
        return (self.w * batch[0]).mean()


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("replaces", [False, True])
def test_a_complex_buffer_is_averaged(executor, replaces):
    # Clients with the numbers 2 and 4 end at 2 + 4j and 4 + 8j.
    module, arrivals = Phase(replaces), UniformArrivals(2, local_steps=1)
    fitted(module, points([2.0], [4.0]), executor=executor, arrivals=arrivals, max_rounds=1)
    assert module.z.tolist() == [3 + 6j, 3 + 6j]


def test_reading_copies_and_writing_brings_back():
    module = Everything()
    state = ModuleState(module)
    identities = {name: id(t) for name, t in module.state_dict(keep_vars=True).items()}
    before = state.read()
    kept = before.params.clone()
    with torch.no_grad():
        floating = [each for each in module.buffers() if each.is_floating_point()]
        for tensor in [*state.params, *floating]:
            tensor += 1
        module.norm.num_batches_tracked += 3
        module.mask.fill_(False)
        module.frozen.weight.fill_(9.0)
    assert torch.equal(before.params, kept)
    assert torch.equal(state.read().params, kept + 1)
    state.write(before)
    assert torch.equal(state.read().params, kept)
    assert torch.equal(state.read().buffers, before.buffers)
    assert torch.equal(state.read().counters, before.counters)
    assert module.mask.tolist() == [True, False]
    assert module.mask.dtype == torch.bool
    assert (module.frozen.weight == 9).all()
    assert module.head.weight is module.embedding.weight
    assert {name: id(t) for name, t in module.state_dict(keep_vars=True).items()} == identities


def test_what_is_present_is_copied_once_until_something_changes():
    module = nn.Linear(2, 1)
    state = ModuleState(module)
    first = state.present()
    assert state.present() is first
    with torch.no_grad():
        module.bias += 1
    assert state.is_changed
    second = state.present()
    assert second is not first
    assert second.params.tolist() == [*first.params[:2].tolist(), (first.params[2] + 1).item()]
    assert not state.is_changed


def test_writing_needs_no_gradient_and_leaves_the_version_alone():
    module = nn.Linear(2, 1)
    state = ModuleState(module)
    read = state.read()
    state.write(read)
    with torch.no_grad():
        module.weight += 5
    assert not torch.equal(state.read().params, read.params)
    assert module.weight.requires_grad
    assert not read.params.requires_grad


def test_mixed_parameters_keep_their_own_types():
    module = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False).double()])
    state = ModuleState(module)
    read = state.read()
    assert read.params.dtype == torch.float64
    read.params.copy_(torch.tensor([0.1, 0.1], dtype=torch.float64))
    state.write(read)
    assert module[0].weight.dtype == torch.float32
    assert module[1].weight.item() == 0.1


def test_a_buffer_that_was_replaced_is_read_and_gets_its_tensor_back():
    module = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    own = module[1].running_mean
    state = ModuleState(module)
    before = state.read()
    module[1].running_mean = module[1].running_mean + 5
    module[1].num_batches_tracked = torch.tensor(3)
    assert state.read().buffers.tolist() == [5, 1]
    assert state.read().counters.tolist() == [3]
    assert own.tolist() == [0]
    state.write(before)
    assert module[1].running_mean is own
    assert module[1].num_batches_tracked == 0


def test_a_module_without_buffers_has_empty_ones():
    read = ModuleState(nn.Linear(1, 1).double()).read()
    assert (read.buffers.numel(), read.buffers.dtype) == (0, torch.float64)
    assert (read.counters.numel(), read.counters.dtype) == (0, torch.int64)


def test_a_parameter_of_several_layouts_in_memory():
    module = nn.Linear(3, 2, bias=False)
    module.weight = nn.Parameter(torch.arange(6.0).reshape(3, 2).t())
    state = ModuleState(module)
    read = state.read()
    assert read.params.tolist() == [0, 2, 4, 1, 3, 5]
    read.params.neg_()
    state.write(read)
    assert module.weight.tolist() == [[0, -2, -4], [-1, -3, -5]]


@pytest.mark.parametrize("module", [nn.ReLU(), nn.Linear(1, 1).requires_grad_(False)])
def test_nothing_to_train(module):
    with pytest.raises(ValueError, match="has no parameter with requires_grad=True"):
        ModuleState(module)


def test_complex_parameters_are_refused():
    module = nn.Module()
    module.wave = nn.Parameter(torch.ones(1, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"parameter 'wave' of Module is complex.*two real"):
        ModuleState(module)


def test_numbers_that_lie_in_one_place_are_refused():
    module = nn.Module()
    module.shared = nn.Parameter(torch.ones(()).expand(2))
    with pytest.raises(ValueError, match=r"parameter 'shared' of Module is an expanded tensor"):
        ModuleState(module)
    module.shared = nn.Parameter(torch.ones(()).expand(1))  # one number, which shares with none
    assert ModuleState(module).read().params.tolist() == [1.0]


def test_inputs_are_as_wide_as_what_is_trained():
    assert input_dtype(nn.Linear(1, 1).double()) == torch.float64
    frozen = nn.Linear(1, 1).half().requires_grad_(False)
    assert input_dtype(nn.ModuleList([frozen, nn.Linear(1, 1)])) == torch.float32
    assert input_dtype(nn.ReLU()) == torch.float32


def test_rows_of_a_block_are_not_copied():
    block = torch.arange(12.0).reshape(4, 3)
    rows = list(block.unbind())
    assert block_of(rows).data_ptr() == block.data_ptr()
    assert torch.equal(block_of(rows), block)
    assert torch.equal(block_of(rows[:2]), block[:2])


def test_other_rows_are_stacked():
    block = torch.arange(12.0).reshape(4, 3)
    one, two, three, _ = block.unbind()
    for rows in (
        [two, three],
        [one, three],
        [two, one],
        [one, one],
        [one, two.clone()],
        [one.clone()],
        list(block[:, :2].unbind()),
        list(torch.arange(8.0).reshape(4, 2).t().unbind()),
        [torch.empty(0)] * 2,
    ):
        stacked = block_of(rows)
        assert torch.equal(stacked, torch.stack(rows))
        assert stacked.shape == (len(rows), len(rows[0]))


@pytest.mark.parametrize("length", [5, 70_000, 140_000])  # one piece, and several
def test_a_weighted_sum_of_long_vectors_is_that_of_short_ones(length):
    rows = [torch.arange(length, dtype=torch.float64) % 7, torch.ones(length, dtype=torch.float64)]
    total = weighted_sum(rows, [0.5, -2.0])
    assert torch.equal(total, 0.5 * rows[0] - 2.0)


def test_only_vectors_that_are_too_long_shrink():
    norms = torch.tensor([0.0, 0.5, 2.0, 8.0])
    assert shrinking(norms, 2.0).tolist() == [1.0, 1.0, 1.0, 0.25]
