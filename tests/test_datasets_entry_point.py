"""The entry point of the dataset stage: dataset.py as the workflow calls it."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from datasets_requests import ENTRY_POINT, SYNTHETIC, names, run
from datasets_server import serving, small_mnist
from relay.datasets.manifest import verify

pytest_plugins = ["datasets_requests"]
pytestmark = pytest.mark.usefixtures("no_proxy")


def test_the_entry_point_takes_a_specification_or_a_name(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(dataclasses.asdict(SYNTHETIC)))
    assert run("--spec", spec, "--output", tmp_path / "a").returncode == 0
    done = run(
        "--name", "synthetic", "--shape", "3,16,20", "--train-count", 2500, "--test-count", 300,
        "--classes", 5,
        "--output", tmp_path / "b",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert verify(tmp_path / "a", full=True).files == verify(tmp_path / "b", full=True).files


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--name", "imagenet"], "imagenet"),
        (["--name", "mnist", "--train-count", "5"], "train_count: 5 cannot be chosen for 'mnist'"),
        (["--name", "mnist", "--root", "/nowhere"], "dataset_root: '/nowhere' does not exist"),
        (["--spec", "/nowhere.json"], "/nowhere.json: cannot be read: No such file"),
    ],
)
def test_the_entry_point_ends_with_one_line_and_status_1(tmp_path: Path, arguments, said) -> None:
    failed = run(*arguments, "--output", tmp_path / "out")
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: ")
    assert failed.stderr.count("\n") == 1
    assert said in failed.stderr
    assert names(tmp_path) == set()


def test_wrong_bytes_in_place_of_the_real_files_are_refused(tmp_path: Path) -> None:
    with serving(small_mnist().archives) as server:
        failed = run("--name", "mnist", "--mirror", server.url, "--output", tmp_path / "out")
    assert failed.returncode == 1
    last = failed.stderr.splitlines()[-1]
    assert last.startswith("error: train-images-idx3-ubyte.gz: could not be downloaded: http://127.0.0.1")
    assert "expected 9,912,422" in last
    assert names(tmp_path) == set()


def test_a_terminated_download_leaves_nothing(tmp_path: Path) -> None:
    with serving({"cifar-10-python.tar.gz": b""}, "silent") as server:
        command = [
            sys.executable,
            ENTRY_POINT,
            "--name",
            "cifar10",
            "--mirror",
            server.url,
            "--output",
            tmp_path / "o",
        ]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        while not server.asked:
            assert process.poll() is None
            time.sleep(0.02)
        assert names(tmp_path) != set()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM
        process.stderr.close()
    assert names(tmp_path) == set()


def test_preparing_and_reading_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import dataset; "
        "import relay.datasets.download; "
        "status = dataset.main(['--name', 'synthetic', '--output', sys.argv[2]]); "
        "sys.exit(status or sorted({'torch', 'torchvision'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, ENTRY_POINT.parent, tmp_path / "out"], timeout=60, check=False)
    assert done.returncode == 0
