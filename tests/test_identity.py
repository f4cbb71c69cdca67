"""Identity: a run is what it computes, and nothing else changes its id."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chain_runs import Bench
from plans import CPU, DDP, ROOT, edit, only, planned
from refusals import refusal
from relay.base.errors import UserError
from relay.environments.locks import names_and_versions
from relay.planning.plan import Plan
from relay.run_folder.results_folder import LAYOUT, check_layout, refuse_other
from relay.spec.arithmetic import Arithmetic, variables_set
from relay.spec.identity import module_sources, source_digest
from relay.spec.run import Run

pytestmark = pytest.mark.usefixtures("in_the_project")


def test_an_id_survives_edits_that_change_no_code(project: Path) -> None:
    before = only(CPU, root=project)
    network = project / "scripts/relay/tasks/_lenet.py"
    text = network.read_text()
    network.write_text('\ufeff"""Another docstring."""\n\n# A comment.\n' + text.split('"""', 2)[2] + "\n\n")
    edit(project / "scripts/relay/task/bound.py", "class BoundTask:\n", "class BoundTask:\n\n\n")
    assert source_digest([network]) == source_digest([ROOT / "scripts/relay/tasks/_lenet.py"])
    assert only(CPU, root=project).id == before.id


def test_an_id_changes_with_the_tasks_source_and_the_lock(project: Path) -> None:
    runs = [only(CPU, root=project)]
    edit(project / "scripts/relay/tasks/_lenet.py", "nn.Linear(120, 84)", "nn.Linear(120, 80)")
    runs.append(only(CPU, root=project))
    edit(project / "envs/torch.txt", "torch==2.13.0", "torch==2.13.1")
    runs.append(only(CPU, root=project))
    assert (len({run.id for run in runs}), len({run.setting_id for run in runs})) == (3, 3)


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
    same = {"checkpoint_minutes": 1, "warmup_steps": 3, "evaluate_every_epochs": 2, "runtime_minutes": 5, "margin": 0.1}
    for keys in (same, {"checkpoint_every_epochs": 2}, {"gate": {"seed": 3}}):
        assert only(DDP, **keys).id == before.id
    assert only(DDP | {"segment": {"steps": 100}}).id == before.id
    keys = [{"seed": 2}, {"epochs": 21}, {"learning_rate": 0.04}, {"task": "lenet-synthetic"}]
    axes = [{"devices_per_node": 4}, {"cpus_per_task": 2}, {"cpus_per_task": 2, "threads": 1}, {"interop_threads": 2}]
    axes += [{"loader": "dataloader"}, {"precision": "fp64"}, {"learning_rate_scaling": "linear"}]
    axes += [{"global_batch_size": 32}]
    other = [only(DDP, **each) for each in keys] + [only(DDP | each) for each in axes]
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
    assert "torch.txt: no line of the form name==version" in refusal(names_and_versions, lock)


# Results of another version: told in one message, never gone on with


def test_new_results_note_their_layout_and_are_gone_on_with(tmp_path: Path) -> None:
    results = tmp_path / "results"
    (results / "datasets" / "digits").mkdir(parents=True)  # good for every layout
    check_layout(results)
    assert json.loads((results / "layout.json").read_text()) == {"layout": LAYOUT}
    (results / "runs").mkdir()
    check_layout(results)


def older(results: Path, noted: str | None, run: str = '{"id": "cpu-0123456789ab", "nodes": 1}') -> None:
    """A run as an older version had it, and what is noted of the layout."""
    path = results / "runs" / "cpu-0123456789ab" / "run.json"
    path.parent.mkdir(parents=True)
    path.write_text(run)
    if noted is not None:
        (results / "layout.json").write_text(noted)


@pytest.mark.parametrize("noted", [None, '{"layout": 99}'])
def test_results_of_another_layout_are_refused_and_left_alone(tmp_path: Path, noted: str | None) -> None:
    results = tmp_path / "results"
    older(results, noted)
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    for check in (refuse_other, check_layout):
        assert re.search(rf"another version .*this one has {LAYOUT}.*Nothing is lost: move it", refusal(check, results))
    assert {path: path.read_bytes() for path in results.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("noted", [None, "cut off"])
def test_todays_results_are_known_without_their_note_but_not_beside_another(tmp_path: Path, noted: str | None) -> None:
    results, run = tmp_path / "results", only(CPU)
    run.write(results / "runs" / run.id / "run.json")
    older(results, noted, "damaged")
    assert not refuse_other(results)
    check_layout(results)
    assert json.loads((results / "layout.json").read_text()) == {"layout": LAYOUT}
    for foreign in ("{}", '{"version": 6}', "[6]"):
        (results / "layout.json").write_text(foreign)
        with pytest.raises(UserError, match=r"layout\.json: has no key 'layout'; allowed: .*Remove the file"):
            check_layout(results)


# What changes the arithmetic from outside is part of what a run, a gate and a reference are


BF16 = {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}


def names(plan: Plan) -> list[set[str]]:
    return [{run.id for run in plan.runs}, set(plan.gates), set(plan.references)]


@pytest.mark.parametrize("other", [Arithmetic("ONEDNN_DEFAULT_FPMATH_MODE=BF16", "2.13.0"), Arithmetic("", "2.12.0")])
def test_runs_gates_and_references_of_other_arithmetic_are_others(other: Arithmetic) -> None:
    usual, found = (planned(CPU, device="cpu", arithmetic=each) for each in (Arithmetic("", "2.13.0"), other))
    for mine, theirs in zip(names(usual), names(found), strict=True):
        assert not mine & theirs
    (place,) = {run.place for run in found.runs}
    assert (place.variables, place.torch_version) == (other.variables, other.torch)
    told = f"set in the environment, and so a part of every run: {other.variables}"
    assert (told in found.warnings) is bool(other.variables)


def test_variables_that_change_nothing_do_not_count() -> None:
    harmless = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "PATH")
    assert variables_set(dict.fromkeys(harmless, "1")) == ""
    assert variables_set({"MKL_CBWR": ""}) == ""
    both = {"TORCHINDUCTOR_USE_FAST_MATH": "1", "MKL_CBWR": "AVX2"}
    assert variables_set(both) == "MKL_CBWR=AVX2; TORCHINDUCTOR_USE_FAST_MATH=1"


@pytest.mark.slow
def test_a_job_that_computes_otherwise_than_planned_ends_with_one_line(bench: Bench) -> None:
    chain = bench.chain("results", total_steps=6)
    ended = chain.segment(**BF16)
    assert ended.status == 1
    assert "Traceback" not in ended.errors
    told = "ONEDNN_DEFAULT_FPMATH_MODE is 'BF16' in its job, and was unset when it was planned"
    assert told in chain.fault()["error"]
