"""What a run has recorded, over all attempts of its chain."""

from __future__ import annotations

from pathlib import Path

from relay.run_folder import run_chain
from relay.run_folder.attempts import Line, counted


def kept_losses(work: Path) -> dict[int, float]:
    """The training loss of each step that was kept, over all attempts."""
    return {
        step: loss
        for each in counted([records for _, records in run_chain.recorded(work)])
        for step, loss in each.losses
    }


def kept_lines(work: Path) -> list[Line]:
    """The lines of all attempts of the chain."""
    return [line for _, records in run_chain.recorded(work) for line in records.lines]
