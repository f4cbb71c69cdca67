"""The real MNIST and CIFAR-10, where a copy lies beside the project."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from datasets_requests import HASTY, prepare_public, run
from datasets_server import known, serving, small_cifar, tar_gz
from own_tasks import spec
from relay.datasets import arrays
from relay.datasets.cifar10 import CIFAR10
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


TORCHVISION_READS = """
import sys
if sys.argv[3] == "declare":
    import torch
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import numpy as np
from torchvision import datasets
for name, theirs in (("mnist", datasets.MNIST), ("cifar10", datasets.CIFAR10)):
    for split in ("train", "test"):
        reference = theirs(sys.argv[1], train=split == "train")
        np.save(f"{sys.argv[2]}/{name}-{split}-inputs.npy", np.asarray(reference.data))
        np.save(f"{sys.argv[2]}/{name}-{split}-targets.npy", np.asarray(reference.targets))
"""


@real
@pytest.mark.long
def test_real_files_read_as_torchvision_reads_them(tmp_path: Path, real_root: Path) -> None:
    # Beside a torch of another build torchvision cannot be imported before two operators are declared; beside
    # its own they must not be.
    for how in ("plainly", "declare"):
        command = [sys.executable, "-c", TORCHVISION_READS, real_root, tmp_path, how]
        read = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if read.returncode == 0:
            break
    assert read.returncode == 0, read.stderr
    for name in ("mnist", "cifar10"):
        asked = "--spec", described(tmp_path, name), "--root", real_root, "--output", tmp_path / name
        assert run(*asked).returncode == 0
        for split in ("train", "test"):
            inputs, targets = arrays.load(tmp_path / name, split)
            images = np.load(tmp_path / f"{name}-{split}-inputs.npy")
            images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
            np.testing.assert_array_equal(inputs, images)
            np.testing.assert_array_equal(targets, np.load(tmp_path / f"{name}-{split}-targets.npy"))


@real
@pytest.mark.slow
def test_real_cifar10_is_downloaded_over_a_bad_line(tmp_path: Path, real_root: Path) -> None:
    members = {path.name: path.read_bytes() for path in (real_root / CIFAR10.folder).iterdir()}
    packed = tar_gz({f"{CIFAR10.folder}/{name}": content for name, content in members.items()})
    # Packed here, so the archive's checksum is another; those of its members are the published ones.
    archive = replace(CIFAR10.archives[0], file=known("cifar-10-python.tar.gz", packed))
    source = replace(CIFAR10, archives=(archive,))
    stand_in = small_cifar()
    with serving({"cifar-10-python.tar.gz": packed}, "cut", faults=4) as server:
        made = prepare_public(stand_in, tmp_path / "out", mirror=server.url, source=source, patience=HASTY)
    assert len(server.asked) == 5
    assert made.files["train-inputs.npy"].sha256 == "cca17af9c1cff570c8c91fdb9f8bfc450d62dc4ff73ba6fb849b2b49e0c668f2"
