"""A script that is a chain in the tests' own process.

A plugin of pytest for its fixtures, and a module that the tests import (hence PYTEST_DONT_REWRITE).
"""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from relay.chain import Run, Stopped
from relay.chain.signals import SIGNALS, Interruption
from relay.chain.telling import VARIABLES


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


def fitted(
    run: Run,
    layers: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    stop: int | None,
    before: Callable[[int], None] = lambda step: None,
) -> list[torch.Tensor]:
    """The weights after a job that turns points round; it is told to end after step `stop`. `before` each step."""
    points = [torch.randn(4, 3, generator=torch.Generator().manual_seed(i)) for i in range(steps)]
    try:
        for step, x in run.steps(points):
            before(step)
            optimizer.zero_grad()
            (layers(x) - x.flip(1)).square().mean().backward()
            optimizer.step()
            if step == stop:
                signal.raise_signal(signal.SIGTERM)
            run.after(step)
    except Stopped:
        pass
    finally:
        run._lock and run._lock.close()
    return [each.detach().clone() for each in layers.parameters()]
