"""The table of operators, measured here, and runs whose bits company does not change."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from fedlight.executors import VectorizedExecutor
from fedlight.executors._choice.choose_executor import resolve_executor
from fedlight.executors._stack.independence import (
    INDEPENDENT,
    MOVING,
    WITH_GAPS,
    Operators,
    one_client,
)
from fedlight.executors._stack.steady_functions import SteadyFunctions
from fedlight.executors.base import Job
from fedlight.local_optimizers import LocalSGD, client_norms
from fedlight.types import Task
from tests import company
from tests.boring import Boring, classes, workplace

ROOT = Path(__file__).parents[3]

CLIENTS = 19
PARTS = [slice(0, n) for n in (2, 3, 7)] + [slice(n, None) for n in (1, 5, 17)]
SHAPES = ((1, 6), (7, 38), (30, 16))

T = torch.tensor


def labels(x: Tensor, count: int) -> Tensor:
    """Whole numbers below `count`, one for each row."""
    return (x.detach()[:, 0].abs() * 7).long() % count


def image(x: Tensor) -> Tensor:
    return x[:, :6].reshape(len(x), 1, 2, 3)


# By kind: functions of one client's batch [b, h] of numbers between 0.05 and 0.95. The operators
# that they and their gradients run have to cover the table.
SAMPLES: dict[str, list[Callable[[Tensor], Tensor]]] = {
    "arithmetic": [
        lambda x: (x - 0.5).abs() + x.frac() + x.trunc() + x.round() + x.floor() + x.ceil(),
        lambda x: torch.addcdiv(x, x, x + 1) + torch.addcmul(x, x, x, value=0.3),
        lambda x: x.clamp(0.2, 0.7) + x.clamp_min(0.3) + x.clamp_max(0.6),
        lambda x: x.fmod(0.3) + x.remainder(0.3) + torch.lerp(x, x * x, 0.3),
        lambda x: torch.maximum(x, 1 - x) + torch.minimum(x, 0.3 * x + 0.2) - (-x),
        lambda x: x.reciprocal() + x.rsqrt() + x.sqrt() + x.square() + (x - 0.5).sign() + x.sgn(),
        lambda x: x**3 + x**0.5 + x**2 + 1 / x + x / 3 + (3 - x),
        lambda x: torch.where((x == 0.5) | (x >= 0.7) | (x > 0.6) & ~(x < 0.1), x, x * x),
        lambda x: torch.where((x <= 0.7) ^ (x != 0.4), x, 1 - x) * x.isfinite() + x.isnan(),
        lambda x: x * x.isinf().logical_not() * x.gt(0.1).logical_or(x.lt(0.4)),
        lambda x: x * x.gt(0.1).logical_and(x.lt(0.4)) + x * x.gt(0.3).logical_xor(x.lt(0.4)),
    ],
    "structure": [
        lambda x: (
            torch.cat([x, x * 2]).flip(0).roll(1, 0).repeat(1, 2) + torch.arange(2.0)[:, None].sum()
        ),
        lambda x: torch.stack([x, x.clone()]).sort(-1).values + x.topk(2, -1).values.sum(),
        lambda x: x.gather(1, torch.arange(x.shape[1] - 1, -1, -1).expand(len(x), -1)),
        lambda x: x[:, torch.arange(3)] + x[:, 0:1] + x.masked_fill(x > 0.5, 0.1)[:, :3],
        lambda x: (
            torch.zeros_like(x).scatter(1, labels(x, 3)[:, None], x[:, :1]) + x.tril() + x.triu()
        ),
        lambda x: (
            torch.zeros_like(x).scatter_add(1, labels(x, 3)[:, None], x[:, :1]) + torch.ones_like(x)
        ),
        lambda x: (
            x.index_add(1, T([0, 1]), x[:, :2]) + x.index_select(1, T([1])) + torch.full_like(x, 2)
        ),
        lambda x: x.new_zeros(2).sum() + x.new_ones(2).sum() + x.new_full((2,), 3).sum() + x,
        lambda x: x.index_put((T([0]),), x[0] * 2) + torch.empty_like(x).fill_(1).zero_(),
        lambda x: x.select_scatter(x[:, 1] * 2, 1, 0) + x.slice_scatter(x[:, :2] * 3, 1, 1, 3),
        lambda x: (
            F.pad(x, (1, 1))[:, 1:-1] + torch.zeros(()) + torch.ones(()) + torch.full((), 2.0)
        ),
        lambda x: torch.eye(2).sum() * x + torch.linspace(0, 1, x.shape[1], dtype=x.dtype),
        lambda x: x.diag_embed().sum(-1) + torch.unsafe_split(x, x.shape[1] - 1, 1)[0].sum(),
        lambda x: F.channel_shuffle(x[:, :4, None, None], 2).flatten(1),
        lambda x: F.pixel_unshuffle(F.pixel_shuffle(x[:, :4, None, None], 2), 2).flatten(1),
        lambda x: sum(x.unbind(1)) + x.diagonal().sum() + x.new_empty(2).fill_(0).sum(),
    ],
    "functions": [
        *(torch.acos, torch.asin, torch.asinh, torch.atan, torch.cos, torch.sin, torch.tan),
        *(torch.erf, torch.erfc, torch.erfinv, torch.exp, torch.expm1, torch.log, torch.log10),
        *(torch.log1p, torch.log2, torch.tanh, torch.lgamma, torch.digamma, torch.sinc),
        lambda x: torch.acosh(1 + x),
        lambda x: torch.xlogy(x, x + 1) + torch.logit(x),
    ],
    "activations": [
        *(F.hardshrink, F.hardsigmoid, F.hardswish, F.hardtanh, F.leaky_relu, F.logsigmoid),
        *(
            F.relu,
            F.relu6,
            F.softshrink,
            F.softsign,
            F.tanhshrink,
            lambda x: F.threshold(x, 0.4, 0),
        ),
        F.glu,
        lambda x: F.prelu(x - 0.5, x[0, :1]) + F.prelu(x - 0.5, x[0]),
    ],
    "reductions": [
        *(lambda x, f=f: x * f(x, -1, keepdim=True) for f in (torch.mean, torch.sum, torch.var)),
        *(lambda x, f=f: x * f(x, 0) for f in (torch.mean, torch.sum, torch.logsumexp)),
        *(lambda x, f=f: x * f(x, -1, True) for f in (torch.amax, torch.amin, torch.logsumexp)),
        lambda x: (
            x / x.norm(dim=-1, keepdim=True) + x / torch.linalg.vector_norm(x, dim=1)[:, None]
        ),
        lambda x: x * x.std(-1, keepdim=True) * x.std() * x.max(-1).values[:, None] * x.min(),
        lambda x: x.cumsum(-1) + x.cumprod(-1) + x.logcumsumexp(-1) + x.prod(-1, keepdim=True),
        lambda x: torch.var_mean(x, 1)[0][:, None] * x + x.argmax(-1)[:, None] + x.argmin(0),
        lambda x: x * (x > 0.1).all(-1)[:, None] * (x > 0.1).any(0),
        *(lambda x, d=d: x.softmax(d) + x.log_softmax(d) for d in (0, 1)),
    ],
    "layers": [
        lambda x: x @ x.mT + torch.einsum("bi,bj->bi", x, x).sum(),
        lambda x: torch.baddbmm(x[None], x[None], (x.mT @ x)[None])[0],
        lambda x: F.layer_norm(x, x.shape[1:], x[0], x[0]),
        lambda x: (
            F.group_norm(x[:, :6].view(len(x), 6, 1), 2)[..., 0] + F.rms_norm(x, x.shape[1:])[:, :6]
        ),
        lambda x: F.embedding(labels(x, 3) % len(x), x),
        lambda x: F.max_pool2d(image(x), (1, 2)) + F.avg_pool2d(image(x), (1, 2)),
        lambda x: F.adaptive_avg_pool2d(image(x), (2, 2)),
        lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    ],
    "losses": [
        lambda x: F.cross_entropy(x, labels(x, 5)) + F.nll_loss(x, labels(x, 3), reduction="sum"),
        lambda x: F.cross_entropy(x, labels(x, 5), label_smoothing=0.1),
        lambda x: F.cross_entropy(
            x[:, :4].view(1, -1, 2, 2), torch.zeros(1, 2, 2, dtype=torch.int64)
        ),
        lambda x: F.binary_cross_entropy(x, x.detach() * 0.5) + F.l1_loss(x, x.detach() * 0.3),
        lambda x: F.binary_cross_entropy_with_logits(x, x.detach() * 0.5),
        lambda x: F.mse_loss(x, x.detach() * 0.3) + F.huber_loss(x, x.detach() * 0.3),
        lambda x: (
            F.smooth_l1_loss(x, x.detach() * 0.3) + F.kl_div(x, x.detach(), reduction="batchmean")
        ),
    ],
    "with gaps": [
        *(torch.sigmoid, F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, F.elu, F.selu),
        *(F.celu, F.softplus, F.mish, torch.exp2, torch.sinh, torch.cosh, torch.atanh),
        *(lambda x: x**2.5, lambda x: x**x, lambda x: 2**x, lambda x: x**-2, lambda x: x**-0.5),
        lambda x: torch.atan2(x, 1 - x) + torch.logaddexp(x, x * x) + torch.hypot(x, 1 - x),
    ],
    "steady": [
        lambda x: x if len(x) == 1 else F.batch_norm(x, None, None, x[0], x[0], training=True),
        lambda x: F.batch_norm(x, x[0].detach(), x[0].detach(), x[0], x[0]),
        lambda x: F.instance_norm(x[:, :6].view(len(x), 2, 3)),
        lambda x: F.linear(x, torch.ones(3, x.shape[1], dtype=x.dtype) / 3),
    ],
}
_SEEN: set[str] = set()


def outcome(function):
    """Values and gradients of a function, for each client of a stack."""

    def one(x, weight):
        def total(x):
            y = function(x)
            return (y * weight.flatten()[: y.shape[-1]] if y.dim() else y).sum()

        with SteadyFunctions():
            return grad(total)(x), function(x)

    return vmap(one)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", SAMPLES)
def test_a_client_has_the_same_bits_in_any_company(kind, dtype):
    torch.set_default_dtype(dtype)
    try:
        for number, function in enumerate(SAMPLES[kind]):
            for batch, width in SHAPES:
                numbers = torch.Generator().manual_seed(number)
                x = torch.rand(CLIENTS, batch, width, generator=numbers) * 0.9 + 0.05
                weight = torch.randn(CLIENTS, 200, generator=numbers)
                run = outcome(function)
                with Operators() as operators:
                    run(x[:2].clone(), weight[:2].clone())
                _SEEN.update(operators.seen)
                assert not operators.dependent, (kind, number)
                whole = tree_leaves(run(x, weight))
                for part in PARTS:
                    found = tree_leaves(run(x[part].clone(), weight[part].clone()))
                    pairs = zip(found, whole, strict=True)
                    assert all(torch.equal(a, b[part]) for a, b in pairs), (kind, number, part)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "function",
    WHOLE := [
        lambda x: x.square(),
        lambda x: x * x.isfinite(),
        lambda x: torch.baddbmm(x, x, x.mT @ x),
        lambda x: client_norms([x, x[:, 0], x[:, :, 0]] * 3),
        lambda x: torch.linalg.vector_norm(x.flatten(1), dim=1),
    ],
    ids=[str(number) for number in range(len(WHOLE))],
)
def test_what_is_computed_on_a_whole_stack_is_independent(function):
    for batch, width in SHAPES:
        x = torch.rand(CLIENTS, batch, width, generator=torch.Generator().manual_seed(0))
        with Operators() as operators:
            function(x[:2])
        _SEEN.update(operators.seen)
        assert not operators.dependent
        whole = function(x)
        for part in [*PARTS, slice(0, 1), slice(CLIENTS - 1, None)]:
            assert torch.equal(function(x[part].clone()), whole[part])


def test_all_operators_of_the_table_are_measured():
    if len(_SEEN) < 100:
        pytest.skip("the tests above, which collect what they measure, have not run here")
    assert set() == (INDEPENDENT | WITH_GAPS) - MOVING - _SEEN


def found(function):
    with Operators() as operators:
        function()
    return list(operators.dependent)


def test_what_is_not_in_the_table_is_named():
    x = torch.rand(2, 3, 4)
    assert found(lambda: F.conv1d(x, torch.ones(1, 3, 2))) == ["convolution"]
    assert found(lambda: x[0] @ x[1].t()) == ["mm"]
    assert found(lambda: F.gelu(x)) == ["gelu"]
    assert found(lambda: torch.hypot(x, x)) == ["hypot"]
    assert found(lambda: x.add_(1).to(torch.bfloat16)) == ["numbers of torch.bfloat16"]
    assert found(lambda: x.sum(0)) == ["sum along the clients"]
    assert found(lambda: x.permute(1, 0, 2).contiguous().permute(1, 0, 2).sum(1)) == [
        "sum along the clients"
    ]
    repeated = x[:, :1].clone().expand(2, 3, 4)
    assert found(lambda: repeated.sum(1)) == ["sum along the clients"]
    assert found(lambda: x[:, :1].expand(2, 3, 4).sum(1)) == []  # with gaps
    with Operators() as operators, one_client():
        x[0] @ x[1].t()
    assert not operators.dependent


def test_whole_numbers_and_views_are_exact():
    x = torch.arange(12).view(2, 6)
    assert found(lambda: (x.bitwise_xor(3) // 2).mT.unflatten(0, (2, 3)).sum()) == []


class Mixes(LocalSGD):
    """A local optimizer that adds the gradients of all clients."""

    def step(self, run, grads):
        super().step(run, [grad + grad.sum(0) * 0 for grad in grads])


def test_an_executor_is_independent_exactly_if_its_operators_are():
    executor = VectorizedExecutor()
    assert not executor.independent
    executor.setup(workplace(Boring(), classes()))
    assert executor.independent
    executor.setup(workplace(Boring(), classes(), Mixes(lr=0.1)))
    assert executor.dependence == ("sum along the clients",)
    conv = nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(6, 3))
    executor.setup(workplace(Boring(conv), classes()))
    assert "convolution" in executor.dependence
    assert not executor.independent


class Later(Boring):
    """Uses a convolution from its second step on."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if batch_idx > 0:
            x, weight = batch[0][:, None], next(self.parameters())
            loss = loss + F.conv1d(x, weight[:1, None, :2]).mean()
        return loss


def test_an_operator_of_a_later_step_is_found_when_it_is_used():
    executor = VectorizedExecutor()
    work = workplace(Later(), classes())
    executor.setup(work)
    assert executor.independent
    jobs = [Job(Task(0, 0, 0.0, 1.0, n, 0, n), work.state.read()) for n in (1, 2)]
    executor.run(jobs[:1])
    assert executor.independent
    with pytest.warns(UserWarning, match="because of convolution"):
        executor.run(jobs)
    assert "convolution" in executor.dependence


def test_the_line_about_the_executor_names_what_stands_in_the_way():
    conv = nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(6, 3))
    choice = resolve_executor("vectorized", workplace(Boring(conv), classes()))
    assert "last bits depend on who is stacked together, because of convolution" in choice.reason
    assert "bits" not in resolve_executor("vectorized", workplace(Boring(), classes())).reason


def chosen(number, seed):
    return random.Random(seed).sample(company.cases(), number)


@pytest.mark.filterwarnings("ignore:.*eval mode:UserWarning")
@pytest.mark.parametrize("case", chosen(4, seed=4), ids=str)
def test_company_changes_no_bit_of_a_run(case):
    assert len(set(company.fingerprints(case, (1, 3, 256)))) == 1


SHIM = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"


@pytest.fixture(scope="module")
def as_intel(tmp_path_factory) -> str:
    """A library for which MKL takes every processor for one of Intel's."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler, cc, on Linux")
    folder = tmp_path_factory.mktemp("intel")
    (folder / "intel.c").write_text(SHIM)
    command = [compiler, "-shared", "-fPIC", "-o", "intel.so", "intel.c"]
    subprocess.run(command, cwd=folder, check=True)
    return str(folder / "intel.so")


ONE_CASE = ["--cases", "1", "--seed", "3", "--max-batch", "3", "256"]

WITH_AVX2 = f"""
import os, sys
os.environ["ATEN_CPU_CAPABILITY"] = "avx2"  # read when torch first computes
sys.path.insert(0, {str(ROOT)!r})
from tests import company
sys.exit(company.main())
"""


def test_other_instructions_keep_the_promise_too(scripts):
    _, out, err = scripts.run(WITH_AVX2, *ONE_CASE)
    assert out.startswith("0 of 1 cases"), out + err
    assert "AVX512" not in out


def test_another_path_of_mkl_keeps_it_as_well(as_intel):
    result = subprocess.run(
        [sys.executable, "-m", "tests.company", *ONE_CASE],
        env={**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": as_intel},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.startswith("0 of 1 cases"), result.stdout + result.stderr


def test_two_threads_give_the_bits_of_one():
    case = company.Case("layer-norm", 64, 10, 33, "momentum", "64-true")
    one = company.fingerprint(case, VectorizedExecutor())
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert company.fingerprint(case, VectorizedExecutor(max_batch=3)) == one
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


class SelfAttention(nn.Module):
    """Self-attention whose products torch computes one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.out = nn.Linear(20, 40), nn.Linear(20, 40), nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.q(x)[None, None], self.k(x)[None, None]
        return self.out(F.scaled_dot_product_attention(q, k, k)[0, 0])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_two_threads_give_the_bits_of_one_in_products_that_torch_does_not_batch(monkeypatch):
    monkeypatch.setitem(company.MODULES, "sdpa", lambda inputs, classes: SelfAttention())
    case = company.Case("sdpa", 20, 3, 64, "sgd", "64-true")
    one = company.fingerprint(case, VectorizedExecutor())
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert company.fingerprint(case, VectorizedExecutor(max_batch=3)) == one
    finally:
        torch.set_num_threads(threads)


def test_threads_share_out_whole_matrices_only():
    x = torch.rand(2, 8, 8)

    def one_thread(function):
        with Operators() as operators:
            function()
        return operators.one_thread

    assert not one_thread(lambda: x @ x.mT)
    assert one_thread(lambda: x[:, ::2, ::2] @ x[:, :4, :4])  # torch multiplies these singly
    assert one_thread(lambda: x[:1] @ x[:1].mT)
    assert one_thread(lambda: F.scaled_dot_product_attention(x, x, x))
    assert one_thread(lambda: x[0] @ x[1])
