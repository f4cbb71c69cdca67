"""The real MNIST and CIFAR-10, where a copy lies beside the project."""

from __future__ import annotations

import json
import tarfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from datasets_requests import run
from own_tasks import spec
from relay.datasets import arrays
from relay.datasets.manifest import verify
from relay.spec.dataset import DatasetSpec
from relay.tasks._images import STATISTICS

pytest_plugins = ["datasets_requests"]
pytestmark = pytest.mark.usefixtures("no_proxy")
REAL_DATA = Path(__file__).parents[2] / "shared" / "data"
real = pytest.mark.skipif(
    not REAL_DATA.is_dir(), reason=f"{REAL_DATA.name}: no copy of the real data beside this folder"
)


@pytest.fixture(scope="module")
def real_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("real")
    for archive in REAL_DATA.glob("*.tar.xz"):
        with tarfile.open(archive) as tar:
            tar.extractall(root, filter="data")
    return root


def described(folder: Path, name: str) -> Path:
    """A file that describes a built-in task on a public dataset, as a run's does."""
    its = spec({"mnist": "utsa-mnist", "cifar10": "lenet-cifar10"}[name])
    data = DatasetSpec(name=name, version="1", train_count=0, test_count=0)
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"task": asdict(its), "dataset": asdict(data)}))
    return file


@real
@pytest.mark.slow
def test_real_mnist_and_cifar10_have_their_published_means(tmp_path: Path, real_root: Path) -> None:
    published = {
        "mnist": ([0.1307], [0.3081], [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616], [5000] * 10),
    }
    for name, (mean, std, counts) in published.items():
        done = run("--spec", described(tmp_path, name), "--root", real_root, "--output", tmp_path / name)
        assert (done.returncode, done.stderr) == (0, "")
        verify(tmp_path / name, full=True)
        made = json.loads((tmp_path / name / STATISTICS).read_text())
        np.testing.assert_allclose(made["mean"], mean, atol=5e-5)
        np.testing.assert_allclose(made["std"], std, atol=1e-4)
        assert np.bincount(arrays.load(tmp_path / name, "train")[1]).tolist() == counts
