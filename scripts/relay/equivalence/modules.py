"""The configuration of a strategy's modules against the task's own: probabilities, momenta, modes.

Most of it shows in no number of the other trials: they switch dropout off and freeze BatchNorm. Every module of a
task's network carries its name with it, so that no wrapper hides which one it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_pre_hook

NAME = "relay_name"
# What differs between training and evaluation: no other trial of the gate sees how these are set.
MODAL = (_DropoutNd, _NormBase)
# Whoever splits a layer changes its sizes; wrong ones show in the numbers.
SIZES = {
    "in_features",
    "out_features",
    "in_channels",
    "out_channels",
    "num_embeddings",
    "embedding_dim",
    "num_features",
    "num_channels",
    "normalized_shape",
    "experts",
}
Configuration = dict[str, object]
Configurations = dict[str, Configuration]


def named(network: nn.Module) -> None:
    """Write every module's name into the module."""
    for name, module in network.named_modules():
        if name:
            setattr(module, NAME, name)


def configuration(module: nn.Module) -> Configuration:
    """A module's kind, mode and public hyper-parameters, without its sizes."""
    plain: Configuration = {
        name: value for name, value in vars(module).items() if isinstance(value, bool | int | float | str | tuple)
    }
    kept = {name: value for name, value in plain.items() if not name.startswith("_") and name not in {NAME, *SIZES}}
    # Recorded and sharded modules are of classes made for them; a class derived from the task's own is one, too.
    kinds = [kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith(("torch.nn", "relay."))]
    return kept | {"kind": kinds[0] if kinds else type(module).__name__}


def configurations(network: nn.Module) -> Configurations:
    """The configurations of all modules that carry a name, by that name."""
    return {getattr(m, NAME): configuration(m) for m in network.modules() if hasattr(m, NAME)}


@dataclass
class Called:
    """What modules were when they were called: in every thread, whatever object a strategy calls.

    `modal` has the distinct configurations of modules that behave differently in training, by name and by whether they
    trained. A name is missing where a module is none of the task's.
    """

    modal: dict[str, list[Configuration]] = field(default_factory=dict)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note all calls within."""

        def note(module: nn.Module, _inputs: object) -> None:
            if isinstance(module, MODAL):
                seen = self.modal.setdefault(getattr(module, NAME, "a module of the strategy's own"), [])
                if (now := configuration(module)) not in seen:
                    seen.append(now)

        handle = register_module_forward_pre_hook(note)
        try:
            yield
        finally:
            handle.remove()


def unlike(name: str, found: Configuration, expected: Configuration, when: str) -> str | None:
    """The first thing in which a module's configuration is not the task's; None where nothing is."""
    for key in ("kind", *sorted(expected)):
        if found.get(key) != expected[key]:
            return f"{name} has {key} {found.get(key)!r} {when}; the task's has {expected[key]!r}"
    return None
