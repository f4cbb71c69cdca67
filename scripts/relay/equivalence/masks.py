"""Dropout that records the masks it draws, so that a plain training can drop the same units of the same samples.

Processes draw different masks, and pipelines draw them for parts of a slice. Each row of a mask is therefore kept with
a fingerprint of the activations that it was drawn for. The plain training finds the row of a sample by its activations,
whatever the order in which a strategy worked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

# Those whose mask multiplies the inputs.
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
# Numbers in a fingerprint: sums of a row's activations with random weights.
NUMBERS = 2


@dataclass
class Drawn:
    """Masks of one layer for some rows, on the CPU: which units are kept, times what, and the rows' fingerprints."""

    prints: torch.Tensor  # (rows, NUMBERS) float64
    kept: torch.Tensor  # (rows, units) bool
    factor: float  # by which kept units are multiplied
    draws: int  # how many random numbers decided: one for each unit, or for each channel

    @property
    def mask(self) -> torch.Tensor:
        """(rows, units) float64: what the inputs are multiplied by."""
        return self.kept.double() * self.factor


@dataclass
class Masks:
    """The masks of a network's dropout layers, by the layer's name: those drawn in this step, or those to be used.

    A copy of the network writes to the same lists. Without `given`, layers draw as ever.
    """

    drawn: dict[str, list[Drawn]] = field(default_factory=dict)
    given: Mapping[str, Sequence[Drawn]] | None = None

    def __deepcopy__(self, _memo: object) -> Masks:
        return self

    def taken(self) -> dict[str, list[Drawn]]:
        """What was drawn since the last call."""
        drawn, self.drawn = self.drawn, {}
        return drawn

    def record(self, name: str, inputs: torch.Tensor, mask: torch.Tensor, draws: int) -> None:
        """Keep a mask, unless the layer is only computed again in the backward pass (activation checkpointing)."""
        if torch._C._current_graph_task_id() == -1:
            units = mask.detach().flatten(1)
            drawn = Drawn(prints_of(inputs), (units != 0).cpu(), float(units.max()), draws)
            self.drawn.setdefault(name, []).append(drawn)

    def find(self, name: str, inputs: torch.Tensor) -> torch.Tensor:
        """The given masks of these rows; ones where none was drawn."""
        drawn = (self.given or {}).get(name, ())
        if not drawn:
            return torch.ones_like(inputs)
        known, masks = torch.cat([each.prints for each in drawn]), torch.cat([each.mask for each in drawn])
        nearest = torch.cdist(prints_of(inputs), known).argmin(1)
        return masks[nearest].to(inputs).view_as(inputs)


def prints_of(inputs: torch.Tensor) -> torch.Tensor:
    """A few numbers for each row, (rows, NUMBERS) on the CPU, which tell rows apart."""
    rows = inputs.detach().flatten(1).double().cpu()
    generator = torch.Generator().manual_seed(rows.shape[1])
    return rows @ torch.randn(rows.shape[1], NUMBERS, dtype=torch.float64, generator=generator)


class _Recorded:
    """Mixed into a dropout layer: multiplies by a mask that the layer's own `forward` draws, and records it."""

    masks: Masks
    place: str
    training: bool

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The inputs times the mask: a given one, or a drawn one."""
        if self.training and self.masks.given is not None:
            return inputs * self.masks.find(self.place, inputs)
        mask: torch.Tensor = super().forward(torch.ones_like(inputs))  # type: ignore[misc]
        if self.training:
            draws = mask.numel() if isinstance(self, nn.Dropout) else mask.shape[:2].numel()
            self.masks.record(self.place, inputs, mask, draws)
        return inputs * mask


def recorded(network: nn.Module, masks: Masks) -> None:
    """Let the network's dropout layers record their masks, or use those given. They stay what they are besides."""
    for name, module in network.named_modules():
        if isinstance(module, DROPOUTS):
            kind = type(module)
            module.__class__ = type(kind.__name__, (_Recorded, kind), {})
            module.__dict__ |= {"masks": masks, "place": name}


def unlike_dropout(drawn: Sequence[Drawn], p: float) -> str | None:
    """What is wrong with masks that should drop each unit with the probability p; None where nothing is."""
    kept = torch.cat([each.kept.flatten() for each in drawn])
    share, spread = 1 - float(kept.double().mean()), (p * (1 - p) / sum(each.draws for each in drawn)) ** 0.5
    if abs(share - p) > 6 * spread:  # a right one is so far off once in a billion times
        return f"drops {share:.1%} of its units; its p is {p:g}"
    factors = [each.factor for each in drawn if bool(each.kept.any())]
    if wrong := [factor for factor in factors if abs(factor * (1 - p) - 1) > 1e-6]:
        return f"multiplies what it keeps by {wrong[0]:g}; its p is {p:g}"
    return None
