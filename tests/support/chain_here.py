"""A script that is a chain in the tests' own process: a plugin of pytest for its fixtures."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.chain.launched import VARIABLES
from relay.chain.signals import SIGNALS, Interruption


@pytest.fixture
def in_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A script of its own in an empty folder, under no launcher; handlers of signals and of errors are put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    for each in VARIABLES:
        for name in each:
            monkeypatch.delenv(name, raising=False)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that is told to end in the tests' own process ends nothing but itself."""
    monkeypatch.setattr(Interruption, "_end_in_time", lambda *_: None)
