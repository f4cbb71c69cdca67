"""`dataset_mirror: file://…`: a folder serves as a mirror, and its files are checked as those of a server."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from datasets_requests import prepare_public
from datasets_server import StandIn, small_mnist
from relay.datasets import arrays


@pytest.fixture
def stand_in() -> StandIn:
    return small_mnist()


def folder(stand_in: StandIn, place: Path) -> Path:
    place.mkdir()
    for name, content in stand_in.archives.items():
        (place / name).write_bytes(content)
    return place


def test_a_folder_is_taken_as_a_server_is(tmp_path: Path, stand_in: StandIn) -> None:
    mirror = "file://" + quote(str(folder(stand_in, tmp_path / "my mirror")))
    prepare_public(stand_in, tmp_path / "out", mirror=mirror)
    np.testing.assert_array_equal(arrays.load(tmp_path / "out", "train")[0], stand_in.arrays["train-inputs"])
    assert {path.name for path in tmp_path.iterdir()} == {"my mirror", "out"}
