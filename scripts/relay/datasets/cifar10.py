"""CIFAR-10: where its files are, and their format (pickled batches), from verified bytes to arrays.

Read here and not by torchvision's dataset classes: the login node's environment need not hold torch, and importing
torchvision beside a torch of another build fails. Checksums are verified before anything below sees a byte.
"""

import pickle
from collections.abc import Mapping

import numpy as np

from relay.datasets.arrays import Arrays
from relay.datasets.files import Archive, KnownFile, Source


def read_cifar10(members: Mapping[str, bytes]) -> Arrays:
    """Images uint8 (N, 3, 32, 32) and labels int64 (N,) of both splits."""
    arrays: Arrays = {}
    training = sorted(name for name in members if name.startswith("data_batch_"))
    for split, names in (("train", training), ("test", ["test_batch"])):
        batches = [pickle.loads(members[name], encoding="latin1") for name in names]  # known bytes: they call nothing
        arrays[f"{split}-inputs"] = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
        arrays[f"{split}-targets"] = np.concatenate([np.asarray(batch["labels"], np.int64) for batch in batches])
    return arrays


_ARCHIVE = KnownFile(
    "cifar-10-python.tar.gz", 170_498_071, "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
)
_MEMBERS = (
    KnownFile("data_batch_1", 31_035_704, "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd"),
    KnownFile("data_batch_2", 31_035_320, "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8"),
    KnownFile("data_batch_3", 31_035_999, "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9"),
    KnownFile("data_batch_4", 31_035_696, "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b"),
    KnownFile("data_batch_5", 31_035_623, "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154"),
    KnownFile("test_batch", 31_035_526, "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831"),
)
CIFAR10 = Source(
    name="cifar10",
    read=read_cifar10,
    folder="cifar-10-batches-py",
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    archives=(Archive(_ARCHIVE, _MEMBERS),),
)
