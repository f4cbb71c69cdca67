"""What was measured of some strategies of a plan, before they are compared with others: a line for each setting."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from relay.comparison.columns import Row, category, told_speed
from relay.comparison.inputs import inputs_of
from relay.comparison.table import comparison_rows
from relay.comparison.wording import number, spread
from relay.spec.labels import setting_labels


def lines(plan: Mapping[str, Any], results: Path, strategies: Collection[str]) -> Iterator[str]:
    """Speed and proof of each setting of `strategies`. `plan` is the content of a plan.json."""
    rows = comparison_rows(inputs_of(plan, results / "plan.json", results, partial=True))
    for row, label in zip(rows, setting_labels(rows), strict=True):
        if row["strategy"] in strategies:
            yield f"{row['strategy']} ({label}): {_measured(row)}"
    yield f"This is no comparison. The same call without {' '.join(sorted(strategies))} compares all settings."


def _measured(row: Row) -> str:
    kind = category(row)
    if kind not in ("done", "struck out"):
        return f"{kind}: {row['reason']}"
    speed = told_speed(row)
    told = " ".join(filter(None, (number(speed), spread(row)))) if speed else "not timed"
    repeats = f"{row['repeats']} repeat{'s' if row['repeats'] != 1 else ''}"
    against = row["reason"] if row["unproven"] else f"NOT proven: {row['reason']}"
    proof = "proven to train the same as one process" if row["equivalent"] else against
    return f"{told} {row['unit']}/s in {repeats}; {proof}" if speed else f"{told}; {proof}"
