"""The records that a run's attempts leave behind: one file of lines for each.

A line is a JSON object. The first of an attempt has `start`, the step it went on from, and the ranks' facts; the
last one `end`, the step it reached. An attempt that was killed has no last line. Steps after the checkpoint from which
the next attempt went on were trained again: they do not count.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def attempt_path(work: Path, attempt: int) -> Path:
    """Where the records of an attempt lie."""
    return work / "records" / f"attempt-{attempt:04}.jsonl"


def read(work: Path, attempt: int) -> list[dict[str, Any]]:
    """An attempt's lines; a last line that was cut off by a kill is left out."""
    try:
        lines = attempt_path(work, attempt).read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def not_finite(losses: Iterable[tuple[int, float]], evaluations: Iterable[Mapping[str, Any]]) -> str:
    """Which loss is no number or infinite, and what to do; '' where all are finite.

    `losses` are (step, training loss); of `evaluations` it reads `step` and `test_loss`.
    """
    found = [(step, "the training loss", loss) for step, loss in losses if not math.isfinite(loss)]
    found += [(e["step"], "the test loss", e["test_loss"]) for e in evaluations if not math.isfinite(e["test_loss"])]
    if not found:
        return ""
    step, which, value = min(found)
    return (
        f"{which} of step {step} is {value}: the training diverged; try a smaller `learning_rate`, "
        "or precision fp32 where it is a lower one"
    )
