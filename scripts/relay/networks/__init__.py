"""The networks, one file each: `build(input_shape, classes, **options)` returns an `nn.Sequential` of named layers.

Pipelines can cut such a flat sequence, and strategies can wrap it, without renaming a parameter. Networks end in
logits. `cross_entropy` of logits is the same function as the seeds' `log_softmax` with `nll_loss`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import nn


def build(name: str, input_shape: tuple[int, ...], classes: int | None, options: Mapping[str, Any]) -> nn.Sequential:
    """The network of this name, initialised with torch's global random generator."""
    network: nn.Sequential = import_module(f"{__name__}.{name}").build(input_shape, classes, **options)
    return network
