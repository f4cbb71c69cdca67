"""The gates and references of a plan: which runs share one, and when one is run again."""

from pathlib import Path

import pytest

from plans import CPU, DDP, edit, planned, strategy_folder
from relay.spec.run import OwnBatch

pytestmark = pytest.mark.usefixtures("in_the_project")


def test_a_gate_serves_all_runs_that_it_bears_on() -> None:
    found = planned(
        CPU | {"cpus_per_task": [1, 2], "loader": ["resident", "dataloader"]},
        DDP | {"devices_per_node": [2, 4], "segment": {"epochs": 3}},
        repeats=3,
    )
    assert len(found.runs) == 18
    of_gates = {(gate.strategy.name, gate.shape.devices) for gate in found.gates.values()}
    assert (of_gates, len(found.gates)) == ({("cpu", 1), ("ddp", 2), ("ddp", 4)}, 3)
    assert len(found.references) == 1
    assert {found.gates[found.gate(run)].strategy.name for run in found.runs_of("ddp")} == {"ddp"}
    for name, gate in found.gates.items():
        assert (gate.id, gate.seed, gate.length.total_steps) == (name, 20260, 100)
        assert gate.feeding.loader == "resident"
        assert gate.batch.global_batch_size == 16
        assert gate.own_batches == (OwnBatch(global_batch_size=64, learning_rate=0.02),)
        assert found.reference_of[name] in found.references
    (reference,) = found.references.values()
    assert reference.id.startswith("lenet-digits-")
    assert (reference.strategy.name, reference.shape.world_size, reference.shape.launcher) == ("reference", 1, "none")


def test_settings_that_differ_in_their_batch_share_a_gate_that_trains_at_each() -> None:
    found = planned(DDP | {"global_batch_size": [512, 64], "learning_rate_scaling": ["none", "linear"]})
    (gate,) = found.gates.values()
    assert gate.batch.global_batch_size == 16
    assert gate.task.learning_rate == 0.02
    # 64 is the task's own batch, for which nothing is scaled
    own_batches = [(own.global_batch_size, own.learning_rate) for own in gate.own_batches]
    assert own_batches == [(64, 0.02), (512, 0.02), (512, 0.16)]
    (one,) = planned(DDP | {"global_batch_size": 64}).gates.values()
    assert one.id != gate.id
    assert one.own_batches == gate.own_batches[:1]
    assert set(planned(DDP | {"global_batch_size": 64}).references) == set(found.references)
    assert set(planned(DDP | {"precision": "fp64"}).references) != set(found.references)


def test_the_proof_batch_is_small_and_divided_as_the_runs_own() -> None:
    for batch, comparison in {
        16: CPU,
        32: DDP | {"devices_per_node": 4, "options": {"accumulation": 8}},
        18: DDP | {"devices_per_node": 3, "global_batch_size": 96},
    }.items():
        (gate,) = planned(comparison).gates.values()
        assert gate.batch.global_batch_size == batch
        assert gate.length.steps_per_epoch == gate.dataset.train_count // batch


def test_a_strategys_own_need_bears_on_the_proof_batch(tmp_path: Path) -> None:
    folder = strategy_folder(tmp_path / "own", "mine", "processes='one', needs=('many',)")
    with (tmp_path / "own/mine.py").open("a") as file:
        file.write(
            "\n\ndef many(setting, group, stages):\n"
            "    return None if setting.batch.global_batch_size >= 40 else 'needs 40 samples'\n"
        )
    (gate,) = planned({"strategy": "mine"}, strategy_folders=[folder]).gates.values()
    assert gate.batch.global_batch_size == 40


def test_a_gate_is_run_again_when_its_code_or_the_strategy_changes(tmp_path: Path, project: Path) -> None:
    folder = strategy_folder(tmp_path / "own", "mine", "processes='one', files=('rates.json',)")
    (tmp_path / "own/rates.json").write_text("1")
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
    edit(tmp_path / "own/rates.json", "1", "2")  # which the strategy declares
    assert look()[1] != third[1]
    edit(tmp_path / "own/rates.json", "2", "1")
    edit(project / "scripts/relay/equivalence/gate.py", "\n\n\n", "\n\nFURTHER = 1\n\n\n")
    fourth = look()
    assert (fourth[0], fourth[1] != third[1], fourth[2]) == (run, True, reference)
    edit(project / "scripts/relay/equivalence/trials.py", "\n\n\n", "\n\nFURTHER = 1\n\n\n")
    assert look()[2] != reference
