import pytest
import torch

from fedlight.aggregators._client_memory import ClientMemory


@pytest.fixture(params=["model", "cpu"])
def memory(request, make_state):
    return ClientMemory(7, make_state([0.0] * 5).params, request.param)


def test_the_sum_follows_the_rows(memory):
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        clients = torch.randperm(7, generator=generator)[:3].tolist()
        news = torch.randn(3, 5, generator=generator, dtype=torch.float64)
        memory.replace(clients, list(news))
        for client, row in zip(clients, news, strict=True):
            assert torch.equal(memory.rows[client], row)
        torch.testing.assert_close(memory.mean(), memory.rows.mean(dim=0))


def test_rounding_does_not_pile_up():
    memory = ClientMemory(10, torch.zeros(1))
    for number in range(4000):
        # A huge row comes and goes; each time it takes the small ones' digits with it.
        memory.replace([number % 10], [torch.tensor([1e8 if number % 3 else 0.1])])
    for client in range(10):
        memory.replace([client], [torch.tensor([0.1])])
    assert memory.mean().item() == pytest.approx(0.1, rel=1e-6)


def test_a_step_reads_only_the_rows_that_change(monkeypatch):
    memory = ClientMemory(100, torch.zeros(1, dtype=torch.float64))
    full = []
    original = torch.Tensor.sum

    def watched(tensor, *args, **kwargs):
        full.append(len(tensor) == 100)
        return original(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "sum", watched)
    for number in range(1000):
        memory.replace([number % 100], [torch.ones(1, dtype=torch.float64)])
    assert sum(full) == 10
    assert full.count(False) == 1000
