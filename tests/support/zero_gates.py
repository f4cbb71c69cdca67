"""The gates of DeepSpeed's strategies: a world size's gates share their processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gate_runs import FEW_STEPS, Gates, planned, shortened
from preloaded import spawned
from relay import strategies
from relay.equivalence import gate
from relay.process.ranks import Ranks
from relay.spec.run import Run


def named(cell: dict[str, Any]) -> str:
    """A cell in one word."""
    return "-".join("-".join(value) if isinstance(value, dict) else str(value) for value in cell.values())


def judged(gates: Gates, cells: list[dict[str, Any]], world_size: int, place: Path) -> dict[str, Any]:
    """The verdicts of gates, by their cells' names. A cell is what `gate_runs.planned` takes."""
    asked = []
    for cell in cells:
        run, plain = planned(devices=world_size, **cell)
        trained = gates.reference(shortened(plain, FEW_STEPS))
        asked.append((named(cell), shortened(run, FEW_STEPS), gates.dataset(run), trained))
    spawned(_judge, world_size, asked, place)
    return {name: json.loads((place / f"{name}.json").read_text()) for name, *_ in asked}


def _judge(ranks: Ranks, asked: list[tuple[str, Run, Path, Path]], place: Path) -> None:
    for name, run, dataset, trained in asked:
        with strategies.service(run):
            verdict = gate.judge(run, dataset, trained, ranks, place / "checkpoints")
            ranks.barrier()
        if ranks.rank == 0:
            (place / f"{name}.json").write_text(json.dumps(verdict.as_dict()))
