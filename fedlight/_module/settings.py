"""The settings of a module: all that a hook may change on it, besides what the server averages.

A client that pulls a version of the model pulls its settings with it. They are the attributes of
the module and of its layers (numbers, containers, tensors, objects, hyper-parameters, modes), its
layers and their hooks, and the values of tensors that are no part of the federation, such as frozen
parameters. They are not what belongs to Lightning or to metric objects.

Values are copied, so that a later change of the module does not reach them; of functions, all that
they hold. Layers, parameters, classes, data sets and random generators stand for themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from fedlight._module.attributes import OF_LIGHTNING, own_layers
from fedlight._module.current_stage import moment_of
from fedlight._module.values import LARGE, MISSING, Compared, copied, written

if TYPE_CHECKING:
    from lightning import LightningModule

_HOOKS = frozenset(
    name for name in vars(nn.Module()) if "hook" in name and "state_dict" not in name
)
# A recurrent layer keeps its parameters in a second list.
_NOT_SETTINGS = (OF_LIGHTNING - _HOOKS - {"_modules"}) | {"_flat_weights", "_flat_weight_refs"}
_TAKEN = ("training_step", "on_before_batch_transfer", "on_after_batch_transfer")


class Settings:
    """The settings of a module at one moment.

    Attributes:
        layers: The module and its layers, and the attributes of each.
        tensors: The tensors that are no part of the federation, each with its value; None in place
            of the value of a large one.
        sent: This object in the form in which other processes get it, once it was made.
    """

    __slots__ = ("layers", "sent", "tensors")

    def __init__(
        self,
        layers: Mapping[nn.Module, dict[str, Any]],
        tensors: Mapping[Tensor, Tensor | None],
    ) -> None:
        self.layers = layers
        self.tensors = tensors
        self.sent: bytes | None = None


class Difference(NamedTuple):
    """An attribute that differs between two settings.

    Attributes:
        layer: The layer that has it.
        key: Its name.
        value: Its value; `MISSING` if there is no such attribute.
    """

    layer: nn.Module
    key: str
    value: Any


class LiveSettings:
    """The settings that a module has now, and local runs under those that it had earlier.

    Args:
        module: The module.

    Attributes:
        current: The settings that it had when somebody looked last; None before `begin`.
        start: Those of `begin`.
        paths: The layers that the module had then, and their paths.
        left_out: Names of what changed and no checkpoint of the run holds.
    """

    def __init__(self, module: LightningModule) -> None:
        self.module, self._moment = module, moment_of(module)
        self.current: Settings | None = None
        self.start: Settings | None = None
        self.left_out: set[str] = set()
        self._ignored: Collection[tuple[str, str]] = ()
        self._layers = own_layers(module)
        self._registered: set[int] = set()
        self._compared = Compared()
        self.paths: dict[nn.Module, str] = {}
        self._swaps: dict[int, tuple[Settings, list[Difference], list[tuple[Tensor, Tensor]]]] = {}
        self._warned: set[int] = set()

    def begin(self, ignored: Collection[tuple[str, str]] = ()) -> Settings:
        """Take the module as it is.

        Args:
            ignored: Attributes that steps change and no later step reads, each as the path of its
                layer and its name. They are no settings.
        """
        self._ignored = frozenset(ignored)
        named = (*self.module.named_modules(), *own_layers(self.module))
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
            for name, tensor in _own_tensors(layer):
                yield f"{path}.{name}".lstrip("."), tensor

    def look(self) -> Settings | None:
        """The settings that the module has now. The same object, as long as nothing has changed.

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
        """Whether a hook may have changed the module since somebody looked."""
        return self._moment.touched

    def _take(self, settings: Settings) -> None:
        if settings is not self.current:
            self.current = settings
            self._swaps.clear()

    def now(self) -> Settings:
        """The module's settings now: `current`, if they are still the same."""
        before = None if self.current is None else self.current.layers
        layers: dict[nn.Module, dict[str, Any]] = {}
        changed = before is None
        memo: dict[int, Any] = {}
        compared = self._compared
        compared.begin()
        same = compared.same
        own = self._layers
        for path, layer in own:
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
            kept = old or {}
            layers[layer] = {
                key: kept[key]
                if key in kept and compared.same(value, kept[key])
                else copied(value, memo)
                for key, value in now.items()
            }
        tensors, moved = self._tensors(own)
        if not changed and not moved and len(layers) == len(before or ()):
            assert self.current is not None
            return self.current
        # Another layer comes with a changed attribute.
        self._layers = own_layers(self.module)
        return Settings(layers, tensors) if self._layers == own else self.now()

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
        """Within the context, the module has the settings of a version.

        Args:
            settings: Those of a version; None for those that the module has.
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
            Difference(layer, key, vars(layer).get(key, MISSING)) for layer, key, _ in changes
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
        """Give the module other settings, from now on."""
        assert self.current is not None
        memo: dict[int, Any] = {}
        write(
            [
                Difference(layer, key, written(vars(layer).get(key, MISSING), value, memo))
                for layer, key, value in differences(self.current, settings)
            ]
        )
        for tensor, value in settings.tensors.items():
            if value is not None and self.current.tensors.get(tensor) is not value:
                tensor.data.copy_(value)
        self._take(settings)
        self._compared = Compared()


def settings_of(module: LightningModule) -> Settings:
    """The settings of a module now."""
    return LiveSettings(module).now()


def _attributes(layer: nn.Module) -> dict[str, Any]:
    """What is a setting among the attributes of a layer."""
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
    """Settings with other values of some attributes."""
    layers = {layer: dict(values) for layer, values in base.layers.items()}
    for layer, key, value in changes:
        values = layers.setdefault(layer, {})
        if value is MISSING:
            values.pop(key, None)
        else:
            values[key] = value
    return Settings(layers, base.tensors)


def write(changes: Collection[Difference]) -> None:
    """Set attributes of layers as they are, whatever their classes do at an assignment."""
    for layer, key, value in changes:
        if value is MISSING:
            vars(layer).pop(key, None)
        else:
            vars(layer)[key] = value
