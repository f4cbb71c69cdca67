"""One file for each strategy, and nothing about a strategy anywhere else; the folder is the registry.

A strategy of a further folder is copied here in the run's snapshot of the code: jobs know this one place.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module

from relay.base.errors import UserError
from relay.spec.run import Training
from relay.strategies.base import Strategy


def load(name: str) -> type[Strategy]:
    """The strategy's class: the one of its file that states requirements. Raises UserError where there is none."""
    module = import_module(f"{__name__}.{name}")
    for member in vars(module).values():
        own = isinstance(member, type) and member.__module__ == module.__name__  # not one that is only imported
        if own and issubclass(member, Strategy) and "requirements" in vars(member):
            return member
    raise UserError(f"strategy: {module.__file__} has no class with `requirements`")


def service(run: Training) -> AbstractContextManager[None]:
    """What the run's strategy needs on the node as long as the run's processes are there."""
    return load(run.strategy.name).service(run.id, run.shape.device)
