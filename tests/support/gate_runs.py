"""Gates as the workflow runs them: planned from a config, on the real digits, each in processes of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import plans
import preloaded
from relay.base.files import read_json
from relay.datasets.public import SOURCES
from relay.equivalence.job import run_gate
from relay.launch.launcher import Start
from relay.run_folder import faults
from relay.spec import strategy_files
from relay.spec.run import Gate, Reference, Training, changed
from relay.spec.tasks import Looked
from shared import once
from short_tasks import at_hand, looked, prepare_at_hand

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
FOLDER = Path(__file__).resolve().parents[1] / "strategies"
# Every planted fault shows within so many of the gate's own 100 steps.
FEW_STEPS = 5
SIDE = 16  # of the random images that ResNets get
Kind = TypeVar("Kind", bound=Training)


def planned(
    strategy: str,
    devices: int | None = None,
    *,
    task: str = "lenet-digits",
    folders: Sequence[Path] = (),
    device: str = "cpu",
    cuda_graph: bool = False,
    **comparison: Any,
) -> tuple[Gate, Reference]:
    """The gate of a strategy, and that gate's reference, as the planner makes them.

    `devices` are two where nothing is said, or one for a strategy of a single process. `folders` have further
    strategies. `cuda_graph`: a further trial on pretended GPUs.
    """
    if devices is None:
        needs = strategy_files.read(strategy_files.find([FOLDER, *folders])[strategy])
        devices = 1 if needs.processes == "one" else 2
    made = plans.planned(
        {"strategy": strategy, "devices_per_node": devices, **comparison},
        gpus=devices if device == "cuda" else 0,
        strategy_folders=[str(FOLDER), *map(str, folders)],
        device=device,
        task=task,
        cuda_graph=cuda_graph,
    )
    assert not made.skipped, made.skipped
    (gate,) = made.gates.values()
    checks: tuple[Gate, Reference] = gate, made.references[made.reference_of[gate.id]]
    return tuple(map(synthetic, checks)) if gate.dataset.name in SOURCES else checks


def shortened(check: Kind, steps: int) -> Kind:
    """The gate or reference with fewer steps, under a name of its own."""
    name, epochs = f"{check.id}-{steps}", steps / check.length.steps_per_epoch
    return changed(check, id=name, epochs=epochs, total_steps=steps, evaluate_every_steps=steps)


def synthetic(check: Kind) -> Kind:
    """The gate or reference on random data; ResNet's images are small ones."""
    task = check.task
    if task.name.startswith("resnet18"):
        task = replace(task, options={**task.options, "side": SIDE})
    data = at_hand(task, check.dataset)
    per_epoch = data.train_count // check.batch.global_batch_size
    return changed(check, task=task, dataset=data, steps_per_epoch=per_epoch)


@dataclass
class Gates:
    """A results directory of a test's own; datasets and trained references are the session's, made once."""

    results: Path
    session: Path

    def __post_init__(self) -> None:
        (self.session / "datasets").mkdir(parents=True, exist_ok=True)
        (self.results / "datasets").symlink_to(self.session / "datasets")

    @property
    def digits(self) -> Path:
        """The prepared dataset."""
        return self.dataset(looked("lenet-digits"))

    def dataset(self, of: Training | Looked) -> Path:
        """The prepared data of a run, or of a task."""
        place = self.session / "datasets" / of.dataset.directory_name
        return once(place, lambda folder: prepare_at_hand(of.task, of.dataset, folder))

    def verdict(self, strategy: str, devices: int | None = None, **chosen: Any) -> Any:
        """The strategy's verdict, `chosen` as in `judge`."""
        status, output = self.judge(strategy, devices, **chosen)
        assert status == 0
        return read_json(output)

    def judge(
        self,
        strategy: str,
        devices: int | None = None,
        *,
        steps: int | None = None,
        trained: Path | None = None,
        start: Start = preloaded.start,
        attempt: int = 1,
        **comparison: Any,
    ) -> tuple[int, Path]:
        """The exit status of the gate's job, and where its verdict goes.

        It has so many steps (None: as many as the gate has); `task` and axes by name. `trained` is the file of another
        reference than the gate's own. `start` starts its processes: as forks that have torch imported, where nothing
        else is said.
        """
        gate, reference = planned(strategy, devices, **comparison)
        if steps is not None:
            gate, reference = shortened(gate, steps), shortened(reference, steps)
        place = self.results / "equivalence" / "gates" / gate.id
        gate.write(place / "gate.json")
        output, known = place / "verdict.json", trained or self.reference(reference)
        return run_gate(place / "gate.json", known, self.results, output, attempt, start), output

    def reference(self, run: Reference) -> Path:
        """The file of that trained reference."""
        return once(self.session / "references" / run.id, lambda folder: self._train(run, folder)) / "reference.pt"

    def _train(self, run: Reference, folder: Path) -> None:
        specification = folder / "reference.json"
        run.write(specification)
        arguments = ["--spec", specification, "--dataset", self.dataset(run)]
        arguments += ["--output", folder / "reference.pt"]
        status = preloaded.start(specification, "equivalence.reference", folder, [*map(str, arguments)], SCRIPTS)
        assert status == 0, faults.collect(folder)
