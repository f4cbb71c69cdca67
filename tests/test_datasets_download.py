"""Downloads of datasets: resumed, verified, and given up in one line that leaves nothing."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from datasets_requests import ENTRY_POINT, HASTY, assert_is, names, one_line, prepare_public
from datasets_server import StandIn, known, serving, small_cifar
from own_tasks import spec
from relay.base.errors import UserError
from relay.datasets.download import download
from relay.spec.dataset import DatasetSpec
from relay.task.load import task_of
from relay.task.prepared import version_of

pytest_plugins = ["datasets_requests"]
pytestmark = pytest.mark.usefixtures("no_proxy")


def test_a_download_is_whole_verified_and_leaves_only_the_arrays(tmp_path: Path, stand_in: StandIn) -> None:
    with serving(stand_in.archives) as server:
        prepare_public(stand_in, tmp_path / "out", mirror=server.url, patience=HASTY)
    assert_is(tmp_path / "out", stand_in)
    assert names(tmp_path) == {"out"}
    assert sorted(name for name, _ in server.asked) == sorted(stand_in.archives)


def test_a_connection_that_drops_is_resumed_where_it_broke(tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(300_000)
    with serving({"file": content}, "cut", faults=5) as server:  # more often than there are attempts without progress
        path, _ = download(known("file", content), [server.url], tmp_path, HASTY)
    assert path.read_bytes() == content
    starts = [int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0 for _, asked in server.asked]
    assert starts == [0, 150_000, 225_000, 262_500, 281_250, 290_625]
    assert names(tmp_path) == {"file"}


@pytest.mark.parametrize(
    ("mode", "said", "requests"),
    [
        ("flipped", "wrong content: corrupted: MD5 is", 1),
        ("cut-no-resume", r"connection closed after [\d,]+ of", 3),
    ],
)
def test_a_server_that_fails_for_good_is_one_line_and_leaves_nothing(tmp_path, mode, said, requests) -> None:
    stand_in = small_cifar()
    with serving(stand_in.archives, mode, faults=99) as server, pytest.raises(UserError, match=said) as error:
        prepare_public(stand_in, tmp_path / "out", mirror=server.url, patience=HASTY)
    text = one_line(error)
    assert "cifar-10-python.tar.gz: could not be downloaded" in text
    assert server.url in text
    assert "dataset_root" in text
    assert len(server.asked) == requests
    assert names(tmp_path) == set()


# The entry point of the dataset stage: dataset.py as the workflow calls it


def written(folder: Path, name: str, **options: object) -> Path:
    """What a run says of its task and data, in a file."""
    its = spec(name, **options)
    own = task_of(its)
    data = DatasetSpec(name=own.data or its.name, version=version_of(own), train_count=1, test_count=1)
    path = folder / "spec.json"
    path.write_text(json.dumps({"task": dataclasses.asdict(its), "dataset": dataclasses.asdict(data)}))
    return path


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
