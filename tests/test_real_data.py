"""The whole pipeline on real MNIST, where a copy lies beside the project: long, run by hand."""

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


def test_a_network_learns_what_it_should(tmp_path: Path) -> None:
    """No other test trains on real data of a public set."""
    with tarfile.open(DATA / "mnist-raw.tar.xz") as packed:
        packed.extractall(tmp_path / "data", filter="data")
    config = {
        "task": "princeton-mnist",
        "epochs": 3,
        "repeats": 1,
        "dataset_root": str(tmp_path / "data"),
        "comparisons": [{"strategy": "cpu", "cpus_per_task": 2}],
    }
    status, printed = snakemake(tmp_path, config, timeout_seconds=3500)
    assert status == 0, printed
    (row,) = rows(tmp_path)
    assert row["equivalent"] == "true"
    assert float(row["test_accuracy"]) >= 0.985
