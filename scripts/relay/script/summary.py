"""The summary of a command's run: what was observed of it in all of its jobs, put together. Needs no torch."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

from relay.spec.run import Run
from relay.training.summary import described, quantiles, recorded, remarks, thinned

Lines = list[dict[str, Any]]
CENT = 100.0  # an accuracy above 1 is in per cent


def summarise(run: Run, work: Path) -> dict[str, Any]:
    """The summary of a command that has ended. Raises UserError where its records are gone."""
    chain, lines = recorded(run, work)
    counted = _counted(lines)
    measured = [block for start, blocks in counted for block in _after_warm_up(run, start, blocks)]
    seconds, steps = math.fsum(b[2] for b in measured), int(sum(b[1] - b[0] for b in measured))
    trained = [math.fsum(block[2] for block in blocks) for _, blocks in counted]
    losses, accuracies = _values(lines, "loss"), _values(lines, "accuracy")
    accuracy = accuracies[-1][1] if accuracies else None
    wrong = next((value for _, value in losses if not math.isfinite(value)), None)
    refused = "" if wrong is None else f"the loss that the command printed is {wrong}: the training diverged"
    return {
        **described(run, work, chain, _from_first_step(lines), trained),
        "status": "failed" if refused else "done",
        "reason": refused or remarks(run, steps, chain, lines),
        "samples_per_second": math.fsum(b[4] for b in measured) / seconds if seconds else None,
        "measured_steps": steps,
        **(quantiles(measured) if run.strategy.script and run.strategy.script.counts != "runs" else quantiles([])),
        "data_wait_fraction": None,
        "test_accuracy": accuracy / CENT if accuracy is not None and accuracy > 1 else accuracy,
        "test_loss": None,
        "test_metric": None,
        "train_loss": losses[-1][1] if losses else None,
        "evaluations": [],
        "losses": thinned(losses),
        "steps_reached": max((line.get("step", 0) for found in lines for line in found), default=0),
    }


def _counted(lines: list[Lines]) -> list[tuple[int, list[list[float]]]]:
    """The first step and the blocks of each attempt that left records, without the steps that a later one did again."""
    counted: list[tuple[int, list[list[float]]]] = []
    limit = math.inf
    for found in reversed([each for each in lines if each]):
        blocks = [block for line in found for block in line.get("blocks", ())]
        start = int(blocks[0][0]) if blocks else 0
        counted.append((start, [block for block in blocks if block[1] <= limit]))
        limit = min(limit, start) if blocks else limit
    return counted[::-1]


def _after_warm_up(run: Run, start: int, blocks: list[list[float]]) -> list[list[float]]:
    """The blocks that are timed. Speeds that a command prints are counted, not steps: all but the first."""
    script = run.strategy.script
    if script is None or script.counts == "runs" or "samples_per_second" in script.read:
        return blocks
    return [block for block in blocks if block[0] >= start + run.length.warmup_steps]


def _values(lines: list[Lines], name: str) -> list[tuple[int, float]]:
    """What a pattern has found, each with the step at which it was written down, or its number."""
    told = [(int(line.get("step") or 0), value) for found in lines for line in found for value in _of(line, name)]
    rising = all(one[0] < other[0] for one, other in pairwise(told))
    return told if rising else [(number, value) for number, (_, value) in enumerate(told, 1)]


def _of(line: dict[str, Any], name: str) -> list[float]:
    found: list[float] = (line.get("read") or {}).get(name, [])
    return found


def _from_first_step(lines: list[Lines]) -> list[Lines]:
    """The lines, whose first one is told at the first step: what comes before that is loading."""
    moved = []
    for found in lines:
        first_at = next((line["first_at"] for line in found if line.get("first_at")), None)
        moved.append([found[0] | {"time": first_at}, *found[1:]] if found and first_at else found)
    return moved
