"""A script that is a chain in the tests' own process."""

import signal
from typing import Any

import torch
from torch import nn

from relay.chain import Run, Stopped


def fitted(
    run: Run, layers: nn.Module, optimizer: Any, steps: int, stop: int | None, before: Any = lambda step: None
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
