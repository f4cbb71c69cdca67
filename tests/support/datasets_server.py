"""A real HTTP server that serves files well or badly, small datasets in the public formats, and what is asked for."""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import numpy as np

from relay.datasets import arrays, download, generate, verified
from relay.datasets.cifar10 import read_cifar10
from relay.datasets.files import Archive, KnownFile, Source
from relay.datasets.manifest import Manifest
from relay.datasets.mnist import read_mnist
from relay.datasets.prepare import prepare
from relay.datasets.public import members
from relay.spec.tasks import DatasetSpec
from relay.tasks import _images

TRAIN_COUNT, TEST_COUNT = 50, 20  # of the small datasets
HASTY = {"ATTEMPTS": 3, "FIRST_WAIT_SECONDS": 0.01, "LONGEST_WAIT_SECONDS": 0.02, "PROGRESS_BYTES": 1000}


@dataclass
class Server:
    """What it serves, how, and what it was asked: (path, Range header or None) per request.

    Modes: whole; cut (half of what is left, then the connection drops, for the first `faults` requests of a
    path); cut-no-resume (the same, without ranges); flipped (a byte differs).
    """

    files: dict[str, bytes]
    mode: str
    faults: int
    url: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)


@contextmanager
def serving(files: dict[str, bytes], mode: str = "whole", faults: int = 1) -> Iterator[Server]:
    state = Server(files, mode, faults)
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(state)) as httpd, mock.patch.multiple(download, **HASTY):
        state.url = f"http://127.0.0.1:{httpd.server_address[1]}/data/"
        threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}).start()
        try:
            yield state
        finally:
            httpd.shutdown()


def _handler(state: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            name = self.path.removeprefix("/data/")
            asked_range = self.headers.get("Range")
            state.asked.append((name, asked_range))
            faulty = [path for path, _ in state.asked].count(name) <= state.faults
            if name not in state.files:
                self.send_error(404)
            else:
                self.send_file(state.files[name], asked_range, faulty)

        def send_file(self, content: bytes, asked_range: str | None, faulty: bool) -> None:
            if state.mode == "flipped":
                content = content[:-1] + bytes([content[-1] ^ 1])
            start = 0
            if asked_range and state.mode != "cut-no-resume":
                start = int(asked_range.removeprefix("bytes=").removesuffix("-"))
            body = content[start:]
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if state.mode.startswith("cut") and faulty:
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                time.sleep(0.05)  # until the half has left
                self.close_connection = True
            else:
                self.wfile.write(body)

    return Handler


@dataclass
class StandIn:
    """A small dataset in a public one's format: description, archives and members by name, arrays."""

    source: Source
    archives: dict[str, bytes]
    members: dict[str, bytes]
    arrays: dict[str, np.ndarray]


def small_mnist() -> StandIn:
    arrays = _arrays((1, 28, 28))
    members: dict[str, bytes] = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images, labels = arrays[f"{split}-inputs"], arrays[f"{split}-targets"]
        header = struct.pack(">4I", 0x803, len(images), 28, 28)
        members[f"{prefix}-images-idx3-ubyte"] = header + images.tobytes()
        header = struct.pack(">2I", 0x801, len(labels))
        members[f"{prefix}-labels-idx1-ubyte"] = header + labels.astype(np.uint8).tobytes()
    archives = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in members.items()}
    described = tuple(
        Archive(known(f"{name}.gz", archives[f"{name}.gz"]), (known(name, members[name]),)) for name in members
    )
    source = Source("mnist", read_mnist, "MNIST/raw", ("http://unused.invalid/",), described)
    return StandIn(source, archives, members, arrays)


def small_cifar() -> StandIn:
    arrays = _arrays((3, 32, 32))
    members = {}
    for number in range(1, 6):
        rows = slice(TRAIN_COUNT // 5 * (number - 1), TRAIN_COUNT // 5 * number)
        members[f"data_batch_{number}"] = _batch(arrays["train-inputs"][rows], arrays["train-targets"][rows])
    members["test_batch"] = _batch(arrays["test-inputs"], arrays["test-targets"])
    archive = tar_gz({f"cifar-10-batches-py/{name}": members[name] for name in reversed(members)})
    name = "cifar-10-python.tar.gz"
    described = Archive(known(name, archive), tuple(known(*item) for item in members.items()))
    source = Source("cifar10", read_cifar10, "cifar-10-batches-py", ("http://unused.invalid/",), (described,))
    return StandIn(source, {name: archive}, members, arrays)


def known(name: str, content: bytes) -> KnownFile:
    return KnownFile(name, len(content), hashlib.sha256(content).hexdigest())


def tar_gz(contents: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    return pickle.dumps({"data": images.reshape(len(images), -1), "labels": labels.tolist()}, protocol=3)


def _arrays(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(7)
    found = {}
    for split, count in (("train", TRAIN_COUNT), ("test", TEST_COUNT)):
        found[f"{split}-inputs"] = generator.integers(0, 256, (count, *shape), dtype=np.uint8)
        found[f"{split}-targets"] = generator.integers(0, 10, count)
    return found


# What the tests of the dataset stage ask for, and what they look at


FILES = ("train-inputs.npy", "train-targets.npy", "test-inputs.npy", "test-targets.npy")
DIGITS = DatasetSpec(name="digits", version="1", train_count=1437, test_count=360)
SYNTHETIC = DatasetSpec(name="synthetic", version="1", train_count=2500, test_count=300)


def make_digits(folder: Path) -> None:
    """What the tasks on digits make."""
    _images.save(generate.digits(DIGITS.test_count), folder)


def make_synthetic(folder: Path) -> None:
    """Images of 3 x 16 x 20 pixels in five classes."""
    generate.write_synthetic(folder, (3, 16, 20), 5, SYNTHETIC.train_count, SYNTHETIC.test_count)


def prepare_public(stand_in: StandIn, output: Path, root: Path | None = None, mirror: str | None = None) -> Manifest:
    """Prepare the images of a public dataset, as the tasks on MNIST and CIFAR-10 do."""
    its = stand_in.source
    wanted = DatasetSpec(name=its.name, version="1", train_count=TRAIN_COUNT, test_count=TEST_COUNT)
    return prepare(wanted, lambda folder: _images.save(its.read(members(its, root, mirror)), folder), output)


def laid_out(stand_in: StandIn, root: Path) -> Path:
    """The stand-in as torchvision lays it out; returns the folder of its members."""
    folder = root / stand_in.source.folder
    folder.mkdir(parents=True)
    for name, content in stand_in.members.items():
        (folder / name).write_bytes(content)
    return folder


def assert_is(directory: Path, stand_in: StandIn) -> None:
    verified.check(directory)
    for split in ("train", "test"):
        inputs, targets = arrays.load(directory, split)
        assert (inputs.dtype, targets.dtype) == (np.uint8, np.int64)
        np.testing.assert_array_equal(inputs, stand_in.arrays[f"{split}-inputs"])
        np.testing.assert_array_equal(targets, stand_in.arrays[f"{split}-targets"])


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}
