"""The settings of local runs: all that a hook may change, besides what the server averages.

A client that pulls a version of the model pulls its settings with it. They are the attributes of
the module and of its layers (numbers, containers, tensors, objects, hyper-parameters, modes), its
layers and their hooks, the values of tensors that are no part of the federation, such as frozen
parameters, and the attributes of the local optimizer. They are not what belongs to Lightning or to
metric objects.

Values are copied, so that a later change of the module does not reach them; of functions, all that
they hold. Layers, parameters, classes, data sets and random generators stand for themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from fedlight._module.attributes import OF_LIGHTNING, own_layers
from fedlight._module.current_stage import moment_of
from fedlight._module.values import LARGE, MISSING, Compared, copied, fields_of, written

if TYPE_CHECKING:
    from lightning import LightningModule

_HOOKS = frozenset(
    name for name in vars(nn.Module()) if "hook" in name and "state_dict" not in name
)
# A recurrent layer keeps its parameters in a second list.
_NOT_SETTINGS = (OF_LIGHTNING - _HOOKS - {"_modules"}) | {"_flat_weights", "_flat_weight_refs"}
_TAKEN = ("training_step", "on_before_batch_transfer", "on_after_batch_transfer")


_OPTIMIZER = "trainer.local_optimizer"
"""The path of the local optimizer among those of layers."""


class OptimizerAttributes:
    """The attributes of the local optimizer, beside those of layers.

    It stands for the optimizer among the layers: an optimizer of a user's class may have no hash,
    or one that changes with its numbers.

    Args:
        optimizer: The local optimizer.
    """

    def __init__(self, optimizer: object) -> None:
        self.optimizer = optimizer

    def write(self, key: str, value: Any) -> None:
        """Set an attribute, whatever the class does at an assignment; `MISSING` removes it."""
        if value is not MISSING:
            object.__setattr__(self.optimizer, key, value)
        elif key in fields_of(self.optimizer):
            object.__delattr__(self.optimizer, key)


Owner: TypeAlias = "nn.Module | OptimizerAttributes"
"""What has attributes that are settings."""


class Settings:
    """The settings of local runs at one moment.

    Args:
        layers: As below.
        tensors: As below.
        like: Settings that differ in the local optimizer alone; None if there are none.

    Attributes:
        layers: The module, its layers and the local optimizer, and the attributes of each.
        tensors: The tensors that are no part of the federation, each with its value; None in place
            of the value of a large one.
        of_step: The same object in settings that differ in the local optimizer alone, under which
            ``training_step`` is the same function.
        sent: This object in the form in which other processes get it, once it was made.
    """

    __slots__ = ("layers", "of_step", "sent", "tensors")

    def __init__(
        self,
        layers: Mapping[Owner, dict[str, Any]],
        tensors: Mapping[Tensor, Tensor | None],
        like: Settings | None = None,
    ) -> None:
        self.layers = layers
        self.tensors = tensors
        self.of_step: object = object() if like is None else like.of_step
        self.sent: bytes | None = None


class Difference(NamedTuple):
    """An attribute that differs between two settings.

    Attributes:
        layer: The layer that has it, or the local optimizer.
        key: Its name.
        value: Its value; `MISSING` if there is no such attribute.
    """

    layer: Owner
    key: str
    value: Any


class LiveSettings:
    """The settings that there are now, and local runs under those that there were earlier.

    Args:
        module: The module.
        optimizer: The local optimizer; None if it has no settings, or until `join`.

    Attributes:
        current: The settings that there were when somebody looked last; None before `begin`.
        start: Those of `begin`.
        paths: The layers that the module had then, the local optimizer, and their paths.
        left_out: Names of what changed and no checkpoint of the run holds.
    """

    def __init__(self, module: LightningModule, optimizer: object = None) -> None:
        self.module, self._moment = module, moment_of(module)
        self.optimizer: object = None
        self._optimizer: list[tuple[str, OptimizerAttributes]] = []
        self.join(optimizer)
        self.current: Settings | None = None
        self.start: Settings | None = None
        self.left_out: set[str] = set()
        self._ignored: Collection[tuple[str, str]] = ()
        self._layers = own_layers(module)
        self._registered: set[int] = set()
        self._compared = Compared()
        self.paths: dict[Owner, str] = {}
        self._swaps: dict[int, tuple[Settings, list[Difference], list[tuple[Tensor, Tensor]]]] = {}
        self._warned: set[int] = set()

    def join(self, optimizer: object) -> None:
        """Take the attributes of the local optimizer for settings, too; once, before `begin`."""
        if optimizer is not self.optimizer:
            self.optimizer = optimizer
            self._optimizer = [(_OPTIMIZER, OptimizerAttributes(optimizer))]

    def _memo(self) -> dict[int, Any]:
        """The copies that exist before anything is copied: the local optimizer is its own."""
        return {} if self.optimizer is None else {id(self.optimizer): self.optimizer}

    def begin(self, ignored: Collection[tuple[str, str]] = ()) -> Settings:
        """Take the module and the local optimizer as they are.

        Args:
            ignored: Attributes that steps change and no later step reads, each as the path of its
                layer and its name. They are no settings.
        """
        self._ignored = frozenset(ignored)
        named = (*self.module.named_modules(), *own_layers(self.module), *self._optimizer)
        self.paths = {layer: path for path, layer in named}
        self._registered = set()
        self.current = None
        self.start = self.now()
        self._take(self.start)
        self._moment = moment_of(self.module)
        self._moment.touched = False
        return self.start

    def ignore(self, places: Collection[tuple[str, str]]) -> None:
        """Treat attributes as no settings, which steps change and no later step reads.

        Args:
            places: Paths of layers, and names.
        """
        self._ignored = frozenset(self._ignored) | frozenset(places)
        if self.current is not None:
            for layer, values in self.current.layers.items():
                for key in [key for key in values if (self.paths.get(layer), key) in self._ignored]:
                    del values[key]

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors of all layers that were there when the run began, by path and name."""
        for layer, path in self.paths.items():
            for name, tensor in _own_tensors(layer) if isinstance(layer, nn.Module) else ():
                yield f"{path}.{name}".lstrip("."), tensor

    def look(self) -> Settings | None:
        """The settings that there are now. The same object, as long as nothing has changed.

        Nothing is compared if no code of the user that may change them was called since.
        """
        moment = self._moment
        if moment.touched and self.current is not None:
            moment.touched = False
            self._take(self.now())
            self._check_steps()
        return self.current

    def _check_steps(self) -> None:
        """Refuse another ``training_step``: executors have taken it when the run began.

        Raises:
            ValueError: A hook has replaced it, or a hook around it.
        """
        if self.start is None or self.current is self.start:
            return
        before, now = self.start.layers[self.module], vars(self.module)
        replaced = [name for name in _TAKEN if now.get(name) is not before.get(name)]
        if replaced:
            raise ValueError(
                f"a hook has replaced {replaced[0]} of {type(self.module).__name__}, which is "
                "taken once, when a run begins: let it read an attribute that the hook changes"
            )

    @property
    def touched(self) -> bool:
        """Whether a hook may have changed a setting since somebody looked."""
        return self._moment.touched

    def _take(self, settings: Settings) -> None:
        if settings is not self.current:
            self.current = settings
            self._swaps.clear()

    def now(self) -> Settings:
        """The settings now: `current`, if they are still the same."""
        before = None if self.current is None else self.current.layers
        layers: dict[Owner, dict[str, Any]] = {}
        changed, changed_step = before is None, before is None
        memo = self._memo()
        compared = self._compared
        compared.begin()
        same = compared.same
        own = self._layers
        owners: Iterable[tuple[str, Owner]] = (*own, *self._optimizer)
        for path, layer in owners:
            old = None if before is None else before.get(layer)
            now = _attributes(layer)
            if self._ignored:
                now = {key: value for key, value in now.items() if (path, key) not in self._ignored}
            if old is not None and old.keys() == now.keys():
                for key, value in now.items():
                    if not (value is old[key] or same(value, old[key])):
                        break
                else:
                    layers[layer] = old
                    continue
            changed = True
            changed_step |= isinstance(layer, nn.Module)
            kept = old or {}
            layers[layer] = {
                key: kept[key]
                if key in kept and compared.same(value, kept[key])
                else copied(value, memo)
                for key, value in now.items()
            }
        tensors, moved = self._tensors(own)
        changed_step |= moved or len(layers) != len(before or ())
        if not changed and not changed_step:
            assert self.current is not None
            return self.current
        # Another layer comes with a changed attribute.
        self._layers = own_layers(self.module)
        if self._layers != own:
            return self.now()
        return Settings(layers, tensors, like=None if changed_step else self.current)

    def _tensors(
        self, own: Sequence[tuple[str, nn.Module]]
    ) -> tuple[Mapping[Tensor, Tensor | None], bool]:
        """The values of tensors that the server does not average; whether one has changed."""
        before = {} if self.current is None else self.current.tensors
        values: dict[Tensor, Tensor | None] = {}
        changed = False
        if not self._registered:
            # The server averages none of a layer that a hook has made, or that torch does not know.
            known = (*self.module.modules(), *self.module.parameters())
            self._registered = set(map(id, known))
        for path, layer in own:
            new = id(layer) not in self._registered
            for name, tensor in _own_tensors(layer):
                if tensor.is_meta:
                    continue
                if isinstance(tensor, nn.Parameter):
                    if tensor.requires_grad and (not new or id(tensor) in self._registered):
                        continue
                elif not (new or tensor.is_complex()):
                    continue
                if (path, name) in self._ignored:
                    continue
                value = before.get(tensor, MISSING)
                if value is MISSING:
                    changed = True
                elif value is None:
                    changed |= self._large_changed(f"{path}.{name}".lstrip("."), tensor)
                    values[tensor] = None
                    continue
                elif self._compared.same_tensor(tensor, value):
                    values[tensor] = value
                    continue
                else:
                    changed = True
                large = tensor.nbytes > LARGE
                values[tensor] = None if large else tensor.detach().clone()
                self._compared.note(tensor, values[tensor])
        return values, changed or len(values) != len(before)

    def _large_changed(self, name: str, tensor: Tensor) -> bool:
        """Say once that a large tensor has changed, which does not travel with a version."""
        if not self._compared.moved(tensor):
            return False
        self._compared.note(tensor, None)
        if id(tensor) not in self._warned:
            self._warned.add(id(tensor))
            rank_zero_warn(
                f"fedlight: a hook has changed {name} of {type(self.module).__name__}, which has "
                f"{tensor.nbytes / 2**20:.0f} MiB and is not copied: clients that are at work get "
                "the new values, too"
            )
        return True

    def under(self, settings: Settings | None) -> AbstractContextManager[None]:
        """Within the context, module and local optimizer have the settings of a version.

        Args:
            settings: Those of a version; None for those that they have.
        """
        if settings is None or self.look() is settings:
            return nullcontext()
        return self._swapped(settings)

    @contextmanager
    def _swapped(self, settings: Settings) -> Iterator[None]:
        assert self.current is not None
        known = self._swaps.get(id(settings))
        if known is None or known[0] is not settings:
            now = self.current.tensors
            exchanged = [
                (tensor, value)
                for tensor, value in settings.tensors.items()
                if value is not None and now.get(tensor) is not value
            ]
            known = settings, differences(self.current, settings), exchanged
            if len(self._swaps) > 64:
                self._swaps.clear()
            self._swaps[id(settings)] = known
        _, changes, exchanged = known
        # The attributes of a layer that the module has no longer are put back, too.
        before = [
            Difference(layer, key, _present(layer).get(key, MISSING)) for layer, key, _ in changes
        ]
        data = [(tensor, tensor.data) for tensor, _ in exchanged]
        try:
            write(changes)
            for tensor, value in exchanged:
                tensor.data = value
            yield
        finally:
            for tensor, value in data:
                tensor.data = value
            write(before)

    def install(self, settings: Settings) -> None:
        """Give the module and the local optimizer other settings, from now on."""
        assert self.current is not None
        memo = self._memo()
        write(
            [
                Difference(layer, key, written(_present(layer).get(key, MISSING), value, memo))
                for layer, key, value in differences(self.current, settings)
            ]
        )
        for tensor, value in settings.tensors.items():
            if value is not None and self.current.tensors.get(tensor) is not value:
                tensor.data.copy_(value)
        self._take(settings)
        self._compared = Compared()


def settings_of(module: LightningModule, optimizer: object = None) -> Settings:
    """The settings of a module, and of a local optimizer if there is one, now."""
    return LiveSettings(module, optimizer).now()


def _present(owner: Owner) -> dict[str, Any]:
    """The attributes of a layer or of the local optimizer."""
    return vars(owner) if isinstance(owner, nn.Module) else fields_of(owner.optimizer)


def _attributes(layer: Owner) -> dict[str, Any]:
    """What is a setting among the attributes of a layer or of the local optimizer."""
    if not isinstance(layer, nn.Module):
        kind = type(layer.optimizer)
        # A method that was replaced on the object stays what it is, with all that it holds.
        return {
            key: value
            for key, value in _present(layer).items()
            if not callable(getattr(kind, key, None))
        }
    found = {key: value for key, value in vars(layer).items() if key not in _NOT_SETTINGS}
    if not found.get("_hparams", True):  # Lightning makes it when it is first read
        del found["_hparams"]
    return found


def _own_tensors(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from layer.named_parameters(recurse=False)
    yield from layer.named_buffers(recurse=False)


def kept_by(module: nn.Module, before: Settings) -> list[tuple[str, str]]:
    """The attributes, and the tensors that no server averages, that have changed since."""
    compared = Compared()
    compared.begin()
    found = []
    for path, layer in own_layers(module):
        old = before.layers.get(layer, {})
        now = _attributes(layer)
        found += [
            (path, key)
            for key in {**old, **now}
            if not compared.same(now.get(key, MISSING), old.get(key, MISSING))
        ]
        found += [
            (path, name)
            for name, tensor in _own_tensors(layer)
            if before.tensors.get(tensor) is not None
            and not compared.same_tensor(tensor, before.tensors[tensor])
        ]
    return found


def kept_by_optimizer(before: Settings) -> list[tuple[str, str]]:
    """The attributes of the local optimizer that have changed since."""
    compared = Compared()
    compared.begin()
    found = []
    for owner, old in before.layers.items():
        if isinstance(owner, OptimizerAttributes):
            now = _present(owner)
            found += [
                (_OPTIMIZER, key)
                for key in {**old, **now}
                if not compared.same(now.get(key, MISSING), old.get(key, MISSING))
            ]
    return found


def differences(one: Settings, other: Settings) -> list[Difference]:
    """The attributes that `other` has and that differ in `one`, or are not there."""
    found = []
    for layer, values in other.layers.items():
        old = one.layers.get(layer, {})
        if old is not values:
            for key in {**old, **values}:
                value = values.get(key, MISSING)
                if value is not old.get(key, MISSING):
                    found.append(Difference(layer, key, value))
    return found


def changed(base: Settings, changes: Collection[Difference]) -> Settings:
    """Settings with other values of some attributes and of no tensors."""
    layers = {layer: dict(values) for layer, values in base.layers.items()}
    for layer, key, value in changes:
        values = layers.setdefault(layer, {})
        if value is MISSING:
            values.pop(key, None)
        else:
            values[key] = value
    same_step = not any(isinstance(layer, nn.Module) for layer, _, _ in changes)
    return Settings(layers, base.tensors, like=base if same_step else None)


def write(changes: Collection[Difference]) -> None:
    """Set attributes as they are, whatever their classes do at an assignment."""
    for layer, key, value in changes:
        if not isinstance(layer, nn.Module):
            layer.write(key, value)
        elif value is MISSING:
            vars(layer).pop(key, None)
        else:
            vars(layer)[key] = value
