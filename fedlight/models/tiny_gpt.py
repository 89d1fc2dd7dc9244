"""A small GPT: a causal transformer that predicts the next byte."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlight._support.checks import number, positive_int
from fedlight.models.language_model import LanguageModel


class TinyGPT(LanguageModel):
    r"""A decoder-only transformer with normalisation before each part, for texts as bytes.

    With tokens $x_t$, their embedding E `[vocab_size, width]` and learned positions P
    `[context, width]`::

        h = dropout(E[x] + P)
        h = h + attention(norm(h)), h = h + mlp(norm(h))     for each layer
        scores = norm(h) E^T

    Attention is causal, with `num_heads` heads of `width / num_heads` numbers; the MLP has
    4 * `width` hidden units with GELU. Embedding and output share their weights E, so that the
    number of parameters is `width * (vocab_size + context + 2)` and
    `12 * width ** 2 + 13 * width` for each layer:

    | `width` | `num_layers` | `context` | parameters |
    |---|---|---|---|
    | 64 | 2 | 64 | 120,576 |
    | 64 | 4 | 64 | 220,544 |
    | 128 | 4 | 128 | 842,496 |
    | 256 | 6 | 256 | 4,870,144 |
    | 384 | 5 | 256 | 9,069,696 |

    Weights are drawn from a normal distribution of standard deviation 0.02, which is divided by
    sqrt(2 * `num_layers`) for the layers that add to h; biases start at 0. At the start all tokens
    are nearly equally likely, and the loss is about log(`vocab_size`).

    Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section
    2.3, https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf;
    Press and Wolf, "Using the Output Embedding to Improve Language Models", EACL 2017,
    https://arxiv.org/abs/1608.05859, for the shared weights.

    Args:
        vocab_size: Number of tokens; 256 for bytes.
        context: Largest number of tokens that are read.
        num_layers: Number of layers.
        num_heads: Number of heads of each attention; a divisor of `width`.
        width: Size of the vector that represents a token.
        dropout: Probability with which embeddings, attention weights and what is added to h are
            set to 0 in training, at least 0 and below 1.
        lr: Learning rate of the module's own AdamW.

    Raises:
        ValueError: A number is out of range, or `num_heads` does not divide `width`. From
            `forward`: there are more tokens than `context`.

    Example:
        >>> import torch
        >>> module = TinyGPT(context=64, num_layers=2, num_heads=4, width=64)
        >>> module(torch.zeros(5, 64, dtype=torch.int64)).shape
        torch.Size([5, 64, 256])
    """

    def __init__(
        self,
        vocab_size: int = 256,
        context: int = 128,
        num_layers: int = 4,
        num_heads: int = 4,
        width: int = 128,
        dropout: float = 0.0,
        lr: float = 0.001,
    ) -> None:
        """Creates the layers; initial weights follow from torch's seed."""
        super().__init__(lr)
        vocab_size = positive_int("vocab_size", vocab_size)
        context = positive_int("context", context)
        num_layers = positive_int("num_layers", num_layers)
        num_heads = positive_int("num_heads", num_heads)
        width = positive_int("width", width)
        dropout = number("dropout", dropout)
        self.save_hyperparameters()
        if vocab_size < 2:
            raise ValueError(f"vocab_size must be at least 2, got {vocab_size}")
        if width % num_heads:
            raise ValueError(
                f"num_heads must divide width={width}, got {num_heads}; write one of "
                f"{[heads for heads in range(1, width + 1) if width % heads == 0]}"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        self.context = context
        self.embedding = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList([Layer(width, num_heads, dropout) for _ in range(num_layers)])
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if name.endswith(("joined.weight", "down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * num_layers))
            elif parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Scores `[batch, length, vocab_size]` of what follows each token of `[batch, length]`."""
        length = x.shape[-1]
        if length > self.context:
            raise ValueError(
                f"the batch has {length} tokens in a row, and the model reads context="
                f"{self.context}; make TinyGPT(context={length}) or shorter blocks"
            )
        h = self.dropout(self.embedding(x) + self.positions.weight[:length])
        # Added to the scores of attention: masked_fill takes a pass more in the backward pass.
        hidden = torch.full((length, length), -math.inf, dtype=h.dtype, device=h.device).triu(1)
        for layer in self.layers:
            h = layer(h, hidden)
        return functional.linear(self.norm(h), self.embedding.weight)


class Layer(nn.Module):
    """h + attention(norm(h)), then h + mlp(norm(h)).

    Args:
        width: Size of the vector of a token.
        num_heads: Number of heads.
        dropout: Probability of a 0.
    """

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, hidden: Tensor) -> Tensor:
        """The next h, `[batch, length, width]`; `hidden` is -inf for what a token may not see."""
        h = h + self.dropout(self.joined(self._attention(self.attention_norm(h), hidden)))
        units = functional.gelu(self.up(self.mlp_norm(h)))
        after: Tensor = h + self.dropout(self.down(units))
        return after

    def _attention(self, h: Tensor, hidden: Tensor) -> Tensor:
        # Written out, because scaled_dot_product_attention has no rule for torch.func.vmap on the
        # CPU: the clients of a stack would be computed one after another there.
        batch, length, width = h.shape
        heads = self.qkv(h).view(batch, length, 3, self.num_heads, width // self.num_heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)  # [batch, heads, length, width / heads]
        q = q / math.sqrt(width // self.num_heads)
        weights = self.dropout(torch.softmax(q @ k.mT + hidden, dim=-1))
        joined: Tensor = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return joined
