"""Gates as the workflow runs them: planned from a config, on the real digits, each in processes of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from relay.base.files import read_json
from relay.datasets.prepare import prepare
from relay.datasets.request import Request
from relay.equivalence.job import run_gate, run_reference
from relay.planning import config
from relay.planning.planner import plan
from relay.spec import requirements
from relay.spec.catalogue import DATASETS, DatasetSpec
from relay.spec.run import Run

FOLDER = Path(__file__).resolve().parents[1] / "strategies"
# Every planted fault shows within so many of the gate's own 200 steps.
FEW_STEPS = 20


def planned(
    strategy: str, devices: int | None = None, *, task: str = "lenet-digits", **comparison: Any
) -> tuple[Run, Run]:
    """The gate of a strategy on CPUs, and that gate's reference, as the planner makes them.

    `devices` are two where nothing is said, or one for a strategy of a single process.
    """
    if devices is None:
        needs = requirements.read(requirements.find([FOLDER])[strategy])
        devices = 1 if needs.processes == "one" else 2
    asked = {
        "strategy_folders": [str(FOLDER)],
        "device": "cpu",
        "task": task,
        "comparisons": [{"strategy": strategy, "devices_per_node": devices, **comparison}],
    }
    made = plan(config.load(asked), gpus=0)
    assert not made.skipped, made.skipped
    (gate,) = made.gates.values()
    return gate, made.references[made.reference_of[gate.id]]


def shortened(run: Run, steps: int) -> Run:
    """The run with fewer steps, under a name of its own."""
    name, epochs = f"{run.id}-{steps}", steps / run.steps_per_epoch
    return replace(run, id=name, setting=name, epochs=epochs, total_steps=steps, evaluate_every_steps=steps)


@dataclass
class Gates:
    """A results directory with the prepared digits, in which each reference is trained once."""

    results: Path
    trained: set[str] = field(default_factory=set)

    @classmethod
    def below(cls, results: Path) -> Gates:
        """Prepare the digits there; other datasets follow when they are asked for."""
        gates = cls(results)
        gates.dataset(DATASETS["digits"])
        return gates

    @property
    def digits(self) -> Path:
        """The prepared dataset."""
        return self.results / "datasets" / "digits"

    def dataset(self, spec: DatasetSpec) -> None:
        """Prepare the dataset where it is not there yet."""
        place = self.results / "datasets" / spec.directory_name
        if not place.is_dir():
            prepare(Request.from_mapping(vars(spec)), place)

    def verdict(self, strategy: str, devices: int | None = None, *, steps: int | None = None, **comparison: Any) -> Any:
        """The strategy's verdict after so many steps (None: as many as the gate has); `task` and axes by name."""
        status, output = self.judge(strategy, devices, steps=steps, **comparison)
        assert status == 0
        return read_json(output)

    def judge(
        self, strategy: str, devices: int | None = None, *, steps: int | None = None, **comparison: Any
    ) -> tuple[int, Path]:
        """The exit status of the gate's job, and where its verdict goes."""
        gate, reference = planned(strategy, devices, **comparison)
        if steps is not None:
            gate, reference = shortened(gate, steps), shortened(reference, steps)
        self.dataset(gate.dataset)
        place = self.results / "equivalence" / "gates" / gate.id
        gate.write(place / "gate.json")
        output = place / "verdict.json"
        return run_gate(place / "gate.json", self.reference(reference), self.results, output), output

    def reference(self, run: Run) -> Path:
        """The file of that trained reference."""
        place = self.results / "equivalence" / "references" / run.id
        if run.id not in self.trained:
            run.write(place / "reference.json")
            assert run_reference(place / "reference.json", self.results, place / "reference.pt", attempt=1) == 0
            self.trained.add(run.id)
        return place / "reference.pt"
