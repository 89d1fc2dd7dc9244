"""What each channel sends: numbers worked out by hand, means over many keys, and rows alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedlight.channel import (
    QSGD,
    Chain,
    Channel,
    Clip,
    ErrorFeedback,
    RandomK,
    Senders,
    TopK,
    as_channel,
)
from fedlight.types import Task

MANY = 5_000


def tasks(n: int, client: int = 0, visit: int = 0) -> list[Task]:
    """Tasks of n clients, or n visits of them."""
    return [Task(client + i, 0, 0.0, 1.0, 1, i, visit) for i in range(n)]


def senders(n: int, seed: int = 0, **of: int) -> Senders:
    return Senders(tasks(n, **of), seed)


def rows(*numbers: list[float]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_clip_by_hand() -> None:
    sent = Clip(5.0).send(rows([6.0, 8.0], [3.0, 4.0], [0.0, 0.0]), senders(3))
    assert sent.tolist() == [[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]]


def test_top_k_by_hand() -> None:
    updates = rows([1.0, -4.0, 2.0, 3.0], [2.0, -2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0])
    assert TopK(0.5).send(updates, senders(3)).tolist() == [
        [0.0, -4.0, 0.0, 3.0],
        [2.0, -2.0, 0.0, 0.0],  # of equal ones the first
        [0.0, 0.0, 0.0, 0.0],
    ]


def test_random_k_sends_k_numbers_times_p_over_k() -> None:
    update = rows([1.0, 2.0, 3.0, 4.0, 5.0])
    sent = RandomK(0.4).send(update, senders(1))
    assert int((sent != 0).sum()) == 2
    assert set((sent / update).unique().tolist()) == {0.0, 2.5}


def test_qsgd_rounds_to_the_levels_beside() -> None:
    update = rows([3.0, -4.0, 0.0, 12.0])  # norm 13, s = 3
    sent = QSGD(3).send(update.expand(MANY, -1), senders(MANY)) * 3 / 13
    assert sent.round().sub(sent).abs().max() < 1e-12
    levels = [sorted(column.round().unique().tolist()) for column in sent.unbind(1)]
    assert levels == [[0, 1], [-1, 0], [0], [2, 3]]


UPDATE = rows([0.3, -1.2, 0.05, 2.0, -0.7, 0.0, 0.9])


@pytest.mark.parametrize(
    ("channel", "variance", "equal"),
    [  # as factors of the squared norm: d = 7, s = 3 and 127
        (RandomK(3 / 7), 7 / 3 - 1, True),
        (RandomK(3 / 7, scaled=False), 1 - 3 / 7, True),
        (QSGD(3), 7 / 9, False),
        (QSGD(8), 7 / 127**2, False),
        (Chain([RandomK(3 / 7), QSGD(8)]), 7 / 3 - 1 + 0.01, False),
    ],
)
def test_mean_and_variance_over_many_keys(channel: Channel, variance: float, equal: bool) -> None:
    sent = channel.send(UPDATE.expand(MANY, -1), senders(MANY))
    error = ((sent - UPDATE) ** 2).sum(1).mean() / (UPDATE**2).sum()
    spread = sent.std(0) / MANY**0.5 + 1e-12
    expected = UPDATE if not repr(channel).endswith("scaled=False)") else UPDATE * 3 / 7
    assert ((sent.mean(0) - expected).abs() <= 5 * spread).all()
    assert error <= variance * 1.05
    assert not equal or error >= variance * 0.95


def test_visits_and_seeds_have_numbers_of_their_own() -> None:
    updates = UPDATE.repeat(1, 20)
    first = RandomK(0.3).send(updates, senders(1))
    for other in (senders(1, seed=1), senders(1, client=1), senders(1, visit=1)):
        assert not torch.equal(RandomK(0.3).send(updates, other), first)
    assert torch.equal(RandomK(0.3).send(updates, senders(1)), first)


def test_two_channels_in_turn_draw_different_numbers() -> None:
    one, two = senders(1), senders(1)
    both = Chain([RandomK(0.5), RandomK(0.5)]).send(torch.ones(1, 40), one)
    assert int((both != 0).sum()) < 20  # with the same numbers both would take the same half
    assert int((RandomK(0.5).send(torch.ones(1, 40), two) != 0).sum()) == 20


CHANNELS: list[Channel] = [
    Clip(1.5),
    TopK(0.3),
    RandomK(0.3),
    RandomK(0.3, scaled=False),
    QSGD(2),
    QSGD(8),
    QSGD(4, scaled=True),
    Chain([Clip(2.0), TopK(0.5), QSGD(4)]),
    Chain([]),
    ErrorFeedback(TopK(0.2)),
    ErrorFeedback(RandomK(0.2)),
    ErrorFeedback(QSGD(3)),
    ErrorFeedback(TopK(0.2), decay=0.9),
    Chain([Clip(1.0), ErrorFeedback([TopK(0.3), QSGD(8)])]),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("channel", CHANNELS, ids=repr)
def test_a_row_is_sent_alone_as_in_a_stack(channel: Channel, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    updates = torch.randn(7, 5003, generator=draw, dtype=torch.float64).to(dtype)
    memory = torch.randn(7, 5003, generator=draw, dtype=torch.float64).to(dtype)
    before = updates.clone()
    work = tasks(7)
    stack = Senders(work, 3, memory if channel.remembers else None)
    sent = channel.send(updates, stack)
    assert torch.equal(updates, before)
    assert sent.dtype == dtype
    for i in range(7):
        alone = Senders([work[i]], 3, memory[i : i + 1] if channel.remembers else None)
        assert torch.equal(channel.send(updates[i : i + 1], alone)[0], sent[i])
        if channel.remembers:
            assert torch.equal(alone.memory[0], stack.memory[i])
    assert torch.isfinite(sent).all()


floats = st.floats(-100, 100, allow_subnormal=False)


@settings(max_examples=100, deadline=None)
@given(
    updates=arrays(float, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=floats),
    share=st.floats(0.01, 1.0),
)
def test_top_k_keeps_the_largest(updates, share) -> None:
    updates = torch.from_numpy(updates)
    sent = TopK(share).send(updates, senders(len(updates)))
    k = max(1, round(share * updates.shape[1]))
    for row, kept in zip(updates, sent, strict=True):
        left_out = row[kept != row]
        assert len(left_out) <= len(row) - k
        assert ((kept == 0) | (kept == row)).all()
        ordered = row.abs().sort(descending=True, stable=True)
        assert torch.equal(
            kept.nonzero(),
            row.where(torch.isin(torch.arange(len(row)), ordered.indices[:k]), 0).nonzero(),
        )


@settings(max_examples=60, deadline=None)
@given(
    deltas=arrays(float, st.tuples(st.integers(1, 8), st.integers(1, 9)), elements=floats),
    inner=st.sampled_from([TopK(0.3), RandomK(0.3), QSGD(3), Clip(2.0), TopK(1.0)]),
)
def test_what_is_sent_and_the_memory_are_the_sum_of_all_deltas(deltas, inner) -> None:
    deltas, channel = torch.from_numpy(deltas), ErrorFeedback(inner)
    memory, total = torch.zeros(1, deltas.shape[1], dtype=torch.float64), torch.zeros(1)
    for visit, delta in enumerate(deltas):
        sender = Senders(tasks(1, visit=visit), 0, memory)
        total = total + channel.send(delta[None], sender)
        memory = sender.memory
    torch.testing.assert_close((total + memory)[0], deltas.sum(0), rtol=1e-12, atol=1e-10)


def test_decay_by_hand() -> None:
    """Of two numbers the larger one is sent; half of what is left out is added to the next ones."""
    channel, memory = ErrorFeedback(TopK(0.5), decay=0.5), rows([0.0, 0.0])
    for delta, sent, kept in (
        ([4.0, 2.0], [4.0, 0.0], [0.0, 2.0]),
        ([1.0, 2.0], [0.0, 3.0], [1.0, 0.0]),  # of (1, 2 + 1)
        ([0.0, 1.0], [0.0, 1.0], [0.5, 0.0]),  # of (0 + 0.5, 1)
    ):
        sender = Senders(tasks(1), 0, memory)
        assert channel.send(rows(delta), sender).tolist() == [sent]
        memory = sender.memory
        assert memory.tolist() == [kept]


@settings(max_examples=60, deadline=None)
@given(
    deltas=arrays(float, st.tuples(st.integers(1, 8), st.integers(1, 9)), elements=floats),
    inner=st.sampled_from([TopK(0.3), RandomK(0.3), QSGD(3), Clip(2.0)]),
    decay=st.floats(0, 1),
)
def test_the_memory_is_a_decaying_sum_of_what_was_left_out(deltas, inner, decay) -> None:
    deltas, channel = torch.from_numpy(deltas), ErrorFeedback(inner, decay)
    memory = torch.zeros(1, deltas.shape[1], dtype=torch.float64)
    left_out = torch.zeros_like(memory)
    for visit, delta in enumerate(deltas):
        sender = Senders(tasks(1, visit=visit), 0, memory)
        left_out = decay * left_out + delta - channel.send(delta[None], sender)
        memory = sender.memory
    torch.testing.assert_close(memory, left_out, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("inner", [TopK(0.3), RandomK(0.3, scaled=False)], ids=repr)
def test_a_decay_of_0_is_the_channel_alone(inner: Channel) -> None:
    memory = UPDATE.flip(1)
    sent = ErrorFeedback(inner, decay=0).send(UPDATE, Senders(tasks(1), 0, memory))
    assert torch.equal(sent, inner.send(UPDATE, senders(1)))


def test_the_decay_of_a_chain_is_that_of_its_error_feedback() -> None:
    assert Chain([Clip(1.0), ErrorFeedback(TopK(0.5), decay=0.5)]).memory_decay == 0.5
    assert Chain([Clip(1.0), TopK(0.5)]).memory_decay == 1
    assert ErrorFeedback(TopK(0.5)).memory_decay == 1


def test_repr_of_a_decay() -> None:
    assert repr(ErrorFeedback(TopK(0.5))) == "ErrorFeedback(TopK(0.5))"
    assert repr(ErrorFeedback(TopK(0.5), 0.95)) == "ErrorFeedback(TopK(0.5), decay=0.95)"


@pytest.mark.parametrize("inner", [RandomK(0.1), QSGD(2), TopK(0.1)], ids=repr)
def test_the_memory_does_not_grow(inner: Channel) -> None:
    """Random-k with its factor, or QSGD as it is, would let it grow beyond all bounds."""
    channel = ErrorFeedback(inner)
    memory = torch.zeros(1, 100)
    delta = torch.randn(1, 100, generator=torch.Generator().manual_seed(0))
    norms = []
    for visit in range(400):
        sender = Senders(tasks(1, visit=visit), 0, memory)
        channel.send(delta, sender)
        memory = sender.memory
        norms.append(float(memory.norm() / delta.norm()))
    # The root of E |e|^2 is at most 2 / a |delta| for a contraction by a (Karimireddy, Lemma 3).
    a = {"TopK(0.1)": 0.1, "RandomK(0.1)": 0.1, "QSGD(2)": 1 / 11}[repr(inner)]
    assert max(norms) <= 3 / a
    assert max(norms[200:]) <= 1.5 * max(norms[:200])


@pytest.mark.parametrize(
    ("channel", "expected"),
    [
        (Clip(1.0), 4000),
        (TopK(0.01), -(-10 * (32 + 10) // 8)),
        (TopK(1.0), 4000),
        (TopK(0.9), 4000),  # 900 numbers with their places would be 4725
        (RandomK(0.01), 40),
        (QSGD(4), 500 + 4),
        (Chain([TopK(0.01), QSGD(4)]), -(-(10 * (4 + 10) + 32) // 8)),
        (Chain([RandomK(0.1), TopK(0.01)]), -(-10 * (32 + 7) // 8)),
        (Chain([TopK(0.1), RandomK(0.2)]), 800),
        (Chain([QSGD(4), TopK(0.01)]), -(-(10 * (4 + 10) + 32) // 8)),
        (ErrorFeedback([TopK(0.01), QSGD(4)]), -(-(10 * (4 + 10) + 32) // 8)),
        (Chain([]), 4000),
    ],
)
def test_bytes_of_a_thousand_numbers(channel: Channel, expected: int) -> None:
    assert channel.nbytes(size=1000, itemsize=4) == expected


def test_a_tiny_update_arrives() -> None:
    """The smallest share is one number, and a norm of 0 is no division by 0."""
    for channel in CHANNELS:
        one = Senders(tasks(2), 0, torch.zeros(2, 1) if channel.remembers else None)
        assert torch.isfinite(channel.send(torch.tensor([[0.0], [1e-40]]), one)).all()
    assert TopK(0.001).send(rows([3.0]), senders(1)).tolist() == [[3.0]]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: TopK(0), ValueError, r"share must be above 0 and at most 1, got 0"),
        (lambda: RandomK(1.5), ValueError, r"share must be above 0 and at most 1, got 1.5"),
        (lambda: TopK("1%"), TypeError, r"share must be a number, got '1%'"),
        (lambda: Clip(-1), ValueError, r"norm must be larger than 0, got -1"),
        (lambda: QSGD(1), ValueError, r"bits must be from 2 to 16, got 1: one for the sign"),
        (lambda: QSGD(8.0), TypeError, r"bits must be an integer, got 8.0"),
        (lambda: as_channel("channel", TopK), TypeError, r"got the class TopK; write TopK\(…\)"),
        (lambda: as_channel("channel", 0.1), TypeError, r"a list of channels, got 0.1; for ex"),
        (lambda: Chain([TopK(0.1), 3]), TypeError, r"channels must hold channels only, got 3"),
        (
            lambda: Chain([ErrorFeedback(TopK(0.1)), Chain([ErrorFeedback(QSGD(8))])]),
            ValueError,
            r"a channel can have one ErrorFeedback, got \[.*one memory around both",
        ),
        (lambda: ErrorFeedback(ErrorFeedback(TopK(0.1))), ValueError, r"already, got Err"),
        (lambda: ErrorFeedback(TopK(0.1), decay=2), ValueError, r"decay must lie between 0 and 1"),
        (lambda: ErrorFeedback(TopK(0.1), decay=-0.1), ValueError, r"0 and 1, got -0.1"),
        (lambda: ErrorFeedback(TopK(0.1), QSGD(8)), TypeError, r"decay must be a number, got QSG"),
    ],
)
def test_bad_input(make, error, words) -> None:
    with pytest.raises(error, match=words):
        make()
