"""Which samples of a batch are not finite: looked at only where a loss is not, so that no step waits for it."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

from relay.task import batches
from relay.task.batches import Batch
from relay.task.split import Chosen, Split

SECONDS = 60.0  # for which further batches are read
ADVICE = "mend the data, or leave such samples out of datasets()"


def reason(batch: Batch, positions: torch.Tensor, split: Split) -> str:
    """Such as `, because batch[0] is nan in sample 77 of the training set; …`; '' where all numbers are finite.

    `positions` (n,) are the samples' numbers in the split. NaN counts before infinity. What is infinite in every
    sample, such as a mask that a model adds, is meant.
    """
    floating = [(place, part) for place, part in batches.placed(batch) if _is_floating(part)]
    for wrong, word in ((torch.isnan, "nan"), (torch.isinf, "infinite")):
        for place, tensor in floating:
            samples = wrong(tensor).reshape(len(tensor), -1).any(1).cpu()
            if samples.any() and not (word == "infinite" and samples.all()):
                numbers = sorted(positions.cpu()[samples].tolist())
                return f", because {place} is {word} in {split.numbered(numbers)}; {ADVICE}"
    return ""


def reason_of(split: Split, read: Iterable[Chosen], device: torch.device) -> str:
    """The same for the first of several batches of a split that is not finite."""
    end = time.monotonic() + SECONDS
    for which in read:
        if because := reason(split.ready(split.read(which), device), which.positions, split):
            return because
        if time.monotonic() > end:
            break
    return ""


def _is_floating(part: object) -> bool:
    return isinstance(part, torch.Tensor) and part.dim() > 0 and (part.is_floating_point() or part.is_complex())
