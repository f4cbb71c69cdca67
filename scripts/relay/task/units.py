"""A model's units: the modules that are sharded, recomputed or cut as a whole.

They are found by the model's structure: repeated blocks first, such as a Transformer's layers, then what is large.
Where it has been seen how parameters are read (`Readings`), a unit has only those that are read while it is called.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from torch import nn

from relay.base.errors import UserError
from relay.task.calls import Readings, names_of

# A unit below this share of the parameters would cost more messages than it saves memory.
LEAST_SHARE = 0.02
# Above this share a block is taken apart, if most of it are blocks again: a Swin Transformer's stages, say.
LARGE_SHARE = 0.25
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)  # they are never called


def blocks(
    model: nn.Module, own: Sequence[nn.Module] | None = None, readings: Readings | None = None
) -> list[tuple[str, nn.Module]]:
    """The units of a model, with their names in it, in its order. No unit is within another one, or the model itself.

    `own` are those that the user has chosen, which are checked and otherwise taken as they are. Raises UserError for
    what cannot be a unit.
    """
    if own is not None:
        if not isinstance(own, (list, tuple)):
            raise UserError(f"blocks() returned {type(own).__name__}; allowed: a list of modules of the model")
        return _checked(model, own)
    return list(_Search(model, readings).below("", model))


def size(module: nn.Module) -> int:
    """The number of its parameters' elements."""
    return sum(parameter.numel() for parameter in module.parameters())


class _Search:
    """Looks for the units of one model."""

    def __init__(self, model: nn.Module, readings: Readings | None) -> None:
        self.whole, self.readings, self.names = size(model), readings, names_of(model)

    def below(self, place: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """The units among a module's descendants."""
        repeats = repeated(module)
        sizes = {id(group): sum(map(size, group)) for group in repeats.values()}
        for name, child in module.named_children():  # torch tells a child with two names once
            path = f"{place}.{name}" if place else name
            is_block = name in repeats and not _is_layer(child)
            elements = sizes[id(repeats[name])] if name in repeats else size(child)
            if not elements or (elements < LEAST_SHARE * self.whole and not is_block and not _is_made_of_blocks(child)):
                continue
            if self._is_whole(path, child) and not self._taken_apart(child, name in repeats):
                yield path, child
            else:
                yield from self.below(path, child)

    def _taken_apart(self, module: nn.Module, is_repeat: bool) -> bool:
        """Whether the units are within the module rather than the module itself."""
        share = size(module) / self.whole
        if _is_made_of_blocks(module) and (not is_repeat or type(module) is nn.Sequential or share > LARGE_SHARE):
            return True
        inner = any(size(child) for child in module.children())
        return not is_repeat and inner and share > 0.5

    def _is_whole(self, path: str, module: nn.Module) -> bool:
        """Whether the module is called, and its parameters are read only while it is, and under no other name."""
        if isinstance(module, CONTAINERS) or (self.readings is not None and path in self.readings.opaque):
            return False
        for parameter in module.parameters():
            for name in self.names[id(parameter)]:
                if not name.startswith(f"{path}."):
                    return False
                if self.readings is not None and path not in self.readings.within.get(name, (path,)):
                    return False
        return True


def repeated(parent: nn.Module) -> dict[str, list[nn.Module]]:
    """The children that repeat others, by name, each with all that are alike: of one class, in a list or numbered.

    Layers such as two convolutions repeat each other in a list alone.
    """
    is_list = isinstance(parent, (nn.Sequential, *CONTAINERS))
    alike: dict[tuple[type[nn.Module], str], dict[str, nn.Module]] = {}
    for name, child in parent.named_children():
        if size(child) and (is_list or (re.search(r"\d", name) and not _is_layer(child))):
            alike.setdefault((type(child), re.sub(r"\d+", "", name)), {})[name] = child
    groups = ((group, list(group.values())) for group in alike.values() if len(group) > 1)
    return {name: members for group, members in groups for name in group}


def _is_made_of_blocks(module: nn.Module) -> bool:
    """Whether repeated modules, which are more than one layer each, have at least half of the parameters."""
    return 2 * sum(size(block) for block in _repeated_blocks(module)) >= size(module) > 0


def _repeated_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost repeated modules within a module that are more than one layer each."""
    repeats = repeated(module)
    for name, child in module.named_children():
        if name in repeats and not _is_layer(child) and not isinstance(child, CONTAINERS):
            yield child
        else:
            yield from _repeated_blocks(child)


def _is_layer(module: nn.Module) -> bool:
    """Whether it is one of torch's own layers, such as a convolution."""
    return type(module).__module__.startswith("torch.nn.") and not any(True for _ in module.children())


def _checked(model: nn.Module, own: Sequence[nn.Module]) -> list[tuple[str, nn.Module]]:
    """The user's units with their names, in the model's order."""
    names = {id(module): name for name, module in model.named_modules()}
    for unit in own:
        if not isinstance(unit, nn.Module) or id(unit) not in names:
            what = f"{type(unit).__name__} {unit!r}".splitlines()[0]
            raise UserError(f"blocks: {what} is no module of the model; allowed: modules of the model that it gets")
        name = names[id(unit)]
        if not name:
            raise UserError("blocks: the model itself is not allowed; allowed: modules within it")
        if isinstance(unit, CONTAINERS):
            raise UserError(
                f"blocks: '{name}' is a {type(unit).__name__}, which is never called; allowed: the modules in it"
            )
        for tied in map(names_of(model).__getitem__, map(id, unit.parameters())):
            inside, outside = ([n for n in tied if n.startswith(f"{name}.") is within] for within in (True, False))
            if outside:
                raise UserError(
                    f"blocks: '{inside[0]}' is '{outside[0]}' too, outside of '{name}'; allowed: modules that hold all "
                    "names of a tied parameter"
                )
    order = {name: place for place, name in enumerate(names.values())}
    ordered = sorted((names[id(unit)] for unit in own), key=order.__getitem__)
    for name, following in pairwise(ordered):
        if name == following:
            raise UserError(f"blocks: '{name}' is named twice; allowed: each module once")
    for inner in ordered:
        if outer := next((name for name in ordered if inner.startswith(f"{name}.")), None):
            raise UserError(f"blocks: '{inner}' is within '{outer}'; allowed: modules that do not hold each other")
    return [(name, model.get_submodule(name)) for name in ordered]
