"""A stack of local runs driven as the executors drive it, and the same runs one by one."""

import pytest
import torch

from fedlight.local_optimizers import LocalRun

SHAPES = [(2, 3), (4,)]
STEPS = [5, 3, 3, 1]


class Toy:
    """Client i's loss is sum of a * (y - c)^2 / 2; the gradient changes from step to step."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)

        def draw(*lead):
            return [
                torch.randn(*lead, *shape, generator=generator, dtype=torch.float64)
                for shape in SHAPES
            ]

        n = len(STEPS)
        self.start, self.a, self.c = draw(n), [t.abs() for t in draw(n)], draw(n)
        self.noise = [draw(n) for _ in range(max(STEPS))]
        self.own, self.shared = draw(n), draw(n)

    def grads(self, params, step):
        n = len(params[0])
        parts = zip(self.a, params, self.c, self.noise[step], strict=True)
        return [a[:n] * (p - c[:n]) + e[:n] for a, p, c, e in parts]

    def run(self, optimizer, lr):
        """All clients at once: a stack that gets shorter."""
        run = LocalRun(
            params=[t.clone() for t in self.start],
            pulled=[t.clone() for t in self.start],
            lr=lr,
            num_steps=torch.tensor(STEPS),
            client=self.own,
            shared=self.shared,
        )
        optimizer.begin(run, None)
        for step in range(max(STEPS)):
            part = run.first(sum(steps > step for steps in STEPS))
            grads = self.grads(part.params, step)
            kept = [g.clone() for g in grads]
            part.step = step
            optimizer.step(part, grads)
            assert all(map(torch.equal, grads, kept)), "gradients were changed in place"
        assert all(map(torch.equal, run.pulled, self.start)), "the pulled model was changed"
        return run

    def expected(self, make, lr, before_step=None):
        """One client after the other with an optimizer of torch."""
        after = [t.clone() for t in self.start]
        for client, steps in enumerate(STEPS):
            params = [torch.nn.Parameter(t[client].clone()) for t in self.start]
            optimizer = make(params, lr if isinstance(lr, float) else lr[client].item())
            for step in range(steps):
                stacked = [t.detach()[None].expand(client + 1, *t.shape) for t in params]
                for param, grad in zip(params, self.grads(stacked, step), strict=True):
                    param.grad = grad[client].clone()
                if before_step is not None:
                    before_step(params, client)
                optimizer.step()
            for tensor, param in zip(after, params, strict=True):
                tensor[client] = param.detach()
        return after


@pytest.fixture
def toy():
    return Toy()


@pytest.fixture(params=["one rate", "a rate each"])
def rate(request):
    if request.param == "one rate":
        return 0.1
    return torch.tensor([0.1, 0.02, 0.3, 0.05], dtype=torch.float64)
