"""The small GPT: its arithmetic, its initial weights, and its bits in a stack."""

import math
from copy import deepcopy

import pytest
import torch
from lightning import Trainer
from torch.nn import functional
from torch.utils.data import DataLoader

from fedlight import check_independence
from fedlight.arrivals import UniformArrivals, UniformSteps
from fedlight.callbacks import ClientEvaluation
from fedlight.data import text_data
from fedlight.executors import VectorizedExecutor
from fedlight.local_optimizers import LocalAdam, LocalSGD
from fedlight.models import LanguageModel, TinyGPT
from tests.boring import fitted

SMALL = {"vocab_size": 128, "context": 6, "num_layers": 2, "num_heads": 2, "width": 8}
TEXTS = {"a": "one two three four five six " * 3, "b": "vier drei zwei " * 4, "c": "0123456789" * 6}


def gpt(seed=1, **kwargs):
    torch.manual_seed(seed)
    return TinyGPT(**{**SMALL, **kwargs})


def data():
    return text_data(TEXTS, context=6, batch_size=2, val_share=0.2, eval_batch_size=3)


def tokens(*shape):
    return torch.randint(128, shape, generator=torch.Generator().manual_seed(0))


class Sure(LanguageModel):
    """Scores 2 for the token 1, and 0 for two others."""

    def __init__(self):
        super().__init__(lr=0.1)
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.scale * functional.one_hot(torch.ones_like(x), 3).to(self.scale.dtype)


def test_the_losses_are_worked_by_hand():
    module, logged = Sure(), {}
    module.log = lambda name, value, **_: logged.update({name: value})
    right = math.log(math.e**2 + 2) - 2  # -log p of token 1; of another one it is 2 more
    x = torch.zeros(2, 2, dtype=torch.int64)
    loss = module.training_step((x, torch.tensor([[1, 1], [0, 2]])), 0)
    assert loss.item() == pytest.approx(right + 1)
    assert logged["train_loss"] is loss
    # A perplexity over two batches of unequal size: of 6 tokens, 3 are 1.
    module.validation_step((x, torch.tensor([[1, 1], [0, 2]])), 0)
    module.validation_step((x[:1], torch.tensor([[1, 0]])), 1)
    assert logged["val_perplexity"] is module.val_perplexity
    assert module.val_perplexity.compute().item() == pytest.approx(math.exp(right + 1))
    module.test_step((x[:1], torch.tensor([[1, 1]])), 0)
    assert module.test_perplexity.compute().item() == pytest.approx(math.exp(right))


def test_a_perplexity_beyond_float32_of_the_probability_is_finite():
    module = Sure()
    module.log = lambda *_, **__: None
    with torch.no_grad():
        module.scale.fill_(80.0)
    # Without the logarithm, a probability of e^-120 would be 0 in float32; e^80 can be shown.
    module.validation_step((torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1).long()), 0)
    assert module.val_perplexity.compute().item() == pytest.approx(math.exp(80.0), rel=1e-4)


def test_sizes_are_those_of_the_table():
    for width, layers, context, size in (
        (64, 2, 64, 120_576),
        (64, 4, 64, 220_544),
        (128, 4, 128, 842_496),
    ):
        module = TinyGPT(width=width, num_layers=layers, context=context)
        assert sum(p.numel() for p in module.parameters()) == size
        assert size == width * (256 + context + 2) + layers * (12 * width**2 + 13 * width)


def test_a_score_depends_on_what_came_before_and_on_where():
    module, x = gpt().double(), tokens(1, 6)
    scores = module(x)
    for place in range(6):
        other = x.clone()
        other[0, place] = (other[0, place] + 1) % 128
        moved = (module(other) - scores).abs().amax(-1)[0]
        assert (moved[:place] == 0).all()
        assert (moved[place:] > 1e-6).all()
    same = module(torch.full((1, 6), 5))[0]
    assert (same[1:] - same[:-1]).abs().max() > 1e-6
    # A part of the context gives what the whole gives.
    torch.testing.assert_close(module(x[:, :3]), scores[:, :3], rtol=1e-12, atol=1e-14)


def test_attention_is_that_of_torch():
    module = gpt().double()
    layer = module.layers[0]
    h = torch.randn(3, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    hidden = torch.full((6, 6), -math.inf, dtype=torch.float64).triu(1)
    q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in layer.qkv(h).chunk(3, dim=-1))
    wanted = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(
        layer._attention(h, hidden), wanted.transpose(1, 2).flatten(2), rtol=1e-12, atol=1e-14
    )


def test_initial_weights():
    module = gpt(width=64, num_layers=8, context=64, num_heads=4)
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1:
            small = name.endswith(("joined.weight", "down.weight"))
            assert parameter.std().item() == pytest.approx(0.02 / (4 if small else 1), rel=0.05)
        else:
            assert (parameter == (0 if name.endswith("bias") else 1)).all()
    x = tokens(4, 64)
    loss = functional.cross_entropy(module(x).flatten(0, 1), x.roll(1).flatten())
    assert loss.item() == pytest.approx(math.log(128), rel=0.02)
    again = gpt(width=64, num_layers=8, context=64, num_heads=4)
    assert all(map(torch.equal, module.parameters(), again.parameters()))


def test_embedding_and_output_are_one_matrix():
    module, x = gpt(), tokens(1, 6)
    before = module(x)
    unseen = next(token for token in range(128) if token not in x)
    with torch.no_grad():
        module.embedding.weight[unseen] *= 3
    after = module(x)
    torch.testing.assert_close(after[..., unseen], 3 * before[..., unseen])
    assert torch.equal(after[..., :unseen], before[..., :unseen])


@pytest.mark.parametrize("optimizer", [LocalSGD(lr=0.1, momentum=0.9), LocalAdam(lr=0.01)])
def test_a_stack_gives_the_weights_of_one_after_another(optimizer):
    given = {
        "arrivals": UniformArrivals(3, max_staleness=2, local_steps=UniformSteps(1, 4)),
        "local_optimizer": optimizer,
        "precision": "64-true",
        "max_rounds": 6,
    }
    one, many = (
        fitted(gpt(), data(), executor=executor, **given)
        for executor in ("sequential", "vectorized")
    )
    torch.testing.assert_close(many.state.params, one.state.params, rtol=1e-10, atol=1e-12)
    for name in ("train_loss", "val_loss", "val_perplexity"):
        assert many.history[-1].metrics[name] == pytest.approx(one.history[-1].metrics[name])
    last = many.history[-1].metrics
    assert last["val_perplexity"] == pytest.approx(math.exp(last["val_loss"]), rel=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_stack_changes_no_bit(dropout):
    module = gpt(dropout=dropout)
    answer = check_independence(module, data(), LocalAdam(lr=0.01))
    assert answer, answer
    assert answer.executor == "VectorizedExecutor(max_batch=256)"  # what "auto" has chosen
    prints = {
        fitted(
            deepcopy(module),
            data(),
            executor=VectorizedExecutor(max_batch),
            arrivals=UniformArrivals(3, max_staleness=2, local_steps=2),
            local_optimizer=LocalAdam(lr=0.01),
            max_rounds=3,
        ).fingerprint()
        for max_batch in (1, 2, 3)
    }
    assert len(prints) == 1


def test_lightning_trains_it(tmp_path):
    module, own = gpt(lr=0.01), data()
    own.setup()
    trainer = Trainer(
        max_epochs=15,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, DataLoader(own.train_data, 4), own.val_dataloader())
    found = trainer.callback_metrics
    assert found["train_loss"] < 3 < math.log(128)
    assert found["val_perplexity"].item() == pytest.approx(found["val_loss"].exp().item())
    (tested,) = trainer.test(module, own.val_dataloader(), verbose=False)
    assert tested["test_perplexity"] == pytest.approx(found["val_perplexity"].item())


def test_clients_are_evaluated():
    run = fitted(gpt(), data(), callbacks=ClientEvaluation(), max_rounds=1)
    assert run.history[-1].metrics["clients/val_perplexity_worst_tenth"] > 1


def test_hyperparameters_and_the_optimizer():
    module = gpt(lr=0.25, dropout=0.1)
    assert dict(module.hparams) == {**SMALL, "dropout": 0.1, "lr": 0.25}
    optimizer = module.configure_optimizers()
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.param_groups[0]["lr"] == 0.25


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"vocab_size": 1}, "vocab_size must be at least 2, got 1"),
        ({"context": 0}, "context must be"),
        ({"num_layers": 0}, "num_layers must be"),
        ({"num_heads": 0}, "num_heads must be"),
        ({"num_heads": 3}, r"num_heads must divide width=8, got 3; write one of \[1, 2, 4, 8\]"),
        ({"width": 0}, "width must be"),
        ({"dropout": 1}, "dropout must be at least 0 and below 1, got 1"),
        ({"lr": 0}, "lr must be"),
    ],
)
def test_arguments_out_of_range(given, message):
    with pytest.raises(ValueError, match=message):
        gpt(**given)


def test_too_many_tokens():
    with pytest.raises(ValueError, match=r"7 tokens in a row, .*=6; make TinyGPT\(context=7"):
        gpt()(tokens(1, 7))
