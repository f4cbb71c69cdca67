"""The dataset stage: what it prepares is right, and what goes wrong is one line that leaves nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from datasets_server import StandIn, known, serving, small_cifar, small_mnist, tar_gz
from relay.base.errors import UserError
from relay.datasets import generate, load_split, verify
from relay.datasets.arrays import FILES
from relay.datasets.catalogue import dataset
from relay.datasets.cifar10 import CIFAR10, read_cifar_batch
from relay.datasets.download import Patience, download
from relay.datasets.files import check_file
from relay.datasets.kinds import text
from relay.datasets.manifest import MANIFEST
from relay.datasets.prepare import prepare
from relay.datasets.progress import progress
from relay.spec.dataset import DatasetSpec

ENTRY_POINT = Path(__file__).parents[1] / "scripts" / "dataset.py"
REAL_DATA = Path(__file__).parents[2] / "shared" / "data"
HASTY = Patience(attempts=3, first_wait_seconds=0.01, longest_wait_seconds=0.02, progress_bytes=1000)
# For servers that never go on: on a busy machine, others may be silent for as long.
IMPATIENT = dataclasses.replace(HASTY, silence_seconds=0.3, slow_window_seconds=0.3)
DIGITS = DatasetSpec(
    name="digits", version="1", kind="images", shape=(1, 8, 8), classes=10, train_count=1437, test_count=360
)
SYNTHETIC = DatasetSpec(
    name="synthetic",
    version="1",
    kind="images",
    shape=(3, 16, 20),
    classes=5,
    train_count=2500,
    test_count=300,
)
RANDOM = DatasetSpec(
    name="random-10", version="1", kind="vectors", shape=(10,), classes=None, train_count=1000, test_count=200
)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture(params=[small_mnist, small_cifar], ids=["mnist", "cifar10"])
def stand_in(request: pytest.FixtureRequest) -> StandIn:
    return request.param()


def laid_out(stand_in: StandIn, root: Path) -> Path:
    """The stand-in as torchvision lays it out; returns the folder of its members."""
    folder = root / stand_in.source.folder
    folder.mkdir(parents=True)
    for name, content in stand_in.members.items():
        (folder / name).write_bytes(content)
    return folder


def assert_is(directory: Path, stand_in: StandIn) -> None:
    verify(directory, full=True)
    for split in ("train", "test"):
        inputs, targets = load_split(directory, split)
        assert (inputs.dtype, targets.dtype) == (np.uint8, np.int64)
        np.testing.assert_array_equal(inputs, stand_in.arrays[f"{split}-inputs"])
        np.testing.assert_array_equal(targets, stand_in.arrays[f"{split}-targets"])


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


# Embedded and generated data


def test_digits_are_all_of_scikit_learns_images_split_in_proportion(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    made = prepare(DIGITS, tmp_path / "digits")
    assert names(tmp_path) == {"digits"}
    assert names(tmp_path / "digits") == {*FILES, MANIFEST}
    train, test = load_split(tmp_path / "digits", "train"), load_split(tmp_path / "digits", "test")
    assert train[0].shape == (1437, 1, 8, 8)
    assert test[0].shape == (360, 1, 8, 8)
    assert (train[0].min(), train[0].max()) == (0, 255)
    bunch = load_digits()
    theirs = sorted(
        (image.round().astype(int).tobytes(), label) for image, label in zip(bunch.images, bunch.target, strict=True)
    )
    ours = sorted(
        (np.rint(image[0] / 255 * 16).astype(int).tobytes(), label)
        for inputs, targets in (train, test)
        for image, label in zip(inputs, targets, strict=True)
    )
    assert ours == theirs
    shares = np.bincount(test[1]) / np.bincount(bunch.target)
    assert np.ptp(shares) < 0.01
    assert made.source.startswith("scikit-learn")
    # The split is part of what results are compared by: it must not move.
    assert made.files["test-targets.npy"].sha256 == "8b327f48c12dbefada47aa336ebcb04b5784c159c5350dbabf0e9ee71ad1cc40"


def test_digits_that_are_not_the_known_ones_are_refused() -> None:
    images, targets = np.zeros((3, 1, 8, 8), np.uint8), np.zeros(3, np.int64)
    with pytest.raises(UserError, match=r"digits: corrupted: .* expected [0-9a-f]{64}"):
        generate.check_digits(images, targets)


def test_synthetic_images_repeat_byte_for_byte_and_can_be_learnt(tmp_path: Path) -> None:
    first, second = prepare(SYNTHETIC, tmp_path / "a"), prepare(SYNTHETIC, tmp_path / "b")
    assert first == second
    assert first.files["train-inputs.npy"].sha256 == "f7ddd3d4df89f65e2183b52bdad37cab31da7b74a1743bd1de28041ccadf0b59"
    inputs, targets = load_split(tmp_path / "a", "train")
    test_inputs, test_targets = load_split(tmp_path / "a", "test")
    assert inputs.shape == (2500, 3, 16, 20)
    assert np.bincount(targets).tolist() == [500] * 5
    assert len(np.unique(inputs, axis=0)) == 2500
    means = np.stack([inputs[targets == label].mean(axis=0) for label in range(5)]).reshape(5, -1)
    flat = test_inputs.reshape(300, -1)
    nearest = ((flat[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == test_targets).mean() > 0.95


def test_synthetic_images_do_not_depend_on_how_they_are_cut_into_pieces(tmp_path, monkeypatch) -> None:
    whole = prepare(SYNTHETIC, tmp_path / "a")
    monkeypatch.setattr(generate, "_CHUNK_BYTES", 70_000)
    assert prepare(SYNTHETIC, tmp_path / "b") == whole


def test_random_regression_is_standard_normal(tmp_path: Path) -> None:
    made = prepare(RANDOM, tmp_path / "random-10")
    inputs, targets = load_split(tmp_path / "random-10", "train")
    test_inputs, _ = load_split(tmp_path / "random-10", "test")
    assert (inputs.shape, targets.shape, test_inputs.shape) == ((1000, 10), (1000, 1), (200, 10))
    assert inputs.dtype == targets.dtype == np.float32
    assert abs(inputs.mean()) < 0.05
    assert abs(inputs.std() - 1) < 0.05
    assert abs(np.corrcoef(inputs[:, 0], targets[:, 0])[0, 1]) < 0.1
    assert not np.isin(test_inputs, inputs).any()
    assert made.mean is made.std is made.classes is None


@pytest.mark.parametrize(("name", "length"), [("relay-text", 64), ("relay-text-256", 256)])
def test_text_is_cut_into_windows_and_their_next_bytes(tmp_path: Path, name: str, length: int) -> None:
    made = prepare(dataset(name), tmp_path / "text")
    assert (made.shape, made.classes, made.mean, made.std) == ((length,), 256, None, None)
    assert made.source == "relay_text.txt"
    train, test = load_split(tmp_path / "text", "train"), load_split(tmp_path / "text", "test")
    assert [array.dtype for array in (*train, *test)] == [np.uint8, np.int64] * 2
    assert len(test[0]) * 7 == len(train[0])
    # Put together again, every eighth window from the test split, it is the text.
    windows = np.concatenate([train[0].reshape(-1, 7, length), test[0].reshape(-1, 1, length)], axis=1).reshape(-1)
    following = np.concatenate([train[1].reshape(-1, 7, length), test[1].reshape(-1, 1, length)], axis=1).reshape(-1)
    content = text.TEXT.read_bytes()
    assert windows.tobytes() == content[:-1]
    assert following.astype(np.uint8).tobytes() == content[1:]


def test_the_text_is_the_frozen_one(tmp_path: Path) -> None:
    """What results are compared by must not move; and it is text, of which a model can learn something."""
    content = text.TEXT.read_bytes()
    assert content.decode().startswith("# Torch Relay\n")
    assert 150_000 < len(content) < 400_000
    changed = tmp_path / "relay_text.txt"
    changed.write_bytes(content.replace(b"Relay", b"relay", 1))
    with pytest.raises(UserError, match=r"relay_text\.txt: changed: SHA-256 is [0-9a-f]{64}, expected [0-9a-f]{64}"):
        text.windows(64, changed)
    with pytest.raises(UserError, match=r"missing\.txt: cannot be read: No such file"):
        text.windows(64, tmp_path / "missing.txt")


def test_windows_longer_than_the_text_allows_are_refused() -> None:
    assert text.windows(32_768)["test-inputs"].shape == (1, 32_768)
    with pytest.raises(UserError, match=r"shape: \[32769\] is longer .* allowed is up to 32768"):
        text.windows(32_769)


# A copy that the user has


def test_a_copy_is_taken_extracted_or_packed(tmp_path: Path, stand_in: StandIn) -> None:
    laid_out(stand_in, tmp_path / "extracted")
    packed = tmp_path / "packed"
    packed.mkdir()
    for name, content in stand_in.archives.items():
        (packed / name).write_bytes(content)
    for root in (tmp_path / "extracted", packed):
        made = prepare(stand_in.request, tmp_path / f"from-{root.name}", root=root, source=stand_in.source)
        assert_is(tmp_path / f"from-{root.name}", stand_in)
        assert made.source == str(root)
    assert names(packed) == set(stand_in.archives)


def test_mean_and_std_are_those_of_the_training_images(tmp_path: Path, stand_in: StandIn) -> None:
    laid_out(stand_in, tmp_path)
    made = prepare(stand_in.request, tmp_path / "out", root=tmp_path, source=stand_in.source)
    scaled = stand_in.arrays["train-inputs"] / 255
    np.testing.assert_allclose(made.mean, scaled.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(made.std, scaled.std(axis=(0, 2, 3)), rtol=1e-12)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def corrupt(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def replace_by_folder(path: Path) -> None:  # unreadable even for root
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (truncate, r"truncated: [\d,]+ bytes, expected [\d,]+"),
        (corrupt, r"corrupted: MD5 is [0-9a-f]{32}, expected [0-9a-f]{32}"),
        (replace_by_folder, r"is a folder, expected a file of [\d,]+ bytes"),
        (Path.unlink, r"No such file|holds no mnist"),
    ],
)
def test_a_damaged_copy_is_one_line_and_leaves_nothing(tmp_path: Path, stand_in: StandIn, damage, expected) -> None:
    folder = laid_out(stand_in, tmp_path / "root")
    damage(folder / list(stand_in.members)[-1])
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match=expected) as error:
        prepare(stand_in.request, tmp_path / "out" / "it", root=tmp_path / "root", source=stand_in.source)
    assert list(stand_in.members)[-1] in one_line(error)
    assert names(tmp_path / "out") == set()


@pytest.mark.parametrize("damage", [truncate, corrupt])
def test_a_damaged_archive_is_one_line(tmp_path: Path, stand_in: StandIn, damage) -> None:
    for name, content in stand_in.archives.items():
        (tmp_path / name).write_bytes(content)
    name = next(iter(stand_in.archives))
    damage(tmp_path / name)
    with pytest.raises(UserError, match=r"truncated|corrupted") as error:
        prepare(stand_in.request, tmp_path / "out", root=tmp_path, source=stand_in.source)
    assert str(tmp_path / name) in one_line(error)
    assert not (tmp_path / "out").exists()


def test_content_with_the_right_md5_and_another_sha256_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    collision = dataclasses.replace(known("file", b"content"), sha256="0" * 64)
    with pytest.raises(UserError, match=r"file: corrupted: SHA-256 is [0-9a-f]{64}, expected 0{64}"):
        check_file(tmp_path / "file", collision)


def test_an_archive_without_its_members_is_named(tmp_path: Path) -> None:
    stand_in = small_cifar()
    packed = tar_gz({"cifar-10-batches-py/data_batch_1": stand_in.members["data_batch_1"]})
    archive = dataclasses.replace(stand_in.source.archives[0], file=known("cifar-10-python.tar.gz", packed))
    source = dataclasses.replace(stand_in.source, archives=(archive,))
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(packed)
    with pytest.raises(UserError, match=r"holds no data_batch_2, .*test_batch"):
        prepare(stand_in.request, tmp_path / "out", root=tmp_path, source=source)


def test_a_root_that_is_missing_empty_or_a_file_is_named(tmp_path: Path, stand_in: StandIn) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name, said in (("nowhere", "does not exist"), ("empty", "holds no"), ("file", "is a file")):
        with pytest.raises(UserError, match=f"dataset_root: .*{name}' {said}") as error:
            prepare(stand_in.request, tmp_path / "out", root=tmp_path / name, source=stand_in.source)
        assert stand_in.source.folder in one_line(error)


def test_a_pickle_that_calls_a_function_is_refused(tmp_path: Path) -> None:
    mark = tmp_path / "called"
    harmful = f"cos\nsystem\n(S'touch {mark}'\ntR.".encode()
    with pytest.raises(UserError, match=r"asks for os\.system"):
        read_cifar_batch("data_batch_1", harmful)
    assert not mark.exists()


# Downloads


def test_a_download_is_whole_verified_and_leaves_only_the_arrays(tmp_path: Path, stand_in: StandIn) -> None:
    with serving(stand_in.archives) as server:
        made = prepare(stand_in.request, tmp_path / "out", mirror=server.url, source=stand_in.source, patience=HASTY)
    assert_is(tmp_path / "out", stand_in)
    assert names(tmp_path) == {"out"}
    assert made.source == server.url
    assert sorted(name for name, _ in server.asked) == sorted(stand_in.archives)


def test_a_connection_that_drops_is_resumed_where_it_broke(tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(300_000)
    with serving({"file": content}, "cut", faults=5) as server:  # more often than there are attempts without progress
        path, _ = download(known("file", content), [server.url], tmp_path, HASTY)
    assert path.read_bytes() == content
    starts = [int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0 for _, asked in server.asked]
    assert starts == [0, 150_000, 225_000, 262_500, 281_250, 290_625]
    assert names(tmp_path) == {"file"}


def test_a_server_that_cannot_resume_is_asked_from_the_start(tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(50_000)
    with serving({"file": content}, "cut-no-resume", faults=2) as server:
        path, _ = download(known("file", content), [server.url], tmp_path, HASTY)
    assert path.read_bytes() == content
    assert len(server.asked) == 3


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


def test_a_busy_server_is_asked_again(tmp_path: Path) -> None:
    with serving({"file": b"content"}, "busy", faults=2) as server:
        path, _ = download(known("file", b"content"), [server.url], tmp_path, HASTY)
    assert path.read_bytes() == b"content"


def test_the_next_mirror_is_taken_when_one_fails(tmp_path: Path) -> None:
    content = b"c" * 5000
    with serving({"file": content}, "flipped") as bad, serving({"file": content}) as good:
        path, url = download(known("file", content), [bad.url, good.url], tmp_path, HASTY)
    assert url == f"{good.url}file"
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("mode", "said", "requests"),
    [
        ("missing", "404 Not Found", 1),
        ("flipped", "wrong content: corrupted: MD5 is", 1),
        ("page", r"wrong content: 26 bytes, expected [\d,]+", 1),
        ("endless", "wrong content: more than", 1),
        ("busy", "503 Service Unavailable", 3),
        ("cut-no-resume", r"connection closed after [\d,]+ of", 3),
        ("silent", "no answer in time", 3),
        ("trickle", r"too slow: \d+ bytes/s", 3),
    ],
)
def test_a_server_that_fails_for_good_is_one_line_and_leaves_nothing(tmp_path, mode, said, requests) -> None:
    stand_in = small_cifar()
    with serving(stand_in.archives, mode, faults=99) as server:
        patience = IMPATIENT if mode in ("silent", "trickle") else HASTY
        with pytest.raises(UserError, match=said) as error:
            prepare(stand_in.request, tmp_path / "out", mirror=server.url, source=stand_in.source, patience=patience)
    text = one_line(error)
    assert "cifar-10-python.tar.gz: could not be downloaded" in text
    assert server.url in text
    assert "dataset_root" in text
    assert len(server.asked) == requests
    assert names(tmp_path) == set()


def test_a_refused_connection_and_an_unknown_host_are_one_line(tmp_path: Path) -> None:
    with socket.socket() as unused:  # bound and not listening: refuses, and nobody else can take the port
        unused.bind(("127.0.0.1", 0))
        refusing = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(UserError) as error:
            download(known("file", b"content"), [refusing, "http://unknown.invalid"], tmp_path, HASTY)
    text = one_line(error)
    assert f"{refusing}/file: Connection refused" in text
    assert "http://unknown.invalid/file: host name not found" in text
    assert names(tmp_path) == set()


def test_a_mirror_that_is_no_web_address_is_refused(tmp_path: Path, stand_in: StandIn) -> None:
    with pytest.raises(UserError, match="dataset_mirror: 'ftp://x' must begin with http://, https:// or file://"):
        prepare(stand_in.request, tmp_path / "out", mirror="ftp://x", source=stand_in.source)


def read_to_end(terminal: int) -> str:
    drawn = b""
    with suppress(OSError):  # how a terminal's other end says that it was closed
        while piece := os.read(terminal, 10_000):
            drawn += piece
    os.close(terminal)
    return drawn.decode()


def test_progress_is_lines_where_there_is_no_terminal_and_a_bar_on_one(capsys) -> None:
    with progress("file", 2_000_000) as show:
        show(1_000_000)
        show(2_000_000)
    assert capsys.readouterr().err == "file: 2.0 of 2.0 MB in 0 s\n"
    leader, follower = os.openpty()
    with os.fdopen(follower, "w") as terminal, progress("file", 2_000_000, terminal) as show:
        show(2_000_000)
    drawn = read_to_end(leader)
    assert "100%" in drawn
    assert "2.00M/2.00M" in drawn


# The prepared folder


def test_a_second_preparation_does_nothing_and_a_damaged_one_is_made_anew(tmp_path: Path) -> None:
    out = tmp_path / "digits"
    made = prepare(DIGITS, out)
    before = (out / MANIFEST).stat().st_mtime_ns
    assert prepare(DIGITS, out) == made
    assert (out / MANIFEST).stat().st_mtime_ns == before
    corrupt(out / "train-inputs.npy")
    assert prepare(DIGITS, out) == made
    verify(out, full=True)
    assert names(tmp_path) == {"digits"}


def test_another_request_replaces_what_was_prepared(tmp_path: Path) -> None:
    prepare(SYNTHETIC, tmp_path / "out")
    made = prepare(dataclasses.replace(SYNTHETIC, test_count=10), tmp_path / "out")
    assert made.test_count == 10
    assert verify(tmp_path / "out", full=True) == made
    assert names(tmp_path) == {"out"}


def test_a_folder_that_holds_anything_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"output: .* holds 'thesis\.tex'; expected a new, empty or prepared folder"):
        prepare(DIGITS, tmp_path)
    assert names(tmp_path) == {"thesis.tex"}


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"output: '.*file' is a file"):
        prepare(DIGITS, tmp_path / "file")
    with pytest.raises(UserError, match=r"output: '.*file/digits' cannot be written: .*exists|Not a directory"):
        prepare(DIGITS, tmp_path / "file" / "digits")
    with pytest.raises(UserError, match=r"output: '/proc/digits' cannot be written: "):
        prepare(DIGITS, Path("/proc/digits"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which only Linux has")
def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_save = np.save

    def save_on_full_disk(path: Path, array: np.ndarray, **options: object) -> None:
        path.symlink_to("/dev/full")
        real_save(path, array, **options)

    monkeypatch.setattr(np, "save", save_on_full_disk)
    with pytest.raises(UserError, match=r"output: '.*digits' cannot be written: No space left on device") as error:
        prepare(DIGITS, tmp_path / "digits")
    one_line(error)
    assert names(tmp_path) == set()


def test_processes_that_prepare_the_same_folder_at_once_all_succeed(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        made = list(pool.map(prepare, [SYNTHETIC] * 4, [tmp_path / "out"] * 4))
    assert all(one == made[0] for one in made)
    assert verify(tmp_path / "out", full=True) == made[0]
    assert names(tmp_path) == {"out"}


def test_what_a_killed_process_left_goes_after_a_day(tmp_path: Path) -> None:
    old, fresh = tmp_path / ".digits.abc.partial", tmp_path / ".digits.def.partial"
    old.mkdir()
    fresh.mkdir()
    os.utime(old, (time.time() - 90_000,) * 2)
    prepare(DIGITS, tmp_path / "digits")
    assert names(tmp_path) == {"digits", fresh.name}


# What jobs read


def test_jobs_get_arrays_that_they_cannot_change(tmp_path: Path) -> None:
    prepare(DIGITS, tmp_path / "digits")
    inputs, _ = load_split(tmp_path / "digits", "train")
    assert isinstance(inputs, np.memmap)
    assert inputs.flags.c_contiguous
    with pytest.raises(ValueError, match="read-only"):
        inputs[0] = 0


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncate, "bytes, the manifest says"),
        (Path.unlink, "No such file"),
        (replace_by_folder, "bytes, the|directory"),
    ],
)
def test_a_damaged_array_stops_a_job_with_one_line(tmp_path: Path, damage, said) -> None:
    prepare(DIGITS, tmp_path / "digits")
    path = tmp_path / "digits" / "test-inputs.npy"
    damage(path)
    with pytest.raises(UserError, match=said) as error:
        verify(tmp_path / "digits")
    assert str(path) in one_line(error)
    with pytest.raises(UserError, match="cannot be read") as error:
        load_split(tmp_path / "digits", "test")
    assert str(path) in one_line(error)


def test_a_changed_byte_is_found_by_a_full_verification(tmp_path: Path) -> None:
    prepare(DIGITS, tmp_path / "digits")
    corrupt(tmp_path / "digits" / "test-inputs.npy")
    verify(tmp_path / "digits")
    with pytest.raises(UserError, match=r"test-inputs\.npy: corrupted: SHA-256 is"):
        verify(tmp_path / "digits", full=True)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"files": {}}', '{"files": {"a": {"shape": 1}}}'])
def test_a_manifest_that_is_none_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(UserError, match=r"manifest\.json: ") as error:
        verify(tmp_path)
    one_line(error)


# What is asked for


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "imagenet"}, "dataset: 'imagenet' is unknown; allowed are cifar10, digits, mnist"),
        ({"shape": (3, 0, 8)}, r"shape: \[3, 0, 8\] must be 3 positive"),
        ({"shape": (8,)}, r"shape: \[8\] must be 3 positive"),
        ({"classes": 1}, "classes: 1 must be"),
        ({"classes": None}, "classes: None must be"),
        ({"train_count": 0}, "train_count: 0 must be a whole number of at least 1"),
        ({"test_count": 1.5}, r"test_count: 1\.5 must be"),
        ({"kind": "sounds"}, "kind: 'sounds' is unknown; allowed are images, text, vectors"),
        ({"name": "random-10"}, "kind: 'images' does not fit 'random-10'; allowed is vectors"),
        ({"name": "relay-text"}, "kind: 'images' does not fit 'relay-text'; allowed is text"),
        ({"kind": "text", "shape": (8, 8), "classes": 256}, r"shape: \[8, 8\] must be 1 .*\(length\)"),
        ({"kind": "text", "shape": (8,), "classes": 255}, "classes: 255 must be 256"),
        ({"kind": "text", "shape": (8,), "classes": 256}, "kind: 'text' does not fit 'synthetic'; allowed is images"),
    ],
)
def test_a_request_that_makes_no_sense_is_one_line(tmp_path: Path, changes, said) -> None:
    with pytest.raises(UserError, match=said) as error:
        prepare(dataclasses.replace(SYNTHETIC, **changes), tmp_path / "out")
    one_line(error)
    assert names(tmp_path) == set()


def test_counts_that_the_data_do_not_have_are_refused(tmp_path: Path, stand_in: StandIn) -> None:
    laid_out(stand_in, tmp_path / "root")
    wrong = dataclasses.replace(stand_in.request, test_count=21)
    with pytest.raises(UserError, match=r"test inputs are \[20, .*expected \[21, "):
        prepare(wrong, tmp_path / "out", root=tmp_path / "root", source=stand_in.source)
    assert names(tmp_path) == {"root"}


# The entry point


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ENTRY_POINT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


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


# Real data

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


@real
@pytest.mark.slow
def test_real_mnist_and_cifar10_have_their_published_means(tmp_path: Path, real_root: Path) -> None:
    published = {
        "mnist": ([0.1307], [0.3081], [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616], [5000] * 10),
    }
    for name, (mean, std, counts) in published.items():
        done = run("--name", name, "--root", real_root, "--output", tmp_path / name)
        assert (done.returncode, done.stderr) == (0, "")
        made = verify(tmp_path / name, full=True)
        np.testing.assert_allclose(made.mean, mean, atol=5e-5)
        np.testing.assert_allclose(made.std, std, atol=1e-4)
        assert np.bincount(load_split(tmp_path / name, "train")[1]).tolist() == counts


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
@pytest.mark.slow
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
        assert run("--name", name, "--root", real_root, "--output", tmp_path / name).returncode == 0
        for split in ("train", "test"):
            inputs, targets = load_split(tmp_path / name, split)
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
    archive = dataclasses.replace(CIFAR10.archives[0], file=known("cifar-10-python.tar.gz", packed))
    source = dataclasses.replace(CIFAR10, archives=(archive,))
    request = dataclasses.replace(small_cifar().request, train_count=50_000, test_count=10_000)
    with serving({"cifar-10-python.tar.gz": packed}, "cut", faults=4) as server:
        made = prepare(request, tmp_path / "out", mirror=server.url, source=source, patience=HASTY)
    assert len(server.asked) == 5
    assert made.files["train-inputs.npy"].sha256 == "cca17af9c1cff570c8c91fdb9f8bfc450d62dc4ff73ba6fb849b2b49e0c668f2"
