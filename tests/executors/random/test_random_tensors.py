"""Torch's random functions on a stream: tensors as torch's, numbers of the client's own."""

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional

from fedlight.executors._random.streams import Streams
from fedlight.executors._random.tensors import FUNCTIONS

KEYS = torch.tensor([5, -7, 123456789])

MAKE = {
    "rand": lambda x: torch.rand(3, 2),
    "rand size": lambda x: torch.rand(size=(3,), dtype=torch.float64),
    "rand list": lambda x: torch.rand([2, 2]),
    "rand_like": lambda x: torch.rand_like(x),
    "randn": lambda x: torch.randn((4,)),
    "randn_like": lambda x: torch.randn_like(x, dtype=torch.float64),
    "randint": lambda x: torch.randint(900, (3,)),
    "randint low": lambda x: torch.randint(-5, 900, size=(2, 2)),
    "randint named": lambda x: torch.randint(-5, high=900, size=(2,), dtype=torch.int32),
    "randint_like": lambda x: torch.randint_like(x, 2, 900),
    "randperm": lambda x: torch.randperm(9),
    "normal": lambda x: torch.normal(x, 2.0),
    "normal std": lambda x: torch.normal(1.0, x),
    "normal both": lambda x: torch.normal(x[0], x),
    "normal size": lambda x: torch.normal(1.0, 2.0, (3,)),
    "bernoulli": lambda x: torch.bernoulli(x),
    "bernoulli p": lambda x: torch.bernoulli(x, 0.3),
    "multinomial": lambda x: torch.multinomial(x, 4),
    "multinomial again": lambda x: torch.multinomial(x, 9, replacement=True),
    "x.bernoulli": lambda x: x.bernoulli(),
    "x.multinomial": lambda x: x.flatten().multinomial(9),
    "uniform_": lambda x: x.clone().uniform_(-2, 5),
    "normal_": lambda x: x.clone().normal_(1, std=2),
    "log_normal_": lambda x: x.clone().log_normal_(),
    "exponential_": lambda x: x.clone().exponential_(3.0),
    "cauchy_": lambda x: x.clone().cauchy_(),
    "geometric_": lambda x: x.clone().geometric_(0.03),
    "bernoulli_": lambda x: x.clone().bernoulli_(0.3),
    "bernoulli_ tensor": lambda x: torch.empty_like(x).bernoulli_(x),
    "random_": lambda x: torch.empty_like(x).random_(),
    "random_ to": lambda x: torch.zeros_like(x, dtype=torch.int64).random_(900),
    "random_ from": lambda x: torch.zeros_like(x, dtype=torch.int64).random_(50, 900),
    "empty": lambda x: torch.empty(4).normal_(),
    "normal distribution": lambda x: torch.distributions.Normal(x, 1.0).sample(),
    "reparametrised": lambda x: torch.distributions.Normal(x, x, validate_args=False).rsample(),
    "categorical": lambda x: torch.distributions.Categorical(x, validate_args=False).sample(),
}


def given():
    return torch.rand(4, 5, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1


@pytest.mark.parametrize("name", MAKE)
def test_as_torch_does_it_with_numbers_of_the_clients_own(name):
    function, x = MAKE[name], given()
    stream = Streams(stacked=True)

    def client(key, x):
        with stream.at(key):
            return function(x), function(x)

    first, second = vmap(client, randomness="error")(KEYS, x.expand(3, 4, 5))
    like = function(x)
    for row in range(3):
        with Streams(stacked=False).at(KEYS[row].item()):
            one, two = function(x), function(x)
        assert (one.shape, one.dtype, one.requires_grad) == (like.shape, like.dtype, False)
        torch.testing.assert_close(first[row], one, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(second[row], two, rtol=1e-6, atol=1e-7)
    assert len({tuple(row.flatten().tolist()) for row in (*first, *second)}) == 6


MEANS = [
    (lambda: torch.empty(200_000).uniform_(-2, 5), 1.5),
    (lambda: torch.empty(200_000).normal_(3, 2), 3.0),
    (lambda: torch.empty(200_000).exponential_(4), 0.25),
    (lambda: torch.empty(200_000).geometric_(0.25), 4.0),
    (lambda: torch.empty(200_000).bernoulli_(0.3), 0.3),
    (lambda: torch.empty(200_000).log_normal_(0, 0.5), 1.1331),
    (lambda: torch.randint(3, 8, (200_000,)).double(), 5.0),
    (lambda: torch.normal(torch.full((200_000,), 2.0), 3.0), 2.0),
    (lambda: torch.randperm(1001).double(), 500.0),
    (lambda: torch.multinomial(torch.tensor([[1.0, 2, 1]] * 50_000), 1).double(), 1.0),
    (lambda: torch.multinomial(torch.tensor([1.0, 0, 3]), 100_000, True).double(), 1.5),
    # the first two of three, without the one that is left: (0, 1), (0, 2) or (1, 2)
    (lambda: torch.multinomial(torch.ones(50_000, 3), 2).double(), 1.0),
]


@pytest.mark.parametrize("number", range(len(MEANS)))
def test_means(number):
    make, mean = MEANS[number]
    with Streams(stacked=False).at(1):
        values = make()
    assert values.mean().item() == pytest.approx(mean, rel=0.02)


def test_a_number_does_not_depend_on_the_precision_beyond_rounding():
    def normals(dtype):
        with Streams(stacked=False).at(1):
            return torch.randn(100, dtype=dtype)

    torch.testing.assert_close(normals(torch.float32).double(), normals(torch.float64))


def test_what_is_drawn_has_no_gradient_and_what_it_multiplies_does():
    x = given().requires_grad_()
    with Streams(stacked=False).at(1):
        y = x * torch.rand_like(x) + torch.normal(x, 1.0) + torch.empty_like(x).exponential_()
    (slope,) = torch.autograd.grad(y.sum(), x)
    with Streams(stacked=False).at(1):
        assert torch.equal(slope, torch.rand_like(x))


def test_an_argument_that_is_not_covered_is_torchs_alone_and_refused_in_a_stack():
    generator = torch.Generator()
    calls = [
        lambda: torch.rand(3, generator=generator.manual_seed(1)),
        lambda: torch.rand(3, out=torch.empty(3)),
        lambda: torch.randn(3, dtype=torch.complex64),
        lambda: torch.zeros(3).normal_(generator=generator.manual_seed(1)),
    ]
    for call in calls:
        torch.manual_seed(0)
        expected = call()
        torch.manual_seed(0)
        with Streams(stacked=False).at(5):
            assert torch.equal(call(), expected)
        with (
            Streams(stacked=True).at(5),
            pytest.raises(RuntimeError, match=r"draws random numbers .*, which stacked clients"),
        ):
            call()


def test_all_that_is_covered_is_known_by_name():
    assert {torch.rand, torch.randn, torch.Tensor.normal_, functional.dropout} <= FUNCTIONS.keys()
    assert nn.Dropout not in FUNCTIONS  # it calls a function
