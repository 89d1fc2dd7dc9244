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
        before = memory.total.clone()
        change = memory.replace(clients, list(news))
        assert torch.equal(memory.recall(clients), news)
        torch.testing.assert_close(memory.total, before + change)
        torch.testing.assert_close(memory.mean(), memory.recall(range(7)).mean(dim=0))


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


def test_only_clients_that_came_have_a_row():
    """A table of all would take 4 TB; the order in which they came does not matter to the sum."""
    memory = ClientMemory(10**6, torch.zeros(10**6))
    rows = {client: torch.full((10**6,), 0.1 * client) for client in (7, 999_999, 3)}
    memory.replace(list(rows), list(rows.values()))
    assert sorted(memory.rows) == [3, 7, 999_999]
    assert torch.equal(memory.recall([5]), torch.zeros(1, 10**6))
    assert memory.mean()[0].item() == pytest.approx(0.1 * (7 + 999_999 + 3) / 10**6)


def test_rows_do_not_keep_the_updates_alive():
    block = torch.ones(4, 3)
    memory = ClientMemory(9, torch.zeros(3))
    memory.replace([0, 1], list(block[:2]))
    block.fill_(5)
    assert all(row._base is None for row in memory.rows.values())
    assert torch.equal(memory.recall([0, 1]), torch.ones(2, 3))


def test_its_state_is_taken_up_whatever_came_before(memory):
    empty = memory.state_dict()
    for clients in ([4, 1], [6], [1, 2, 3, 0, 5]):
        news = [torch.full((5,), 0.1 * (1 + client), dtype=torch.float64) for client in clients]
        memory.replace(clients, news)
    state = memory.state_dict()
    other = ClientMemory(7, torch.zeros(5, dtype=torch.float64))
    other.replace([6], [torch.ones(5, dtype=torch.float64)])
    other.load_state_dict(state)
    for each in (memory, other):
        each.replace([4, 0], [torch.full((5,), value, dtype=torch.float64) for value in (0.3, 7.7)])
    assert torch.equal(other.total, memory.total)
    assert torch.equal(other.recall(range(7)), memory.recall(range(7)))
    other.load_state_dict(empty)
    assert other.rows == {}


def test_many_rows_are_added_up_in_groups(monkeypatch):
    monkeypatch.setattr("fedlight.aggregators._client_memory._GROUP", 16)
    memory = ClientMemory(7, torch.zeros(1))
    memory.replace(range(7), [torch.tensor([float(client)]) for client in range(7)])
    assert memory.total.item() == 21


def test_the_rule_with_memory_by_hand():
    memory = ClientMemory(4, torch.zeros(1, dtype=torch.float64))

    class Update:
        def __init__(self, client_id, delta):
            self.client_id, self.delta = client_id, torch.tensor([delta], dtype=torch.float64)

    first = memory.corrected([Update(0, 8.0), Update(1, 4.0)], [0.5, 0.5], 0.25)
    assert first.item() == 6
    # h = 3; both updates of client 1 are corrected by 4, and the later one is remembered.
    second = memory.corrected([Update(1, 2.0), Update(1, 6.0)], [0.5, 0.5], 0.25)
    assert second.item() == 0.25 * 3 + ((2 - 0.25 * 4) + (6 - 0.25 * 4)) / 2
    assert memory.total.item() == 8 + 6
    assert memory.corrected([Update(2, 1.0)], [1.0], 0.0).item() == 1
    assert 2 not in memory.rows
