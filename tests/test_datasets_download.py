"""Downloads of datasets: resumed, verified, and given up in one line that leaves nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from datasets_requests import HASTY, assert_is, names, one_line, prepare_public
from datasets_server import StandIn, known, serving, small_cifar
from relay.base.errors import UserError
from relay.datasets.download import download

pytest_plugins = ["datasets_requests"]
pytestmark = pytest.mark.usefixtures("no_proxy")
# For servers that never go on: on a busy machine, others may be silent for as long.
IMPATIENT = dataclasses.replace(HASTY, silence_seconds=0.3, slow_window_seconds=0.3)


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


def test_a_resumed_file_that_proves_wrong_is_fetched_anew(tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(50_000)
    (tmp_path / "unused").touch()
    with serving({"file": content[::-1]}, "cut") as server:
        real_get = server.files

        class Changing(dict):
            def __getitem__(self, name):  # the file is exchanged on the server between the two halves
                return real_get[name] if server.seen(name) == 1 else content

        server.files = Changing(real_get)
        path, _ = download(known("file", content), [server.url], tmp_path, HASTY)
    assert path.read_bytes() == content
    assert [asked for _, asked in server.asked] == [None, "bytes=25000-", None]


@pytest.mark.parametrize(
    ("mode", "said", "requests"),
    [
        ("missing", "404 Not Found", 1),
        ("flipped", "wrong content: corrupted: MD5 is", 1),
        ("cut-no-resume", r"connection closed after [\d,]+ of", 3),
        ("trickle", r"too slow: \d+ bytes/s", 3),
    ],
)
def test_a_server_that_fails_for_good_is_one_line_and_leaves_nothing(tmp_path, mode, said, requests) -> None:
    stand_in = small_cifar()
    with serving(stand_in.archives, mode, faults=99) as server:
        patience = IMPATIENT if mode == "trickle" else HASTY
        with pytest.raises(UserError, match=said) as error:
            prepare_public(stand_in, tmp_path / "out", mirror=server.url, patience=patience)
    text = one_line(error)
    assert "cifar-10-python.tar.gz: could not be downloaded" in text
    assert server.url in text
    assert "dataset_root" in text
    assert len(server.asked) == requests
    assert names(tmp_path) == set()
