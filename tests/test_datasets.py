"""Embedded and generated datasets: what they hold, and that it never changes."""

import dataclasses
import json
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests

import datasets_server as sets
from damaged import change_a_byte
from living import LONGEST_SECONDS
from own_tasks import spec
from refusals import refusal
from relay.base.errors import UserError
from relay.datasets import arrays, text, verified
from relay.datasets.download import download
from relay.datasets.manifest import MANIFEST
from relay.datasets.prepare import prepare
from relay.spec.tasks import DatasetSpec
from relay.status import finished
from relay.task.load import task_of
from relay.task.prepared import version_of
from relay.tasks._images import STATISTICS
from small_disks import mounts, small

MAIN = Path(__file__).resolve().parents[1] / "scripts" / "main.py"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers of the tests are on this machine; no proxy is asked for them."""
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture(params=[sets.small_mnist, sets.small_cifar], ids=["mnist", "cifar10"])
def stand_in(request: pytest.FixtureRequest) -> sets.StandIn:
    """A small dataset in the format of a public one."""
    return request.param()


# Embedded and generated data


def test_digits_are_split_as_they_always_were(tmp_path: Path) -> None:
    made = prepare(sets.DIGITS, sets.make_digits, tmp_path / "digits")
    assert finished.dataset(tmp_path / "digits", sets.DIGITS) == ""
    assert sets.names(tmp_path / "digits") == {*sets.FILES, MANIFEST, STATISTICS}
    train, test = arrays.load(tmp_path / "digits", "train"), arrays.load(tmp_path / "digits", "test")
    assert train[0].shape == (1437, 1, 8, 8)
    assert test[0].shape == (360, 1, 8, 8)
    assert (train[0].min(), train[0].max()) == (0, 255)
    # The split is part of what results are compared by: it must not move.
    assert made.checksums["test-targets.npy"] == "8b327f48c12dbefada47aa336ebcb04b5784c159c5350dbabf0e9ee71ad1cc40"


def test_synthetic_images_repeat_byte_for_byte(tmp_path: Path) -> None:
    first, second = (prepare(sets.SYNTHETIC, sets.make_synthetic, tmp_path / name) for name in "ab")
    assert first == second
    assert first.checksums["train-inputs.npy"] == "f7ddd3d4df89f65e2183b52bdad37cab31da7b74a1743bd1de28041ccadf0b59"
    inputs, targets = arrays.load(tmp_path / "a", "train")
    assert inputs.shape == (2500, 3, 16, 20)
    assert np.bincount(targets).tolist() == [500] * 5
    assert len(np.unique(inputs, axis=0)) == 2500


def test_the_text_is_the_frozen_one(tmp_path: Path) -> None:
    """What results are compared by must not move; and it is text, of which a model can learn something."""
    content = text.TEXT.read_bytes()
    assert content.decode().startswith("# Torch Relay\n")
    assert 150_000 < len(content) < 400_000
    changed = tmp_path / "relay_text.txt"
    changed.write_bytes(content.replace(b"Relay", b"relay", 1))
    with pytest.raises(UserError, match=r"relay_text\.txt: changed: SHA-256 is [0-9a-f]{64}, expected [0-9a-f]{64}"):
        text.windows(64, changed)
    assert "missing.txt: cannot be read: No such file" in refusal(text.windows, 64, tmp_path / "missing.txt")


# A dataset from a copy that the user has: extracted or packed, sound or damaged


def test_a_copy_is_taken_extracted_or_packed(tmp_path: Path, stand_in: sets.StandIn) -> None:
    sets.laid_out(stand_in, tmp_path / "extracted")
    packed = tmp_path / "packed"
    packed.mkdir()
    for name, content in stand_in.archives.items():
        (packed / name).write_bytes(content)
    for root in (tmp_path / "extracted", packed):
        sets.prepare_public(stand_in, tmp_path / f"from-{root.name}", root=root)
        sets.assert_is(tmp_path / f"from-{root.name}", stand_in)
    assert sets.names(packed) == set(stand_in.archives)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (change_a_byte, r"corrupted: SHA-256 is [0-9a-f]{64}, expected [0-9a-f]{64}"),
        (Path.unlink, r"No such file|holds no mnist"),
    ],
)
def test_a_damaged_copy_is_one_line_and_leaves_nothing(tmp_path: Path, stand_in, damage, expected) -> None:
    folder = sets.laid_out(stand_in, tmp_path / "root")
    damage(folder / list(stand_in.members)[-1])
    (tmp_path / "out").mkdir()
    told = refusal(sets.prepare_public, stand_in, tmp_path / "out" / "it", root=tmp_path / "root")
    assert re.search(expected, told)
    assert list(stand_in.members)[-1] in told
    assert sets.names(tmp_path / "out") == set()


# The prepared folder


def test_a_second_preparation_does_nothing_and_a_damaged_one_is_made_anew(tmp_path: Path) -> None:
    out = tmp_path / "digits"
    made = prepare(sets.DIGITS, sets.make_digits, out)
    before = (out / MANIFEST).stat().st_mtime_ns
    assert prepare(sets.DIGITS, sets.make_digits, out) == made
    assert (out / MANIFEST).stat().st_mtime_ns == before
    change_a_byte(out / "train-inputs.npy")
    assert prepare(sets.DIGITS, sets.make_digits, out) == made
    verified.check(out)
    assert sets.names(tmp_path) == {"digits"}


def test_a_folder_that_holds_anything_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"output: .* holds other files; expected a new, empty or prepared folder"):
        prepare(sets.DIGITS, sets.make_digits, tmp_path)
    assert sets.names(tmp_path) == {"thesis.tex"}


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with mounts() as mount:
        small(tmp_path, mount, 1000)
        assert "No space left on device" in refusal(prepare, sets.SYNTHETIC, sets.make_synthetic, tmp_path / "out")
        assert sets.names(tmp_path) == set()


def test_processes_that_prepare_the_same_folder_at_once_all_succeed(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        made = list(pool.map(prepare, [sets.SYNTHETIC] * 4, [sets.make_synthetic] * 4, [tmp_path / "out"] * 4))
    assert all(one == made[0] for one in made)
    assert verified.check(tmp_path / "out") == made[0]
    assert sets.names(tmp_path) == {"out"}


# What jobs read


def test_what_a_job_writes_into_its_arrays_never_reaches_the_files(tmp_path: Path) -> None:
    prepare(sets.DIGITS, sets.make_digits, tmp_path / "digits")
    inputs, _ = arrays.load(tmp_path / "digits", "train")
    assert isinstance(inputs, np.memmap)
    assert inputs.flags.c_contiguous
    inputs[:] = 0
    inputs.flush()
    verified.check(tmp_path / "digits")


# Downloads of datasets: resumed, verified, and given up in one line that leaves nothing.


def test_a_download_is_whole_verified_and_leaves_only_the_arrays(tmp_path: Path, stand_in: sets.StandIn) -> None:
    with sets.serving(stand_in.archives) as server:
        sets.prepare_public(stand_in, tmp_path / "out", mirror=server.url)
    sets.assert_is(tmp_path / "out", stand_in)
    assert sets.names(tmp_path) == {"out"}
    assert sorted(name for name, _ in server.asked) == sorted(stand_in.archives)


def test_a_connection_that_drops_is_resumed_where_it_broke(tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(300_000)
    # More often than there are attempts without progress.
    with sets.serving({"file": content}, "cut", faults=5) as server:
        path = download(sets.known("file", content), [server.url], tmp_path)
    assert path.read_bytes() == content
    starts = [int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0 for _, asked in server.asked]
    assert starts == [0, 150_000, 225_000, 262_500, 281_250, 290_625]
    assert sets.names(tmp_path) == {"file"}


@pytest.mark.parametrize(
    ("mode", "said", "requests"),
    [
        ("flipped", "wrong content: corrupted: SHA-256 is", 1),
        ("cut-no-resume", r"connection closed after [\d,]+ of", 3),
    ],
)
def test_a_server_that_fails_for_good_is_one_line_and_leaves_nothing(tmp_path, mode, said, requests) -> None:
    stand_in = sets.small_cifar()
    with sets.serving(stand_in.archives, mode, faults=99) as server:
        told = refusal(sets.prepare_public, stand_in, tmp_path / "out", mirror=server.url)
    assert re.search(said, told)
    for part in ("cifar-10-python.tar.gz: could not be downloaded", server.url, "dataset_root"):
        assert part in told
    assert len(server.asked) == requests
    assert sets.names(tmp_path) == set()


@pytest.mark.parametrize("error", [ValueError("Invalid IPv6 URL"), OSError("no TLS CA certificate bundle")])
def test_a_request_that_cannot_be_made_is_the_servers_line(tmp_path: Path, monkeypatch, error) -> None:
    def get(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(requests.Session, "get", get)
    told = refusal(download, sets.known("file", b"."), ["https://example.org"], tmp_path)
    assert told.startswith(f"file: could not be downloaded: https://example.org/file: {error}; give a copy")


@pytest.mark.slow
def test_a_terminated_download_leaves_nothing(tmp_path: Path) -> None:
    its, asked = spec("lenet-cifar10"), tmp_path / "spec.json"
    own = task_of(its)
    data = DatasetSpec(name=str(own.data), version=version_of(own), train_count=1, test_count=1)
    asked.write_text(json.dumps({"task": dataclasses.asdict(its), "dataset": dataclasses.asdict(data)}))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(LONGEST_SECONDS)
        mirror = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        command = [sys.executable, MAIN, "dataset", "--spec", asked, "--mirror", mirror, "--output", tmp_path / "o"]
        process = subprocess.Popen(command)
        connection, _ = silent.accept()
        assert sets.names(tmp_path) != {"spec.json"}
        process.terminate()
        assert process.wait(LONGEST_SECONDS) == 128 + signal.SIGTERM
        connection.close()
    assert sets.names(tmp_path) == {"spec.json"}
