"""Gates as the workflow runs them: planned from a config, on real digits, each in processes of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from relay import config
from relay.catalogue import DATASETS
from relay.datasets.prepare import prepare
from relay.datasets.request import Request
from relay.equivalence import run_gate, run_reference
from relay.files import read_json
from relay.planning import plan
from relay.run import Run

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "strategies"
# Enough for every planted fault, and a third of the time of the gate's own 200.
FEW_STEPS = 60


def planned(strategy: str, devices: int = 2, **comparison: Any) -> tuple[Run, Run]:
    """The gate of a strategy on CPUs, and that gate's reference, as the planner makes them."""
    settings = {
        "strategy_folders": [str(FOLDER)],
        "device": "cpu",
        "comparisons": [{"strategy": strategy, "devices_per_node": devices, **comparison}],
    }
    made = plan(config.load(settings), gpus=0)
    assert not made.skipped, made.skipped
    (gate,) = made.gates.values()
    return gate, made.references[made.reference_of[gate.id]]


def shortened(run: Run, steps: int) -> Run:
    """The run with fewer steps, under a name of its own."""
    epochs = steps / run.steps_per_epoch
    name = f"{run.id}-{steps}"
    return replace(run, id=name, setting=name, epochs=epochs, total_steps=steps, evaluate_every_steps=steps)


@dataclass
class Gates:
    """A results directory with the prepared digits; each reference is trained once."""

    results: Path
    trained: set[str] = field(default_factory=set)

    @classmethod
    def below(cls, results: Path) -> Gates:
        """Prepare the digits there."""
        digits = DATASETS["digits"]
        prepare(Request.from_mapping(vars(digits)), results / "datasets" / digits.directory_name)
        return cls(results)

    def verdict(self, strategy: str, devices: int = 2, steps: int | None = None, **comparison: Any) -> dict[str, Any]:
        """The strategy's verdict after so many steps; None: as many as the gate has."""
        gate, reference = planned(strategy, devices, **comparison)
        if steps is not None:
            gate, reference = shortened(gate, steps), shortened(reference, steps)
        place = self.results / "equivalence" / "gates" / gate.id
        gate.write(place / "gate.json")
        assert run_gate(place / "gate.json", self.reference(reference), self.results, place / "verdict.json") == 0
        verdict: dict[str, Any] = read_json(place / "verdict.json")
        assert verdict["gate"] == gate.id
        return verdict

    def reference(self, run: Run) -> Path:
        """The file of that trained reference."""
        place = self.results / "equivalence" / "references" / run.id
        if run.id not in self.trained:
            run.write(place / "reference.json")
            assert run_reference(place / "reference.json", self.results, place / "reference.pt") == 0
            self.trained.add(run.id)
        return place / "reference.pt"
