"""One file for each network: `build(input_shape, classes, **options)` returns a named `nn.Sequential`.

A flat sequence of named layers is what any pipeline can cut and any strategy can wrap without renaming a parameter.
Networks end in logits; the seeds' `log_softmax` with `nll_loss` is the same function as `cross_entropy` on these.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import nn


def build(name: str, input_shape: tuple[int, ...], classes: int | None, options: Mapping[str, Any]) -> nn.Sequential:
    """The network of that name, freshly initialised from torch's global generator."""
    network: nn.Sequential = import_module(f"{__name__}.{name}").build(input_shape, classes, **options)
    return network
