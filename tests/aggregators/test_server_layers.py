"""Server optimizers and directions that see the layers of the model."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Muon

from fedlight._support.flat_layout import FlatLayout
from fedlight.aggregators import BufferedAggregator, FedAvg, ServerParams, ServerStep
from fedlight.types import Federation, ServerState
from tests.boring import Boring, classes, fitted, trainer

SHAPES = {"net.0.weight": (5, 7), "net.0.bias": (5,), "scale": (), "net.1.weight": (3, 5, 2)}
SIZE = 5 * 7 + 5 + 1 + 3 * 5 * 2


def layout(dtype=torch.float32) -> FlatLayout:
    return FlatLayout(tuple(SHAPES), tuple(map(torch.Size, SHAPES.values())), dtype)


def version(params) -> ServerState:
    return ServerState(0, params, params.new_empty(0), torch.empty(0, dtype=torch.int64))


def steps(step, number=6, dtype=torch.float32, seed=0):
    """The models after each of some steps along random directions."""
    random = torch.Generator().manual_seed(seed)
    state, seen = version(torch.randn(SIZE, generator=random, dtype=dtype)), []
    for _ in range(number):
        direction = torch.randn(SIZE, generator=random, dtype=dtype)
        state = step(state, direction, ())
        seen.append(state.params)
    return torch.stack(seen)


def made(factory, layers, dtype=torch.float32):
    step = ServerStep(server_optimizer=factory)
    step.setup(version(torch.zeros(SIZE, dtype=dtype)), layers)
    return step


ELEMENTWISE = {
    "SGD": partial(SGD, lr=0.3, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": partial(Adam, lr=0.1, amsgrad=True),
    "AdamW": partial(AdamW, lr=0.1),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1),
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop": partial(torch.optim.RMSprop, momentum=0.5),
    "Rprop": torch.optim.Rprop,
    "ASGD": torch.optim.ASGD,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_optimizers_give_the_bits_of_one_vector(name, dtype):
    factory = ELEMENTWISE[name]
    by_layer = steps(made(factory, layout(dtype), dtype), dtype=dtype)
    assert torch.equal(by_layer, steps(made(factory, None, dtype), dtype=dtype))
    assert not torch.equal(by_layer[0], by_layer[-1])


def test_muon_on_matrices_and_adamw_on_the_rest_is_what_torch_computes():
    module = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2))
    layers = FlatLayout.of(dict(module.named_parameters()), torch.float32)
    step = ServerStep(
        server_optimizer=lambda params: [
            Muon(params.matrices, lr=0.02),
            AdamW(params.others, lr=0.01),
        ]
    )
    state = version(torch.cat([p.detach().flatten() for p in module.parameters()]))
    step.setup(state, layers)
    matrices = [module[0].weight, module[2].weight]
    vectors = [module[0].bias, *module[1].parameters(), module[2].bias]
    muon, adamw = Muon(matrices, lr=0.02), AdamW(vectors, lr=0.01)
    random = torch.Generator().manual_seed(1)
    for _ in range(4):
        direction = torch.randn(layers.numel, generator=random)
        state = step(state, direction, ())
        for param, part in zip(module.parameters(), layers.views(-direction), strict=True):
            param.grad = part.clone()
        muon.step()
        adamw.step()
        for param, part in zip(module.parameters(), layers.views(state.params), strict=True):
            assert torch.equal(param.detach(), part)
    assert step.rates(4) == {"server": 0.02, "server_1": 0.01}


def test_groups_by_name_have_rates_of_their_own():
    def by_name(params):
        biases = params.where(lambda name, _: name.endswith("bias"))
        rest = params.where(lambda name, _: not name.endswith("bias"))
        return SGD([{"params": rest, "lr": 1.0}, {"params": biases, "lr": 0.0}])

    step = made(by_name, layout())
    direction = torch.ones(SIZE)
    moved = step(version(torch.zeros(SIZE)), direction, ()).params
    federation = Federation(1, None, 1, layout=layout())
    layers = federation.layers(moved)
    assert {name: float(each.flatten()[0]) for name, each in layers.items()} == {
        "net.0.weight": 1.0,
        "net.0.bias": 0.0,
        "scale": 1.0,
        "net.1.weight": 1.0,
    }


def test_a_list_of_parameters_knows_names_and_kinds():
    params = ServerParams({name: nn.Parameter(torch.ones(shape)) for name, shape in SHAPES.items()})
    assert params.names == tuple(SHAPES)
    assert [name for name, _ in params.named()] == list(SHAPES)
    assert params.matrices.names == ("net.0.weight",)
    assert params.others.names == ("net.0.bias", "scale", "net.1.weight")
    assert params[1] is params.others[0]


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda p: SGD(p.matrices, 0.1), r"gives no optimizer to net.0.bias, scale, net.1.weight"),
        (lambda p: [SGD(p, 0.1), SGD(p.matrices, 0.1)], r"several optimizers to net.0.weight"),
        (lambda p: SGD([*p, nn.Parameter(torch.ones(1))], 0.1), r"of other tensors than"),
        (lambda p: [SGD(p, 0.1), torch.optim.LBFGS(p)], r"returns LBFGS"),
    ],
)
def test_each_parameter_has_one_optimizer(factory, message):
    with pytest.raises(ValueError, match=message):
        made(factory, layout())


@pytest.mark.parametrize(
    "factory",
    [
        lambda p: [],
        lambda p: [SGD(p, 0.1), 3],
        lambda p: None,
        lambda p: {"a": SGD(p, 0.1)},
        lambda p: "SGD",
    ],
    ids=["empty", "a number", "nothing", "a dict", "a text"],
)
def test_what_is_no_list_of_optimizers_is_refused(factory):
    with pytest.raises(TypeError, match=r"must return a torch.optim.Optimizer, or a list of them"):
        made(factory, layout())


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
def test_the_state_for_one_vector_of_an_older_checkpoint_is_cut_into_layers(name):
    factory = ELEMENTWISE[name]
    older, whole = made(factory, None), made(factory, None)
    steps(older, 3)
    steps(whole, 3)
    (saved,) = older.state_dict()["optimizers"]
    resumed = made(factory, layout())
    resumed.load_state_dict(saved)
    assert torch.equal(steps(resumed, 3, seed=1), steps(whole, 3, seed=1))
    fresh = made(factory, layout())
    fresh.load_state_dict(made(factory, None)._optimizers[0].state_dict())
    assert torch.equal(steps(fresh), steps(made(factory, None)))


class Rebinds(SGD):
    """Gives each parameter a new tensor, as some optimizers do."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                param.data = param.data - group["lr"] * param.grad


class Clears(SGD):
    """Takes the gradients away after its step."""

    def step(self, closure=None):
        super().step()
        self.zero_grad()


@pytest.mark.parametrize("kind", [Rebinds, Clears])
@pytest.mark.parametrize("layers", [layout(), None], ids=["layers", "one vector"])
def test_a_step_may_replace_parameters_and_gradients(kind, layers):
    plain, other = (made(partial(each, lr=0.5), layers) for each in (SGD, kind))
    torch.testing.assert_close(steps(other), steps(plain), rtol=1e-6, atol=1e-6)


def test_an_error_within_the_function_says_where_it_was_raised():
    with pytest.raises(ValueError, match="Muon only supports 2D") as caught:
        made(lambda params: Muon(params, lr=0.1), layout())
    (note,) = caught.value.__notes__
    assert "raised in server_optimizer, which got 4 parameters: net.0.weight" in note


def test_a_step_that_is_not_finite_is_named():
    step = made(partial(SGD, lr=1e38), layout())
    with pytest.raises(ValueError, match="the step of server_optimizer must return finite"):
        step(version(torch.zeros(SIZE)), torch.full((SIZE,), 1e3), ())


class PerTensor(BufferedAggregator):
    """Each layer moves by the mean of its deltas, scaled to length 1."""

    def weights(self, updates, version):
        return [1 / len(updates)] * len(updates)

    def direction(self, updates, weights, state):
        mean = super().direction(updates, weights, state)
        for layer in self.federation.layers(mean).values():
            layer.div_(layer.norm())
        return mean


def test_a_direction_may_act_on_each_layer():
    module = Boring()
    before = {name: param.detach().clone() for name, param in module.named_parameters()}
    fitted(module, classes(), aggregator=PerTensor(server_lr=0.5), max_rounds=1)
    for name, param in module.named_parameters():
        assert float((param.detach() - before[name]).norm()) == pytest.approx(0.5, rel=1e-5)


def test_a_run_shows_the_modules_own_names_and_shapes():
    seen = {}

    def server(params):
        seen.update((name, tuple(param.shape)) for name, param in params.named())
        return SGD(params, 1.0)

    fitted(Boring(), classes(), aggregator=FedAvg(server_optimizer=server), max_rounds=1)
    assert seen == {"net.weight": (3, 4), "net.bias": (3,)}


def test_several_optimizers_are_in_checkpoints(tmp_path):
    def server(params):
        return [Muon(params.matrices, lr=0.02), Adam(params.others, lr=0.01)]

    def module():
        torch.manual_seed(0)
        return Boring()

    whole = fitted(module(), classes(), aggregator=FedAvg(server_optimizer=server), max_rounds=6)
    first = fitted(module(), classes(), aggregator=FedAvg(server_optimizer=server), max_rounds=3)
    file = tmp_path / "run.ckpt"
    first.save_checkpoint(file)
    second = trainer(aggregator=FedAvg(server_optimizer=server), max_rounds=6)
    second.fit(module(), classes(), ckpt_path=file)
    assert second.fingerprint() == whole.fingerprint()
