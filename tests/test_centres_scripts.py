"""The centres' own scripts as commands, where their pages are at hand: long."""

import csv
import re
import tarfile
import textwrap
from pathlib import Path
from typing import Any

import pytest

from living import well
from mini_slurm import MiniSlurm
from pages import ROOT
from script_runs import commanded
from slurm_runs import site_file, slurm_snakemake

SEEDS = ROOT.parent / "shared" / "seeds"
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not SEEDS.is_dir(), reason="the centres' pages are not here"),
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


RST = r"example of the ``train\.py``\n\n\.\. code-block:: python\n\n((?: {4}[^\n]*\n|\n)+)"


def script(number: str, pattern: str) -> str:
    """What the pattern finds on a centre's page, with CPUs in place of GPUs."""
    (path,) = SEEDS.glob(f"{number}_*.txt")
    text = textwrap.dedent(re.search(pattern, path.read_text(), re.DOTALL)[1])
    for gpu, cpu in ON_CPUS:
        text = text.replace(gpu, cpu)
    return text


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("number", "pattern", "shape", "told"),
    [
        ("001", RST, {"command": "torchrun train.py", "devices_per_node": 2}, "Epoch 4 | Batch 10 |"),
        ("003", "```python\n(.*?)```", {"launcher": "direct", "devices_per_node": 2}, "rank: 1, output: "),
    ],
)
def test_louisvilles_and_princetons_scripts_on_this_machine(number, pattern, shape, told, monkeypatch) -> None:
    """Only this runs them: Princeton's reads GPUS_PER_NODE, WORLD_SIZE and SLURM_PROCID."""
    monkeypatch.setenv("GPUS_PER_NODE", "2")  # as its job script does; there are no GPUs that could be declared here
    printed = well(commanded(script(number, pattern), **shape).run())
    assert told in printed


def alliance(name: str) -> str:
    """A script of the Alliance's page."""
    return script("000", rf"\|name={re.escape(name)}\n.*?contents=\n(.*?\n)\}}\}}")


@pytest.mark.slurm
def test_the_alliances_scripts_as_slurm_jobs(cluster: MiniSlurm, tmp_path: Path) -> None:
    """Only this runs a centre's scripts as its page has them."""
    with tarfile.open(SEEDS.parent / "data" / "cifar-10-batches-py.tar.xz") as archive:
        archive.extractall(tmp_path / "cifar10", filter="data")
    (tmp_path / "cifar10-cpu.py").write_text(alliance("cifar10-cpu.py"))
    (tmp_path / "pytorch-ddp-test.py").write_text(alliance("pytorch-ddp-test.py"))
    ddp = "python pytorch-ddp-test.py --init_method tcp://{address}:{port} --world_size {world_size} --max_epochs 1"
    links = {"links": {"data": str(tmp_path / "cifar10")}, "global_batch_size": 1024}
    comparisons: list[dict[str, Any]] = [
        {"command": "python cifar10-cpu.py --batch_size={global_batch_size}", "cpus_per_task": 2, **links},
        {"command": f"{ddp} --batch_size {{batch_per_process}}", "nodes": 2, "launcher": "srun", **links},
    ]
    config = {"device": "cpu", "repeats": 1, "runtime_minutes": 10, "comparisons": comparisons}
    well(slurm_snakemake(cluster, tmp_path, config, site=site_file(tmp_path)))
    with (tmp_path / "results" / "comparison.csv").open(newline="") as stream:
        rows = {row["strategy"]: row for row in csv.DictReader(stream)}
    assert {name: row["status"] for name, row in rows.items()} == {"cifar10-cpu": "done", "pytorch-ddp-test": "done"}
    assert rows["pytorch-ddp-test"]["nodes"] == "2"
