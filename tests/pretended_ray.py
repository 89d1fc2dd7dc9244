"""A stand-in for the package ray: a cluster in this process, whose actors may have a card each.

Nothing happens until somebody waits; then a seed decides which actor is the next to do something,
and whether it dies over that. What crosses is pickled, has no tensor of a device in it, and comes
back with arrays that are read-only, as from Ray's object store.
"""

from __future__ import annotations

import io
import pickle
import random
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch


class RayActorError(Exception):
    """An actor has died."""


class ObjectLostError(Exception):
    """An object was on a node that is gone."""


class RayTaskError(Exception):
    """A call has raised an error."""


class RaySystemError(Exception):
    """Ray has failed."""


@dataclass(eq=False)
class Ref:
    """A reference to an object; one without an actor is there from the start."""

    actor: Held | None = None
    sent: tuple[bytes, list[bytes]] | None = None
    error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.sent is not None or self.error is not None


@dataclass(eq=False)
class Held:
    """An actor: it is made with its first call."""

    kind: type
    cores: float
    share: float
    arguments: tuple[bytes, list[bytes]]
    card: int | None = None
    it: Any = None
    is_dead: bool = False
    has_no_card: bool = False
    calls: deque[tuple[Ref, str, Any]] = field(default_factory=deque)
    done: list[Ref] = field(default_factory=list)


class Handle:
    """What the driver has of an actor."""

    def __init__(self, ray: PretendedRay, held: Held) -> None:
        self._ray, self._held = ray, held

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *given: self._ray.call(self._held, name, given))


class PretendedRay:
    """The parts of the package that fedlight uses.

    Args:
        seed: Decides the order in which actors finish, and which of them die.
        cards: The number of GPUs.
        device: What "cuda" is in an actor, with the index of its card unless that is "cpu".
        deaths: How many actors die, each over jobs.
        failures: How many actors lose their card: this and all later calls raise an error.
        chance: The probability of each, for each time that an actor is to compute.

    Attributes:
        shares: The card and the device of each actor that was made.
        computed: How often an actor has computed jobs, for each card.
        num_lost: How many actors have died or lost their card.
    """

    def __init__(
        self,
        seed: int = 0,
        cards: int = 0,
        device: str = "cpu",
        deaths: int = 0,
        failures: int = 0,
        chance: float = 0.3,
    ) -> None:
        self._chance, self.num_lost = chance, 0
        self._random, self._device, self._held = random.Random(seed), device, list[Held]()
        self._is_up, self._deaths, self._failures = False, deaths, failures
        self._resources = {"CPU": 8.0, "GPU": float(cards)} if cards else {"CPU": 8.0}
        self._refs: dict[int, Ref] = {}
        self.cards = [0.0] * cards  # the part of each that is in use
        self.shares: list[tuple[int | None, str]] = []
        self.computed: dict[int | None, int] = {}
        names = (RayActorError, ObjectLostError, RayTaskError, RaySystemError)
        self.exceptions = SimpleNamespace(**{each.__name__: each for each in names})
        self.cloudpickle = pickle
        state = SimpleNamespace(available_resources_per_node=self._free)
        self._private = SimpleNamespace(state=state)

    @contextmanager
    def installed(self) -> Iterator[PretendedRay]:
        """Within the context, ``import ray`` finds this one."""
        threads = torch.get_num_threads()
        try:
            with patch.dict("sys.modules", {"ray": self, "ray.exceptions": self.exceptions}):
                yield self
        finally:
            torch.set_num_threads(threads)  # actors set those of their process

    # The cluster

    def is_initialized(self) -> bool:
        return self._is_up

    def init(self, **given: Any) -> None:
        self._is_up = True

    def shutdown(self) -> None:
        assert all(held.is_dead for held in self._held)
        self._is_up = False

    def cluster_resources(self) -> dict[str, float]:
        return self._resources

    def nodes(self) -> list[dict[str, Any]]:
        node = {"NodeID": "a", "Alive": True, "NodeManagerAddress": "here"}
        return [{**node, "Resources": self._resources}]

    def _free(self) -> dict[str, dict[str, float]]:
        cores = sum(held.cores for held in self._held if not held.is_dead)
        gpus = len(self.cards) - sum(self.cards)
        return {"a": {"CPU": self._resources["CPU"] - cores, "GPU": gpus}}

    # Objects

    def put(self, value: Any) -> Ref:
        return Ref(sent=self._dumps(value))

    def get(self, refs: Ref | list[Ref]) -> Any:
        if isinstance(refs, list):
            return [self.get(each) for each in refs]
        while not refs.is_done:
            assert refs.actor is not None
            self._step(refs.actor)
        if refs.error is not None:
            raise refs.error
        assert refs.sent is not None
        if refs.actor is not None and refs in refs.actor.done:
            refs.actor.done.remove(refs)  # it is here now
        return self._loads(refs.sent)

    def wait(
        self, refs: Sequence[Ref], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Ref], list[Ref]]:
        assert 1 <= num_returns <= len(refs)
        if timeout != 0:
            for _ in range(self._random.randrange(3)):
                self._step()
            while sum(each.is_done for each in refs) < num_returns:
                self._step()
        ready = [each for each in refs if each.is_done][:num_returns]
        return ready, [each for each in refs if each not in ready]

    def _dumps(self, value: Any) -> tuple[bytes, list[bytes]]:
        ray, stream, buffers = self, io.BytesIO(), list[pickle.PickleBuffer]()

        class Pickler(pickle.Pickler):
            def persistent_id(self, each: Any) -> Any:
                if isinstance(each, Ref):
                    ray._refs[id(each)] = each
                return "ray" if each is ray else id(each) if isinstance(each, Ref) else None

            def reducer_override(self, each: Any) -> Any:
                if isinstance(each, torch.Tensor):
                    assert each.device.type == "cpu", f"a tensor of {each.device} is sent"
                return NotImplemented

        Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
        return stream.getvalue(), [bytes(each.raw()) for each in buffers]

    def _loads(self, sent: tuple[bytes, list[bytes]]) -> Any:
        ray = self

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, name: Any) -> Any:
                return ray if name == "ray" else ray._refs[name]

        return Unpickler(io.BytesIO(sent[0]), buffers=sent[1]).load()

    # Actors

    def remote(self, kind: type) -> Any:
        def options(num_cpus: float, num_gpus: float) -> Any:
            return SimpleNamespace(
                remote=lambda *given: self._make(kind, num_cpus, num_gpus, given)
            )

        return SimpleNamespace(options=options)

    def _make(self, kind: type, cores: float, share: float, given: Any) -> Handle:
        card = None
        if share:  # the fullest card that has room, as Ray has it
            having = [n for n, used in enumerate(self.cards) if used + share <= 1]
            card = max(having, key=lambda each: self.cards[each])
            self.cards[card] += share
        self._held.append(Held(kind, cores, share, self._dumps(given), card))
        return Handle(self, self._held[-1])

    def kill(self, handle: Handle) -> None:
        self._end(handle._held, RayActorError("It was killed."))

    def _end(self, held: Held, error: Exception) -> None:
        if held.is_dead:
            return
        held.is_dead, held.it = True, None
        if held.card is not None:
            self.cards[held.card] -= held.share
        for ref, *_ in held.calls:
            ref.error = error
        held.calls.clear()

    def call(self, held: Held, name: str, given: Sequence[Any]) -> Ref:
        """Note a call of an actor's method."""
        ref = Ref(held)
        if held.is_dead:
            ref.error = RayActorError("It has died.")
        else:
            held.calls.append((ref, name, self._dumps(tuple(given))))
        return ref

    def _step(self, held: Held | None = None) -> None:
        """Let an actor carry out its earliest call, or die over it."""
        if held is None:
            busy = [each for each in self._held if each.calls]
            if not busy:
                return
            held = self._random.choice(busy)
        ref, name, sent = held.calls[0]
        if name == "run" and self._strikes(held):
            return
        held.calls.popleft()
        held.done.append(ref)
        try:
            ref.sent = self._dumps(self._carried_out(held, name, sent))
        except Exception as error:
            ref.error = RayTaskError(f"Traceback of an actor:\n{type(error).__name__}: {error}")
            ref.error.__cause__ = error

    def _strikes(self, held: Held) -> bool:
        """Whether an actor dies now; its results that nobody has fetched may be lost, too."""
        if self._failures and self._random.random() < self._chance:
            self._failures -= 1
            self.num_lost += not held.has_no_card
            held.has_no_card = True
        if not self._deaths or self._random.random() >= self._chance:
            return False
        self._deaths -= 1
        self.num_lost += 1
        self._end(held, RayActorError("The node has no memory left."))
        for ref in held.done:
            if self._random.random() < 0.5:
                ref.sent, ref.error = None, ObjectLostError("It was on a node that is gone.")
        return True

    def _carried_out(self, held: Held, name: str, sent: tuple[bytes, list[bytes]]) -> Any:
        if held.it is None:
            device, *others = self._loads(held.arguments)
            assert (device == "cuda") == (held.card is not None)
            if device == "cuda":
                device = "cpu" if self._device == "cpu" else f"{self._device}:{held.card}"
            self.shares.append((held.card, device))
            held.it = held.kind(device, *others)
        if held.has_no_card:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        if name == "run":
            self.computed[held.card] = self.computed.get(held.card, 0) + 1
        given = [self.get(each) if isinstance(each, Ref) else each for each in self._loads(sent)]
        return getattr(held.it, name)(*given)
