"""The plan: every combination runs or says why not, and a run's identity is what it computes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from relay.base.errors import UserError
from relay.planning import segments, table
from relay.planning.config import load
from relay.planning.plan import Plan
from relay.planning.planner import plan
from relay.spec.identity import lock_lines, module_sources, source_digest, strategy_sources
from relay.spec.requirements import BUILT_IN
from relay.spec.run import Run, Setting, built
from relay.spec.tasks import TASKS

ROOT = Path(__file__).resolve().parents[1]
STRATEGY = '''"""A strategy for the planner, which reads it and never runs it."""

from relay.strategies.base import Requirements, Strategy


class Made(Strategy):
    """Docstring."""

    requirements = Requirements({requirements})

    def build(self) -> None:
        self.build_whole()  # as the reference
'''


def made(folder: Path, name: str, requirements: str) -> str:
    """Writes a strategy's file; returns its folder for the config."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(STRATEGY.format(requirements=requirements))
    return str(folder)


def planned(
    *comparisons: dict[str, Any],
    gpus: int = 0,
    cpus: int = 64,
    root: Path = ROOT,
    speeds: Path = Path("none"),
    **keys: Any,
) -> Plan:
    """The plan of these comparisons, one repeat unless said otherwise."""
    config = load({"repeats": 1, "comparisons": list(comparisons), **keys})
    return plan(config, gpus=gpus, cpus=cpus, root=root, speeds=speeds)


def only(*comparisons: dict[str, Any], **keys: Any) -> Run:
    """The only run of a plan."""
    (run,) = planned(*comparisons, **keys).runs
    return run


def reasons(*comparisons: dict[str, Any], **keys: Any) -> list[str]:
    """Why everything in this plan is skipped."""
    found = planned(*comparisons, **keys)
    assert found.runs == []
    return ["; ".join(skipped.reasons) for skipped in found.skipped]


CPU = {"strategy": "cpu"}
DDP = {"strategy": "ddp", "devices_per_node": 2}


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strategy files are named from the working directory."""
    monkeypatch.chdir(ROOT)


# What runs


def test_a_run_is_resolved_to_the_last_value() -> None:
    run = only(DDP | {"cpus_per_task": 3, "loader": "dataloader", "data_workers": 2}, epochs=2)
    assert (run.strategy.file, run.stack, run.strategy.divides) == (
        "scripts/relay/strategies/ddp.py",
        "torch",
        ("samples",),
    )
    assert (run.shape.device, run.shape.backend, run.shape.launcher) == ("cpu", "gloo", "torchrun")
    assert (run.shape.processes_per_node, run.shape.world_size, run.shape.devices) == (2, 2, 2)
    assert (run.shape.cpus_per_task, run.shape.threads, run.shape.interop_threads) == (3, 3, 1)
    assert (run.feeding.loader, run.feeding.data_workers, run.computation.precision) == ("dataloader", 2, "fp32")
    assert (run.dataset.name, run.dataset.train_count, run.batch.global_batch_size) == ("digits", 1437, 64)
    assert (run.length.steps_per_epoch, run.length.total_steps, run.length.evaluate_every_steps) == (22, 44, 22)


def test_axes_expand_to_every_combination() -> None:
    table = planned(
        CPU | {"cpus_per_task": [1, 2], "loader": ["resident", "dataloader"], "global_batch_size": [32, 64]}
    )
    found = {(run.shape.cpus_per_task, run.feeding.loader, run.batch.global_batch_size) for run in table.runs}
    assert found == {(c, loader, b) for c in (1, 2) for loader in ("resident", "dataloader") for b in (32, 64)}
    assert len(table.runs) == len({run.id for run in table.runs}) == 8
    assert len({table.gate(run) for run in table.runs}) == 2  # one per batch, whatever the CPUs and the loader


def test_a_default_beside_a_value_on_one_axis() -> None:
    """Missing values among whole numbers stay whole numbers (pandas makes them NaN and 64.0 if it may)."""
    runs = planned(CPU | {"global_batch_size": [None, 32], "threads": [None, 1], "cpus_per_task": 2}).runs
    assert {(run.batch.global_batch_size, run.shape.threads) for run in runs} == {(64, 2), (64, 1), (32, 2), (32, 1)}
    assert all(type(run.batch.global_batch_size) is int for run in runs)


def test_repeats_are_interleaved_in_random_order_with_their_own_seeds() -> None:
    comparisons = [CPU | {"cpus_per_task": [1, 2, 3, 4, 5, 6]}, CPU | {"cpus_per_task": 7, "repeats": 1}]
    found = planned(*comparisons, repeats=3, seed=40)
    assert [run.repeat for run in found.runs] == [0] * 7 + [1] * 6 + [2] * 6
    assert all(run.seed == 40 + run.repeat for run in found.runs)
    orders = [[run.setting_id for run in found.runs if run.repeat == repeat] for repeat in range(3)]
    assert set(orders[1]) == set(orders[2])
    assert orders[1] != orders[2]
    assert [r.id for r in planned(*comparisons, repeats=3, seed=40).runs] == [r.id for r in found.runs]
    assert [r.shape.cpus_per_task for r in planned(*comparisons, repeats=3, seed=41).runs] != [
        r.shape.cpus_per_task for r in found.runs
    ]


def test_batch_per_device_and_the_scaling_of_the_learning_rate() -> None:
    found = planned(
        DDP
        | {
            "devices_per_node": [2, 8],
            "batch_per_device": 32,
            "learning_rate_scaling": ["none", "linear", "square_root"],
        }
    )
    rates = {(r.shape.devices, r.batch.learning_rate_scaling): r.task.learning_rate for r in found.runs}
    assert {run.batch.global_batch_size for run in found.runs} == {64, 256}
    own = TASKS["lenet-digits"].learning_rate  # which goes with a global batch of 64
    assert rates[2, "none"] == rates[2, "linear"] == rates[2, "square_root"] == rates[8, "none"] == own
    assert rates[8, "linear"] == pytest.approx(4 * own)
    assert rates[8, "square_root"] == pytest.approx(2 * own)


def test_the_configs_own_values_hold_where_a_comparison_gives_none() -> None:
    keys = {"global_batch_size": 128, "learning_rate": 0.5, "learning_rate_scaling": "linear"}
    run = only(CPU, **keys)
    assert (run.batch.global_batch_size, run.task.learning_rate) == (128, 1.0)
    run = only(CPU | {"global_batch_size": 64, "learning_rate_scaling": "none"}, **keys)
    assert (run.batch.global_batch_size, run.task.learning_rate) == (64, 0.5)


def test_synthetic_data_has_the_configured_shape() -> None:
    keys = {"synthetic": {"shape": [1, 16, 16], "train_count": 640, "classes": 4}}
    run = only(CPU, task="lenet-synthetic", **keys)
    assert (run.dataset.shape, run.dataset.train_count, run.dataset.classes) == ((1, 16, 16), 640, 4)
    assert run.length.steps_per_epoch == 10
    assert only(CPU, **keys).dataset.shape == (1, 8, 8)  # another dataset does not care


def test_options_are_axes_with_the_strategys_defaults(tmp_path: Path) -> None:
    folder = made(tmp_path, "hooked", "divides=('samples',), options={'hook': 'none', 'bucket_mb': 25.0}")
    found = planned(
        {"strategy": "hooked", "devices_per_node": 2, "options": {"bucket_mb": [1, 50]}},
        strategy_folders=[folder],
    )
    assert sorted(run.strategy.options["bucket_mb"] for run in found.runs) == [1.0, 50.0]
    assert all(run.strategy.options["hook"] == "none" for run in found.runs)
    assert len(found.gates) == 2  # a strategy with other options is another strategy to the gate
    assert found.runs[0].strategy.file == str(tmp_path / "hooked.py")


def test_what_is_asked_for_twice_runs_once() -> None:
    found = planned(CPU, CPU | {"threads": 1, "repeats": 2}, CPU | {"loader": ["resident", "resident"]})
    assert len(found.runs) == 2
    assert found.warnings == [
        f"{found.runs[0].setting_id} is in comparisons[0] and comparisons[1]: runs once, 2 repeats",
        f"{found.runs[0].setting_id} is in comparisons[0] and comparisons[2]: runs once, 2 repeats",
    ]
    with_segments = planned(CPU, CPU | {"segment": {"steps": 50}})
    assert with_segments.warnings[0].endswith("runs once, 1 repeats, with the segment of the former")
    assert with_segments.segments(with_segments.runs[0]) == [440]


# What is skipped, and why


def test_a_strategy_that_the_device_cannot_run_names_its_twin() -> None:
    found = planned(CPU, {"strategy": "single_gpu", "cpus_per_task": 4})
    assert [run.strategy.name for run in found.runs] == ["cpu"]
    (skipped,) = found.skipped
    assert skipped.reasons == ("single_gpu needs a GPU, device is cpu; use cpu instead",)
    setting = skipped.setting
    assert (setting.task.name, setting.strategy.name) == ("lenet-digits", "single_gpu")
    assert (setting.shape.cpus_per_task, setting.feeding.loader) == (4, "resident")
    assert found.strategies == ["cpu", "single_gpu"]
    assert found.runs_of("single_gpu") == []
    assert found.runs_of("cpu") == found.runs


@pytest.mark.parametrize(
    ("comparison", "reason"),
    [
        (CPU | {"threads": 4, "cpus_per_task": 2}, "threads 4 exceed cpus_per_task 2"),
        (DDP | {"devices_per_node": 3}, "global_batch_size 64 is not divisible by 3 processes"),
        (
            DDP | {"global_batch_size": 64, "batch_per_device": 16},
            "global_batch_size 64 contradicts batch_per_device 16; give one",
        ),
        (DDP | {"devices_per_node": 1}, "ddp needs at least 2 devices, has 1"),
        (
            CPU | {"data_workers": 2},
            "data_workers 2 have no work with loader resident; use loader dataloader",
        ),
        (
            CPU | {"launcher": "torchrun"},
            "launcher torchrun is for several processes, this is one; use launcher none",
        ),
        (DDP | {"launcher": "none"}, "launcher none starts one process, 2 are needed; use launcher torchrun"),
        (
            DDP | {"nodes": 2, "devices_per_node": 1},
            "2 nodes: needs a cluster profile; on one machine give devices_per_node",
        ),
        (CPU | {"nodes": 2}, "cpu is one process, which cannot span 2 nodes"),
        (
            CPU | {"devices_per_node": 2},
            "cpu uses one device, devices_per_node is 2; give cpus_per_task instead",
        ),
        (CPU | {"global_batch_size": 1438}, "global_batch_size 1438 exceeds digits's 1437 training samples"),
    ],
)
def test_a_contradiction_is_named(comparison: dict[str, Any], reason: str) -> None:
    assert reasons(comparison) == [reason]


def test_lengths_that_leave_nothing_are_named() -> None:
    assert reasons(CPU, epochs=0.01) == ["epochs 0.01 are less than one step; an epoch has 22 steps"]
    assert reasons(CPU, epochs=1, warmup_steps=22) == ["warmup_steps 22 leave none of the run's 22 steps to be timed"]
    (warning,) = planned(CPU | {"segment": {"steps": 10}}).warnings
    assert warning.endswith("(comparisons[0]) has jobs of 10 steps: warmup_steps 10 leave no step to be timed")


def test_more_threads_than_cpus_are_warned_of() -> None:
    crowd = DDP | {"devices_per_node": 4, "cpus_per_task": 2, "threads": 2}
    (warning,) = planned(crowd, cpus=4).warnings
    assert warning.endswith(
        "(comparisons[0]) computes in 4 processes of 2 threads each, this machine has 4 CPUs: "
        "its speed is not that of 8 CPUs"
    )
    assert not planned(crowd, cpus=8).warnings


def test_several_contradictions_are_all_named() -> None:
    (reason,) = reasons(DDP | {"devices_per_node": 3, "threads": 2, "data_workers": 1})
    assert reason.split("; ") == [
        "threads 2 exceed cpus_per_task 1",
        "data_workers 1 have no work with loader resident",
        "use loader dataloader",
        "global_batch_size 64 is not divisible by 3 processes",
    ]


def test_one_bad_combination_does_not_take_the_others_along() -> None:
    found = planned(DDP | {"devices_per_node": [1, 2, 3, 4]})
    assert sorted(run.shape.devices for run in found.runs) == [2, 4]
    assert [skipped.setting.shape.devices_per_node for skipped in found.skipped] == [1, 3]


def test_strategies_that_fit_nothing_here_are_skipped(tmp_path: Path) -> None:
    folder = made(tmp_path, "stacked", "processes='one', stack='sails'")
    made(tmp_path, "nickel", "backends=('nccl',)")
    made(tmp_path, "orphan", "processes='one', devices=('cuda',)")
    names = [{"strategy": name} for name in ("stacked", "nickel", "orphan")]
    assert reasons(*names, strategy_folders=[folder]) == [
        "stack sails has no lock envs/sails.txt",
        "nickel needs nccl, device cpu offers gloo",
        "orphan needs a GPU, device is cpu",
    ]


# Devices


def test_auto_takes_the_gpus_that_are_there_and_counts_them(tmp_path: Path) -> None:
    folder = made(tmp_path, "one_process", "processes='one', devices=('cuda',), divides=('samples',)")
    comparisons = [
        CPU,
        {"strategy": "single_gpu", "devices_per_node": [1, 2]},
        DDP | {"devices_per_node": [2, 4]},
    ]
    comparisons.append({"strategy": "one_process", "devices_per_node": 2})
    found = planned(*comparisons, gpus=2, strategy_folders=[folder])
    shapes = {
        (r.strategy.name, r.shape.device, r.shape.backend, r.shape.launcher, r.shape.devices, r.shape.world_size)
        for r in found.runs
    }
    assert shapes == {
        ("cpu", "cpu", "gloo", "none", 1, 1),  # for comparison: CPUs are there, too
        ("single_gpu", "cuda", "nccl", "none", 1, 1),
        ("ddp", "cuda", "nccl", "torchrun", 2, 2),
        ("one_process", "cuda", "nccl", "none", 2, 1),
    }
    assert ["; ".join(skipped.reasons) for skipped in found.skipped] == [
        "single_gpu uses one device, devices_per_node is 2",
        "devices_per_node is 4, this machine has 2 GPUs",
    ]


def test_a_device_that_is_asked_for_is_believed() -> None:
    """The machine that plans may have no GPU, as login nodes do."""
    run = only({"strategy": "single_gpu"}, device="cuda", gpus=0)
    assert run.shape.device == "cuda"
    assert only(DDP, device="cpu", gpus=8).shape.device == "cpu"


# Identity


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what identity depends on."""
    root = tmp_path / "project"
    for name in ("scripts", "envs"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_an_id_survives_edits_that_change_no_code(project: Path) -> None:
    before = only(CPU, root=project)
    network = project / "scripts/relay/networks/lenet.py"
    text = network.read_text()
    network.write_text('"""Another docstring."""\n\n# A comment.\n' + text.split('"""', 2)[2] + "\n\n")
    edit(project / "scripts/relay/task/task.py", "class Task:\n", "class Task:\n\n\n")
    assert source_digest([network]) == source_digest([ROOT / "scripts/relay/networks/lenet.py"])
    assert only(CPU, root=project).id == before.id


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("scripts/relay/networks/lenet.py", "nn.Linear(120, 84)", "nn.Linear(120, 80)"),
        (
            "scripts/relay/task/task.py",
            "return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())",
            "return 2 * F.cross_entropy(outputs.flatten(0, -2), targets.flatten())",
        ),
        ("envs/torch.txt", "torch==2.13.0", "torch==2.13.1"),
    ],
)
def test_an_id_changes_with_the_tasks_source_and_the_lock(project: Path, file: str, old: str, new: str) -> None:
    before = only(CPU, root=project)
    edit(project / file, old, new)
    after = only(CPU, root=project)
    assert (after.id != before.id, after.setting_id != before.setting_id) == (True, True)


def test_only_what_changes_the_result_is_identity(tmp_path: Path) -> None:
    before = only(DDP)
    same = [
        only(DDP, checkpoint_minutes=1, warmup_steps=3, evaluate_every_epochs=2, runtime_minutes=5, margin=0.1),
        only(DDP | {"segment": {"steps": 100}}),
        only(DDP, gate={"seed": 3}),
    ]
    assert {run.id for run in same} == {before.id}
    other = [
        only(DDP, seed=2),
        only(DDP, epochs=21),
        only(DDP, learning_rate=0.04),
        only(DDP, task="lenet-synthetic"),
        only(DDP | {"devices_per_node": 4}),
        only(DDP | {"cpus_per_task": 2}),
        only(DDP | {"cpus_per_task": 2, "threads": 1}),
        only(DDP | {"interop_threads": 2}),
        only(DDP | {"loader": "dataloader"}),
        only(DDP | {"precision": "fp64"}),
        only(DDP | {"learning_rate_scaling": "linear"}),
        only(DDP | {"global_batch_size": 32}),
    ]
    assert len({run.id for run in [before, *other]}) == 1 + len(other)


def test_repeats_share_their_setting_and_ids_are_readable() -> None:
    first, second = planned(CPU, repeats=2).runs
    assert first.setting_id == second.setting_id
    assert len({first.id, second.id, first.setting_id}) == 3
    assert first.id.startswith("cpu-")
    assert len(first.id) == len("cpu-") + 12


def test_a_run_read_back_has_the_same_identity(tmp_path: Path) -> None:
    """Tuples become lists in run.json: that must not make it another run."""
    run = only(DDP)
    run.write(tmp_path / "run.json")
    assert Run.read(tmp_path / "run.json") == run
    json.dumps(asdict(run))


def test_a_lock_counts_by_names_and_versions(tmp_path: Path) -> None:
    lock = tmp_path / "torch.txt"
    lock.write_text(
        "# made\nTorch_Vision==0.28.0 \\\n    --hash=sha256:aa==bb\n"
        "attrs==25.1 ; python_version < '3.12' \\\n    --hash=x\n"
    )
    assert lock_lines(lock) == ["attrs==25.1", "torch-vision==0.28.0"]
    lock.write_text("# empty\n")
    with pytest.raises(UserError, match=r"torch\.txt: no line of the form name==version"):
        lock_lines(lock)


# Gates and references


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
    folder = made(tmp_path / "own", "mine", "processes='one'")
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
    path = Path(made(tmp_path, "mine", "")) / "mine.py"
    edit(path, "from relay", "from relay.strategies.ddp import DDP\nfrom relay")
    own, cpu, pipeline = (
        {p.name for p in strategy_sources(file)} for file in (path, BUILT_IN / "cpu.py", BUILT_IN / "pipeline.py")
    )
    assert {"base.py", "ddp.py", "mine.py", "_scaler.py", "task.py"} <= own
    assert {"base.py", "cpu.py", "_scaler.py", "task.py"} <= cpu
    assert "ddp.py" not in cpu
    assert "_cut.py" in pipeline
    assert not {"run.py", "ranks.py"} & pipeline  # what computes nothing decides no run's identity


# The chain


def test_segments_end_at_planned_steps() -> None:
    found = planned(
        CPU,
        DDP | {"segment": {"epochs": 7}},
        DDP | {"devices_per_node": 4, "segment": {"steps": 440}},
        DDP | {"devices_per_node": 8, "segment": {"steps": 439}},
        segment={"steps": 200},
    )
    ends = {(run.strategy.name, run.shape.devices): found.segments(run) for run in found.runs}
    assert ends == {
        ("cpu", 1): [200, 400, 440],
        ("ddp", 2): [154, 308, 440],
        ("ddp", 4): [440],
        ("ddp", 8): [439, 440],
    }
    (run,) = found.runs_of("cpu")
    assert [found.previous_end(run, end) for end in (200, 400, 440)] == [0, 200, 400]
    with pytest.raises(ValueError):
        found.previous_end(run, 300)


def test_minutes_need_a_measured_speed_and_become_fixed_steps(tmp_path: Path) -> None:
    speeds = tmp_path / "speeds.json"
    asked = CPU | {"segment": {"minutes": 5}}
    found = planned(asked, DDP, repeats=2, speeds=speeds)
    run = found.runs_of("cpu")[0]
    assert [waiting.id for waiting in found.unmeasured] == [run.id]
    with pytest.raises(UserError, match=r"segment\.minutes: 5 needs a measured speed.* run 'snakemake plan' first"):
        found.segments(run)
    with pytest.raises(UserError, match="needs a measured speed"):
        found.to_json()
    speeds.write_text(json.dumps({run.setting_id: 1.0}))
    found = planned(asked, DDP, repeats=2, speeds=speeds)
    assert found.unmeasured == []
    assert found.segments(run) == [180, 360, 440]  # 300 s less a fifth, less 60 s to start


def test_steps_per_job() -> None:
    assert segments.steps_per_job(10, 0.5, startup_seconds=0, margin=0) == 1200
    assert segments.steps_per_job(10, 0.5, startup_seconds=60, margin=0.1) == 960
    assert segments.steps_per_job(2, 70, startup_seconds=50, margin=0) == 1
    with pytest.raises(
        UserError, match=r"segment.minutes: 1 leaves no time for a step of 70 seconds; allowed: at least 2"
    ):
        segments.steps_per_job(1, 70, startup_seconds=50, margin=0)


@pytest.mark.parametrize("text", ["{", "[1]", '{"cpu-1": "fast"}', '{"cpu-1": 0}', '{"cpu-1": NaN}', '{"cpu-1": null}'])
def test_damaged_speeds_are_named(tmp_path: Path, text: str) -> None:
    speeds = tmp_path / "speeds.json"
    speeds.write_text(text)
    found = planned(CPU | {"segment": {"minutes": 5}}, speeds=speeds)
    with pytest.raises(UserError, match=r"speeds\.json: "):
        found.segments(found.runs[0])


# What is refused


@pytest.mark.parametrize(
    ("comparison", "line"),
    [
        (
            {"strategy": "dpp"},
            "config: comparisons[1].strategy: 'dpp' is unknown; did you mean 'ddp'? allowed: cpu, data_parallel, ddp",
        ),
        (
            {"strategy": "hooked", "options": {"bucketmb": 3}},
            "config: comparisons[1].options.bucketmb: 3 is not allowed, hooked has no such option; "
            "did you mean 'bucket_mb'? allowed: bucket_mb, hook, views",
        ),
        (
            {"strategy": "hooked", "options": {"bucket_mb": [3, "4"]}},
            "config: comparisons[1].options.bucket_mb: '4' is not allowed; "
            "allowed: a whole number of at least 1, such as 25",
        ),
        (
            {"strategy": "hooked", "options": {"views": 1}},
            "config: comparisons[1].options.views: 1 is not allowed; allowed: true or false, such as false",
        ),
        (
            {"strategy": "cpu", "options": {"hook": "x"}},
            "config: comparisons[1].options.hook: 'x' is not allowed, cpu has no such option; allowed: none",
        ),
    ],
)
def test_unknown_strategies_and_options_have_one_line(tmp_path: Path, comparison: dict[str, Any], line: str) -> None:
    folder = made(tmp_path, "hooked", "options={'hook': 'none', 'bucket_mb': 25, 'views': False}")
    with pytest.raises(UserError) as caught:
        planned(CPU, comparison, strategy_folders=[folder])
    (found,) = str(caught.value).splitlines()
    assert found.startswith(line)


def test_a_damaged_strategy_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("class Broken(\n")
    with pytest.raises(UserError, match=r"broken\.py:1: no valid Python: "):
        planned({"strategy": "broken"}, strategy_folders=[str(tmp_path)])
    with pytest.raises(UserError, match=r"strategy_folders: '.*nowhere' is not a folder"):
        planned(CPU, strategy_folders=[str(tmp_path / "nowhere")])


def test_a_missing_source_of_the_task_is_named(project: Path) -> None:
    (project / "scripts/relay/networks/lenet.py").unlink()
    with pytest.raises(UserError, match=r"networks/lenet\.py: cannot be read: No such file"):
        planned(CPU, root=project)


# What comes out


def test_plan_json_is_what_the_comparison_reads() -> None:
    found = planned(DDP | {"segment": {"epochs": 10}}, {"strategy": "single_gpu"}, margin=0.05)
    (run,) = found.runs
    written = json.loads(json.dumps(found.to_json()))
    assert written["margin"] == 0.05
    assert written["runs"] == [
        {"id": run.id, "setting": run.setting_id, "gate": found.gate(run), "segments": [220, 440]}
        | {"reference": found.reference_of[found.gate(run)], "preflight": None}
    ]
    skipped = built(Setting, written["skipped"][0]["setting"])
    assert (skipped, tuple(written["skipped"][0]["reasons"])) == (found.skipped[0].setting, found.skipped[0].reasons)


def test_the_table_adds_up_and_fits_a_terminal() -> None:
    found = planned(
        CPU | {"cpus_per_task": 2},
        DDP | {"segment": {"epochs": 7}, "cpus_per_task": 3},
        {"strategy": "single_gpu"},
        repeats=4,
        runtime_minutes=30,
    )
    # a reference and cpu's gate on 1 CPU, ddp's on 2; 4 jobs of 2 CPUs; 12 of 6; half an hour each
    assert table.cost(found) == table.Cost(jobs=19, cpu_hours=(1 + 1 + 2 + 8 + 72) / 2, gpu_hours=0)
    text = table.render(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "19 jobs; at most 42 CPU-hours and 0 GPU-hours per try" in text
    assert "skipped: single_gpu: needs a GPU, device is cpu; use cpu instead" in text
    (row,) = [line for line in text.splitlines() if "ddp" in line and "gate" not in line]
    assert [cell.strip() for cell in row.strip("│").split("│")][1:] == ["4", "3", "12", "440", "6", "0"]


def test_the_table_counts_gpus_and_marks_what_is_not_measured() -> None:
    found = planned(DDP, CPU | {"segment": {"minutes": 5}}, gpus=2, repeats=2, runtime_minutes=60)
    # ddp: two jobs and a gate on 2 GPUs, its reference on 1; cpu: a gate and a reference, its runs unknown
    assert table.cost(found) == table.Cost(jobs=6, cpu_hours=4 + 2 + 1 + 1 + 1, gpu_hours=4 + 2 + 1)
    text = table.render(found)
    assert "?" in text
    assert "whose speed is not measured" in " ".join(text.split())


def test_a_thousand_runs_are_planned_at_once_and_without_torch() -> None:
    """The planner runs again inside every job."""
    program = """
import sys, time
sys.path.insert(0, "scripts")
from relay.spec.tasks import TASKS
from relay.planning.config import load
from relay.planning.planner import plan
axes = {"global_batch_size": [32, 64, 128, 256, 512], "cpus_per_task": [1, 2, 3, 4, 8]}
axes |= {"loader": ["resident", "dataloader"], "learning_rate_scaling": ["none", "linear"]}
config = load({"comparisons": [{"strategy": "cpu", "precision": ["fp32", "fp64"], **axes}]})
start = time.process_time()
found = plan(config)
found.to_json()
print(len(found.runs), time.process_time() - start, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    runs, seconds, torch = done.stdout.split()
    assert (runs, torch) == ("1000", "False")
    assert float(seconds) < 2  # of CPU time; 0.1 on an idle machine


def test_synthetic_images_that_do_not_fit_the_network_are_refused() -> None:
    keys = {"synthetic": {"shape": [3, 48, 48]}}
    with pytest.raises(UserError, match=r"images of \(3, 48, 48\) cannot be magnified"):
        only(CPU, task="lenet-synthetic", **keys)
