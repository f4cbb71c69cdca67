"""Make a training script a chain of short jobs, by three lines:

    run = resume(model=model, optimizer=optimizer, scheduler=scheduler)
    for step, batch in run.steps(loader, epochs=10):
        ...
        run.after(step)

The folder stands alone: it needs torch, and nothing else of Torch Relay. It is imported as `relay.chain`, or copied
beside a script and imported by its folder's name. Importing it costs nothing; torch comes with the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run import Run, reached, resume
    from .telling import ChainError, Stopped, step

__all__ = ["ChainError", "Run", "Stopped", "reached", "resume", "step"]
_TELLING = ("ChainError", "Stopped", "step")


def __getattr__(name: str) -> Any:
    """What the package offers; found when it is asked for."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(f".{'telling' if name in _TELLING else 'run'}", __name__), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
