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

from datasets_requests import ENTRY_POINT, names, run
from datasets_server import serving
from own_tasks import spec
from relay.datasets.manifest import verify
from relay.spec.dataset import DatasetSpec
from relay.task.load import task_of
from relay.task.prepared import version_of

pytest_plugins = ["datasets_requests"]
pytestmark = pytest.mark.usefixtures("no_proxy")


def written(folder: Path, name: str, **options: object) -> Path:
    """What a run says of its task and data, in a file."""
    its = spec(name, **options)
    own = task_of(its)
    data = DatasetSpec(name=own.data or its.name, version=version_of(own), train_count=1, test_count=1)
    path = folder / "spec.json"
    path.write_text(json.dumps({"task": dataclasses.asdict(its), "dataset": dataclasses.asdict(data)}))
    return path


@pytest.mark.slow
def test_the_entry_point_prepares_what_a_specification_says(tmp_path: Path) -> None:
    asked = written(tmp_path, "lenet-synthetic", train_count=50, test_count=30)
    done = run("--spec", asked, "--output", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert "train-inputs.npy" in verify(tmp_path / "out", full=True).files


@pytest.mark.slow
def test_a_terminated_download_leaves_nothing(tmp_path: Path) -> None:
    with serving({"cifar-10-python.tar.gz": b""}, "silent") as server:
        asked = written(tmp_path, "lenet-cifar10")
        command = [sys.executable, ENTRY_POINT, "--spec", asked, "--mirror", server.url, "--output", tmp_path / "o"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        while not server.asked:
            assert process.poll() is None
            time.sleep(0.02)
        assert names(tmp_path) != {"spec.json"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM
        process.stderr.close()
    assert names(tmp_path) == {"spec.json"}
