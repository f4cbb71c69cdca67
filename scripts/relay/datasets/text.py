"""The text that a language model is trained on: this project's own prose, frozen beside this file.

It holds the pages of documentation, then every module's signatures and docstrings, as they were on one day; it does
not follow them. A sample is a window of bytes, its targets the bytes that come next.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from relay.base.errors import UserError
from relay.datasets.formats import Arrays

TEXT = Path(__file__).with_name("relay_text.txt")
TEXT_SHA256 = "4f00c156f3807a9d6a0ece4160edf98b1bef3cb6e7564a7c5a41de8f4c3e4700"
TEST_EVERY = 8  # windows: both splits then have the same kinds of text


def windows(length: int, path: Path = TEXT) -> tuple[Arrays, str]:
    """Windows of `length` bytes that do not overlap, and where they are from.

    Inputs are uint8 (N, length), targets int64 (N, length): the same bytes, one further on. Every eighth window is for
    testing. Raises UserError unless the file is the known one and has eight windows.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; check the project out anew") from error
    if (found := hashlib.sha256(content).hexdigest()) != TEXT_SHA256:
        raise UserError(f"{path}: changed: SHA-256 is {found}, expected {TEXT_SHA256}; check the project out anew")
    count = (len(content) - 1) // length  # the last byte is a target only
    if count < TEST_EVERY:
        most = (len(content) - 1) // TEST_EVERY
        raise UserError(f"shape: [{length}] is longer than windows of this text can be; allowed is up to {most}")
    tokens = np.frombuffer(content, np.uint8)
    inputs = tokens[: count * length].reshape(count, length)
    targets = tokens[1 : count * length + 1].reshape(count, length).astype(np.int64)
    is_test = np.arange(count) % TEST_EVERY == TEST_EVERY - 1
    arrays = {
        "train-inputs": inputs[~is_test],
        "train-targets": targets[~is_test],
        "test-inputs": inputs[is_test],
        "test-targets": targets[is_test],
    }
    return arrays, path.name
