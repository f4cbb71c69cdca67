"""Lets a script import torchvision beside a torch without CUDA, where that needs help (`relay.datasets.vision`).

Python imports it as it starts, because a command's PYTHONPATH names this folder. The environment's own file of this
name follows.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any


class BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Finds nothing. When torchvision is first asked for, it declares what is missing."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            from relay.datasets.vision import importable

            importable()
        return None


sys.meta_path.insert(0, BeforeTorchvision())
_others = [place for place in sys.path if Path(place) != Path(__file__).parent]
if (_spec := PathFinder.find_spec("sitecustomize", _others)) is not None and _spec.loader is not None:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
