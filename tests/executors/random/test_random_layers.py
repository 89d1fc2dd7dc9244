"""Dropout and its kin on a stream: what they compute, with numbers of the client's own."""

import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedlight.executors._random.streams import Streams

KEYS = torch.tensor([5, -7, 123456789])


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.function(self.scale * x)


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)

    def forward(self, x):
        return self.layer(x, x, x, need_weights=False)[0]


class Recurs(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.layer = kind(8, 3, num_layers=3, dropout=0.4, **options)

    def forward(self, x):
        return self.layer(x)[0]


def attention(x, **options):
    return functional.scaled_dot_product_attention(x, x, x, dropout_p=0.3, **options)


MASK = torch.tensor([[True, False, True, True, True]]).expand(5, 5)
LAYERS = {
    "dropout": lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3)),
    "in place": lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5, inplace=True)),
    "dropout1d": lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout1d(0.5)),
    "dropout2d": lambda: Calls(lambda x: functional.dropout2d(x[..., None], 0.5)),
    "dropout3d": lambda: Calls(lambda x: functional.dropout3d(x[..., None, None], 0.5)),
    "alpha": lambda: nn.Sequential(nn.Linear(8, 8), nn.AlphaDropout(0.3)),
    "feature alpha": lambda: nn.Sequential(nn.Linear(8, 8), nn.FeatureAlphaDropout(0.3)),
    "functions": lambda: Calls(
        lambda x: torch.dropout(x, 0.5, True) + torch.feature_dropout(x, 0.2, True)
    ),
    "rrelu": lambda: nn.Sequential(nn.Linear(8, 8), nn.RReLU()),
    "gumbel": lambda: Calls(lambda x: functional.gumbel_softmax(x, tau=0.7)),
    "attention": lambda: Calls(attention),
    "causal": lambda: Calls(lambda x: attention(x, is_causal=True, scale=0.2)),
    "masked": lambda: Calls(lambda x: attention(x, attn_mask=MASK)),
    "bias": lambda: Calls(lambda x: attention(x, attn_mask=MASK.double())),
    "multihead": Attends,
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True),
    "lstm": lambda: Recurs(nn.LSTM, batch_first=True),
    "bidirectional": lambda: Recurs(nn.LSTM, bidirectional=True),
    "gru": lambda: Recurs(nn.GRU),
    "rnn": lambda: Recurs(nn.RNN, nonlinearity="relu"),
}


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", LAYERS)
def test_a_stack_computes_what_each_client_does_alone(name):
    layer, x = LAYERS[name](), torch.randn(3, 4, 5, 8)
    params = {key: value.detach() for key, value in layer.named_parameters()}
    rows = {key: value.expand(3, *value.shape).clone() for key, value in params.items()}
    stream = Streams(stacked=True)

    def loss(params, x):
        return functional_call(layer, params, (x,)).square().sum()

    def client(params, x, key):
        with stream.at(key):
            return grad(loss)(params, x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # recurrent layers have no batching rule of their own
        stacked = vmap(client, randomness="error")(rows, x, KEYS)
    for row in range(3):
        with Streams(stacked=False).at(KEYS[row].item()):
            alone = torch.autograd.grad(
                loss(dict(layer.named_parameters()), x[row]), layer.parameters()
            )
        for key, found in zip(params, alone, strict=True):
            torch.testing.assert_close(stacked[key][row], found, rtol=1e-11, atol=1e-12)
    with Streams(stacked=False).at(KEYS[0].item()):
        again = layer(x[0]), layer(x[0])
    assert not torch.equal(*again)
    fresh = torch.Generator().manual_seed(torch.default_generator.initial_seed())
    assert torch.equal(torch.default_generator.get_state(), fresh.get_state())  # seeded, not used


def on_a_stream(function, *args):
    with Streams(stacked=False).at(1):
        return function(*args)


@pytest.fixture
def all_kept(monkeypatch):
    monkeypatch.setattr(
        "fedlight.executors._random.layers.below", lambda draw, shape, p, device: torch.ones(shape)
    )


@pytest.mark.parametrize("p", [0.25, 0.3, 1.0])
def test_dropout_keeps_with_its_probability_and_scales(p):
    x = torch.ones(100_000, requires_grad=True)
    y = on_a_stream(functional.dropout, x, p)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(slope, y)
    assert set(y.tolist()) <= {0.0, 1 / (1 - p) if p < 1 else 0.0}
    assert y.count_nonzero().item() == pytest.approx((1 - p) * 100_000, rel=0.02)


@pytest.mark.parametrize("layer", [nn.Dropout(0.0), nn.Dropout(0.5).eval(), nn.RReLU().eval()])
def test_what_does_not_drop_draws_nothing(layer):
    x, before = torch.randn(9), torch.default_generator.get_state()
    assert torch.equal(on_a_stream(layer, x), layer(x))
    assert torch.equal(torch.default_generator.get_state(), before)


def test_torch_still_checks_the_probability():
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        on_a_stream(functional.dropout, torch.ones(3), 1.5)


@pytest.mark.parametrize("layer", [nn.Dropout2d(0.5), nn.FeatureAlphaDropout(0.5)])
def test_whole_channels_are_dropped(layer):
    y = on_a_stream(layer, torch.ones(6, 7, 3, 2)).flatten(2)
    assert torch.equal(y, y[..., :1].expand_as(y))
    assert 10 < (y[..., 0] == y.max()).sum() < 32


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_alpha_dropout_keeps_mean_and_variance(p):
    x = torch.randn(200_000)
    y = on_a_stream(functional.alpha_dropout, x, p, True)
    assert abs(y.mean()) < 0.02
    assert y.var().item() == pytest.approx(1, abs=0.03)
    assert not on_a_stream(functional.alpha_dropout, x, 1.0, True).any()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.2},
        {"attn_mask": MASK},
        {"attn_mask": MASK.double() * 3},
        {"enable_gqa": True},
    ],
    ids=str,
)
def test_attention_is_that_of_torch_but_for_what_is_dropped(options, all_kept):
    query, key, value = torch.randn(3, 2, 4, 5, 8)
    if "enable_gqa" in options:
        key, value = key[:, :2], value[:, :2]
    attend = functional.scaled_dot_product_attention
    expected = attend(query, key, value, **options)
    torch.testing.assert_close(
        on_a_stream(lambda: attend(query, key, value, dropout_p=0.3, **options)), expected / 0.7
    )
    assert torch.equal(on_a_stream(lambda: attend(query, key, value, **options)), expected)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_recurrent_layers_are_those_of_torch_but_for_what_is_dropped(kind, both, bias, all_kept):
    layer = kind(8, 3, num_layers=3, dropout=0.4, bidirectional=both, bias=bias)
    x = torch.randn(6, 2, 8)
    packed = nn.utils.rnn.pack_padded_sequence(x, [6, 4])
    found, last = on_a_stream(layer, x)
    found_packed, last_packed = on_a_stream(layer, packed)
    with torch.no_grad():  # scaled by 1 / (1 - p) on the way into each layer but the first
        for name, param in layer.named_parameters():
            if name.startswith("weight_ih") and "_l0" not in name:
                param.div_(0.6)
    expected, last_expected = layer.eval()(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(last, last_expected)
    expected, last_expected = layer(packed)
    torch.testing.assert_close(found_packed.data, expected.data)
    torch.testing.assert_close(last_packed, last_expected)
