"""The centres' own scripts as commands, on real data, and made chains: where their pages and the data are at hand."""

from __future__ import annotations

import csv
import re
import tarfile
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from mini_slurm import MiniSlurm
from pages import ROOT
from script_runs import commanded
from shared import once, session_folder
from slurm_runs import site_file, slurm_snakemake

SHARED = ROOT.parent / "shared"
SEEDS, DATA = SHARED / "seeds", SHARED / "data"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not SEEDS.is_dir() or not DATA.is_dir(), reason="the centres' pages are not here"),
]
# What their scripts ask of GPUs, for processes on CPUs.
ON_CPUS = (
    ("nccl", "gloo"),
    ("torch.cuda.device_count()", "int(os.environ['SLURM_NTASKS_PER_NODE'])"),
    ("torch.cuda.set_device(current_device)", "pass"),
    ("torch.cuda.set_device(local_rank)", "pass"),
    (", device_ids=[current_device]", ""),
    (", device_ids=[local_rank]", ""),
    ('torch.device("cuda", local_rank)', 'torch.device("cpu")'),
    (".to(local_rank)", ""),
    (".cuda()", ""),
)
THREE_LINES = (
    ("import numpy as np\n", "import numpy as np\nfrom relay.chain import resume\n"),
    (
        "    for batch_idx, (inputs, targets) in enumerate(train_loader):\n",
        "    run = resume(model=net, optimizer=optimizer, save_steps=20)\n"
        "    for batch_idx, (inputs, targets) in run.steps(train_loader):\n",
    ),
    ("       perf.append(images_per_sec)\n", "       perf.append(images_per_sec)\n       run.after(batch_idx)\n"),
)


def page(number: str) -> str:
    (path,) = SEEDS.glob(f"{number}_*.txt")
    return path.read_text()


def alliance(name: str) -> str:
    """A script of the Alliance's page, as it stands there."""
    found = re.search(rf"\|name={re.escape(name)}\n.*?contents=\n(.*?)\n\}}\}}", page("000"), re.DOTALL)
    assert found is not None
    return found[1] + "\n"


def of_code_blocks(number: str, inside: str) -> str:
    """The first block of Python of Louisville's or Princeton's page that has this text."""
    text = page(number)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    blocks += [textwrap.dedent(block) for block in re.findall(r"code-block:: python\n\n((?: {4}.*\n|\n)+)", text)]
    return next(block for block in blocks if inside in block)


def on_cpus(script: str) -> str:
    for gpu, cpu in ON_CPUS:
        script = script.replace(gpu, cpu)
    return script


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which torchvision finds CIFAR-10."""

    def unpack(folder: Path) -> None:
        with tarfile.open(DATA / "cifar-10-batches-py.tar.xz") as archive:
            archive.extractall(folder, filter="data")

    return once(session_folder(tmp_path_factory) / "cifar10", unpack)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.long
def test_the_same_script_as_a_chain_by_three_lines(cifar10: Path) -> None:
    """Only this makes a centre's own script a chain."""
    script = alliance("cifar10-cpu.py")
    for old, new in THREE_LINES:
        assert script.count(old) == 1
        script = script.replace(old, new)
    made = commanded(script, links={"data": str(cifar10)}, global_batch_size=512, cpus_per_task=2)
    job = made.start()
    checkpoints = made.folder / "checkpoints"
    while job.poll() is None and not [*checkpoints.glob("step-*")]:
        time.sleep(0.1)
    job.terminate()
    printed, _ = job.communicate(timeout=200)
    assert job.returncode == 75, printed
    status, printed = made.run(attempt=2)
    assert status == 0, printed
    assert "goes on from step" in printed
    assert made.summary()["steps_reached"] == 98, "an epoch of 50,000 images in batches of 512"


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "inside", "shape", "told"),
    [
        ("001", "Dummy dataset", {"command": "torchrun train.py", "devices_per_node": 2}, "Epoch 4 | Batch 10 |"),
        ("003", "GPUS_PER_NODE", {"launcher": "direct", "devices_per_node": 2}, "rank: 1, output: "),
    ],
)
def test_louisvilles_and_princetons_scripts_on_this_machine(
    number: str, inside: str, shape: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this runs them: Princeton's reads GPUS_PER_NODE, WORLD_SIZE and SLURM_PROCID."""
    monkeypatch.setenv("GPUS_PER_NODE", "2")  # as its job script does; there are no GPUs that could be declared here
    status, printed = commanded(on_cpus(of_code_blocks(number, inside)), **shape).run()
    assert status == 0, printed
    assert told in printed


@pytest.mark.long
@pytest.mark.slurm
def test_the_alliances_scripts_as_slurm_jobs(cluster: MiniSlurm, tmp_path: Path, cifar10: Path) -> None:
    """Only this runs a centre's scripts as its page has them."""
    (tmp_path / "cifar10-cpu.py").write_text(alliance("cifar10-cpu.py"))
    (tmp_path / "pytorch-ddp-test.py").write_text(on_cpus(alliance("pytorch-ddp-test.py")))
    ddp = "python pytorch-ddp-test.py --init_method tcp://{address}:{port} --world_size {world_size} --max_epochs 1"
    links = {"links": {"data": str(cifar10)}, "global_batch_size": 1024}
    comparisons: list[dict[str, Any]] = [
        {"command": "python cifar10-cpu.py --batch_size={global_batch_size}", "cpus_per_task": 2, **links},
        {"command": f"{ddp} --batch_size {{batch_per_process}}", "nodes": 2, "launcher": "srun", **links},
    ]
    config = {"device": "cpu", "repeats": 1, "runtime_minutes": 10, "comparisons": comparisons}
    status, printed = slurm_snakemake(cluster, tmp_path, config, site=site_file(tmp_path))
    assert status == 0, printed
    with (tmp_path / "results" / "comparison.csv").open(newline="") as stream:
        rows = {row["strategy"]: row for row in csv.DictReader(stream)}
    assert {name: row["status"] for name, row in rows.items()} == {"cifar10-cpu": "done", "pytorch-ddp-test": "done"}
    assert rows["pytorch-ddp-test"]["nodes"] == "2"
