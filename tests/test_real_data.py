"""The whole pipeline on real CIFAR-10 and MNIST, where a copy lies beside the project: long, run by hand."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from test_workflow import rows, snakemake

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data in {DATA}"),
]


@pytest.mark.parametrize(
    ("task", "archive", "epochs", "accuracy"),
    [
        ("lenet-cifar10", "cifar-10-batches-py.tar.xz", 20, 0.60),
        ("princeton-mnist", "mnist-raw.tar.xz", 3, 0.985),
    ],
)
def test_the_networks_learn_what_they_should(
    tmp_path: Path, task: str, archive: str, epochs: int, accuracy: float
) -> None:
    with tarfile.open(DATA / archive) as packed:
        packed.extractall(tmp_path / "data", filter="data")
    config = {
        "task": task,
        "epochs": epochs,
        "repeats": 1,
        "dataset_root": str(tmp_path / "data"),
        "comparisons": [{"strategy": "cpu", "cpus_per_task": 2}],
    }
    status, printed = snakemake(tmp_path, config, timeout_seconds=3500)
    assert status == 0, printed
    (row,) = rows(tmp_path)
    assert row["equivalent"] == "true"
    assert float(row["test_accuracy"]) >= accuracy
