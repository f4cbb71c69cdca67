"""The gates and references of a plan: which runs share one, and when one is run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plans import CPU, DDP, ROOT, edit, planned, strategy_folder
from relay.spec.identity import module_sources, strategy_sources
from relay.spec.requirements import BUILT_IN

pytest_plugins = ["plans"]
pytestmark = pytest.mark.usefixtures("in_the_project")


def test_a_gate_serves_all_runs_that_it_bears_on() -> None:
    found = planned(
        CPU | {"cpus_per_task": [1, 2], "loader": ["resident", "dataloader"]},
        DDP | {"devices_per_node": [2, 4], "segment": {"epochs": 3}},
        repeats=3,
    )
    assert len(found.runs) == 18
    assert sorted((g.strategy.name, g.shape.devices) for g in found.gates.values()) == [
        ("cpu", 1),
        ("ddp", 2),
        ("ddp", 4),
    ]
    assert len(found.references) == 1
    assert {found.gates[found.gate(run)].strategy.name for run in found.runs_of("ddp")} == {"ddp"}
    for name, gate in found.gates.items():
        assert (gate.id, gate.seed, gate.length.total_steps) == (name, 20260, 200)
        assert (gate.feeding.loader, gate.shape.threads, gate.shape.cpus_per_task) == ("resident", 1, 1)
        assert found.reference_of[name] in found.references
    (reference,) = found.references.values()
    assert reference.id.startswith("lenet-digits-")
    assert (reference.strategy.name, reference.shape.world_size, reference.shape.launcher) == ("reference", 1, "none")


@pytest.mark.parametrize(
    ("axis", "references"),
    [
        ({"global_batch_size": [32, 64]}, 2),
        ({"precision": ["fp32", "fp64"]}, 2),
        ({"learning_rate_scaling": ["none", "linear"], "global_batch_size": 128}, 2),
        ({"devices_per_node": [2, 4]}, 1),
    ],
)
def test_what_bears_on_equivalence_has_its_own_gate(axis: dict[str, Any], references: int) -> None:
    found = planned(DDP | axis)
    assert len(found.gates) == 2
    assert len(found.references) == references


def test_equal_learning_rates_share_a_gate_however_they_came_about() -> None:
    assert len(planned(DDP | {"learning_rate_scaling": ["none", "linear", "square_root"]}).gates) == 1


def test_a_gate_is_run_again_when_its_code_or_the_strategy_changes(tmp_path: Path, project: Path) -> None:
    folder = strategy_folder(tmp_path / "own", "mine", "processes='one'")
    (tmp_path / "own/_helper.py").write_text("FACTOR = 1\n")

    def look() -> tuple[str, str, str]:
        found = planned({"strategy": "mine"}, strategy_folders=[folder], root=project)
        (run,), (gate,), (reference,) = found.runs, found.gates, found.references
        return run.id, gate, reference

    run, gate, reference = look()
    edit(tmp_path / "own/mine.py", "# as the reference", "# unlike the reference")
    assert look() == (run, gate, reference)
    edit(tmp_path / "own/mine.py", "self.build_whole()", "self.build_whole(); self.extra = 1")
    second = look()
    assert (second[0], second[1] != gate, second[2]) == (run, True, reference)
    edit(tmp_path / "own/_helper.py", "1", "2")
    third = look()
    assert third[1] not in (gate, second[1])
    with (project / "scripts/relay/equivalence/gate.py").open("a") as file:
        file.write("\nFURTHER = 1\n")
    fourth = look()
    assert (fourth[0], fourth[1] != third[1], fourth[2]) == (run, True, reference)
    with (project / "scripts/relay/equivalence/trials.py").open("a") as file:
        file.write("\nFURTHER = 1\n")
    assert look()[2] != reference


def test_what_a_gate_depends_on_follows_from_imports() -> None:
    names = {str(p.relative_to(ROOT / "scripts/relay")) for p in module_sources(ROOT, "equivalence.gate")}
    assert {"equivalence/gate.py", "equivalence/trials.py", "process/ranks.py", "task/data.py", "spec/run.py"} <= names
    assert not any(name.startswith(("training/", "planning/", "comparison/")) for name in names)


def test_a_strategys_sources_are_what_it_imports(tmp_path: Path) -> None:
    path = Path(strategy_folder(tmp_path, "mine", "")) / "mine.py"
    edit(path, "from relay", "from relay.strategies.ddp import DDP\nfrom relay")
    own, cpu, pipeline = (
        {p.name for p in strategy_sources(file)} for file in (path, BUILT_IN / "cpu.py", BUILT_IN / "pipeline.py")
    )
    assert {"base.py", "ddp.py", "mine.py", "_scaler.py", "task.py"} <= own
    assert {"base.py", "cpu.py", "_scaler.py", "task.py"} <= cpu
    assert "ddp.py" not in cpu
    assert "_cut.py" in pipeline
    assert not {"run.py", "ranks.py"} & pipeline  # what computes nothing decides no run's identity
