"""The strategies, one file each. Nothing about a strategy stands anywhere else; this folder is the registry.

A strategy from another folder is copied here in the run's snapshot of the code, so that jobs look in one place only.
"""

from contextlib import AbstractContextManager
from importlib import import_module

from relay.base.errors import UserError
from relay.spec.run import Training
from relay.strategies.base import Strategy


def load(name: str) -> type[Strategy]:
    """The strategy's class: the one in its file that has `requirements`. Raises UserError where there is none."""
    module = import_module(f"{__name__}.{name}")
    for member in vars(module).values():
        own = isinstance(member, type) and member.__module__ == module.__name__  # imported classes do not count
        if own and issubclass(member, Strategy) and "requirements" in vars(member):
            return member
    raise UserError(f"strategy: {module.__file__} has no class with `requirements`")


def service(run: Training) -> AbstractContextManager[None]:
    """The context that the run's strategy needs on a node while the run's processes live."""
    return load(run.strategy.name).service(run.id, run.shape.device)
