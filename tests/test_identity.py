"""Identity: a run is what it computes, and nothing else changes its id."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plans import CPU, DDP, ROOT, edit, only
from relay.base.errors import UserError
from relay.environments.locks import names_and_versions
from relay.run_folder.results_folder import LAYOUT, check_layout, refuse_other
from relay.spec.identity import module_sources, source_digest
from relay.spec.run import Run

pytest_plugins = ["plans"]
pytestmark = pytest.mark.usefixtures("in_the_project")


def test_an_id_survives_edits_that_change_no_code(project: Path) -> None:
    before = only(CPU, root=project)
    network = project / "scripts/relay/tasks/_lenet.py"
    text = network.read_text()
    network.write_text('"""Another docstring."""\n\n# A comment.\n' + text.split('"""', 2)[2] + "\n\n")
    edit(project / "scripts/relay/task/bound.py", "class BoundTask:\n", "class BoundTask:\n\n\n")
    assert source_digest([network]) == source_digest([ROOT / "scripts/relay/tasks/_lenet.py"])
    assert only(CPU, root=project).id == before.id


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("scripts/relay/tasks/_lenet.py", "nn.Linear(120, 84)", "nn.Linear(120, 80)"),
        ("envs/torch.txt", "torch==2.13.0", "torch==2.13.1"),
    ],
)
def test_an_id_changes_with_the_tasks_source_and_the_lock(project: Path, file: str, old: str, new: str) -> None:
    before = only(CPU, root=project)
    edit(project / file, old, new)
    after = only(CPU, root=project)
    assert (after.id != before.id, after.setting_id != before.setting_id) == (True, True)


@pytest.mark.slow
def test_what_processes_load_is_the_code_that_they_are_known_by() -> None:
    modules = ("equivalence.gate", "training.trainer", "script.process")
    loads = f"import sys, {', '.join(f'relay.{each}' for each in modules)}\n"
    loads += "print(*(each.__file__ for each in sys.modules.values() if 'relay.' in each.__name__))"
    loaded = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True).stdout.split()
    # A package's own file counts where it is named.
    computing = {path for path in map(Path, loaded) if path.name != "__init__.py"}
    assert computing - {*module_sources(ROOT, *modules)} == set()


def test_what_the_planner_alone_reads_is_no_part_of_a_gates_code() -> None:
    code = {str(path.relative_to(ROOT / "scripts" / "relay")) for path in module_sources(ROOT, "equivalence.gate")}
    assert {path for path in code if path.startswith(("planning/", "config/"))} == set()
    assert not {"spec/strategy_files.py", "spec/site.py", "spec/labels.py"} & code


@pytest.mark.slow
def test_only_what_changes_the_result_is_identity(tmp_path: Path) -> None:
    before = only(DDP)
    same = [
        only(DDP, checkpoint_minutes=1, warmup_steps=3, evaluate_every_epochs=2, runtime_minutes=5, margin=0.1),
        only(DDP, checkpoint_every_epochs=2),
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


def test_a_run_read_back_has_the_same_identity(tmp_path: Path) -> None:
    """Tuples become lists in run.json: that must not make it another run."""
    run = only(DDP)
    run.write(tmp_path / "run.json")
    assert Run.read(tmp_path / "run.json") == run


def test_a_lock_counts_by_names_and_versions(tmp_path: Path) -> None:
    lock = tmp_path / "torch.txt"
    lock.write_text(
        "# made\nTorch_Vision==0.28.0 \\\n    --hash=sha256:aa==bb\n"
        "attrs==25.1 ; python_version < '3.12' \\\n    --hash=x\n"
    )
    assert names_and_versions(lock) == ["attrs==25.1", "torch-vision==0.28.0"]
    lock.write_text("# empty\n")
    with pytest.raises(UserError, match=r"torch\.txt: no line of the form name==version"):
        names_and_versions(lock)


# Results of another version: told in one message, never gone on with


def test_new_results_note_their_layout_and_are_gone_on_with(tmp_path: Path) -> None:
    results = tmp_path / "results"
    (results / "datasets" / "digits").mkdir(parents=True)  # good for every layout
    check_layout(results)
    assert json.loads((results / "layout.json").read_text()) == {"layout": LAYOUT}
    (results / "runs").mkdir()
    check_layout(results)


@pytest.mark.parametrize("noted", [None, '{"layout": 99}'])
def test_results_of_another_layout_are_refused_and_left_alone(tmp_path: Path, noted: str | None) -> None:
    results = tmp_path / "results"
    run = results / "runs" / "cpu-0123456789ab" / "run.json"
    run.parent.mkdir(parents=True)
    run.write_text('{"id": "cpu-0123456789ab", "nodes": 1}')
    if noted is not None:
        (results / "layout.json").write_text(noted)
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    for check in (refuse_other, check_layout):
        with pytest.raises(UserError, match=rf"another version .*this one has {LAYOUT}.*Nothing is lost: move it"):
            check(results)
    assert {path: path.read_bytes() for path in results.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("noted", [None, "cut off"])
def test_todays_results_are_known_without_their_note_but_not_beside_another(tmp_path: Path, noted: str | None) -> None:
    results, run = tmp_path / "results", only(CPU)
    run.write(results / "runs" / run.id / "run.json")
    old = results / "runs" / "cpu-0123456789ab" / "run.json"
    old.parent.mkdir(parents=True)
    old.write_text("damaged")
    if noted is not None:
        (results / "layout.json").write_text(noted)
    assert not refuse_other(results)
    check_layout(results)
    assert json.loads((results / "layout.json").read_text()) == {"layout": LAYOUT}
    for foreign in ("{}", '{"version": 6}', "[6]"):
        (results / "layout.json").write_text(foreign)
        with pytest.raises(UserError, match=r"layout\.json: has no key 'layout'; allowed: .*Remove the file"):
            check_layout(results)
