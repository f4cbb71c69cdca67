"""The project's own text, in windows of bytes whose targets are the bytes that come next."""

import hashlib
from pathlib import Path

import numpy as np

from relay.base.entry import ROOT
from relay.base.errors import UserError
from relay.datasets.arrays import Arrays, split_by

# The project's own prose, frozen on one day: the pages of its documentation, then every module's signatures and
# docstrings. It is read when the dataset is prepared, in the checkout; jobs read the prepared arrays.
TEXT = ROOT / "workflow" / "resources" / "relay_text.txt"
TEXT_SHA256 = "4f00c156f3807a9d6a0ece4160edf98b1bef3cb6e7564a7c5a41de8f4c3e4700"
TEST_EVERY = 8  # windows: both splits then have the same kinds of text
TOKENS = 256  # a token is a byte


def windows(length: int, path: Path = TEXT) -> Arrays:
    """Windows of `length` bytes that do not overlap; every eighth is for testing.

    Inputs are uint8 (N, length), targets int64 (N, length): the same bytes, one further on. Raises UserError unless the
    file is the known one and has eight windows.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; check the project out again") from error
    if (digest := hashlib.sha256(content).hexdigest()) != TEXT_SHA256:
        raise UserError(f"{path}: changed: SHA-256 is {digest}, expected {TEXT_SHA256}; check the project out again")
    count = (len(content) - 1) // length  # the last byte is a target only
    if count < TEST_EVERY:
        most = (len(content) - 1) // TEST_EVERY
        raise UserError(f"shape: [{length}] is longer than windows of this text can be; allowed is up to {most}")
    tokens = np.frombuffer(content, np.uint8)
    inputs = tokens[: count * length].reshape(count, length)
    targets = tokens[1 : count * length + 1].reshape(count, length).astype(np.int64)
    return split_by(np.arange(count) % TEST_EVERY == TEST_EVERY - 1, inputs, targets)
