"""What a run has recorded, over all attempts of its chain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relay.run_folder import run_chain


def kept_losses(work: Path) -> dict[int, float]:
    """The training loss of each step that was kept, over all attempts."""
    losses: dict[int, float] = {}
    for lines in kept_lines(work):
        step = lines[0]["start"]
        if any(line.get("losses") for line in lines):
            losses = {earlier: loss for earlier, loss in losses.items() if earlier <= step}
        for line in lines:
            step = line.get("after", step)  # a line before it may be lost
            for loss in line.get("losses", []):
                step += 1
                losses[step] = loss
    return losses


def kept_lines(work: Path) -> list[list[dict[str, Any]]]:
    """The lines of each attempt of the chain that has left records."""
    return [lines for _, lines in run_chain.recorded(work) if lines]
