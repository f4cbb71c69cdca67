"""What the driver knows of its machine before any job starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relay.base.errors import UserError
from relay.datasets.mnist import MNIST as MNIST_FILES
from relay.planning import gpus, here
from relay.planning.config import load
from relay.planning.plan import Plan
from relay.planning.planner import plan
from relay.spec.site import Site, load_site
from support.fake_cuda import driver_of_gpus

ROOT = Path(__file__).resolve().parents[1]
MNIST = {"task": "princeton-mnist", "repeats": 1, "comparisons": [{"strategy": "cpu"}]}


def planned(config: dict[str, object], site: Site | None = None) -> Plan:
    return plan(load(config), gpus=0, site=site)


def refusal(made: Plan, results: Path) -> str:
    with pytest.raises(UserError) as caught:
        here.check(made, results)
    return str(caught.value)


def test_data_that_is_not_where_it_should_be_is_known_before_any_job(tmp_path: Path) -> None:
    root = tmp_path / "data"
    made = planned(MNIST | {"dataset_root": str(root)})
    assert refusal(made, tmp_path).startswith(f"config: dataset_root: '{root}' does not exist; expected a folder")
    root.mkdir()
    assert refusal(made, tmp_path).startswith(f"config: dataset_root: '{root}' holds no mnist: expected MNIST/raw/")
    root.rmdir()
    root.touch()
    assert refusal(made, tmp_path).startswith(f"config: dataset_root: '{root}' is a file; expected a folder")
    made = planned(MNIST | {"dataset_mirror": f"file://{tmp_path}/none"})
    assert "there is no folder" in refusal(made, tmp_path)


def test_a_dataset_that_is_prepared_needs_its_source_no_more(tmp_path: Path) -> None:
    made = planned(MNIST | {"dataset_root": "/nowhere"})
    (name,) = {run.dataset.directory_name for run in made.runs}
    manifest = tmp_path / "datasets" / name / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    here.check(made, tmp_path)


@pytest.mark.slow
def test_a_folder_that_begins_with_a_dash_is_no_option(tmp_path: Path) -> None:
    """As `--root -data` it would be one to dataset.py."""
    folder = tmp_path / "-data" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for archive in MNIST_FILES.archives:
        (folder / archive.file.name).touch()
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "-c1", "--directory"]
    given = ["--config", "task=princeton-mnist", "dataset_root=-data"]
    target = "data"
    done = subprocess.run([*command, str(tmp_path), target, *given], capture_output=True, text=True, check=False)
    assert "train-images-idx3-ubyte.gz: truncated: 0 bytes" in done.stdout + done.stderr


def test_a_gpu_that_is_asked_for_has_to_be_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned({"device": "cuda", "comparisons": [{"strategy": "single_gpu"}]})
    driver_of_gpus(tmp_path, monkeypatch, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "NoDevFiles")
    assert refusal(made, tmp_path) == (
        "config: device: 'cuda' is not allowed: this machine has no usable GPU: NVIDIA's driver says: no CUDA-capable "
        "device is detected (CUDA_VISIBLE_DEVICES is 'NoDevFiles'); allowed: auto, cpu"
    )
    driver_of_gpus(tmp_path, monkeypatch, 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    here.check(made, tmp_path)


@pytest.mark.parametrize(
    ("shown", "count"),
    [(None, 8), ("2,5", 2), ("GPU-0b1c,GPU-77aa,GPU-9", 3), ("MIG-4f", 1), ("", 0), ("-1", 0), ("1,-1,2", 1)],
)
def test_gpus_are_those_that_cuda_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str | None, count: int
) -> None:
    """What a list means is the driver's to say; that it is asked, and with the list, is what is tested here."""
    driver_of_gpus(tmp_path, monkeypatch, 8)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert gpus.count_gpus() == count
    if count == 2:
        made = plan(load({"comparisons": [{"strategy": "ddp", "devices_per_node": [2, 8]}]}))
        assert [each.setting.shape.devices for each in made.settings] == [2]
        assert made.skipped[0].reasons == ("devices_per_node is 8, 2 GPUs can be used here",)


def test_without_nvidias_driver_there_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert gpus.usable() == (0, "NVIDIA's driver cannot be asked")
    assert gpus.count_gpus() == 0


def test_more_gpus_than_are_here_are_skipped_where_cuda_is_named() -> None:
    config = load({"device": "cuda", "comparisons": [{"strategy": "ddp", "devices_per_node": [2, 4]}]})
    (skipped,) = plan(config, gpus=2).skipped
    assert skipped.reasons == ("devices_per_node is 4, 2 GPUs can be used here",)


def test_a_site_without_partitions_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\ndescription: d\nverified: never\npartitions: []\n")
    made = planned({}, load_site(str(file), ROOT))
    assert refusal(made, tmp_path) == f"{file}: partitions: missing; add at least one (`sinfo` lists them)"


@pytest.mark.parametrize("character", ["$", "`", "\\"])
def test_a_folder_whose_name_fails_in_a_job_is_told_before_anything_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, character: str
) -> None:
    folder = tmp_path / f"a{character}b"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (line,) = (each for each in planned({}, load_site("generic", ROOT)).unready if "rename it" in each)
    assert line.endswith(f": Slurm jobs cannot work with {character} in a path; rename it")
    assert planned({}).unready == []  # on this machine it works


@pytest.mark.slow
def test_no_name_of_a_task_or_config_runs_in_the_shell_that_submits(tmp_path: Path) -> None:
    shutil.copy(ROOT / "workflow/templates/task.py", tmp_path / "a$(touch T).py")
    (tmp_path / "c$(touch C).yaml").write_text("task: a$(touch T).py\ncomparisons: [{strategy: cpu}]\n")
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--profile"]
    command += [str(ROOT / "profiles/slurm"), "--configfile", "c$(touch C).yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    refused = [line for line in done.stderr.splitlines() if line.endswith("cannot work with $ in a path; rename it")]
    assert done.returncode == 1
    assert [line.partition(": Slurm")[0] for line in refused] == [
        "error: a$(touch T).py",
        f"error: {tmp_path}/c$(touch C).yaml",
    ]


@pytest.mark.parametrize("path", ["/data/x$(id).sif", "$SCRATCH/x.sif", "a;b", "--bind=/", "a|b", "a\nb", "x&", "`id`"])
@pytest.mark.parametrize("key", ["image", "python"])
def test_a_path_that_a_shell_would_read_otherwise_is_refused(tmp_path: Path, key: str, path: str) -> None:
    text = (ROOT / "config/sites/generic.yaml").read_text().split("\nenvironment:")[0]
    (tmp_path / "x.yaml").write_text(f"{text}\nenvironment: {{{key}: {path!r}}}\n")
    with pytest.raises(UserError, match=rf"x\.yaml: environment\.{key}: .* is not allowed; allowed: a name or a path"):
        load_site(str(tmp_path / "x.yaml"), ROOT)


def test_a_path_may_have_blanks_and_begin_with_the_home_folder(tmp_path: Path) -> None:
    from relay.environments import login_node

    text = (ROOT / "config/sites/generic.yaml").read_text().split("\nenvironment:")[0]
    (tmp_path / "x.yaml").write_text(f"{text}\nenvironment: {{mode: apptainer, image: '~/my images/é_1.2+cu.sif'}}\n")
    asked = login_node.asked(load_site(str(tmp_path / "x.yaml"), ROOT), "torch", ROOT)
    assert asked["image"] == str(Path("~/my images/é_1.2+cu.sif").expanduser())
