"""Gates of strategies that a test writes itself, in a folder of its own, on the digits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import preloaded
from gate_runs import FEW_STEPS, Gates, shortened
from relay.base.files import read_json
from relay.config import config
from relay.equivalence.job import run_gate
from relay.launch.job import Start
from relay.planning.planner import plan

RIGHT = '''\
"""Right: a strategy of a test's own."""

import os
from contextlib import contextmanager
from pathlib import Path

from relay.strategies.base import Requirements, Strategy


class Own(Strategy):
    """The whole batch in one process."""

    requirements = Requirements(processes="one"{requirements})

    def build(self, **options):
        self.build_whole()
{more}
'''


def own_strategy(folder: Path, name: str = "mine", *, requirements: str = "", more: str = "") -> Path:
    """The file of a strategy of one process. `requirements` and `more` (indented) are added to its class."""
    path = folder / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RIGHT.format(requirements=f", {requirements}" if requirements else "", more=more))
    return path


@dataclass
class Judged:
    """The exit status of a gate's job, and its verdict (None without one)."""

    status: int
    output: Path

    @property
    def verdict(self) -> Any:
        return read_json(self.output)


def judged(
    gates: Gates,
    path: Path,
    *,
    start: Start = preloaded.start,
    reference: Path | None = None,
    attempt: int = 1,
    **comparison: Any,
) -> Judged:
    """Judge the strategy of this file after a few steps; against the file `reference` where it is given."""
    asked = {
        "strategy_folders": [str(path.parent)],
        "device": "cpu",
        "task": "lenet-digits",
        "comparisons": [{"strategy": path.stem, **comparison}],
    }
    made = plan(config.load(asked), gpus=0)
    assert not made.skipped, made.skipped
    (gate,) = made.gates.values()
    known = reference or gates.reference(shortened(made.references[made.reference_of[gate.id]], FEW_STEPS))
    gate = shortened(gate, FEW_STEPS)
    place = gates.results / "equivalence" / "gates" / gate.id
    gate.write(place / "gate.json")
    output = place / "verdict.json"
    status = run_gate(place / "gate.json", known, gates.results, output, attempt, start)
    return Judged(status, output)
