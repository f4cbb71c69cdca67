"""MNIST: where its files are, and their format (idx), from verified bytes to arrays.

Read here and not by torchvision's dataset classes: the login node's environment need not hold torch, and importing
torchvision beside a torch of another build fails. Checksums are verified before anything below sees a byte.
"""

import struct
from collections.abc import Mapping

import numpy as np

from relay.datasets.arrays import Arrays
from relay.datasets.files import Archive, KnownFile, Source


def read_mnist(members: Mapping[str, bytes]) -> Arrays:
    """Images uint8 (N, 1, 28, 28) and labels int64 (N,) of both splits."""
    arrays: Arrays = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images = read_idx(members[f"{prefix}-images-idx3-ubyte"])
        arrays[f"{split}-inputs"] = images[:, np.newaxis]
        arrays[f"{split}-targets"] = read_idx(members[f"{prefix}-labels-idx1-ubyte"]).astype(np.int64)
    return arrays


def read_idx(content: bytes) -> np.ndarray:
    """The uint8 array of one idx file: two zeros, the type, the number of dimensions, big-endian sizes, the data."""
    dimensions = content[3]
    shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _packed(name: str, packed: tuple[int, str], plain: tuple[int, str]) -> Archive:
    """A file and its archive, of so many bytes and with this SHA-256."""
    return Archive(KnownFile(f"{name}.gz", *packed), (KnownFile(name, *plain),))


MNIST = Source(
    name="mnist",
    read=read_mnist,
    folder="MNIST/raw",
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    archives=(
        _packed(
            "train-images-idx3-ubyte",
            (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            (47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        ),
        _packed(
            "train-labels-idx1-ubyte",
            (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            (60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        ),
        _packed(
            "t10k-images-idx3-ubyte",
            (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            (7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        ),
        _packed(
            "t10k-labels-idx1-ubyte",
            (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
            (10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
        ),
    ),
)
