"""Where the public datasets come from and how each of their files is recognised: data, no logic.

MD5 sums are those that torchvision publishes (of the archives in `torchvision.datasets.MNIST` and `CIFAR10`,
of CIFAR-10's extracted files there too). MD5 resists accidents, not intent: the SHA-256 stands beside it, and
both must hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class KnownFile:
    """A file whose content is known in advance."""

    name: str
    size_bytes: int
    md5: str
    sha256: str


@dataclass(frozen=True)
class Archive:
    """A downloadable file and the members of it that are used. `.tar.gz` holds several, `.gz` exactly one."""

    file: KnownFile
    members: tuple[KnownFile, ...]


@dataclass(frozen=True)
class Source:
    """A public dataset: base addresses in the order they are tried, and torchvision's folder below its
    `root`.
    """

    format: Literal["idx", "cifar"]
    folder: str
    mirrors: tuple[str, ...]
    archives: tuple[Archive, ...]


MNIST = Source(
    format="idx",
    folder="MNIST/raw",
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    archives=(
        Archive(
            KnownFile(
                "train-images-idx3-ubyte.gz",
                9_912_422,
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            (
                KnownFile(
                    "train-images-idx3-ubyte",
                    47_040_016,
                    "6bbc9ace898e44ae57da46a324031adb",
                    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                ),
            ),
        ),
        Archive(
            KnownFile(
                "train-labels-idx1-ubyte.gz",
                28_881,
                "d53e105ee54ea40749a09fcbcd1e9432",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            (
                KnownFile(
                    "train-labels-idx1-ubyte",
                    60_008,
                    "a25bea736e30d166cdddb491f175f624",
                    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                ),
            ),
        ),
        Archive(
            KnownFile(
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "9fb629c4189551a2d022fa330f9573f3",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            (
                KnownFile(
                    "t10k-images-idx3-ubyte",
                    7_840_016,
                    "2646ac647ad5339dbf082846283269ea",
                    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                ),
            ),
        ),
        Archive(
            KnownFile(
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "ec29112dd5afa0611ce80d1b7f02629c",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
            (
                KnownFile(
                    "t10k-labels-idx1-ubyte",
                    10_008,
                    "27ae3e4e09519cfbb04c329615203637",
                    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                ),
            ),
        ),
    ),
)

CIFAR10 = Source(
    format="cifar",
    folder="cifar-10-batches-py",
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    archives=(
        Archive(
            KnownFile(
                "cifar-10-python.tar.gz",
                170_498_071,
                "c58f30108f718f92721af3b95e74349a",
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
            (
                KnownFile(
                    "data_batch_1",
                    31_035_704,
                    "c99cafc152244af753f735de768cd75f",
                    "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
                ),
                KnownFile(
                    "data_batch_2",
                    31_035_320,
                    "d4bba439e000b95fd0a9bffe97cbabec",
                    "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
                ),
                KnownFile(
                    "data_batch_3",
                    31_035_999,
                    "54ebc095f3ab1f0389bbae665268c751",
                    "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
                ),
                KnownFile(
                    "data_batch_4",
                    31_035_696,
                    "634d18415352ddfa80567beed471001a",
                    "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
                ),
                KnownFile(
                    "data_batch_5",
                    31_035_623,
                    "482c414d41f54cd18b22e5b47cb7c3cb",
                    "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
                ),
                KnownFile(
                    "test_batch",
                    31_035_526,
                    "40351d587109b95175f43aff81a1287e",
                    "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
                ),
            ),
        ),
    ),
)

SOURCES: dict[str, Source] = {"mnist": MNIST, "cifar10": CIFAR10}
